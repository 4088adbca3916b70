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
    pub(super) states: Vec<State>,
    pub(super) handler: Option<usize>,
    pub(super) limit: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Receive(Vec<Sent>),
    Claim {
        actor: usize,
        handlers: Vec<usize>,
        limit: u32,
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
    Replay {
        target: Target,
        edited: bool,
    },
    Discard(Target),
    ReplaySlice(Choice),
    DiscardSlice(Choice),
    Purge {
        state: State,
        older_than: u64,
    },
    Get(Target),
    Advance {
        seconds: u64,
    },
}

fn target() -> impl Strategy<Value = Target> {
    (0..HANDLERS.len(), 0..IDS).prop_map(|(handler, id)| Target { handler, id })
}

fn sent() -> impl Strategy<Value = Sent> {
    let due = prop_oneof![4 => Just(0), 1 => select(LENGTHS.to_vec())];
    (target(), 0..3_u8, due).prop_map(|(target, ordering_key, due)| Sent {
        target,
        ordering_key,
        due,
    })
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        3 => any::<bool>().prop_map(|with_result| End::Processed { with_result }),
        2 => prop_oneof![Just(0), select(LENGTHS.to_vec())]
            .prop_map(|seconds| End::Retry { seconds }),
        2 => any::<bool>().prop_map(|blocks| End::Dead { blocks }),
        1 => Just(End::Release),
        1 => (prop_oneof![Just(0), select(LENGTHS.to_vec())], any::<bool>())
            .prop_map(|(seconds, with_error)| End::Defer { seconds, with_error }),
    ]
}

/// Mostly the newest leases.
fn held() -> impl Strategy<Value = Held> {
    prop_oneof![3 => 0..3_usize, 1 => 3..12_usize].prop_map(|back| Held { back })
}

fn choice() -> impl Strategy<Value = Choice> {
    let states = vec(select(State::ALL.to_vec()), 0..3);
    let handler = proptest::option::of(0..HANDLERS.len());
    (states, handler, 1..4_u32).prop_map(|(states, handler, limit)| Choice {
        states,
        handler,
        limit,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let actor = || 0..ACTORS;
    let seconds = || select(LENGTHS.to_vec());
    let handlers = prop_oneof![
        Just(vec![0]),
        Just(vec![1]),
        Just(vec![0, 1]),
        Just(vec![1, 0])
    ];
    let finals = select(vec![State::Processed, State::Dead, State::Discarded]);
    prop_oneof![
        6 => vec(sent(), 1..5).prop_map(Operation::Receive),
        8 => (actor(), handlers, 1..5_u32, seconds()).prop_map(
            |(actor, handlers, limit, seconds)| Operation::Claim { actor, handlers, limit, seconds }
        ),
        8 => (actor(), vec((held(), end()), 1..4))
            .prop_map(|(actor, leases)| Operation::Settle { actor, leases }),
        2 => (actor(), vec(held(), 1..3), seconds()).prop_map(
            |(actor, leases, seconds)| Operation::Extend { actor, leases, seconds }
        ),
        3 => (actor(), sent(), seconds())
            .prop_map(|(actor, sent, seconds)| Operation::Begin { actor, sent, seconds }),
        2 => (target(), any::<bool>())
            .prop_map(|(target, edited)| Operation::Replay { target, edited }),
        1 => target().prop_map(Operation::Discard),
        1 => choice().prop_map(Operation::ReplaySlice),
        1 => choice().prop_map(Operation::DiscardSlice),
        2 => (finals, select(vec![0, 50, 250]))
            .prop_map(|(state, older_than)| Operation::Purge { state, older_than }),
        1 => target().prop_map(Operation::Get),
        4 => select(vec![100, 200, 400]).prop_map(|seconds| Operation::Advance { seconds }),
    ]
}

/// Sequences of operations.
pub(super) fn sequences() -> impl Strategy<Value = Vec<Operation>> {
    vec(operation(), 1..LONGEST)
}
