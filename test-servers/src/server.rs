use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::docker::Docker;
use crate::error::{Error, NoServer, Skipped};
use crate::installed::Installed;
use crate::kind::Kind;
use crate::kinds::Recipe as _;
use crate::kinds::pgbouncer::PgBouncer;
use crate::program::Program;

/// A running server for tests.
///
/// A server that was started for the caller ([`Origin::Docker`], [`Origin::Installed`]) is empty
/// at first, is used by nobody else and disappears with this value, data and all. It also
/// disappears when the process ends or is killed, so it may be kept in a `static`.
///
/// A server named by the environment ([`Origin::Environment`]) is **shared**: a test that uses it
/// isolates itself, by its own database or key prefix, and cleans up; and it cannot be
/// stopped, killed or paused ([`Error::Shared`]).
///
/// The methods block, for up to a minute and a half when a server starts. In an asynchronous test
/// call them where that does no harm, or through `spawn_blocking`.
pub struct Server {
    kind: Kind,
    origin: Origin,
    /// One a node.
    urls: Vec<String>,
    backing: Backing,
}

/// Where a server comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The environment names it. It is shared, and isolation is the caller's business.
    Environment {
        /// The variable that holds its URL.
        variable: &'static str,
    },
    /// Our own container.
    Docker {
        /// Its image, with the tag.
        image: String,
    },
    /// Our own process, from a program installed on the machine.
    Installed {
        /// The program.
        program: PathBuf,
        /// What it says its version is.
        version: String,
    },
}

impl Origin {
    pub(crate) fn of(program: &Program) -> Self {
        Self::Installed {
            program: program.path.clone(),
            version: program.version.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment { variable } => write!(f, "{variable} (shared)"),
            Self::Docker { image } => write!(f, "Docker image {image}"),
            Self::Installed { program, version } => write!(f, "{} ({version})", program.display()),
        }
    }
}

enum Backing {
    Shared,
    Docker(Box<Docker>),
    Installed(Box<Installed>),
    /// A server that clients reach through another.
    Behind {
        front: Box<Installed>,
        behind: Box<Server>,
    },
}

impl Server {
    pub(crate) fn shared(kind: Kind, url: String) -> Self {
        let variable = kind.url_variable();
        Self {
            kind,
            origin: Origin::Environment { variable },
            urls: vec![url],
            backing: Backing::Shared,
        }
    }

    pub(crate) fn in_docker(kind: Kind, origin: Origin, arguments: &[&str]) -> Result<Self, Error> {
        let server = Box::new(Docker::create(kind, arguments)?);
        Ok(Self {
            kind,
            origin,
            urls: server.urls(),
            backing: Backing::Docker(server),
        })
    }

    pub(crate) fn installed(kind: Kind, origin: Origin, server: Installed) -> Self {
        Self {
            kind,
            origin,
            urls: server.urls(),
            backing: Backing::Installed(Box::new(server)),
        }
    }

    /// Makes this, and the server behind it that clients reach through it, one.
    pub(crate) fn with_behind(self, behind: Self) -> Self {
        match self.backing {
            Backing::Installed(front) => Self {
                backing: Backing::Behind {
                    front,
                    behind: Box::new(behind),
                },
                ..self
            },
            _ => self,
        }
    }

    /// The kind of server.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it comes from.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether others may be using it, so that isolation is the caller's business.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.backing, Backing::Shared)
    }

    /// Where clients connect, with a user who may do everything. For a server of several nodes, the
    /// first one's. It stays the same when the server is restarted.
    ///
    /// Our own server needs no password; a shared one's URL may contain one.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.urls[0]
    }

    /// Where clients connect to each node. A shared server is one node as far as is known.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The temporary directory of an installed server, with its data and its `log`. Of a server
    /// behind another, it is the other's.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        match &self.backing {
            Backing::Installed(server) => Some(server.home()),
            Backing::Behind { front, .. } => Some(front.home()),
            Backing::Shared | Backing::Docker(_) => None,
        }
    }

    /// Whether it runs. A paused server does; a shared one is assumed to.
    ///
    /// # Errors
    /// If the operating system or Docker does not tell.
    pub fn is_running(&mut self) -> Result<bool, Error> {
        match &mut self.backing {
            Backing::Shared => Ok(true),
            Backing::Docker(server) => server.is_running(),
            Backing::Installed(server) => server.is_running(),
            Backing::Behind { front, behind } => Ok(front.is_running()? && behind.is_running()?),
        }
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), on the same data and
    /// the same port, and returns when it takes requests. Does nothing if it runs; of several
    /// nodes, starts those that do not.
    ///
    /// # Errors
    /// [`Error::Shared`]; [`Error::DidNotStart`].
    pub fn start(&mut self) -> Result<(), Error> {
        match &mut self.backing {
            Backing::Shared => Err(self.refusal()),
            Backing::Docker(server) => server.start(),
            Backing::Installed(server) => server.start(),
            Backing::Behind { front, behind } => {
                behind.start()?;
                front.start()
            }
        }
    }

    /// Stops it as its operator would, and returns when it has ended. Connected clients are cut
    /// off. Does nothing if it does not run.
    ///
    /// # Errors
    /// [`Error::Shared`]; [`Error::DidNotStop`] after a minute. A server under `libfaketime` is killed after twenty
    /// seconds instead.
    pub fn stop(&mut self) -> Result<(), Error> {
        match &mut self.backing {
            Backing::Shared => Err(self.refusal()),
            Backing::Docker(server) => server.stop(),
            Backing::Installed(server) => server.stop(),
            Backing::Behind { front, behind } => {
                front.stop()?;
                behind.stop()
            }
        }
    }

    /// Kills it with SIGKILL, every process of it, as in a crash, and returns when they are gone.
    /// What the server had acknowledged is there after [`start`](Self::start). Does nothing if it
    /// does not run.
    ///
    /// # Errors
    /// [`Error::Shared`], or if the operating system or Docker refuses.
    pub fn kill(&mut self) -> Result<(), Error> {
        match &mut self.backing {
            Backing::Shared => Err(self.refusal()),
            Backing::Docker(server) => server.kill(),
            Backing::Installed(server) => server.kill(),
            Backing::Behind { front, behind } => {
                front.kill()?;
                behind.kill()
            }
        }
    }

    /// Stops it orderly and starts it again.
    ///
    /// # Errors
    /// Those of [`stop`](Self::stop) and [`start`](Self::start).
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop()?;
        self.start()
    }

    /// Freezes every process of it, as on a machine that hangs: connections stay open, new ones
    /// may even be made, and nothing is answered until [`resume`](Self::resume).
    ///
    /// # Errors
    /// [`Error::Shared`]; [`Error::NotRunning`].
    pub fn pause(&mut self) -> Result<(), Error> {
        match &mut self.backing {
            Backing::Shared => Err(self.refusal()),
            Backing::Docker(server) => server.pause(),
            Backing::Installed(server) => server.pause(),
            Backing::Behind { front, behind } => {
                front.pause()?;
                behind.pause()
            }
        }
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// [`Error::Shared`]; [`Error::NotRunning`].
    pub fn resume(&mut self) -> Result<(), Error> {
        match &mut self.backing {
            Backing::Shared => Err(self.refusal()),
            Backing::Docker(server) => server.resume(),
            Backing::Installed(server) => server.resume(),
            Backing::Behind { front, behind } => {
                front.resume()?;
                behind.resume()
            }
        }
    }

    /// Whether it has a disk of its own that can be filled.
    #[must_use]
    pub fn has_small_disk(&self) -> bool {
        self.with_data().is_some_and(Installed::has_small_disk)
    }

    /// Takes up all room on the disk of one that was found [on a small disk](crate::find_own_to_harm), until
    /// [`clear_disk`](Self::clear_disk). A server may end at that.
    ///
    /// # Errors
    /// [`Error::NoSmallDisk`], or if the operating system refuses.
    pub fn fill_disk(&self) -> Result<(), Error> {
        self.on_disk()?.fill_disk()
    }

    /// Gives the room on the disk back. One that has ended is started again by [`start`](Self::start).
    ///
    /// # Errors
    /// Those of [`fill_disk`](Self::fill_disk).
    pub fn clear_disk(&self) -> Result<(), Error> {
        self.on_disk()?.clear_disk()
    }

    fn on_disk(&self) -> Result<&Installed, Error> {
        let none = Error::NoSmallDisk { kind: self.kind };
        self.with_data().ok_or(none)
    }

    /// The installed server that has the data.
    fn with_data(&self) -> Option<&Installed> {
        match &self.backing {
            Backing::Installed(server) => Some(server),
            Backing::Behind { behind, .. } => behind.with_data(),
            Backing::Shared | Backing::Docker(_) => None,
        }
    }

    /// Whether it has a clock of its own that can be moved.
    #[must_use]
    pub fn has_movable_clock(&self) -> bool {
        self.with_data().is_some_and(Installed::has_movable_clock)
    }

    /// Lets the clock of one that was found [to be harmed](crate::find_own_to_harm) be ahead of the true time by so
    /// many microseconds from now on, or behind it by a negative number. It jumps there at once, for all of its processes,
    /// and keeps the distance when it is started again. How it measures time that passes does not change.
    ///
    /// # Errors
    /// [`Error::NoMovableClock`], or if the operating system refuses.
    pub fn move_clock(&self, ahead_micros: i64) -> Result<(), Error> {
        let none = Error::NoMovableClock { kind: self.kind };
        self.with_data().ok_or(none)?.move_clock(ahead_micros)
    }

    /// Kills one node of several, counted from 0, and returns when its processes are gone. Does
    /// nothing if it does not run.
    ///
    /// # Errors
    /// [`Error::Shared`]; [`Error::OneContainer`]; [`Error::NoSuchNode`].
    pub fn kill_node(&mut self, node: usize) -> Result<(), Error> {
        self.nodes()?.kill_node(node)
    }

    /// Starts one node again, on the same data and the same port, and returns when it takes
    /// requests. Does nothing if it runs.
    ///
    /// # Errors
    /// Those of [`kill_node`](Self::kill_node); [`Error::DidNotStart`], also if no node runs and
    /// another one knows more.
    pub fn start_node(&mut self, node: usize) -> Result<(), Error> {
        self.nodes()?.start_node(node)
    }

    /// Freezes one node of several, as [`pause`](Self::pause) does all of them.
    ///
    /// # Errors
    /// Those of [`kill_node`](Self::kill_node); [`Error::NotRunning`].
    pub fn pause_node(&mut self, node: usize) -> Result<(), Error> {
        self.nodes()?.pause_node(node)
    }

    /// Lets a paused node go on.
    ///
    /// # Errors
    /// Those of [`pause_node`](Self::pause_node).
    pub fn resume_node(&mut self, node: usize) -> Result<(), Error> {
        self.nodes()?.resume_node(node)
    }

    fn nodes(&mut self) -> Result<&mut Installed, Error> {
        let kind = self.kind;
        match &mut self.backing {
            Backing::Shared => Err(Error::Shared { kind }),
            Backing::Docker(_) => Err(Error::OneContainer { kind }),
            Backing::Installed(server) => Ok(server),
            Backing::Behind { front, .. } => Ok(front),
        }
    }

    /// Starts a PgBouncer in front of this PostgreSQL server, in transaction mode: a client has a
    /// connection of the server, of which there are at most five, from the begin of a transaction
    /// to its end. It can be stopped, killed and paused apart from the server. Once the server is
    /// dropped, it lets nobody in.
    ///
    /// # Errors
    /// [`NoServer::Skipped`] if there is no `pgbouncer`, or if this is not a PostgreSQL server of
    /// our own; [`NoServer::Failed`] if it does not start.
    pub fn pgbouncer(&self) -> Result<Self, NoServer> {
        self.pgbouncer_with(&[])
    }

    /// As [`pgbouncer`](Self::pgbouncer), with lines for the file of its settings, such as
    /// `pool_mode = session`.
    ///
    /// # Errors
    /// Those of [`pgbouncer`](Self::pgbouncer).
    pub fn pgbouncer_with(&self, settings: &[&str]) -> Result<Self, NoServer> {
        let port = match &self.backing {
            Backing::Docker(server) if self.kind.is_postgres() => server.port(),
            Backing::Installed(server) if self.kind.is_postgres() => server.port(),
            _ => return Err(skipped("PgBouncer needs a PostgreSQL server of our own")),
        };
        let recipe = Arc::new(PgBouncer {
            server: port,
            settings: settings.iter().map(|&line| line.to_owned()).collect(),
        });
        let program = recipe.program().map_err(|reason| Skipped { reason })?;
        let origin = Origin::of(&program);
        let server = Installed::create(Kind::Pgbouncer, recipe, program, &[])?;
        Ok(Self::installed(Kind::Pgbouncer, origin, server))
    }

    /// Starts a standby of this PostgreSQL server: a copy, started with the same arguments, that
    /// follows it by streaming replication and takes reads only, until it is
    /// [promoted](Self::promote).
    ///
    /// What this server has acknowledged may be missing there for a moment, unless the setting
    /// `synchronous_standby_names` is `*`.
    ///
    /// # Errors
    /// [`NoServer::Skipped`] if this is not an [installed](Origin::Installed) PostgreSQL server;
    /// [`NoServer::Failed`] if the standby does not start.
    pub fn standby(&self) -> Result<Self, NoServer> {
        let standby = match &self.backing {
            Backing::Installed(server) => server.standby(),
            _ => None,
        };
        let standby = standby
            .ok_or_else(|| skipped("only an installed PostgreSQL server is given a standby"))??;
        Ok(Self::installed(self.kind, self.origin.clone(), standby))
    }

    /// Makes a standby a server that takes writes, and returns when it does. It goes on
    /// with what it has received; the server that it followed is left as it is.
    ///
    /// # Errors
    /// [`Error::NoStandby`]; [`Error::NotRunning`]; [`Error::DidNotStart`] if it still does not take
    /// writes after a minute.
    pub fn promote(&mut self) -> Result<(), Error> {
        match &mut self.backing {
            Backing::Installed(server) => server.promote(),
            _ => Err(Error::NoStandby { kind: self.kind }),
        }
    }

    fn refusal(&self) -> Error {
        Error::Shared { kind: self.kind }
    }
}

fn skipped(reason: &str) -> NoServer {
    NoServer::Skipped(Skipped {
        reason: reason.to_owned(),
    })
}

impl fmt::Debug for Server {
    /// Without the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("kind", &self.kind)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_server_is_left_alone_and_its_password_kept() {
        let url = "redis://:secret@example.com/".to_owned();
        let mut server = Server::shared(Kind::Redis, url.clone());
        assert!(server.is_shared());
        assert_eq!(server.url(), url);
        assert!(!format!("{server:?} {}", server.origin()).contains("secret"));
        let acts = [
            Server::start,
            Server::stop,
            Server::kill,
            Server::pause,
            Server::resume,
        ];
        for act in acts {
            let refused = act(&mut server);
            assert!(matches!(refused, Err(Error::Shared { kind: Kind::Redis })));
        }
    }
}
