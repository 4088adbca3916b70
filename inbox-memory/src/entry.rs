//! One message and its transitions: the state machine of the inbox contract, and nothing else.
//!
//! Times are microseconds by the store's clock. Each transition either happens as a whole or
//! leaves the entry untouched, as its answer says. Whether an entry's turn has come (its ordering
//! key) is for the queue to know.

use std::time::Duration;

use inbox_api::{
    AfterDead, AttemptEnd, Attempts, Bytes, ContentType, Due, Edit, Extended, FencingToken,
    Fingerprint, Headers, History, Intervention, InterventionKind, Key, Kind, Lease, LeaseTerms,
    Leased, Message, OperatorName, OrderingKey, Outcome, PastAttempt, PastIntervention, Settled,
    State, WorkerName, duration_micros, error_text, from_micros,
};

/// Who signs an intervention, if anyone does.
pub(crate) type Signature<'a> = Option<&'a OperatorName>;

/// Where an entry stands, as stored: a lease that has run out is still a lease here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Pending,
    Leased { until: i64 },
    Processed { at: i64, result: Option<Bytes> },
    Dead { at: i64, blocks: bool },
    Discarded { at: i64 },
}

/// A stored message. Its fields are read everywhere and changed only by the methods below.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) seq: i64,
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    pub(crate) content_type: Option<ContentType>,
    pub(crate) headers: Headers,
    pub(crate) ordering_key: Option<OrderingKey>,
    /// `None` once dropped, which happens only to final messages.
    pub(crate) payload: Option<Bytes>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) standing: Standing,
    /// The last one drawn; it outlives its lease, so that a repeated settle is recognised.
    pub(crate) token: FencingToken,
    pub(crate) attempts: Attempts,
    /// Whether the present lease is counted in them: not yet, if others of a run come first.
    is_counted: bool,
    pub(crate) replays: u32,
    pub(crate) accepted_at: i64,
    pub(crate) due_at: i64,
    pub(crate) leased_at: Option<i64>,
    pub(crate) worker: Option<WorkerName>,
    pub(crate) last_error: Option<String>,
    pub(crate) history: History,
}

impl Entry {
    /// A message accepted now.
    pub(crate) fn accept(seq: i64, message: &Message, now: i64) -> Self {
        Self {
            seq,
            key: message.key().clone(),
            kind: message.kind().clone(),
            content_type: message.content_type().cloned(),
            headers: message.headers().clone(),
            ordering_key: message.ordering_key().cloned(),
            payload: Some(message.payload().clone()),
            fingerprint: message.fingerprint(),
            standing: Standing::Pending,
            token: FencingToken::new(0),
            attempts: Attempts::default(),
            is_counted: false,
            replays: 0,
            accepted_at: now,
            due_at: message.due().resolve(now),
            leased_at: None,
            worker: None,
            last_error: None,
            history: History::default(),
        }
    }

    /// The state that the world sees: a lease that has run out is shown as pending.
    pub(crate) fn visible_state(&self, now: i64) -> State {
        match self.standing {
            Standing::Pending => State::Pending,
            Standing::Leased { until } if until <= now => State::Pending,
            Standing::Leased { .. } => State::Leased,
            Standing::Processed { .. } => State::Processed,
            Standing::Dead { .. } => State::Dead,
            Standing::Discarded { .. } => State::Discarded,
        }
    }

    /// The final state and since when, if it is final.
    pub(crate) fn final_state(&self) -> Option<(State, i64)> {
        match self.standing {
            Standing::Pending | Standing::Leased { .. } => None,
            Standing::Processed { at, .. } => Some((State::Processed, at)),
            Standing::Dead { at, .. } => Some((State::Dead, at)),
            Standing::Discarded { at } => Some((State::Discarded, at)),
        }
    }

    /// From when on it may be claimed when its turn comes, if it is not final.
    pub(crate) fn claimable_at(&self) -> Option<i64> {
        match self.standing {
            Standing::Pending => Some(self.due_at),
            Standing::Leased { until } => Some(until),
            _ => None,
        }
    }

    /// Whether it is dead and holds its ordering key up.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self.standing, Standing::Dead { blocks: true, .. })
    }

    /// Whether a worker has its lease, which may have run out.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.standing, Standing::Leased { .. }) && self.worker.is_some()
    }

    pub(crate) fn has_run_out(&self, now: i64) -> bool {
        matches!(self.standing, Standing::Leased { until } if until <= now)
    }

    /// Whether later messages of its ordering key have to wait for it.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.standing, Standing::Pending | Standing::Leased { .. }) || self.blocks()
    }

    /// Whether others of its ordering key may be handed out with it, or it with others, as far as past
    /// attempts go.
    pub(crate) fn may_be_in_run(&self) -> bool {
        self.attempts.crashed(false) == 0
    }

    /// Takes the lease, under a new token, and counts the attempt as started. The caller has
    /// made sure that the entry is claimable.
    pub(crate) fn lease(&mut self, token: FencingToken, terms: &LeaseTerms, now: i64) -> Leased {
        self.is_counted = false;
        self.count_start();
        self.hold(token, terms, now)
    }

    /// Takes the lease behind others of a run. The attempt is counted later.
    pub(crate) fn lease_behind(
        &mut self,
        token: FencingToken,
        terms: &LeaseTerms,
        now: i64,
    ) -> Leased {
        self.is_counted = false;
        let mut leased = self.hold(token, terms, now);
        leased.attempts.started = leased.attempts.started.saturating_add(1);
        leased
    }

    /// Counts the present lease as a started attempt, once.
    pub(crate) fn count_start(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.attempts.started = self.attempts.started.saturating_add(1);
        }
    }

    fn hold(&mut self, token: FencingToken, terms: &LeaseTerms, now: i64) -> Leased {
        let until = now.saturating_add(duration_micros(terms.length()));
        self.standing = Standing::Leased { until };
        self.token = token;
        self.leased_at = Some(now);
        self.worker = Some(terms.worker().clone());
        Leased {
            message: self.message(),
            lease: Lease {
                key: self.key.clone(),
                token,
                locator: self.seq.unsigned_abs(),
                until: from_micros(until),
            },
            attempts: self.attempts,
            replays: self.replays,
            accepted_at: from_micros(self.accepted_at),
        }
    }

    /// Ends the lease of `token`. With the newest token but without a lease it is a repetition:
    /// done already, nothing changes.
    pub(crate) fn settle(
        &mut self,
        token: FencingToken,
        outcome: &Outcome,
        drop_payload: bool,
        now: i64,
    ) -> Settled {
        if token != self.token {
            return Settled::LeaseLost;
        }
        if !matches!(self.standing, Standing::Leased { .. }) {
            return Settled::Done;
        }
        self.count_start();
        self.keep_past_attempt(outcome, now);
        match outcome {
            Outcome::Processed { result } => {
                self.finish_attempt();
                self.standing = Standing::Processed {
                    at: now,
                    result: result.clone(),
                };
                if drop_payload {
                    self.payload = None;
                }
            }
            Outcome::Retry { after, error } => {
                self.finish_attempt();
                self.standing = Standing::Pending;
                self.due_at = now.saturating_add(duration_micros(*after));
                self.last_error = Some(error_text(error).into_owned());
            }
            Outcome::Dead { reason, after } => {
                self.finish_attempt();
                self.standing = Standing::Dead {
                    at: now,
                    blocks: *after == AfterDead::Block && self.ordering_key.is_some(),
                };
                self.last_error = Some(error_text(reason).into_owned());
            }
            Outcome::Release => {
                // The due time stays, and with it the entry's place among the others.
                self.standing = Standing::Pending;
                self.take_start_back();
            }
            Outcome::Defer { after, error } => {
                self.take_start_back();
                self.standing = Standing::Pending;
                self.due_at = now.saturating_add(duration_micros(*after));
                if let Some(error) = error {
                    self.last_error = Some(error_text(error).into_owned());
                }
            }
        }
        Settled::Done
    }

    /// Makes the lease of `token` run for `length` from now, also when it has run out.
    pub(crate) fn extend(&mut self, token: FencingToken, length: Duration, now: i64) -> Extended {
        if token != self.token {
            return Extended::LeaseLost;
        }
        let Standing::Leased { until } = &mut self.standing else {
            return Extended::LeaseLost;
        };
        *until = now.saturating_add(duration_micros(length));
        Extended::Until(from_micros(*until))
    }

    /// Makes a final entry pending again, as if it had just been accepted. The token stays, so
    /// that tokens go on growing.
    pub(crate) fn replay(&mut self, edit: &Edit, by: Signature<'_>, now: i64) -> Intervention {
        if self.final_state().is_none() {
            return Intervention::WrongState(self.visible_state(now));
        }
        let Some(payload) = edit.payload.as_ref().or(self.payload.as_ref()) else {
            return Intervention::PayloadDropped;
        };
        self.payload = Some(payload.clone());
        if let Some(headers) = &edit.headers {
            self.headers = headers.clone();
        }
        self.sign(InterventionKind::of_replay(edit), by, now);
        self.standing = Standing::Pending;
        self.due_at = now;
        self.attempts = Attempts::default();
        self.last_error = None;
        self.replays = self.replays.saturating_add(1);
        Intervention::Done
    }

    /// Makes a pending entry due at another time. `token` replaces that of a lease that has run out.
    pub(crate) fn reschedule(
        &mut self,
        due: Due,
        token: FencingToken,
        by: Signature<'_>,
        now: i64,
    ) -> Intervention {
        let state = self.visible_state(now);
        if state != State::Pending {
            return Intervention::WrongState(state);
        }
        if matches!(self.standing, Standing::Leased { .. }) {
            self.standing = Standing::Pending;
            self.token = token;
        }
        self.due_at = due.resolve(now);
        self.sign(InterventionKind::Rescheduled, by, now);
        Intervention::Done
    }

    /// Takes the lease away from its holder, who learns of it by `token`. It is left to be claimed as one that
    /// has run out, alone.
    pub(crate) fn lose_lease(&mut self, token: FencingToken, now: i64) {
        if let Standing::Leased { until } = &mut self.standing {
            *until = now.min(*until);
            self.worker = None;
            self.token = token;
        }
    }

    /// Drops payload and result. The caller has made sure that the entry is final.
    pub(crate) fn drop_content(&mut self) {
        self.payload = None;
        if let Standing::Processed { result, .. } = &mut self.standing {
            *result = None;
        }
    }

    /// Whether there is something to drop.
    pub(crate) fn has_content(&self) -> bool {
        self.payload.is_some() || self.result().is_some()
    }

    /// Gives a pending or dead entry up. `token` replaces that of a lease that has run out, so
    /// that its holder learns that the message is no longer its own.
    pub(crate) fn discard(
        &mut self,
        token: FencingToken,
        by: Signature<'_>,
        now: i64,
    ) -> Intervention {
        let state = self.visible_state(now);
        if !matches!(state, State::Pending | State::Dead) {
            return Intervention::WrongState(state);
        }
        if matches!(self.standing, Standing::Leased { .. }) {
            self.token = token;
        }
        self.standing = Standing::Discarded { at: now };
        self.sign(InterventionKind::Discarded, by, now);
        Intervention::Done
    }

    /// Adds the present attempt to the history, if it ends with an error. Before it is counted as ended.
    fn keep_past_attempt(&mut self, outcome: &Outcome, now: i64) {
        let (Some((end, error)), Some(leased_at), Some(worker)) =
            (AttemptEnd::of(outcome), self.leased_at, &self.worker)
        else {
            return;
        };
        self.history.add_attempt(PastAttempt {
            attempt: self.attempts.started,
            replays: self.replays,
            worker: worker.clone(),
            leased_at: from_micros(leased_at),
            ended_at: from_micros(now),
            end,
            error: PastAttempt::error_text(error).into_owned(),
        });
    }

    /// Adds to the history who did what.
    fn sign(&mut self, kind: InterventionKind, by: Signature<'_>, now: i64) {
        if let Some(by) = by {
            self.history.add_intervention(PastIntervention {
                kind,
                at: from_micros(now),
                by: by.clone(),
            });
        }
    }

    fn finish_attempt(&mut self) {
        self.attempts.finished = self.attempts.finished.saturating_add(1);
    }

    fn take_start_back(&mut self) {
        self.attempts.started = self.attempts.started.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
