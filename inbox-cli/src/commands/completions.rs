//! `inbox completions`: for bash, zsh, fish, elvish, PowerShell.

use anyhow::Result;
use clap::CommandFactory;

use crate::{args::Cli, exit::Exit, output};

pub(crate) fn run(shell: clap_complete::Shell) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "inbox", &mut script);
    output::bytes(&script)?;
    Ok(Exit::Ok)
}
