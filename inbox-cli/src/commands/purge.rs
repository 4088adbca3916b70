//! `inbox purge`: retention by hand, with an archive if wanted.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Args;
use inbox::{Janitor, State, Sweep, SweepError};
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
    // Before signals are caught, since a named pipe may have no reader for long.
    let archive = match &args.archive {
        None => None,
        Some(file) => Some(ArchiveFile::open(file).await?),
    };
    let has_stdout = archive.as_ref().is_some_and(|archive| archive.is_stdout);
    let token = interrupt::token()?;
    let mut janitor = Janitor::builder(store).slice(args.slice);
    for state in &args.states {
        janitor = match State::from(*state) {
            State::Processed => janitor.keep_processed(args.older_than),
            State::Dead => janitor.keep_dead(args.older_than),
            _ => janitor.keep_discarded(args.older_than),
        };
    }
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
