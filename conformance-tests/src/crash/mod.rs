//! Crash runs: worker processes on one inbox, killed with SIGKILL again and again, and a check of
//! all that they did.
//!
//! [`main`] makes a whole program of it. Several worker processes receive, inline or not, and process on one inbox,
//! in runs too where the store hands those out. An operator replays and discards what is dead, which may block its
//! ordering key, and purges what is old. The orchestrator kills them, one after the other, at every [`Point`] of
//! their work and at random times, starts others in their place, and does every [`Fault`] to the server now and
//! then, if there is one. Every worker writes the start and the answer of each call to a log that survives it. When
//! there were enough kills and operations, the last workers finish what is left, with an operator who discards what
//! blocks others, every message is sent once more, and [`check`] judges the merged [`History`] and the final
//! listing by every [`Rule`]. A broken rule is printed with the history of the messages concerned.
//!
//! A store whose harness offers transactions is run twice: in [`Mode::Plain`], and in
//! [`Mode::Transactional`], where every processed message's effect is written in the transaction
//! that settles it, and must be there exactly once.
//!
//! # Use
//! A third party implements [`Target`] and [`Site`], and makes a test program of its own without
//! Rust's test harness, `tests/crash.rs`:
//!
//! ```toml
//! [[test]]
//! name = "crash"
//! harness = false
//! ```
//!
//! ```no_run
//! use std::{process::ExitCode, sync::Arc};
//!
//! use async_trait::async_trait;
//! use conformance_tests::{BoxError, crash::{self, Opened, Site, Target}};
//! # use inbox_memory::MemoryStore;
//! # struct Directory(String);
//! # impl Directory { fn new() -> Result<Self, BoxError> { Ok(Self(String::new())) } }
//! # async fn connect(_: &str) -> Result<Arc<MemoryStore>, BoxError> {
//! #     Ok(Arc::new(MemoryStore::new()))
//! # }
//!
//! struct MyStore;
//!
//! #[async_trait]
//! impl Target for MyStore {
//!     fn name(&self) -> String {
//!         "my store".into()
//!     }
//!
//!     async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
//!         let directory = Directory::new()?;
//!         inbox_api::Schema::create(&*connect(&directory.0).await?).await?;
//!         Ok(Box::new(directory))
//!     }
//!
//!     async fn open(&self, address: &str) -> Result<Opened, BoxError> {
//!         Ok(Opened {
//!             inbox: connect(address).await?,
//!             transactions: None,
//!         })
//!     }
//! }
//!
//! impl Site for Directory {
//!     fn address(&self) -> String {
//!         self.0.clone()
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     crash::main(&MyStore)
//! }
//! ```
//!
//! The same program is the orchestrator and, started by it with a variable in its environment, a
//! worker. So `main` must be the first thing that it does.
//!
//! # How long
//! As it stands, each mode goes on for 20 kills and 7,000 operations, about ten seconds. The full
//! setting is
//!
//! ```text
//! cargo test --test crash -- --kills 200 --operations 100000
//! ```
//!
//! with further arguments `--faults N`, `--only FAULT` (such as `clock-moved`), `--workers N`, `--batch N`, `--seed N` and
//! `--mode plain|transactional`, each of which can also come from the environment (`INBOX_CRASH_KILLS` and so on).
//! The report names the [`Fault`]s that were left out because the [`Site`] cannot do them. The arguments of
//! Rust's test runner are understood: filters and `--skip` by the name `crash`, `--list`, and the
//! others without effect.
//!
//! A run is checked as a whole, in memory. Longer ones are many runs, one after the other, with a ledger that
//! adds them up, and goes on where it was another time:
//!
//! ```text
//! cargo test --test crash -- --minutes 60 --ledger runs.ndjson --kills 100 --faults 60 --operations 50000
//! ```
//!
//! It prints a table with the sums of all runs in the ledger; a run that breaks a rule ends it.
//!
//! `--batch 200` has calls of up to 200 messages rather than 16, for many more of them in the same time.
//!
//! # Time
//! All times in a history are the host's monotonic clock, so all workers must run on one host.
//! Leases are 300 to 800 milliseconds. The store's clock is expected to run at the right speed, and to jump
//! only when it is told to ([`Fault::ClockMoved`]); the rules know when that was, and how far.

mod check;
mod fault;
mod history;
mod ledger;
mod log;
mod options;
mod orchestrate;
mod point;
pub mod proxy;
mod report;
mod target;
mod traffic;
mod worker;
mod worker_pool;

use std::{
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

pub use check::{Evidence, Findings, Rule, Violation, check};
pub use fault::Fault;
pub use history::{
    Answered, Asked, Call, ClockMove, Ended, Ending, Granted, Held, History, Kept, Received, Sent,
};
pub use options::{Mode, Options};
pub use point::Point;
pub use target::{Opened, Site, Target};

use crate::needs::BoxError;
use ledger::Entry;
use options::{TEST_NAME, Wanted};

/// The whole program: a crash run of `target`, or one of its workers. Reads the program's
/// arguments and environment, prints the report, and answers success if no rule was broken.
pub fn main(target: &dyn Target) -> ExitCode {
    let outcome = match std::env::var(worker::VARIABLE) {
        Ok(assignment) => be_worker(target, &assignment).map(|()| true),
        Err(_) => be_orchestrator(target),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // A worker's standard output belongs to its orchestrator.
            eprintln!("{TEST_NAME}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn be_worker(target: &dyn Target, assignment: &str) -> Result<(), BoxError> {
    // One thread, so that a worker that stops at a point stops as a whole.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(worker::run(target, assignment))
}

fn be_orchestrator(target: &dyn Target) -> Result<bool, BoxError> {
    let wanted = Wanted::read(std::env::args().skip(1), |name| std::env::var(name).ok())?;
    let mut out = std::io::stdout();
    match wanted {
        Wanted::List { terse: true } => writeln!(out, "{TEST_NAME}: test")?,
        Wanted::List { terse: false } => {
            writeln!(out, "{TEST_NAME}: test\n\n1 test, 0 benchmarks")?;
        }
        Wanted::Nothing => {
            writeln!(out, "\nrunning 0 tests\n")?;
            writeln!(out, "{}\n", report::result_line(true, 0, Duration::ZERO))?;
        }
        Wanted::Run(options) => {
            let began = Instant::now();
            writeln!(out, "\nrunning 1 test")?;
            let passed = run_modes(target, &options).unwrap_or_else(|error| {
                eprintln!("the run could not be finished: {error}");
                false
            });
            let word = if passed { "ok" } else { "FAILED" };
            writeln!(out, "test {TEST_NAME} ... {word}\n")?;
            writeln!(out, "{}\n", report::result_line(passed, 1, began.elapsed()))?;
            return Ok(passed);
        }
    }
    Ok(true)
}

/// Runs each mode that is wanted and offered, again and again if so wanted; answers whether no rule was broken.
fn run_modes(target: &dyn Target, options: &Options) -> Result<bool, BoxError> {
    let mut out = std::io::stdout();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let modes = match options.mode {
        Some(mode) => vec![mode],
        None => runtime.block_on(modes_of(target))?,
    };
    let (began, minutes) = (Instant::now(), Duration::from_secs(60 * options.minutes));
    let mut options = options.clone();
    let passed = loop {
        let passed = run_once(target, &options, &modes, &runtime)?;
        if !passed || began.elapsed() >= minutes {
            break passed;
        }
        options.seed = options.seed.wrapping_add(1);
    };
    if let Some(ledger) = &options.ledger {
        write!(out, "\n{}", ledger::table(&ledger::read(ledger)?))?;
    }
    Ok(passed)
}

/// Runs each of these modes once; answers whether no rule was broken.
fn run_once(
    target: &dyn Target,
    options: &Options,
    modes: &[Mode],
    runtime: &tokio::runtime::Runtime,
) -> Result<bool, BoxError> {
    let mut out = std::io::stdout();
    writeln!(
        out,
        "crash run of {}: in each mode {} kills and {} operations by {} workers, seed {}",
        target.name(),
        options.kills,
        options.operations,
        options.workers,
        options.seed
    )?;
    let mut passed = true;
    for mode in modes {
        let directory = tempfile::Builder::new().prefix("inbox-crash-").tempdir()?;
        let run = orchestrate::run(target, options, *mode, directory.path());
        let outcome = runtime.block_on(run);
        let clean = outcome
            .as_ref()
            .is_ok_and(|outcome| outcome.findings.violations.is_empty());
        if let Ok(outcome) = &outcome {
            write!(out, "{}", report::text(outcome))?;
            if let Some(ledger) = &options.ledger {
                Entry::of(outcome, &target.name(), options.seed).append_to(ledger)?;
            }
        }
        if !clean {
            let kept = directory.keep();
            writeln!(out, "the workers' logs are kept in {}", kept.display())?;
        }
        passed &= outcome.map(|_| clean)?;
    }
    Ok(passed)
}

async fn modes_of(target: &dyn Target) -> Result<Vec<Mode>, BoxError> {
    let site = target.fresh().await?;
    let opened = target.open(&site.address()).await?;
    opened.inbox.close().await;
    Ok(match opened.transactions {
        Some(_) => vec![Mode::Plain, Mode::Transactional],
        None => vec![Mode::Plain],
    })
}
