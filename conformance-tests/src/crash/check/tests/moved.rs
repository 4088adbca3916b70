//! Histories of a store whose clock is moved, made by a small store with flaws and by hand.

mod store;

use inbox_api::State;

use super::{
    super::Rule,
    run::{LEASE, Run},
};
use crate::crash::history::{
    ClockMove,
    Ending::{Defer, Processed, Retry},
    Kept::{Done, LeaseLost},
    Received::Accepted,
};
use store::{Flaw, history};

/// Runs of the small store with each flaw.
const SEEDS: u64 = 300;

impl Run {
    /// The store's clock jumps at that time, to so many milliseconds from the true time.
    fn moved(mut self, start: u64, ahead: i64) -> Self {
        self.history.moves.push(ClockMove {
            start: start * 1000,
            end: start * 1000 + 100,
            ahead: ahead * 1000,
        });
        self
    }

    fn held(self) -> Self {
        self.receive(0, 1, "a", Accepted)
            .claim(2, 3, "a", 1, (1, 0))
    }

    /// The message goes to another worker, who has it done.
    fn taken(self, at: u64) -> Self {
        self.claim(at, at + 1, "a", 2, (2, 0))
            .settle((at + 2, at + 3), ("a", 1), Processed, LeaseLost)
            .settle((at + 4, at + 5), ("a", 2), Processed, Done)
            .listed("a", State::Processed, 2, 1)
    }
}

#[test]
fn a_lease_ends_by_the_stores_clock() {
    let lease = LEASE as i64;
    // Forwards it ends early, and not earlier than that.
    Run::default().held().moved(4, lease).taken(6).keeps_all();
    let short = Run::default().held().moved(4, lease - 100);
    short.taken(6).breaks(Rule::OneHolder);
    let short = Run::default().held().moved(4, lease - 100);
    short.taken(103).keeps_all();
    // Backwards it ends late.
    let late = Run::default().held().moved(4, -1000);
    late.taken(LEASE + 10).breaks(Rule::OneHolder);
    let late = Run::default().held().moved(4, -1000);
    late.taken(LEASE + 1010).keeps_all();
    // A lease that was given out behind the jump is as long as any.
    let behind = Run::default().moved(0, 5_000).held();
    behind.taken(LEASE + 10).keeps_all();
    let behind = Run::default().moved(0, 5_000).held();
    behind.taken(LEASE - 100).breaks(Rule::OneHolder);
    // There and back again.
    let there_and_back = || Run::default().held().moved(4, 2 * lease);
    // Nobody can have got it in between.
    there_and_back()
        .moved(8, 0)
        .taken(20)
        .breaks(Rule::OneHolder);
    there_and_back().taken(6).moved(20, 0).keeps_all();
    there_and_back()
        .unknown_claim(6)
        .moved(8, 0)
        .taken(20)
        .keeps_all();
}

#[test]
fn an_extension_counts_from_the_stores_clock() {
    let extended = |ahead, at| {
        Run::default()
            .held()
            .moved(100, ahead)
            .extend(200, 201, ("a", 1), LEASE)
            .taken(at)
    };
    extended(300, 650).breaks(Rule::OneHolder);
    extended(300, 710).keeps_all();
    extended(-300, 650).breaks(Rule::OneHolder);
    extended(-300, 710).keeps_all();
}

#[test]
fn delays_end_by_the_stores_clock() {
    for ending in [Retry(400_000), Defer(400_000)] {
        let counted = u32::from(matches!(ending, Retry(_)));
        let again = |ahead, at| {
            let run = Run::default().held();
            run.settle((4, 5), ("a", 1), ending, Done)
                .moved(6, ahead)
                .claim(at, at + 1, "a", 2, (counted + 1, counted))
                .settle((at + 2, at + 3), ("a", 2), Processed, Done)
                .listed("a", State::Processed, counted + 1, counted + 1)
        };
        again(400, 8).keeps_all();
        again(300, 8).breaks(Rule::RetryWaits);
        again(-400, 500).breaks(Rule::RetryWaits);
        again(-400, 900).keeps_all();
    }
}

#[test]
fn what_was_received_before_a_jump_is_neither_lost_nor_stuck() {
    let received = |ahead| Run::default().receive(0, 1, "a", Accepted).moved(2, ahead);
    received(-1000).breaks(Rule::NothingLost);
    received(-1000)
        .listed("a", State::Pending, 0, 0)
        .breaks(Rule::EverythingFinal);
}

#[test]
fn a_sound_store_breaks_no_rule_however_its_clock_jumps() {
    let mut judged = 0;
    for seed in 0..SEEDS {
        let findings = history(seed, None).findings();
        let first = findings.violations.first();
        assert!(first.is_none(), "seed {seed}: {}", first.unwrap());
        judged += findings.occasions.get(&Rule::OneHolder).unwrap_or(&0);
    }
    assert!(judged > SEEDS);
}

#[test]
fn what_a_jump_does_to_a_store_with_a_flaw_is_seen() {
    for (flaw, rule) in [
        (Flaw::TakesLeasesThatLookTooLong, Rule::OneHolder),
        (Flaw::TakesOldTokensAfterAJump, Rule::Fenced),
        (Flaw::ForgetsWhatComesFromTheFuture, Rule::NothingLost),
        (Flaw::PutsOffWhatComesFromTheFuture, Rule::EverythingFinal),
        (Flaw::DropsDelaysAtAJump, Rule::RetryWaits),
        (Flaw::DrawsTokensFromTheClock, Rule::TokensGrow),
    ] {
        let mut seen = 0;
        for seed in 0..SEEDS {
            let findings = history(seed, Some(flaw)).findings();
            seen += u64::from(findings.broken(rule) > 0);
        }
        assert!(seen > SEEDS / 10, "{flaw:?}: {seen} of {SEEDS}");
    }
}
