//! What becomes of a message whose handler has failed, or was not run.

use backon::Retryable as _;
use inbox_api::error_text;

use super::{
    InlineConsumer, Settler,
    answer::{Cause, ConsumeError, Consumed, HandlerPanic},
};
use crate::{
    AfterDead, Begun, Bytes, Effect, Error, Failure, Invalid, Leased, Outcome, Remedy, Result,
    Settled, Store as _,
    backoff::a_few_times,
    hooks::Call,
    telemetry::{self, Count, MESSAGE},
};

/// Where an attempt that failed leaves its message.
enum Left {
    /// It is to be delivered again, or what is stored of it is not known.
    Open,
    /// With another worker.
    Lost,
    /// Durably dead.
    Dead,
    /// Processed: its handler has settled it.
    Processed { result: Option<Bytes> },
}

/// What the store has of a message whose lease was settled as failed. That changes nothing if its handler has settled
/// it before, and is answered the same.
enum Found {
    Processed {
        result: Option<Bytes>,
    },
    Dead,
    /// It is to be delivered again.
    Open,
    /// It was discarded, or that is not known.
    Other,
}

impl Left {
    /// Behind a settlement that the store has not taken.
    fn unsettled(settler: Settler, settled: &Result<Settled>) -> Self {
        match (settler, settled) {
            // Which is why the handler has failed, most likely.
            (Settler::Handler, Ok(Settled::LeaseLost)) => Self::Lost,
            _ => Self::Open,
        }
    }
}

/// How an attempt has failed.
struct Ended {
    settler: Settler,
    /// What its handler was about to settle may be durable nevertheless.
    is_in_doubt: bool,
}

impl Ended {
    /// Whether the store is asked what the message is, before anything is told. A death always is looked up, as it is
    /// final for those who hear of it.
    fn is_to_be_looked_up(&self, is_dead: bool) -> bool {
        self.settler == Settler::Handler && (self.is_in_doubt || is_dead)
    }
}

impl InlineConsumer {
    /// Settles a failed attempt as its error says. When even that fails the lease runs out by itself.
    pub(super) async fn fail<E>(
        &self,
        leased: &Leased,
        settler: Settler,
        error: E,
        failure: Failure,
    ) -> Result<Consumed, ConsumeError<E>> {
        let failure = failure.decided(|failure| {
            let mut rules = self.rules.iter();
            rules.find_map(|rule| rule(failure))
        });
        if failure.is_lease_lost() {
            self.lost(leased);
            return Err(ConsumeError::LeaseLost);
        }
        if failure.is_interrupted() && self.under_way.stop().is_cancelled() {
            return Err(self.hand_back(leased).await);
        }
        let store_error = failure.find::<Error>();
        // A handler settles in this store. What it sends by itself may be for an outbox in another one.
        if let (Settler::Handler, Some(error)) = (settler, store_error)
            && error.operation() != Some("receive")
        {
            self.outage.met(error);
        }
        let ended = Ended {
            settler,
            is_in_doubt: store_error.is_some_and(|error| error.effect() == Effect::Unknown),
        };
        let remedy = failure.remedy().unwrap_or(Remedy::Retry);
        let text = failure.error().to_owned();
        let policy = failure.policy(&self.retry);
        let attempt = leased.attempts.started;
        let outcome = remedy.outcome(text, attempt, &policy, self.after_dead);
        match self.settle_failure(leased, ended, outcome).await {
            Left::Open => Err(ConsumeError::Handler(error)),
            Left::Lost => Err(ConsumeError::LeaseLost),
            Left::Dead => Err(ConsumeError::Dead(Cause::Failed(error))),
            Left::Processed { result } => self.on_duplicate.decide(&leased.message, result),
        }
    }

    /// Settles an attempt that has ended in a panic.
    pub(super) async fn panicked<E>(
        &self,
        leased: &Leased,
        settler: Settler,
        panic: HandlerPanic,
    ) -> Result<Consumed, ConsumeError<E>> {
        let text = error_text(&panic.to_string()).into_owned();
        let ended = Ended {
            settler,
            is_in_doubt: true,
        };
        let attempt = leased.attempts.started;
        let outcome = Remedy::Retry.outcome(text, attempt, &self.retry, self.after_dead);
        let left = self.settle_failure(leased, ended, outcome);
        match left.await {
            Left::Open | Left::Lost => Err(ConsumeError::Panicked(panic)),
            Left::Dead => Err(ConsumeError::Dead(Cause::Panicked(panic))),
            Left::Processed { result } => self.on_duplicate.decide(&leased.message, result),
        }
    }

    async fn settle_failure(&self, leased: &Leased, ended: Ended, outcome: Outcome) -> Left {
        let settled = self.settle(&leased.lease, outcome.clone()).await;
        if !matches!(settled, Ok(Settled::Done)) {
            self.not_recorded(leased, &settled);
            return Left::unsettled(ended.settler, &settled);
        }
        let is_dead = matches!(outcome, Outcome::Dead { .. });
        let found = match ended.is_to_be_looked_up(is_dead) {
            true => self.look(leased).await,
            false if is_dead => Found::Dead,
            false => Found::Open,
        };
        match found {
            Found::Processed { result } => Left::Processed { result },
            Found::Dead if is_dead => {
                self.tell_failure(leased, outcome);
                Left::Dead
            }
            // What is to be delivered again and was settled as dead, an operator has replayed meanwhile.
            Found::Open if !is_dead => {
                self.tell_failure(leased, outcome);
                Left::Open
            }
            Found::Open | Found::Dead | Found::Other => Left::Open,
        }
    }

    /// Tells what a failed attempt is settled as.
    fn tell_failure(&self, leased: &Leased, outcome: Outcome) {
        let key = &leased.lease.key;
        match outcome {
            Outcome::Retry { after, error } => {
                tracing::info!(target: MESSAGE, %key, %error, ?after, "attempt failed");
                telemetry::count(&key.handler, Count::Retried);
                self.tell(|| Call::AttemptFailed(Box::new(leased.clone()), error, after));
            }
            Outcome::Defer { after, error } => {
                tracing::info!(target: MESSAGE, %key, error, ?after, "attempt deferred");
                telemetry::count(&key.handler, Count::Deferred);
            }
            Outcome::Dead { reason, .. } => self.tell_dead(leased, reason),
            Outcome::Processed { .. } | Outcome::Release => {}
        }
    }

    /// Makes a message dead, and tells of it.
    async fn give_up(&self, leased: &Leased, reason: String, after: AfterDead) -> Result<Settled> {
        let outcome = Outcome::Dead {
            reason: reason.clone(),
            after,
        };
        let settled = self.settle(&leased.lease, outcome).await;
        match settled {
            Ok(Settled::Done) => self.tell_dead(leased, reason),
            _ => self.not_recorded(leased, &settled),
        }
        settled
    }

    fn tell_dead(&self, leased: &Leased, reason: String) {
        let key = &leased.lease.key;
        tracing::warn!(target: MESSAGE, %key, %reason, "attempt failed; giving up");
        telemetry::count(&key.handler, Count::Dead);
        self.tell(|| Call::DeadLettered(Box::new(leased.clone()), reason));
    }

    /// Asks what a message is whose lease is settled, as failed here or by its handler before: a settlement that is
    /// repeated is answered like the first one.
    async fn look(&self, leased: &Leased) -> Found {
        let key = &leased.lease.key;
        let begun = (|| self.store.begin(&leased.message, &self.terms))
            .retry(a_few_times())
            .when(|error| error.is_retryable() && error.effect() == Effect::None);
        match begun.await {
            Ok(Begun::Processed { result }) => {
                tracing::info!(target: MESSAGE, %key, "the handler failed behind its settlement");
                Found::Processed { result }
            }
            Ok(Begun::Dead { .. }) => Found::Dead,
            Ok(Begun::Run(again)) => {
                // It is due again. Its next delivery runs it.
                if let Err(error) = self.settle(&again.lease, Outcome::Release).await {
                    self.outage.not_done(key, &error, "message not handed back");
                }
                Found::Open
            }
            Ok(Begun::Busy { .. } | Begun::Blocked) => Found::Open,
            Ok(Begun::Discarded) => Found::Other,
            Err(error) => {
                let what = "whether the handler has settled the message is not known, nor told";
                self.outage.not_done(key, &error, what);
                Found::Other
            }
        }
    }

    /// Takes note of an outcome that the store does not have; the lease runs out by itself.
    fn not_recorded(&self, leased: &Leased, settled: &Result<Settled>) {
        let key = &leased.lease.key;
        match settled {
            Ok(Settled::Done) => {}
            Ok(Settled::LeaseLost) => self.lost(leased),
            Ok(Settled::Refused(invalid)) => self.refused(leased, invalid),
            Err(error) => {
                self.outage
                    .not_done(key, error, "failed attempt not recorded");
            }
        }
    }

    /// Takes note of an outcome that the store will not have; the lease runs out by itself.
    pub(super) fn refused(&self, leased: &Leased, invalid: &Invalid) {
        let key = &leased.lease.key;
        tracing::error!(%key, reason = %invalid, "outcome refused; its lease runs out");
        telemetry::count(&key.handler, Count::Refused);
        self.tell(|| Call::OutcomeRefused(Box::new(leased.clone()), invalid.to_string()));
    }

    pub(super) fn lost(&self, leased: &Leased) {
        tracing::warn!(key = %leased.lease.key, "lease lost");
        telemetry::count(&leased.lease.key.handler, Count::LeaseLost);
        self.tell(|| Call::LeaseLost(Box::new(leased.clone())));
    }

    /// Takes a message's attempt back: it is not to pay for a shutdown.
    pub(super) async fn hand_back<E>(&self, leased: &Leased) -> ConsumeError<E> {
        let key = &leased.lease.key;
        match self.settle(&leased.lease, Outcome::Release).await {
            Ok(_) => {
                tracing::info!(target: MESSAGE, %key, "attempt cut short by the shutdown");
            }
            Err(error) => self.outage.not_done(key, &error, "message not handed back"),
        }
        ConsumeError::Stopped
    }

    /// Makes a message dead without running it.
    pub(super) async fn bury<E>(
        &self,
        leased: &Leased,
        reason: String,
        after: AfterDead,
    ) -> Result<Consumed, ConsumeError<E>> {
        match self.give_up(leased, reason.clone(), after).await {
            Ok(Settled::Done) => Ok(Consumed::Dead { reason }),
            Ok(Settled::LeaseLost) => Err(ConsumeError::LeaseLost),
            Ok(Settled::Refused(invalid)) => {
                Err(ConsumeError::Store(invalid.in_operation("settle")))
            }
            Err(error) => Err(ConsumeError::Store(error)),
        }
    }
}
