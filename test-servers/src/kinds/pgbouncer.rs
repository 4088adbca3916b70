use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use super::postgres::{self, Postgres};
use super::{Image, Recipe, command};
use crate::program::Program;

/// In front of the PostgreSQL server on this port.
pub(crate) struct PgBouncer {
    pub(crate) server: u16,
}

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
        command(&program.path, [home.join("pgbouncer.ini")])
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
    /// Few server connections, so that clients do share them, and a server that was away is tried
    /// again soon.
    fn settings(&self, port: u16) -> String {
        let server = self.server;
        format!(
            "\
[databases]
* = host=127.0.0.1 port={server} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 500
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
"
        )
    }
}
