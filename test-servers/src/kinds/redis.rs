//! Redis, and Valkey, which began as Redis and still is started and spoken to like it.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use super::{Image, Recipe, command};
use crate::debian;
use crate::program::Program;
use crate::wire;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Redis {
    /// Whichever version the machine has.
    Any,
    Redis8,
    Valkey,
}

/// Every write is in the append-only file and on disk before it is acknowledged.
pub(super) const SETTINGS: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--save",
    "",
];

impl Recipe for Redis {
    fn program(&self) -> Result<Program, String> {
        let name = self.program_name();
        let on_path = Program::named(name).find(|server| match self {
            Self::Any | Self::Valkey => true,
            Self::Redis8 => server.version.contains(" v=8."),
        });
        match (on_path, self) {
            (Some(server), _) => Ok(server),
            (None, Self::Any) => Err(format!("no {name} on PATH")),
            (None, Self::Redis8 | Self::Valkey) => {
                debian::program(debian::TESTING, &format!("usr/bin/{name}"))
                    .map_err(|reason| format!("no such {name} on PATH; {reason}"))
            }
        }
    }

    /// The second is for a test that makes the server a cluster of one node. Left alone, it would
    /// take the first plus 10,000, which nobody has reserved.
    fn ports(&self) -> usize {
        2
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], _node: usize) -> Command {
        let mut server = command(&program.path, ["--bind", "127.0.0.1"]);
        server.args(of_ports(ports));
        server.arg("--dir").arg(home).args(SETTINGS);
        server
    }

    fn image(&self, ports: &[u16]) -> Option<Image> {
        let mut arguments = vec![self.program_name().to_owned()];
        arguments.extend(of_ports(ports));
        arguments.extend(SETTINGS.map(str::to_owned));
        let (name, tag) = self.image_name();
        Some(Image {
            name,
            tag,
            environment: &[],
            arguments,
        })
    }

    /// A server that is still loading its data answers with an error.
    fn answers(&self, port: u16) -> Result<(), String> {
        ask(port, &["PING"]).map(drop)
    }

    fn url(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}/")
    }
}

impl Redis {
    pub(super) fn program_name(self) -> &'static str {
        match self {
            Self::Any | Self::Redis8 => "redis-server",
            Self::Valkey => "valkey-server",
        }
    }

    pub(super) fn image_name(self) -> (&'static str, &'static str) {
        match self {
            Self::Any => ("redis", "7.4"),
            Self::Redis8 => ("redis", "8.0"),
            Self::Valkey => ("valkey/valkey", "9.0"),
        }
    }
}

fn of_ports(ports: &[u16]) -> [String; 4] {
    let (clients, bus) = (ports[0].to_string(), ports[1].to_string());
    ["--port".into(), clients, "--cluster-port".into(), bus]
}

/// Runs one command whose answer is a word or a text; the server's error is the error.
pub(super) fn ask(port: u16, words: &[&str]) -> Result<String, String> {
    exchange(port, words).unwrap_or_else(|error| Err(error.to_string()))
}

fn exchange(port: u16, words: &[&str]) -> io::Result<Result<String, String>> {
    let mut stream = wire::connect(port)?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, "not an answer of Redis");
    match line.split_at_checked(1) {
        Some(("+", word)) => Ok(Ok(word.to_owned())),
        Some(("-", error)) => Ok(Err(error.to_owned())),
        Some(("$", length)) => {
            let length: u16 = length.parse().map_err(|_| unexpected())?;
            let mut text = vec![0; usize::from(length)];
            reader.read_exact(&mut text)?;
            Ok(Ok(String::from_utf8_lossy(&text).into_owned()))
        }
        _ => Err(unexpected()),
    }
}
