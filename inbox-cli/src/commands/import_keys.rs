//! `inbox import-keys`: record what was handled before there was an inbox.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use inbox::HandlerName;

use super::ingest::{self, IngestArgs};
use crate::{
    args::Global,
    exit::Exit,
    input::{Contents, InputArgs},
};

#[derive(Debug, Args)]
pub(crate) struct ImportKeysArgs {
    /// An id on each line; - is standard input. A message that comes under one of them is a duplicate,
    /// with other content, as of the first nothing is known but its id
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The handler that has handled them; repeat it for several
    #[arg(long = "handler", value_name = "NAME", required = true)]
    handlers: Vec<HandlerName>,
    /// Stop at the first bad line, rather than report it and go on
    #[arg(long)]
    strict: bool,
}

pub(crate) async fn run(global: &Global, args: ImportKeysArgs) -> Result<Exit> {
    let input = InputArgs {
        file: args.file,
        contents: Contents::Key,
        id_fields: Vec::new(),
        kind_field: None,
        ordering_field: None,
        strict: args.strict,
        batch: 500,
    };
    let handlers = args.handlers;
    ingest::run(global, IngestArgs { input, handlers }).await
}
