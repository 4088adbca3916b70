//! What becomes of a message whose handler has failed, or was not run.

use inbox_api::error_text;

use super::{
    InlineConsumer,
    answer::{Cause, ConsumeError, Consumed, HandlerPanic},
};
use crate::{
    AfterDead, Failure, Invalid, Leased, Outcome, Remedy, Result, Settled,
    hooks::Call,
    telemetry::{self, Count, MESSAGE},
};

impl InlineConsumer {
    /// Settles a failed attempt as its error says. When even that fails the lease runs out by itself.
    pub(super) async fn fail<E>(
        &self,
        leased: &Leased,
        error: E,
        failure: Failure,
    ) -> ConsumeError<E> {
        let failure = failure.decided(|failure| {
            let mut rules = self.classify.iter();
            rules.find_map(|decide| decide(failure))
        });
        if failure.is_lease_lost() {
            self.lost(leased);
            return ConsumeError::LeaseLost;
        }
        if failure.is_interrupted() && self.under_way.stop().is_cancelled() {
            return self.hand_back(leased).await;
        }
        let remedy = failure.remedy().unwrap_or(Remedy::Retry);
        let text = failure.error().to_owned();
        match self.settle_failure(leased, remedy, text).await {
            true => ConsumeError::Dead(Cause::Failed(error)),
            false => ConsumeError::Handler(error),
        }
    }

    /// Settles an attempt that has ended in a panic.
    pub(super) async fn panicked<E>(
        &self,
        leased: &Leased,
        panic: HandlerPanic,
    ) -> ConsumeError<E> {
        let error = error_text(&panic.to_string()).into_owned();
        match self.settle_failure(leased, Remedy::Retry, error).await {
            true => ConsumeError::Dead(Cause::Panicked(panic)),
            false => ConsumeError::Panicked(panic),
        }
    }

    /// Answers whether the message is durably dead.
    async fn settle_failure(&self, leased: &Leased, remedy: Remedy, error: String) -> bool {
        let attempt = leased.attempts.started;
        match remedy.outcome(error, attempt, &self.retry, self.after_dead) {
            Outcome::Dead { reason, after } => {
                let given_up = self.give_up(leased, reason, after).await;
                matches!(given_up, Ok(Settled::Done))
            }
            outcome => {
                self.put_off(leased, outcome).await;
                false
            }
        }
    }

    /// Settles a failed attempt as to be made again.
    async fn put_off(&self, leased: &Leased, outcome: Outcome) {
        let key = &leased.lease.key;
        match self.settle(&leased.lease, outcome.clone()).await {
            Ok(Settled::Done) => {}
            other => return self.not_recorded(leased, &other),
        }
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
            Outcome::Processed { .. } | Outcome::Dead { .. } | Outcome::Release => {}
        }
    }

    /// Makes a message dead, and tells of it.
    async fn give_up(&self, leased: &Leased, reason: String, after: AfterDead) -> Result<Settled> {
        let key = &leased.lease.key;
        let outcome = Outcome::Dead {
            reason: reason.clone(),
            after,
        };
        let settled = self.settle(&leased.lease, outcome).await;
        if let Ok(Settled::Done) = settled {
            tracing::warn!(target: MESSAGE, %key, %reason, "attempt failed; giving up");
            telemetry::count(&key.handler, Count::Dead);
            self.tell(|| Call::DeadLettered(Box::new(leased.clone()), reason));
        } else {
            self.not_recorded(leased, &settled);
        }
        settled
    }

    /// Takes note of an outcome that the store does not have; the lease runs out by itself.
    fn not_recorded(&self, leased: &Leased, settled: &Result<Settled>) {
        let key = &leased.lease.key;
        match settled {
            Ok(Settled::Done) => {}
            Ok(Settled::LeaseLost) => self.lost(leased),
            Ok(Settled::Refused(invalid)) => self.refused(leased, invalid),
            Err(error) => tracing::warn!(%key, %error, "failed attempt not recorded"),
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
            Err(error) => tracing::warn!(%key, %error, "message not handed back"),
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
