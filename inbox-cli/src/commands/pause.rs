//! `inbox pause` and `inbox resume`: whether a handler's messages are handed out.

use anyhow::{Result, bail};
use clap::Args;
use inbox::HandlerName;
use serde_json::json;

use super::own_pauses::{self, CommandPause};
use crate::{args::Global, exit::Exit, output, store};

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// The handler; it need not have messages. What is being worked on may end
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
    store::waiting(&global.store, store.pause(&args.handler)).await?;
    report(global, &args.handler, true)
}

pub(crate) async fn resume(global: &Global, args: &ResumeArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let paused = store::waiting(&global.store, store.paused()).await?;
    if let Some(CommandPause { command, mark }) = own_pauses::of_command(&paused, &args.handler) {
        let handler = output::cell(args.handler.as_str(), usize::MAX);
        bail!(
            "`inbox {command}` has paused `{handler}`, and is at work or was cut short: run it again first, or what \
             was handled before runs again. To give it up, `inbox resume {mark}` before this"
        );
    }
    store::waiting(&global.store, store.resume(&args.handler)).await?;
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
