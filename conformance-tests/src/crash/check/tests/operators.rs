//! Histories in which an operator changes messages.

use inbox_api::State;

use super::{
    super::Rule,
    run::{Run, failed},
};
use crate::crash::history::{
    Change::{Discard, Replay},
    Ending::{Block, Dead, Processed},
    Kept::{Done, LeaseLost},
    Received::Accepted,
};

#[test]
fn operators_explain_what_becomes_of_the_dead() {
    let replayed = |times, changed| {
        Run::default()
            .dead("a")
            .change(times, "a", Replay, changed)
            .claim(10, 11, "a", 2, (1, 0))
            .settle((12, 13), ("a", 2), Processed, Done)
            .listed("a", State::Processed, 1, 1)
            .effects(&[("h/a", 1)])
    };
    replayed((6, 7), 1).keeps_all();
    replayed((6, 0), 0).keeps_all();
    replayed((6, 7), 0).breaks_all(&[
        Rule::SettledState,
        Rule::FinalStaysFinal,
        Rule::AttemptsCounted,
    ]);
    // It came too late.
    replayed((20, 21), 1).breaks_all(&[Rule::FinalStaysFinal, Rule::StateHasACause]);
    // A settlement whose answer was lost is repeated behind the replay.
    for answer in [Done, LeaseLost] {
        Run::default()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
            .settle_as((4, 5), ("a", 1), Dead, failed(true))
            .change((6, 7), "a", Replay, 1)
            .settle((8, 9), ("a", 1), Dead, answer)
            .claim(10, 11, "a", 2, (1, 0))
            .settle((12, 13), ("a", 2), Processed, Done)
            .listed("a", State::Processed, 1, 1)
            .keeps_all();
    }
    Run::default()
        .dead("a")
        .change((6, 7), "a", Discard, 1)
        .listed("a", State::Discarded, 1, 1)
        .keeps_all();
}

#[test]
fn what_lists_have_was_dead_and_is_all_there() {
    let two = || {
        Run::ordered()
            .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
            .claim(2, 3, "a", 1, (1, 0))
            .settle((4, 5), ("a", 1), Dead, Done)
            .claim(6, 7, "b", 2, (1, 0))
            .settle((8, 9), ("b", 2), Block, Done)
    };
    let ended = |run: Run| {
        run.listed("a", State::Dead, 1, 1)
            .listed("b", State::Dead, 1, 1)
    };
    let good = || {
        two()
            .list((10, 11), false, &["a", "b"])
            .list((10, 11), true, &["b"])
    };
    ended(good()).keeps_all();
    // One that died meanwhile may be there or not.
    ended(two().list((3, 5), false, &[])).keeps_all();
    ended(two().list((3, 5), false, &["a"])).keeps_all();
    ended(two().list((3, 5), false, &["a", "b"])).breaks(Rule::ListedAsAsked);
    ended(two().list((10, 11), false, &["b"])).breaks(Rule::ListedAsAsked);
    ended(two().list((10, 11), true, &[])).breaks(Rule::ListedAsAsked);
    ended(two().list((10, 11), true, &["a", "b"])).breaks(Rule::ListedAsAsked);
    ended(two().list((10, 11), false, &["b", "a"])).breaks(Rule::ListedInOrder);
    ended(two().list((10, 11), false, &["a", "b", "c"])).breaks(Rule::ListedAsAsked);
    // What was changed for certain is not dead any more, and what may have been changed need not be there.
    let discarded = |until, ids: &[&str]| {
        two()
            .change((10, until), "a", Discard, 1)
            .list((12, 13), false, ids)
            .listed("a", State::Discarded, 1, 1)
            .listed("b", State::Dead, 1, 1)
    };
    discarded(11, &["b"]).keeps_all();
    discarded(0, &["b"]).keeps_all();
    discarded(0, &["a", "b"]).keeps_all();
    discarded(11, &["a", "b"]).breaks(Rule::ListedAsAsked);
}

#[test]
fn what_blocks_is_what_was_settled_so() {
    let dead = |ending| {
        Run::ordered()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
            .settle((4, 5), ("a", 1), ending, Done)
            .listed("a", State::Dead, 1, 1)
    };
    dead(Dead).keeps_all();
    dead(Block).keeps_all();
    dead(Dead).blocks(true).breaks(Rule::SettledState);
    dead(Block).blocks(false).breaks(Rule::SettledState);
    // Without an ordering key there is nothing to block.
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .settle((4, 5), ("a", 1), Block, Done)
        .listed("a", State::Dead, 1, 1)
        .list((6, 7), true, &[])
        .keeps_all();
}

#[test]
fn replays_are_told() {
    let replayed = |end, told: u32, at_the_end: u32| {
        let mut run = Run::default()
            .dead("a")
            .change((6, end), "a", Replay, 1)
            .claim(10, 11, "a", 2, (1, 0))
            .settle((12, 13), ("a", 2), Processed, Done)
            .listed("a", State::Processed, 1, 1);
        run.told_last_claim(told);
        run.listing[0].replays = at_the_end;
        run
    };
    replayed(7, 1, 1).keeps_all();
    replayed(0, 1, 1).keeps_all();
    // It may not have been made when it was claimed.
    replayed(0, 0, 1).keeps_all();
    replayed(7, 0, 1).breaks(Rule::ReplaysTold);
    replayed(7, 2, 1).breaks(Rule::ReplaysTold);
    replayed(7, 1, 0).breaks(Rule::ReplaysTold);
}

#[test]
fn operators_change_what_is_dead_and_nothing_else() {
    // As if it were: it was never dead.
    Run::default()
        .whole(0, "a")
        .change((6, 7), "a", Replay, 1)
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::StateHasACause);
    // Twice, and it has died once.
    Run::default()
        .dead("a")
        .change((6, 8), "a", Replay, 1)
        .change((7, 9), "a", Replay, 1)
        .claim(10, 11, "a", 2, (1, 0))
        .settle((12, 13), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::StateHasACause);
    // Long before the lease that is lost.
    Run::default()
        .dead("a")
        .change((6, 7), "a", Replay, 1)
        .claim(100, 101, "a", 2, (1, 0))
        .settle((102, 103), ("a", 2), Processed, LeaseLost)
        .settle_as((104, 105), ("a", 2), Processed, failed(true))
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::LostToNobody);
    // It was replayed, and nobody has handled it since.
    Run::default()
        .dead("a")
        .change((6, 7), "a", Replay, 1)
        .listed("a", State::Dead, 0, 0)
        .breaks(Rule::StateHasACause);
    Run::default()
        .dead("a")
        .listed("a", State::Discarded, 1, 1)
        .breaks_all(&[Rule::SettledState, Rule::StateHasACause]);
    Run::default()
        .dead("a")
        .change((6, 7), "a", Discard, 1)
        .listed("a", State::Dead, 1, 1)
        .breaks(Rule::SettledState);
    Run::default()
        .dead("a")
        .change((6, 7), "a", Discard, 1)
        .claim(10, 11, "a", 2, (2, 1))
        .settle((12, 0), ("a", 2), Processed, Done)
        .listed("a", State::Discarded, 2, 1)
        .breaks_all(&[Rule::FinalStaysFinal]);
}
