//! Histories in which an operator purges messages.

use inbox_api::State;

use super::{
    super::Rule,
    run::{Run, failed},
};
use crate::crash::history::{
    Change::{Discard, Replay},
    ClockMove,
    Ending::Processed,
    Kept::{Done, LeaseLost},
    Received::{Accepted, Duplicate},
};

#[test]
fn purges_explain_what_is_gone() {
    let whole = || Run::default().whole(0, "a");
    whole().purge((1010, 1011), State::Processed, 1).keeps_all();
    whole().purge((1010, 0), State::Processed, 0).keeps_all();
    whole()
        .purge((1010, 1011), State::Processed, 1)
        .effects(&[("h/a", 1)])
        .keeps_all();
    Run::default()
        .dead("a")
        .change((6, 7), "a", Discard, 1)
        .purge((1010, 1011), State::Discarded, 1)
        .effects(&[])
        .keeps_all();
    // A settlement without an answer is repeated behind the purge.
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .settle_as((4, 5), ("a", 1), Processed, failed(true))
        .purge((1010, 1011), State::Processed, 1)
        .settle((1012, 1013), ("a", 1), Processed, LeaseLost)
        .keeps_all();
}

#[test]
fn purges_take_what_is_final_for_long_enough_and_tell_of_all() {
    let whole = || Run::default().whole(0, "a");
    // Too early, of another state, or nothing by its own account.
    whole()
        .purge((900, 901), State::Processed, 1)
        .breaks(Rule::NothingLost);
    whole()
        .purge((1010, 1011), State::Dead, 1)
        .breaks(Rule::NothingLost);
    whole()
        .purge((1010, 1011), State::Processed, 0)
        .breaks(Rule::NothingLost);
    // Two are gone, of which one was told.
    whole()
        .whole(10, "b")
        .purge((1020, 1021), State::Processed, 1)
        .breaks(Rule::NothingLost);
    // What was replayed is not final, whether it waits or is at work.
    let replayed = || Run::default().dead("a").change((6, 7), "a", Replay, 1);
    replayed()
        .purge((1010, 1011), State::Dead, 1)
        .breaks(Rule::NothingLost);
    replayed()
        .claim(900, 901, "a", 2, (1, 0))
        .purge((1010, 1011), State::Dead, 1)
        .settle((1012, 1013), ("a", 2), Processed, LeaseLost)
        .breaks_all(&[Rule::NothingLost, Rule::LostToNobody]);
    // More than it was asked for.
    whole()
        .purge((1010, 1011), State::Processed, 11)
        .breaks(Rule::NothingLost);
    // By a clock that has gone on meanwhile, it was long enough.
    let mut jumped = whole().purge((100, 101), State::Processed, 1);
    jumped.history.moves.push(ClockMove {
        start: 50_000,
        end: 51_000,
        ahead: 1_000_000,
    });
    jumped.keeps_all();
}

#[test]
fn what_is_purged_may_be_accepted_again_and_nothing_else() {
    let twice = |purged| {
        Run::default()
            .whole(0, "a")
            .purge((purged, purged + 1), State::Processed, 1)
            .receive(1100, 1101, "a", Accepted)
            .claim(1102, 1103, "a", 2, (1, 0))
            .settle((1104, 1105), ("a", 2), Processed, Done)
            .receive(1200, 1201, "a", Duplicate)
            .listed("a", State::Processed, 1, 1)
    };
    twice(1010).keeps_all();
    assert_eq!(twice(1010).findings().set_aside, 1);
    twice(1010).effects(&[("h/a", 2)]).keeps_all();
    let findings = twice(900).findings();
    assert!(findings.broken(Rule::AcceptedOnce) > 0);
    assert_eq!(findings.set_aside, 0);
    // The second life began with a receive without an answer.
    Run::default()
        .whole(0, "a")
        .purge((1010, 1011), State::Processed, 1)
        .receive(1100, 0, "a", Accepted)
        .claim(1102, 1103, "a", 2, (1, 0))
        .settle((1104, 1105), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .keeps_all();
}

#[test]
fn effects_outlive_their_messages() {
    let purged = || {
        Run::default()
            .whole(0, "a")
            .purge((1010, 1011), State::Processed, 1)
    };
    purged().effects(&[]).breaks(Rule::EffectsOnce);
    purged().effects(&[("h/a", 2)]).breaks(Rule::EffectsOnce);
    Run::default()
        .dead("a")
        .purge((1010, 1011), State::Dead, 1)
        .effects(&[("h/a", 1)])
        .breaks(Rule::EffectsOnce);
}

#[test]
fn order_is_judged_among_what_is_gone_too() {
    Run::ordered()
        .receive(0, 1, "a", Accepted)
        .receive(2, 3, "b", Accepted)
        .claim(4, 5, "b", 1, (1, 0))
        .claim(6, 7, "a", 1, (1, 0))
        .settle((8, 9), ("a", 1), Processed, Done)
        .settle((10, 11), ("b", 1), Processed, Done)
        .purge((1020, 1021), State::Processed, 2)
        .breaks_all(&[Rule::HandedOutInOrder, Rule::OneRunAtATime]);
}
