//! A small store with one ordering key, and random work on it, whose answers are sometimes lost.

use inbox_api::State;

use super::super::run::{LEASE, Run, handler, held, key};
use crate::crash::history::{
    Answered, Asked,
    Change::{self, Discard, Replay},
    Ended,
    Ending::{self, Block, Dead, Defer, Processed, Release, Retry},
    Granted,
    Kept::{self, Done, LeaseLost},
    Received, Sent,
};

/// What a store does wrong with runs, or with a dead message that blocks its ordering key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The last of a run comes first.
    TurnsRunsRound,
    /// The second of a run stays behind, and the third comes.
    LeavesOneOut,
    /// What is dead never blocks.
    PassesWhatBlocks,
    /// When one of a run that ran out is taken, those behind it keep their leases.
    KeepsLeasesBehindOneThatIsTaken,
    /// What is replayed is handed out while a later one is leased.
    LetsTheReplayedPass,
    /// An attempt of each message of a run counts at the claim.
    CountsWhatIsNotReached,
    /// An attempt of the second one counts when it is settled, and not when its turn comes.
    CountsOnlyTheFirst,
    /// What a dead worker has left comes in runs again.
    MakesRunsOfWhatVanished,
    /// A run has one more message than was asked for.
    GivesMoreThanAskedFor,
    /// What was replayed looks as if it had not been.
    ForgetsReplays,
    /// A list of what blocks has everything that is dead.
    ListsWhatDoesNotBlock,
    /// A list has only the later half of the dead.
    ListsOnlyTheLast,
    /// What died first is not shown to block, and does.
    HidesWhatBlocks,
}

const MESSAGES: usize = 20;
const STEPS: usize = 400;
/// Work until everything is final, or given up.
const LAST_STEPS: usize = 1_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Pending { due: u64 },
    Leased { until: u64 },
    Dead { blocks: bool },
    Processed,
    Discarded,
}

use Standing::Leased;

struct Message {
    id: String,
    standing: Standing,
    token: i64,
    /// Whether the present lease is among the attempts.
    is_counted: bool,
    /// It has lost its lease with its run, and comes alone.
    is_alone: bool,
    started: u32,
    finished: u32,
    replays: u32,
}

impl Message {
    fn is_open(&self) -> bool {
        use Standing::{Dead, Pending};
        matches!(
            self.standing,
            Pending { .. } | Leased { .. } | Dead { blocks: true }
        )
    }

    fn count_start(&mut self) {
        self.started += u32::from(!self.is_counted);
        self.is_counted = true;
    }

    fn state(&self) -> State {
        match self.standing {
            Standing::Pending { .. } | Leased { .. } => State::Pending,
            Standing::Dead { .. } => State::Dead,
            Standing::Processed => State::Processed,
            Standing::Discarded => State::Discarded,
        }
    }
}

/// A lease that a worker knows, by the message's place.
type Known = (usize, i64);

struct Store {
    flaw: Option<Flaw>,
    random: fastrand::Rng,
    run: Run,
    /// In microseconds.
    now: u64,
    last_token: i64,
    messages: Vec<Message>,
    /// What workers have claimed and not ended, each run by itself.
    runs: Vec<Vec<Known>>,
    /// Settlements whose answer was lost, and which are made again.
    repetitions: Vec<Vec<(Known, Ending)>>,
}

/// A run with this seed.
pub(super) fn history(seed: u64, flaw: Option<Flaw>) -> Run {
    let mut store = Store {
        flaw,
        random: fastrand::Rng::with_seed(seed),
        run: Run::ordered(),
        now: 10_000_000,
        last_token: 0,
        messages: Vec::new(),
        runs: Vec::new(),
        repetitions: Vec::new(),
    };
    for _ in 0..STEPS {
        store.pass_time();
        match store.random.u8(..100) {
            0..10 if store.messages.len() < MESSAGES => store.receive(),
            0..50 => store.claim(),
            50..60 => store.extend(),
            60..68 => store.operate(false),
            68..70 => store.list(),
            70..74 => store.die(),
            _ => store.work(false),
        }
    }
    for _ in 0..LAST_STEPS {
        if !store.messages.iter().any(Message::is_open) {
            break;
        }
        store.pass_time();
        match store.random.u8(..3) {
            0 => store.claim(),
            1 => store.operate(true),
            _ => store.work(true),
        }
    }
    let Store { run, messages, .. } = store;
    messages.iter().fold(run, |run, message| {
        let (started, finished) = (message.started, message.finished);
        let mut run = run.listed(&message.id, message.state(), started, finished);
        if let Some(record) = run.listing.last_mut() {
            record.replays = message.replays;
            record.blocks_ordering_key = message.standing == Standing::Dead { blocks: true };
        }
        run
    })
}

impl Store {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// A little, and now and then so much that leases run out.
    fn pass_time(&mut self) {
        self.now += match self.random.u8(..10) {
            0 => self.random.u64(100_000..LEASE * 1_200),
            _ => self.random.u64(1_000..20_000),
        };
    }

    /// A call that has its effect now; whether its answer arrives.
    fn call(&mut self, asked: Asked, answered: Answered, known: bool) -> bool {
        let call = (asked, answered);
        self.run
            .call_at(&mut self.random, self.now, call, known, 30)
    }

    fn draw_token(&mut self) -> i64 {
        self.last_token += 1;
        self.last_token
    }

    fn receive(&mut self) {
        let id = format!("m{}", self.messages.len());
        let sent = Sent {
            key: key(&id),
            ordering_key: self.run.ordering_key.clone(),
        };
        self.messages.push(Message {
            id,
            standing: Standing::Pending { due: self.now },
            token: 0,
            is_counted: false,
            is_alone: false,
            started: 0,
            finished: 0,
            replays: 0,
        });
        let asked = Asked::Receive {
            messages: vec![sent],
            transaction: false,
        };
        self.call(asked, Answered::Receipts(vec![Received::Accepted]), true);
    }

    /// Whose turn it is: the first that is leased, or else the first open one.
    fn head(&self) -> Option<usize> {
        let mut messages = self.messages.iter();
        let leased = messages.position(|one| matches!(one.standing, Leased { .. }));
        let leased = leased.filter(|_| !self.is(Flaw::LetsTheReplayedPass));
        leased.or_else(|| self.next_open(0))
    }

    fn next_open(&self, from: usize) -> Option<usize> {
        let passes = self.is(Flaw::PassesWhatBlocks);
        let mut behind = self.messages.iter().enumerate().skip(from);
        behind
            .find(|(_, one)| one.is_open() && !(passes && one.state() == State::Dead))
            .map(|(place, _)| place)
    }

    /// The messages of the run that this one begins.
    fn run_from(&self, first: usize, run_limit: usize) -> Vec<usize> {
        let whatever = self.is(Flaw::MakesRunsOfWhatVanished);
        let has_vanished = |one: &Message| one.started > one.finished && !whatever;
        let mut run = vec![first];
        let mut last = first;
        while run.len() < run_limit
            && !has_vanished(&self.messages[first])
            && let Some(next) = self.next_open(last + 1)
        {
            let message = &self.messages[next];
            let is_due = matches!(message.standing, Standing::Pending { due } if due <= self.now);
            if !is_due || has_vanished(message) || (message.is_alone && !whatever) {
                break;
            }
            run.push(next);
            last = next;
        }
        if self.is(Flaw::LeavesOneOut) && run.len() > 2 {
            run.remove(1);
        }
        run
    }

    fn claim(&mut self) {
        let run_limit = self.random.usize(1..=3);
        let Some(first) = self.head() else { return };
        match self.messages[first].standing {
            Standing::Pending { due } if due <= self.now => {}
            Leased { until } if until <= self.now => self.lose_behind(first),
            _ => return,
        }
        let most = run_limit + usize::from(self.is(Flaw::GivesMoreThanAskedFor));
        let run = self.run_from(first, most);
        let mut granted = Vec::new();
        let mut known = Vec::new();
        for (place, index) in run.into_iter().enumerate() {
            let token = self.draw_token();
            let counts = place == 0 || self.is(Flaw::CountsWhatIsNotReached);
            let message = &mut self.messages[index];
            message.standing = Leased {
                until: self.now + LEASE * 1000,
            };
            message.token = token;
            message.is_counted = false;
            message.is_alone = false;
            if counts {
                message.count_start();
            }
            granted.push(Granted {
                held: held(&message.id, token),
                ordering_key: self.run.ordering_key.clone(),
                started: message.started + u32::from(!counts),
                finished: message.finished,
                replays: message.replays,
                altered: None,
            });
            known.push((index, token));
        }
        if self.is(Flaw::TurnsRunsRound) {
            granted.reverse();
            known.reverse();
        }
        let asked = Asked::Claim {
            handlers: vec![handler()],
            limit: 10,
            run_limit: u32::try_from(run_limit).unwrap(),
            length: LEASE * 1000,
        };
        let answer = Answered::Claims {
            granted,
            corrupt: 0,
        };
        if self.call(asked, answer, false) {
            self.runs.push(known);
        }
    }

    /// Takes the leases of a run away behind one that is about to be taken.
    fn lose_behind(&mut self, first: usize) {
        if self.is(Flaw::KeepsLeasesBehindOneThatIsTaken) {
            return;
        }
        for index in first + 1..self.messages.len() {
            if matches!(self.messages[index].standing, Leased { .. }) {
                let token = self.draw_token();
                let message = &mut self.messages[index];
                message.token = token;
                message.standing = Standing::Pending { due: self.now };
                message.is_alone = true;
            }
        }
    }

    fn extend(&mut self) {
        let Some(run) = self.random.choice(&self.runs).cloned() else {
            return;
        };
        let mut leases = Vec::new();
        let mut kept = Vec::new();
        for (index, token) in run {
            let message = &mut self.messages[index];
            let holds = message.token == token && matches!(message.standing, Leased { .. });
            if holds {
                message.standing = Leased {
                    until: self.now + LEASE * 1000,
                };
            }
            leases.push(held(&message.id, token));
            kept.push(if holds { Done } else { LeaseLost });
        }
        let asked = Asked::Extend {
            leases,
            length: LEASE * 1000,
        };
        self.call(asked, Answered::Extended(kept), false);
    }

    /// A worker is gone, and with it what it had begun.
    fn die(&mut self) {
        if !self.runs.is_empty() {
            let which = self.random.usize(..self.runs.len());
            self.runs.swap_remove(which);
        }
    }

    /// A worker ends some messages of its run, in their order, and goes on if all is well.
    fn work(&mut self, only_processed: bool) {
        if !self.repetitions.is_empty() {
            let endings = self.repetitions.remove(0);
            self.settle(&endings);
            return;
        }
        if self.runs.is_empty() {
            return;
        }
        let mut run = self.runs.swap_remove(self.random.usize(..self.runs.len()));
        let rest = run.split_off(self.random.usize(1..=run.len()));
        let mut endings: Vec<(Known, Ending)> = Vec::new();
        let mut goes_on = true;
        for lease in run {
            let ending = match goes_on {
                true => self.ending(only_processed),
                false => Release,
            };
            goes_on &= ending.lets_the_next_through();
            endings.push((lease, ending));
        }
        if !goes_on {
            endings.extend(rest.iter().map(|lease| (*lease, Release)));
        }
        match self.settle(&endings) {
            Some(kept) if goes_on && !rest.is_empty() && !kept.contains(&LeaseLost) => {
                self.runs.push(rest);
            }
            Some(_) => {}
            None if self.random.bool() => self.repetitions.push(endings),
            None => {}
        }
    }

    fn ending(&mut self, only_processed: bool) -> Ending {
        let delay = self.random.u64(..100_000);
        match self.random.u8(..20) {
            0..3 if !only_processed => Retry(delay),
            3 if !only_processed => Defer(delay),
            4 if !only_processed => Release,
            5..7 if !only_processed => Dead,
            7..10 if !only_processed => Block,
            _ => Processed,
        }
    }

    fn settle(&mut self, endings: &[(Known, Ending)]) -> Option<Vec<Kept>> {
        let mut asked = Vec::new();
        let mut kept = Vec::new();
        for ((index, token), ending) in endings {
            kept.push(self.settle_one(*index, *token, *ending));
            asked.push(Ended {
                held: held(&self.messages[*index].id, *token),
                ending: *ending,
            });
            self.promote();
        }
        let asked = Asked::Settle {
            endings: asked,
            transaction: false,
        };
        self.call(asked, Answered::Settled(kept.clone()), false)
            .then_some(kept)
    }

    fn settle_one(&mut self, index: usize, token: i64, ending: Ending) -> Kept {
        let now = self.now;
        let message = &mut self.messages[index];
        if message.token != token {
            return LeaseLost;
        }
        if !matches!(message.standing, Leased { .. }) {
            return Done;
        }
        message.count_start();
        match ending.is_uncounted() {
            true => message.started -= 1,
            false => message.finished += 1,
        }
        message.standing = match ending {
            Processed => Standing::Processed,
            Dead => Standing::Dead { blocks: false },
            Block => Standing::Dead { blocks: true },
            Release => Standing::Pending { due: now },
            Retry(delay) | Defer(delay) => Standing::Pending { due: now + delay },
        };
        Done
    }

    /// Counts the attempt of the one whose turn has come, if its lease stands.
    fn promote(&mut self) {
        if !self.is(Flaw::CountsOnlyTheFirst)
            && let Some(head) = self.head()
        {
            let message = &mut self.messages[head];
            if matches!(message.standing, Leased { until } if until > self.now) {
                message.count_start();
            }
        }
    }

    /// An operator replays or discards something that is dead.
    fn operate(&mut self, only_discard: bool) {
        let dead =
            (0..self.messages.len()).filter(|index| self.messages[*index].state() == State::Dead);
        let dead: Vec<usize> = dead.collect();
        let Some(&index) = self.random.choice(&dead) else {
            return;
        };
        let change = match only_discard || self.random.bool() {
            true => Discard,
            false => Replay,
        };
        self.change(index, change);
        let asked = Asked::Change {
            key: key(&self.messages[index].id),
            change,
        };
        self.call(asked, Answered::Changed(1), false);
    }

    /// An operator looks at what is dead, or blocks.
    fn list(&mut self) {
        let blocking = self.random.bool();
        let all = !blocking || self.is(Flaw::ListsWhatDoesNotBlock);
        let hides = self.is(Flaw::HidesWhatBlocks);
        let is_listed = |message: &&Message| match message.standing {
            Standing::Dead { blocks } => all || (blocks && !hides),
            _ => false,
        };
        let listed = self.messages.iter().filter(is_listed);
        let mut keys: Vec<_> = listed.map(|message| key(&message.id)).collect();
        if self.is(Flaw::ListsOnlyTheLast) {
            keys.drain(..keys.len() / 2);
        }
        let limit = 5;
        let whole = keys.len() <= limit;
        keys.truncate(limit);
        let asked = Asked::List {
            handler: None,
            blocking,
            limit: 5,
        };
        let answer = Answered::Listed {
            keys,
            whole,
            corrupt: 0,
        };
        self.call(asked, answer, false);
    }

    fn change(&mut self, index: usize, change: Change) {
        let message = &mut self.messages[index];
        match change {
            Discard => message.standing = Standing::Discarded,
            Replay => {
                message.standing = Standing::Pending { due: self.now };
                message.is_alone = false;
                (message.started, message.finished) = (0, 0);
                message.replays += u32::from(self.flaw != Some(Flaw::ForgetsReplays));
            }
        }
    }
}
