//! `inbox completions`: for bash, zsh, fish, elvish, PowerShell.

use anyhow::Result;
use clap::CommandFactory;

use crate::{
    args::{Cli, Global, wrong_usage},
    exit::Exit,
    output,
};

pub(crate) fn run(global: &Global, shell: clap_complete::Shell) -> Result<Exit> {
    if global.json {
        wrong_usage("completions are a script for a shell; there is no JSON of it");
    }
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "inbox", &mut script);
    output::bytes(&script)?;
    Ok(Exit::Ok)
}
