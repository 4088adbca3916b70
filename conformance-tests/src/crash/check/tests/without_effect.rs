//! Histories with calls that failed, and certainly changed nothing: they excuse nothing.

use inbox_api::State;

use super::{
    super::Rule,
    run::{LEASE, Run, failed, held, key, without_effect},
};
use crate::crash::history::{
    Answered, Asked,
    Change::Replay,
    Ending::{Dead, Processed},
    Kept::{Done, LeaseLost},
    Received::Accepted,
};

#[test]
fn claims_and_begins_without_effect_take_nothing() {
    let lost = |asked: Asked, answer: Answered| {
        Run::default()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
            .call(600, 601, asked, Some(answer))
            .settle((700, 701), ("a", 1), Processed, LeaseLost)
            .claim(1200, 1201, "a", 3, (2, 0))
            .settle((1202, 1203), ("a", 3), Processed, Done)
            .listed("a", State::Processed, 2, 1)
    };
    for asked in [Run::asked_to_claim(), Run::default().asked_to_begin("a")] {
        lost(asked.clone(), failed(true)).keeps_all();
        lost(asked, without_effect()).breaks(Rule::LostToNobody);
    }
}

#[test]
fn settlements_and_changes_without_effect_make_nothing_final_or_open() {
    let settled = |answer| {
        Run::default()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
            .settle_as((4, 5), ("a", 1), Dead, answer)
            .listed("a", State::Dead, 1, 1)
    };
    settled(failed(true)).keeps_all();
    settled(without_effect()).breaks_all(&[Rule::StateHasACause, Rule::AttemptsCounted]);
    let replayed = |answer| {
        let asked = Asked::Change {
            key: key("a"),
            change: Replay,
        };
        Run::default()
            .dead("a")
            .call(6, 7, asked, Some(answer))
            .claim(10, 11, "a", 2, (2, 1))
            .settle((12, 13), ("a", 2), Processed, Done)
            .listed("a", State::Processed, 2, 2)
    };
    replayed(failed(true)).keeps_all();
    replayed(without_effect()).breaks_all(&[Rule::SettledState, Rule::FinalStaysFinal]);
}

#[test]
fn an_extension_without_effect_shortens_no_lease() {
    let shortened = |answer| {
        let asked = Asked::Extend {
            leases: vec![held("a", 1)],
            length: 1_000,
        };
        Run::default()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
            .call(4, 5, asked, Some(answer))
            .claim(LEASE / 2, LEASE / 2 + 1, "a", 2, (2, 0))
            .settle((300, 301), ("a", 2), Processed, Done)
            .listed("a", State::Processed, 2, 1)
    };
    shortened(failed(true)).keeps_all();
    shortened(without_effect()).breaks(Rule::OneHolder);
}
