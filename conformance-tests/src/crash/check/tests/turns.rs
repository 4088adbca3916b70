//! Histories in which a message has its turn although an earlier one of its ordering key is unfinished.

use inbox_api::State;

use super::{super::Rule, run::Run};
use crate::crash::history::{
    Ending::{Processed, Release, Retry},
    Kept::Done,
    Received::Accepted,
};

/// Both come in at the same time, and the answer of the earlier one is the later.
fn at_the_same_time() -> Run {
    Run::ordered()
        .receive(0, 5, "a", Accepted)
        .receive(0, 1, "b", Accepted)
}

impl Run {
    /// The earlier one is handled at last, and both end as processed.
    fn then_the_earlier(self, later: (u32, u32)) -> Self {
        self.claim(610, 611, "a", 7, (1, 0))
            .settle((612, 613), ("a", 7), Processed, Done)
            .listed("a", State::Processed, 1, 1)
            .listed("b", State::Processed, later.0, later.1)
    }
}

#[test]
fn what_is_at_work_does_not_wait_for_what_comes_in() {
    at_the_same_time()
        .claim(2, 3, "b", 1, (1, 0))
        .settle((6, 7), ("b", 1), Processed, Done)
        .then_the_earlier((1, 1))
        .keeps_all();
    // It was handed out when the earlier one was there.
    at_the_same_time()
        .claim(6, 7, "b", 1, (1, 0))
        .settle((8, 9), ("b", 1), Processed, Done)
        .then_the_earlier((1, 1))
        .breaks_all(&[Rule::HandedOutInOrder, Rule::CompletedInOrder]);
}

#[test]
fn a_lease_that_runs_out_keeps_its_turn() {
    let claimed_again = |run: Run, attempts: (u32, u32)| {
        run.claim(600, 601, "b", 2, attempts)
            .settle((602, 603), ("b", 2), Processed, Done)
            .then_the_earlier((attempts.0, attempts.1 + 1))
    };
    let claimed = at_the_same_time().claim(2, 3, "b", 1, (1, 0));
    claimed_again(claimed, (2, 0)).keeps_all();
    // Nobody knows who had it.
    let unknown = at_the_same_time().unknown_claim(2);
    claimed_again(unknown, (2, 0)).keeps_all();
    // That claim was too late.
    let unknown = at_the_same_time().unknown_claim(6);
    claimed_again(unknown, (2, 0)).breaks_all(&[Rule::HandedOutInOrder, Rule::CompletedInOrder]);
    // What is retried does not keep its turn.
    let retried =
        at_the_same_time()
            .claim(2, 3, "b", 1, (1, 0))
            .settle((6, 7), ("b", 1), Retry(1_000), Done);
    claimed_again(retried, (2, 1)).breaks_all(&[Rule::HandedOutInOrder, Rule::CompletedInOrder]);
}

#[test]
fn what_is_left_behind_in_a_run_may_pass_the_first() {
    // Of a call without an answer, the retry may have been made, and the release not.
    Run::ordered()
        .receive_all(0, 1, &["a", "b", "c"], &[Accepted; 3])
        .claim_run(2, 3, &[("a", 1, (1, 0)), ("b", 2, (1, 0))])
        .settle_all(
            (4, 0),
            &[(("a", 1), Retry(0), Done), (("b", 2), Release, Done)],
        )
        .claim_run(600, 601, &[("b", 4, (1, 0)), ("c", 5, (1, 0))])
        .settle_all(
            (602, 603),
            &[(("b", 4), Processed, Done), (("c", 5), Processed, Done)],
        )
        .claim(610, 611, "a", 7, (2, 1))
        .settle((612, 613), ("a", 7), Processed, Done)
        .listed("a", State::Processed, 2, 2)
        .listed("b", State::Processed, 1, 1)
        .listed("c", State::Processed, 1, 1)
        .keeps_all();
    // A worker that does not hand the second back.
    Run::ordered()
        .receive_all(0, 1, &["a", "b"], &[Accepted; 2])
        .claim_run(2, 3, &[("a", 1, (1, 0)), ("b", 2, (1, 0))])
        .settle((4, 5), ("a", 1), Retry(0), Done)
        .claim(600, 601, "b", 4, (2, 0))
        .settle((602, 603), ("b", 4), Processed, Done)
        .claim(610, 611, "a", 7, (2, 1))
        .settle((612, 613), ("a", 7), Processed, Done)
        .listed("a", State::Processed, 2, 2)
        .listed("b", State::Processed, 2, 1)
        .breaks_all(&[Rule::HandedOutInOrder, Rule::CompletedInOrder]);
}
