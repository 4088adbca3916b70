//! The processor's loop: one task that owns all state and talks to the store, while handlers run
//! in their own tasks and report back over a channel.
//!
//! At most one claim, one settlement and one renewal are under way at a time; outcomes gather
//! while a settlement is under way. None of these calls is dropped before its answer is there,
//! except when the time after a shutdown is over.

use std::{collections::HashSet, pin::pin, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Config, Context, Failure, Summary, Until,
    claims::{Claimed, Claiming},
    conclusions::PutOff,
    forming::Forming,
    handler::Hold,
    lane::Lane,
    leases::{Extension, Renewal},
    settling::{SettledBatch, Settling},
    table::{Phase, RunKey, Slot, Table},
    task::{self, End},
    wakeups,
};
use crate::{
    Error, Outcome, Result, Store as _,
    hooks::{Call, Teller},
    telemetry::{Count, MESSAGE},
};

/// How long a handler that was told to stop may go on before it is dropped.
pub(super) const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// How long outcomes may take to be stored after a shutdown: from the drain limit, or from the end
/// of the last handler.
const GIVE_UP: Duration = Duration::from_secs(5);

/// How long hooks may go on after everything else has been shut down.
const HOOKS_GRACE: Duration = Duration::from_secs(2);

/// How many reports are taken in one go.
const REPORTS: usize = 256;

pub(super) struct Driver {
    pub(super) config: Arc<Config>,
    pub(super) table: Table,
    /// Handlers that run.
    pub(super) running: usize,
    /// Those of them whose lease is lost.
    pub(super) lost_running: usize,
    /// The routers' rooms, each in its router's place.
    pub(super) lanes: Vec<Lane>,
    pub(super) claiming: Claiming,
    pub(super) forming: Forming,
    pub(super) settling: Settling,
    /// Failed attempts that wait for others of their run.
    pub(super) put_off: PutOff,
    /// Runs of which something could not be settled, and stays leased.
    pub(super) stranded: HashSet<RunKey>,
    pub(super) renewal: Renewal,
    /// Whether the store has one transaction at a time, for which all other writes wait.
    pub(super) has_turns: bool,
    pub(super) stop: Option<Stop>,
    pub(super) teller: Option<Teller>,
    pub(super) summary: Summary,
    until: Until,
    /// The error that stopped this processor.
    fatal: Option<Error>,
    pub(super) sender: mpsc::UnboundedSender<(usize, End)>,
    reports: mpsc::UnboundedReceiver<(usize, End)>,
}

/// The stages of a shutdown.
pub(super) struct Stop {
    cancel_at: Instant,
    /// Handlers were told to stop.
    pub(super) is_cancelled: bool,
    give_up_at: Instant,
    /// No handler runs any more.
    is_quiet: bool,
}

enum Event {
    Reports,
    Claimed(Claimed),
    Settled(SettledBatch),
    Extended(Extension),
    Woken,
    Time,
}

/// The value of a call that is under way, once; pending for ever when there is none. Dropping
/// this future does not drop the call.
async fn answer<T>(call: &mut Option<BoxFuture<'static, T>>) -> T {
    let Some(future) = call else {
        return std::future::pending().await;
    };
    let value = future.await;
    *call = None;
    value
}

/// A run that is over pauses nothing, also one that is dropped or panics.
impl Drop for Driver {
    fn drop(&mut self) {
        self.forget_pauses();
    }
}

impl Driver {
    pub(super) fn new(config: Arc<Config>, until: Until) -> Self {
        let (sender, reports) = mpsc::unbounded_channel();
        let now = Instant::now();
        let lane = |served| Lane::new(&config, served, now);
        let lanes: Vec<_> = config.served.iter().map(lane).collect();
        let concurrency: usize = lanes.iter().map(|lane| lane.concurrency).sum();
        Self {
            table: Table::new(concurrency + config.look_ahead, lanes.len()),
            running: 0,
            lost_running: 0,
            lanes,
            claiming: Claiming::new(),
            forming: Forming::default(),
            settling: Settling::default(),
            put_off: PutOff::default(),
            stranded: HashSet::new(),
            renewal: Renewal::new(&config, now),
            has_turns: config.store.capabilities().exclusive_transactions,
            stop: None,
            teller: None,
            summary: Summary::default(),
            until,
            fatal: None,
            sender,
            reports,
            config,
        }
    }

    pub(super) async fn run(mut self, shutdown: CancellationToken) -> Result<Summary> {
        let woken = Arc::new(Notify::new());
        let mut wakeups = pin!(wakeups::watch(self.config.clone(), woken.clone()));
        let hooks = self.config.hooks.clone();
        self.teller = hooks.map(|hooks| Teller::start(hooks, woken.clone()));
        let mut alarm = pin!(tokio::time::sleep(Duration::ZERO));
        let mut batch = Vec::with_capacity(REPORTS);
        loop {
            let now = Instant::now();
            if self.stop.is_none() && shutdown.is_cancelled() {
                self.begin_stop(now);
            }
            // Before others take the room, and before a shutdown finds that nothing runs.
            self.conclude_failed();
            self.enforce(now);
            self.compare_leases(now);
            self.tell_resumed(now);
            self.start_held(now);
            self.start_waiting(now);
            self.start_batches();
            self.start_settling(now);
            self.start_claim(now);
            if self.is_over(now) || self.is_idle(&shutdown).await {
                break;
            }
            // An alarm that is set for too early costs one turn; setting it again costs every turn.
            let next = self.next_time(now);
            if alarm.deadline() <= now || alarm.deadline() > next {
                alarm.as_mut().reset(next);
            }
            let event = tokio::select! {
                biased;
                // Before the claim that began at the same time.
                extended = answer(&mut self.renewal.call) => Event::Extended(extended),
                claimed = answer(&mut self.claiming.call) => Event::Claimed(claimed),
                settled = answer(&mut self.settling.call) => Event::Settled(settled),
                _ = self.reports.recv_many(&mut batch, REPORTS) => Event::Reports,
                () = woken.notified() => Event::Woken,
                () = shutdown.cancelled(), if self.stop.is_none() => Event::Time,
                () = &mut wakeups => Event::Time,
                () = &mut alarm => Event::Time,
            };
            match event {
                Event::Reports => {
                    let was_interrupted = |(_, end): &_| matches!(end, End::Interrupted(_));
                    if self.stop.is_none()
                        && batch.iter().any(was_interrupted)
                        && shutdown.is_cancelled()
                    {
                        self.begin_stop(Instant::now());
                    }
                    for (slot, end) in batch.drain(..) {
                        self.ended(slot, end);
                    }
                }
                Event::Claimed(claimed) => {
                    self.claimed(claimed);
                    self.ask_again();
                }
                Event::Settled(settled) => self.settled(settled),
                Event::Extended(extended) => self.extended(extended),
                Event::Woken => self.hint_all(Instant::now()),
                Event::Time => {}
            }
        }
        self.leave_the_rest();
        if let Some(teller) = self.teller.take() {
            let is_stopping = self.stop.is_some();
            let limit = async {
                if !is_stopping {
                    shutdown.cancelled().await;
                }
                tokio::time::sleep(HOOKS_GRACE).await;
            };
            teller.finish(limit).await;
        }
        if self.stop.is_some() {
            self.leave_claim();
        }
        match self.fatal.take() {
            Some(error) => Err(error),
            None => Ok(self.summary),
        }
    }

    /// Counts what is held at the end. What its transaction has settled is done, though its batch was not, or its end
    /// was not heard of.
    fn leave_the_rest(&mut self) {
        while let Ok((index, end)) = self.reports.try_recv() {
            if matches!(end, End::Settled) {
                self.done(index, &Outcome::Processed { result: None });
            }
        }
        let rest: Vec<_> = self.table.indexes().collect();
        for index in rest {
            let slot = self.table.get(index);
            match slot.is_some_and(|slot| slot.context.is_held_by(Hold::Settled)) {
                true => self.done(index, &Outcome::Processed { result: None }),
                // It stays in the table, which stops its handler.
                false => self.summary.abandoned += 1,
            }
        }
    }

    /// Says that something is likely to be due for any router.
    fn hint_all(&mut self, at: Instant) {
        for lane in &mut self.lanes {
            lane.hint(at);
            lane.found_nothing = false;
        }
    }

    /// Puts a claimed message into a slot and, unless it waits or has ended, runs its handler.
    pub(super) fn admit(
        &mut self,
        context: Context,
        lane: Option<usize>,
        lease_length: Duration,
        expires: Instant,
        phase: Phase,
        order: u64,
    ) -> usize {
        let served = lane.and_then(|lane| self.config.served.get(lane));
        let in_flight = served.map(|served| served.metrics.hold());
        let has_runs = served.is_some_and(|served| served.run_limit() > 1);
        let key = context.message().ordering_key().filter(|_| has_runs);
        let run = lane.zip(key.cloned());
        let slot = self.table.insert(Slot {
            context,
            lane,
            lease_length,
            trial: None,
            expires,
            phase,
            task: None,
            batch: None,
            began: Instant::now(),
            drop_at: None,
            renewed: None,
            ends_counted: None,
            is_passed_over: false,
            waited: None,
            is_spared: false,
            run,
            order,
            _in_flight: in_flight,
        });
        self.renewal.runs_out(expires, lease_length);
        match phase {
            Phase::Running => self.start(slot),
            Phase::Waiting => self.enqueue(slot),
            Phase::Held | Phase::Ended | Phase::Lost => {}
        }
        slot
    }

    pub(super) fn start(&mut self, index: usize) {
        if let Some(slot) = self.table.get_mut(index) {
            let now = Instant::now();
            slot.phase = Phase::Running;
            slot.began = now;
            let lane = slot.lane.and_then(|lane| self.lanes.get_mut(lane));
            slot.trial = lane.and_then(|lane| lane.start(now));
            self.running += 1;
            if self.joins_batch(index) {
                return;
            }
            if let Some(slot) = self.table.get_mut(index) {
                let (context, expires) = (slot.context.clone(), slot.expires);
                let task = task::spawn(&self.config, index, context, expires, &self.sender);
                slot.task = Some(task);
            }
        }
    }

    /// Takes note that the handler in a slot has ended.
    pub(super) fn ended(&mut self, index: usize, end: End) {
        self.running = self.running.saturating_sub(1);
        self.settling.look_again();
        let end = match end {
            End::Concluded {
                outcome,
                is_settled,
            } => return self.concluded(index, outcome, is_settled),
            end => end,
        };
        let is_stopping = self.stop.is_some();
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        let now = Instant::now();
        if let Some(lane) = slot.lane.and_then(|lane| self.lanes.get_mut(lane)) {
            lane.running = lane.running.saturating_sub(1);
            if slot.batch.take().and_then(Arc::into_inner).is_some() {
                lane.end_batch(slot.task.is_some());
            }
            lane.look_ahead.took(now - slot.began, now);
        }
        let was_told_to_stop = slot.drop_at.is_some();
        slot.drop_at = None;
        let was_lost = slot.phase == Phase::Lost;
        slot.phase = Phase::Ended;
        self.lost_running = self.lost_running.saturating_sub(usize::from(was_lost));
        let is_settled = slot.context.is_held_by(Hold::Settled);
        if is_settled || matches!(end, End::Settled) {
            if !matches!(end, End::Settled | End::Outcome(Outcome::Processed { .. })) {
                let key = slot.context.message().key();
                tracing::warn!(%key, "the handler failed after its transaction had settled it");
            }
            let is_renewed = slot.renewed.is_some();
            self.judge(index, Some(true), "", now);
            let outcome = Outcome::Processed { result: None };
            if is_renewed {
                return self.settle(index, outcome);
            }
            return self.done(index, &outcome);
        }
        // Whatever transaction there was has ended with the handler's future.
        slot.context.set_hold(Hold::Lease);
        let is_in_doubt = slot.is_in_doubt();
        if is_in_doubt {
            let key = slot.context.message().key();
            tracing::warn!(%key, "whether the handler's transaction has committed is not known, nor told");
        }
        if was_lost {
            let (context, is_back) = (slot.context.clone(), slot.renewed.is_some());
            self.judge(index, None, "", now);
            if is_in_doubt {
                return self.lost(index);
            }
            self.tell_lost(&context);
            match end {
                _ if !is_back => self.give_up(index),
                // The worker that had it is gone, and the work is done.
                End::Outcome(outcome @ Outcome::Processed { .. }) => self.settle(index, outcome),
                _ => self.settle(index, Outcome::Release),
            }
            return;
        }
        let is_renewed = slot.renewed.is_some();
        match end {
            End::Dropped if was_told_to_stop => {
                self.judge(index, None, "", now);
                self.settle(index, Outcome::Release);
            }
            End::Interrupted(failure) if is_stopping => {
                let error = failure.error();
                tracing::info!(target: MESSAGE, key = %slot.context.message().key(), error, "attempt cut short");
                self.judge(index, None, "", now);
                self.settle(index, Outcome::Release);
            }
            End::Interrupted(failure) | End::Failed(failure) => {
                let is_lost = self.failed(index, failure, !is_in_doubt, now);
                match is_lost {
                    false => {}
                    // Rolled back because of the first lease; the message is still held.
                    true if is_renewed => self.settle(index, Outcome::Release),
                    true => self.lost(index),
                }
            }
            End::Dropped => {
                let failure = Failure::retry("panicked while it was dropped");
                self.failed(index, failure, !is_in_doubt, now);
            }
            End::Outcome(outcome) => {
                let went_well = matches!(outcome, Outcome::Processed { .. }).then_some(true);
                self.judge(index, went_well, "", now);
                self.settle(index, outcome);
            }
            End::NoHandler(fallback) => self.fall_back(index, fallback),
            End::Settled | End::Concluded { .. } => {}
        }
    }

    /// Takes note that an outcome is durable.
    pub(super) fn done(&mut self, index: usize, outcome: &Outcome) {
        let Some(slot) = self.table.remove(index) else {
            return;
        };
        let message = slot.context.message();
        let is_last = self.table.is_empty() && !matches!(self.until, Until::Shutdown);
        let lane = slot.lane.and_then(|lane| self.lanes.get_mut(lane));
        if is_last {
            // This may be all.
            self.hint_all(Instant::now());
        } else if let Some(lane) = lane
            && message.ordering_key().is_some()
        {
            // The next message of the key may be due now.
            lane.hint(Instant::now());
        }
        if slot.is_in_doubt() && !matches!(outcome, Outcome::Processed { .. }) {
            // The store answers so also when the message was processed before.
            self.summary.abandoned += 1;
            return;
        }
        let count = match outcome {
            Outcome::Processed { .. } => {
                self.summary.processed += 1;
                Count::Processed
            }
            Outcome::Retry { after, error } => {
                self.summary.retried += 1;
                self.tell(|| {
                    let leased = Box::new(slot.context.leased().clone());
                    Call::AttemptFailed(leased, error.clone(), *after)
                });
                self.hint_later(slot.lane, *after);
                Count::Retried
            }
            Outcome::Dead { reason, .. } => {
                self.summary.dead += 1;
                self.tell(|| {
                    let leased = Box::new(slot.context.leased().clone());
                    Call::DeadLettered(leased, reason.clone())
                });
                Count::Dead
            }
            Outcome::Defer { after, .. } => {
                self.summary.deferred += 1;
                self.hint_later(slot.lane, *after);
                Count::Deferred
            }
            Outcome::Release => {
                self.summary.released += 1;
                return;
            }
        };
        self.count(&slot.context, count);
    }

    /// A message of this router is due then.
    fn hint_later(&mut self, lane: Option<usize>, after: Duration) {
        if let Some(due) = Instant::now().checked_add(after)
            && let Some(lane) = lane.and_then(|lane| self.lanes.get_mut(lane))
        {
            lane.hint(due);
        }
    }

    /// Takes note that a lease has ended before its outcome was settled, as far as is known. A handler that still runs
    /// keeps its slot until it has ended. It is told to stop, unless its own commit may be the
    /// reason; where that is so, or was, its end says it.
    pub(super) fn lost(&mut self, index: usize) {
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        if slot.phase != Phase::Running {
            let (context, is_in_doubt) = (slot.context.clone(), slot.is_in_doubt());
            match is_in_doubt {
                true => self.summary.abandoned += 1,
                false => self.tell_lost(&context),
            }
            return self.give_up(index);
        }
        slot.phase = Phase::Lost;
        self.lost_running += 1;
        let mut holds = [Hold::ExclusiveTransaction, Hold::Commit, Hold::Settled].into_iter();
        if !holds.any(|hold| slot.context.is_held_by(hold)) {
            let drop_at = Instant::now() + CANCEL_GRACE;
            slot.drop_at = Some(drop_at);
            self.renewal.look_at(drop_at);
            slot.context.cancel();
        }
    }

    fn give_up(&mut self, index: usize) {
        self.table.remove(index);
        self.forget_held(index);
    }

    fn tell_lost(&mut self, context: &Context) {
        tracing::warn!(key = %context.message().key(), "lease lost");
        self.summary.lease_lost += 1;
        self.count(context, Count::LeaseLost);
        self.tell(|| Call::LeaseLost(Box::new(context.leased().clone())));
    }

    /// Calls a hook, if there are any.
    pub(super) fn tell(&self, call: impl FnOnce() -> Call) {
        if let Some(teller) = &self.teller {
            teller.tell(call());
        }
    }

    pub(super) fn count(&self, context: &Context, what: Count) {
        if cfg!(feature = "metrics")
            && let Some(served) = self.config.served_for(context.message())
        {
            served.metrics.count(what);
        }
    }

    /// Whether an error has stopped this processor.
    pub(super) fn has_failed(&self) -> bool {
        self.fatal.is_some()
    }

    /// Stops because of an error that is not worth repeating.
    pub(super) fn fail(&mut self, error: Error) {
        tracing::error!(%error, "the processor stops");
        self.fatal.get_or_insert(error);
        if self.stop.is_none() {
            self.begin_stop(Instant::now());
        }
    }

    fn begin_stop(&mut self, now: Instant) {
        // Far enough for any drain limit that means *for ever*, and safe to add to a clock.
        let limit = self
            .config
            .drain_limit
            .min(Duration::from_secs(365 * 24 * 60 * 60));
        tracing::info!(running = self.running, ?limit, "the processor shuts down");
        let cancel_at = now + limit;
        self.stop = Some(Stop {
            cancel_at,
            is_cancelled: false,
            give_up_at: cancel_at + GIVE_UP,
            is_quiet: false,
        });
        for lane in 0..self.lanes.len() {
            self.hand_back_waiting(lane);
        }
    }

    /// Does what is due by time: renewals, and the end of handlers that were told to stop.
    fn enforce(&mut self, now: Instant) {
        if let Some(stop) = &mut self.stop
            && !stop.is_cancelled
            && now >= stop.cancel_at
        {
            stop.is_cancelled = true;
            for (_, slot) in self.table.iter_mut() {
                if slot.runs() {
                    slot.drop_at.get_or_insert(now + CANCEL_GRACE);
                    slot.context.cut_short();
                }
            }
            self.renewal.look_at(now + CANCEL_GRACE);
        }
        if let Some(stop) = &mut self.stop
            && self.running == 0
            && !std::mem::replace(&mut stop.is_quiet, true)
        {
            stop.give_up_at = stop.give_up_at.min(now + GIVE_UP);
        }
        if now < self.renewal.next_look {
            return;
        }
        self.renewal.looked(now);
        let wanted = self.wanted_batches(now);
        for (_, slot) in self.table.iter_mut() {
            if let (Some(at), Some(task)) = (slot.drop_at, &slot.task) {
                if slot.context.is_held_by(Hold::Settled) && self.stop.is_none() {
                    // It has settled the message by itself meanwhile.
                    slot.drop_at = None;
                } else if at > now {
                    self.renewal.look_at(at);
                } else if !wanted.contains(&task.id()) {
                    task.abort();
                }
            }
        }
        self.hand_back_late(now);
        self.hand_back_late_batches(now);
        self.renew(now);
    }

    /// Whether a shutdown is complete or its time is over.
    fn is_over(&self, now: Instant) -> bool {
        self.stop.as_ref().is_some_and(|stop| {
            let is_done = self.table.is_empty() && self.claiming.call.is_none();
            is_done || now >= stop.give_up_at
        })
    }

    /// Whether there is nothing left of what this run was asked for.
    async fn is_idle(&mut self, shutdown: &CancellationToken) -> bool {
        if !std::mem::take(&mut self.claiming.found_nothing) {
            return false;
        }
        let statistics = match &self.until {
            Until::Shutdown => return false,
            Until::Idle => return true,
            // Nothing is held here, so the loop can wait.
            Until::Drained(operate) => tokio::select! {
                statistics = self.config.store.patience.within("statistics", operate.statistics())
                    => statistics,
                () = shutdown.cancelled() => return false,
            },
        };
        match statistics {
            Ok(statistics) => !statistics.handlers.iter().any(|handler| {
                handler.backlog() > 0 && self.config.place(&handler.handler).is_some()
            }),
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "backlog not known; looking again");
                false
            }
            // Nothing is left to be finished before it is told.
            Err(error) => {
                self.fail(error);
                true
            }
        }
    }

    /// When the loop has to look again if nothing happens.
    fn next_time(&self, now: Instant) -> Instant {
        let mut next = self.renewal.next_look;
        let mut consider = |time: Option<Instant>| next = time.map_or(next, |time| next.min(time));
        consider(self.settling_time());
        consider(self.claim_time(now));
        consider(self.waiting_time(now));
        let resumed = self.lanes.iter().filter_map(|lane| lane.resumes_at(now));
        consider(resumed.min());
        consider(self.stop.as_ref().map(|stop| {
            if stop.is_cancelled {
                stop.give_up_at
            } else {
                stop.cancel_at.min(stop.give_up_at)
            }
        }));
        next.max(now)
    }
}
