//! MySQL and MariaDB, which differ in their names and in how a data directory is made.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::{Image, Recipe, command};
use crate::debian;
use crate::program::Program;
use crate::wire;

pub(crate) struct Mysql;
pub(crate) struct Mariadb;

/// Run at every start, before the first connection is accepted.
pub(super) const ACCOUNTS: &str = "\
CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';
GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS inbox;
";

/// Durable as in production (a commit is on disk before it is acknowledged), and small.
pub(super) const SETTINGS: [&str; 6] = [
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-buffer-pool-size=64M",
    "--max-allowed-packet=64M",
    "--max-connections=200",
    "--skip-name-resolve",
    "--skip-log-bin",
];

impl Recipe for Mysql {
    fn program(&self) -> Result<Program, String> {
        let servers: Vec<Program> = Program::named("mysqld").collect();
        let others = servers.len();
        servers
            .into_iter()
            .find(|server| !is_mariadb(server))
            .map_or_else(|| debian::program(debian::UNSTABLE, "usr/sbin/mysqld"), Ok)
            .map_err(|reason| match others {
                0 => format!("no mysqld on PATH; {reason}"),
                _ => format!("the mysqld on PATH is MariaDB's; {reason}"),
            })
    }

    fn users(&self) -> &'static [&'static str] {
        USERS
    }

    fn prepare(&self, program: &Program, home: &Path, _ports: &[u16]) -> io::Result<Vec<Command>> {
        fs::write(home.join("accounts.sql"), ACCOUNTS)?;
        let mut initialise = command(&program.path, ["--no-defaults", "--initialize-insecure"]);
        initialise.arg(option("--datadir", &home.join("data")));
        Ok(vec![initialise])
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        let mut server = start(program, home, ports[node]);
        // A second protocol on a second, fixed port, and a directory that only packages make.
        server.args(["--mysqlx=OFF", "--secure-file-priv=NULL"]);
        server
    }

    fn image(&self, ports: &[u16]) -> Option<Image> {
        Some(Image {
            name: "mysql",
            tag: "8.4",
            environment: &[
                ("MYSQL_ALLOW_EMPTY_PASSWORD", "1"),
                ("MYSQL_ROOT_HOST", "%"),
                ("MYSQL_DATABASE", "inbox"),
            ],
            arguments: containerised("mysqld", ports[0]),
        })
    }

    fn answers(&self, port: u16) -> Result<(), String> {
        greets(port)
    }

    fn url(&self, port: u16) -> String {
        url(port)
    }
}

impl Recipe for Mariadb {
    fn program(&self) -> Result<Program, String> {
        let server = Program::named("mariadbd")
            .chain(Program::named("mysqld"))
            .find(is_mariadb)
            .ok_or("no mariadbd on PATH")?;
        match installer(&server) {
            Some(_) => Ok(server),
            None => Err("there is a MariaDB server, but no mariadb-install-db".to_owned()),
        }
    }

    fn users(&self) -> &'static [&'static str] {
        USERS
    }

    fn prepare(&self, program: &Program, home: &Path, _ports: &[u16]) -> io::Result<Vec<Command>> {
        fs::write(home.join("accounts.sql"), ACCOUNTS)?;
        Ok(vec![initialise(program, &home.join("data"))?])
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        start(program, home, ports[node])
    }

    fn image(&self, ports: &[u16]) -> Option<Image> {
        Some(Image {
            name: "mariadb",
            tag: "11.4",
            environment: &[
                ("MARIADB_ALLOW_EMPTY_ROOT_PASSWORD", "1"),
                ("MARIADB_ROOT_HOST", "%"),
                ("MARIADB_DATABASE", "inbox"),
            ],
            arguments: containerised("mariadbd", ports[0]),
        })
    }

    fn answers(&self, port: u16) -> Result<(), String> {
        greets(port)
    }

    fn url(&self, port: u16) -> String {
        url(port)
    }
}

pub(super) const USERS: &[&str] = &["mysql", "nobody"];

fn is_mariadb(server: &Program) -> bool {
    server.version.contains("MariaDB")
}

fn installer(server: &Program) -> Option<std::path::PathBuf> {
    server
        .companion("mariadb-install-db")
        .or_else(|| server.companion("mysql_install_db"))
}

/// Makes a data directory of MariaDB's.
pub(super) fn initialise(server: &Program, directory: &Path) -> io::Result<Command> {
    let installer = installer(server).ok_or(io::ErrorKind::NotFound)?;
    let mut initialise = command(
        &installer,
        [
            "--no-defaults",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ],
    );
    initialise.arg(option("--datadir", directory));
    Ok(initialise)
}

fn start(program: &Program, home: &Path, port: u16) -> Command {
    let mut server = command(&program.path, ["--no-defaults", "--bind-address=127.0.0.1"]);
    server
        .arg(format!("--port={port}"))
        .arg(option("--datadir", &home.join("data")))
        .arg(option("--socket", &home.join("socket")))
        .arg(option("--pid-file", &home.join("pid")))
        .arg(option("--tmpdir", home))
        .arg(option("--init-file", &home.join("accounts.sql")))
        .args(SETTINGS);
    server
}

fn containerised(program: &str, port: u16) -> Vec<String> {
    let mut arguments = vec![program.to_owned(), format!("--port={port}")];
    arguments.extend(SETTINGS.map(str::to_owned));
    arguments
}

pub(super) fn option(name: &str, path: &Path) -> std::ffi::OsString {
    let mut option = std::ffi::OsString::from(name);
    option.push("=");
    option.push(path);
    option
}

/// The server speaks first: a packet whose fifth byte is the protocol's version.
fn greets(port: u16) -> Result<(), String> {
    match wire::ask(port, b"") {
        Ok([_, _, _, _, 10]) => Ok(()),
        Ok(_) => Err("it does not greet with protocol 10".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn url(port: u16) -> String {
    format!("mysql://root@127.0.0.1:{port}/inbox")
}
