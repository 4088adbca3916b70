//! The room of one router: what it holds, what it may start, and when it claims.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{
    Batches, Config, Served,
    breaker::{Change, Circuit, Trial},
    conclusions::Failed,
    forming::Part,
    look_ahead::LookAhead,
    rate::Tokens,
    run_length::RunLength,
};
use crate::backoff::after;

pub(super) struct Lane {
    /// How many handlers may run at a time.
    pub(super) concurrency: usize,
    /// How many run.
    pub(super) running: usize,
    pub(super) look_ahead: LookAhead,
    batches: Option<Batches>,
    /// How many batches run, or wait until fewer do.
    pub(super) batches_held: usize,
    /// How many run.
    batches_running: usize,
    /// Those that wait.
    pub(super) formed: VecDeque<Part>,
    /// Failed attempts that wait to be settled in transactions.
    pub(super) failed: VecDeque<Failed>,
    /// How many are being settled so.
    pub(super) concluding: usize,
    /// Of an ordering key in a claim.
    pub(super) run_length: RunLength,
    /// The last messages for batches have crashed a worker before: they are claimed one by one.
    pub(super) is_wary: bool,
    /// Nothing is claimed before this, so that messages gather.
    pub(super) gathers_until: Instant,
    pub(super) isolation: Isolation,
    tokens: Option<Tokens>,
    circuit: Option<Circuit>,
    /// Nothing is started before this.
    paused_until: Option<Instant>,
    /// Whether it was told that nothing is started.
    pub(super) is_told_paused: bool,
    /// When to claim next, apart from hints.
    next: Instant,
    /// When something is known or likely to be due.
    hint: Option<Instant>,
    /// The pause after the next empty claim.
    pause: Duration,
    /// How many claims in a row have found nothing.
    empty_claims: u32,
    /// A claim was due when the last one began.
    was_due: bool,
    /// It was, and the claim that it shared was full without any of its messages, which others' older
    /// ones had kept out. The next one is its own.
    pub(super) is_unserved: bool,
    /// Since when a few slots have been free although there is work.
    pub(super) waiting_since: Option<Instant>,
    /// The number of the last claim that was made for it.
    pub(super) last_claim: u64,
    /// The last claim that began with nothing held has found nothing.
    pub(super) found_nothing: bool,
    poll: (Duration, Duration),
}

/// Whether a handler has a *suspect*: a message that has crashed a worker before and is on its last
/// allowed attempt.
///
/// If it were run together with others and one of those killed the process, the suspect would be
/// dead although it did nothing. So a suspect is run only when no other message of its handler is
/// held, and until then is handed back, which takes its attempt back too. Other handlers go on:
/// one that is slow or often crashes is no reason to hold up the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isolation {
    None,
    /// Its messages are claimed only when none is held, one at a time.
    Alone,
    /// The suspect in this slot waits until the rest of its handler is handed back.
    Holding(usize),
}

impl Lane {
    pub(super) fn new(config: &Config, served: &Served, now: Instant) -> Self {
        Self {
            concurrency: served.concurrency,
            running: 0,
            look_ahead: LookAhead::new(config.look_ahead, served),
            batches: served.batches,
            batches_held: 0,
            batches_running: 0,
            formed: VecDeque::new(),
            failed: VecDeque::new(),
            concluding: 0,
            run_length: RunLength::new(served.run_limit()),
            is_wary: false,
            gathers_until: now,
            isolation: Isolation::None,
            tokens: served.rate.as_ref().map(|rate| Tokens::new(rate, now)),
            circuit: served.breaker.map(|settings| Circuit::new(settings, now)),
            paused_until: None,
            is_told_paused: false,
            next: now,
            hint: None,
            pause: config.poll_min,
            empty_claims: 0,
            was_due: false,
            is_unserved: false,
            waiting_since: None,
            last_claim: 0,
            found_nothing: false,
            poll: (config.poll_min, config.poll_max),
        }
    }

    /// How many messages may be held at present.
    pub(super) fn most_held(&self) -> usize {
        self.concurrency + self.look_ahead.allowed()
    }

    /// How many messages a claim may take, where it may take `usual` of a router without batches.
    pub(super) fn most_claimed(&self, usual: usize) -> usize {
        match &self.batches {
            None => usual,
            Some(_) if !self.has_room_for_batch() => 0,
            Some(_) if self.is_wary => 1,
            Some(batches) => batches.messages,
        }
    }

    /// How many messages a batch has at the most.
    pub(super) fn batch_size(&self) -> usize {
        self.batches.map_or(1, |batches| batches.messages)
    }

    /// Whether batches are of one ordering key.
    pub(super) fn is_by_key(&self) -> bool {
        self.batches.is_some_and(|batches| batches.is_by_key)
    }

    /// Whether another batch would run at once.
    pub(super) fn has_room_for_batch(&self) -> bool {
        self.batches_held < self.most_batches()
    }

    fn most_batches(&self) -> usize {
        self.batches.map_or(usize::MAX, |batches| batches.at_once)
    }

    /// The batch that begins now, if one does.
    pub(super) fn begin_batch(&mut self) -> Option<Part> {
        if self.batches_running >= self.most_batches() {
            return None;
        }
        let part = self.formed.pop_front()?;
        self.batches_running += 1;
        Some(part)
    }

    /// A batch has ended, or is handed back without having begun.
    pub(super) fn end_batch(&mut self, has_begun: bool) {
        self.batches_held = self.batches_held.saturating_sub(1);
        let ended = usize::from(has_begun);
        self.batches_running = self.batches_running.saturating_sub(ended);
    }

    /// Whether another failed attempt may be settled in a transaction: these are as many as those of the handlers, or of the
    /// batches.
    pub(super) fn has_room_to_conclude(&self) -> bool {
        match self.batches {
            None => self.running < self.concurrency,
            Some(batches) => self.concluding < batches.at_once,
        }
    }

    /// Whether another handler may run. A suspect that waits to be alone has the next room: its
    /// attempt is the last.
    pub(super) fn has_room(&self) -> bool {
        let holds_suspect = matches!(self.isolation, Isolation::Holding(_));
        self.running + usize::from(holds_suspect) < self.concurrency
    }

    /// Whether another handler may be started now, as far as limits in time go.
    pub(super) fn may_start(&self, now: Instant) -> bool {
        self.permits(now) > 0
    }

    /// How many handlers may be started now, as far as limits in time go.
    pub(super) fn permits(&self, now: Instant) -> usize {
        if self.paused_until.is_some_and(|until| now < until) {
            return 0;
        }
        let tokens = self.tokens.as_ref().map(|tokens| tokens.available(now));
        let circuit = self.circuit.as_ref().map(|circuit| circuit.permits(now));
        let least = tokens.into_iter().chain(circuit).min();
        least.unwrap_or(usize::MAX)
    }

    /// When the next handler may be started, if none may be now.
    pub(super) fn shut_until(&self, now: Instant) -> Option<Instant> {
        let paused = self.paused_until.filter(|until| now < *until);
        let circuit = self.circuit.as_ref().and_then(|c| c.shut_until(now));
        let tokens = self.tokens.as_ref().filter(|t| t.available(now) == 0);
        let tokens = tokens.map(Tokens::next);
        paused.into_iter().chain(circuit).chain(tokens).max()
    }

    /// Whether nothing is started because of failures or at a handler's wish.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until) || self.is_circuit_open()
    }

    /// Whether failures are no fault of their messages'.
    pub(super) fn is_circuit_open(&self) -> bool {
        self.circuit.as_ref().is_some_and(|c| !c.is_closed())
    }

    /// For how long a message is put off that has failed while the circuit is open.
    pub(super) fn circuit_pause(&self) -> Duration {
        self.circuit
            .as_ref()
            .map(Circuit::pause)
            .unwrap_or_default()
    }

    /// Starts nothing for so long.
    pub(super) fn pause(&mut self, length: Duration, now: Instant) {
        let until = after(now, length);
        self.paused_until = self.paused_until.max(Some(until));
    }

    /// A handler is started.
    pub(super) fn start(&mut self, now: Instant) -> Option<Trial> {
        self.running += 1;
        if let Some(tokens) = &mut self.tokens {
            tokens.take(now);
        }
        self.circuit.as_mut()?.start(now)
    }

    /// A handler has ended: well, badly, or in a way that tells nothing of what it depends on.
    pub(super) fn end(
        &mut self,
        trial: Option<Trial>,
        went_well: Option<bool>,
        now: Instant,
    ) -> Change {
        match &mut self.circuit {
            Some(circuit) => circuit.end(trial, went_well, now),
            None => Change::None,
        }
    }

    /// When a pause is over of which was told.
    pub(super) fn resumes_at(&self, now: Instant) -> Option<Instant> {
        self.shut_until(now).filter(|_| self.is_told_paused)
    }

    /// Says that something is likely to be due then.
    pub(super) fn hint(&mut self, at: Instant) {
        self.hint = Some(self.hint.map_or(at, |hint| hint.min(at)));
    }

    /// When the next claim is due.
    pub(super) fn due(&self) -> Instant {
        let due = self.hint.map_or(self.next, |hint| hint.min(self.next));
        due.max(self.gathers_until)
    }

    /// Whether nothing has been found for a while.
    pub(super) fn is_idle(&self) -> bool {
        self.empty_claims > 1
    }

    /// A claim for it begins.
    pub(super) fn claim(&mut self, number: u64, now: Instant) {
        self.last_claim = number;
        self.was_due = now >= self.due();
        self.waiting_since = None;
        self.hint = self.hint.filter(|hint| *hint > now);
    }

    /// Decides when to claim next, after a claim has found so many of its messages and as many in all
    /// as it could, or not.
    pub(super) fn schedule(&mut self, found: usize, was_full: bool, now: Instant) {
        let (shortest, longest) = self.poll;
        self.is_unserved = was_full && found == 0 && self.was_due;
        if found > 0 {
            self.pause = shortest;
            self.empty_claims = 0;
            if let Some(batches) = self.batches.filter(|_| !was_full) {
                self.gathers_until = after(now, batches.linger);
            }
        }
        if was_full {
            if found > 0 || self.was_due {
                self.next = now;
            }
        } else {
            self.empty_claims = self.empty_claims.saturating_add(u32::from(found == 0));
            self.next = after(now, self.pause);
            self.pause = self.pause.saturating_mul(2).min(longest);
        }
    }
}
