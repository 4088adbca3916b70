//! What processes a message for the command line: a command, or an HTTP endpoint.

mod command;
mod group;
mod http;

use std::sync::Arc;

use anyhow::Result;
use inbox::{Handler, Leased};

pub(crate) use self::group::kill_all;
use crate::args::TargetArgs;

/// The handler that the command line asks for. Fails before anything is claimed when it cannot
/// work: a command that is not there, a URL that is not one.
pub(crate) fn from_args(args: &TargetArgs) -> Result<Arc<dyn Handler>> {
    match (&args.post, args.command.split_first()) {
        (Some(url), _) => Ok(Arc::new(http::Post::new(url)?)),
        (None, Some((program, arguments))) => Ok(Arc::new(command::Run::new(program, arguments)?)),
        // Clap's group requires one of the two.
        (None, None) => anyhow::bail!("no handler: give --post URL or -- COMMAND"),
    }
}

/// The facts about a message that its handler is told, as lower-case dashed names and values.
fn facts(message: &Leased) -> Vec<(String, String)> {
    let content = &message.message;
    let mut facts = vec![
        ("id".to_owned(), content.id().to_string()),
        ("handler".to_owned(), content.handler().to_string()),
        ("kind".to_owned(), content.kind().to_string()),
        ("attempt".to_owned(), message.attempts.started.to_string()),
        ("fencing-token".to_owned(), message.lease.token.to_string()),
    ];
    if let Some(content_type) = content.content_type() {
        facts.push(("content-type".to_owned(), content_type.to_string()));
    }
    if let Some(key) = content.ordering_key() {
        facts.push(("ordering-key".to_owned(), key.to_string()));
    }
    for (name, value) in content.headers().iter() {
        facts.push((format!("header-{name}"), value.to_owned()));
    }
    facts
}
