//! What many runs have shown together, also those of another time.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::OpenOptions,
    io::{self, Write as _},
    path::Path,
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{fault::Fault, options::Mode, orchestrate::Outcome};
use crate::{needs::BoxError, time_text::format_time};

/// One run, as a line of a ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// When it ended, by RFC 3339.
    ended: String,
    store: String,
    mode: Mode,
    seed: u64,
    seconds: u64,
    messages: u64,
    operations: u64,
    kills: u64,
    faults: BTreeMap<Fault, u64>,
    longest_recovery_ms: u64,
    unfinished: u64,
    /// How often each rule was broken that was.
    broken: BTreeMap<String, u64>,
}

impl Entry {
    pub(crate) fn of(outcome: &Outcome, store: &str, seed: u64) -> Self {
        let mut broken = BTreeMap::new();
        for violation in &outcome.findings.violations {
            *broken.entry(violation.rule.to_string()).or_default() += 1;
        }
        Self {
            ended: format_time(SystemTime::now()),
            store: store.to_owned(),
            mode: outcome.mode,
            seed,
            seconds: outcome.took.as_secs(),
            messages: outcome.states.values().sum::<u64>() + outcome.purged,
            operations: outcome.history.operations(),
            kills: outcome.kills.values().sum(),
            faults: outcome.faults.clone(),
            longest_recovery_ms: u64::try_from(outcome.recovery.as_millis()).unwrap_or(u64::MAX),
            unfinished: outcome.unfinished,
            broken,
        }
    }

    /// Adds a line to the file, which is made if it is not there.
    pub(crate) fn append_to(&self, path: &Path) -> Result<(), BoxError> {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        file.write_all(&line)?;
        Ok(())
    }
}

/// Reads all runs.
pub(crate) fn read(path: &Path) -> Result<Vec<Entry>, BoxError> {
    let text = std::fs::read_to_string(path)?;
    let entry = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| {
            let text = format!("{}, line {}: {error}", path.display(), number + 1);
            BoxError::from(io::Error::new(io::ErrorKind::InvalidData, text))
        })
    };
    text.lines().enumerate().map(entry).collect()
}

#[derive(Default)]
struct Sum {
    runs: u64,
    seconds: u64,
    messages: u64,
    operations: u64,
    kills: u64,
    faults: BTreeMap<Fault, u64>,
    longest_recovery_ms: u64,
    unfinished: u64,
    broken: BTreeMap<String, u64>,
}

impl Sum {
    fn add(&mut self, entry: &Entry) {
        self.runs += 1;
        self.seconds += entry.seconds;
        self.messages += entry.messages;
        self.operations += entry.operations;
        self.kills += entry.kills;
        self.unfinished += entry.unfinished;
        self.longest_recovery_ms = self.longest_recovery_ms.max(entry.longest_recovery_ms);
        for (fault, count) in &entry.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        for (rule, count) in &entry.broken {
            *self.broken.entry(rule.clone()).or_default() += count;
        }
    }
}

/// The sums of each store and mode, as rows of a table in Markdown.
pub(crate) fn table(entries: &[Entry]) -> String {
    let mut sums: BTreeMap<(&str, String), Sum> = BTreeMap::new();
    for entry in entries {
        let of = (entry.store.as_str(), entry.mode.to_string());
        sums.entry(of).or_default().add(entry);
    }
    let mut text =
        "| store | mode | runs | hours | messages | operations | kills of workers | faults \
                    | longest recovery | unfinished | rules broken |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for ((store, mode), sum) in sums {
        let all: u64 = sum.faults.values().sum();
        let faults = match all {
            0 => "none".to_owned(),
            _ => format!("{all}: {}", listed(sum.faults.into_iter())),
        };
        let broken = match sum.broken.is_empty() {
            true => "none".to_owned(),
            false => listed(sum.broken.into_iter()),
        };
        let _ = writeln!(
            text,
            "| {store} | {mode} | {} | {:.1} | {} | {} | {} | {faults} | {:.1} s | {} | {broken} |",
            sum.runs,
            sum.seconds as f64 / 3600.0,
            sum.messages,
            sum.operations,
            sum.kills,
            sum.longest_recovery_ms as f64 / 1000.0,
            sum.unfinished,
        );
    }
    text
}

fn listed(counts: impl Iterator<Item = (impl std::fmt::Display, u64)>) -> String {
    let counts = counts.filter(|(_, count)| *count > 0);
    let texts: Vec<_> = counts
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(mode: Mode, broken: BTreeMap<String, u64>) -> Entry {
        Entry {
            ended: "2026-11-27T07:00:00.000000Z".into(),
            store: "a store".into(),
            mode,
            seed: 7,
            seconds: 1800,
            messages: 1000,
            operations: 400,
            kills: 20,
            faults: BTreeMap::from([(Fault::Killed, 2), (Fault::AnswerLost, 1)]),
            longest_recovery_ms: 1250,
            unfinished: 0,
            broken,
        }
    }

    #[test]
    fn runs_add_up_whenever_they_were() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs.ndjson");
        let clean = entry(Mode::Plain, BTreeMap::new());
        let other = entry(Mode::Transactional, BTreeMap::from([("fenced".into(), 3)]));
        for entry in [&clean, &clean, &other] {
            entry.append_to(&path).unwrap();
        }
        let entries = read(&path).unwrap();
        assert_eq!(entries, [clean.clone(), clean, other]);
        let rows: Vec<String> = table(&entries).lines().skip(2).map(str::to_owned).collect();
        assert_eq!(
            rows,
            [
                "| a store | plain | 2 | 1.0 | 2000 | 800 | 40 | 6: 4 killed, 2 answer lost | 1.2 s \
                 | 0 | none |",
                "| a store | transactional | 1 | 0.5 | 1000 | 400 | 20 | 3: 2 killed, 1 answer lost \
                 | 1.2 s | 0 | 3 fenced |",
            ]
        );
    }

    #[test]
    fn a_spoiled_line_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs.ndjson");
        entry(Mode::Plain, BTreeMap::new())
            .append_to(&path)
            .unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
