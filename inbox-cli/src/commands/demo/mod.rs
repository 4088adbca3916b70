//! `inbox demo`: an at-least-once broker, worker processes that are killed while they work,
//! handlers that fail, and a count of the effects at the end.

mod broker;
mod effects;
mod herd;
mod worker;

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use inbox::{
    Filter, HandlerName, Operate as _, Page, Schema as _, State, Store as _,
    receiver::{Receiver, Summary},
};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use serde::Serialize;

pub(crate) use self::worker::worker;
use self::{broker::Broker, effects::Effects, herd::Herd};
use crate::{
    args::{DemoArgs, Global},
    exit::Exit,
    interrupt, output, progress,
};

/// What the demo shows at its end.
#[derive(Debug, Serialize)]
struct Outcome {
    messages: u64,
    deliveries: u64,
    accepted: u64,
    duplicates: u64,
    processed: u64,
    dead: u64,
    /// Attempts that ended with an error.
    retries: u64,
    /// Worker processes killed while they worked.
    crashes: u64,
    /// Attempts that ended with their worker.
    crashed_attempts: u64,
    effects: u64,
    doubled_effects: u64,
    missing_effects: u64,
    unfounded_effects: u64,
    exactly_once: bool,
    seed: u64,
}

pub(crate) async fn run(global: &Global, args: DemoArgs) -> Result<Exit> {
    let token = interrupt::token()?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let file = match &args.keep {
        None => folder.path().join("demo.db"),
        Some(file) if file.exists() => bail!("{} exists already", file.display()),
        Some(file) => file.clone(),
    };
    let result = tokio::select! {
        result = play(global, &args, &file, seed) => result?,
        // Dropping the play kills its workers.
        () = token.cancelled() => return Ok(Exit::Interrupted),
    };
    if global.json {
        output::json(&result)?;
    } else {
        print(&result, args.keep.as_deref())?;
    }
    Ok(if result.exactly_once {
        Exit::Ok
    } else {
        Exit::No
    })
}

async fn play(global: &Global, args: &DemoArgs, file: &Path, seed: u64) -> Result<Outcome> {
    let mut random = fastrand::Rng::with_seed(seed);
    let handler = HandlerName::new(worker::HANDLER)?;
    let options = SqliteOptions::new(file).busy_timeout(Duration::from_secs(30));
    let store = Arc::new(SqliteStore::connect(options).await?);
    store.create().await?;
    effects::create(file).await?;

    let mut broker = Broker::new(&handler, &mut random)?;
    let deliveries = broker.remaining() as u64;
    let herd = Herd::start(file.to_owned(), args.workers, args.kills, random.fork())?;
    let bar = progress::bar(global, "messages finished", Broker::messages());
    let receiver = Receiver::builder(Arc::clone(&store) as _)
        .batch_size(20)
        .build();
    let (summary, crashes) = tokio::try_join!(
        async {
            receiver
                .run(&mut broker, tokio_util::sync::CancellationToken::new())
                .await
                .context("the receiver failed")
        },
        herd.run(
            async || finished(&store).await,
            |done| bar.set_position(done)
        ),
    )?;
    bar.finish_and_clear();
    let outcome = outcome(&store, file, &summary, deliveries, crashes, seed).await?;
    store.close().await;
    Ok(outcome)
}

/// How many messages are final, and whether all are.
async fn finished(store: &SqliteStore) -> Result<(u64, bool)> {
    let statistics = store.statistics().await?;
    let finished = statistics.count(State::Processed) + statistics.count(State::Dead);
    Ok((finished, finished == Broker::messages()))
}

async fn outcome(
    store: &SqliteStore,
    file: &Path,
    summary: &Summary,
    deliveries: u64,
    crashes: u64,
    seed: u64,
) -> Result<Outcome> {
    let statistics = store.statistics().await?;
    let (processed, dead) = (
        statistics.count(State::Processed),
        statistics.count(State::Dead),
    );
    let records = store
        .list(&Filter::default(), &Page::first(Page::MAX))
        .await?
        .records;
    let failed: u64 = records
        .iter()
        .map(|r| u64::from(r.attempts.finished) - 1)
        .sum();
    let crashed_attempts = records
        .iter()
        .map(|r| u64::from(r.attempts.crashed(false)))
        .sum();
    let Effects {
        total,
        doubled,
        missing,
        unfounded,
    } = effects::count(file).await?;
    Ok(Outcome {
        messages: Broker::messages(),
        deliveries,
        accepted: summary.accepted,
        duplicates: summary.duplicates,
        processed,
        dead,
        retries: failed,
        crashes,
        crashed_attempts,
        effects: total,
        doubled_effects: doubled,
        missing_effects: missing,
        unfounded_effects: unfounded,
        exactly_once: summary.accepted == Broker::messages()
            && summary.accepted + summary.duplicates == deliveries
            && processed + dead == Broker::messages()
            && total == processed
            && (doubled, missing, unfounded) == (0, 0, 0),
        seed,
    })
}

fn print(outcome: &Outcome, kept: Option<&Path>) -> Result<()> {
    let rows = [
        (
            "deliveries",
            outcome.deliveries,
            "every webhook one to three times, out of order",
        ),
        ("accepted", outcome.accepted, "the first copy of each"),
        ("duplicates refused", outcome.duplicates, ""),
        ("processed", outcome.processed, ""),
        (
            "retries",
            outcome.retries,
            "attempts that failed and were tried again",
        ),
        (
            "crashes survived",
            outcome.crashes,
            "worker processes killed with SIGKILL at work",
        ),
        (
            "attempts they took",
            outcome.crashed_attempts,
            "claimed again when the lease ran out",
        ),
        ("dead", outcome.dead, "of the kind that always fails"),
        (
            "effects",
            outcome.effects,
            "rows that the handler wrote in its transaction",
        ),
        ("messages with two", outcome.doubled_effects, ""),
        ("processed without", outcome.missing_effects, ""),
    ];
    for (label, number, note) in rows {
        output::line(format!("{label:<20}{:>6}  {note}", output::count(number)).trim_end())?;
    }
    output::line("")?;
    let verdict = if outcome.exactly_once {
        "Exactly one effect per processed message."
    } else {
        "NOT exactly one effect per processed message."
    };
    output::line(format!(
        "{verdict} (Same deliveries again: --seed {})",
        outcome.seed
    ))?;
    if let Some(file) = kept {
        output::line(format!(
            "Look around: inbox list --store sqlite://{}",
            file.display()
        ))?;
    }
    Ok(())
}
