use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use super::postgres::{self, Postgres};
use super::{Image, Recipe};
use crate::program::Program;

/// In front of the PostgreSQL server on this port.
pub(crate) struct PgBouncer {
    pub(crate) server: u16,
    /// Lines of its file, which replace those below that set the same.
    pub(crate) settings: Vec<String>,
}

/// Few server connections, so that clients do share them, and a server that was away is tried
/// again soon.
const SETTINGS: [&str; 7] = [
    "unix_socket_dir =",
    "auth_type = any",
    "pool_mode = transaction",
    "default_pool_size = 5",
    "max_client_conn = 500",
    "server_login_retry = 1",
    "ignore_startup_parameters = extra_float_digits",
];

impl Recipe for PgBouncer {
    fn program(&self) -> Result<Program, String> {
        Program::named("pgbouncer")
            .next()
            .ok_or_else(|| "no pgbouncer on PATH".to_owned())
    }

    fn users(&self) -> &'static [&'static str] {
        postgres::USERS
    }

    fn prepare(&self, _program: &Program, home: &Path, ports: &[u16]) -> io::Result<Vec<Command>> {
        fs::write(home.join("pgbouncer.ini"), self.settings(ports[0]))?;
        Ok(Vec::new())
    }

    fn command(&self, program: &Program, home: &Path, _ports: &[u16], _node: usize) -> Command {
        // A shell that runs the tests in the background has them ignore the signal that stops it.
        let mut command = Command::new("/usr/bin/env");
        command
            .arg("--default-signal=QUIT")
            .arg(&program.path)
            .arg(home.join("pgbouncer.ini"));
        command
    }

    fn image(&self, _ports: &[u16]) -> Option<Image> {
        None
    }

    /// It lets nobody in before it has spoken to the server behind it.
    fn answers(&self, port: u16) -> Result<(), String> {
        Postgres::Any.answers(port)
    }

    fn url(&self, port: u16) -> String {
        Postgres::Any.url(port)
    }

    /// At once: in newer versions, SIGTERM waits for the clients to leave.
    fn stop_signal(&self) -> Signal {
        Signal::SIGQUIT
    }
}

impl PgBouncer {
    fn settings(&self, port: u16) -> String {
        let server = self.server;
        let name = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
        let given: Vec<String> = self.settings.iter().map(|line| name(line)).collect();
        let lines: Vec<&str> = SETTINGS
            .into_iter()
            .filter(|line| !given.contains(&name(line)))
            .chain(self.settings.iter().map(String::as_str))
            .collect();
        format!(
            "\
[databases]
* = host=127.0.0.1 port={server} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
{}
",
            lines.join("\n")
        )
    }
}
