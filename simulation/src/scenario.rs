//! What is to happen in a run: drawn from a seed, before the run begins, so that parts of it can be left out.

use fastrand::Rng;

/// Until when things go wrong, in milliseconds. From then on everything works, and has to come to its end.
pub const CALM: u64 = 30_000;

/// One run. Times are milliseconds from its beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Of the random numbers that the runtime draws.
    pub seed: u64,
    /// The messages, by their number.
    pub messages: Vec<Sent>,
    /// Copies that are delivered.
    pub deliveries: Vec<Delivered>,
    /// What handlers do at certain runs; at all others they succeed soon.
    pub behaviours: Vec<Behaviour>,
    /// What goes wrong with calls of the store.
    pub faults: Vec<Fault>,
    /// When the whole store is away.
    pub outages: Vec<Outage>,
    /// Which acknowledgements fail, by their number.
    pub failed_acknowledgements: Vec<u32>,
    /// When parts are stopped or killed; they begin again.
    pub stops: Vec<Stop>,
    /// What an operator does.
    pub interventions: Vec<Intervention>,
    /// When the store's clock jumps ahead, and by how much.
    pub jumps: Vec<(u64, u64)>,
    /// How fast the store's clock goes, in percent of the runtime's.
    pub clock_percent: u64,
    /// What the parts are told.
    pub settings: Settings,
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// Which of two handlers it is for.
    pub handler: u8,
    /// Its ordering key.
    pub ordering_key: Option<u8>,
}

/// One copy of a message on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivered {
    /// Which message.
    pub message: usize,
    /// When.
    pub at: u64,
    /// To an inline consumer; otherwise to the receivers. In how many milliseconds the caller leaves, if it does.
    pub inline: Option<Option<u64>>,
}

/// What a handler does at one run of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Behaviour {
    /// Which message.
    pub message: usize,
    /// Which run of it, from 0.
    pub run: u32,
    /// How long it takes.
    pub takes: u64,
    /// How it ends.
    pub does: Does,
}

/// How a handler ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Does {
    /// It succeeds.
    Succeed,
    /// It succeeds, and keeps its thread meanwhile: nothing else runs.
    Block,
    /// It ends as soon as it is told to stop, with an error.
    Heed,
    /// An error.
    Retry,
    /// To be tried again in so many milliseconds.
    RetryAfter(u64),
    /// Put off.
    Defer(u64),
    /// Its router is to pause.
    Pause(u64),
    /// Never again.
    Dead,
    /// It panics.
    Panic,
}

/// The operations that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// [`inbox::Store::receive`]
    Receive,
    /// [`inbox::Store::claim`]
    Claim,
    /// [`inbox::Store::settle`]
    Settle,
    /// [`inbox::Store::extend`]
    Extend,
    /// [`inbox::Store::begin`]
    Begin,
    /// [`inbox::Store::subscribe`]
    Subscribe,
}

/// What goes wrong with one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Of which operation.
    pub operation: Operation,
    /// Which of its calls, from 0.
    pub call: u32,
    /// What.
    pub what: Wrong,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wrong {
    /// It is done so much later, if the caller still waits.
    Delay(u64),
    /// It is done so much later, also if nobody waits any more.
    Late(u64),
    /// It is done, and answered so much later.
    Slow(u64),
    /// It fails without effect.
    Fail,
    /// It meets a conflict.
    Conflict,
    /// It fails in a way that waiting does not mend.
    Fatal,
    /// It is done, and its answer is lost.
    LoseAnswer,
    /// It is not done and never answered.
    Hang,
    /// It is done and never answered.
    HangAfter,
}

/// A time in which the store does nothing, but for operators and the janitor.
#[derive(Clone, Debug, PartialEq)]
pub struct Outage {
    /// From when.
    pub from: u64,
    /// Until when.
    pub to: u64,
    /// Calls wait for its end; otherwise they fail.
    pub waits: bool,
}

/// An end of a part before the run's.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// Which.
    pub part: Part,
    /// When.
    pub at: u64,
    /// It is killed; otherwise it is asked to end.
    pub kill: bool,
    /// After how long it begins again.
    pub pause: u64,
}

/// What an operator does, if the state of the message allows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Intervention {
    /// When.
    pub at: u64,
    /// What.
    pub does: Change,
}

/// A change by an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Replays a message.
    Replay(usize),
    /// Discards it.
    Discard(usize),
    /// Makes it due in so many milliseconds.
    Reschedule(usize, u64),
    /// Pauses a handler for so many milliseconds.
    Pause(u8, u64),
}

/// A part, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A receiver.
    Receiver(u8),
    /// A processor.
    Processor(u8),
    /// The inline consumer.
    Inline,
}

/// What the parts are told. Durations are milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How many receivers.
    pub receivers: u8,
    /// How many processors.
    pub processors: u8,
    /// Of leases.
    pub lease: u64,
    /// Handlers of a router at a time.
    pub concurrency: usize,
    /// Messages in a claim.
    pub batch: u32,
    /// Messages claimed before there is room.
    pub look_ahead: usize,
    /// Whether the second handler works on runs of its ordering keys.
    pub runs: bool,
    /// Of handlers.
    pub timeout: Option<u64>,
    /// Attempts.
    pub attempts: u32,
    /// Of parts.
    pub drain_limit: u64,
    /// Of one call.
    pub store_timeout: u64,
    /// Of settlements.
    pub linger: u64,
    /// Whether a dead message blocks its ordering key.
    pub block: bool,
    /// Deliveries in a batch.
    pub receive_batch: usize,
    /// Deliveries not acknowledged.
    pub unacknowledged: usize,
    /// How long final messages are kept.
    pub retention: u64,
}

impl Scenario {
    /// What this seed stands for.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let settings = settings(&mut random);
        let count = random.usize(1..10);
        let is_ordered = random.bool();
        let messages: Vec<_> = (0..count)
            .map(|_| Sent {
                handler: random.u8(0..2),
                ordering_key: (is_ordered && random.u8(0..4) > 0).then(|| random.u8(0..2)),
            })
            .collect();
        // Some seeds have nothing but some of the kinds of trouble.
        let (does_fail, does_misbehave, does_stop) = (
            random.u8(0..5) > 0,
            random.u8(0..4) > 0,
            random.u8(0..3) > 0,
        );
        // Drawn apart, so that the rest of the plan is as it was when there were neither.
        let mut others = Rng::with_seed(seed ^ OPERATORS_AND_OUTAGES);
        Self {
            seed,
            interventions: interventions(&mut others, count),
            outages: outages(&mut others, settings.lease),
            deliveries: deliveries(&mut random, count),
            behaviours: behaviours(&mut random, count, does_misbehave),
            faults: faults(&mut random, does_fail),
            failed_acknowledgements: (0..random.u32(0..3)).map(|_| random.u32(0..12)).collect(),
            stops: stops(&mut random, &settings, does_stop),
            jumps: (0..random.usize(0..3).saturating_sub(1))
                .map(|_| (random.u64(0..CALM), random.u64(10..20_000)))
                .collect(),
            clock_percent: random
                .choice([100, 100, 100, 100, 80, 110, 130])
                .unwrap_or(100),
            messages,
            settings,
        }
    }
}

/// Makes another sequence of a seed.
const OPERATORS_AND_OUTAGES: u64 = 0x6f70_6572_6174_6f72;

fn settings(random: &mut Rng) -> Settings {
    Settings {
        receivers: random.u8(1..3),
        processors: random.u8(1..4),
        lease: random.u64(1_000..15_000),
        concurrency: random.usize(1..5),
        batch: random.u32(1..6),
        look_ahead: random.usize(0..6).saturating_sub(2),
        runs: random.bool(),
        timeout: random.bool().then(|| random.u64(500..10_000)),
        attempts: random.u32(1..6),
        drain_limit: random.u64(0..8_000),
        store_timeout: random.u64(1_000..10_000),
        linger: random.u64(0..50),
        block: random.u8(0..4) == 0,
        receive_batch: random.usize(1..8),
        unacknowledged: random.usize(1..12),
        retention: random.u64(2_000..30_000),
    }
}

/// Below the first bound in half of the cases, and otherwise below the second.
fn soon_or_late(random: &mut Rng, soon: u64, late: u64) -> u64 {
    let bound = if random.bool() { soon } else { late };
    random.u64(0..bound)
}

fn deliveries(random: &mut Rng, messages: usize) -> Vec<Delivered> {
    let mut all = Vec::new();
    let is_inline = random.bool();
    for message in 0..messages {
        for _ in 0..1 + random.usize(0..4).saturating_sub(1) {
            let leaves = (random.u8(0..6) == 0).then(|| random.u64(0..5_000));
            all.push(Delivered {
                message,
                at: soon_or_late(random, 3_000, CALM),
                inline: (is_inline && random.u8(0..3) == 0).then_some(leaves),
            });
        }
    }
    all
}

fn behaviours(random: &mut Rng, messages: usize, does_misbehave: bool) -> Vec<Behaviour> {
    let mut all = Vec::new();
    for message in 0..messages {
        for run in 0..random.u32(0..5) {
            let does = match random.u8(0..14) {
                _ if !does_misbehave => Does::Succeed,
                0 => Does::Retry,
                1 => Does::RetryAfter(random.u64(0..4_000)),
                2 => Does::Defer(random.u64(0..4_000)),
                3 => Does::Pause(random.u64(0..4_000)),
                4 => Does::Dead,
                5 => Does::Panic,
                6 => Does::Block,
                7 | 8 => Does::Heed,
                _ => Does::Succeed,
            };
            let takes = match random.u8(0..4) {
                0 => random.u64(0..100),
                1 | 2 => random.u64(0..2_000),
                _ => random.u64(0..15_000),
            };
            all.push(Behaviour {
                message,
                run,
                takes,
                does,
            });
        }
    }
    all
}

fn faults(random: &mut Rng, does_fail: bool) -> Vec<Fault> {
    let count = if does_fail { random.usize(0..14) } else { 0 };
    let mut all = Vec::new();
    for _ in 0..count {
        let operation = match random.u8(0..12) {
            0 | 1 => Operation::Receive,
            2..=4 => Operation::Claim,
            5..=7 => Operation::Settle,
            8 | 9 => Operation::Extend,
            10 => Operation::Begin,
            _ => Operation::Subscribe,
        };
        let call = u32::try_from(soon_or_late(random, 6, 40)).unwrap_or(0);
        let what = match random.u8(0..19) {
            0 | 1 => Wrong::Delay(random.u64(0..12_000)),
            2..=4 => Wrong::Late(random.u64(0..20_000)),
            5 | 6 => Wrong::Slow(random.u64(0..12_000)),
            7 | 8 => Wrong::Fail,
            9 => Wrong::Conflict,
            10 => Wrong::Fatal,
            11..=14 => Wrong::LoseAnswer,
            15 | 16 => Wrong::Hang,
            _ => Wrong::HangAfter,
        };
        // An outage is several calls in a row.
        let length = if random.u8(0..5) == 0 {
            random.u32(2..8)
        } else {
            1
        };
        all.extend((call..call + length).map(|call| Fault {
            operation,
            call,
            what,
        }));
    }
    all
}

fn interventions(random: &mut Rng, messages: usize) -> Vec<Intervention> {
    let count = random.usize(0..14).saturating_sub(6);
    let mut all: Vec<_> = (0..count)
        .map(|_| Intervention {
            at: soon_or_late(random, 10_000, CALM),
            does: match random.u8(0..8) {
                0..=3 => Change::Replay(random.usize(0..messages)),
                4 => Change::Discard(random.usize(0..messages)),
                5 | 6 => Change::Reschedule(random.usize(0..messages), random.u64(0..5_000)),
                _ => Change::Pause(random.u8(0..2), random.u64(0..8_000)),
            },
        })
        .collect();
    all.sort_by_key(|intervention| intervention.at);
    all
}

fn outages(random: &mut Rng, lease: u64) -> Vec<Outage> {
    let count = random.usize(0..5).saturating_sub(2);
    let outage = |_| {
        let from = soon_or_late(random, 8_000, CALM);
        Outage {
            from,
            to: from + random.u64(100..lease * 2),
            waits: random.bool(),
        }
    };
    (0..count).map(outage).collect()
}

fn stops(random: &mut Rng, settings: &Settings, does_stop: bool) -> Vec<Stop> {
    let count = if does_stop { random.usize(0..6) } else { 0 };
    let mut all: Vec<_> = (0..count)
        .map(|_| Stop {
            part: match random.u8(0..6) {
                0 | 1 => Part::Receiver(random.u8(0..settings.receivers)),
                2..=4 => Part::Processor(random.u8(0..settings.processors)),
                _ => Part::Inline,
            },
            at: soon_or_late(random, 10_000, CALM),
            kill: random.bool(),
            pause: random.u64(0..5_000),
        })
        .collect();
    all.sort_by_key(|stop| stop.at);
    all
}
