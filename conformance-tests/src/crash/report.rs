//! What a run prints.

use std::{collections::HashSet, fmt::Write as _, time::Duration};

use inbox_api::Key;

use super::{
    check::{Rule, TOLD},
    history::{Answered, Asked, Beginning, Call, Change, Granted, Held, Kept, Received, runs_in},
    orchestrate::Outcome,
};

/// The last line, as Rust's own test runner prints it.
pub(crate) fn result_line(passed: bool, run: u32, took: Duration) -> String {
    let word = if passed { "ok" } else { "FAILED" };
    let failed = u32::from(!passed);
    format!(
        "test result: {word}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; \
         finished in {:.2}s",
        run - failed,
        1 - run,
        took.as_secs_f64()
    )
}

#[derive(Default)]
struct Counts {
    empty: u64,
    unknown: u64,
    failed: u64,
    accepted: u64,
    duplicates: u64,
    claimed: u64,
    begun: u64,
    done: u64,
    lost: u64,
    rolled_back: u64,
    extended: u64,
    replayed: u64,
    discarded: u64,
    runs: u64,
    in_runs: u64,
    /// Runs of which not every message was settled, or tried to be, under its lease of the run.
    runs_left: u64,
}

impl Counts {
    fn of(calls: &[Call]) -> Self {
        let mut counts = Self::default();
        let settles = calls.iter().filter_map(|call| match &call.asked {
            Asked::Settle { endings, .. } => Some(endings),
            _ => None,
        });
        let settled: HashSet<_> = settles.flatten().map(|ended| lease(&ended.held)).collect();
        for call in calls {
            counts.add(call);
            if let Some(Answered::Claims { granted, .. }) = &call.answered {
                counts.add_runs(granted, &settled);
            }
        }
        counts
    }

    fn add_runs(&mut self, granted: &[Granted], settled: &HashSet<(&Key, i64)>) {
        for run in runs_in(granted) {
            self.runs += 1;
            self.in_runs += run.len() as u64;
            let mut members = run.iter().filter_map(|place| granted.get(*place));
            let has_left = members.any(|one| !settled.contains(&lease(&one.held)));
            self.runs_left += u64::from(has_left);
        }
    }

    fn add(&mut self, call: &Call) {
        match &call.answered {
            None => self.unknown += 1,
            Some(Answered::Failed { .. }) => self.failed += 1,
            Some(Answered::RolledBack) => self.rolled_back += 1,
            Some(Answered::Receipts(receipts)) => {
                for receipt in receipts {
                    match receipt {
                        Received::Accepted => self.accepted += 1,
                        Received::Duplicate => self.duplicates += 1,
                        Received::Refused => {}
                    }
                }
            }
            Some(Answered::Claims { granted, .. }) => {
                self.empty += u64::from(granted.is_empty());
                self.claimed += granted.len() as u64;
            }
            Some(Answered::Begun(Beginning::Run(_))) => self.begun += 1,
            Some(Answered::Begun(_) | Answered::Listed { .. } | Answered::Purged(_)) => {}
            Some(Answered::Changed(changed)) => match &call.asked {
                Asked::Change {
                    change: Change::Discard,
                    ..
                } => self.discarded += changed,
                _ => self.replayed += changed,
            },
            Some(Answered::Settled(kept) | Answered::Extended(kept)) => {
                let settle = matches!(call.asked, Asked::Settle { .. });
                for kept in kept {
                    match kept {
                        Kept::Done if settle => self.done += 1,
                        Kept::Done | Kept::Unmoved => self.extended += 1,
                        Kept::LeaseLost => self.lost += 1,
                        Kept::Refused => {}
                    }
                }
            }
        }
    }
}

fn lease(held: &Held) -> (&Key, i64) {
    (&held.key, held.token)
}

/// The report of one mode.
pub(crate) fn text(outcome: &Outcome) -> String {
    let counts = Counts::of(&outcome.history.calls);
    let kills: u64 = outcome.kills.values().sum();
    let purged = outcome.purged;
    let messages = outcome.states.values().sum::<u64>() + purged;
    let mut text = format!(
        "\n{} mode, {:.1} s, {} processes\n",
        outcome.mode,
        outcome.took.as_secs_f64(),
        outcome.processes
    );
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<12} {value}");
    };
    let points: Vec<String> = outcome
        .kills
        .iter()
        .map(|(point, count)| format!("{count} {point}"))
        .collect();
    line("kills", format!("{kills}: {}", points.join(", ")));
    let faults: u64 = outcome.faults.values().sum();
    if faults > 0 {
        let kinds: Vec<String> = outcome
            .faults
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(fault, count)| format!("{count} {fault}"))
            .collect();
        let recovery = outcome.recovery.as_secs_f64();
        let kinds = kinds.join(", ");
        line(
            "faults",
            format!("{faults}: {kinds}; the longest recovery took {recovery:.1} s"),
        );
    }
    if !outcome.left_out.is_empty() {
        let names: Vec<_> = outcome
            .left_out
            .iter()
            .map(|fault| fault.as_str())
            .collect();
        let names = names.join(", ");
        line("left out", format!("{names}: not possible here"));
    }
    line(
        "operations",
        format!(
            "{}; also {} claims of nothing, {} calls failed, {} never ended",
            outcome.history.operations(),
            counts.empty,
            counts.failed,
            counts.unknown
        ),
    );
    let mut states: Vec<String> = outcome
        .states
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    states.push(format!("{purged} purged"));
    line("messages", format!("{messages}: {}", states.join(", ")));
    line(
        "receipts",
        format!(
            "{} accepted, {} duplicates",
            counts.accepted, counts.duplicates
        ),
    );
    line(
        "attempts",
        format!(
            "{} claims, {} begun, {} settled, {} rolled back, {} extended, {} lost to others, {} crashed",
            counts.claimed,
            counts.begun,
            counts.done,
            counts.rolled_back,
            counts.extended,
            counts.lost,
            outcome.crashes
        ),
    );
    line(
        "runs",
        format!(
            "{} of several messages, {} in all; {} left before their end",
            counts.runs, counts.in_runs, counts.runs_left
        ),
    );
    line(
        "operators",
        format!(
            "{} replayed, {} discarded",
            counts.replayed, counts.discarded
        ),
    );
    if outcome.findings.set_aside > 0 {
        line(
            "not judged",
            format!(
                "{} accepted again, perhaps, after a purge",
                outcome.findings.set_aside
            ),
        );
    }
    if outcome.unfinished > 0 {
        line("unfinished", format!("{} messages", outcome.unfinished));
    }
    let findings = &outcome.findings;
    for rule in Rule::ALL {
        let occasions = findings.occasions.get(&rule).copied().unwrap_or(0);
        let broken = findings.broken(rule);
        let verdict = match (occasions, broken) {
            (0, _) => "no occasion".to_owned(),
            (_, 0) => format!("kept {occasions} times"),
            _ => format!("BROKEN {broken} of {occasions} times"),
        };
        let _ = writeln!(text, "  {rule:<27}{verdict}");
    }
    for rule in Rule::ALL {
        let broken = findings.violations.iter().filter(|v| v.rule == rule);
        for violation in broken.take(TOLD) {
            let _ = writeln!(text, "\n  {violation}");
        }
        let further = findings.broken(rule).saturating_sub(TOLD);
        if further > 0 {
            let _ = writeln!(text, "\n  {rule}: and {further} more");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::crash::{
        check::{Findings, Violation},
        fault::Fault,
        history::History,
        options::Mode,
        point::Point,
    };

    #[test]
    fn the_last_line_is_of_libtests_form() {
        assert_eq!(
            result_line(true, 1, Duration::from_millis(1234)),
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in 1.23s"
        );
        assert!(
            result_line(false, 1, Duration::ZERO)
                .starts_with("test result: FAILED. 0 passed; 1 failed")
        );
        assert!(
            result_line(true, 0, Duration::ZERO)
                .contains("0 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out")
        );
    }

    #[test]
    fn broken_rules_and_those_without_an_occasion_stand_out() {
        let violation = Violation {
            rule: Rule::Fenced,
            what: "h/a: token 1 settled it".into(),
            history: vec!["first this".into(), "then that".into()],
        };
        let outcome = Outcome {
            mode: Mode::Plain,
            took: Duration::from_secs(3),
            history: History::default(),
            kills: BTreeMap::from([(Point::AfterClaim, 2), (Point::AnyTime, 1)]),
            faults: BTreeMap::from([(Fault::Killed, 1), (Fault::Cut, 0), (Fault::Paused, 2)]),
            left_out: vec![Fault::Filled, Fault::ClockMoved],
            recovery: Duration::from_millis(1250),
            processes: 8,
            states: BTreeMap::new(),
            crashes: 0,
            unfinished: 0,
            purged: 5,
            findings: Findings {
                set_aside: 2,
                violations: vec![violation; 12],
                occasions: BTreeMap::from([(Rule::Fenced, 40), (Rule::OneHolder, 7)]),
            },
        };
        let text = text(&outcome);
        for expected in [
            "plain mode, 3.0 s, 8 processes",
            "kills        3: 2 after claim, 1 at any time",
            "faults       3: 1 killed, 2 paused; the longest recovery took 1.2 s",
            "left out     filled, clock moved: not possible here",
            "messages     5: 5 purged",
            "not judged   2 accepted again, perhaps, after a purge",
            "one-holder                 kept 7 times",
            "fenced                     BROKEN 12 of 40 times",
            "tokens-grow                no occasion",
            "fenced: h/a: token 1 settled it\n    first this\n    then that",
            "fenced: and 9 more",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert_eq!(text.matches("first this").count(), TOLD);
    }
}
