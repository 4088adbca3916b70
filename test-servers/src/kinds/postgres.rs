use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;

use super::postgres_session::Session;
use super::standby::Standby;
use super::{Image, Recipe, command};
use crate::debian;
use crate::program::Program;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Postgres {
    /// The newest version that the machine has.
    Any,
    Postgres18,
}

/// Durable as in production (a commit is on disk before it is acknowledged), and small. Shared
/// memory for parallel queries goes to files in the data directory, where it is cleaned up.
const SETTINGS: [&str; 8] = [
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "shared_buffers=32MB",
    "max_connections=200",
    "dynamic_shared_memory_type=mmap",
    "unix_socket_directories=",
    "logging_collector=off",
];

pub(super) const USERS: &[&str] = &["postgres", "nobody"];

impl Recipe for Postgres {
    fn program(&self) -> Result<Program, String> {
        let mut servers = Program::named("postgres")
            .chain(packaged().into_iter().filter_map(Program::at))
            // A server without initdb next to it is of no use: the versions must be the same.
            .filter(|server| server.path.with_file_name("initdb").is_file());
        match self {
            Self::Any => servers.next().ok_or_else(|| {
                "no initdb and postgres on PATH or in /usr/lib/postgresql/*/bin".to_owned()
            }),
            Self::Postgres18 => servers
                .find(|server| server.version.contains(" 18."))
                .map_or_else(newer, Ok),
        }
    }

    fn users(&self) -> &'static [&'static str] {
        USERS
    }

    fn prepare(&self, program: &Program, home: &Path, _ports: &[u16]) -> io::Result<Vec<Command>> {
        let mut initdb = command(
            &program.path.with_file_name("initdb"),
            [
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
                "--pgdata",
            ],
        );
        initdb.arg(home.join("data"));
        Ok(vec![initdb])
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        let mut postgres = command(&program.path, ["-h", "127.0.0.1", "-p"]);
        postgres.arg(ports[node].to_string());
        postgres.arg("-D").arg(home.join("data"));
        postgres.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        postgres
    }

    fn image(&self, ports: &[u16]) -> Option<Image> {
        let mut arguments = vec!["postgres".into(), "-p".into(), ports[0].to_string()];
        // The image's own first start talks to the server through its socket.
        let settings = SETTINGS
            .iter()
            .filter(|setting| !setting.starts_with("unix_socket"));
        arguments.extend(settings.flat_map(|setting| ["-c".into(), (*setting).to_owned()]));
        Some(Image {
            name: "postgres",
            tag: match self {
                Self::Any => "17",
                Self::Postgres18 => "18",
            },
            environment: &[("POSTGRES_HOST_AUTH_METHOD", "trust")],
            arguments,
        })
    }

    /// A server that is still recovering refuses the log-in itself, so this waits for it to end.
    fn answers(&self, port: u16) -> Result<(), String> {
        Session::open(port)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }

    /// The fast shutdown: sessions are ended and a checkpoint is written.
    fn stop_signal(&self) -> Signal {
        Signal::SIGINT
    }

    /// A few bytes of System V shared memory, whose id is on the seventh line of the pid file.
    fn sweep(&self) -> &'static str {
        r#"id=$(sed -n '7s/.* //p' data/postmaster.pid); [ -z "$id" ] || ipcrm -m "$id""#
    }

    fn standby(&self, primary: u16) -> Option<Arc<dyn Recipe>> {
        Some(Arc::new(Standby { of: *self, primary }))
    }
}

/// PostgreSQL 18 of a newer Debian release.
pub(super) fn newer() -> Result<Program, String> {
    debian::program(debian::TESTING, "usr/lib/postgresql/18/bin/postgres")
        .map_err(|reason| format!("no PostgreSQL 18 on PATH or in /usr/lib/postgresql; {reason}"))
}

/// Where Debian and Ubuntu keep servers, by version and not on `PATH`; the newest first.
fn packaged() -> Vec<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin/postgres")))
        })
        .collect();
    found.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    found.into_iter().map(|(_, path)| path).collect()
}
