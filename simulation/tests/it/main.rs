//! Seeds without a finding, the same run for the same seed, and flaws that are found.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

use simulation::{Flaw, Kind, Scenario, run, shrink};

/// As many as take some seconds in a debug build.
const SEEDS: u64 = 400;

/// The same on SQLite.
const SEEDS_ON_SQLITE: u64 = 80;

/// Those of the present plan that have found something.
const FINDERS: [u64; 6] = [236_405, 313_499, 375_465, 414_518, 524_341, 645_778];

/// Within so many seeds each flaw is found.
const WITHIN: u64 = 200;

#[test]
fn no_seed_breaks_a_rule() {
    let check = |seed, kind| {
        let scenario = Scenario::new(seed).on(kind);
        let broken = run(scenario, None, false).unwrap().broken;
        assert_eq!(broken, None, "seed {seed} on {kind:?}");
    };
    let of_both = [(Kind::Memory, SEEDS), (Kind::Sqlite, SEEDS_ON_SQLITE)];
    std::thread::scope(|scope| {
        for (kind, seeds) in of_both {
            for seeds in [0..seeds / 2, seeds / 2..seeds] {
                scope.spawn(move || seeds.for_each(|seed| check(seed, kind)));
            }
        }
    });
    for seed in FINDERS {
        check(seed, Kind::Memory);
    }
}

#[test]
fn a_seed_is_the_same_run_each_time() {
    let in_memory = (0..30).map(Scenario::new);
    let on_sqlite = (0..8).map(|seed| Scenario::new(seed).on(Kind::Sqlite));
    for scenario in in_memory.chain(on_sqlite) {
        let trace = || run(scenario.clone(), None, true).unwrap().trace;
        let first = trace();
        assert!(!first.is_empty());
        // Elsewhere, as what is different there may be a thread's own.
        let second = std::thread::scope(|scope| scope.spawn(trace).join().unwrap());
        assert_eq!(first, second, "{scenario:?}");
    }
}

/// The first seed in which a flaw breaks a rule, and which.
fn found(flaw: Flaw, rule: &str) -> u64 {
    let mut others = Vec::new();
    for seed in 0..WITHIN {
        match run(Scenario::new(seed), Some(flaw), false).unwrap().broken {
            Some(broken) if broken.rule == rule => return seed,
            Some(broken) => others.push(broken),
            None => {}
        }
    }
    panic!("{flaw:?} did not break \"{rule}\" in {WITHIN} seeds, but {others:?}");
}

#[test]
fn every_flaw_breaks_the_rule_that_is_there_for_it() {
    for flaw in Flaw::ALL {
        let rule = match flaw {
            Flaw::AcknowledgesFirst => "stored before it is acknowledged",
            Flaw::ForgetsDuplicates => "accepted once",
            Flaw::NoFencing | Flaw::HidesLostLeases => "a stale token changes nothing",
            Flaw::RenewsNothing | Flaw::BeginsWhatIsHeld => "one holder",
            Flaw::NoOrder => "order",
            Flaw::LosesRetries | Flaw::EndlessLeases | Flaw::LosesMessages => "nothing is stuck",
            Flaw::ForgetsCompletions => "final is final",
            Flaw::HandsOutTwice => "tokens grow",
            Flaw::DeliversBackwards => "stored in the broker's order",
            Flaw::HidesBytes => "rejected as it was told to",
            Flaw::ForgetsRecords => "recorded before it is acknowledged",
            Flaw::ForgetsRejected => "kept before it is acknowledged",
            Flaw::HandsOutRecords => "what is recorded is not handed out",
            Flaw::RefusedIsDone => "what is refused stays what it is",
            Flaw::GivesUpAtOnce => "given up when nobody came",
            Flaw::HidesCrashes => "a suspect runs by itself",
            Flaw::ForgetsLateClaims => "a late claim is handed back",
            Flaw::StopsRenewing => "leases are renewed",
            Flaw::RenewsLate => "failed renewals are repeated",
            Flaw::PanicsAtTwo => "no panic ends a part",
            Flaw::TakesAnything => "nothing is finished behind a stop",
            Flaw::ReleasesRecords => "recorded as processed",
            Flaw::CompletesRejected => "kept as dead",
            Flaw::LeavesClaims => "a claim is waited for",
            Flaw::ChargesOutages => "an outage costs no attempt",
            Flaw::IgnoresLostLeases | Flaw::KeepsEffects => "an effect commits with its settlement",
            Flaw::LosesEffects | Flaw::LosesNotes => "no effect is lost",
            Flaw::PutsOff => "settled as it ended",
            Flaw::SettlesForwards => "what is behind goes back first",
            Flaw::HidesFailures => "callers are told the truth",
        };
        found(flaw, rule);
    }
}

#[test]
fn a_finding_shrinks_and_is_still_one() {
    let flaw = Some(Flaw::NoOrder);
    // Refusals count the settlements of other messages.
    let seeds = (0..WITHIN).map(Scenario::new);
    let mut seeds = seeds.filter(|scenario| scenario.refusals.is_empty());
    let breaks_order = |scenario: &Scenario| {
        let broken = run(scenario.clone(), flaw, false).unwrap().broken;
        broken.is_some_and(|broken| broken.rule == "order")
    };
    let whole = seeds.find(breaks_order).unwrap();
    let (smallest, broken) = shrink(whole.clone(), flaw).unwrap();
    assert_eq!(broken.rule, "order");
    // Two messages that were delivered, and what made one of them late.
    assert_eq!(smallest.deliveries.len(), 2, "{smallest:?}");
    assert!(smallest.behaviours.len() < whole.behaviours.len());
    let again = run(smallest, flaw, true).unwrap();
    assert_eq!(again.broken, Some(broken));
    let last = again.trace.last().unwrap();
    assert!(last.contains("BROKEN order"), "{last}");
}
