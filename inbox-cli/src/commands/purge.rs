//! `inbox purge`: retention by hand, with an archive if wanted.

use std::time::Duration;

use anyhow::Result;
use inbox::{Janitor, State, Sweep, SweepError};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    archive::ArchiveFile,
    args::{Global, PurgeArgs},
    exit::Exit,
    interrupt, output, progress, store,
};

/// The pause before a sweep goes on that the store has failed, a few times already.
const PAUSE: Duration = Duration::from_secs(3);

pub(crate) async fn run(global: &Global, args: PurgeArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let token = interrupt::token()?;
    let mut janitor = Janitor::builder(store).slice(args.slice);
    for state in &args.states {
        janitor = match State::from(*state) {
            State::Processed => janitor.keep_processed(args.older_than),
            State::Dead => janitor.keep_dead(args.older_than),
            _ => janitor.keep_discarded(args.older_than),
        };
    }
    if let Some(file) = &args.archive {
        janitor = janitor.archiver(ArchiveFile::open(file)?);
    }
    let janitor = janitor.build()?;
    let spinner = progress::spinner(global, "purging");
    let mut sweep = Sweep::default();
    let ended = through_outages(&janitor, &mut sweep, &token).await;
    spinner.finish_and_clear();
    // What is deleted is deleted, also if the rest has failed.
    if ended.is_ok() || sweep.purged() > 0 || token.is_cancelled() {
        report(global, &sweep)?;
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
            tracing::info!("store available again");
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

fn report(global: &Global, sweep: &Sweep) -> Result<()> {
    if global.json {
        output::json(&json!({ "purged": sweep.purged(), "corrupt_left": sweep.corrupt }))?;
    } else if !global.quiet {
        output::line(format!("{} purged", output::messages(sweep.purged())))?;
        if sweep.corrupt > 0 {
            output::line(format!(
                "{} corrupt rows were left: they cannot be archived",
                output::count(sweep.corrupt)
            ))?;
        }
    }
    Ok(())
}
