//! A service's run: all parts at once, and their end in order.

use std::time::Duration;

use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::Instrument as _;

use super::{
    Service, ServiceError, Summary,
    health::{Board, TellsEnd},
    part::{Cause, Done, Turn, Work, causes},
};
use crate::{InlineConsumer, backoff::after};

/// How long sources may take to end before those who work on their messages are told to end too. It
/// has to leave these their own time within the limit.
const SOURCES: Duration = Duration::from_secs(2);

/// How long before the limit work is cut short that would go on, so that its messages are handed back and
/// their attempts do not count: inline consumers take five seconds for that at the most, processors six.
const HAND_BACK: Duration = Duration::from_secs(6);

/// How long the store may take to close.
const CLOSE: Duration = Duration::from_secs(1);

/// A part that has ended.
type Ended = (usize, Result<Done, Cause>);

pub(super) async fn run(
    service: Service,
    shutdown: CancellationToken,
) -> Result<Summary, ServiceError> {
    let Service {
        inbox,
        parts,
        restart,
        shutdown_limit,
        probe_interval,
        health,
    } = service;
    let _end = TellsEnd(health.clone());
    let mut course = Course::default();
    let sources = SOURCES.min(shutdown_limit / 4);
    for (index, mut part) in parts.into_iter().enumerate() {
        let Some(board) = health.board(index) else {
            continue;
        };
        let turn = part.work.turn();
        course.names.push(part.name.clone());
        course.has_tasks |= matches!(part.work, Work::Task(_));
        if let Work::Inline(consumer, limit) = part.work {
            board.runs();
            course.turns.push(None);
            course.inline.push((index, board, consumer, limit));
            continue;
        }
        if let Work::Processor(processor) = &mut part.work {
            processor.limit_drain(without_hand_back(shutdown_limit.saturating_sub(sources)));
        }
        course.turns.push(Some(turn));
        let stop = course.stop(turn).clone();
        let running = part.run(board, restart.clone(), stop);
        let running = async move { (index, running.await) };
        course.running.spawn(running.in_current_span());
    }
    let probe = {
        let (health, inbox) = (health.clone(), inbox.clone());
        let probing = async move { health.probe(&*inbox, probe_interval).await };
        AbortOnDropHandle::new(tokio::spawn(probing.in_current_span()))
    };
    course.until_asked(&shutdown).await;
    probe.abort();
    // So that nothing it was about to write comes behind this.
    let _ = probe.await;
    health.ends("it is shutting down");
    let limit = after(Instant::now(), shutdown_limit);
    let ending = course.end_in_order(sources, limit);
    if timeout_at(limit, ending).await.is_err() {
        course.drop_the_rest().await;
    }
    if timeout(CLOSE, inbox.close()).await.is_err() {
        tracing::warn!("the store has not closed in time");
    }
    let Course { summary, error, .. } = course;
    match error {
        None => Ok(summary),
        Some((part, cause)) => Err(ServiceError {
            part,
            cause,
            summary: Box::new(summary),
        }),
    }
}

/// How long work may go on where so much time is left; half of it where there is too little.
fn without_hand_back(left: Duration) -> Duration {
    left.saturating_sub(HAND_BACK).max(left / 2)
}

#[derive(Default)]
struct Course {
    running: JoinSet<Ended>,
    names: Vec<String>,
    /// Of each part, unless it has ended.
    turns: Vec<Option<Turn>>,
    stops: [CancellationToken; Turn::ALL.len()],
    /// Which have nothing to run, and are drained at the end.
    inline: Vec<(usize, Board, InlineConsumer, Duration)>,
    /// Whether there are tasks, which call the inline consumers then.
    has_tasks: bool,
    summary: Summary,
    /// Of the part that failed first.
    error: Option<(String, Cause)>,
}

impl Course {
    fn stop(&self, turn: Turn) -> &CancellationToken {
        match turn {
            Turn::Sources => &self.stops[0],
            Turn::Workers => &self.stops[1],
            Turn::Keepers => &self.stops[2],
        }
    }

    /// Returns when the rest is to end: on request, after a failure, or when nothing is left, nor may call an inline
    /// consumer.
    async fn until_asked(&mut self, shutdown: &CancellationToken) {
        while self.error.is_none() {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                ended = self.running.join_next() => match ended {
                    Some(ended) => self.ended(ended),
                    None if self.has_outside_callers() => return shutdown.cancelled().await,
                    None => return,
                },
            }
        }
    }

    /// Whether there are inline consumers whose callers the service does not run.
    fn has_outside_callers(&self) -> bool {
        !self.inline.is_empty() && !self.has_tasks
    }

    /// Takes note of the end of a part.
    fn ended(&mut self, ended: Result<Ended, JoinError>) {
        // Panics are caught inside, and nothing is aborted before the end.
        let Ok((index, ended)) = ended else { return };
        if let Some(turn) = self.turns.get_mut(index) {
            *turn = None;
        }
        match ended {
            Ok(Done::CutShort) => {
                let name = self.names.get(index).cloned();
                self.summary.cut_short.extend(name);
            }
            Ok(done) => self.summary.add(done),
            Err(cause) => {
                let part = self.names.get(index).cloned().unwrap_or_default();
                let error = causes(&*cause);
                tracing::error!(part, error, "a part of the service failed");
                self.error.get_or_insert((part, cause));
            }
        }
    }

    /// Waits until no part is left that is told to end by then.
    async fn wait_for(&mut self, turn: Turn) {
        while self.turns.iter().flatten().any(|other| *other <= turn) {
            match self.running.join_next().await {
                Some(ended) => self.ended(ended),
                None => return,
            }
        }
    }

    async fn end_in_order(&mut self, sources: Duration, limit: Instant) {
        tracing::info!("the service shuts down");
        self.stop(Turn::Sources).cancel();
        if timeout(sources, self.wait_for(Turn::Sources))
            .await
            .is_err()
        {
            tracing::warn!("a source has not ended yet; the workers are told to end meanwhile");
        }
        self.stop(Turn::Workers).cancel();
        let left = without_hand_back(limit.duration_since(Instant::now()));
        for (index, board, consumer, limit) in std::mem::take(&mut self.inline) {
            if let Some(turn) = self.turns.get_mut(index) {
                *turn = Some(Turn::Workers);
            }
            let draining = async move {
                let has_ended = consumer.drain(limit.min(left)).await;
                board.ended();
                let done = if has_ended {
                    Done::Task
                } else {
                    Done::CutShort
                };
                (index, Ok(done))
            };
            self.running.spawn(draining.in_current_span());
        }
        self.wait_for(Turn::Workers).await;
        self.stop(Turn::Keepers).cancel();
        self.wait_for(Turn::Keepers).await;
    }

    async fn drop_the_rest(&mut self) {
        for (name, turn) in self.names.iter().zip(&self.turns) {
            if turn.is_some() {
                tracing::warn!(part = name, "not ended in time, and dropped");
                self.summary.cut_short.push(name.clone());
            }
        }
        self.running.shutdown().await;
    }
}
