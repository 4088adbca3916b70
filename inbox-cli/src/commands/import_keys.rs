//! `inbox import-keys`: record what was handled before there was an inbox.

use std::{path::PathBuf, sync::Arc};

use anyhow::Result;
use clap::Args;
use inbox::{HandlerName, Inbox};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::ingest::{self, IngestArgs, Ingested};
use crate::{
    args::Global,
    exit::Exit,
    input::{Contents, InputArgs, Reader},
    interrupt, output,
};

pub(crate) const HELP: &str = "\
While it goes on the handlers are paused, so that no worker runs what is recorded only in part. At
its end they work again, but for those that were paused before.

If it is cut short (by a signal, --strict, an input that cannot be read to its end), they stay
paused: run it again, on all of the input. `inbox resume` before that would run what was handled
already. Until then `inbox stats` shows one more paused handler for each, inbox-import-keys-…

Have one import of a handler at a time.";

const CUT_SHORT: &str = "the import was cut short, and its handlers stay paused until it is run again on all of the \
                         input: `inbox resume` before that would run what was handled already";

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
    let args = IngestArgs { input, handlers };
    let (reader, store) = ingest::open(global, &args.input).await?;
    let token = interrupt::token()?;
    let imported = import(global, &args, reader, &store, &token).await;
    let (ingested, is_whole) = imported.inspect_err(|_| output::note(CUT_SHORT))?;
    ingested.report(global)?;
    if !is_whole {
        output::note(CUT_SHORT);
    }
    Ok(interrupt::exit(&token, ingested.exit()))
}

/// Records all that is read while the handlers are paused: a message is begun before it is settled, and one that an
/// import leaves in between is pending. Answers also whether it has come to its end.
async fn import(
    global: &Global,
    args: &IngestArgs,
    reader: Reader,
    store: &Arc<dyn Inbox>,
    token: &CancellationToken,
) -> Result<(Ingested, bool)> {
    let paused = pause(&**store, &args.handlers).await?;
    let ingesting = ingest::ingest(global, args, reader, Arc::clone(store), token);
    let ingested = Box::pin(ingesting).await?;
    let is_whole = ingested.has_read_all() && !token.is_cancelled();
    if is_whole {
        resume(&**store, &paused).await?;
    }
    Ok((ingested, is_whole))
}

/// Pauses the handlers. Answers those that are to work again at the end: that were not paused before, or only by an
/// import that was cut short.
async fn pause<'a>(store: &dyn Inbox, handlers: &'a [HandlerName]) -> Result<Vec<&'a HandlerName>> {
    let paused = store.paused().await?;
    let mut ours = Vec::new();
    for handler in handlers {
        let mark = mark(handler)?;
        if paused.contains(handler) && !paused.contains(&mark) {
            continue;
        }
        // First, so that the pause of an import that is killed behind it is known as one.
        store.pause(&mark).await?;
        store.pause(handler).await?;
        ours.push(handler);
    }
    Ok(ours)
}

async fn resume(store: &dyn Inbox, handlers: &[&HandlerName]) -> Result<()> {
    for handler in handlers {
        store.resume(handler).await?;
        store.resume(&mark(handler)?).await?;
    }
    Ok(())
}

/// The handler whose pause says that an import has paused `handler`. It has no messages. A digest, as a name that is
/// made longer may be too long.
fn mark(handler: &HandlerName) -> Result<HandlerName> {
    let digest = hex::encode(Sha256::digest(handler.as_str()));
    let digest = digest.get(..16).unwrap_or_default();
    Ok(HandlerName::new(format!("inbox-import-keys-{digest}"))?)
}
