//! What becomes of a message whose handler has failed, or that has none.

use std::{collections::HashSet, sync::Mutex, sync::PoisonError, time::Duration};

use tokio::time::Instant;

use super::{
    Failure, Fallback, Remedy,
    breaker::{Change, Trial},
    driver::Driver,
    failure::Cause,
};
use crate::{
    Kind, Outcome,
    hooks::Call,
    retry::jittered,
    telemetry::{self, MESSAGE},
};

/// For how long a message is left that no handler here is for.
const LEFT_FOR: Duration = Duration::from_secs(30);

/// How many kinds without a handler are named in warnings.
const MOST_NAMED: usize = 100;

/// The kinds without a handler of which was warned.
#[derive(Default)]
pub(super) struct UnknownKinds(Mutex<HashSet<Kind>>);

impl UnknownKinds {
    fn is_new(&self, kind: &Kind) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.len() < MOST_NAMED && known.insert(kind.clone())
    }
}

impl Driver {
    /// Settles as the failure says, which may count for the circuit. Answers whether the lease is lost
    /// instead.
    pub(super) fn failed(
        &mut self,
        index: usize,
        failure: Failure,
        counts: bool,
        now: Instant,
    ) -> bool {
        let config = self.config.clone();
        let Some(slot) = self.table.get_mut(index) else {
            return false;
        };
        let (lane, trial, context) = (slot.lane, slot.trial, slot.context.clone());
        let (message, attempt) = (context.message(), context.attempts().started);
        let (cause, error) = failure.into_parts();
        let remedy = match cause {
            Cause::Decided(remedy) => remedy,
            Cause::Error | Cause::Conflict | Cause::Interrupted => Remedy::Retry,
            Cause::LeaseLost => {
                self.judge(lane, trial, None, "", now);
                return true;
            }
        };
        let went_well = match remedy {
            Remedy::Retry | Remedy::RetryAfter(_) => Some(false),
            Remedy::Dead => Some(true),
            Remedy::Defer(_) | Remedy::Pause(_) => None,
        };
        let went_well = went_well.filter(|_| counts);
        self.judge(lane, trial, went_well, &error, now);
        let policy = config.retry(message);
        let after = match remedy {
            Remedy::Retry | Remedy::RetryAfter(_) if self.is_circuit_open(lane) => {
                let after = self.circuit_pause(lane);
                return self.defer(index, after, error);
            }
            Remedy::Defer(after) => return self.defer(index, after, error),
            Remedy::Pause(length) => {
                self.pause(lane, length, &error, now);
                return self.defer(index, length, error);
            }
            Remedy::Retry => Some(policy.delay(attempt)),
            Remedy::RetryAfter(after) => Some(jittered(after)),
            Remedy::Dead => None,
        };
        let key = message.key();
        let outcome = match after {
            Some(after) if attempt < policy.max_attempts() => {
                tracing::info!(target: MESSAGE, %key, %error, ?after, "attempt failed");
                Outcome::Retry { after, error }
            }
            _ => {
                tracing::warn!(target: MESSAGE, %key, %error, "attempt failed; giving up");
                Outcome::Dead {
                    reason: error,
                    after: config.after_dead(message),
                }
            }
        };
        self.settle(index, outcome);
        false
    }

    fn defer(&mut self, index: usize, after: Duration, error: String) -> bool {
        if let Some(slot) = self.table.get_mut(index) {
            let key = slot.context.message().key();
            tracing::info!(target: MESSAGE, %key, %error, ?after, "attempt deferred");
        }
        let error = Some(error);
        self.settle(index, Outcome::Defer { after, error });
        false
    }

    /// Settles a message that no handler is for.
    pub(super) fn fall_back(&mut self, index: usize, fallback: Fallback) {
        let error = "no handler for messages of this kind";
        let now = Instant::now();
        let failure = match fallback {
            Fallback::Ignore => {
                self.judge_nothing(index, now);
                return self.settle(index, Outcome::Processed { result: None });
            }
            Fallback::Leave => {
                self.warn_of_kind(index);
                Failure::defer(LEFT_FOR, error)
            }
            Fallback::DeadLetter => Failure::dead(error),
            Fallback::Retry => Failure::retry(error),
        };
        self.failed(index, failure, false, now);
    }

    fn warn_of_kind(&mut self, index: usize) {
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        let message = slot.context.message();
        if let Some(served) = self.config.served_for(message)
            && served.unknown_kinds.is_new(message.kind())
        {
            tracing::warn!(
                handler = message.handler().as_str(),
                kind = message.kind().as_str(),
                "no handler for messages of this kind; they are left for a worker that has one"
            );
        }
    }

    /// An attempt has ended that tells the circuit nothing.
    pub(super) fn judge_nothing(&mut self, index: usize, now: Instant) {
        if let Some(slot) = self.table.get_mut(index) {
            let (lane, trial) = (slot.lane, slot.trial);
            self.judge(lane, trial, None, "", now);
        }
    }

    /// Tells the circuit how an attempt has ended.
    pub(super) fn judge(
        &mut self,
        lane: Option<usize>,
        trial: Option<Trial>,
        went_well: Option<bool>,
        error: &str,
        now: Instant,
    ) {
        let Some(index) = lane else { return };
        let Some(lane) = self.lanes.get_mut(index) else {
            return;
        };
        if lane.end(trial, went_well, now) == Change::Opened {
            let length = lane.circuit_pause();
            self.tell_paused(index, length, error);
            self.hand_back_waiting(index);
        }
    }

    fn is_circuit_open(&self, lane: Option<usize>) -> bool {
        let lane = lane.and_then(|lane| self.lanes.get(lane));
        lane.is_some_and(|lane| lane.is_circuit_open())
    }

    fn circuit_pause(&self, lane: Option<usize>) -> Duration {
        let lane = lane.and_then(|lane| self.lanes.get(lane));
        lane.map(|lane| lane.circuit_pause()).unwrap_or_default()
    }

    /// Starts nothing of a router for so long.
    fn pause(&mut self, lane: Option<usize>, length: Duration, error: &str, now: Instant) {
        let Some(index) = lane else { return };
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.pause(length, now);
            self.tell_paused(index, length, error);
            self.hand_back_waiting(index);
        }
    }

    /// Says once that a router is paused.
    fn tell_paused(&mut self, index: usize, length: Duration, error: &str) {
        let (Some(lane), Some(served)) = (self.lanes.get_mut(index), self.config.served.get(index))
        else {
            return;
        };
        if std::mem::replace(&mut lane.is_told_paused, true) {
            return;
        }
        let handler = served.name.clone();
        tracing::warn!(handler = handler.as_str(), ?length, error, "paused");
        telemetry::paused(&handler, true);
        self.tell(|| Call::Paused(handler, error.to_owned(), length));
    }

    /// Says that routers are paused no longer.
    pub(super) fn tell_resumed(&mut self, now: Instant) {
        for index in 0..self.lanes.len() {
            let (Some(lane), Some(served)) =
                (self.lanes.get_mut(index), self.config.served.get(index))
            else {
                continue;
            };
            if !lane.is_told_paused || lane.is_paused(now) {
                continue;
            }
            lane.is_told_paused = false;
            let handler = served.name.clone();
            tracing::info!(handler = handler.as_str(), "goes on after a pause");
            telemetry::paused(&handler, false);
            self.tell(|| Call::Resumed(handler));
        }
    }
}
