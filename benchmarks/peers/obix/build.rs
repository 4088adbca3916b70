//! Finds the migrations that obix carries, which an application is told to copy.

use std::{env, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=Cargo.lock");
    let output = Command::new(env::var("CARGO")?)
        .args(["metadata", "--locked", "--format-version", "1"])
        .output()?;
    ensure!(output.status.success(), "no metadata");
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "obix")
        .and_then(|package| package["manifest_path"].as_str())
        .context("no obix")?;
    let migrations = Path::new(manifest).with_file_name("migrations");
    println!("cargo::rustc-env=OBIX_MIGRATIONS={}", migrations.display());
    Ok(())
}
