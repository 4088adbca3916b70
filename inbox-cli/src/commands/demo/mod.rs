//! `inbox demo`: an at-least-once broker, worker processes that are killed while they work,
//! handlers that fail, and a count of the effects at the end.

mod broker;
mod stage;
mod worker;
mod worker_pool;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use inbox::{
    Filter, HandlerName, Operate, Page, State, Store as _, StoreKind,
    receiver::{Receiver, Summary},
};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use self::worker::{DemoWorker, worker};
use self::{
    broker::Broker,
    stage::{Effects, OnSqlite, Stage},
    worker_pool::WorkerPool,
};
use crate::{
    args::{Global, wrong_usage},
    exit::Exit,
    interrupt, output, progress, store,
};

pub(crate) const HELP: &str = "\
It plays on SQLite, in a temporary folder; with --store postgres://… in a new schema of that
database, with --store mysql://… in new tables. They are dropped in the end, and the user must be
allowed to create and drop them. It does not play on Redis, which has no transactions, nor on
MongoDB.";

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How many worker processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) workers: u32,
    /// How many of them to kill while they work
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) kills: u32,
    /// Repeat an earlier run's order of deliveries and kills
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Keep the SQLite database here, rather than in a temporary folder
    #[arg(long, value_name = "FILE")]
    pub(crate) keep: Option<PathBuf>,
}

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
    let kind = StoreKind::of(&global.store);
    match kind {
        Some(StoreKind::Redis) => {
            wrong_usage("the demo needs a store with transactions, and Redis has none");
        }
        Some(StoreKind::Mongo) => wrong_usage(
            "the demo has no stage on MongoDB; it plays on SQLite, PostgreSQL, MySQL and MariaDB",
        ),
        _ => store::check(&global.store),
    }
    if matches!(kind, Some(StoreKind::Postgres | StoreKind::MySql)) && args.keep.is_some() {
        wrong_usage("--keep is for a demo on SQLite");
    }
    let result = match kind {
        #[cfg(feature = "postgres")]
        Some(StoreKind::Postgres) => on_postgres(global, &args, seed, &token).await?,
        #[cfg(feature = "mysql")]
        Some(StoreKind::MySql) => on_mysql(global, &args, seed, &token).await?,
        _ => on_sqlite(global, &args, seed, &token).await?,
    };
    let Some(result) = result else {
        return Ok(interrupt::exit(&token, Exit::Interrupted));
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

/// In a temporary folder, or in the file to keep. `None` when interrupted.
async fn on_sqlite(
    global: &Global,
    args: &DemoArgs,
    seed: u64,
    token: &CancellationToken,
) -> Result<Option<Outcome>> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let file = match &args.keep {
        None => folder.path().join("demo.db"),
        Some(file) if file.exists() => bail!("{} exists already", file.display()),
        Some(file) => file.clone(),
    };
    let stage = OnSqlite::open(&file).await?;
    unless_interrupted(token, play(global, args, &stage, seed)).await
}

/// In its own schema, which is dropped. `None` when interrupted.
#[cfg(feature = "postgres")]
async fn on_postgres(
    global: &Global,
    args: &DemoArgs,
    seed: u64,
    token: &CancellationToken,
) -> Result<Option<Outcome>> {
    let url = &global.store;
    let schema = stage::OnPostgres::fresh_schema()?;
    let stage = stage::OnPostgres::open(url, schema.clone())
        .await
        .with_context(|| store::cannot_open(url))?;
    let result = unless_interrupted(token, play(global, args, &stage, seed)).await;
    if let Err(error) = stage.remove().await {
        output::note(format_args!("the schema {schema} is left behind: {error}"));
    }
    result
}

/// In its own tables, which are dropped. `None` when interrupted.
#[cfg(feature = "mysql")]
async fn on_mysql(
    global: &Global,
    args: &DemoArgs,
    seed: u64,
    token: &CancellationToken,
) -> Result<Option<Outcome>> {
    let url = &global.store;
    let inbox = crate::mysql_tables::inbox_name("demo")?;
    let stage = stage::OnMysql::open(url, inbox.clone())
        .await
        .with_context(|| store::cannot_open(url))?;
    let result = unless_interrupted(token, play(global, args, &stage, seed)).await;
    if let Err(error) = stage.remove().await {
        output::note(format_args!(
            "tables named {inbox}_… are left behind: {error}"
        ));
    }
    result
}

/// Dropping the play kills its workers.
async fn unless_interrupted(
    token: &CancellationToken,
    play: impl Future<Output = Result<Outcome>>,
) -> Result<Option<Outcome>> {
    tokio::select! {
        result = play => result.map(Some),
        () = token.cancelled() => Ok(None),
    }
}

async fn play<S: Stage>(global: &Global, args: &DemoArgs, stage: &S, seed: u64) -> Result<Outcome> {
    let mut random = fastrand::Rng::with_seed(seed);
    let handler = HandlerName::new(worker::HANDLER)?;
    stage.set_up().await?;
    let store = stage.store();

    let killed = watch::Sender::new(0);
    let mut broker = Broker::new(&handler, &mut random, args.kills, killed.subscribe())?;
    let deliveries = broker.deliveries();
    let (workers, kills) = (args.workers, args.kills);
    let pool = WorkerPool::start(stage.directions(), workers, kills, killed, random.fork())?;
    let bar = progress::bar(global, "messages finished", Broker::messages());
    let receiver = Receiver::builder(Arc::new(store.clone()))
        .batch_size(20)
        .build();
    let (summary, crashes) = tokio::try_join!(
        async {
            receiver
                .run(&mut broker, CancellationToken::new())
                .await
                .context("the receiver failed")
        },
        pool.run(
            async || finished(store).await,
            |done| bar.set_position(done)
        ),
    )?;
    bar.finish_and_clear();
    let outcome = outcome(stage, &summary, deliveries, crashes, seed).await?;
    store.close().await;
    Ok(outcome)
}

/// How many messages are final, and whether all are.
async fn finished(store: &impl Operate) -> Result<(u64, bool)> {
    let statistics = store.statistics().await?;
    let finished = statistics.count(State::Processed) + statistics.count(State::Dead);
    Ok((finished, finished == Broker::messages()))
}

async fn outcome(
    stage: &impl Stage,
    summary: &Summary,
    deliveries: u64,
    crashes: u64,
    seed: u64,
) -> Result<Outcome> {
    let store = stage.store();
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
    } = stage.count().await?;
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
