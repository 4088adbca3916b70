//! Hand-written histories: good ones, and for each rule bad ones that this rule alone must catch.

mod begins;
mod blocked;
mod moved;
mod operators;
mod purges;
mod run;
mod runs;
mod turns;
mod without_effect;

use inbox_api::State;

use super::Rule;
use crate::crash::history::{
    Answered,
    Change::Replay,
    Ending::{Block, Dead, Defer, Processed, Release, Retry},
    Kept::{self, Done, LeaseLost},
    Received::{Accepted, Duplicate},
};
use run::{LEASE, Run, failed};

#[test]
fn quiet_lives_are_good() {
    Run::default()
        .whole(0, "a")
        .receive(10, 11, "a", Duplicate)
        .receive_all(12, 13, &["b", "b"], &[Accepted, Duplicate])
        .claim(14, 15, "b", 1, (1, 0))
        .settle((16, 17), ("b", 1), Dead, Done)
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Dead, 1, 1)
        .effects(&[("h/a", 1)])
        .keeps_all();
}

#[test]
fn unknown_outcomes_explain_what_they_can() {
    // The first receive was answered to nobody; neither was the first claim, nor the settlement.
    Run::default()
        .receive(0, 0, "a", Accepted)
        .receive(5, 6, "a", Duplicate)
        .unknown_claim(7)
        .claim(600, 601, "a", 2, (2, 0))
        .settle((602, 0), ("a", 2), Processed, Done)
        .receive(700, 701, "a", Duplicate)
        .listed("a", State::Processed, 2, 1)
        .keeps_all();
    // None of them happened.
    Run::default()
        .receive(0, 0, "a", Accepted)
        .receive(5, 6, "a", Accepted)
        .unknown_claim(7)
        .claim(8, 9, "a", 1, (1, 0))
        .settle_as((10, 11), ("a", 1), Processed, failed(true))
        .settle((20, 21), ("a", 1), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .keeps_all();
    // The settlement was lost to a worker that the history does not know.
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .unknown_claim(600)
        .settle((700, 701), ("a", 1), Processed, LeaseLost)
        .claim(1200, 1201, "a", 3, (3, 0))
        .settle((1202, 1203), ("a", 3), Processed, Done)
        .listed("a", State::Processed, 3, 1)
        .keeps_all();
}

#[test]
fn leases_that_run_out_are_released_deferred_retried_or_extended_are_good() {
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .extend(300, 301, ("a", 1), LEASE)
        .claim(810, 811, "a", 2, (2, 0))
        .settle((812, 813), ("a", 1), Processed, LeaseLost)
        .settle((814, 815), ("a", 2), Release, Done)
        .claim(816, 817, "a", 3, (2, 0))
        .settle((818, 819), ("a", 3), Retry(100_000), Done)
        .claim(920, 921, "a", 4, (3, 1))
        // Shortened, and run out at once.
        .extend(922, 923, ("a", 4), 1)
        .claim(930, 931, "a", 5, (4, 1))
        .settle((932, 933), ("a", 5), Processed, Done)
        // A repetition of what was settled already.
        .settle((934, 935), ("a", 5), Processed, Done)
        .listed("a", State::Processed, 4, 2)
        .receive(0, 1, "b", Accepted)
        .claim(2, 3, "b", 1, (1, 0))
        .settle((4, 5), ("b", 1), Defer(100_000), Done)
        .claim(106, 107, "b", 2, (1, 0))
        .settle((108, 109), ("b", 2), Processed, Done)
        .listed("b", State::Processed, 1, 1)
        .keeps_all();
}

#[test]
fn an_ordering_key_handed_on_is_good() {
    Run::ordered()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .claim(2, 3, "a", 1, (1, 0))
        .settle((4, 9), ("a", 1), Processed, Done)
        // Within the same milliseconds, after it as far as anybody knows.
        .claim(5, 8, "b", 1, (1, 0))
        .settle((9, 10), ("b", 1), Dead, Done)
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Dead, 1, 1)
        .keeps_all();
    // "a" came in while "b" was handed out: nobody can tell that it was there.
    Run::ordered()
        .receive(0, 20, "a", Accepted)
        .receive(1, 2, "b", Accepted)
        .claim(3, 4, "b", 1, (1, 0))
        .settle((5, 6), ("b", 1), Processed, Done)
        .claim(21, 22, "a", 1, (1, 0))
        .settle((23, 24), ("a", 1), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Processed, 1, 1)
        .keeps_all();
}

#[test]
fn accepted_twice() {
    Run::default()
        .whole(0, "a")
        .receive(0, 20, "a", Accepted)
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::AcceptedOnce);
}

#[test]
fn accepted_although_it_was_known_to_be_stored() {
    Run::default()
        .receive(0, 0, "a", Accepted)
        .receive(1, 2, "a", Duplicate)
        .receive(3, 4, "a", Accepted)
        .claim(5, 6, "a", 1, (1, 0))
        .settle((7, 8), ("a", 1), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::AcceptedOnce);
}

#[test]
fn an_outage_taken_for_a_duplicate() {
    Run::default()
        .receive(0, 1, "a", Duplicate)
        .receive(2, 3, "a", Duplicate)
        .listed("a", State::Processed, 0, 0)
        .settle((4, 0), ("a", 1), Processed, Done)
        .breaks(Rule::DuplicateHasAnOriginal);
}

#[test]
fn stored_and_gone() {
    Run::default().whole(0, "a").breaks(Rule::NothingLost);
    Run::default()
        .receive(0, 1, "a", Accepted)
        .breaks(Rule::NothingLost);
}

#[test]
fn there_without_having_been_sent_or_twice() {
    Run::default()
        .listed("a", State::Processed, 0, 0)
        .settle((4, 0), ("a", 1), Processed, Done)
        .breaks(Rule::NothingInvented);
    Run::default()
        .whole(0, "a")
        .listed("a", State::Processed, 1, 1)
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::NothingInvented);
}

#[test]
fn never_final() {
    Run::default()
        .receive(0, 1, "a", Accepted)
        .unknown_claim(2)
        .listed("a", State::Leased, 1, 0)
        .breaks(Rule::EverythingFinal);
}

#[test]
fn two_holders() {
    let two = || {
        Run::default()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
    };
    let ended = |run: Run| {
        run.settle((900, 901), ("a", 2), Processed, Done)
            .listed("a", State::Processed, 2, 1)
    };
    ended(two().claim(400, 401, "a", 2, (2, 0))).breaks(Rule::OneHolder);
    // Extended meanwhile.
    let extended = two().extend(400, 401, ("a", 1), LEASE);
    ended(extended.claim(800, 801, "a", 2, (2, 0))).breaks(Rule::OneHolder);
    // Settling with a lost lease does not end anything.
    let lost = two().settle((300, 450), ("a", 1), Processed, LeaseLost);
    ended(lost.claim(400, 401, "a", 2, (2, 0))).breaks(Rule::OneHolder);
}

#[test]
fn tokens_that_shrink_or_repeat() {
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 5, (1, 0))
        .claim(600, 601, "a", 5, (2, 0))
        .settle((602, 603), ("a", 5), Processed, Done)
        // Attempts are counted by token and cannot be judged here; unknown claims excuse them.
        .unknown_claim(4)
        .listed("a", State::Processed, 2, 1)
        .breaks(Rule::TokensGrow);
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 9, (1, 0))
        .unknown_claim(4)
        .claim(600, 601, "a", 5, (1, 0))
        .listed("a", State::Processed, 2, 1)
        .settle((602, 0), ("a", 5), Processed, Done)
        .findings()
        .violations
        .iter()
        .find(|violation| violation.rule == Rule::TokensGrow)
        .unwrap();
}

#[test]
fn settled_with_a_stale_token() {
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .claim(600, 601, "a", 2, (2, 0))
        .settle((602, 603), ("a", 1), Processed, Done)
        .listed("a", State::Processed, 2, 1)
        .breaks(Rule::Fenced);
}

#[test]
fn lost_to_nobody() {
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .settle((4, 5), ("a", 1), Processed, LeaseLost)
        .claim(600, 601, "a", 2, (2, 0))
        .settle((602, 603), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 2, 1)
        .breaks(Rule::LostToNobody);
}

#[test]
fn another_state_than_it_was_settled_in() {
    Run::default()
        .whole(0, "a")
        // Which may have happened, and explains the state, but not after what was done.
        .settle((10, 0), ("a", 2), Dead, Done)
        .listed("a", State::Dead, 1, 1)
        .breaks(Rule::SettledState);
}

#[test]
fn final_for_no_reason() {
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .listed("a", State::Dead, 1, 0)
        .breaks(Rule::StateHasACause);
}

#[test]
fn handed_out_after_it_was_final() {
    Run::default()
        .whole(0, "a")
        .claim(600, 601, "a", 2, (2, 1))
        .listed("a", State::Processed, 2, 1)
        .breaks(Rule::FinalStaysFinal);
}

#[test]
fn retried_at_once() {
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .settle((4, 5), ("a", 1), Retry(100_000), Done)
        .claim(6, 7, "a", 2, (2, 1))
        .settle((8, 9), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 2, 2)
        .breaks(Rule::RetryWaits);
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .settle((4, 5), ("a", 1), Defer(100_000), Done)
        .claim(6, 7, "a", 2, (1, 0))
        .settle((8, 9), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::RetryWaits);
}

#[test]
fn another_content_than_was_sent() {
    let mut run = Run::default()
        .whole(0, "a")
        .listed("a", State::Processed, 1, 1);
    run.altered_by_last_claim();
    run.breaks(Rule::HandedOutWhole);
}

#[test]
fn a_replay_that_nobody_made() {
    let mut run = Run::default()
        .whole(0, "a")
        .listed("a", State::Processed, 1, 1);
    run.told_last_claim(1);
    run.breaks(Rule::ReplaysTold);
}

#[test]
fn a_list_that_lacks_what_was_dead() {
    Run::default()
        .dead("a")
        .list((6, 7), false, &[])
        .listed("a", State::Dead, 1, 1)
        .breaks(Rule::ListedAsAsked);
}

#[test]
fn attempts_that_do_not_count() {
    let crashed = |second: (u32, u32), at_the_end: (u32, u32)| {
        Run::default()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
            .claim(600, 601, "a", 2, second)
            .settle((602, 603), ("a", 2), Processed, Done)
            .listed("a", State::Processed, at_the_end.0, at_the_end.1)
    };
    crashed((2, 0), (2, 1)).keeps_all();
    // The crash was forgotten, invented, or taken for an outcome.
    crashed((1, 0), (2, 1)).breaks(Rule::AttemptsCounted);
    crashed((3, 0), (2, 1)).breaks(Rule::AttemptsCounted);
    crashed((2, 1), (2, 1)).breaks(Rule::AttemptsCounted);
    crashed((2, 0), (1, 1)).breaks(Rule::AttemptsCounted);
    crashed((2, 0), (2, 2)).breaks(Rule::AttemptsCounted);
    // A release or a deferral that counts.
    for uncounted in [Release, Defer(0)] {
        Run::default()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
            .settle((4, 5), ("a", 1), uncounted, Done)
            .claim(6, 7, "a", 2, (2, 0))
            .settle((8, 9), ("a", 2), Processed, Done)
            .listed("a", State::Processed, 1, 1)
            .breaks(Rule::AttemptsCounted);
    }
}

#[test]
fn overtaken_within_an_ordering_key() {
    Run::ordered()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .claim(2, 3, "b", 1, (1, 0))
        .claim(4, 5, "a", 1, (1, 0))
        .settle((6, 7), ("a", 1), Processed, Done)
        .settle((8, 9), ("b", 1), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Processed, 1, 1)
        .breaks_all(&[Rule::HandedOutInOrder, Rule::OneRunAtATime]);
    // A retry is not final.
    Run::ordered()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .claim(2, 3, "a", 1, (1, 0))
        .settle((4, 5), ("a", 1), Retry(1_000), Done)
        .claim(6, 7, "b", 1, (1, 0))
        .settle((8, 9), ("b", 1), Release, Done)
        .claim(20, 21, "a", 2, (2, 1))
        .settle((22, 23), ("a", 2), Processed, Done)
        .claim(24, 25, "b", 2, (1, 0))
        .settle((26, 27), ("b", 2), Processed, Done)
        .listed("a", State::Processed, 2, 2)
        .listed("b", State::Processed, 1, 1)
        .breaks(Rule::HandedOutInOrder);
}

#[test]
fn handed_out_behind_one_that_blocks() {
    // "b" may have been handed out before the replay, and not after the second death.
    Run::ordered()
        .dead("a")
        .receive(6, 7, "b", Accepted)
        .change((8, 9), "a", Replay, 1)
        .claim(10, 11, "a", 2, (1, 0))
        .settle((12, 13), ("a", 2), Block, Done)
        .claim(14, 15, "b", 3, (1, 0))
        .settle((16, 17), ("b", 3), Processed, Done)
        .listed("a", State::Dead, 1, 1)
        .listed("b", State::Processed, 1, 1)
        .breaks(Rule::BlockedKeyWaits);
}

#[test]
fn an_ordering_key_with_two_workers() {
    // "a" is replayed while "b" is at work, and does not wait for it.
    Run::ordered()
        .dead("a")
        .receive(6, 7, "b", Accepted)
        .claim(8, 9, "b", 2, (1, 0))
        .change((10, 11), "a", Replay, 1)
        .claim(12, 13, "a", 3, (1, 0))
        .settle((14, 15), ("a", 3), Processed, Done)
        .settle((16, 17), ("b", 2), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Processed, 1, 1)
        .breaks(Rule::OneRunAtATime);
}

#[test]
fn more_of_an_ordering_key_than_were_asked_for() {
    let all = [
        ("a", 1, (1, 0)),
        ("b", 2, (1, 0)),
        ("c", 3, (1, 0)),
        ("d", 4, (1, 0)),
    ];
    let ended = all.map(|(id, token, _)| ((id, token), Processed, Done));
    let run = Run::ordered()
        .receive_all(0, 1, &["a", "b", "c", "d"], &[Accepted; 4])
        .claim_run(2, 3, &all)
        .settle_all((4, 5), &ended);
    let listed = all
        .iter()
        .fold(run, |run, (id, ..)| run.listed(id, State::Processed, 1, 1));
    listed.breaks(Rule::ClaimsAsAsked);
}

#[test]
fn completed_out_of_order() {
    // Nobody knows when "b" was handed out.
    Run::ordered()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .unknown_claim(2)
        .settle((3, 4), ("b", 1), Processed, Done)
        .claim(5, 6, "a", 1, (1, 0))
        .settle((7, 8), ("a", 1), Processed, Done)
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Processed, 1, 1)
        .breaks(Rule::CompletedInOrder);
}

#[test]
fn listed_in_another_order() {
    let run = || Run::default().whole(0, "a").whole(10, "b");
    run()
        .listed("b", State::Processed, 1, 1)
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::ListedInOrder);
    let batch = Run::default()
        .receive_all(0, 1, &["a", "b"], &[Accepted, Accepted])
        .claim(2, 3, "a", 1, (1, 0))
        .claim(2, 3, "b", 1, (1, 0))
        .settle((4, 5), ("a", 1), Processed, Done)
        .settle((4, 5), ("b", 1), Processed, Done);
    batch
        .listed("b", State::Processed, 1, 1)
        .listed("a", State::Processed, 1, 1)
        .breaks(Rule::ListedInOrder);
}

#[test]
fn effects_without_their_record_twice_or_not_at_all() {
    let run = || {
        Run::default()
            .whole(0, "a")
            .listed("a", State::Processed, 1, 1)
    };
    run().effects(&[("h/a", 1)]).keeps_all();
    run().effects(&[]).breaks(Rule::EffectsOnce);
    run().effects(&[("h/a", 2)]).breaks(Rule::EffectsOnce);
    run()
        .effects(&[("h/a", 1), ("h/b", 1)])
        .breaks(Rule::EffectsOnce);
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .settle((4, 5), ("a", 1), Dead, Done)
        .listed("a", State::Dead, 1, 1)
        .effects(&[("h/a", 1)])
        .breaks(Rule::EffectsOnce);
}

#[test]
fn errors_that_a_kill_does_not_explain() {
    let run = |answer: Answered| {
        Run::default()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
            .settle_as((4, 5), ("a", 1), Processed, answer)
            .settle((6, 7), ("a", 1), Processed, Done)
            .listed("a", State::Processed, 1, 1)
    };
    run(failed(true)).keeps_all();
    run(failed(false)).breaks(Rule::OnlyRetryableErrors);
    run(Answered::Settled(vec![Kept::Refused])).breaks(Rule::OnlyRetryableErrors);
}

#[test]
fn every_rule_has_a_history_here() {
    let source = include_str!("tests.rs");
    for rule in Rule::ALL {
        assert!(
            source.contains(&format!(".breaks(Rule::{rule:?})")),
            "{rule}"
        );
    }
}

#[test]
fn a_violation_tells_the_story_of_its_message_only() {
    let findings = Run::default()
        .whole(0, "other")
        .receive(1, 2, "a", Accepted)
        .claim(3, 4, "a", 7, (1, 0))
        .claim(600, 601, "a", 8, (2, 0))
        .settle((602, 603), ("a", 7), Retry(5_000), Done)
        .settle_as((604, 605), ("a", 8), Processed, failed(true))
        .listed("other", State::Processed, 1, 1)
        .listed("a", State::Processed, 2, 2)
        .findings();
    assert_eq!(findings.violations.len(), 1);
    assert_eq!(
        findings.violations[0].to_string(),
        "fenced: h/a: token 7 settled it although token 8 had been given out
       0.001000 to    0.002000 s  worker 1 (pid 4711)  receive -> Accepted
       0.003000 to    0.004000 s  worker 1 (pid 4711)  claim for 500 ms -> token 7, attempt 1 (0 finished)
       0.600000 to    0.601000 s  worker 1 (pid 4711)  claim for 500 ms -> token 8, attempt 2 (0 finished)
       0.602000 to    0.603000 s  worker 1 (pid 4711)  settle with token 7: retry in 5 ms -> Done
       0.604000 to    0.605000 s  worker 1 (pid 4711)  settle with token 8: processed -> failed, perhaps with an effect: store unavailable (settle): gone
    at the end  h/a is processed, 2 attempts started, 2 finished, number 2 in the listing"
    );
}
