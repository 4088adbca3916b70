//! `inbox pause` and `inbox resume`: whether a handler's messages are handed out.

use anyhow::{Result, bail};
use clap::Args;
use inbox::HandlerName;
use inbox_dashboard::command_pauses;
use serde_json::json;

use super::known_handlers;
use crate::{args::Global, exit::Exit, output, store};

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// The handler; it need not have messages, and a note says if it has none. What is being worked on may end. If `inbox import-keys`
    /// or `inbox copy` has paused it, it stays paused when that is done, too
    #[arg(value_name = "HANDLER")]
    pub(crate) handler: HandlerName,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The handler. `inbox stats` names those that are paused
    #[arg(value_name = "HANDLER")]
    pub(crate) handler: HandlerName,
}

pub(crate) async fn pause(global: &Global, args: &PauseArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let pausing = command_pauses::pause(&*store, &args.handler);
    store::waiting(&global.store, pausing).await?;
    report(global, &args.handler, true, "is paused")?;
    known_handlers::note_unknown(global, store.as_ref(), &args.handler).await;
    Ok(Exit::Ok)
}

pub(crate) async fn resume(global: &Global, args: &ResumeArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let paused = store::waiting(&global.store, store.paused()).await?;
    if let Some(pause) = command_pauses::of_command(&paused, &args.handler) {
        bail!(pause.refusal());
    }
    let resuming = command_pauses::resume(&*store, &args.handler);
    store::waiting(&global.store, resuming).await?;
    // A name that is mistyped looks so.
    let what = match paused.contains(&args.handler) {
        true => "is handed out again",
        false => "was not paused",
    };
    report(global, &args.handler, false, what)?;
    Ok(Exit::Ok)
}

fn report(global: &Global, handler: &HandlerName, paused: bool, what: &str) -> Result<()> {
    if global.json {
        output::json(&json!({ "handler": handler, "paused": paused }))?;
    } else if !global.quiet {
        let handler = output::cell(handler.as_str(), usize::MAX);
        output::line(format!("{handler} {what}"))?;
    }
    Ok(())
}
