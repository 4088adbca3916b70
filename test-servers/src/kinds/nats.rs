//! NATS with JetStream, one server.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;
use std::process::Command;

use super::{Image, Recipe, command};
use crate::debian::ADDED;
use crate::program::Program;
use crate::wire;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Nats {
    /// Whichever version the machine has.
    Any,
    /// The one that was built from its Go module.
    Newest,
}

impl Recipe for Nats {
    fn program(&self) -> Result<Program, String> {
        match self {
            Self::Any => Program::named("nats-server")
                .next()
                .ok_or_else(|| "no nats-server on PATH".to_owned()),
            Self::Newest => {
                let entries = fs::read_dir(ADDED).into_iter().flatten().flatten();
                let mut paths: Vec<_> = entries
                    .filter(|entry| {
                        let name = entry.file_name();
                        name.to_string_lossy().starts_with("nats-server-v")
                    })
                    .map(|entry| entry.path())
                    .collect();
                paths.sort();
                let mut programs = paths.into_iter().rev().filter_map(Program::at);
                programs
                    .next()
                    .ok_or_else(|| format!("no nats-server in {ADDED}"))
            }
        }
    }

    fn users(&self) -> &'static [&'static str] {
        &["nobody"]
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        let port = ports[node].to_string();
        let arguments = ["--addr", "127.0.0.1", "--port", &port, "--jetstream"];
        let mut server = command(&program.path, arguments);
        server.arg("--store_dir").arg(home);
        server
    }

    fn image(&self, _ports: &[u16]) -> Option<Image> {
        None
    }

    /// It greets a client, and says whether JetStream runs.
    fn answers(&self, port: u16) -> Result<(), String> {
        let greeting = greeting(port).map_err(|error| error.to_string())?;
        if greeting.starts_with("INFO ") && greeting.contains(r#""jetstream":true"#) {
            return Ok(());
        }
        Err("no JetStream in its greeting".to_owned())
    }

    fn url(&self, port: u16) -> String {
        format!("nats://127.0.0.1:{port}/")
    }
}

fn greeting(port: u16) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(wire::connect(port)?).read_line(&mut line)?;
    Ok(line)
}
