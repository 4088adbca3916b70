//! When to claim, for which routers and how much, and what to do with what was claimed.
//!
//! One claim is under way at a time. It is for the router that has waited longest for one, and for
//! those that have as much room: a claim takes up to a number of messages of all its handlers together,
//! so that it never takes more of one than it has room for. Thus routers take turns, and one whose
//! handlers are slow waits for its own slots only, while an idle processor asks for all in one go.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBackoff};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{
    Context, Failure,
    driver::{CANCEL_GRACE, Driver},
    lane::{Isolation, Lane},
    outcomes::expired,
    table::{Phase, Renewed},
};
use crate::{
    ClaimRequest, Claims, Leased, OrderingKey, Outcome, Result, Settlement, Store as _,
    backoff::through_an_outage,
    hooks::{Call, Teller},
    telemetry::{self, Count, OUTAGE, Timer},
};

/// How long a few free slots wait for more, so that a busy processor claims in batches.
const PATIENCE: Duration = Duration::from_millis(5);

pub(super) struct Claimed {
    /// From before the call: leases run for their length from here, at the least.
    started: Instant,
    limit: usize,
    /// For which routers.
    lanes: Vec<usize>,
    lease: Duration,
    /// Whether nothing was held when the call was made.
    was_empty: bool,
    result: Result<Claims>,
}

/// Something of the messages claimed so far of each ordering key of a router.
type OfKeys<T> = HashMap<(Option<usize>, OrderingKey), T>;

/// What was claimed so far of an ordering key.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// All of it runs.
    is_whole: bool,
    /// How many messages do.
    length: u32,
    /// Some do not that were claimed behind others.
    is_cut: bool,
}

/// The state of claiming.
pub(super) struct Claiming {
    pub(super) call: Option<BoxFuture<'static, Claimed>>,
    /// The last claims of all routers began with nothing held and have found nothing.
    pub(super) found_nothing: bool,
    /// How many claims were begun: the number of the latest.
    number: u64,
    /// The pauses of the present outage, and the end of this one.
    outage: Option<(ExponentialBackoff, Instant)>,
}

impl Claiming {
    pub(super) fn new() -> Self {
        Self {
            call: None,
            found_nothing: false,
            number: 0,
            outage: None,
        }
    }

    /// Whether a lost lease may be due to the claim under way, which is waited for then. `waited`
    /// keeps which one it was: a claim that began later has nothing to do with it.
    pub(super) fn may_have_taken(&self, waited: &mut Option<u64>) -> bool {
        self.call.is_some() && *waited.get_or_insert(self.number) == self.number
    }
}

impl Driver {
    /// Whether nothing may be claimed at present, for any router.
    fn is_occupied(&self) -> bool {
        self.claiming.call.is_some()
            || self.stop.is_some()
            || self.renewal.is_behind
            || (self.renewal.call.is_some() && self.is_in_turns())
            || self.teller.as_ref().is_some_and(Teller::is_behind)
    }

    /// How many messages to claim for a router when claiming is due, but for limits in time.
    fn room(&self, index: usize, lane: &Lane) -> usize {
        let held = self.table.held_for(index);
        let most = lane.most_held().saturating_sub(held);
        let most = most.min(lane.most_claimed(self.config.batch));
        match lane.isolation {
            Isolation::None => most,
            _ => usize::from(held == 0 && most > 0 && lane.has_room()),
        }
    }

    /// The same with limits in time.
    fn wanted(&self, index: usize, lane: &Lane, now: Instant) -> usize {
        let room = self.room(index, lane);
        if room == 0 {
            return 0;
        }
        let permits = lane.permits(now).saturating_sub(lane.look_ahead.len());
        room.min(permits)
    }

    /// Whether so few slots are free that a claim waits for more. Limits in time are no reason to wait.
    fn is_little(&self, index: usize, lane: &Lane) -> bool {
        let half = (lane.most_held() / 2).max(1);
        let half = half.min(lane.most_claimed(self.config.batch));
        lane.isolation == Isolation::None && self.room(index, lane) < half
    }

    /// When the next claim is due for a router, an outage considered.
    fn due(&self, lane: &Lane) -> Instant {
        match &self.claiming.outage {
            Some((_, until)) => lane.gathers_until.max(*until),
            None => lane.due(),
        }
    }

    /// When the next claim is to be made; `None` when something else has to happen first.
    pub(super) fn claim_time(&self, now: Instant) -> Option<Instant> {
        if self.is_occupied() {
            return None;
        }
        let lanes = self.lanes.iter().enumerate();
        lanes
            .filter_map(|(index, lane)| self.claim_time_for(index, lane, now))
            .min()
    }

    fn claim_time_for(&self, index: usize, lane: &Lane, now: Instant) -> Option<Instant> {
        let wanted = self.wanted(index, lane, now);
        if wanted == 0 {
            let room = self.room(index, lane);
            let shut_until = lane.shut_until(now).filter(|_| room > 0);
            return shut_until.map(|until| until.max(self.due(lane)));
        }
        let due = self.due(lane);
        if !self.is_little(index, lane) {
            return Some(due);
        }
        if !lane.look_ahead.is_empty() {
            // There is enough to do until more can be claimed at a time.
            return None;
        }
        let since = lane.waiting_since;
        Some(since.map_or(due, |since| due.max(since + PATIENCE)))
    }

    /// The router that has waited longest of those for which a claim is due, one that was not served first,
    /// and how much it wants.
    fn next_lane(&mut self, now: Instant) -> Option<(usize, usize)> {
        let mut next: Option<((bool, u64), usize, usize)> = None;
        for index in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get(index) else {
                continue;
            };
            let wanted = self.wanted(index, lane, now);
            if wanted == 0 || now < self.due(lane) {
                continue;
            }
            let turn = (!lane.is_unserved, lane.last_claim);
            if self.is_little(index, lane) {
                if !lane.look_ahead.is_empty() {
                    continue;
                }
                let since = self
                    .lanes
                    .get_mut(index)
                    .map(|lane| *lane.waiting_since.get_or_insert(now));
                if since.is_some_and(|since| now < since + PATIENCE) {
                    continue;
                }
            }
            if next.is_none_or(|(earliest, ..)| turn < earliest) {
                next = Some((turn, index, wanted));
            }
        }
        next.map(|(_, index, wanted)| (index, wanted))
    }

    /// Those that a claim for this router serves as well, and how much it may take then.
    fn group(&self, leader: usize, wanted: usize, now: Instant) -> (Vec<usize>, usize) {
        let (mut group, mut limit) = (vec![leader], wanted);
        let Some(first) = self.lanes.get(leader) else {
            return (group, limit);
        };
        if first.isolation != Isolation::None {
            return (group, limit);
        }
        let lease_of = |index: usize| {
            let served = self.config.served.get(index);
            served.map(|served| served.terms.length())
        };
        let run_of = |index: usize| self.lanes.get(index).map(|lane| lane.run_length.limit());
        let (lease, run) = (lease_of(leader), run_of(leader));
        // A look for work takes in all that have nothing, however little room they have.
        let is_look = |index: usize, lane: &Lane| lane.is_idle() && self.table.held_for(index) == 0;
        let is_first_looking = is_look(leader, first);
        for (index, lane) in self.lanes.iter().enumerate() {
            if index == leader
                || (first.is_unserved && !lane.is_unserved)
                || lane.isolation != Isolation::None
                || now < lane.gathers_until
                || lease_of(index) != lease
                || run_of(index) != run
            {
                continue;
            }
            let room = self.wanted(index, lane, now);
            let is_as_much = room > wanted / 2 && room / 2 < wanted;
            if room > 0 && (is_as_much || (is_first_looking && is_look(index, lane))) {
                group.push(index);
                limit = limit.min(room);
            }
        }
        (group, limit)
    }

    pub(super) fn start_claim(&mut self, now: Instant) {
        if self.is_occupied() {
            return;
        }
        let Some((leader, wanted)) = self.next_lane(now) else {
            return;
        };
        self.renew_before_claim(now);
        let (lanes, limit) = self.group(leader, wanted, now);
        self.claiming.number += 1;
        for index in &lanes {
            if let Some(lane) = self.lanes.get_mut(*index) {
                lane.claim(self.claiming.number, now);
            }
        }
        let was_empty = self.table.is_empty();
        let leading = self.lanes.get(leader);
        let run_limit = leading.map_or(1, |lane| lane.run_length.limit());
        let config = self.config.clone();
        self.claiming.call = Some(Box::pin(async move {
            let served = || lanes.iter().filter_map(|index| config.served.get(*index));
            let terms = served()
                .next()
                .map_or(&config.terms, |served| &served.terms);
            let request = ClaimRequest {
                handlers: served().map(|served| served.name.clone()).collect(),
                limit: u32::try_from(limit).unwrap_or(u32::MAX),
                run_limit,
                terms: terms.clone(),
            };
            let started = Instant::now();
            let timer = Timer::start();
            let result = config.store.claim(&request).await;
            timer.claimed();
            Claimed {
                started,
                limit,
                lease: request.terms.length(),
                lanes,
                was_empty,
                result,
            }
        }));
    }

    pub(super) fn claimed(&mut self, claimed: Claimed) {
        let Claimed {
            started,
            limit,
            lanes,
            lease,
            was_empty,
            result,
        } = claimed;
        let now = Instant::now();
        let claims = match result {
            Ok(claims) => claims,
            Err(error) if error.is_retryable() => {
                let (mut pauses, _) = self.claiming.outage.take().unwrap_or_else(|| {
                    tracing::warn!(target: OUTAGE, %error, "cannot claim; trying again until it works");
                    self.config.vitals.trouble("claims", error.to_string());
                    (through_an_outage().build(), now)
                });
                let pause = pauses.next().unwrap_or(PATIENCE);
                self.claiming.outage = Some((pauses, now + pause));
                for (index, lane) in self.lanes.iter_mut().enumerate() {
                    lane.found_nothing = false;
                    if lanes.contains(&index) {
                        lane.hint(now);
                    }
                }
                return;
            }
            Err(error) => return self.fail(error),
        };
        self.config.vitals.success();
        for index in &lanes {
            if let Some(served) = self.config.served.get(*index) {
                served.metrics.asked();
            }
        }
        if self.claiming.outage.take().is_some() {
            tracing::info!(target: OUTAGE, "claiming works again");
            self.config.vitals.over("claims");
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
        let found = count + claims.corrupt.len();
        self.schedule(&lanes, &claims, found >= limit, now);
        self.take_note_of_nothing(&lanes, was_empty && found == 0);
        self.accept(claims.leased, &lanes, lease, started + lease);
    }

    fn schedule(&mut self, lanes: &[usize], claims: &Claims, was_full: bool, now: Instant) {
        let mut found = vec![claims.corrupt.len(); self.lanes.len()];
        for leased in &claims.leased {
            if let Some(count) = self.config.place(leased.message.handler()) {
                found[count] += 1;
            }
        }
        for index in lanes {
            if let Some(lane) = self.lanes.get_mut(*index) {
                lane.schedule(found[*index], was_full, now);
            }
        }
    }

    /// Finds out whether there is nothing for any router.
    fn take_note_of_nothing(&mut self, lanes: &[usize], is_nothing: bool) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            lane.found_nothing = is_nothing && (lane.found_nothing || lanes.contains(&index));
        }
        self.claiming.found_nothing = self.lanes.iter().all(|lane| lane.found_nothing);
        if self.claiming.found_nothing {
            for lane in &mut self.lanes {
                lane.found_nothing = false;
            }
        }
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
            // As in a run, the last one first.
            let back = claims.leased.into_iter().rev().map(|leased| Settlement {
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

    /// Takes note of messages that were claimed although this worker holds them: their leases had
    /// run out by the store's clock, which goes on while this worker's stands still, and may be set.
    /// Returns the others, with their places in the order of what was claimed, and with those whose outcome is
    /// stored already and only its answer still to come. In `runs_of` it notes the ordering keys of what is held:
    /// what else was claimed of these has to wait.
    fn adopt(
        &mut self,
        leased: Vec<Leased>,
        lease: Duration,
        expires: Instant,
        runs_of: &mut OfKeys<Run>,
    ) -> Vec<(u64, Leased)> {
        let now = Instant::now();
        let first = self.table.orders(leased.len());
        self.compare_leases(now);
        let held = self
            .table
            .holders(leased.iter().map(|leased| &leased.lease.key));
        let leased = (first..).zip(leased);
        if held.is_empty() {
            return leased.collect();
        }
        let (mut waiting, mut others) = (Vec::new(), Vec::new());
        let mut taken_again = Vec::new();
        // Whether a message of an ordering key, of those claimed so far, is to be run.
        let mut seen = OfKeys::<bool>::new();
        for (order, leased) in leased {
            let lane = self.config.place(leased.message.handler());
            let ordering_key = leased.message.ordering_key().cloned();
            let ordering_key = ordering_key.map(|key| (lane, key));
            let before = ordering_key.as_ref().and_then(|key| seen.get(key)).copied();
            let mut see = |is_to_run: bool| {
                if let Some(key) = &ordering_key {
                    *seen.entry(key.clone()).or_default() |= is_to_run;
                }
            };
            let index = held.get(&leased.lease.key).copied();
            let slot = index.and_then(|index| Some((index, self.table.get_mut(index)?)));
            let Some((index, slot)) = slot else {
                see(true);
                others.push((order, leased));
                continue;
            };
            // It is to be run: its outcome is stored, or it is another message, whose key was purged after others
            // had settled this one, or a replay, or what is before it is to be run first.
            let is_to_run = slot.is_back_with(&leased)
                || slot.context.leased().accepted_at != leased.accepted_at
                || before == Some(true);
            see(is_to_run);
            if is_to_run {
                match self.replace(index, leased, lease, expires, order) {
                    Some(leased) => others.push((order, leased)),
                    None => runs_of.extend(ordering_key.map(|key| (key, Run::default()))),
                }
                continue;
            }
            tracing::warn!(key = %leased.lease.key, "lease had run out, and was taken again");
            slot.renewed = Some(Box::new(Renewed {
                lease: leased.lease,
                attempts: leased.attempts,
            }));
            slot.expires = expires;
            slot.is_spared = true;
            slot.waited = None;
            if slot.phase == Phase::Waiting {
                waiting.push(index);
            }
            taken_again.push(index);
            runs_of.extend(ordering_key.map(|key| (key, Run::default())));
            self.renewal.look_at(now);
        }
        let claimed: HashSet<usize> = held.into_values().collect();
        self.lose_behind(&taken_again, &claimed);
        for index in waiting {
            self.hand_back_one(index);
        }
        self.renewal.runs_out(expires, lease);
        others
    }

    /// Gives up what is held of a message, unless its outcome is on its way, because its key stands for another one
    /// now, and answers that one, to be run. If a handler of the old one still runs, it is told to stop, and the new
    /// one is deferred until that is over.
    fn replace(
        &mut self,
        index: usize,
        leased: Leased,
        lease: Duration,
        expires: Instant,
        order: u64,
    ) -> Option<Leased> {
        let slot = self.table.get_mut(index)?;
        let (lane, phase) = (slot.lane, slot.phase);
        if slot.runs() {
            slot.renewed = None;
        }
        if !matches!(phase, Phase::Ended | Phase::Lost) {
            self.forget_waiting(index);
            self.lost(index);
        }
        if !self.table.runs(&leased.lease.key) {
            return Some(leased);
        }
        let context = Context::claimed(leased, &self.config);
        self.count(&context, Count::Claimed);
        let slot = self.admit(context, lane, lease, expires, Phase::Ended, order);
        let outcome = Outcome::Defer {
            after: CANCEL_GRACE.max(lease / 6),
            error: None,
        };
        self.settle(slot, outcome);
        None
    }

    /// Runs each suspect that waits once it is alone in its handler.
    pub(super) fn start_held(&mut self, now: Instant) {
        for index in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get_mut(index) else {
                continue;
            };
            if let Isolation::Holding(slot) = lane.isolation
                && self.table.held_for(index) == 1
                && lane.running < lane.concurrency
                && lane.may_start(now)
            {
                lane.isolation = Isolation::Alone;
                self.start(slot);
            }
        }
    }

    /// Takes the suspect of a router that waits.
    pub(super) fn take_held(&mut self, index: usize) -> Option<usize> {
        let lane = self.lanes.get_mut(index)?;
        let Isolation::Holding(slot) = lane.isolation else {
            return None;
        };
        lane.isolation = Isolation::Alone;
        Some(slot)
    }

    /// Takes note that a suspect no longer waits.
    pub(super) fn forget_held(&mut self, slot: usize) {
        for lane in &mut self.lanes {
            if lane.isolation == Isolation::Holding(slot) {
                lane.isolation = Isolation::Alone;
            }
        }
    }

    /// Isolates the handlers of suspects, and gives the others of this claim back their freedom. Returns
    /// those that have a suspect, each with whether one may be run now: nothing of theirs is held.
    fn isolate(&mut self, leased: &[Leased], asked: &[usize]) -> HashMap<usize, bool> {
        let suspects = leased.iter().filter(|leased| self.is_suspect(leased));
        let suspect: Vec<_> = suspects
            .filter_map(|leased| self.config.place(leased.message.handler()))
            .collect();
        let now = Instant::now();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if suspect.contains(&index) {
                if lane.isolation == Isolation::None {
                    lane.isolation = Isolation::Alone;
                }
                lane.hint(now);
            } else if asked.contains(&index) && lane.isolation != Isolation::None {
                lane.isolation = Isolation::None;
                lane.hint(now);
            }
        }
        let may_run = |index: usize| (index, self.table.held_for(index) == 0);
        suspect.into_iter().map(may_run).collect()
    }

    fn accept(&mut self, leased: Vec<Leased>, asked: &[usize], lease: Duration, expires: Instant) {
        let mut runs = OfKeys::new();
        let adopted = self.adopt(leased, lease, expires, &mut runs);
        let (orders, leased): (Vec<_>, Vec<_>) = adopted.into_iter().unzip();
        self.look_at_claim(&leased, asked, expires);
        let isolated = self.isolate(&leased, asked);
        for (order, leased) in orders.into_iter().zip(leased) {
            let index = self.config.place(leased.message.handler());
            let key = leased.message.ordering_key();
            let key = key.map(|key| (index, key.clone()));
            let before = key.as_ref().and_then(|key| runs.get(key)).copied();
            let end = self.end_without_run(&leased, lease);
            let is_in_order = before.is_none_or(|run: Run| {
                run.is_whole && end.is_none() && self.may_follow(&leased.message, index)
            });
            // What was claimed with it comes first, also if it is not to be run.
            let end = end.filter(|_| is_in_order);
            let is_spent = end.is_some();
            let is_suspect = self.is_suspect(&leased);
            let may_run_alone = index.and_then(|index| isolated.get(&index).copied());
            let is_last = self.is_last_attempt(&leased);
            let may_join = self.may_join_batch(&leased, index);
            let context = Context::claimed(leased, &self.config);
            self.count(&context, Count::Claimed);
            let now = Instant::now();
            // Only a store that answers for handlers it was not asked for leads past this.
            let lane = index.and_then(|index| Some((index, self.lanes.get(index)?)));
            let lane = lane.filter(|_| self.stop.is_none());
            let fallback = self.config.fallback(context.message());
            let fallback = fallback.filter(|_| is_in_order && lane.is_some() && !is_spent);
            let mut has_no_room = false;
            let phase = match lane {
                _ if is_spent || fallback.is_some() => Phase::Ended,
                _ if !is_in_order => Phase::Ended,
                // A suspect is to be run by itself, now or when nothing is held, and all else of its handler is
                // handed back for it: what would run meanwhile might kill the process before the suspects
                // have their attempt back.
                Some((_, lane)) if may_run_alone.is_some() => {
                    let is_first =
                        may_run_alone == Some(true) && lane.isolation == Isolation::Alone;
                    let may_run = lane.has_room() && lane.may_start(now);
                    if is_suspect && is_first && may_run {
                        Phase::Held
                    } else {
                        Phase::Ended
                    }
                }
                Some((_, lane)) if lane.is_paused(now) && !lane.may_start(now) => Phase::Ended,
                Some(_) if !may_join => Phase::Ended,
                Some((_, lane)) => {
                    let may_run = lane.has_room() && lane.may_start(now);
                    match may_run && (is_last || lane.look_ahead.is_empty()) {
                        true => Phase::Running,
                        false if is_last => {
                            has_no_room = true;
                            Phase::Ended
                        }
                        false => Phase::Waiting,
                    }
                }
                None => Phase::Ended,
            };
            if let Some(key) = key {
                let run = runs.entry(key).or_default();
                run.is_whole = phase == Phase::Running;
                run.length += u32::from(run.is_whole);
                run.is_cut |= !is_in_order;
            }
            let outcome = end.unwrap_or(Outcome::Release);
            let slot = self.admit(context, index, lease, expires, phase, order);
            if phase == Phase::Held {
                self.hold(slot);
            } else if phase == Phase::Ended {
                if has_no_room {
                    self.suspend_look_ahead(index);
                }
                match (fallback, &outcome) {
                    (Some(fallback), _) => self.fall_back(slot, fallback),
                    (None, Outcome::Dead { reason, .. }) => {
                        let failure = Failure::dead(reason.clone());
                        self.conclude(slot, failure, outcome);
                    }
                    (None, _) => self.settle(slot, outcome),
                }
            }
        }
        self.learn_run_lengths(asked, &runs);
    }

    fn learn_run_lengths(&mut self, asked: &[usize], runs: &OfKeys<Run>) {
        for index in asked {
            let of_lane = runs.iter().filter(|((lane, _), _)| *lane == Some(*index));
            let longest = of_lane.clone().map(|(_, run)| run.length).max();
            let is_cut = of_lane.into_iter().any(|(_, run)| run.is_cut);
            if let (Some(longest), Some(lane)) = (longest, self.lanes.get_mut(*index)) {
                lane.run_length.learn(longest, is_cut);
            }
        }
    }

    /// A suspect waits in this slot.
    fn hold(&mut self, slot: usize) {
        let index = self.table.get_mut(slot).and_then(|slot| slot.lane);
        if let Some(lane) = index.and_then(|index| self.lanes.get_mut(index)) {
            lane.isolation = Isolation::Holding(slot);
        }
    }

    fn is_suspect(&self, leased: &Leased) -> bool {
        leased.attempts.crashed(true) > 0
            && leased.attempts.started == self.config.retry(&leased.message).max_attempts()
    }

    /// The end of a message whose attempts were used up before this claim, or that has expired.
    fn end_without_run(&self, leased: &Leased, lease: Duration) -> Option<Outcome> {
        let message = &leased.message;
        let policy = self.config.retry(message);
        if leased.attempts.started > policy.max_attempts() {
            return Some(Outcome::Dead {
                reason: policy.used_up(leased.attempts),
                after: self.config.after_dead(message),
            });
        }
        expired(leased, lease)
    }
}
