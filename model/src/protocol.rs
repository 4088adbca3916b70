//! What every store promises: each operation is one atomic step.
//!
//! Messages are accepted from deliveries, which come again while their answer is lost. Workers claim and settle them, or
//! begin them inline, and may crash at any point, or never hear an answer. A lease lapses when time passes. In the model
//! time is only this: a lease that is held may lapse so many times, and one whose holder is gone always does.

use stateright::{Model, Property};

use crate::Tell;

/// What can be wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Settling does not compare the token.
    NoFencing,
    /// A claim judges leases by a clock that runs ahead.
    LeasesByAnotherClock,
    /// A claim moves the head of the key on, rather than the settlement.
    HeadMovedBeforeSettlement,
    /// The key is forgotten with the message that is processed.
    KeysEndWithTheirMessages,
    /// The broker is acknowledged before the message is stored.
    AcknowledgesFirst,
    /// What a crashed worker has leased stays leased.
    LeasesNeverLapse,
    /// Beginning inline does not look whether another holds the message.
    BeginTakesWhatIsLeased,
    /// A settlement whose answer was lost is done once more when it is repeated.
    RepetitionsCount,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::NoFencing,
        Self::LeasesByAnotherClock,
        Self::HeadMovedBeforeSettlement,
        Self::KeysEndWithTheirMessages,
        Self::AcknowledgesFirst,
        Self::LeasesNeverLapse,
        Self::BeginTakesWhatIsLeased,
        Self::RepetitionsCount,
    ];
}

/// How much happens.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// How many messages there are, all of one ordering key or each for itself.
    pub messages: usize,
    /// Whether they have one ordering key.
    pub ordered: bool,
    /// How many workers there are.
    pub workers: usize,
    /// How often the broker delivers each, at least.
    pub copies: u8,
    /// How often a worker crashes.
    pub crashes: u8,
    /// How often an answer of the store is lost.
    pub lost: u8,
    /// How often a lease lapses although its holder is at work.
    pub lapses: u8,
    /// After so many attempts a message is dead.
    pub attempts: u8,
    /// How often an operator replays a dead message.
    pub replays: u8,
    /// How often a final message is purged.
    pub purges: u8,
}

impl Default for Bounds {
    /// What is checked in seconds.
    fn default() -> Self {
        Self {
            messages: 2,
            ordered: true,
            workers: 2,
            copies: 2,
            crashes: 1,
            lost: 1,
            lapses: 1,
            attempts: 2,
            replays: 1,
            purges: 0,
        }
    }
}

/// The protocol within bounds, as it is or with a flaw.
#[derive(Clone, Debug, Default)]
pub struct Protocol {
    /// How much happens.
    pub bounds: Bounds,
    /// What is wrong.
    pub flaw: Option<Flaw>,
}

/// How a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Absent,
    Pending,
    Leased { valid: bool },
    Processed,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Message {
    state: State,
    /// The place in the order of acceptance.
    seq: u8,
    token: u8,
    started: u8,
    /// Deliveries that the broker still makes.
    copies: u8,
    /// How often it was accepted since it was last purged.
    accepted: u8,
    /// How often the effect has committed since it was last accepted or replayed.
    effects: u8,
}

/// What a worker has in its hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Held {
    message: usize,
    token: u8,
}

/// A rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    AcceptedTwice,
    TwoHolders,
    StaleToken,
    EffectTwice,
    OutOfOrder,
}

impl Rule {
    const ALL: [Self; 5] = [
        Self::AcceptedTwice,
        Self::TwoHolders,
        Self::StaleToken,
        Self::EffectTwice,
        Self::OutOfOrder,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::AcceptedTwice => "a message is accepted once",
            Self::TwoHolders => "one worker at a time holds a message",
            Self::StaleToken => "a stale token changes nothing",
            Self::EffectTwice => "an effect commits once",
            Self::OutOfOrder => "messages of a key are handled in order",
        }
    }
}

/// All that there is at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    messages: Vec<Message>,
    workers: Vec<Option<Held>>,
    /// What settlement each worker repeats, as it has heard no answer.
    repeats: Vec<bool>,
    accepted: u8,
    token: u8,
    crashes: u8,
    lost: u8,
    lapses: u8,
    replays: u8,
    purges: u8,
    broken: Option<Rule>,
}

/// Whether an answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It does.
    Heard,
    /// It does not.
    Lost,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The receiver stores a delivery, and acknowledges it if it hears the answer.
    Receive(usize, Answer),
    /// The receiver dies between acknowledging and storing, where it acknowledges first.
    DieBeforeStoring(usize),
    /// A worker claims.
    Claim(usize, usize, Answer),
    /// A worker handles a delivery inline.
    Begin(usize, usize),
    /// A worker settles as processed, its effect in the same transaction.
    Settle(usize, Answer),
    /// A worker settles as failed.
    Fail(usize),
    /// A worker dies.
    Crash(usize),
    /// Time passes.
    Lapse(usize),
    /// An operator replays a dead message.
    Replay(usize),
    /// The janitor purges a final message.
    Purge(usize),
}

impl Tell for Protocol {
    fn tell(&self, _: &World, step: &Step) -> String {
        let message = |m: &usize| char::from(b'a' + u8::try_from(*m).unwrap_or(25));
        let heard = |answer: &Answer| match answer {
            Answer::Heard => "",
            Answer::Lost => "; the answer is lost",
        };
        match step {
            Step::Receive(m, answer) => format!("{} is delivered{}", message(m), heard(answer)),
            Step::DieBeforeStoring(m) => format!(
                "{} is acknowledged, and the receiver dies before it stores it",
                message(m)
            ),
            Step::Claim(w, m, answer) => {
                format!("worker {} claims {}{}", w + 1, message(m), heard(answer))
            }
            Step::Begin(w, m) => format!("worker {} begins {} inline", w + 1, message(m)),
            Step::Settle(w, answer) => {
                format!("worker {} settles as processed{}", w + 1, heard(answer))
            }
            Step::Fail(w) => format!("worker {} settles as failed", w + 1),
            Step::Crash(w) => format!("worker {} dies", w + 1),
            Step::Lapse(m) => format!("the lease of {} runs out", message(m)),
            Step::Replay(m) => format!("an operator replays {}", message(m)),
            Step::Purge(m) => format!("{} is purged", message(m)),
        }
    }
}

impl Protocol {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Whether a claim may take the message, as the store sees it.
    fn is_claimable(&self, world: &World, number: usize) -> bool {
        let Some(message) = world.messages.get(number) else {
            return false;
        };
        let is_free = match message.state {
            State::Pending => true,
            State::Leased { valid } => !valid || self.has(Flaw::LeasesByAnotherClock),
            State::Absent | State::Processed | State::Dead => false,
        };
        is_free && (!self.bounds.ordered || self.has_the_turn(world, number, message))
    }

    /// Whether it is the first open one of the key, and no other one is leased.
    fn has_the_turn(&self, world: &World, number: usize, message: &Message) -> bool {
        let mut others = world.messages.iter().enumerate();
        !others.any(|(other, its)| {
            let goes_first = match its.state {
                State::Leased { .. } => !self.has(Flaw::HeadMovedBeforeSettlement),
                State::Pending => {
                    its.seq < message.seq && !matches!(message.state, State::Leased { .. })
                }
                State::Absent | State::Processed | State::Dead => false,
            };
            other != number && goes_first
        })
    }

    fn accept(world: &mut World, number: usize) {
        world.accepted += 1;
        let seq = world.accepted;
        if let Some(message) = world.messages.get_mut(number)
            && message.state == State::Absent
        {
            message.state = State::Pending;
            message.seq = seq;
            message.accepted += 1;
            if message.accepted > 1 {
                world.broken = Some(Rule::AcceptedTwice);
            }
        }
    }

    /// Leases it; answers the token.
    fn lease(world: &mut World, number: usize) -> u8 {
        world.token += 1;
        let token = world.token;
        let is_held = Self::is_held(world, number);
        if let Some(message) = world.messages.get_mut(number) {
            if message.state == (State::Leased { valid: true }) && is_held {
                world.broken = Some(Rule::TwoHolders);
            }
            message.state = State::Leased { valid: true };
            message.token = token;
            message.started += 1;
        }
        token
    }

    /// Ends a lease as processed, with the effect in the same transaction.
    fn settle(&self, world: &mut World, held: Held, repeats: bool) {
        let is_ordered = self.bounds.ordered;
        let earlier_is_open = |world: &World, seq: u8| {
            let mut messages = world.messages.iter().enumerate();
            messages.any(|(other, its)| {
                other != held.message
                    && its.seq < seq
                    && matches!(its.state, State::Pending | State::Leased { .. })
            })
        };
        let Some(message) = world.messages.get(held.message).copied() else {
            return;
        };
        let is_leased = matches!(message.state, State::Leased { .. });
        let is_own = message.token == held.token;
        let counts = match (is_own, is_leased) {
            (true, true) => true,
            (true, false) => repeats && self.has(Flaw::RepetitionsCount),
            (false, _) => is_leased && self.has(Flaw::NoFencing),
        };
        if !counts {
            return;
        }
        if !is_own {
            world.broken = Some(Rule::StaleToken);
        }
        // Out of order only if nobody has put the earlier one back meanwhile.
        if is_ordered && earlier_is_open(world, message.seq) && world.replays == self.bounds.replays
        {
            world.broken = Some(Rule::OutOfOrder);
        }
        if let Some(message) = world.messages.get_mut(held.message) {
            message.effects += 1;
            message.state = match self.has(Flaw::KeysEndWithTheirMessages) {
                true => State::Absent,
                false => State::Processed,
            };
            if message.effects > 1 {
                world.broken = Some(Rule::EffectTwice);
            }
        }
    }

    fn is_held(world: &World, number: usize) -> bool {
        let token = world.messages.get(number).map(|message| message.token);
        let mut held = world.workers.iter().flatten();
        held.any(|held| held.message == number && Some(held.token) == token)
    }

    fn is_over(world: &World) -> bool {
        let is_final = |message: &Message| {
            matches!(message.state, State::Processed | State::Dead)
                // Purged, and delivered no more.
                || (message.state == State::Absent && message.seq > 0 && message.copies == 0)
        };
        world.messages.iter().all(is_final)
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let bounds = &self.bounds;
        let message = Message {
            state: State::Absent,
            seq: 0,
            token: 0,
            started: 0,
            copies: bounds.copies,
            accepted: 0,
            effects: 0,
        };
        vec![World {
            messages: vec![message; bounds.messages],
            workers: vec![None; bounds.workers],
            repeats: vec![false; bounds.workers],
            accepted: 0,
            token: 0,
            crashes: bounds.crashes,
            lost: bounds.lost,
            lapses: bounds.lapses,
            replays: bounds.replays,
            purges: bounds.purges,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_some() {
            return;
        }
        let answers: &[Answer] = match world.lost {
            0 => &[Answer::Heard],
            _ => &[Answer::Heard, Answer::Lost],
        };
        for (number, message) in world.messages.iter().enumerate() {
            if message.copies > 0 {
                steps.extend(answers.iter().map(|answer| Step::Receive(number, *answer)));
                if self.has(Flaw::AcknowledgesFirst) && world.crashes > 0 {
                    steps.push(Step::DieBeforeStoring(number));
                }
            }
            match message.state {
                State::Leased { valid: true } => {
                    let gone = !Self::is_held(world, number) && !self.has(Flaw::LeasesNeverLapse);
                    if gone || world.lapses > 0 {
                        steps.push(Step::Lapse(number));
                    }
                }
                State::Dead if world.replays > 0 => steps.push(Step::Replay(number)),
                State::Processed | State::Dead if world.purges > 0 => {
                    steps.push(Step::Purge(number));
                }
                _ => {}
            }
        }
        for (worker, held) in world.workers.iter().enumerate() {
            if held.is_some() {
                steps.extend(answers.iter().map(|answer| Step::Settle(worker, *answer)));
                if !world.repeats.get(worker).copied().unwrap_or_default() {
                    steps.push(Step::Fail(worker));
                }
                if world.crashes > 0 {
                    steps.push(Step::Crash(worker));
                }
                continue;
            }
            for (number, message) in world.messages.iter().enumerate() {
                if self.is_claimable(world, number) {
                    let claims = answers.iter();
                    steps.extend(claims.map(|answer| Step::Claim(worker, number, *answer)));
                }
                if message.copies > 0 {
                    steps.push(Step::Begin(worker, number));
                }
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::Receive(number, answer) => {
                Self::accept(&mut next, number);
                match answer {
                    // Delivered again.
                    Answer::Lost => next.lost -= 1,
                    Answer::Heard => next.messages.get_mut(number)?.copies -= 1,
                }
            }
            Step::DieBeforeStoring(number) => {
                next.crashes -= 1;
                next.messages.get_mut(number)?.copies -= 1;
            }
            Step::Claim(worker, number, answer) => {
                if next.messages.get(number)?.started >= self.bounds.attempts {
                    // All its attempts vanished: the processor makes it dead.
                    next.messages.get_mut(number)?.state = State::Dead;
                    next.messages.get_mut(number)?.token = next.token + 1;
                    next.token += 1;
                    return Some(next);
                }
                let token = Self::lease(&mut next, number);
                match answer {
                    Answer::Lost => next.lost -= 1,
                    Answer::Heard => {
                        *next.workers.get_mut(worker)? = Some(Held {
                            message: number,
                            token,
                        });
                    }
                }
            }
            Step::Begin(worker, number) => {
                Self::accept(&mut next, number);
                next.messages.get_mut(number)?.copies -= 1;
                let takes_all = self.has(Flaw::BeginTakesWhatIsLeased);
                let is_leased = matches!(next.messages.get(number)?.state, State::Leased { .. });
                let fresh = next.messages.get(number)?.started < self.bounds.attempts;
                if fresh && (self.is_claimable(&next, number) || (takes_all && is_leased)) {
                    let token = Self::lease(&mut next, number);
                    *next.workers.get_mut(worker)? = Some(Held {
                        message: number,
                        token,
                    });
                }
            }
            Step::Settle(worker, answer) => {
                let held = (*next.workers.get(worker)?)?;
                let repeats = *next.repeats.get(worker)?;
                self.settle(&mut next, held, repeats);
                let is_lost = answer == Answer::Lost;
                next.lost -= u8::from(is_lost);
                *next.repeats.get_mut(worker)? = is_lost;
                if !is_lost {
                    *next.workers.get_mut(worker)? = None;
                }
            }
            Step::Fail(worker) => {
                let held = next.workers.get_mut(worker)?.take()?;
                let attempts = self.bounds.attempts;
                let message = next.messages.get_mut(held.message)?;
                if message.token == held.token && matches!(message.state, State::Leased { .. }) {
                    message.state = match message.started < attempts {
                        true => State::Pending,
                        false => State::Dead,
                    };
                }
            }
            Step::Crash(worker) => {
                next.crashes -= 1;
                *next.workers.get_mut(worker)? = None;
                *next.repeats.get_mut(worker)? = false;
            }
            Step::Lapse(number) => {
                next.lapses -= u8::from(Self::is_held(world, number));
                next.messages.get_mut(number)?.state = State::Leased { valid: false };
            }
            Step::Replay(number) => {
                next.replays -= 1;
                let message = next.messages.get_mut(number)?;
                message.state = State::Pending;
                message.started = 0;
            }
            Step::Purge(number) => {
                next.purges -= 1;
                let message = next.messages.get_mut(number)?;
                message.state = State::Absent;
                (message.accepted, message.effects, message.started) = (0, 0, 0);
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn holds<const N: usize>(_: &Protocol, world: &World) -> bool {
            world.broken != Rule::ALL.get(N).copied()
        }
        vec![
            Property::always(Rule::ALL[0].name(), holds::<0>),
            Property::always(Rule::ALL[1].name(), holds::<1>),
            Property::always(Rule::ALL[2].name(), holds::<2>),
            Property::always(Rule::ALL[3].name(), holds::<3>),
            Property::always(Rule::ALL[4].name(), holds::<4>),
            Property::always("what was delivered ends", |model: &Self, world: &World| {
                let mut steps = Vec::new();
                model.actions(world, &mut steps);
                let moves = |step: &Step| model.next_state(world, *step).is_some();
                world.broken.is_some() || Self::is_over(world) || steps.iter().any(moves)
            }),
        ]
    }
}
