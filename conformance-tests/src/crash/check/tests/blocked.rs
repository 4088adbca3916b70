//! Histories in which dead messages block their ordering keys.

use inbox_api::State;

use super::{
    super::Rule,
    run::{Run, failed},
};
use crate::crash::history::{
    Beginning::Blocked,
    Change::{Discard, Replay},
    Ending::{Block, Dead, Processed, Release},
    Kept::Done,
    Received::Accepted,
};

/// "a" is dead and blocks "b".
fn blocked() -> Run {
    Run::ordered()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .claim(2, 3, "a", 1, (1, 0))
        .settle((4, 5), ("a", 1), Block, Done)
}

impl Run {
    fn then_b(self, at: u64) -> Self {
        self.claim(at, at + 1, "b", 9, (1, 0))
            .settle((at + 2, at + 3), ("b", 9), Processed, Done)
    }

    fn both(self, first: State) -> Self {
        self.listed("a", first, 1, 1)
            .listed("b", State::Processed, 1, 1)
    }
}

#[test]
fn what_an_operator_frees_goes_on() {
    blocked()
        .told((6, 7), "b", Blocked)
        .change((8, 9), "a", Discard, 1)
        .then_b(10)
        .both(State::Discarded)
        .keeps_all();
    // It may have been discarded, and may not.
    blocked()
        .change((8, 0), "a", Discard, 1)
        .then_b(10)
        .both(State::Discarded)
        .keeps_all();
    blocked()
        .change((8, 9), "a", Replay, 1)
        .claim(10, 11, "a", 2, (1, 0))
        .settle((12, 13), ("a", 2), Dead, Done)
        .then_b(14)
        .both(State::Dead)
        .keeps_all();
    blocked()
        .purge((1010, 1011), State::Dead, 1)
        .then_b(1012)
        .listed("b", State::Processed, 1, 1)
        .keeps_all();
    // The death was answered to nobody, and replayed before it was settled again.
    Run::ordered()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .claim(2, 3, "a", 1, (1, 0))
        .settle_as((4, 5), ("a", 1), Block, failed(true))
        .change((6, 7), "a", Replay, 1)
        .settle((8, 9), ("a", 1), Block, Done)
        .claim(10, 11, "a", 2, (1, 0))
        .settle((12, 13), ("a", 2), Processed, Done)
        .then_b(14)
        .both(State::Processed)
        .keeps_all();
    // What has no ordering key blocks nothing.
    Run::default()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .claim(2, 3, "a", 1, (1, 0))
        .settle((4, 5), ("a", 1), Block, Done)
        .then_b(6)
        .both(State::Dead)
        .keeps_all();
}

#[test]
fn what_nobody_has_freed_waits() {
    let passed = [
        Rule::BlockedKeyWaits,
        Rule::HandedOutInOrder,
        Rule::CompletedInOrder,
    ];
    blocked().then_b(6).both(State::Dead).breaks_all(&passed);
    // Begun where it came in.
    blocked()
        .begin((6, 7), "b", 2, (1, 0))
        .settle((8, 9), ("b", 2), Processed, Done)
        .both(State::Dead)
        .breaks_all(&passed);
    // The operator came too late, or has changed nothing.
    blocked()
        .then_b(6)
        .change((20, 21), "a", Discard, 1)
        .both(State::Discarded)
        .breaks_all(&passed);
    blocked()
        .change((6, 7), "a", Discard, 0)
        .then_b(8)
        .both(State::Dead)
        .breaks_all(&passed);
    // It is not old enough for the purge.
    blocked()
        .purge((500, 501), State::Dead, 1)
        .then_b(502)
        .both(State::Dead)
        .breaks_all(&passed);
    // It is to be handled again first.
    blocked()
        .change((6, 7), "a", Replay, 1)
        .then_b(8)
        .claim(12, 13, "a", 2, (1, 0))
        .settle((14, 15), ("a", 2), Processed, Done)
        .both(State::Processed)
        .breaks_all(&[Rule::HandedOutInOrder, Rule::CompletedInOrder]);
    // Nobody knows whether it blocks or is still at work.
    Run::ordered()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .claim(2, 3, "a", 1, (1, 0))
        .settle_as((4, 5), ("a", 1), Block, failed(true))
        .then_b(6)
        .both(State::Dead)
        .breaks_all(&[Rule::HandedOutInOrder, Rule::CompletedInOrder]);
}

#[test]
fn what_is_blocked_at_the_end_is_seen() {
    blocked()
        .listed("a", State::Dead, 1, 1)
        .listed("b", State::Pending, 0, 0)
        .breaks(Rule::EverythingFinal);
}

#[test]
fn a_run_ends_where_one_blocks() {
    let run = || {
        Run::ordered()
            .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
            .claim_run(2, 3, &[("a", 1, (1, 0)), ("b", 2, (1, 0))])
    };
    run()
        .settle_all(
            (4, 5),
            &[(("a", 1), Block, Done), (("b", 2), Release, Done)],
        )
        .change((6, 7), "a", Discard, 1)
        .then_b(8)
        .both(State::Discarded)
        .keeps_all();
    run()
        .settle_all(
            (4, 5),
            &[(("a", 1), Block, Done), (("b", 2), Processed, Done)],
        )
        .both(State::Dead)
        .breaks(Rule::CompletedInOrder);
}
