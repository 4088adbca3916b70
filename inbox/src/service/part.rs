//! The parts of a service, all run in the same way.

use std::{error::Error as StdError, fmt, panic::AssertUnwindSafe, time::Duration};

use async_trait::async_trait;
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::health::Board;
use crate::{
    BacklogGate, InlineConsumer, Janitor, Processor, Receiver, RetryPolicy, Sweep, processor,
    receiver::{self, ReceiverError, Source},
    vitals::Vitals,
};

/// After so long a failure has nothing to do with an earlier one.
const STEADY: Duration = Duration::from_secs(60);

pub(super) type Cause = Box<dyn StdError + Send + Sync>;

pub(super) type Task =
    Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), Cause>> + Send>;

pub(super) struct Part {
    pub(super) name: String,
    pub(super) work: Work,
}

pub(super) enum Work {
    Receiver(Box<dyn Intake>),
    Task(Option<Task>),
    Processor(Processor),
    Inline(InlineConsumer, Duration),
    Janitor(Janitor),
}

/// When a part is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    /// What brings messages in.
    Sources,
    /// What works on them.
    Workers,
    /// What cleans up behind all.
    Keepers,
}

impl Turn {
    pub(super) const ALL: [Self; 3] = [Self::Sources, Self::Workers, Self::Keepers];
}

/// What a part has done.
pub(super) enum Done {
    Receiver(receiver::Summary),
    Processor(processor::Summary),
    Janitor(Sweep),
    Task,
    /// It was not done at its limit.
    CutShort,
}

/// A receiver with its source, whatever its type.
#[async_trait]
pub(super) trait Intake: Send {
    async fn run(
        &mut self,
        shutdown: CancellationToken,
    ) -> Result<receiver::Summary, ReceiverError>;

    fn receiver(&self) -> &Receiver;
}

struct Feed<S> {
    receiver: Receiver,
    source: S,
}

#[async_trait]
impl<S: Source> Intake for Feed<S> {
    async fn run(
        &mut self,
        shutdown: CancellationToken,
    ) -> Result<receiver::Summary, ReceiverError> {
        self.receiver.run(&mut self.source, shutdown).await
    }

    fn receiver(&self) -> &Receiver {
        &self.receiver
    }
}

impl Work {
    pub(super) fn receiver(receiver: Receiver, source: impl Source + 'static) -> Self {
        // A clone of it may be another part.
        let receiver = receiver.with_own_vitals();
        Self::Receiver(Box::new(Feed { receiver, source }))
    }

    pub(super) fn turn(&self) -> Turn {
        match self {
            Self::Receiver(_) | Self::Task(_) => Turn::Sources,
            Self::Processor(_) | Self::Inline(..) => Turn::Workers,
            Self::Janitor(_) => Turn::Keepers,
        }
    }

    /// What the part writes while it runs.
    pub(super) fn vitals(&self) -> Vitals {
        match self {
            Self::Receiver(intake) => intake.receiver().vitals(),
            Self::Processor(processor) => processor.vitals(),
            Self::Janitor(janitor) => janitor.vitals(),
            Self::Task(_) | Self::Inline(..) => Vitals::default(),
        }
    }

    pub(super) fn gate(&self) -> Option<BacklogGate> {
        match self {
            Self::Receiver(intake) => intake.receiver().gate(),
            _ => None,
        }
    }

    async fn run(&mut self, vitals: &Vitals, shutdown: CancellationToken) -> Result<Done, Cause> {
        Ok(match self {
            // These watch their loops themselves.
            Self::Receiver(intake) => Done::Receiver(intake.run(shutdown).await?),
            Self::Processor(processor) => Done::Processor(processor.run(shutdown).await?),
            Self::Janitor(janitor) => Done::Janitor(janitor.run(shutdown).await),
            Self::Task(task) => {
                if let Some(task) = task.take() {
                    vitals.watch(task(shutdown)).await?;
                }
                Done::Task
            }
            // Its callers run it.
            Self::Inline(..) => Done::Task,
        })
    }

    fn can_restart(&self) -> bool {
        !matches!(self, Self::Task(_))
    }
}

impl Part {
    /// Runs a part to its end, and again after failures if that is wanted.
    pub(super) async fn run(
        mut self,
        board: Board,
        restart: Option<RetryPolicy>,
        shutdown: CancellationToken,
    ) -> Result<Done, Cause> {
        let vitals = board.vitals().clone();
        let mut failures = 0;
        loop {
            board.runs();
            let began = Instant::now();
            let running = AssertUnwindSafe(self.work.run(&vitals, shutdown.clone()));
            let ended = running.catch_unwind().await;
            let cause = match ended.unwrap_or_else(|panic| Err(panicked(&*panic))) {
                Ok(done) => {
                    board.ended();
                    return Ok(done);
                }
                Err(cause) => cause,
            };
            if began.elapsed() >= STEADY {
                failures = 0;
            }
            failures += 1;
            let restart = restart.as_ref().filter(|policy| {
                let is_wanted = self.work.can_restart() && !shutdown.is_cancelled();
                is_wanted && failures < policy.max_attempts()
            });
            let why = causes(&*cause);
            let Some(policy) = restart else {
                board.failed(why);
                return Err(cause);
            };
            let pause = policy.delay(failures);
            tracing::warn!(
                part = self.name,
                error = why,
                ?pause,
                "part failed; restarting it"
            );
            board.restarts(why);
            tokio::select! {
                () = sleep(pause) => {}
                // It would only be told to end.
                () = shutdown.cancelled() => {
                    board.ended();
                    return Ok(Done::Task);
                }
            }
        }
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Cause {
    processor::panic_text(panic).into()
}

/// An error with its sources, in one line.
pub(super) fn causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
