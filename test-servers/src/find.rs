//! Where a server comes from, and what happens where there is none.

use std::env;
use std::io::{self, Write as _};
use std::sync::Arc;

use crate::clocks::Clocks;
use crate::docker;
use crate::error::{Doing as _, Error, NoServer, Skipped};
use crate::installed::{Installed, Surroundings};
use crate::kind::{Kind, UnknownKind};
use crate::kinds::ferretdb::{self, FerretDb};
use crate::kinds::recipe;
use crate::program::Program;
use crate::server::{Origin, Server};

/// The variable that lists the kinds whose absence is a failure.
pub const REQUIRE: &str = "INBOX_TEST_REQUIRE";

/// Where the next server of this kind would come from, found without starting one.
///
/// # Errors
/// [`Skipped`] if there is nowhere to take one from.
pub fn locate(kind: Kind) -> Result<Origin, Skipped> {
    match environment(kind) {
        Some(_) => Ok(Origin::Environment {
            variable: kind.url_variable(),
        }),
        None => place(kind).map(|place| place.origin()),
    }
}

/// Gets a server: the one that the environment names, or a new one in a container, or a new one
/// from an installed program, whichever is there first.
///
/// # Errors
/// [`NoServer::Skipped`] if there is nowhere to take one from; [`NoServer::Failed`] if a new
/// server does not start.
pub fn find(kind: Kind) -> Result<Server, NoServer> {
    match environment(kind) {
        Some(url) => Ok(Server::shared(kind, url)),
        None => find_own(kind, &[]),
    }
}

/// Gets a new server, whatever the environment names, and starts it with `arguments` on its
/// command line after the usual ones, so that they win: `["-c", "max_connections=20"]` for
/// PostgreSQL, `["--maxmemory", "10mb"]` for Redis. Every node gets them. Of [`Kind::Pgbouncer`] and
/// [`Kind::Ferretdb`], it is the server behind that does.
///
/// ```no_run
/// # use test_servers::{Error, Kind, find_own, or_skip};
/// # fn a_test() -> Result<(), Error> {
/// let few = ["-c", "max_connections=20"];
/// let Some(server) = or_skip(Kind::Postgres, find_own(Kind::Postgres, &few))? else {
///     return Ok(()); // reported as skipped
/// };
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`find`].
pub fn find_own(kind: Kind, arguments: &[&str]) -> Result<Server, NoServer> {
    find_within(Surroundings::default, kind, arguments)
}

/// As [`find_own`], with what a test needs to do more harm, where that is possible. The server has to be an installed one:
/// - a small disk of its own that can be [filled](Server::fill_disk): only root makes disks;
/// - a clock of its own that can be [moved](Server::move_clock): with `libfaketime`. A line on standard error says
///   why there is none.
///
/// Of a server behind another, it is the disk and the clock of that one.
///
/// # Errors
/// As [`find`].
pub fn find_own_to_harm(kind: Kind, arguments: &[&str]) -> Result<Server, NoServer> {
    let within = |movable: bool| {
        let fragile = || Surroundings {
            small_disk: true,
            clocks: Clocks::movable(kind).ok().filter(|_| movable),
        };
        find_within(fragile, kind, arguments)
    };
    let (server, reason) = match (within(true), Clocks::movable(kind)) {
        (server, Err(skipped)) => (server?, skipped.reason),
        // If it is not for the clock, it fails again.
        (Err(NoServer::Failed(error)), Ok(_)) => (within(false)?, error.to_string()),
        (server, Ok(_)) => (
            server?,
            "only an installed server can have another".to_owned(),
        ),
    };
    if !server.has_movable_clock() {
        report(kind, &format!("its clock is not moved: {reason}"));
    }
    Ok(server)
}

fn find_within(
    surroundings: impl Fn() -> Surroundings,
    kind: Kind,
    arguments: &[&str],
) -> Result<Server, NoServer> {
    let place = place(kind)?;
    let origin = place.origin();
    match (place, kind) {
        (Place::Docker(_), _) => Ok(Server::in_docker(kind, origin, arguments)?),
        (Place::Installed(_), Kind::Pgbouncer) => {
            let server = find_within(surroundings, Kind::Postgres, arguments)?;
            let pgbouncer = server.pgbouncer()?;
            Ok(pgbouncer.with_behind(server))
        }
        (Place::Installed(program), Kind::Ferretdb) => {
            let server = documents(surroundings(), arguments)?;
            let port = server.port();
            let server = Server::installed(Kind::Postgres18, origin.clone(), server);
            let recipe = Arc::new(FerretDb { server: port });
            let ferretdb = Installed::create(kind, recipe, program, &[])?;
            Ok(Server::installed(kind, origin, ferretdb).with_behind(server))
        }
        (Place::Installed(program), _) => {
            let server = Installed::within(surroundings(), kind, recipe(kind), program, arguments)?;
            Ok(Server::installed(kind, origin, server))
        }
    }
}

/// As [`find_own`], for a kind of several nodes whose clocks are apart: the first one's is ahead by so
/// many seconds, the next one's by the next number, and so on, from the first again when there are more
/// nodes. It needs `libfaketime`, and a server that is installed on the machine itself.
///
/// # Errors
/// As [`find`]; [`NoServer::Skipped`] also without `libfaketime`.
pub fn find_own_with_clocks(
    kind: Kind,
    arguments: &[&str],
    ahead: &[i32],
) -> Result<Server, NoServer> {
    let clocks = Clocks::ahead(ahead)?;
    let program = recipe(kind)
        .program()
        .map_err(|reason| Skipped { reason })?;
    if program.root.is_some() {
        let reason = "only a server installed on the machine itself can have another clock";
        return Err(NoServer::Skipped(Skipped {
            reason: reason.to_owned(),
        }));
    }
    let origin = Origin::of(&program);
    let clocks = Surroundings {
        clocks: Some(clocks),
        ..Surroundings::default()
    };
    let server = Installed::within(clocks, kind, recipe(kind), program, arguments)?;
    Ok(Server::installed(kind, origin, server))
}

/// The server behind FerretDB.
fn documents(surroundings: Surroundings, arguments: &[&str]) -> Result<Installed, NoServer> {
    let kind = Kind::Postgres18;
    let program = ferretdb::server().map_err(|reason| Skipped { reason })?;
    let arguments = [&ferretdb::ARGUMENTS, arguments].concat();
    let server = Installed::within(surroundings, kind, recipe(kind), program, &arguments)?;
    ferretdb::extend(server.port()).doing("creating the extension that FerretDB needs")?;
    Ok(server)
}

/// [`find`], for use in tests: `None` means that the test is to return at once, as skipped.
///
/// Every call writes one line to standard error, where a test runner's capture of output does not
/// hide it, so that a script can tell what was tested. Whether the tests of a store that was found
/// passed is the exit status of its test run; several tests may write the same line.
///
/// ```text
/// test-servers: redis: found: /usr/bin/redis-server (Redis server v=7.0.15)
/// test-servers: mongodb: skipped: INBOX_TEST_MONGODB_URL is not set; no Docker engine answers; no mongod on PATH
/// test-servers: postgres: failed: the postgres server did not start: …
/// ```
///
/// # Errors
/// [`Error::Required`] instead of `None` if `INBOX_TEST_REQUIRE` names this kind or is `all`;
/// [`Error::UnknownRequirement`] if it names something else; whatever kept a server that was found
/// from starting.
pub fn require_or_skip(kind: Kind) -> Result<Option<Server>, Error> {
    or_skip(kind, find(kind))
}

/// What [`require_or_skip`] does, with a server that was looked for in another way.
///
/// # Errors
/// As [`require_or_skip`].
pub fn or_skip(kind: Kind, found: Result<Server, NoServer>) -> Result<Option<Server>, Error> {
    let list = env::var(REQUIRE).unwrap_or_default();
    let found = requires(&list, kind)
        .map_err(Error::from)
        .and_then(|required| judge(kind, required, found));
    let verdict = match &found {
        Ok(Ok(server)) => format!("found: {}", server.origin()),
        Ok(Err(skipped)) => format!("skipped: {skipped}"),
        Err(error) => format!("failed: {error}"),
    };
    report(kind, &verdict);
    found.map(Result::ok)
}

fn judge(
    kind: Kind,
    required: bool,
    found: Result<Server, NoServer>,
) -> Result<Result<Server, Skipped>, Error> {
    match found {
        Ok(server) => Ok(Ok(server)),
        Err(NoServer::Failed(error)) => Err(error),
        Err(NoServer::Skipped(Skipped { reason })) if required => {
            Err(Error::Required { kind, reason })
        }
        Err(NoServer::Skipped(skipped)) => Ok(Err(skipped)),
    }
}

/// Written to the stream itself, because the test runner captures what the printing macros write,
/// and in one piece, so that the runner's own lines do not end up inside.
fn report(kind: Kind, verdict: &str) {
    let verdict = verdict.replace('\n', " | ");
    let line = format!("test-servers: {kind}: {verdict}\n");
    // A closed standard error is no reason to fail a test.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Whether the value of `INBOX_TEST_REQUIRE` names this kind.
fn requires(list: &str, kind: Kind) -> Result<bool, UnknownKind> {
    let mut required = false;
    for name in list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        required |= name == "all" || name.parse::<Kind>()? == kind;
    }
    Ok(required)
}

/// Where one's own server comes from.
pub(crate) enum Place {
    /// The image's name.
    Docker(String),
    Installed(Program),
}

impl Place {
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Self::Docker(image) => Origin::Docker {
                image: image.clone(),
            },
            Self::Installed(program) => Origin::of(program),
        }
    }
}

/// The URL of the server that the environment names.
fn environment(kind: Kind) -> Option<String> {
    let url = env::var(kind.url_variable()).ok()?;
    (!url.is_empty()).then_some(url)
}

pub(crate) fn place(kind: Kind) -> Result<Place, Skipped> {
    let image = docker::image_name(kind);
    let no_docker = match image {
        Some(image) if docker::answers().is_ok() => return Ok(Place::Docker(image)),
        Some(_) => "no Docker engine answers",
        None => "there is no image for Docker",
    };
    if kind == Kind::Pgbouncer {
        // It is of no use without a server to put it in front of.
        place(Kind::Postgres)?;
    }
    recipe(kind)
        .program()
        .map(Place::Installed)
        .map_err(|missing| Skipped {
            reason: format!("{} is not set; {no_docker}; {missing}", kind.url_variable()),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_kinds_are_listed_by_name_or_all_at_once() {
        assert!(!requires("", Kind::Redis).unwrap());
        assert!(requires("postgres, redis", Kind::Redis).unwrap());
        assert!(!requires("postgres,redis-cluster", Kind::Redis).unwrap());
        assert!(requires("all", Kind::Mongodb).unwrap());
    }

    #[test]
    fn a_misspelt_requirement_is_refused() {
        assert!(requires("redis,postgers", Kind::Redis).is_err());
    }

    fn nothing() -> Result<Server, NoServer> {
        Err(NoServer::Skipped(Skipped {
            reason: "nothing here".to_owned(),
        }))
    }

    #[test]
    fn a_missing_server_is_skipped_with_the_reason_unless_required() {
        let skipped = judge(Kind::Redis, false, nothing()).unwrap().unwrap_err();
        assert_eq!(skipped.reason, "nothing here");
        let error = judge(Kind::Redis, true, nothing()).unwrap_err();
        assert!(
            matches!(error, Error::Required { kind: Kind::Redis, reason } if reason == "nothing here")
        );
    }

    #[test]
    fn a_server_that_does_not_start_is_never_skipped() {
        let broken = || Err(NoServer::Failed(Error::NotRunning { kind: Kind::Redis }));
        assert!(judge(Kind::Redis, false, broken()).is_err());
    }
}
