//! Prometheus, one server, which reads nothing unless a test gives it `--config.file`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::{Image, Recipe, command};
use crate::program::Program;
use crate::wire;

pub(crate) struct Prometheus;

impl Recipe for Prometheus {
    fn program(&self) -> Result<Program, String> {
        Program::named("prometheus")
            .next()
            .ok_or_else(|| "no prometheus on PATH".to_owned())
    }

    fn users(&self) -> &'static [&'static str] {
        &["nobody"]
    }

    fn prepare(&self, _program: &Program, home: &Path, _ports: &[u16]) -> io::Result<Vec<Command>> {
        fs::write(home.join("prometheus.yml"), "global: {}\n")?;
        Ok(Vec::new())
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        let listen = format!("--web.listen-address=127.0.0.1:{}", ports[node]);
        let data = format!("--storage.tsdb.path={}", home.join("data").display());
        let mut server = command(&program.path, [listen, data]);
        // Where it looks for `prometheus.yml` unless told otherwise, which it may be once.
        server.current_dir(home);
        server
    }

    fn image(&self, _ports: &[u16]) -> Option<Image> {
        None
    }

    fn answers(&self, port: u16) -> Result<(), String> {
        let request = b"GET /-/ready HTTP/1.0\r\n\r\n";
        let status: [u8; 12] = wire::ask(port, request).map_err(|error| error.to_string())?;
        if status.ends_with(b" 200") {
            return Ok(());
        }
        Err(format!("{} to /-/ready", String::from_utf8_lossy(&status)))
    }

    fn url(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}")
    }
}
