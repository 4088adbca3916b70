use std::fmt;
use std::path::{Path, PathBuf};

use crate::docker::Docker;
use crate::error::Error;
use crate::installed::Installed;
use crate::kind::Kind;

/// A running server for tests.
///
/// A server that was started for the caller ([`Origin::Docker`], [`Origin::Installed`]) is empty
/// at first, is used by nobody else and disappears with this value, data and all. It also
/// disappears when the process ends or is killed, so it may be kept in a `static`.
///
/// A server named by the environment ([`Origin::Environment`]) is **shared**: whoever uses it
/// isolates itself, by a database or a key prefix of its own, and cleans up; and it cannot be
/// stopped, killed or paused ([`Error::Shared`]).
///
/// The methods block, for up to a minute and a half when a server starts. In an asynchronous test
/// call them where that does no harm, or through `spawn_blocking`.
pub struct Server {
    kind: Kind,
    origin: Origin,
    url: String,
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
    /// A container of our own.
    Docker {
        /// Its image, with the tag.
        image: String,
    },
    /// A process of our own, from a program installed on the machine.
    Installed {
        /// The program.
        program: PathBuf,
        /// What it says its version is.
        version: String,
    },
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
}

impl Server {
    pub(crate) fn shared(kind: Kind, origin: Origin, url: String) -> Self {
        Self {
            kind,
            origin,
            url,
            backing: Backing::Shared,
        }
    }

    pub(crate) fn in_docker(kind: Kind, origin: Origin) -> Result<Self, Error> {
        let server = Box::new(Docker::create(kind)?);
        Ok(Self {
            kind,
            origin,
            url: server.url(),
            backing: Backing::Docker(server),
        })
    }

    pub(crate) fn installed(kind: Kind, origin: Origin, server: Installed) -> Self {
        Self {
            kind,
            origin,
            url: server.url(),
            backing: Backing::Installed(Box::new(server)),
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

    /// Where clients connect, with a user who may do everything. For a Redis Cluster, one of its
    /// nodes. It stays the same when the server is restarted.
    ///
    /// A server of our own needs no password; a shared one's URL may contain one.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The temporary directory of an installed server, with its data and its `log`.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        match &self.backing {
            Backing::Installed(server) => Some(server.home()),
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
        }
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), on the same data and
    /// the same port, and returns when it takes requests. Does nothing if it runs.
    ///
    /// # Errors
    /// [`Error::Shared`]; [`Error::DidNotStart`].
    pub fn start(&mut self) -> Result<(), Error> {
        match &mut self.backing {
            Backing::Shared => Err(self.refusal()),
            Backing::Docker(server) => server.start(),
            Backing::Installed(server) => server.start(),
        }
    }

    /// Stops it as its operator would, and returns when it has ended. Connected clients are cut
    /// off. Does nothing if it does not run.
    ///
    /// # Errors
    /// [`Error::Shared`]; [`Error::DidNotStop`] after a minute.
    pub fn stop(&mut self) -> Result<(), Error> {
        match &mut self.backing {
            Backing::Shared => Err(self.refusal()),
            Backing::Docker(server) => server.stop(),
            Backing::Installed(server) => server.stop(),
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
        }
    }

    fn refusal(&self) -> Error {
        Error::Shared { kind: self.kind }
    }
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
        let origin = Origin::Environment {
            variable: Kind::Redis.url_variable(),
        };
        let url = "redis://:secret@example.com/".to_owned();
        let mut server = Server::shared(Kind::Redis, origin, url.clone());
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
