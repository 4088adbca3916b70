//! What a run found, for people and for programs.

use std::{collections::BTreeSet, fmt, time::Duration};

use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};
use serde::Serialize;

use crate::needs::Need;

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// The store keeps the rule.
    Passed,
    /// The store breaks the rule.
    Failed {
        /// What was expected and what was seen.
        seen: String,
    },
    /// The case could not be run. Neither passed nor failed.
    NotChecked {
        /// What is lacking.
        need: Need,
        /// The same in words.
        why: String,
        /// Whether the harness declared it.
        expected: bool,
    },
}

/// One case of a [`Report`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseReport {
    /// Its group.
    pub group: &'static str,
    /// Its name within the group.
    pub name: &'static str,
    /// The rule of the contract that it checks.
    pub rule: &'static str,
    /// What became of it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl CaseReport {
    fn to_junit(&self) -> TestCase {
        let mut status = match &self.verdict {
            Verdict::Passed => TestCaseStatus::success(),
            Verdict::NotChecked { expected: true, .. } => TestCaseStatus::skipped(),
            Verdict::Failed { .. } | Verdict::NotChecked { .. } => {
                TestCaseStatus::non_success(NonSuccessKind::Failure)
            }
        };
        match &self.verdict {
            Verdict::Passed => {}
            Verdict::Failed { seen } => {
                status.set_message(self.rule).set_description(&**seen);
            }
            Verdict::NotChecked { why, .. } => {
                status.set_message(format!("not checked: {why}"));
            }
        }
        let mut case = TestCase::new(self.name, status);
        case.set_classname(self.group)
            .set_time(Duration::try_from_secs_f64(self.seconds).unwrap_or_default());
        case
    }
}

/// What a run found. `Display` is a table of the groups followed by the details of everything
/// that did not pass; `Serialize` has every case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The store's name, from its harness.
    pub store: String,
    /// Of which cases; empty means all.
    pub filter: String,
    /// How many cases passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many were not checked.
    pub not_checked: usize,
    /// All of them together, in seconds.
    pub seconds: f64,
    /// Every case, in the suite's order.
    pub cases: Vec<CaseReport>,
}

impl Report {
    pub(crate) fn new(store: String, filter: String, cases: Vec<CaseReport>) -> Self {
        let count = |is: fn(&Verdict) -> bool| cases.iter().filter(|c| is(&c.verdict)).count();
        Self {
            store,
            filter,
            passed: count(|v| *v == Verdict::Passed),
            failed: count(|v| matches!(v, Verdict::Failed { .. })),
            not_checked: count(|v| matches!(v, Verdict::NotChecked { .. })),
            seconds: seconds(&cases.iter().collect::<Vec<_>>()),
            cases,
        }
    }

    /// Whether the store conforms as far as its harness says it can be checked: the run
    /// [is clean](Self::is_clean), and had no filter.
    #[must_use]
    pub fn is_conformant(&self) -> bool {
        self.filter.is_empty() && self.is_clean()
    }

    /// Whether nothing failed, something passed, and everything that was not checked was declared, of
    /// the cases that were asked for.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failed == 0 && self.passed > 0 && self.undeclared().next().is_none()
    }

    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases
            .iter()
            .filter(|case| matches!(case.verdict, Verdict::Failed { .. }))
    }

    /// The cases that were not checked although the harness did not declare it.
    pub fn undeclared(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| {
            matches!(
                case.verdict,
                Verdict::NotChecked {
                    expected: false,
                    ..
                }
            )
        })
    }

    /// The report as JUnit XML, as continuous integration shows it: a suite for each group. What was
    /// not checked is skipped if that was declared, and fails otherwise.
    #[must_use]
    pub fn to_junit(&self) -> String {
        let mut junit = quick_junit::Report::new(&*self.store);
        for group in self.groups() {
            let mut suite = TestSuite::new(group);
            for case in self.cases.iter().filter(|case| case.group == group) {
                suite.add_test_case(case.to_junit());
            }
            junit.add_test_suite(suite);
        }
        // Writing to a string does not fail; the fallback only spares a panic path.
        junit.to_string().unwrap_or_default()
    }

    fn groups(&self) -> Vec<&'static str> {
        let mut groups = Vec::new();
        for case in &self.cases {
            if !groups.contains(&case.group) {
                groups.push(case.group);
            }
        }
        groups
    }

    /// The report as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Texts and numbers always serialise; the fallback only spares a panic path.
        serde_json::to_string_pretty(self).unwrap_or_else(|_| "{}".into())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Conformance of {}\n", self.store)?;
        writeln!(
            f,
            "  {:<14}{:>7}{:>8}{:>13}{:>9}",
            "group", "passed", "failed", "not checked", "seconds"
        )?;
        for group in self.groups() {
            self.fmt_group(f, group)?;
        }
        writeln!(
            f,
            "  {:<14}{:>7}{:>8}{:>13}{:>9.2}",
            "total", self.passed, self.failed, self.not_checked, self.seconds
        )?;
        self.fmt_failures(f)?;
        self.fmt_not_checked(f)?;
        let verdict = if self.is_conformant() {
            "conforms, as far as checked"
        } else if self.is_clean() {
            "passes what was asked for, which is not the whole suite"
        } else if self.failed == 0 && self.passed == 0 {
            "nothing was checked"
        } else if self.failed == 0 {
            "not shown to conform: cases were not checked and not declared"
        } else {
            "does not conform"
        };
        write!(f, "\n{}: {verdict}.", self.store)
    }
}

impl Report {
    fn fmt_group(&self, f: &mut fmt::Formatter<'_>, group: &str) -> fmt::Result {
        let cases: Vec<&CaseReport> = self.cases.iter().filter(|c| c.group == group).collect();
        let count = |is: fn(&Verdict) -> bool| cases.iter().filter(|c| is(&c.verdict)).count();
        writeln!(
            f,
            "  {:<14}{:>7}{:>8}{:>13}{:>9.2}",
            group,
            count(|v| *v == Verdict::Passed),
            count(|v| matches!(v, Verdict::Failed { .. })),
            count(|v| matches!(v, Verdict::NotChecked { .. })),
            seconds(&cases),
        )
    }

    fn fmt_failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.failed > 0 {
            writeln!(f, "\nFailed")?;
        }
        for case in self.failures() {
            if let Verdict::Failed { seen } = &case.verdict {
                writeln!(f, "  {}::{}", case.group, case.name)?;
                writeln!(f, "    rule: {}", case.rule)?;
                writeln!(f, "    seen: {}", seen.replace('\n', "\n          "))?;
            }
        }
        Ok(())
    }

    /// By what is lacking, since one ability that is not offered leaves many cases unchecked.
    fn fmt_not_checked(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacking: BTreeSet<Need> = self.cases.iter().filter_map(|c| need(&c.verdict)).collect();
        if !lacking.is_empty() {
            writeln!(f, "\nNot checked")?;
        }
        for lack in lacking {
            let cases: Vec<&CaseReport> = self
                .cases
                .iter()
                .filter(|case| need(&case.verdict) == Some(lack))
                .collect();
            let declared = !self.undeclared().any(|c| need(&c.verdict) == Some(lack));
            let declared = if declared { "" } else { " (not declared)" };
            writeln!(f, "  {lack}{declared}:")?;
            for case in cases {
                writeln!(f, "    {}::{}", case.group, case.name)?;
            }
        }
        Ok(())
    }
}

/// An empty sum is minus zero, which reads oddly.
fn seconds(cases: &[&CaseReport]) -> f64 {
    cases.iter().map(|case| case.seconds).sum::<f64>() + 0.0
}

fn need(verdict: &Verdict) -> Option<Need> {
    match verdict {
        Verdict::NotChecked { need, .. } => Some(*need),
        Verdict::Passed | Verdict::Failed { .. } => None,
    }
}
