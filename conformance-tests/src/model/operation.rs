//! The operations of a sequence, and how they are drawn.
//!
//! Leases and delays are odd multiples of fifty seconds and the clock moves by multiples of a
//! hundred, so that no decision hangs on the moments that two stores take to work.

use inbox_api::State;
use proptest::{collection::vec, prelude::*, sample::select};

pub(super) const HANDLERS: [&str; 2] = ["a", "b"];
pub(super) const ACTORS: usize = 3;
const IDS: u8 = 6;
const LENGTHS: [u64; 3] = [50, 150, 450];
const LONGEST: usize = 40;

/// Which message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) handler: usize,
    pub(super) id: u8,
}

/// A message to receive or begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) target: Target,
    /// 0 means none.
    pub(super) ordering_key: u8,
    /// In seconds from now.
    pub(super) due: u64,
    /// Whether its kind, its payload and its correlation id are others than usual.
    pub(super) altered: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Processed { with_result: bool },
    Retry { seconds: u64 },
    Dead { blocks: bool },
    Release,
    Defer { seconds: u64, with_error: bool },
}

/// One of the leases that an actor was ever given: so perhaps a stale one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// From the newest backwards.
    pub(super) back: usize,
}

/// The messages that a slice means.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) narrowing: Narrowing,
    pub(super) limit: u32,
    /// Whether slices follow each other to the end.
    pub(super) to_the_end: bool,
    pub(super) signed: bool,
}

/// What is done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Replay,
    Discard,
    Reschedule { due: u64 },
}

/// Parts of a filter, each of which most filters lack. Ages and waits in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Narrowing {
    pub(super) states: Vec<State>,
    pub(super) handler: Option<usize>,
    pub(super) ids: Vec<u8>,
    pub(super) altered: bool,
    /// Whether of the kind of those that are altered, or of the usual one.
    pub(super) altered_kind: Option<bool>,
    pub(super) ordering_key: Option<u8>,
    pub(super) error: Option<&'static str>,
    pub(super) age: Option<Age>,
    pub(super) due: Option<Wait>,
    pub(super) min_started: Option<u32>,
    pub(super) max_started: Option<u32>,
    pub(super) blocking: bool,
    pub(super) error_type: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Age {
    OlderThan(u64),
    NewerThan(u64),
    FinishedLongerAgo(u64),
    FinishedWithin(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    LaterThan(u64),
    Within(u64),
}

/// What has been final for long enough.
#[derive(Clone, Debug)]
pub(super) struct Expired {
    pub(super) state: State,
    pub(super) older_than: u64,
    pub(super) handler: Option<usize>,
}

/// What is done in a transaction.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Receive(Vec<Sent>),
    Record {
        sent: Sent,
        with_result: bool,
        /// Whether a result is kept behind the record.
        kept: bool,
    },
    Settle(Vec<(Held, End)>),
}

/// How a transaction ends.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    Commit,
    RollBack,
    Drop,
    SettleAndCommit(Vec<(Held, End)>),
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Receive(Vec<Sent>),
    Claim {
        actor: usize,
        handlers: Vec<usize>,
        limit: u32,
        run_limit: u32,
        seconds: u64,
    },
    Settle {
        actor: usize,
        leases: Vec<(Held, End)>,
    },
    Extend {
        actor: usize,
        leases: Vec<Held>,
        seconds: u64,
    },
    Begin {
        actor: usize,
        sent: Sent,
        seconds: u64,
    },
    Transaction {
        actor: usize,
        parts: Vec<Part>,
        ending: Ending,
    },
    Replay {
        target: Target,
        payload: bool,
        headers: bool,
        signed: bool,
    },
    Reschedule {
        target: Target,
        due: u64,
        signed: bool,
    },
    Discard {
        target: Target,
        signed: bool,
    },
    Slice(Choice, Change),
    ClearSlice {
        handler: usize,
        limit: u32,
    },
    Pause {
        handler: usize,
        paused: bool,
    },
    Purge(Expired),
    PurgeArchived {
        archived: Expired,
        purged: Expired,
    },
    DropPayloads(Expired),
    Get(Target),
    List(Narrowing),
    Pages {
        narrowing: Narrowing,
        limit: u32,
        newest_first: bool,
    },
    Advance {
        seconds: u64,
    },
}

/// What the messages of a sequence are. In a small world operations meet on one message more often.
#[derive(Clone, Debug)]
struct World {
    handlers: usize,
    ids: u8,
    /// The lowest and the highest ordering key; 0 is for none.
    ordering_keys: (u8, u8),
}

fn world() -> impl Strategy<Value = World> {
    let ordering_keys = select(vec![(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]);
    (1..=HANDLERS.len(), select(vec![2, 3, IDS]), ordering_keys).prop_map(
        |(handlers, ids, ordering_keys)| World {
            handlers,
            ids,
            ordering_keys,
        },
    )
}

fn target(world: &World) -> impl Strategy<Value = Target> + use<> {
    (0..world.handlers, 0..world.ids).prop_map(|(handler, id)| Target { handler, id })
}

fn sent(world: &World) -> impl Strategy<Value = Sent> + use<> {
    let due = prop_oneof![4 => Just(0), 1 => select(LENGTHS.to_vec())];
    let altered = prop_oneof![3 => Just(false), 1 => Just(true)];
    let (lowest, highest) = world.ordering_keys;
    (target(world), lowest..=highest, due, altered).prop_map(
        |(target, ordering_key, due, altered)| Sent {
            target,
            ordering_key,
            due,
            altered,
        },
    )
}

fn delay() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), select(LENGTHS.to_vec())]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        3 => any::<bool>().prop_map(|with_result| End::Processed { with_result }),
        2 => delay().prop_map(|seconds| End::Retry { seconds }),
        2 => any::<bool>().prop_map(|blocks| End::Dead { blocks }),
        1 => Just(End::Release),
        1 => (delay(), any::<bool>())
            .prop_map(|(seconds, with_error)| End::Defer { seconds, with_error }),
    ]
}

/// Mostly the newest leases.
fn held() -> impl Strategy<Value = Held> {
    prop_oneof![3 => 0..3_usize, 1 => 3..12_usize].prop_map(|back| Held { back })
}

fn choice() -> impl Strategy<Value = Choice> {
    let wide = (
        vec(select(State::ALL.to_vec()), 0..3),
        proptest::option::of(0..HANDLERS.len()),
    );
    let wide = wide.prop_map(|(states, handler)| Narrowing {
        states,
        handler,
        ..Narrowing::default()
    });
    let narrowing = prop_oneof![2 => wide, 1 => narrowing()];
    (narrowing, 1..4_u32, any::<bool>(), any::<bool>()).prop_map(
        |(narrowing, limit, to_the_end, signed)| Choice {
            narrowing,
            limit,
            to_the_end,
            signed,
        },
    )
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Replay),
        Just(Change::Discard),
        delay().prop_map(|due| Change::Reschedule { due }),
    ]
}

fn narrowing() -> impl Strategy<Value = Narrowing> {
    let age = (select(vec![50, 250]), 0..4).prop_map(|(seconds, which)| match which {
        0 => Age::OlderThan(seconds),
        1 => Age::NewerThan(seconds),
        2 => Age::FinishedLongerAgo(seconds),
        _ => Age::FinishedWithin(seconds),
    });
    let wait = (select(vec![0, 100, 300]), any::<bool>()).prop_map(|(seconds, later)| {
        if later {
            Wait::LaterThan(seconds)
        } else {
            Wait::Within(seconds)
        }
    });
    let texts = vec![
        "",
        "app::Error",
        "app::Error1: 1",
        "reason",
        "REASON",
        "'",
        "\\",
        "%",
        "ü",
        "\0",
    ];
    let usual = (
        prop_oneof![3 => Just(Vec::new()), 1 => vec(select(State::ALL.to_vec()), 1..4)],
        proptest::option::weighted(0.3, 0..HANDLERS.len()),
        prop_oneof![3 => Just(Vec::new()), 1 => vec(0..IDS, 1..4)],
        prop_oneof![3 => Just(false), 1 => Just(true)],
        proptest::option::weighted(0.3, age),
        proptest::option::weighted(0.3, wait),
        proptest::option::weighted(0.2, 0..3_u32),
        proptest::option::weighted(0.1, 0..3_u32),
        prop_oneof![9 => Just(false), 1 => Just(true)],
        proptest::option::weighted(0.2, 0..2_u8),
    );
    let rest = (
        proptest::option::weighted(0.1, any::<bool>()),
        proptest::option::weighted(0.1, 1..3_u8),
        proptest::option::weighted(0.1, select(texts)),
    );
    (usual, rest).prop_map(|(usual, rest)| {
        let (
            states,
            handler,
            ids,
            altered,
            age,
            due,
            min_started,
            max_started,
            blocking,
            error_type,
        ) = usual;
        let (altered_kind, ordering_key, error) = rest;
        Narrowing {
            states,
            handler,
            ids,
            altered,
            altered_kind,
            ordering_key,
            error,
            age,
            due,
            min_started,
            max_started,
            blocking,
            error_type,
        }
    })
}

fn part(world: &World) -> impl Strategy<Value = Part> + use<> {
    prop_oneof![
        1 => vec(sent(world), 0..4).prop_map(Part::Receive),
        2 => (sent(world), any::<bool>(), any::<bool>()).prop_map(
            |(sent, with_result, kept)| Part::Record { sent, with_result, kept }
        ),
        2 => vec((held(), end()), 0..4).prop_map(Part::Settle),
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    let settle = vec((held(), end()), 0..3).prop_map(Ending::SettleAndCommit);
    let processed = held().prop_map(|held| {
        let end = End::Processed { with_result: false };
        Ending::SettleAndCommit(vec![(held, end)])
    });
    prop_oneof![3 => Just(Ending::Commit), 1 => Just(Ending::RollBack), 1 => Just(Ending::Drop), 1 => settle, 1 => processed]
}

fn expired() -> impl Strategy<Value = Expired> {
    let finals = select(vec![State::Processed, State::Dead, State::Discarded]);
    let handler = proptest::option::of(0..HANDLERS.len());
    (finals, select(vec![0, 50, 250]), handler).prop_map(|(state, older_than, handler)| Expired {
        state,
        older_than,
        handler,
    })
}

fn operation(world: &World) -> impl Strategy<Value = Operation> + use<> {
    let actor = || 0..ACTORS;
    let seconds = || select(LENGTHS.to_vec());
    let handlers = prop_oneof![
        Just(vec![0]),
        Just(vec![1]),
        Just(vec![0, 1]),
        Just(vec![1, 0])
    ];
    prop_oneof![
        6 => vec(sent(world), 1..5).prop_map(Operation::Receive),
        8 => (actor(), handlers, 1..5_u32, 0..5_u32, seconds()).prop_map(
            |(actor, handlers, limit, run_limit, seconds)| Operation::Claim { actor, handlers, limit, run_limit, seconds }
        ),
        8 => (actor(), vec((held(), end()), 1..4))
            .prop_map(|(actor, leases)| Operation::Settle { actor, leases }),
        2 => (actor(), vec(held(), 1..3), seconds()).prop_map(
            |(actor, leases, seconds)| Operation::Extend { actor, leases, seconds }
        ),
        3 => (actor(), sent(world), seconds())
            .prop_map(|(actor, sent, seconds)| Operation::Begin { actor, sent, seconds }),
        3 => (actor(), vec(part(world), 0..4), ending()).prop_map(
            |(actor, parts, ending)| Operation::Transaction { actor, parts, ending }
        ),
        2 => (target(world), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(target, payload, headers, signed)| Operation::Replay { target, payload, headers, signed }
        ),
        2 => (target(world), delay(), any::<bool>())
            .prop_map(|(target, due, signed)| Operation::Reschedule { target, due, signed }),
        1 => (target(world), any::<bool>())
            .prop_map(|(target, signed)| Operation::Discard { target, signed }),
        3 => (choice(), change()).prop_map(|(choice, change)| Operation::Slice(choice, change)),
        1 => (0..world.handlers, 1..3_u32)
            .prop_map(|(handler, limit)| Operation::ClearSlice { handler, limit }),
        2 => (0..world.handlers, prop_oneof![1 => Just(true), 2 => Just(false)])
            .prop_map(|(handler, paused)| Operation::Pause { handler, paused }),
        2 => expired().prop_map(Operation::Purge),
        1 => (expired(), expired()).prop_map(
            |(archived, purged)| Operation::PurgeArchived { archived, purged }
        ),
        1 => expired().prop_map(Operation::DropPayloads),
        1 => target(world).prop_map(Operation::Get),
        2 => narrowing().prop_map(Operation::List),
        2 => (narrowing(), 0..4_u32, any::<bool>()).prop_map(
            |(narrowing, limit, newest_first)| Operation::Pages { narrowing, limit, newest_first }
        ),
        4 => select(vec![100, 200, 400]).prop_map(|seconds| Operation::Advance { seconds }),
    ]
}

/// What is done to one inbox.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) drop_processed_payloads: bool,
    pub(super) operations: Vec<Operation>,
}

/// Sequences of operations.
pub(super) fn sequences() -> impl Strategy<Value = Sequence> {
    let operations = world().prop_flat_map(|world| vec(operation(&world), 1..LONGEST));
    let drop = prop_oneof![4 => Just(false), 1 => Just(true)];
    (drop, operations).prop_map(|(drop_processed_payloads, operations)| Sequence {
        drop_processed_payloads,
        operations,
    })
}
