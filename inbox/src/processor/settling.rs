//! Storing outcomes, in batches.

use backon::Retryable as _;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio::time::Instant;

use super::{Config, Context, driver::Driver, runs::OfSlot, table::Phase};
use crate::{
    Error, ErrorKind, Invalid, Outcome, Result, Settled, Settlement, Store as _,
    backoff::through_an_outage,
    hooks::Call,
    refusal::plainer,
    telemetry::{Count, OUTAGE, Timer},
};

/// Outcomes on their way to the store. There is at most one per slot, so an outage makes this no
/// longer than the table.
#[derive(Default)]
pub(super) struct Settling {
    pub(super) call: Option<BoxFuture<'static, SettledBatch>>,
    /// With their slots.
    outcomes: Vec<OfSlot>,
    /// When the first of them was added, but for those that wait for handlers to end.
    since: Option<Instant>,
    /// Outcomes whose lease is lost, perhaps to the claim under way: they are settled again when
    /// that is answered.
    unsure: Vec<(usize, Outcome)>,
}

pub(super) struct SettledBatch {
    slots: Vec<usize>,
    settlements: Vec<Settlement>,
    result: Result<Vec<Settled>>,
}

impl Settling {
    /// A handler has ended, for which outcomes may have waited.
    pub(super) fn look_again(&mut self) {
        if !self.outcomes.is_empty() {
            self.since.get_or_insert_with(Instant::now);
        }
    }
}

impl Driver {
    /// Leaves the lease of a slot to run out.
    pub(super) fn abandon(&mut self, index: usize) {
        self.table.remove(index);
        self.summary.abandoned += 1;
    }

    /// Adds the outcome of a slot to the next batch.
    pub(super) fn settle(&mut self, index: usize, outcome: Outcome) {
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        slot.ends_with(&outcome);
        let lease = slot.lease().clone();
        let settlement = Settlement { lease, outcome };
        self.settling.outcomes.push((index, settlement));
        self.settling.since.get_or_insert_with(Instant::now);
    }

    /// When the present batch is to be sent; `None` when there is none or one is under way.
    pub(super) fn settling_time(&self) -> Option<Instant> {
        let since = self
            .settling
            .since
            .filter(|_| self.settling.call.is_none())?;
        let is_full = self.settling.outcomes.len() >= self.config.settle_batch;
        let is_last = self.running == 0 || self.stop.is_some();
        if is_full || is_last {
            return Some(since);
        }
        since.checked_add(self.config.settle_linger)
    }

    pub(super) fn start_settling(&mut self, now: Instant) {
        if self.settling_time().is_none_or(|time| now < time) {
            return;
        }
        let outcomes = std::mem::take(&mut self.settling.outcomes);
        let outcomes = self.not_stranded(outcomes);
        let (mut outcomes, waiting) = self.in_order_of_runs(outcomes);
        let queue = &mut self.settling;
        let count = outcomes.len().min(self.config.settle_batch);
        queue.outcomes = outcomes.split_off(count);
        // What waits is looked at when a handler ends.
        queue.since = (!queue.outcomes.is_empty()).then_some(now);
        queue.outcomes.extend(waiting);
        if !outcomes.is_empty() {
            queue.call = Some(Box::pin(send(self.config.clone(), outcomes)));
        }
    }

    /// Settles again without what the store objects to. When there is nothing left to leave out,
    /// the lease is left to run out.
    fn refused(&mut self, index: usize, settlement: Settlement, invalid: &Invalid) {
        let key = settlement.lease.key;
        if let Some(outcome) = plainer(settlement.outcome) {
            tracing::warn!(%key, reason = %invalid, "result or error text not kept");
            self.settle(index, outcome);
        } else {
            tracing::error!(%key, reason = %invalid, "outcome refused; its lease runs out");
            let Some(slot) = self.table.remove(index) else {
                return;
            };
            self.summary.abandoned += 1;
            self.count(&slot.context, Count::Refused);
            self.tell(|| Call::OutcomeRefused(Box::new(slot.leased()), invalid.to_string()));
        }
    }

    /// An outcome is durable. Where the message was given back by it, claimed by others and then
    /// by this worker, before the answer was here, there is a newer lease, with which nothing is to
    /// be done.
    pub(super) fn stored(&mut self, index: usize, settlement: &Settlement) {
        let newer = self.table.get_mut(index).and_then(|slot| {
            let is_newer = slot.lease().token != settlement.lease.token;
            is_newer.then(|| (slot.leased(), slot.lane, slot.lease_length, slot.expires))
        });
        self.done(index, &settlement.outcome);
        if let Some((leased, lane, lease, expires)) = newer {
            let context = Context::claimed(leased, &self.config);
            let order = self.table.orders(1);
            let slot = self.admit(context, lane, lease, expires, Phase::Ended, order);
            self.settle(slot, Outcome::Release);
        }
    }

    /// An outcome came too late for its lease, or a second time. When this worker itself has
    /// claimed the message meanwhile, the work is done all the same.
    fn settlement_lost(&mut self, index: usize, settlement: Settlement) {
        let is_back = self.table.is_back(index);
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        if slot.lease().token != settlement.lease.token {
            self.settle(index, settlement.outcome);
        } else if is_back {
            self.done(index, &settlement.outcome);
        } else if self.claiming.may_have_taken(&mut slot.waited) {
            self.settling.unsure.push((index, settlement.outcome));
        } else {
            self.lost(index);
        }
    }

    /// Settles again what a claim, now answered or failed, may have taken. The leases that it has not brought are
    /// lost: who waits to be told so by another renewal waits as long as an outage of the store.
    pub(super) fn ask_again(&mut self) {
        if std::mem::take(&mut self.renewal.is_unsure) {
            for index in self.table.waiting_for_claim() {
                self.lost(index);
            }
        }
        for (index, outcome) in std::mem::take(&mut self.settling.unsure) {
            self.settle(index, outcome);
        }
    }

    pub(super) fn settled(&mut self, batch: SettledBatch) {
        let SettledBatch {
            slots,
            settlements,
            result,
        } = batch;
        let answers = match result {
            Ok(answers) if answers.len() == slots.len() => answers,
            other => {
                // Nobody else holds these messages; they are run again when their leases end.
                let runs = slots.iter().filter_map(|slot| self.run_of(*slot));
                let runs: Vec<_> = runs.cloned().collect();
                self.stranded.extend(runs);
                for slot in slots {
                    self.abandon(slot);
                }
                let short = || {
                    let context = "the store did not answer for each message";
                    Error::new(ErrorKind::Other, context).in_operation("settle")
                };
                return self.fail(other.err().unwrap_or_else(short));
            }
        };
        tracing::debug!(count = answers.len(), "settled");
        for ((slot, settlement), answer) in slots.into_iter().zip(settlements).zip(answers) {
            match answer {
                Settled::Done => self.stored(slot, &settlement),
                Settled::LeaseLost => self.settlement_lost(slot, settlement),
                Settled::Refused(invalid) => self.refused(slot, settlement, &invalid),
            }
        }
    }
}

/// Settling is idempotent, so a batch is sent until its answer arrives, however long that takes:
/// the outcomes of handlers that have run must not be lost to an outage.
async fn send(config: Arc<Config>, outcomes: Vec<OfSlot>) -> SettledBatch {
    let (slots, settlements): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
    let timer = Timer::start();
    let mut is_first = true;
    let result = (|| config.store.settle(&settlements))
        .retry(through_an_outage())
        .when(Error::is_retryable)
        .notify(|error, _| {
            if std::mem::take(&mut is_first) {
                tracing::warn!(target: OUTAGE, %error, "cannot settle; trying again until it works");
                config.vitals.trouble("settlements", error.to_string());
            }
        })
        .await;
    if !is_first && result.is_ok() {
        tracing::info!(target: OUTAGE, "settling works again");
        config.vitals.over("settlements");
    }
    timer.settled();
    SettledBatch {
        slots,
        settlements,
        result,
    }
}
