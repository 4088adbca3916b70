//! Every kind of server that this machine has: what is stored survives a crash, nothing answers
//! while paused, and nothing is left afterwards, not even of a test process that is killed.

mod client;
mod clocks;
mod clusters;
mod postgres;

use std::error::Error;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use client::Client;
use test_servers::{ADDED, Kind, Server, require_or_skip};

type Outcome = Result<(), Box<dyn Error>>;

/// A server that may be harmed. `None`: skipped, and reported so.
fn own(kind: Kind) -> Result<Option<Server>, Box<dyn Error>> {
    let found = require_or_skip(kind)?;
    if found.as_ref().is_some_and(Server::is_shared) {
        return skip(kind, "a shared server is not to be harmed");
    }
    Ok(found)
}

/// A server whose processes and directory are to be seen on this machine. `None` as above.
fn installed(kind: Kind) -> Result<Option<(Server, PathBuf)>, Box<dyn Error>> {
    let Some(server) = require_or_skip(kind)? else {
        return Ok(None);
    };
    match server.directory().map(Path::to_owned) {
        Some(directory) => Ok(Some((server, directory))),
        None => skip(
            kind,
            "what is left is only looked for of an installed server",
        ),
    }
}

fn skip<T>(kind: Kind, reason: &str) -> Result<Option<T>, Box<dyn Error>> {
    let line = format!("test-servers: {kind}: skipped: {reason}\n");
    std::io::stderr().write_all(line.as_bytes())?;
    Ok(None)
}

fn survives_a_crash(kind: Kind) -> Outcome {
    let Some(mut server) = own(kind)? else {
        return Ok(());
    };
    let client = Client::of(&server)?;
    let url = server.url().to_owned();
    assert!(server.is_running()?);
    client.write("first")?;

    server.kill()?;
    assert!(!server.is_running()?);
    assert!(client.read().is_err(), "it answers although it was killed");
    server.kill()?;
    server.stop()?;
    server.start()?;
    server.start()?;
    assert_eq!(server.url(), url);
    assert_eq!(client.read()?, "first");

    client.write("second")?;
    server.restart()?;
    assert!(server.is_running()?);
    assert_eq!(client.read()?, "second");

    server.stop()?;
    assert!(!server.is_running()?);
    assert!(server.pause().is_err());
    assert!(server.resume().is_err());
    Ok(())
}

fn is_silent_while_paused(kind: Kind) -> Outcome {
    let Some(mut server) = own(kind)? else {
        return Ok(());
    };
    let client = Client::of(&server)?;
    client.write("before")?;

    server.pause()?;
    assert!(server.is_running()?);
    let reading = client.start_reading()?;
    thread::sleep(Duration::from_millis(500));
    assert!(!reading.is_finished(), "it answers although it is paused");
    server.resume()?;
    assert_eq!(reading.finish()?, "before");

    // The end of a paused server, be it killed, stopped or dropped, must not hang.
    server.pause()?;
    server.kill()?;
    server.start()?;
    server.pause()?;
    server.stop()?;
    server.start()?;
    assert_eq!(client.read()?, "before");
    server.pause()?;
    Ok(())
}

fn leaves_nothing_behind(kind: Kind) -> Outcome {
    let Some((server, directory)) = installed(kind)? else {
        return Ok(());
    };
    let (other, _) = installed(kind)?.ok_or("there was a server a moment ago")?;
    assert_ne!(server.url(), other.url());
    let client = Client::of(&server)?;
    client.write("first")?;
    assert!(directory.is_dir());
    assert!(!processes_in(&directory).is_empty());
    drop(server);
    assert!(!directory.exists());
    assert_eq!(processes_in(&directory), [] as [PathBuf; 0]);
    assert!(client.read().is_err());
    Client::of(&other)?.write("still-there")
}

/// A test process that is killed while its server runs.
fn does_not_survive_its_owner(kind: Kind) -> Outcome {
    if installed(kind)?.is_none() {
        return Ok(());
    }
    let mut owner = Command::new(env!("CARGO_BIN_EXE_test-servers"))
        .args(["run", kind.name()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let url = owner.stdout.take().ok_or("no standard output")?;
    BufReader::new(url).lines().next().ok_or("it ended")??;
    let left = Left::of(owner.id());
    assert!(!left.directories().is_empty());
    assert!(!left.processes().is_empty());

    owner.kill()?;
    owner.wait()?;
    left.disappears();
    Ok(())
}

/// A test process that is killed while its server is being prepared.
fn does_not_survive_an_owner_killed_early(kind: Kind) -> Outcome {
    if installed(kind)?.is_none() {
        return Ok(());
    }
    for milliseconds in [20, 100, 400, 1200] {
        let mut owner = Command::new(env!("CARGO_BIN_EXE_test-servers"))
            .args(["run", kind.name()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        thread::sleep(Duration::from_millis(milliseconds));
        owner.kill()?;
        owner.wait()?;
        Left::of(owner.id()).disappears();
    }
    Ok(())
}

/// What there is of the servers of one process, told by the names of their directories.
struct Left(String);

impl Left {
    fn of(owner: u32) -> Self {
        Self(format!("test-servers-{owner}-"))
    }

    fn directories(&self) -> Vec<PathBuf> {
        [
            std::env::temp_dir(),
            Path::new(ADDED).join("testing/tmp"),
            Path::new(ADDED).join("unstable/tmp"),
        ]
        .iter()
        .filter_map(|place| fs::read_dir(place).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .filter(|path| path.to_string_lossy().contains(&self.0))
        .collect()
    }

    fn processes(&self) -> Vec<PathBuf> {
        processes_naming(&self.0)
    }

    fn disappears(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let left = [self.directories(), self.processes()].concat();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left: {left:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The processes that work in a directory or have it in their arguments.
fn processes_in(directory: &Path) -> Vec<PathBuf> {
    processes_naming(&directory.to_string_lossy())
}

fn processes_naming(text: &str) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .map(|process| process.path())
        .filter(|process| {
            let works_there = fs::read_link(process.join("cwd"))
                .is_ok_and(|cwd| cwd.to_string_lossy().contains(text));
            let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
            works_there || String::from_utf8_lossy(&arguments).contains(text)
        })
        .collect()
}

macro_rules! kinds {
    ($($module:ident: $kind:expr,)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn survives_a_crash() -> Outcome {
                super::survives_a_crash($kind)
            }

            #[test]
            fn is_silent_while_paused() -> Outcome {
                super::is_silent_while_paused($kind)
            }

            #[test]
            fn leaves_nothing_behind() -> Outcome {
                super::leaves_nothing_behind($kind)
            }

            #[test]
            fn does_not_survive_its_owner() -> Outcome {
                super::does_not_survive_its_owner($kind)
            }

            #[test]
            fn does_not_survive_an_owner_killed_early() -> Outcome {
                super::does_not_survive_an_owner_killed_early($kind)
            }
        }
    )*};
}

kinds! {
    postgres_any: Kind::Postgres,
    postgres_18: Kind::Postgres18,
    pgbouncer: Kind::Pgbouncer,
    mysql: Kind::Mysql,
    mariadb: Kind::Mariadb,
    galera: Kind::Galera,
    redis: Kind::Redis,
    redis_8: Kind::Redis8,
    valkey: Kind::Valkey,
    redis_cluster: Kind::RedisCluster,
    redis_8_cluster: Kind::Redis8Cluster,
    valkey_cluster: Kind::ValkeyCluster,
    mongodb: Kind::Mongodb,
    mongodb_set: Kind::MongodbSet,
    mongodb_sharded: Kind::MongodbSharded,
    ferretdb: Kind::Ferretdb,
    kafka: Kind::Kafka,
}

/// PostgreSQL's sessions are process groups of their own, which a signal to the server's misses.
#[test]
fn an_open_postgres_session_is_paused_and_killed_too() -> Outcome {
    let Some((mut server, directory)) = installed(Kind::Postgres)? else {
        return Ok(());
    };
    let mut session = client::PostgresSession::open(&server)?;
    session.ask("SELECT 1")?;
    server.pause()?;
    session.begin("SELECT 1")?;
    assert!(session.is_silent()?, "it answers although it is paused");
    server.resume()?;
    session.finish_answer()?;
    session.begin("SELECT pg_sleep(600)")?;
    server.kill()?;
    let busy: Vec<_> = processes_in(&directory)
        .into_iter()
        .filter(|process| {
            fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "postgres")
        })
        .collect();
    assert_eq!(busy, [] as [PathBuf; 0]);
    server.start()?;
    client::PostgresSession::open(&server)?.ask("SELECT 1")?;
    Ok(())
}

/// What the environment says wins over what is installed, and is what `list` shows, without the
/// password that may be in it.
#[test]
fn the_environment_comes_first() -> Outcome {
    for kind in Kind::ALL {
        let output = Command::new(env!("CARGO_BIN_EXE_test-servers"))
            .arg("list")
            .env(kind.url_variable(), "scheme://user:secret@example.com/")
            .output()?;
        let list = String::from_utf8(output.stdout)?;
        let shared = format!("{} (shared)", kind.url_variable());
        let line = list
            .lines()
            .find(|line| line.starts_with(&format!("{kind} ")));
        assert!(line.is_some_and(|line| line.ends_with(&shared)), "{list}");
        assert!(!list.contains("secret"));
    }
    Ok(())
}

/// A program that is found but fails is a failure with the log's end, and leaves nothing.
#[test]
fn a_server_that_does_not_start_is_a_failure() -> Outcome {
    use std::os::unix::fs::PermissionsExt as _;
    const PROGRAM: &str = "#!/bin/sh\nif [ \"$1\" = --version ]; then echo broken; else echo no such luck; exit 3; fi\n";
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("redis-server");
    fs::write(&program, PROGRAM)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let servers = tempfile::tempdir()?;
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH")?);
    let output = Command::new(env!("CARGO_BIN_EXE_test-servers"))
        .args(["run", "redis"])
        .env("PATH", path)
        .env("TMPDIR", servers.path())
        .env("DOCKER_HOST", "unix:///nonexistent")
        .env_remove(Kind::Redis.url_variable())
        .output()?;
    let error = String::from_utf8(output.stderr)?;
    assert!(!output.status.success());
    assert!(
        error.contains("did not start: it ended with exit status: 3"),
        "{error}"
    );
    assert!(error.contains("no such luck"), "{error}");
    assert!(fs::read_dir(servers.path())?.next().is_none());
    Ok(())
}

/// The functions block, which must not be mistaken for blocking inside a runtime.
#[test]
fn works_in_an_asynchronous_test() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        if let Some(mut server) = own(Kind::Redis)? {
            server.restart()?;
            assert_eq!(Client::of(&server)?.read()?, "");
        }
        Ok(())
    })
}
