//! FerretDB: MongoDB's protocol in front of PostgreSQL with the DocumentDB extension.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::mongodb::Mongodb;
use super::postgres;
use super::postgres_session::Session;
use super::{Image, Recipe, command};
use crate::debian::{self, ADDED, TESTING};
use crate::program::Program;

/// In front of the PostgreSQL server on this port.
pub(crate) struct FerretDb {
    pub(crate) server: u16,
}

/// What the server behind it is started with. Of its two kinds of index, the extended one reads a
/// sort order off the index; the default one finds all that matches and sorts it.
pub(crate) const ARGUMENTS: [&str; 6] = [
    "-c",
    "shared_preload_libraries=pg_cron,pg_documentdb_core,pg_documentdb_extended_rum,pg_documentdb",
    "-c",
    "cron.database_name=postgres",
    "-c",
    "documentdb.alternate_index_handler_name=extended_rum",
];

const EXTENSION: &str = "usr/share/postgresql/18/extension/documentdb.control";

/// The program of the server behind it.
pub(crate) fn server() -> Result<Program, String> {
    postgres::newer()
}

/// Makes the server behind it fit for it.
pub(crate) fn extend(port: u16) -> io::Result<()> {
    Session::open(port)?.run(
        "CREATE EXTENSION IF NOT EXISTS documentdb CASCADE; \
         CREATE EXTENSION IF NOT EXISTS documentdb_extended_rum",
    )
}

impl Recipe for FerretDb {
    fn program(&self) -> Result<Program, String> {
        let builds = fs::read_dir(ADDED).into_iter().flatten().flatten();
        let mut paths: Vec<_> = builds
            .filter(|build| build.file_name().to_string_lossy().starts_with("ferretdb-"))
            .map(|build| build.path())
            .collect();
        paths.sort();
        let mut program = Program::named("ferretdb")
            .chain(paths.into_iter().rev().filter_map(Program::at))
            .next()
            .ok_or_else(|| format!("no ferretdb on PATH or in {ADDED}"))?;
        let server = server()?;
        let extension = debian::root(TESTING).join(EXTENSION);
        let extension = fs::read_to_string(&extension)
            .map_err(|error| format!("{}: {error}", extension.display()))?;
        let extension = extension.split('\'').nth(3).unwrap_or("unknown");
        program.version = format!(
            "FerretDB {}, DocumentDB {extension}, {}",
            program.version, server.version
        );
        Ok(program)
    }

    fn users(&self) -> &'static [&'static str] {
        &["nobody"]
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        let mut ferretdb = command(&program.path, ["--no-auth", "--telemetry=disable"]);
        ferretdb
            .arg(format!("--listen-addr=127.0.0.1:{}", ports[node]))
            .arg(format!(
                "--postgresql-url=postgres://postgres@127.0.0.1:{}/postgres",
                self.server
            ))
            .args(["--debug-addr=-", "--log-level=WARN", "--state-dir"])
            .arg(home);
        ferretdb
    }

    fn image(&self, _ports: &[u16]) -> Option<Image> {
        None
    }

    fn answers(&self, port: u16) -> Result<(), String> {
        Mongodb { members: 1 }.answers(port)
    }

    fn url(&self, port: u16) -> String {
        format!("mongodb://127.0.0.1:{port}/")
    }
}
