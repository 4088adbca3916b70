//! When to claim, how much, and what to do with what was claimed.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBackoff};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{
    Config, Context,
    driver::Driver,
    table::{Phase, Renewed},
};
use crate::{
    ClaimRequest, Claims, HandlerName, Leased, Outcome, Result, Settlement, Store as _,
    backoff::{after, through_an_outage},
    hooks::{Call, Teller},
    telemetry::{self, Count, OUTAGE, Timer},
};

/// How long a few free slots wait for more, so that a busy processor claims in batches.
const PATIENCE: Duration = Duration::from_millis(5);

pub(super) struct Claimed {
    /// From before the call: leases run for their length from here, at the least.
    started: Instant,
    limit: usize,
    /// For whom.
    handlers: Vec<HandlerName>,
    /// Whether nothing was held when the call was made.
    was_empty: bool,
    result: Result<Claims>,
}

/// The state of claiming.
///
/// A *suspect* is a message that has crashed a worker before and is on its last allowed attempt.
/// If it were run together with others and one of those killed the process, the suspect would be
/// dead although it did nothing. So a suspect is run only when no other message of its handler is
/// held, and until then is handed back, which takes its attempt back too. Other handlers go on:
/// one that is slow or often crashes is no reason to hold up the rest.
pub(super) struct Claiming {
    pub(super) call: Option<BoxFuture<'static, Claimed>>,
    /// Handlers with suspects, and a suspect that waits until the rest of its handler is handed
    /// back. Messages of such a handler are claimed only when none is held, one at a time.
    isolated: HashMap<HandlerName, Option<usize>>,
    /// The last claim that began with nothing held has found nothing.
    pub(super) found_nothing: bool,
    /// How many claims were begun: the number of the latest.
    number: u64,
    /// When to claim next, apart from hints.
    next: Instant,
    /// When something is known or likely to be due.
    hint: Option<Instant>,
    /// Since when a few slots have been free although there is work.
    waiting_since: Option<Instant>,
    /// The pause after the next empty claim.
    pause: Duration,
    /// The pauses of the present outage.
    outage: Option<ExponentialBackoff>,
}

impl Claiming {
    pub(super) fn new(config: &Config, now: Instant) -> Self {
        Self {
            call: None,
            isolated: HashMap::new(),
            found_nothing: false,
            number: 0,
            next: now,
            hint: None,
            waiting_since: None,
            pause: config.poll_min,
            outage: None,
        }
    }

    /// Says that something is likely to be due then. Ignored during an outage.
    pub(super) fn hint(&mut self, at: Instant) {
        self.hint = Some(self.hint.map_or(at, |hint| hint.min(at)));
    }

    /// Whether a lost lease may be due to the claim under way, which is waited for then. `waited`
    /// keeps which one it was: a claim that began later has nothing to do with it.
    pub(super) fn may_have_taken(&self, waited: &mut Option<u64>) -> bool {
        self.call.is_some() && *waited.get_or_insert(self.number) == self.number
    }

    fn due(&self) -> Instant {
        match self.hint {
            Some(hint) if self.outage.is_none() => hint.min(self.next),
            _ => self.next,
        }
    }
}

impl Driver {
    /// How many messages to claim when claiming is due.
    fn wanted(&self) -> usize {
        let is_occupied = self.claiming.call.is_some()
            || self.renewal.is_behind
            || self.teller.as_ref().is_some_and(Teller::is_behind);
        let most = self.most_held().saturating_sub(self.table.len());
        let most = most.min(self.config.batch);
        if is_occupied || self.stop.is_some() {
            0
        } else if self.lonely().is_some() {
            usize::from(most > 0 && self.has_room())
        } else if self.claiming.isolated.len() == self.config.handlers.len() {
            0
        } else {
            most
        }
    }

    /// How many messages may be held at present.
    fn most_held(&self) -> usize {
        self.config.concurrency + self.look_ahead.allowed()
    }

    /// How many slots are enough for a claim without waiting for more.
    fn enough(&self) -> usize {
        let half = (self.most_held() / 2).max(1);
        if self.lonely().is_some() {
            1
        } else {
            half.min(self.config.batch)
        }
    }

    /// When the next claim is to be made; `None` when something else has to happen first.
    pub(super) fn claim_time(&self) -> Option<Instant> {
        let wanted = self.wanted();
        if wanted == 0 {
            return None;
        }
        let due = self.claiming.due();
        if wanted >= self.enough() {
            return Some(due);
        }
        if !self.look_ahead.is_empty() {
            return None;
        }
        Some(
            self.claiming
                .waiting_since
                .map_or(due, |since| due.max(since + PATIENCE)),
        )
    }

    pub(super) fn start_claim(&mut self, now: Instant) {
        let limit = self.wanted();
        if limit == 0 || now < self.claiming.due() {
            return;
        }
        if limit < self.enough() {
            if !self.look_ahead.is_empty() {
                // There is enough to do until more can be claimed at a time.
                return;
            }
            let since = *self.claiming.waiting_since.get_or_insert(now);
            if now < since + PATIENCE {
                return;
            }
        }
        self.claiming.waiting_since = None;
        self.claiming.hint = self.claiming.hint.filter(|hint| *hint > now);
        let was_empty = self.table.is_empty();
        let config = self.config.clone();
        let handlers: Vec<_> = match self.lonely() {
            Some(handler) => vec![handler.clone()],
            None => {
                let all = config.handlers.keys();
                let isolated = &self.claiming.isolated;
                all.filter(|handler| !isolated.contains_key(*handler))
                    .cloned()
                    .collect()
            }
        };
        self.claiming.number += 1;
        self.claiming.call = Some(Box::pin(async move {
            let request = ClaimRequest {
                handlers,
                limit: u32::try_from(limit).unwrap_or(u32::MAX),
                terms: config.terms.clone(),
            };
            let started = Instant::now();
            let timer = Timer::start();
            let result = config.store.claim(&request).await;
            timer.claimed();
            Claimed {
                started,
                limit,
                handlers: request.handlers,
                was_empty,
                result,
            }
        }));
    }

    pub(super) fn claimed(&mut self, claimed: Claimed) {
        let Claimed {
            started,
            limit,
            handlers,
            was_empty,
            result,
        } = claimed;
        let now = Instant::now();
        let claims = match result {
            Ok(claims) => claims,
            Err(error) if error.is_retryable() => {
                let outage = self.claiming.outage.get_or_insert_with(|| {
                    tracing::warn!(target: OUTAGE, %error, "cannot claim; trying again until it works");
                    through_an_outage().build()
                });
                self.claiming.next = now + outage.next().unwrap_or(PATIENCE);
                return;
            }
            Err(error) => return self.fail(error),
        };
        if self.claiming.outage.take().is_some() {
            tracing::info!(target: OUTAGE, "claiming works again");
        }
        for row in &claims.corrupt {
            tracing::error!(
                place = row.place,
                reason = row.reason,
                "corrupt row set aside"
            );
            telemetry::corrupt();
            self.tell(|| Call::CorruptRow(row.clone()));
        }
        let count = claims.leased.len();
        tracing::debug!(count, limit, "claimed");
        self.summary.claimed += count as u64;
        self.schedule(now, count + claims.corrupt.len(), limit);
        self.claiming.found_nothing = was_empty
            && count == 0
            && claims.corrupt.is_empty()
            && handlers.len() == self.config.handlers.len();
        let expires = started + self.config.terms.length();
        self.accept(claims.leased, &handlers, expires);
    }

    /// A claim without an answer at the end of a shutdown may have taken messages. What it has is
    /// handed back when the answer comes, if the process lives until then.
    pub(super) fn leave_claim(&mut self) {
        let Some(call) = self.claiming.call.take() else {
            return;
        };
        tracing::warn!("a claim has no answer at the end; what it takes may stay leased");
        self.summary.abandoned += 1;
        let store = self.config.store.clone();
        tokio::spawn(async move {
            let Ok(claims) = call.await.result else {
                return;
            };
            let back = claims.leased.into_iter().map(|leased| Settlement {
                lease: leased.lease,
                outcome: Outcome::Release,
            });
            let back: Vec<_> = back.collect();
            if !back.is_empty()
                && let Err(error) = store.settle(&back).await
            {
                tracing::warn!(%error, "late messages not handed back; their leases run out");
            }
        });
    }

    /// Decides when to claim next after `count` of `limit` messages were found.
    fn schedule(&mut self, now: Instant, count: usize, limit: usize) {
        let config = &self.config;
        if count > 0 {
            self.claiming.pause = config.poll_min;
        }
        if count >= limit {
            self.claiming.next = now;
        } else {
            let pause = self.claiming.pause;
            self.claiming.next = after(now, pause);
            self.claiming.pause = pause.saturating_mul(2).min(config.poll_max);
        }
    }

    /// Takes note of messages that were claimed although this worker holds them: their leases had
    /// run out by the store's clock, which goes on while this worker's stands still, and may be set.
    /// Returns the others, with those whose outcome is stored already and only its answer still to
    /// come.
    fn adopt(&mut self, leased: Vec<Leased>, expires: Instant) -> Vec<Leased> {
        let now = Instant::now();
        self.compare_leases(now);
        let is_trouble = self.renewal.is_behind || self.lost_running > 0;
        // A claim counts the attempt, and only handing the message back takes it back. So what is
        // here in its first attempt is held by nobody, which spares the ordinary message a look.
        let may_be_held = |leased: &&Leased| is_trouble || leased.attempts.started > 1;
        let keys = leased.iter().filter(may_be_held).map(|l| &l.lease.key);
        let held = self.table.holders(keys);
        if held.is_empty() {
            return leased;
        }
        let mut waiting = Vec::new();
        let others = leased.into_iter().filter(|leased| {
            let index = held.get(&leased.lease.key);
            let Some(slot) = index.and_then(|index| self.table.get_mut(*index)) else {
                return true;
            };
            if slot.comes_back_with == Some(leased.attempts) {
                return true;
            }
            tracing::warn!(key = %leased.lease.key, "lease had run out, and was taken again");
            slot.renewed = Some(Box::new(Renewed {
                lease: leased.lease.clone(),
                attempts: leased.attempts,
            }));
            slot.expires = expires;
            slot.is_spared = true;
            slot.waited = None;
            if slot.phase == Phase::Waiting {
                waiting.extend(index);
            }
            self.renewal.look_at(now);
            false
        });
        let others = others.collect();
        for index in waiting {
            self.hand_back_one(index);
        }
        self.renewal.runs_out(expires);
        others
    }

    /// An isolated handler of which nothing is held: its next message may be claimed.
    fn lonely(&self) -> Option<&HandlerName> {
        let mut isolated = self.claiming.isolated.keys();
        isolated.find(|handler| self.table.held_for(handler) == 0)
    }

    /// Runs each suspect that waits once it is alone in its handler.
    pub(super) fn start_held(&mut self) {
        if self.claiming.isolated.is_empty() {
            return;
        }
        let room = self.config.concurrency.saturating_sub(self.running);
        let mut ready = Vec::new();
        for (handler, held) in &mut self.claiming.isolated {
            if held.is_some() && self.table.held_for(handler) == 1 && ready.len() < room {
                ready.extend(held.take());
            }
        }
        for slot in ready {
            self.start(slot);
        }
    }

    /// How many suspects wait.
    pub(super) fn held_suspects(&self) -> usize {
        self.claiming.isolated.values().flatten().count()
    }

    /// Takes all suspects that wait.
    pub(super) fn take_held(&mut self) -> Vec<usize> {
        let held = self.claiming.isolated.values_mut();
        held.filter_map(Option::take).collect()
    }

    /// Takes note that a suspect no longer waits.
    pub(super) fn forget_held(&mut self, index: usize) {
        for held in self.claiming.isolated.values_mut() {
            *held = held.filter(|held| *held != index);
        }
    }

    /// Isolates the handlers of suspects, and gives the others of this claim back their freedom.
    /// Returns those of which a suspect may be run now: nothing of theirs is held.
    fn isolate(&mut self, leased: &[Leased], asked: &[HandlerName]) -> HashSet<HandlerName> {
        let suspects = leased.iter().filter(|leased| self.is_suspect(leased));
        let suspect: HashSet<_> = suspects
            .map(|leased| leased.message.handler().clone())
            .collect();
        if suspect.is_empty() && self.claiming.isolated.is_empty() {
            return suspect;
        }
        let mut is_changed = !suspect.is_empty();
        for handler in asked.iter().filter(|handler| !suspect.contains(*handler)) {
            is_changed |= self.claiming.isolated.remove(handler).is_some();
        }
        for handler in &suspect {
            self.claiming.isolated.entry(handler.clone()).or_default();
        }
        if is_changed {
            self.claiming.hint(Instant::now());
        }
        let mut alone = suspect;
        alone.retain(|handler| self.table.held_for(handler) == 0);
        alone
    }

    fn accept(&mut self, leased: Vec<Leased>, asked: &[HandlerName], expires: Instant) {
        let leased = self.adopt(leased, expires);
        self.look_at_claim(&leased, expires);
        let is_stopping = self.stop.is_some();
        let alone = self.isolate(&leased, asked);
        for leased in leased {
            let is_spent = leased.attempts.started > self.config.retry.max_attempts();
            let is_suspect = self.is_suspect(&leased);
            let is_last = self.is_last_attempt(&leased);
            let context = Context::claimed(leased, &self.config);
            self.count(&context, Count::Claimed);
            let handler = context.message().handler();
            // Whether a suspect is to be run now, and all else of its handler handed back for it.
            let is_alone = !alone.is_empty() && alone.contains(handler) && !is_stopping;
            if is_spent {
                let outcome = spent(&self.config, &context);
                let slot = self.admit(context, expires, Phase::Ended);
                self.settle(slot, outcome);
            } else if is_alone
                && is_suspect
                && self.has_room()
                && self.claiming.isolated.get(handler) == Some(&None)
            {
                let handler = handler.clone();
                let slot = self.admit(context, expires, Phase::Held);
                self.claiming.isolated.insert(handler, Some(slot));
            } else if is_stopping || is_suspect || is_alone {
                let slot = self.admit(context, expires, Phase::Ended);
                self.settle(slot, Outcome::Release);
            } else if self.has_room() && (is_last || self.look_ahead.is_empty()) {
                self.admit(context, expires, Phase::Running);
            } else if !is_last {
                self.admit(context, expires, Phase::Waiting);
            } else {
                let slot = self.admit(context, expires, Phase::Ended);
                self.suspend_look_ahead();
                self.settle(slot, Outcome::Release);
            }
        }
    }

    fn is_suspect(&self, leased: &Leased) -> bool {
        leased.attempts.crashed(true) > 0
            && leased.attempts.started == self.config.retry.max_attempts()
    }
}

/// The end of a message whose attempts were used up before this claim.
fn spent(config: &Config, context: &Context) -> Outcome {
    Outcome::Dead {
        reason: config.retry.used_up(context.attempts()),
        after: config.after_dead,
    }
}
