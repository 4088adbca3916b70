use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use super::{Image, Recipe, command};
use crate::program::Program;
use crate::wire;

pub(crate) struct Redis;

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
        Program::named("redis-server")
            .next()
            .ok_or_else(|| "no redis-server on PATH".to_owned())
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        let mut server = command(&program.path, ["--bind", "127.0.0.1", "--port"]);
        server.arg(ports[node].to_string());
        server.arg("--dir").arg(home).args(SETTINGS);
        server
    }

    fn image(&self, ports: &[u16]) -> Image {
        let mut arguments = vec!["redis-server".into(), "--port".into(), ports[0].to_string()];
        arguments.extend(SETTINGS.map(str::to_owned));
        Image {
            name: "redis",
            tag: "7.4",
            environment: &[],
            arguments,
        }
    }

    /// A server that is still loading its data answers with an error.
    fn answers(&self, port: u16) -> Result<(), String> {
        ask(port, &["PING"]).map(drop)
    }

    fn url(&self, ports: &[u16]) -> String {
        format!("redis://127.0.0.1:{}/", ports[0])
    }
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
