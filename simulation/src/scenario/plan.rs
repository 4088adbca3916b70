//! Draws a scenario from a seed.

use fastrand::Rng;
use inbox::Fallback;

use super::{
    Behaviour, CALLED, CALM, Caller, Change, Delivered, Deployment, Does, Fault, Intervention,
    Kind, Odd, Oddity, Operation, Outage, Part, RECORDED, Rejected, Scenario, Sent, Settings,
    SlowClaims, Stop, Transactions, Whole, Wrong,
};

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
                is_newer: false,
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
        let mut whole = Self {
            kind: Kind::default(),
            seed,
            interventions: interventions(&mut others, count),
            outages: outages(&mut others, settings.lease),
            deliveries: deliveries(&mut random, count),
            behaviours: behaviours(&mut random, count, does_misbehave),
            faults: faults(&mut random, does_fail),
            refusals: Vec::new(),
            slow_claims: Vec::new(),
            failed_acknowledgements: (0..random.u32(0..3)).map(|_| random.u32(0..12)).collect(),
            stops: stops(&mut random, &settings, does_stop),
            jumps: (0..random.usize(0..3).saturating_sub(1))
                .map(|_| (random.u64(0..CALM), random.u64(10..20_000)))
                .collect(),
            deployment: None,
            clock_percent: random
                .choice([100, 100, 100, 100, 80, 110, 130])
                .unwrap_or(100),
            messages,
            settings,
        };
        brokers(&mut whole);
        callers(&mut whole);
        crashes(&mut whole);
        late_claims(&mut whole);
        long_leases(&mut whole);
        transactions(&mut whole);
        small_settlements(&mut whole);
        whole_batches(&mut whole);
        clocks(&mut whole);
        runs(&mut whole);
        inline_transactions(&mut whole);
        deployment(&mut whole);
        whole
    }
}

/// What brokers do, and what they deliver that is no message or is only recorded.
fn brokers(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ BROKERS);
    let settings = &mut whole.settings;
    settings.keeps_order = random.u8(0..3) == 0;
    settings.acknowledging = random.u64(0..800).saturating_sub(400);
    settings.rejected = match random.u8(0..4) {
        0 => Rejected::Reject,
        1 => Rejected::Keep,
        2 => Rejected::Stop,
        _ => Rejected::KeepOrStop,
    };
    if random.bool() {
        for sent in &mut whole.messages {
            if random.u8(0..5) == 0 {
                sent.handler = RECORDED;
            }
        }
    }
    let is_odd = random.bool();
    for delivered in &mut whole.deliveries {
        let sent = whole.messages.get(delivered.message);
        if sent.is_some_and(|sent| sent.handler == RECORDED) {
            delivered.inline = None;
        }
        if is_odd && random.u8(0..4) == 0 {
            delivered.odd = Some(odd(&mut random));
        }
    }
    let kills = random.usize(0..5).saturating_sub(2);
    whole.stops.extend((0..kills).map(|_| Stop {
        part: Part::Recorder,
        at: soon_or_late(&mut random, 5_000, CALM),
        kill: random.bool(),
        pause: random.u64(0..5_000),
    }));
    whole.stops.sort_by_key(|stop| stop.at);
}

/// What only inline consumers work on, whose callers may not come back, and what the store refuses.
fn callers(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ CALLERS);
    whole.settings.give_up_after = random.u64(500..10_000);
    if random.bool() {
        for sent in &mut whole.messages {
            if sent.handler != RECORDED && random.u8(0..4) == 0 {
                sent.handler = CALLED;
            }
        }
    }
    for delivered in &mut whole.deliveries {
        let sent = whole.messages.get(delivered.message);
        if sent.is_some_and(|sent| sent.handler == CALLED) {
            let leaves = delivered.inline.and_then(|caller| caller.leaves);
            let leaves = leaves.or_else(|| (random.u8(0..3) == 0).then(|| random.u64(0..3_000)));
            let times = (random.u8(0..4) > 0).then(|| random.u32(1..4));
            delivered.inline = Some(Caller { leaves, times });
        }
    }
    for behaviour in &mut whole.behaviours {
        if behaviour.does == Does::Succeed && random.u8(0..8) == 0 {
            behaviour.does = Does::AnswerTooMuch;
        }
    }
    for _ in 0..random.usize(0..6).saturating_sub(2) {
        let first = u32::try_from(soon_or_late(&mut random, 8, 40)).unwrap_or(0);
        whole.refusals.extend(first..first + random.u32(1..3));
    }
    let stops = random.usize(0..5).saturating_sub(2);
    whole.stops.extend((0..stops).map(|_| Stop {
        part: Part::Janitor,
        at: random.u64(0..CALM),
        kill: random.bool(),
        pause: random.u64(0..5_000),
    }));
    whole.stops.sort_by_key(|stop| stop.at);
}

/// In some seeds workers die early, and messages have few attempts.
fn crashes(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ CRASHES);
    if random.u8(0..4) > 0 {
        return;
    }
    let settings = &mut whole.settings;
    settings.attempts = random.u32(2..4);
    settings.processors = 1;
    settings.concurrency = random.usize(3..6);
    for _ in 0..random.usize(1..4) {
        whole.stops.push(Stop {
            part: Part::Processor(0),
            at: random.u64(500..12_000),
            kill: true,
            pause: random.u64(0..1_000),
        });
    }
    whole.stops.sort_by_key(|stop| stop.at);
}

/// In some seeds a processor is told to stop while a claim of it is not answered for long.
fn late_claims(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ LATE_CLAIMS);
    if random.u8(0..5) > 0 {
        return;
    }
    whole.settings.store_timeout = random.u64(9_000..12_000);
    let at = random.u64(2_000..15_000);
    whole.slow_claims.push(SlowClaims {
        from: at - 1_500,
        to: at,
        by: random.u64(5_500..8_500),
    });
    whole.stops.push(Stop {
        part: Part::Processor(random.u8(0..whole.settings.processors)),
        at,
        kill: false,
        pause: random.u64(0..5_000),
    });
    whole.stops.sort_by_key(|stop| stop.at);
    // There is something to be claimed then.
    for delivered in &mut whole.deliveries {
        if random.u8(0..3) == 0 {
            delivered.at = at - random.u64(0..1_500);
        }
    }
}

/// In some seeds leases are long, and the store is away when they are to be renewed.
fn long_leases(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ LONG_LEASES);
    if random.u8(0..16) > 0 {
        return;
    }
    whole.settings.lease = random.u64(62_000..72_000);
    whole.settings.timeout = None;
    let from = random.u64(18_000..26_000);
    let to = random.u64(from..CALM);
    whole.outages.push(Outage {
        from,
        to,
        waits: random.bool(),
    });
    for behaviour in &mut whole.behaviours {
        if random.bool() {
            behaviour.takes = random.u64(20_000..60_000);
        }
    }
}

/// In half of the seeds handlers work in transactions, of which calls go wrong as well.
fn transactions(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ TRANSACTIONS);
    let settings = &mut whole.settings;
    settings.transactions = match random.u8(0..6) {
        0..=2 => return,
        3 | 4 => Transactions::Many,
        _ => Transactions::OneAtATime,
    };
    settings.notes = random.bool();
    let fails = random.u8(0..5) > 0;
    let count = if fails { random.usize(0..8) } else { 0 };
    for _ in 0..count {
        let operation = match random.u8(0..8) {
            0 => Operation::Open,
            1 | 2 => Operation::SettleIn,
            3..=6 => Operation::Commit,
            _ => Operation::RollBack,
        };
        let call = u32::try_from(soon_or_late(&mut random, 6, 30)).unwrap_or(0);
        let what = wrong(&mut random);
        whole.faults.push(Fault {
            operation,
            call,
            what,
        });
    }
}

/// In some seeds few settlements share a call.
fn small_settlements(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ SMALL_SETTLEMENTS);
    if random.u8(0..3) == 0 {
        whole.settings.settle_batch = random.usize(1..4);
    }
}

/// In some seeds the second handler works on whole batches.
fn whole_batches(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ WHOLE_BATCHES);
    whole.settings.whole = match random.u8(0..6) {
        0 => Some(Whole::Answers),
        1 => Some(Whole::Fails),
        _ => None,
    };
}

/// In some seeds most messages have one ordering key, and come at about the same time.
fn runs(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ RUNS);
    if random.u8(0..4) > 0 {
        return;
    }
    whole.settings.runs = true;
    let (keys, at) = (random.u8(1..3), random.u64(0..3_000));
    for sent in &mut whole.messages {
        if sent.handler < RECORDED && random.u8(0..6) > 0 {
            sent.handler = 1;
            sent.ordering_key = Some(random.u8(0..keys));
        }
    }
    for delivered in &mut whole.deliveries {
        if random.u8(0..3) > 0 {
            delivered.at = at + random.u64(0..300);
        }
    }
}

/// In some seeds processors have clocks of their own.
fn clocks(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ CLOCKS);
    if random.u8(0..8) == 0 {
        let processors = 0..whole.settings.processors;
        whole.settings.leases_percent = processors.map(|_| random.u64(70..140)).collect();
    }
}

/// In half of the seeds with transactions inline handlers have some, too.
fn inline_transactions(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ INLINE_TRANSACTIONS);
    let has_transactions = whole.settings.transactions != Transactions::None;
    whole.settings.inline_settles = has_transactions && random.bool();
}

/// In some seeds processors do not have a handler for each message from the beginning.
fn deployment(whole: &mut Scenario) {
    let mut random = Rng::with_seed(whole.seed ^ DEPLOYMENT);
    if random.u8(0..6) > 0 {
        return;
    }
    let fallback = random.choice([
        Fallback::Leave,
        Fallback::DeadLetter,
        Fallback::Retry,
        Fallback::Ignore,
    ]);
    whole.deployment = Some(Deployment {
        at: soon_or_late(&mut random, 5_000, CALM),
        fallback: fallback.unwrap_or_default(),
    });
    for sent in &mut whole.messages {
        sent.is_newer = sent.handler < RECORDED && random.u8(0..3) == 0;
    }
}

fn odd(random: &mut Rng) -> Odd {
    Odd {
        what: match random.u8(0..6) {
            0 => Oddity::NoMessage,
            1 => Oddity::NoBytes,
            2 => Oddity::Panics,
            3 => Oddity::TooLarge,
            4 => Oddity::PanicsWhenStored,
            _ => Oddity::PanicsWhenAcknowledged,
        },
        times: random.u32(1..5),
    }
}

/// Makes another sequence of a seed.
const OPERATORS_AND_OUTAGES: u64 = 0x6f70_6572_6174_6f72;
/// The same for what brokers do.
const BROKERS: u64 = 0x6272_6f6b_6572_735f;
/// The same for workers that die early.
const CRASHES: u64 = 0x6372_6173_6865_735f;
/// The same for claims that are answered late.
const LATE_CLAIMS: u64 = 0x6c61_7465_5f63_6c61;
/// The same for long leases.
const LONG_LEASES: u64 = 0x6c6f_6e67_5f6c_6561;
/// The same for transactions.
const TRANSACTIONS: u64 = 0x7472_616e_7361_6374;
/// The same for settlements.
const SMALL_SETTLEMENTS: u64 = 0x736d_616c_6c5f_7365;
/// The same for batches.
const WHOLE_BATCHES: u64 = 0x7768_6f6c_655f_6261;
/// The same for runs.
const RUNS: u64 = 0x7275_6e73_5f5f_5f5f;
/// The same for clocks.
const CLOCKS: u64 = 0x636c_6f63_6b73_5f5f;
/// The same for transactions of inline consumers.
const INLINE_TRANSACTIONS: u64 = 0x696e_6c69_6e65_7472;
/// The same for deployments.
const DEPLOYMENT: u64 = 0x6465_706c_6f79_6d65;
/// The same for callers of inline consumers, and refusals.
const CALLERS: u64 = 0x6361_6c6c_6572_735f;

fn settings(random: &mut Rng) -> Settings {
    Settings {
        receivers: random.u8(1..3),
        processors: random.u8(1..4),
        lease: random.u64(1_000..15_000),
        concurrency: random.usize(1..5),
        batch: random.u32(1..6),
        look_ahead: random.usize(0..6).saturating_sub(2),
        runs: random.bool(),
        whole: None,
        leases_percent: Vec::new(),
        transactions: Transactions::None,
        notes: false,
        inline_settles: false,
        timeout: random.bool().then(|| random.u64(500..10_000)),
        attempts: random.u32(1..6),
        drain_limit: random.u64(0..8_000),
        store_timeout: random.u64(1_000..10_000),
        linger: random.u64(0..50),
        settle_batch: 250,
        block: random.u8(0..4) == 0,
        receive_batch: random.usize(1..8),
        unacknowledged: random.usize(1..12),
        retention: random.u64(2_000..30_000),
        keeps_order: false,
        acknowledging: 0,
        give_up_after: 0,
        rejected: Rejected::Reject,
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
                inline: (is_inline && random.u8(0..3) == 0).then_some(Caller {
                    leaves,
                    times: None,
                }),
                odd: None,
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
        let what = wrong(random);
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

fn wrong(random: &mut Rng) -> Wrong {
    match random.u8(0..19) {
        0 | 1 => Wrong::Delay(random.u64(0..12_000)),
        2..=4 => Wrong::Late(random.u64(0..20_000)),
        5 | 6 => Wrong::Slow(random.u64(0..12_000)),
        7 | 8 => Wrong::Fail,
        9 => Wrong::Conflict,
        10 => Wrong::Fatal,
        11..=14 => Wrong::LoseAnswer,
        15 | 16 => Wrong::Hang,
        _ => Wrong::HangAfter,
    }
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
