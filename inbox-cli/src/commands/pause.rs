//! `inbox pause` and `inbox resume`: whether a handler's messages are handed out.

use anyhow::{Result, bail};
use clap::Args;
use inbox::HandlerName;
use inbox_dashboard::command_pauses;
use serde_json::json;

use crate::{args::Global, exit::Exit, output, store};

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// The handler; it need not have messages. What is being worked on may end. If `inbox import-keys`
    /// or `inbox copy` has paused it, it stays paused when that is done, too
    #[arg(value_name = "HANDLER")]
    pub(crate) handler: HandlerName,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The handler
    #[arg(value_name = "HANDLER")]
    pub(crate) handler: HandlerName,
}

pub(crate) async fn pause(global: &Global, args: &PauseArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let pausing = command_pauses::pause(&*store, &args.handler);
    store::waiting(&global.store, pausing).await?;
    report(global, &args.handler, true)
}

pub(crate) async fn resume(global: &Global, args: &ResumeArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let paused = store::waiting(&global.store, store.paused()).await?;
    if let Some(pause) = command_pauses::of_command(&paused, &args.handler) {
        bail!(pause.refusal());
    }
    let resuming = command_pauses::resume(&*store, &args.handler);
    store::waiting(&global.store, resuming).await?;
    report(global, &args.handler, false)
}

fn report(global: &Global, handler: &HandlerName, paused: bool) -> Result<Exit> {
    if global.json {
        output::json(&json!({ "handler": handler, "paused": paused }))?;
    } else if !global.quiet {
        let handler = output::cell(handler.as_str(), usize::MAX);
        let what = if paused {
            "is paused"
        } else {
            "is handed out again"
        };
        output::line(format!("{handler} {what}"))?;
    }
    Ok(Exit::Ok)
}
