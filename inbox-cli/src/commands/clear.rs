//! `inbox clear`: all messages of a handler go, but those that are being worked on.

use anyhow::Result;
use clap::Args;
use inbox::{Filter, HandlerName, Slice, State};
use serde_json::json;

use super::known_handlers;
use crate::{args::Global, exit::Exit, interrupt, output, store};

#[derive(Debug, Args)]
pub(crate) struct ClearArgs {
    /// The handler
    #[arg(value_name = "HANDLER")]
    pub(crate) handler: HandlerName,
    /// Delete them. Without it, nothing is, and it says how many it would be
    #[arg(long)]
    pub(crate) yes: bool,
}

/// How many messages one step deletes.
const SLICE: u32 = 1000;

pub(crate) async fn run(global: &Global, args: ClearArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let url = &global.store;
    if !args.yes {
        let states = State::ALL.into_iter();
        let filter = Filter {
            handler: Some(args.handler.clone()),
            states: states.filter(|state| *state != State::Leased).collect(),
            ..Filter::default()
        };
        let number = store::waiting(url, store.count(&filter)).await?;
        if global.json {
            output::json(&json!({ "dry_run": true, "cleared": number }))?;
        } else {
            let mut line = output::dry_run(number, false, "would be deleted");
            if number > 0 {
                line.push_str("; with --yes they are");
            }
            output::line(line)?;
        }
        if number == 0 {
            known_handlers::note_unknown(global, store.as_ref(), &args.handler).await;
        }
        return Ok(Exit::Ok);
    }
    let token = interrupt::token()?;
    let mut cleared = 0;
    let mut outcome = Ok(());
    let mut slice = Slice {
        after: None,
        limit: SLICE,
    };
    while !token.is_cancelled() {
        let step = store::waiting(url, store.clear_slice(&args.handler, &slice));
        let Some(progress) = interrupt::unless_given_up(&token, step).await else {
            output::note("the store does not answer: the last step may have been done or not");
            break;
        };
        let progress = match progress {
            Ok(progress) => progress,
            Err(error) => {
                outcome = Err(error);
                break;
            }
        };
        cleared += progress.changed;
        if progress.next.is_none() {
            break;
        }
        slice.after = progress.next;
    }
    // What is deleted is deleted, also if the rest has failed.
    if outcome.is_ok() || cleared > 0 {
        if global.json {
            output::json(&json!({ "cleared": cleared }))?;
        } else if !global.quiet {
            output::line(format!("{} deleted", output::messages(cleared)))?;
        }
    }
    outcome?;
    if cleared == 0 && !token.is_cancelled() {
        known_handlers::note_unknown(global, store.as_ref(), &args.handler).await;
    }
    Ok(interrupt::exit(&token, Exit::Ok))
}
