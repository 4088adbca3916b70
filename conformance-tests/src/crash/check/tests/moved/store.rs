//! A small store with a clock that is moved, and random work on it, whose answers are sometimes lost.

use inbox_api::State;

use super::super::run::{LEASE, Run, held, key};
use crate::crash::history::{
    Answered, Asked, ClockMove, Ended,
    Ending::{self, Defer, Processed, Release, Retry},
    Granted, Kept, Received, Sent,
};

/// What a store does wrong with a clock that jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// A lease that ends later than any could is taken for a mistake, and given to another.
    TakesLeasesThatLookTooLong,
    /// Tokens are not compared while the clock is behind its highest.
    TakesOldTokensAfterAJump,
    /// What was accepted later than now is taken away.
    ForgetsWhatComesFromTheFuture,
    /// What was accepted later than now is put off for good.
    PutsOffWhatComesFromTheFuture,
    /// What waits is due at once.
    DropsDelaysAtAJump,
    /// Tokens are times, also where the clock is behind the last one drawn.
    DrawsTokensFromTheClock,
}

const MESSAGES: usize = 6;
const STEPS: usize = 250;
/// Work until everything is final, or given up.
const LAST_STEPS: usize = 2_000;

struct Message {
    id: String,
    accepted_at: i64,
    due: i64,
    token: Option<i64>,
    ending: Option<(i64, Ending)>,
    started: u32,
    finished: u32,
    is_lost: bool,
}

struct Store {
    flaw: Option<Flaw>,
    random: fastrand::Rng,
    run: Run,
    /// In microseconds.
    now: u64,
    ahead: i64,
    highest: i64,
    last_token: i64,
    messages: Vec<Message>,
    /// Leases that workers know.
    leases: Vec<(usize, i64)>,
}

/// A run with this seed.
pub(super) fn history(seed: u64, flaw: Option<Flaw>) -> Run {
    let mut store = Store {
        flaw,
        random: fastrand::Rng::with_seed(seed),
        run: Run::default(),
        now: 10_000_000,
        ahead: 0,
        highest: 0,
        last_token: 0,
        messages: Vec::new(),
        leases: Vec::new(),
    };
    for step in 0..STEPS {
        store.now += store.random.u64(1_000..60_000);
        match store.random.u8(..100) {
            0..8 if step > 0 => store.jump(),
            0..20 if store.messages.len() < MESSAGES => store.receive(),
            0..60 => store.claim(),
            60..75 => store.extend(),
            _ => store.settle(false),
        }
    }
    while store.messages.len() < MESSAGES {
        store.receive();
    }
    for _ in 0..LAST_STEPS {
        store.now += store.random.u64(1_000..60_000);
        match store.random.bool() {
            true => store.claim(),
            false => store.settle(true),
        }
        if store.messages.iter().all(Message::is_final) {
            break;
        }
    }
    let Store { run, messages, .. } = store;
    let listed = messages.iter().filter(|message| !message.is_lost);
    listed.fold(run, |run, message| {
        let state = match message.is_final() {
            true => State::Processed,
            false => State::Pending,
        };
        run.listed(&message.id, state, message.started, message.finished)
    })
}

impl Message {
    fn is_final(&self) -> bool {
        matches!(self.ending, Some((_, Processed)))
    }
}

impl Store {
    fn shows(&mut self) -> i64 {
        let shown = i64::try_from(self.now).unwrap() + self.ahead;
        self.highest = self.highest.max(shown);
        shown
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn jump(&mut self) {
        self.shows();
        let far = self.random.i64(200_000..1_500_000);
        self.ahead += if self.random.bool() { far } else { -far };
        self.run.history.moves.push(ClockMove {
            start: self.now - self.random.u64(..500),
            end: self.now + self.random.u64(..500),
            ahead: self.ahead,
        });
        let shown = self.shows();
        let waiting = self
            .messages
            .iter_mut()
            .filter(|message| !message.is_final());
        for message in waiting {
            if self.flaw == Some(Flaw::ForgetsWhatComesFromTheFuture) {
                message.is_lost |= message.accepted_at > shown;
            }
            if self.flaw == Some(Flaw::PutsOffWhatComesFromTheFuture) && message.accepted_at > shown
            {
                message.due = i64::MAX;
            }
            if self.flaw == Some(Flaw::DropsDelaysAtAJump) && message.token.is_none() {
                message.due = message.due.min(shown);
            }
        }
    }

    /// A call that has its effect now; its answer is lost now and then, unless it has to be known.
    fn call(&mut self, asked: Asked, answered: Answered, known: bool) -> bool {
        let call = (asked, answered);
        self.run
            .call_at(&mut self.random, self.now, call, known, 10)
    }

    fn receive(&mut self) {
        let id = format!("m{}", self.messages.len());
        let shown = self.shows();
        let sent = Sent {
            key: key(&id),
            ordering_key: None,
        };
        self.messages.push(Message {
            id,
            accepted_at: shown,
            due: shown,
            token: None,
            ending: None,
            started: 0,
            finished: 0,
            is_lost: false,
        });
        let asked = Asked::Receive {
            messages: vec![sent],
            transaction: false,
        };
        self.call(asked, Answered::Receipts(vec![Received::Accepted]), true);
    }

    fn claim(&mut self) {
        let shown = self.shows();
        let lease = i64::try_from(LEASE * 1000).unwrap();
        let looks_too_long = shown + lease;
        let impatient = self.is(Flaw::TakesLeasesThatLookTooLong);
        let is_due = |message: &Message| {
            let waits = message.due > shown;
            let is_mistaken = impatient && message.token.is_some() && message.due > looks_too_long;
            !message.is_lost && !message.is_final() && (!waits || is_mistaken)
        };
        let due = (0..self.messages.len()).filter(|place| is_due(&self.messages[*place]));
        let due: Vec<usize> = due.collect();
        let Some(&place) = self.random.choice(&due) else {
            return;
        };
        self.last_token = match self.is(Flaw::DrawsTokensFromTheClock) {
            true => shown,
            false => shown.max(self.last_token + 1),
        };
        let token = self.last_token;
        let message = &mut self.messages[place];
        message.due = shown + lease;
        message.token = Some(token);
        message.started += 1;
        let granted = Granted {
            held: held(&message.id, token),
            ordering_key: None,
            started: message.started,
            finished: message.finished,
            replays: 0,
            altered: None,
        };
        let answer = Answered::Claims {
            granted: vec![granted],
            corrupt: 0,
        };
        if self.call(Run::asked_to_claim(), answer, false) {
            self.leases.push((place, token));
        }
    }

    /// Whether a lease is still the message's.
    fn holds(&mut self, (place, token): (usize, i64)) -> bool {
        let is_late = self.shows() < self.highest;
        let message = &self.messages[place];
        let is_open = message.token.is_some() && !message.is_final();
        message.token == Some(token)
            || (is_open && is_late && self.is(Flaw::TakesOldTokensAfterAJump))
    }

    fn extend(&mut self) {
        let Some(&lease) = self.random.choice(&self.leases) else {
            return;
        };
        let shown = self.shows();
        let holds = self.messages[lease.0].token == Some(lease.1);
        let message = &mut self.messages[lease.0];
        if holds {
            message.due = shown + i64::try_from(LEASE * 1000).unwrap();
        }
        let asked = Asked::Extend {
            leases: vec![held(&message.id, lease.1)],
            length: LEASE * 1000,
        };
        let kept = if holds { Kept::Done } else { Kept::LeaseLost };
        self.call(asked, Answered::Extended(vec![kept]), false);
    }

    fn settle(&mut self, only_processed: bool) {
        if self.leases.is_empty() {
            return;
        }
        let lease = self
            .leases
            .swap_remove(self.random.usize(..self.leases.len()));
        let delay = self.random.u64(..600_000);
        let ending = match self.random.u8(..10) {
            0..3 if !only_processed => Retry(delay),
            3..5 if !only_processed => Defer(delay),
            5..6 if !only_processed => Release,
            _ => Processed,
        };
        let shown = self.shows();
        let holds = self.holds(lease);
        let message = &mut self.messages[lease.0];
        if holds {
            message.token = None;
            message.ending = Some((lease.1, ending));
            message.due = match ending {
                Retry(delay) | Defer(delay) => shown + i64::try_from(delay).unwrap(),
                _ => shown,
            };
            match ending.is_uncounted() {
                true => message.started -= 1,
                false => message.finished += 1,
            }
        }
        let asked = Asked::Settle {
            endings: vec![Ended {
                held: held(&message.id, lease.1),
                ending,
            }],
            transaction: false,
        };
        let kept = if holds { Kept::Done } else { Kept::LeaseLost };
        self.call(asked, Answered::Settled(vec![kept]), false);
    }
}
