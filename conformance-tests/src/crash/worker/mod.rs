//! A worker process: it receives, processes or operates until it is told to finish, or killed.

mod operate;
mod process;
mod receive;

use std::{
    io::{self, BufRead as _, Write as _},
    ops::RangeInclusive,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use inbox_api::{Error, HandlerName, Result as StoreResult, WorkerName};
use serde::{Deserialize, Serialize};

use super::{
    history::{Answered, Asked},
    log::{Log, now},
    options::{BATCH, Mode},
    point::Point,
    target::{Opened, Target},
};
use crate::needs::BoxError;

pub(crate) use operate::RETENTION;

/// Tells a process of the same program that it is a worker, and which.
pub(crate) const VARIABLE: &str = "INBOX_CRASH_WORKER";

/// How long leases are, in milliseconds.
pub(crate) const LEASES: RangeInclusive<u64> = 300..=800;

/// How many loops run in one worker at a time, so that its connections are shared.
const TASKS: u64 = 2;

/// What a worker is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Receiver,
    Processor,
    Operator,
    /// An operator who only frees what is blocked, when there is nothing new any more.
    LastOperator,
}

/// What the orchestrator tells a worker at its start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub(crate) role: Role,
    pub(crate) mode: Mode,
    pub(crate) address: String,
    pub(crate) log: PathBuf,
    pub(crate) seed: u64,
    pub(crate) batch: u32,
    /// The number of the message with which a receiver begins.
    pub(crate) first: u64,
}

/// What the orchestrator tells a worker later, one per line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Go to this point, announce it, and be killed.
    Die(Point),
    /// Send only messages that were sent before: there is enough to do.
    Hold,
    /// Send new messages again.
    Proceed,
    /// Send nothing below this number any more: it may be purged soon.
    Above(u64),
    /// Finish what is begun, and exit.
    Finish,
}

/// One worker's means: its log, and the orders it has.
pub(crate) struct Worker {
    opened: Opened,
    mode: Mode,
    /// Messages of one call, at most.
    batch: u32,
    log: Mutex<Log>,
    death: Mutex<Option<Point>>,
    hold: AtomicBool,
    /// The lowest number to be sent.
    lowest: AtomicU64,
    finish: AtomicBool,
}

/// Runs the worker that `assignment` describes, in JSON.
pub(crate) async fn run(target: &dyn Target, assignment: &str) -> Result<(), BoxError> {
    let assignment: Assignment = serde_json::from_str(assignment)?;
    let worker = Arc::new(Worker {
        opened: target.open(&assignment.address).await?,
        mode: assignment.mode,
        batch: assignment.batch,
        log: Mutex::new(Log::create(&assignment.log)?),
        death: Mutex::new(None),
        hold: AtomicBool::new(false),
        lowest: AtomicU64::new(0),
        finish: AtomicBool::new(false),
    });
    let orders = Arc::clone(&worker);
    std::thread::spawn(move || orders.obey());
    let tasks = (0..TASKS).map(|task| {
        let random = fastrand::Rng::with_seed(assignment.seed.wrapping_add(task));
        let worker = &worker;
        async move {
            match assignment.role {
                Role::Receiver => receive::run(worker, random, assignment.first).await,
                Role::Processor => process::run(worker, random).await,
                Role::Operator => operate::run(worker, random).await,
                Role::LastOperator => operate::unblock(worker, random).await,
            }
        }
    });
    futures_util::future::try_join_all(tasks).await?;
    worker.opened.inbox.close().await;
    Ok(())
}

impl Worker {
    /// Takes orders until there are no more, which means that the orchestrator is gone.
    fn obey(&self) {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(Order::Die(point)) => {
                    *self.death.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
                }
                Ok(Order::Hold) => self.hold.store(true, Ordering::Relaxed),
                Ok(Order::Proceed) => self.hold.store(false, Ordering::Relaxed),
                Ok(Order::Above(number)) => self.lowest.store(number, Ordering::Relaxed),
                Ok(Order::Finish) => self.finish.store(true, Ordering::Relaxed),
                Err(_) => break,
            }
        }
        // Nobody is left to read our log: the orchestrator keeps our input open while it lives.
        std::process::exit(1);
    }

    fn finishing(&self) -> bool {
        self.finish.load(Ordering::Relaxed)
    }

    fn holding(&self) -> bool {
        self.hold.load(Ordering::Relaxed)
    }

    /// How many times larger batches are than usual. What keeps a whole batch waiting is that much rarer for each of
    /// its messages, and an operator has that much more to do.
    fn scale(&self) -> u32 {
        (self.batch / BATCH).max(1)
    }

    fn lowest(&self) -> u64 {
        self.lowest.load(Ordering::Relaxed)
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes `point`; if this is where the worker is to be killed, says so, and unless the kill
    /// is to come in the middle of what follows, stops the whole process and waits for it.
    fn pass(&self, point: Point) -> io::Result<()> {
        let mut death = self.death.lock().unwrap_or_else(PoisonError::into_inner);
        if *death != Some(point) {
            return Ok(());
        }
        *death = None;
        self.log().point(point)?;
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &point)?;
        writeln!(out)?;
        out.flush()?;
        while point.stops() {
            std::thread::sleep(Duration::from_secs(60));
        }
        Ok(())
    }

    /// Makes one call with its start and end in the log, and a kill point during and after it.
    async fn call<T>(
        &self,
        asked: Asked,
        [during, after]: [Point; 2],
        call: impl Future<Output = StoreResult<T>>,
        answered: impl FnOnce(&T) -> Answered,
    ) -> io::Result<StoreResult<T>> {
        let number = self.log().start(asked)?;
        self.pass(during)?;
        let outcome = call.await;
        let at = now()?;
        self.pass(after)?;
        let answer = match &outcome {
            Ok(answer) => answered(answer),
            Err(error) => Answered::failed(error),
        };
        self.log().end(at, number, answer)?;
        Ok(outcome)
    }
}

/// The name of this process as one that holds leases.
fn worker_name() -> Result<WorkerName, inbox_api::Invalid> {
    WorkerName::new(format!("process-{}", std::process::id()))
}

/// After an error: the store is away for a moment, or another writer was in the way.
async fn pause_after(error: &Error) {
    let pause = if error.is_retryable() { 20 } else { 200 };
    tokio::time::sleep(Duration::from_millis(pause)).await;
}

/// The two handlers of all messages of a run.
pub(crate) fn handlers() -> Result<[HandlerName; 2], inbox_api::Invalid> {
    Ok([HandlerName::new("billing")?, HandlerName::new("shipping")?])
}
