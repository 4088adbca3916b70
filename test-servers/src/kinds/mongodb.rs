use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::{Image, Recipe, command};
use crate::program::Program;
use crate::wire;

/// A replica set of so many members that are each like this.
pub(crate) struct Mongodb {
    pub(crate) members: usize,
}

const SET: &str = "inbox";

/// How long the first member may take to become the primary.
const ELECTION: Duration = Duration::from_secs(60);

/// The journal is always on; majority writes, the default, wait for it to be on disk.
const SETTINGS: [&str; 4] = ["--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "128"];

impl Recipe for Mongodb {
    fn program(&self) -> Result<Program, String> {
        Program::named("mongod")
            .next()
            .ok_or_else(|| "no mongod on PATH".to_owned())
    }

    fn nodes(&self) -> usize {
        self.members
    }

    fn prepare(&self, _program: &Program, home: &Path, _ports: &[u16]) -> io::Result<Vec<Command>> {
        for node in 0..self.members {
            fs::create_dir(data(home, node))?;
        }
        Ok(Vec::new())
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        mongod(&program.path, home, ports, node, SET)
    }

    fn image(&self, ports: &[u16]) -> Option<Image> {
        if self.members > 1 {
            return None;
        }
        let mut arguments = vec!["mongod".into(), "--bind_ip_all".into()];
        arguments.extend(["--port".into(), ports[0].to_string()]);
        arguments.extend(["--replSet", SET].map(str::to_owned));
        arguments.extend(SETTINGS.map(str::to_owned));
        Some(Image {
            name: "mongo",
            tag: "7.0",
            environment: &[],
            arguments,
        })
    }

    fn answers(&self, port: u16) -> Result<(), String> {
        let answer = run(port, &[integer("ping", 1)])?;
        succeeded(&answer)
    }

    fn form(&self, ports: &[u16]) -> Result<(), String> {
        initiate(SET, &ports[..self.members])?;
        let deadline = Instant::now() + ELECTION;
        while let Err(error) = is_member(ports[0], "ismaster") {
            if Instant::now() >= deadline {
                return Err(error);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// One member is the primary, at first the first one, and the others follow it.
    fn ready(&self, ports: &[u16]) -> Result<(), String> {
        let ports = &ports[..self.members];
        let is_primary = |port: &&u16| is_member(**port, "ismaster").is_ok();
        let Some(primary) = ports.iter().find(is_primary) else {
            return Err("no member says ismaster".to_owned());
        };
        let mut others = ports.iter().filter(|port| *port != primary);
        others.try_for_each(|port| is_member(*port, "secondary"))
    }

    fn url(&self, port: u16) -> String {
        format!("mongodb://127.0.0.1:{port}/?replicaSet={SET}")
    }
}

/// One member of a set, on its port and in its own directory.
pub(super) fn mongod(
    program: &Path,
    home: &Path,
    ports: &[u16],
    node: usize,
    set: &str,
) -> Command {
    let mut server = command(program, ["--bind_ip", "127.0.0.1", "--nounixsocket"]);
    server.args(["--port", &ports[node].to_string(), "--dbpath"]);
    server.arg(data(home, node)).args(["--replSet", set]);
    server.args(SETTINGS);
    server
}

/// Makes a set of the servers behind these ports.
pub(super) fn initiate(set: &str, ports: &[u16]) -> Result<(), String> {
    let members: Vec<Vec<u8>> = (0..).zip(ports).map(member).collect();
    let members = element(0x04, "members", &document(&members));
    // So that the tests do not wait for long until the others have taken over.
    let settings = document(&[
        integer("electionTimeoutMillis", 2000),
        integer("heartbeatTimeoutSecs", 2),
    ]);
    let settings = element(0x03, "settings", &settings);
    let set = document(&[text("_id", set), members, settings]);
    let answer = run(ports[0], &[element(0x03, "replSetInitiate", &set)])?;
    succeeded(&answer)
}

/// Whether the server behind this port says that it has this part in its set.
pub(super) fn is_member(port: u16, part: &str) -> Result<(), String> {
    // `hello` came with 4.4.2.
    let answer = run(port, &[integer("isMaster", 1)])?;
    if holds(&answer, &element(0x08, part, &[1])) {
        return Ok(());
    }
    Err(format!("the member on port {port} does not say {part}"))
}

pub(super) fn data(home: &Path, node: usize) -> PathBuf {
    home.join(format!("data{node}"))
}

/// A member of a replica set, as an element of the list of all.
fn member((number, port): (i32, &u16)) -> Vec<u8> {
    // The first is the primary whenever it runs.
    let priority = if number == 0 { 2 } else { 1 };
    let member = document(&[
        integer("_id", number),
        text("host", &format!("127.0.0.1:{port}")),
        integer("priority", priority),
    ]);
    element(0x03, &number.to_string(), &member)
}

/// Runs a command on the database `admin` and returns the answer, a BSON document.
pub(super) fn run(port: u16, elements: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    exchange(port, &message(elements)).map_err(|error| error.to_string())
}

fn exchange(port: u16, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = wire::connect(port)?;
    stream.write_all(request)?;
    // Header (16 bytes), flags (4) and the kind of the only section (1).
    let mut head = [0; 21];
    stream.read_exact(&mut head)?;
    let total = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let rest = u64::from(total).saturating_sub(21).min(1 << 20);
    let mut document = Vec::new();
    stream.take(rest).read_to_end(&mut document)?;
    Ok(document)
}

/// An `OP_MSG` with one section.
fn message(elements: &[Vec<u8>]) -> Vec<u8> {
    const OP_MSG: i32 = 2013;
    let mut elements = elements.to_vec();
    elements.push(text("$db", "admin"));
    let body = document(&elements);
    let mut message = length(21 + body.len()).to_vec();
    for field in [1, 0, OP_MSG, 0] {
        message.extend(field.to_le_bytes());
    }
    message.push(0);
    message.extend(body);
    message
}

fn document(elements: &[Vec<u8>]) -> Vec<u8> {
    let elements = elements.concat();
    let mut document = length(elements.len() + 5).to_vec();
    document.extend(elements);
    document.push(0);
    document
}

fn element(tag: u8, name: &str, value: &[u8]) -> Vec<u8> {
    let mut element = vec![tag];
    element.extend(name.as_bytes());
    element.push(0);
    element.extend(value);
    element
}

fn integer(name: &str, value: i32) -> Vec<u8> {
    element(0x10, name, &value.to_le_bytes())
}

pub(super) fn text(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = length(value.len() + 1).to_vec();
    bytes.extend(value.as_bytes());
    bytes.push(0);
    element(0x02, name, &bytes)
}

/// Lengths here are of a few dozen bytes.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

pub(super) fn succeeded(answer: &[u8]) -> Result<(), String> {
    if holds(answer, &element(0x01, "ok", &1f64.to_le_bytes())) {
        Ok(())
    } else {
        Err("the command failed".to_owned())
    }
}

fn holds(document: &[u8], element: &[u8]) -> bool {
    document
        .windows(element.len())
        .any(|bytes| bytes == element)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes as the protocol's and the format's specifications lay them out.
    #[test]
    fn a_command_is_encoded_as_specified() {
        let mut expected = Vec::new();
        expected.extend([51, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0x07, 0, 0]);
        expected.extend([0, 0, 0, 0, 0]);
        expected.extend([30, 0, 0, 0]);
        expected.extend(b"\x10ping\0\x01\0\0\0");
        expected.extend(b"\x02$db\0\x06\0\0\0admin\0");
        expected.push(0);
        assert_eq!(message(&[integer("ping", 1)]), expected);
    }
}
