//! What becomes of a message whose handler has failed, or that has none.

use std::{collections::HashSet, sync::Mutex, sync::PoisonError, time::Duration};

use tokio::time::Instant;

use super::{
    Config, Context, Failure, Fallback, Remedy, breaker::Change, driver::Driver, lane::Lane,
};
use crate::{
    AfterDead, Kind, Leased, Outcome,
    expiry::expiry_reason,
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

/// What becomes of a message whose handler has failed so.
pub(super) fn outcome(
    config: &Config,
    context: &Context,
    remedy: Remedy,
    failure: &Failure,
) -> Outcome {
    let (message, attempt) = (context.message(), context.attempts().started);
    let of_message = config.retry(message);
    let policy = failure.policy(&of_message);
    let error = failure.error().to_owned();
    remedy.outcome(error, attempt, &policy, config.after_dead(message))
}

/// What becomes of a message that no handler is for, or how its attempt has failed.
pub(super) fn without_handler(fallback: Fallback) -> Result<Outcome, Failure> {
    let error = "no handler for messages of this kind";
    match fallback {
        // No failure of the message's. It may come many times, and what is kept of its real failures is
        // not to give way to that.
        Fallback::Leave => Ok(Outcome::Defer {
            after: LEFT_FOR,
            error: None,
        }),
        Fallback::DeadLetter => Err(Failure::dead(error)),
        Fallback::Retry => Err(Failure::retry(error)),
        Fallback::Ignore => Ok(Outcome::Processed { result: None }),
    }
}

/// What becomes of a message that was leased just now, for `lease`, if it has outlived its time to live.
pub(super) fn expired(leased: &Leased, lease: Duration) -> Option<Outcome> {
    expiry_reason(leased, lease).map(|reason| Outcome::Dead {
        reason,
        // Nobody is to wait for what is worth nothing.
        after: AfterDead::Continue,
    })
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
        let (lane, context) = (slot.lane, slot.context.clone());
        let is_trial = slot.trial.is_some();
        let Some(remedy) = failure.remedy_if_held() else {
            self.judge(index, None, "", now);
            return true;
        };
        let went_well = match remedy {
            Remedy::Retry | Remedy::RetryAfter(_) => Some(false),
            Remedy::Dead => Some(true),
            Remedy::Defer(_) | Remedy::Pause(_) => None,
        };
        let went_well = went_well.filter(|_| counts);
        self.judge(index, went_well, failure.error(), now);
        let is_put_off =
            self.is_circuit_open(lane) && matches!(remedy, Remedy::Retry | Remedy::RetryAfter(_));
        let remedy = match remedy {
            Remedy::Retry if self.is_circuit_open(lane) => Remedy::Defer(self.circuit_pause(lane)),
            Remedy::RetryAfter(after) if self.is_circuit_open(lane) => {
                Remedy::Defer(self.circuit_pause(lane).max(jittered(after)))
            }
            remedy => remedy,
        };
        if let Remedy::Pause(length) = remedy {
            self.pause(lane, length, failure.error(), now);
        }
        let mut outcome = outcome(&config, &context, remedy, &failure);
        let key = context.message().key();
        match &outcome {
            Outcome::Retry { after, error } => {
                tracing::info!(target: MESSAGE, %key, %error, ?after, "attempt failed");
            }
            Outcome::Defer { after, error } => {
                tracing::info!(target: MESSAGE, %key, error, ?after, "attempt deferred");
            }
            Outcome::Dead { reason: error, .. } => {
                tracing::warn!(target: MESSAGE, %key, %error, "attempt failed; giving up");
            }
            Outcome::Processed { .. } | Outcome::Release => {}
        }
        // The circuit says so. There is a trial in each of its pauses, of the same message as a rule, whose
        // own failures are not to give way to that.
        if let Outcome::Defer { error, .. } = &mut outcome
            && is_put_off
            && is_trial
        {
            *error = None;
        }
        self.conclude(index, failure, outcome);
        false
    }

    /// Settles a message that no handler is for.
    pub(super) fn fall_back(&mut self, index: usize, fallback: Fallback) {
        let now = Instant::now();
        if fallback == Fallback::Leave {
            self.warn_of_kind(index);
        }
        match without_handler(fallback) {
            Err(failure) => {
                self.failed(index, failure, false, now);
            }
            Ok(outcome) => {
                self.judge(index, None, "", now);
                self.settle(index, outcome);
            }
        }
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

    /// Tells the circuit how the attempt in a slot has ended: well, badly with this error, or in a way
    /// that says nothing of what the handler depends on.
    pub(super) fn judge(
        &mut self,
        slot: usize,
        went_well: Option<bool>,
        error: &str,
        now: Instant,
    ) {
        let Some(slot) = self.table.get_mut(slot) else {
            return;
        };
        let (Some(index), trial) = (slot.lane, slot.trial) else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(index) else {
            return;
        };
        let change = lane.end(trial, went_well, now);
        if change != Change::None
            && let Some(served) = self.config.served.get(index)
        {
            telemetry::circuit(&served.name, change == Change::Opened);
        }
        if change == Change::Opened {
            let length = lane.circuit_pause();
            self.tell_paused(index, length, error);
            self.hand_back_waiting(index);
        }
    }

    fn is_circuit_open(&self, lane: Option<usize>) -> bool {
        let lane = lane.and_then(|lane| self.lanes.get(lane));
        lane.is_some_and(Lane::is_circuit_open)
    }

    fn circuit_pause(&self, lane: Option<usize>) -> Duration {
        let lane = lane.and_then(|lane| self.lanes.get(lane));
        lane.map(Lane::circuit_pause).unwrap_or_default()
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
        let what = format!("handler {handler} is paused");
        self.config.vitals.trouble(what, error);
        self.tell(|| Call::Paused(handler, error.to_owned(), length));
    }

    /// At the end of a run no router is paused any more.
    pub(super) fn forget_pauses(&self) {
        for (lane, served) in self.lanes.iter().zip(&self.config.served) {
            if lane.is_told_paused {
                telemetry::paused(&served.name, false);
            }
            if lane.is_circuit_open() {
                telemetry::circuit(&served.name, false);
            }
        }
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
            let what = format!("handler {handler} is paused");
            self.config.vitals.over(&what);
            self.tell(|| Call::Resumed(handler));
        }
    }
}
