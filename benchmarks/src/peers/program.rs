//! A peer's program: built once, run once for each measurement.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use tokio::process::Command;

use super::{Load, list::Peer, table::Rates};

/// A program that is ready to run.
#[derive(Debug)]
pub(super) struct Program {
    command: &'static str,
    /// Those that come before what is told each run.
    arguments: Vec<String>,
}

/// A line of its output.
#[derive(Debug, Deserialize)]
struct Line {
    version: String,
    phase: String,
    messages: u64,
    rate: f64,
}

impl Program {
    /// Builds what is in the peer's folder: a Cargo workspace, or a package for Node.js.
    pub(super) async fn build(peer: &Peer) -> Result<Self> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("peers")
            .join(peer.folder);
        eprintln!("building {}", peer.folder);
        let path = |file: &str| folder.join(file).to_string_lossy().into_owned();
        let manifest = path("Cargo.toml");
        let (program, mut build) = if folder.join("Cargo.toml").exists() {
            let arguments = ["run", "--release", "--quiet", "--manifest-path"];
            let mut arguments = arguments.map(str::to_owned).to_vec();
            arguments.extend([manifest.clone(), "--".to_owned()]);
            let mut build = Command::new("cargo");
            build.args(["build", "--release", "--manifest-path", &manifest]);
            (
                Self {
                    command: "cargo",
                    arguments,
                },
                build,
            )
        } else {
            let mut build = Command::new("npm");
            build
                .args(["install", "--no-package-lock", "--no-fund", "--no-audit"])
                .current_dir(&folder);
            (
                Self {
                    command: "node",
                    arguments: vec![path("main.mjs")],
                },
                build,
            )
        };
        let built = build.stdout(Stdio::null()).status().await?;
        ensure!(built.success(), "{} does not build", peer.folder);
        Ok(program)
    }

    /// One run on a fresh database.
    pub(super) async fn measure(&self, peer: &Peer, url: &str, load: Load) -> Result<Rates> {
        let output = Command::new(self.command)
            .args(&self.arguments)
            .args(["--url", url, "--settings", peer.settings])
            .args(["--messages", &load.messages.to_string()])
            .args(["--payload", &load.payload.to_string()])
            .args(["--batch", &load.batch.to_string()])
            .args(["--handling", &load.handling.as_millis().to_string()])
            .stderr(Stdio::inherit())
            .output()
            .await?;
        ensure!(output.status.success(), "{} failed", peer.name);
        let mut rates = Rates::default();
        for line in String::from_utf8(output.stdout)?.lines() {
            let line: Line = serde_json::from_str(line).context("not a measurement")?;
            ensure!(line.messages == load.messages, "measured something else");
            match line.phase.as_str() {
                "receive" => rates.receive = line.rate,
                "drain" => rates.drain = line.rate,
                other => bail!("unknown phase {other}"),
            }
            rates.version = line.version;
        }
        ensure!(
            rates.receive > 0.0 && rates.drain > 0.0,
            "a phase is missing"
        );
        Ok(rates)
    }
}
