//! Histories with consumers that handle messages where they come in.

use inbox_api::State;

use super::{super::Rule, run::Run};
use crate::crash::history::{
    Beginning::{Blocked, Busy, Processed as WasProcessed},
    Ending::{Processed, Retry},
    Kept::{Done, LeaseLost},
    Received::{Accepted, Duplicate},
};

#[test]
fn begins_store_and_lease() {
    Run::default()
        .begin((0, 1), "a", 1, (1, 0))
        .receive(2, 3, "a", Duplicate)
        .told((4, 5), "a", Busy)
        .settle((6, 7), ("a", 1), Processed, Done)
        .told((8, 9), "a", WasProcessed)
        .listed("a", State::Processed, 1, 1)
        .effects(&[("h/a", 1)])
        .keeps_all();
    // The first was answered to nobody, and took the message.
    Run::default()
        .begin((0, 0), "a", 1, (1, 0))
        .receive(2, 3, "a", Duplicate)
        .begin((600, 601), "a", 2, (2, 0))
        .settle((602, 603), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 2, 1)
        .keeps_all();
    // One of whose answer nobody knows has the lease.
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .begin((600, 0), "a", 2, (2, 0))
        .settle((700, 701), ("a", 1), Processed, LeaseLost)
        .claim(1200, 1201, "a", 3, (3, 0))
        .settle((1202, 1203), ("a", 3), Processed, Done)
        .listed("a", State::Processed, 3, 1)
        .keeps_all();
    Run::ordered()
        .begin((0, 1), "a", 1, (1, 0))
        .told((2, 3), "b", Blocked)
        .settle((4, 5), ("a", 1), Processed, Done)
        .begin((6, 7), "b", 1, (1, 0))
        .settle((8, 9), ("b", 1), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Processed, 1, 1)
        .keeps_all();
}

#[test]
fn begins_are_held_to_what_claims_are() {
    // What it stored is gone.
    Run::default()
        .told((0, 1), "a", Busy)
        .breaks(Rule::NothingLost);
    // Another holds it.
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .begin((100, 101), "a", 2, (2, 0))
        .settle((102, 103), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 2, 1)
        .breaks(Rule::OneHolder);
    // It is processed.
    Run::default()
        .whole(0, "a")
        .begin((600, 601), "a", 2, (2, 1))
        .listed("a", State::Processed, 2, 1)
        .breaks(Rule::FinalStaysFinal);
    // It is not.
    Run::default()
        .receive(0, 1, "a", Accepted)
        .told((2, 3), "a", WasProcessed)
        .claim(4, 5, "a", 1, (1, 0))
        .settle((6, 7), ("a", 1), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::StateHasACause);
    // It is not due.
    Run::default()
        .begin((0, 1), "a", 1, (1, 0))
        .settle((4, 5), ("a", 1), Retry(100_000), Done)
        .begin((6, 7), "a", 2, (2, 1))
        .settle((8, 9), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 2, 2)
        .breaks(Rule::RetryWaits);
    // It is not its turn.
    Run::ordered()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .begin((2, 3), "b", 1, (1, 0))
        .claim(4, 5, "a", 1, (1, 0))
        .settle((6, 7), ("a", 1), Processed, Done)
        .settle((8, 9), ("b", 1), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Processed, 1, 1)
        .breaks_all(&[Rule::HandedOutInOrder, Rule::OneRunAtATime]);
}
