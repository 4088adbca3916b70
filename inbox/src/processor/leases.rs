//! Renewing leases, in batches.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{Config, Context, driver::Driver, handler::Hold, table::Phase};
use crate::{
    Extended, Lease, Result,
    backoff::{LONGEST_PAUSE, through_an_outage},
    telemetry::OUTAGE,
};

pub(super) struct Renewal {
    pub(super) call: Option<BoxFuture<'static, Extension>>,
    /// When leases, and handlers that were told to stop, are to be looked at next.
    pub(super) next_look: Instant,
    /// Between looks: a sixth of the lease, so that a lease is renewed when between a third and
    /// a half of it has passed, and a failed renewal can be repeated a few times.
    interval: Duration,
    /// The pauses of the present outage.
    outage: Option<ExponentialBackoff>,
    /// No lease runs out before this, by this worker's clock.
    earliest: Instant,
    /// A lease has run out: nothing is claimed before it is renewed, settled or lost.
    pub(super) is_behind: bool,
    /// Leases are to be renewed that the call under way does not renew.
    has_further: bool,
    /// A lease is lost, unless the claim under way has taken it.
    pub(super) is_unsure: bool,
    /// The lengths that were renewed since the last look, one call each. A lease that cannot be renewed
    /// does not keep those of another length from it, nor this loop busy.
    renewed: Vec<Duration>,
}

pub(super) struct Extension {
    started: Instant,
    length: Duration,
    /// Whether there are leases of another length to be renewed.
    has_others: bool,
    /// Whether an exclusive transaction was open here, or was to be, when it began.
    has_waited: bool,
    slots: Vec<usize>,
    leases: Vec<Lease>,
    result: Result<Vec<Extended>>,
}

/// What is left of a lease when it is renewed, at the most.
const RENEWED_AT: f64 = 2.0 / 3.0;

impl Renewal {
    pub(super) fn new(config: &Config, now: Instant) -> Self {
        let interval = (config.shortest_lease() / 6).max(Duration::from_millis(1));
        Self {
            call: None,
            next_look: now + interval,
            interval,
            outage: None,
            earliest: now,
            is_behind: false,
            has_further: false,
            is_unsure: false,
            renewed: Vec::new(),
        }
    }

    pub(super) fn look_at(&mut self, time: Instant) {
        self.next_look = self.next_look.min(time);
    }

    /// Takes note of a new lease. It is renewed in time also when the answer that brought it was late.
    pub(super) fn runs_out(&mut self, at: Instant, length: Duration) {
        self.earliest = self.earliest.min(at);
        self.look_at(at.checked_sub(length.mul_f64(RENEWED_AT)).unwrap_or(at));
    }

    pub(super) fn looked(&mut self, now: Instant) {
        self.next_look = now + self.interval;
    }
}

impl Driver {
    /// Finds out whether a lease has run out. While that is so, a claim might get this worker's
    /// own messages.
    pub(super) fn compare_leases(&mut self, now: Instant) {
        if now >= self.renewal.earliest {
            let held = self.table.iter_mut().filter(|(_, slot)| slot.is_leased());
            let earliest = held.map(|(_, slot)| slot.expires).min();
            // What is claimed later says so itself.
            self.renewal.earliest = earliest.unwrap_or(now + self.config.shortest_lease());
        }
        self.renewal.is_behind = now >= self.renewal.earliest;
    }

    /// Whether a transaction is open here that keeps renewals waiting, and everybody who would claim.
    fn has_exclusive_transaction(&self) -> bool {
        let is_exclusive = |context: &Context| context.is_held_by(Hold::ExclusiveTransaction);
        self.table.contexts().any(is_exclusive)
    }

    /// Whether messages here are in transactions, or wait to be, of which each keeps renewals waiting,
    /// and claims.
    pub(super) fn is_in_turns(&self) -> bool {
        let holds = [Hold::Transaction, Hold::ExclusiveTransaction, Hold::Commit];
        let is_in_turn = |context: &Context| holds.iter().any(|hold| context.is_held_by(*hold));
        self.has_turns && self.table.contexts().any(is_in_turn)
    }

    /// Renews all leases before a claim that may have to wait for a transaction here. It would find
    /// those that have run out by then, and come before the renewals that waited as well.
    pub(super) fn renew_before_claim(&mut self, now: Instant) {
        if self.is_in_turns() {
            self.renewal.renewed.clear();
            self.renew_from(now, 1.0);
        }
    }

    /// Renews the leases of which a third has passed, also those of messages whose outcome is
    /// not stored yet.
    pub(super) fn renew(&mut self, now: Instant) {
        if self.renewal.call.is_none() {
            self.renewal.renewed.clear();
        }
        self.renew_from(now, RENEWED_AT);
    }

    /// Renews those of which no more than this share is left.
    fn renew_from(&mut self, now: Instant, share: f64) {
        // Otherwise this processor came too late, because its thread was blocked.
        let is_tried =
            self.renewal.call.is_some() || self.renewal.outage.is_some() || self.has_failed();
        let is_exclusive = self.has_exclusive_transaction();
        let (mut slots, mut leases) = (Vec::new(), Vec::new());
        // Those of one length at a time.
        let (mut chosen, mut has_others) = (None, false);
        for (index, slot) in self.table.iter_mut() {
            // What waits is handed back sooner than it would be renewed.
            if !slot.is_leased() || slot.phase == Phase::Waiting {
                continue;
            }
            let length = slot.lease_length;
            let left = slot.expires.saturating_duration_since(now);
            slot.is_spared |= is_exclusive && left <= length * 2 / 3;
            if slot.context.is_held_by(Hold::ExclusiveTransaction) {
                // The renewal would wait for the transaction, as every claim does.
                continue;
            }
            // What is written about a failed attempt has its transaction to tell it whether the lease stands.
            let is_concluding = slot.ends_counted.is_some();
            let is_held = slot.context.is_held_by(Hold::Lease) && !slot.is_spared && !is_concluding;
            if left.is_zero() && is_held && !slot.context.is_cancelled() {
                // Perhaps nobody has claimed it yet. If so its outcome still counts.
                let key = slot.context.message().key();
                tracing::warn!(%key, "lease ran out before it could be renewed");
                if is_tried || slot.is_passed_over {
                    slot.context.cut_short();
                } else {
                    slot.context.cancel();
                }
            }
            if left > length.mul_f64(share) {
                continue;
            }
            if self.renewal.call.is_some() {
                slot.is_passed_over = true;
                self.renewal.has_further = true;
                continue;
            }
            if self.renewal.renewed.contains(&length) {
                continue;
            }
            if *chosen.get_or_insert(length) == length {
                slots.push(index);
                leases.push(slot.lease().clone());
            } else {
                has_others = true;
            }
        }
        let Some(length) = chosen else { return };
        self.renewal.renewed.push(length);
        let shortest = self.config.shortest_lease();
        let store = self.config.store.clone();
        self.renewal.call = Some(Box::pin(async move {
            let started = Instant::now();
            let result = store.extend_among(&leases, length, shortest).await;
            Extension {
                started,
                length,
                has_others,
                has_waited: is_exclusive,
                slots,
                leases,
                result,
            }
        }));
    }

    pub(super) fn extended(&mut self, extension: Extension) {
        let Extension {
            started,
            length,
            has_others,
            has_waited,
            slots,
            leases,
            result,
        } = extension;
        let answers = match result {
            Ok(answers) => answers,
            Err(error) if error.is_retryable() => {
                // The transaction that it waited for in vain may have ended just now: the next one tells.
                let is_spared = has_waited || self.has_exclusive_transaction();
                for (index, lease) in slots.iter().zip(&leases) {
                    if let Some(slot) = self.table.holder(*index, lease) {
                        slot.is_spared &= is_spared;
                    }
                }
                let outage = self.renewal.outage.get_or_insert_with(|| {
                    tracing::warn!(target: OUTAGE, %error, "cannot renew leases; trying again until it works");
                    through_an_outage().build()
                });
                let pause = outage.next().unwrap_or(LONGEST_PAUSE);
                return self.renewal.look_at(Instant::now() + pause);
            }
            Err(error) => return self.fail(error),
        };
        if self.renewal.outage.take().is_some() {
            tracing::info!(target: OUTAGE, "renewing leases works again");
        }
        let expires = started + length;
        if std::mem::take(&mut self.renewal.has_further) {
            self.renewal.look_at(Instant::now());
        }
        // The store has counted from later on, since it waited for a transaction of this worker's: what is
        // left by this worker's clock is renewed at once.
        let is_late = self.has_turns && Instant::now() > started + length / 3;
        if is_late {
            self.renewal.look_at(Instant::now());
        }
        for ((index, lease), answer) in slots.into_iter().zip(leases).zip(answers) {
            let Some(slot) = self.table.holder(index, &lease) else {
                continue;
            };
            match (answer, slot.phase) {
                (Extended::Until(_), _) => {
                    slot.expires = expires;
                    slot.is_passed_over = false;
                    slot.is_spared = is_late;
                    slot.waited = None;
                }
                // A settled lease cannot be extended either; its settlement tells which it is.
                (Extended::LeaseLost, Phase::Ended | Phase::Lost) => {}
                // The store may have done both at any time up to now.
                (Extended::LeaseLost, Phase::Running | Phase::Held)
                    if self.claiming.may_have_taken(&mut slot.waited) =>
                {
                    self.renewal.is_unsure = true;
                }
                (Extended::LeaseLost, Phase::Running | Phase::Held) => self.lost(index),
                // It is not renewed.
                (Extended::LeaseLost, Phase::Waiting) => {}
            }
        }
        if has_others {
            self.renew_from(Instant::now(), RENEWED_AT);
        }
    }
}
