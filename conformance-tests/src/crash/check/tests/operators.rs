//! Histories in which an operator changes messages.

use inbox_api::State;

use super::{
    super::Rule,
    run::{Run, failed},
};
use crate::crash::history::{
    Change::{Discard, Replay},
    Ending::{Dead, Processed},
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
