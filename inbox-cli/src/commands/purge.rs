//! `inbox purge`: retention by hand, with an archive if wanted.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Args;
use inbox::{
    Filter, HandlerName, Inbox, Janitor, PurgeRequest, Retention, State, Sweep, SweepError,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    archive::ArchiveFile,
    args::{FinalStateArg, Global, duration},
    exit::Exit,
    interrupt, output, progress, store,
};

#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// Delete messages that became final at least this long ago, such as 12h or 30d
    #[arg(long, value_name = "AGE", value_parser = duration)]
    pub(crate) older_than: Duration,
    /// Which messages; repeat it for several
    #[arg(long = "state", value_name = "STATE", default_value = "processed")]
    pub(crate) states: Vec<FinalStateArg>,
    /// Append them to this NDJSON file first, payloads as base64; nothing is deleted that is not
    /// on disk there. - is standard output; what was written to a pipe counts as archived, whatever
    /// its reader does with it
    #[arg(long, value_name = "FILE")]
    pub(crate) archive: Option<PathBuf>,
    /// Only messages of this handler
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<HandlerName>,
    /// Delete nothing, and drop only payloads and results: duplicates are still refused
    #[arg(long, conflicts_with = "archive")]
    pub(crate) drop_payloads: bool,
    /// Change nothing, write no archive, and say how many messages it would be. With --drop-payloads, those
    /// that have no payload and no result any more count, too
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Delete up to this many at a time
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) slice: u32,
}

/// The pause before a sweep goes on that the store has failed, a few times already.
const PAUSE: Duration = Duration::from_secs(3);

pub(crate) async fn run(global: &Global, args: PurgeArgs) -> Result<Exit> {
    if let Some(file) = &args.archive {
        store::check_is_not_inbox(&global.store, file)?;
    }
    let store = store::open(&global.store).await?;
    if args.dry_run {
        return count(global, store.as_ref(), args).await;
    }
    // Before signals are caught, since a named pipe may have no reader for long.
    let archive = match &args.archive {
        None => None,
        Some(file) => Some(ArchiveFile::open(file).await?),
    };
    if args.drop_payloads {
        return drop_payloads(global, store.as_ref(), &args).await;
    }
    let has_stdout = archive.as_ref().is_some_and(|archive| archive.is_stdout);
    let token = interrupt::token()?;
    let mut retention = Retention::new();
    for state in &args.states {
        retention = match State::from(*state) {
            State::Processed => retention.keep_processed(args.older_than),
            State::Dead => retention.keep_dead(args.older_than),
            _ => retention.keep_discarded(args.older_than),
        };
    }
    let mut janitor = Janitor::builder(store).slice(args.slice);
    janitor = match args.handler {
        Some(handler) => janitor.handler(handler, retention),
        None => janitor.retention(retention),
    };
    if let Some(archive) = archive {
        janitor = janitor.archiver(archive);
    }
    let janitor = janitor.build()?;
    let spinner = progress::spinner(global, "purging");
    let mut sweep = Sweep::default();
    let ended = through_outages(&janitor, &mut sweep, &token).await;
    spinner.finish_and_clear();
    // What is deleted is deleted, also if the rest has failed.
    if ended.is_ok() || sweep.purged() > 0 || token.is_cancelled() {
        report(global, &sweep, has_stdout)?;
    }
    match ended {
        Err(SweepError::Store(error)) if token.is_cancelled() && error.is_retryable() => {
            output::note(format_args!(
                "ended before everything was purged: {error}; what was under way may be purged, too"
            ));
        }
        ended => ended?,
    }
    Ok(interrupt::exit(&token, Exit::Ok))
}

/// Says how many messages it would be.
async fn count(global: &Global, inbox: &dyn Inbox, args: PurgeArgs) -> Result<Exit> {
    let filter = Filter {
        states: args.states.into_iter().map(Into::into).collect(),
        handler: args.handler,
        finished_longer_ago: Some(args.older_than),
        ..Filter::default()
    };
    let number = store::waiting(&global.store, inbox.count(&filter)).await?;
    let (figure, would) = match args.drop_payloads {
        true => ("payloads_dropped", "would lose payload and result"),
        false => ("purged", "would be purged"),
    };
    if global.json {
        output::json(&json!({ "dry_run": true, figure: number }))?;
    } else {
        output::line(output::dry_run(number, args.drop_payloads, would))?;
    }
    Ok(Exit::Ok)
}

/// Drops payloads of any final state, which is an operator's decision and no retention, step by step until
/// nothing is left or a signal has come.
async fn drop_payloads(global: &Global, inbox: &dyn Inbox, args: &PurgeArgs) -> Result<Exit> {
    let token = interrupt::token()?;
    let mut dropped = 0;
    let mut outcome = Ok(());
    'all: for state in &args.states {
        let mut request = PurgeRequest::new(State::from(*state), args.older_than, args.slice)?;
        if let Some(handler) = &args.handler {
            request = request.for_handler(handler.clone());
        }
        loop {
            if token.is_cancelled() {
                break 'all;
            }
            let step = store::waiting(&global.store, inbox.drop_payloads(&request));
            match interrupt::unless_given_up(&token, step).await {
                None => {
                    output::note(
                        "the store does not answer: the last step may have been done or not",
                    );
                    break 'all;
                }
                Some(Err(error)) => {
                    outcome = Err(error);
                    break 'all;
                }
                Some(Ok(step)) => {
                    dropped += step;
                    if step < u64::from(args.slice) {
                        break;
                    }
                }
            }
        }
    }
    // What is done is done, also if the rest has failed.
    if outcome.is_ok() || dropped > 0 {
        if global.json {
            output::json(&json!({ "payloads_dropped": dropped }))?;
        } else if !global.quiet {
            let messages = output::messages(dropped);
            output::line(format!("{messages} without payload and result now"))?;
        }
    }
    outcome?;
    Ok(interrupt::exit(&token, Exit::Ok))
}

/// Sweeps until nothing is left or a signal has come, and waits for a store that is away.
async fn through_outages(
    janitor: &Janitor,
    sweep: &mut Sweep,
    token: &CancellationToken,
) -> Result<(), SweepError> {
    let mut is_away = false;
    loop {
        let before = sweep.purged();
        // Counted again by each sweep.
        sweep.corrupt = 0;
        let ended = janitor.sweep_into(sweep, token).await;
        if is_away && (ended.is_ok() || sweep.purged() > before) {
            is_away = false;
            tracing::info!(target: "inbox::outage", "store available again");
        }
        match ended {
            Err(SweepError::Store(error)) if error.is_retryable() && !token.is_cancelled() => {
                if !is_away {
                    is_away = true;
                    tracing::warn!(%error, "store unavailable; retrying until it is back");
                }
                tokio::select! {
                    () = token.cancelled() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
            ended => return ended,
        }
    }
}

/// On standard error when standard output is the archive.
fn report(global: &Global, sweep: &Sweep, has_stdout: bool) -> Result<()> {
    let mut report = Vec::new();
    if global.json {
        let figures = json!({ "purged": sweep.purged(), "corrupt_left": sweep.corrupt });
        report.push(figures.to_string());
    } else if !global.quiet {
        report.push(format!("{} purged", output::messages(sweep.purged())));
        if sweep.corrupt > 0 {
            report.push(format!(
                "{} corrupt rows were left: they cannot be archived",
                output::count(sweep.corrupt)
            ));
        }
    }
    for line in report {
        if has_stdout {
            output::note(line);
        } else {
            output::line(line)?;
        }
    }
    Ok(())
}
