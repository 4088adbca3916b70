//! `inbox import-keys`: record what was handled before there was an inbox.

use std::{path::PathBuf, sync::Arc};

use anyhow::Result;
use clap::Args;
use inbox::{HandlerName, Inbox};
use inbox_dashboard::command_pauses::PausingCommand;
use tokio_util::sync::CancellationToken;

use super::{
    ingest::{self, IngestArgs, Ingested},
    own_pauses::OwnPauses,
};
use crate::{
    args::Global,
    exit::Exit,
    input::{Contents, InputArgs, Reader},
    interrupt, output,
};

pub(crate) const HELP: &str = "\
While it goes on the handlers are paused, so that no worker runs what is recorded only in part. At
its end they work again, but for those that were paused before, or that `inbox pause`, the dashboard
or `inbox copy` has paused meanwhile.

If it is cut short (by a signal, --strict, an input that cannot be read to its end), they stay
paused: run it again, on all of the input. `inbox resume` before that would run what was handled
already. Until then `inbox stats` shows one more paused handler for each, inbox-import-keys-…

An id whose message is in the inbox already is recorded if that message is due and first of its
ordering key, or is behind others of the same 500 lines only. Others are left as they are after ten
seconds or more: leased, waiting for their time, or behind one that is not in these lines. If there
are any, the handlers stay paused, too (exit code 4): run it again when the messages are due, or at
once if they are behind later lines, or discard them.

Ids are recorded 500 at a time, and fewer at the end of the input. Those of one ordering key take
the least time in the order of their messages, or in the reverse one.

Have one import of a handler at a time.";

/// Said of an import that has not come to its end, if it has paused any handlers.
fn note_cut_short(pauses: &OwnPauses) {
    if let Some(names) = pauses.left() {
        output::note(format_args!(
            "the import was cut short, and its handlers stay paused until it is run again on all of the input: \
             {names}. `inbox resume` before that would run what was handled already"
        ));
    }
}

/// Said of ids that could not be recorded.
fn unfinished(count: u64) -> String {
    format!(
        "not recorded, since others work on them, or they wait for their time or behind others of their ordering key: \
         {}. The handlers stay paused: run this again on all of the input, at once if they are behind later lines, \
         else when they are due, or discard them (`inbox list --state pending` shows what waits). `inbox resume` \
         before that would run what was handled already",
        output::count_of(count, "message")
    )
}

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
    let mut pauses = OwnPauses::of(PausingCommand::ImportKeys);
    let imported = import(global, &args, reader, &store, &mut pauses, &token).await;
    let (ingested, is_whole) = imported.inspect_err(|_| note_cut_short(&pauses))?;
    ingested.report(global)?;
    if ingested.unfinished > 0 {
        output::note(unfinished(ingested.unfinished));
    } else if !is_whole {
        note_cut_short(&pauses);
    }
    Ok(interrupt::exit(&token, ingested.exit()))
}

/// Records all that is read while the handlers are paused: a message is begun before it is settled, and one that an
/// import leaves in between is pending. Answers also whether it has come to its end, with all recorded.
async fn import(
    global: &Global,
    args: &IngestArgs,
    reader: Reader,
    store: &Arc<dyn Inbox>,
    pauses: &mut OwnPauses,
    token: &CancellationToken,
) -> Result<(Ingested, bool)> {
    pauses.begin(&**store, &args.handlers).await?;
    let ingesting = ingest::ingest(global, args, reader, Arc::clone(store), token);
    let ingested = Box::pin(ingesting).await?;
    let is_whole = ingested.has_read_all() && ingested.unfinished == 0 && !token.is_cancelled();
    if is_whole {
        pauses.end(&**store).await?;
    }
    Ok((ingested, is_whole))
}
