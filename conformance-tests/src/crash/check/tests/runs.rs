//! Histories with runs, by hand and of a small store with flaws.

mod store;

use inbox_api::{HandlerName, State};

use super::{
    super::Rule,
    run::{LEASE, Run, failed},
};
use crate::crash::history::{
    Asked,
    Change::Replay,
    Ending::{Dead, Processed, Release, Retry},
    Kept::{Done, LeaseLost, Unmoved},
    Received::Accepted,
};
use store::{Flaw, history};

/// Runs of the small store with each flaw.
const SEEDS: u64 = 300;

/// All three were claimed in one run, with these tokens.
const THREE: [(&str, i64, (u32, u32)); 3] = [("a", 1, (1, 0)), ("b", 2, (1, 0)), ("c", 3, (1, 0))];

fn run() -> Run {
    Run::ordered()
        .receive_all(0, 1, &["a", "b", "c"], &[Accepted; 3])
        .claim_run(2, 3, &THREE)
}

impl Run {
    /// All three end as processed, with these attempts.
    fn three(self, attempts: [u32; 3]) -> Self {
        let ids = ["a", "b", "c"].into_iter();
        ids.zip(attempts).fold(self, |run, (id, started)| {
            run.listed(id, State::Processed, started, 1)
        })
    }

    /// Each by itself, once the leases of the run have run out.
    fn one_by_one(self, started: [u32; 3]) -> Self {
        let from = LEASE + 100;
        let ids = ["a", "b", "c"].into_iter().zip(started);
        let run = ids.zip(1..).fold(self, |run, ((id, started), place)| {
            let (at, token) = (from + 10 * place, 10 + i64::try_from(place).unwrap());
            run.claim(at, at + 1, id, token, (started, 0)).settle(
                (at + 2, at + 3),
                (id, token),
                Processed,
                Done,
            )
        });
        run.three(started)
    }
}

#[test]
fn runs_that_end_as_they_should_are_good() {
    let ended = |outcome| THREE.map(|(id, token, _)| ((id, token), Processed, outcome));
    run()
        .settle_all((4, 5), &ended(Done))
        .three([1; 3])
        .keeps_all();
    // One after the other, with the leases extended on the way.
    run()
        .settle((4, 5), ("a", 1), Dead, Done)
        .extend(300, 301, ("b", 2), LEASE)
        .extend(300, 301, ("c", 3), LEASE)
        .settle((700, 701), ("b", 2), Processed, Done)
        .settle((702, 703), ("c", 3), Processed, Done)
        .listed("a", State::Dead, 1, 1)
        .listed("b", State::Processed, 1, 1)
        .listed("c", State::Processed, 1, 1)
        .keeps_all();
    // What was not reached is handed back, and comes again.
    run()
        .settle_all(
            (4, 5),
            &[
                (("a", 1), Processed, Done),
                (("b", 2), Retry(5_000), Done),
                (("c", 3), Release, Done),
            ],
        )
        .claim_run(20, 21, &[("b", 4, (2, 1)), ("c", 5, (1, 0))])
        .settle_all(
            (22, 23),
            &[(("b", 4), Processed, Done), (("c", 5), Processed, Done)],
        )
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Processed, 2, 2)
        .listed("c", State::Processed, 1, 1)
        .keeps_all();
    // The worker was only slow: all that it had is lost.
    run()
        .one_by_one([2, 1, 1])
        .settle_all((900, 901), &ended(LeaseLost))
        .keeps_all();
    // The first was taken, and nothing of the rest, by one whose answer nobody knows.
    run()
        .unknown_claim(600)
        .settle_all((700, 701), &ended(LeaseLost))
        .claim(1200, 1201, "a", 11, (3, 0))
        .settle((1202, 1203), ("a", 11), Processed, Done)
        .claim(1204, 1205, "b", 12, (1, 0))
        .settle((1206, 1207), ("b", 12), Processed, Done)
        .claim(1208, 1209, "c", 13, (1, 0))
        .settle((1210, 1211), ("c", 13), Processed, Done)
        .three([3, 1, 1])
        .keeps_all();
    // The run's answer was lost, and repeated when another had the first.
    run()
        .settle_as((4, 5), ("a", 1), Retry(0), failed(true))
        .settle_as((4, 5), ("b", 2), Release, failed(true))
        .settle_as((4, 5), ("c", 3), Release, failed(true))
        .claim(10, 11, "a", 4, (2, 1))
        .settle_all(
            (12, 13),
            &[
                (("a", 1), Retry(0), LeaseLost),
                (("b", 2), Release, Done),
                (("c", 3), Release, Done),
            ],
        )
        .settle((14, 15), ("a", 4), Processed, Done)
        .claim_run(16, 17, &[("b", 5, (1, 0)), ("c", 6, (1, 0))])
        .settle_all(
            (18, 19),
            &[(("b", 5), Processed, Done), (("c", 6), Processed, Done)],
        )
        .listed("a", State::Processed, 2, 2)
        .listed("b", State::Processed, 1, 1)
        .listed("c", State::Processed, 1, 1)
        .keeps_all();
    // One that had died was replayed, and stands before its run.
    Run::ordered()
        .dead("a")
        .receive(6, 7, "b", Accepted)
        .claim(8, 9, "b", 1, (1, 0))
        .change((10, 11), "a", Replay, 1)
        .settle((12, 13), ("b", 1), Retry(0), Done)
        .claim_run(14, 15, &[("a", 2, (1, 0)), ("b", 2, (2, 1))])
        .settle_all(
            (16, 17),
            &[(("a", 2), Processed, Done), (("b", 2), Processed, Done)],
        )
        .listed("a", State::Processed, 1, 1)
        .listed("b", State::Processed, 2, 2)
        .keeps_all();
}

#[test]
fn a_run_is_handed_out_in_its_order_without_a_gap() {
    let others = [("b", 1, (1, 0)), ("a", 2, (1, 0)), ("c", 3, (1, 0))];
    let claimed = |messages: &[(&str, i64, (u32, u32))]| {
        Run::ordered()
            .receive_all(0, 1, &["a", "b", "c"], &[Accepted; 3])
            .claim_run(2, 3, messages)
    };
    claimed(&others)
        .settle_all(
            (4, 5),
            &[
                (("a", 2), Processed, Done),
                (("b", 1), Processed, Done),
                (("c", 3), Processed, Done),
            ],
        )
        .three([1; 3])
        .breaks(Rule::HandedOutInOrder);
    // Without the one in the middle, which comes later.
    claimed(&[THREE[0], THREE[2]])
        .settle((4, 5), ("a", 1), Processed, Done)
        .claim(6, 7, "b", 4, (1, 0))
        .settle((8, 9), ("b", 4), Processed, Done)
        .settle((10, 11), ("c", 3), Processed, Done)
        .three([1; 3])
        .breaks_all(&[Rule::HandedOutInOrder, Rule::OneRunAtATime]);
    // In another claim.
    claimed(&THREE[..2])
        .claim(4, 5, "c", 3, (1, 0))
        .settle((6, 7), ("a", 1), Processed, Done)
        .settle((8, 9), ("b", 2), Processed, Done)
        .settle((10, 11), ("c", 3), Processed, Done)
        .three([1; 3])
        .breaks_all(&[Rule::HandedOutInOrder, Rule::OneRunAtATime]);
}

#[test]
fn what_vanished_once_comes_alone() {
    run()
        .claim_run(600, 601, &[("a", 4, (2, 0)), ("b", 5, (1, 0))])
        .settle_all(
            (602, 603),
            &[(("a", 4), Processed, Done), (("b", 5), Processed, Done)],
        )
        .claim(604, 605, "c", 6, (1, 0))
        .settle((606, 607), ("c", 6), Processed, Done)
        .three([2, 1, 1])
        .breaks(Rule::ClaimsAsAsked);
}

#[test]
fn a_claim_gets_what_it_asks_for() {
    let asked_of = |handlers: &[&str], limit: u32| {
        let handlers = handlers.iter().map(|name| HandlerName::new(*name).unwrap());
        let asked = Asked::Claim {
            handlers: handlers.collect(),
            limit,
            run_limit: 1,
            length: LEASE * 1000,
        };
        let run = Run::default()
            .receive_all(0, 1, &["a", "b"], &[Accepted; 2])
            .claim_asked(2, 3, asked, &[("a", 1, (1, 0)), ("b", 2, (1, 0))]);
        let ended = [(("a", 1), Processed, Done), (("b", 2), Processed, Done)];
        run.settle_all((4, 5), &ended)
            .listed("a", State::Processed, 1, 1)
            .listed("b", State::Processed, 1, 1)
    };
    asked_of(&["other", "h"], 2).keeps_all();
    asked_of(&["h"], 1).breaks(Rule::ClaimsAsAsked);
    asked_of(&["other"], 2).breaks(Rule::ClaimsAsAsked);
}

#[test]
fn what_lost_its_run_comes_behind_no_other() {
    // Nobody had begun with the third, so that its attempts do not tell.
    let second_run = |run: Run| {
        run.claim(600, 601, "a", 4, (2, 0))
            .settle((602, 603), ("a", 4), Processed, Done)
            .claim_run(604, 605, &[("b", 5, (1, 0)), ("c", 6, (1, 0))])
            .settle_all(
                (606, 607),
                &[(("b", 5), Processed, Done), (("c", 6), Processed, Done)],
            )
            .three([2, 1, 1])
    };
    second_run(run()).breaks(Rule::ClaimsAsAsked);
    // It was handed back, perhaps.
    second_run(run().settle_as((4, 5), ("c", 3), Release, failed(true))).keeps_all();
}

#[test]
fn an_attempt_of_a_run_counts_when_its_turn_comes() {
    run().one_by_one([2, 1, 1]).keeps_all();
    // Nobody had begun with them.
    run().one_by_one([2, 2, 1]).breaks(Rule::AttemptsCounted);
    run().one_by_one([2, 1, 2]).breaks(Rule::AttemptsCounted);
    run().one_by_one([1, 1, 1]).breaks(Rule::AttemptsCounted);
    let after_the_first = |at, second: u32, third: u32| {
        run()
            .settle((at, at + 1), ("a", 1), Processed, Done)
            .claim(600, 601, "b", 4, (second, 0))
            .settle((602, 603), ("b", 4), Processed, Done)
            .claim(604, 605, "c", 5, (third, 0))
            .settle((606, 607), ("c", 5), Processed, Done)
            .three([1, second, third])
    };
    after_the_first(4, 2, 1).keeps_all();
    after_the_first(4, 1, 1).breaks(Rule::AttemptsCounted);
    after_the_first(4, 2, 2).breaks(Rule::AttemptsCounted);
    // The leases may have run out by then.
    after_the_first(510, 1, 1).keeps_all();
    after_the_first(510, 2, 1).keeps_all();
    // What is handed back has not been begun.
    let handed_back = |second| {
        run()
            .settle_all(
                (4, 5),
                &[
                    (("a", 1), Retry(0), Done),
                    (("b", 2), Release, Done),
                    (("c", 3), Release, Done),
                ],
            )
            .claim(20, 21, "a", 4, (2, 1))
            .settle((22, 23), ("a", 4), Processed, Done)
            .claim_run(24, 25, &[("b", 5, (second, 0)), ("c", 6, (1, 0))])
            .settle_all(
                (26, 27),
                &[(("b", 5), Processed, Done), (("c", 6), Processed, Done)],
            )
            .listed("a", State::Processed, 2, 2)
            .listed("b", State::Processed, second, 1)
            .listed("c", State::Processed, 1, 1)
    };
    handed_back(1).keeps_all();
    handed_back(2).breaks_all(&[Rule::AttemptsCounted, Rule::ClaimsAsAsked]);
}

#[test]
fn one_that_was_purged_and_came_again_tells_nothing_of_its_run() {
    for second in [1, 2] {
        run()
            .settle((4, 5), ("a", 1), Processed, Done)
            .settle((6, 7), ("c", 3), Processed, LeaseLost)
            .purge((1010, 1011), State::Processed, 1)
            .receive(1012, 1013, "a", Accepted)
            .claim(1014, 1015, "b", 4, (second, 0))
            .settle((1016, 1017), ("b", 4), Processed, Done)
            .claim(1018, 1019, "c", 5, (1, 0))
            .settle((1020, 1021), ("c", 5), Processed, Done)
            .claim(1022, 1023, "a", 6, (1, 0))
            .settle((1024, 1025), ("a", 6), Processed, Done)
            .listed("b", State::Processed, second, 1)
            .listed("c", State::Processed, 1, 1)
            .listed("a", State::Processed, 1, 1)
            .keeps_all();
    }
}

#[test]
fn what_is_behind_one_that_was_taken_is_lost() {
    // Its worker goes on with the second although another has the first.
    let taken = || run().claim(600, 601, "a", 4, (2, 0));
    let then = |run: Run| {
        run.settle((610, 611), ("a", 4), Processed, Done)
            .claim(612, 613, "c", 6, (1, 0))
            .settle((614, 615), ("c", 6), Processed, Done)
            .three([2, 1, 1])
    };
    let settled = taken().settle((602, 603), ("b", 2), Processed, Done);
    then(settled).breaks_all(&[Rule::Fenced, Rule::CompletedInOrder]);
    let extended = taken()
        .extend(602, 603, ("b", 2), 1)
        .claim(606, 607, "b", 5, (1, 0))
        .settle((608, 609), ("b", 5), Processed, Done);
    then(extended).breaks_all(&[
        Rule::Fenced,
        Rule::HandedOutInOrder,
        Rule::OneRunAtATime,
        Rule::CompletedInOrder,
    ]);
    // It is lost to nobody where none before it may have been taken.
    let lost = |run: Run| {
        run.settle((8, 9), ("b", 2), Processed, LeaseLost)
            .claim(600, 601, "b", 4, (2, 0))
            .settle((602, 603), ("b", 4), Processed, Done)
            .claim(604, 605, "c", 5, (1, 0))
            .settle((606, 607), ("c", 5), Processed, Done)
            .three([1, 2, 1])
    };
    let ended = run().settle((4, 5), ("a", 1), Processed, Done);
    lost(ended).breaks(Rule::LostToNobody);
    // A claim without an answer cannot have got the first while its lease was valid.
    let unknown = run()
        .unknown_claim(4)
        .settle((5, 6), ("a", 1), Processed, Done);
    // But the second itself, as far as that goes.
    lost(unknown).keeps_all();
}

#[test]
fn a_lease_that_is_lost_with_its_run_is_not_valid() {
    // The second lease was extended in the moment in which the first was taken.
    run()
        .extend(600, 620, ("b", 2), LEASE)
        .claim(610, 611, "a", 4, (2, 0))
        .settle((612, 613), ("a", 4), Processed, Done)
        .claim(630, 631, "b", 5, (1, 0))
        .settle((632, 633), ("b", 5), Processed, Done)
        .claim(634, 635, "c", 6, (1, 0))
        .settle((636, 637), ("c", 6), Processed, Done)
        .three([2, 1, 1])
        .keeps_all();
    // The first was settled, and nobody has taken it.
    run()
        .settle((4, 5), ("a", 1), Processed, Done)
        .extend(400, 401, ("b", 2), LEASE)
        .claim(600, 601, "b", 5, (2, 0))
        .settle((602, 603), ("b", 5), Processed, Done)
        .claim(604, 605, "c", 6, (1, 0))
        .settle((606, 607), ("c", 6), Processed, Done)
        .three([1, 2, 1])
        .breaks(Rule::OneHolder);
}

#[test]
fn an_extension_may_take_what_is_behind_a_lease_that_has_run_out() {
    // Another transaction holds the first at that moment, and nobody has claimed it.
    let lost = |at| {
        let all_lost = THREE.map(|(id, token, _)| ((id, token), LeaseLost));
        run()
            .extend_all((at, at + 1), &all_lost, LEASE)
            .settle_all(
                (at + 2, at + 3),
                &[
                    (("a", 1), Processed, Done),
                    (("b", 2), Processed, LeaseLost),
                    (("c", 3), Processed, LeaseLost),
                ],
            )
            .claim(700, 701, "b", 4, (1, 0))
            .settle((702, 703), ("b", 4), Processed, Done)
            .claim(704, 705, "c", 5, (1, 0))
            .settle((706, 707), ("c", 5), Processed, Done)
            .three([1; 3])
    };
    lost(600).keeps_all();
    let early = lost(100).findings();
    assert!(early.broken(Rule::LostToNobody) > 0, "{early:?}");
    // The second had been extended for itself, and is lost then.
    let extended = |told: fn(Run) -> Run| {
        told(run().extend(400, 401, ("b", 2), LEASE))
            .settle((602, 603), ("a", 1), Processed, Done)
            .claim(610, 611, "b", 4, (1, 0))
            .settle((612, 613), ("b", 4), Processed, Done)
            .claim(614, 615, "c", 5, (1, 0))
            .settle((616, 617), ("c", 5), Processed, Done)
            .three([1; 3])
    };
    extended(|run| run.extend_all((600, 601), &[(("b", 2), LeaseLost)], LEASE)).keeps_all();
    let untold = extended(|run| run).findings();
    assert!(untold.broken(Rule::OneHolder) > 0, "{untold:?}");
}

#[test]
fn an_extension_may_leave_the_end_of_a_lease_as_it_was() {
    let extended = |answer| {
        Run::default()
            .receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
            .extend_all((400, 401), &[(("a", 1), answer)], LEASE)
            .claim(600, 601, "a", 2, (2, 0))
            .settle((602, 603), ("a", 2), Processed, Done)
            .listed("a", State::Processed, 2, 1)
    };
    extended(Unmoved).keeps_all();
    extended(Done).breaks(Rule::OneHolder);
    // Only the newest holder is told so.
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .claim(600, 601, "a", 2, (2, 0))
        .extend_all((602, 603), &[(("a", 1), Unmoved)], LEASE)
        .settle((604, 605), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 2, 1)
        .breaks(Rule::Fenced);
}

#[test]
fn a_stale_token_extends_nothing() {
    Run::default()
        .receive(0, 1, "a", Accepted)
        .claim(2, 3, "a", 1, (1, 0))
        .claim(600, 601, "a", 2, (2, 0))
        .extend(602, 603, ("a", 1), LEASE)
        .settle((604, 605), ("a", 2), Processed, Done)
        .listed("a", State::Processed, 2, 1)
        .breaks_all(&[Rule::Fenced, Rule::OneHolder]);
}

#[test]
fn a_sound_store_breaks_no_rule_with_runs_and_blocked_keys() {
    let mut judged = [0; 3];
    let rules = [
        Rule::ClaimsAsAsked,
        Rule::BlockedKeyWaits,
        Rule::LostToNobody,
    ];
    for seed in 0..SEEDS {
        let findings = history(seed, None).findings();
        let first = findings.violations.first();
        assert!(first.is_none(), "seed {seed}: {}", first.unwrap());
        for (judged, rule) in judged.iter_mut().zip(rules) {
            *judged += findings.occasions.get(&rule).unwrap_or(&0);
        }
    }
    assert!(judged.iter().all(|judged| *judged > SEEDS), "{judged:?}");
}

#[test]
fn what_a_store_with_a_flaw_does_with_runs_and_blocked_keys_is_seen() {
    for (flaw, rule) in [
        (Flaw::TurnsRunsRound, Rule::HandedOutInOrder),
        (Flaw::LeavesOneOut, Rule::HandedOutInOrder),
        (Flaw::PassesWhatBlocks, Rule::BlockedKeyWaits),
        (Flaw::KeepsLeasesBehindOneThatIsTaken, Rule::Fenced),
        (Flaw::LetsTheReplayedPass, Rule::OneRunAtATime),
        (Flaw::CountsWhatIsNotReached, Rule::AttemptsCounted),
        (Flaw::CountsOnlyTheFirst, Rule::AttemptsCounted),
        (Flaw::MakesRunsOfWhatVanished, Rule::ClaimsAsAsked),
        (Flaw::GivesMoreThanAskedFor, Rule::ClaimsAsAsked),
        (Flaw::ForgetsReplays, Rule::ReplaysTold),
        (Flaw::ListsWhatDoesNotBlock, Rule::ListedAsAsked),
        (Flaw::ListsOnlyTheLast, Rule::ListedAsAsked),
        (Flaw::HidesWhatBlocks, Rule::ListedAsAsked),
    ] {
        let mut seen = 0;
        for seed in 0..SEEDS {
            let findings = history(seed, Some(flaw)).findings();
            seen += u64::from(findings.broken(rule) > 0);
        }
        assert!(seen > SEEDS / 10, "{flaw:?}: {seen} of {SEEDS}");
    }
}
