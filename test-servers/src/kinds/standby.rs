use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;

use super::postgres::{Postgres, USERS};
use super::postgres_session::Session;
use super::{Image, Recipe, command};
use crate::program::Program;

/// A streaming replica of the PostgreSQL server on the port `primary`.
pub(super) struct Standby {
    pub(super) of: Postgres,
    pub(super) primary: u16,
}

impl Recipe for Standby {
    fn program(&self) -> Result<Program, String> {
        self.of.program()
    }

    fn users(&self) -> &'static [&'static str] {
        USERS
    }

    fn prepare(&self, program: &Program, home: &Path, _ports: &[u16]) -> io::Result<Vec<Command>> {
        let program = program
            .companion("pg_basebackup")
            .ok_or(io::ErrorKind::NotFound)?;
        let mut copy = command(
            &program,
            [
                "--host=127.0.0.1",
                "--username=postgres",
                "--checkpoint=fast",
                "--wal-method=stream",
                "--write-recovery-conf",
                "--no-sync",
            ],
        );
        copy.arg(format!("--port={}", self.primary));
        copy.arg("--pgdata").arg(home.join("data"));
        Ok(vec![copy])
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        self.of.command(program, home, ports, node)
    }

    fn image(&self, _ports: &[u16]) -> Option<Image> {
        None
    }

    fn answers(&self, port: u16) -> Result<(), String> {
        self.of.answers(port)
    }

    fn url(&self, port: u16) -> String {
        self.of.url(port)
    }

    fn stop_signal(&self) -> Signal {
        self.of.stop_signal()
    }

    fn sweep(&self) -> &'static str {
        self.of.sweep()
    }

    /// One that was promoted is followed as any other server.
    fn standby(&self, primary: u16) -> Option<Arc<dyn Recipe>> {
        self.of.standby(primary)
    }

    /// As `pg_ctl promote` does: a file, and a signal to look for it.
    fn promote(&self, home: &Path) -> io::Result<Signal> {
        fs::write(home.join("data/promote"), "")?;
        Ok(Signal::SIGUSR1)
    }

    fn is_promoted(&self, port: u16) -> io::Result<bool> {
        Session::open(port).map(|session| !session.is_standby)
    }
}
