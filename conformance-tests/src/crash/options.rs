//! How a crash run is asked for, next to the arguments that test runners pass to every test
//! program.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::fault::Fault;

/// Messages of one call, at most, unless something else is wanted.
pub(crate) const BATCH: u32 = 16;

/// How the processors complete their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By settling, as a processor does.
    Plain,
    /// In the transaction that writes the handler's effect.
    Transactional,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain => "plain",
            Self::Transactional => "transactional",
        })
    }
}

/// How long a run goes on, in each mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// At least so many kills.
    pub kills: u64,
    /// At least so many [faults](super::Fault) of the server, where there is one that may be harmed. Otherwise a
    /// tenth of `kills`.
    pub faults: Option<u64>,
    /// Only this one, where it is possible.
    pub only: Option<Fault>,
    /// At least so many operations (see [`History::operations`](super::History::operations)).
    pub operations: u64,
    /// So many worker processes at a time, next to an operator: a third of them receive, the others process.
    pub workers: u32,
    /// Messages of one call, at most. Larger batches get more messages through the same faults in the same time.
    pub batch: u32,
    /// From which all random choices derive. The operating system's scheduling does not, so a
    /// seed repeats the plan of a run and not its every step.
    pub seed: u64,
    /// Only this mode; otherwise each that the store has.
    pub mode: Option<Mode>,
    /// Runs follow one another until so many minutes are over, each on an inbox of its own and with the next seed.
    /// Otherwise there is one.
    pub minutes: u64,
    /// A file to which each run adds a line, and whose sums are told at the end. The runs of another time count
    /// with them.
    pub ledger: Option<PathBuf>,
}

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Run(Options),
    List {
        terse: bool,
    },
    /// The filters do not mean this test.
    Nothing,
}

/// The name of the one test, as test runners list and filter it.
pub(crate) const TEST_NAME: &str = "crash";

/// Arguments of Rust's test runner that stand alone and change nothing here.
const IGNORED: [&str; 14] = [
    "-q",
    "--quiet",
    "--nocapture",
    "--no-capture",
    "--show-output",
    "--test",
    "--include-ignored",
    "--force-run-in-process",
    "--exclude-should-panic",
    "--report-time",
    "--ensure-time",
    "--shuffle",
    "--fail-fast",
    "--bench",
];

/// Those that are followed by a value.
const IGNORED_WITH_VALUE: [&str; 5] = [
    "--test-threads",
    "--logfile",
    "--color",
    "--shuffle-seed",
    "-Z",
];

impl Wanted {
    /// Reads the arguments behind the program's name, and the environment for what they leave
    /// open.
    pub(crate) fn read(
        arguments: impl IntoIterator<Item = String>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let mut options = Options {
            kills: 20,
            faults: None,
            only: None,
            operations: 7_000,
            workers: 5,
            batch: BATCH,
            seed: fastrand::u64(..),
            mode: None,
            minutes: 0,
            ledger: None,
        };
        for name in [
            "kills",
            "faults",
            "only",
            "operations",
            "workers",
            "batch",
            "seed",
            "mode",
            "minutes",
            "ledger",
        ] {
            let variable = name.to_uppercase().replace('-', "_");
            if let Some(value) = environment(&format!("INBOX_CRASH_{variable}")) {
                options.set(name, &value)?;
            }
        }
        let (mut list, mut terse, mut exact, mut ignored) = (false, false, false, false);
        let (mut filters, mut skips) = (Vec::new(), Vec::new());
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let (name, given) = match argument.split_once('=') {
                Some((name, value)) if name.starts_with('-') => (name, Some(value.to_owned())),
                _ => (argument.as_str(), None),
            };
            let mut value = || {
                given
                    .clone()
                    .or_else(|| arguments.next())
                    .ok_or_else(|| format!("{name} needs a value"))
            };
            match name {
                "--kills" | "--faults" | "--only" | "--operations" | "--workers" | "--batch"
                | "--seed" | "--mode" | "--minutes" | "--ledger" => {
                    options.set(name.trim_start_matches('-'), &value()?)?;
                }
                "--list" => list = true,
                "--format" => terse = value()? == "terse",
                "--exact" => exact = true,
                "--ignored" => ignored = true,
                "--skip" => skips.push(value()?),
                _ if IGNORED.contains(&name) => {}
                _ if IGNORED_WITH_VALUE.contains(&name) => {
                    value()?;
                }
                _ if name.starts_with('-') => {
                    return Err(format!(
                        "unknown argument {name}; a crash run takes --kills, --faults, --only, \
                         --operations, --workers, --batch, --seed, --mode plain|transactional, --minutes and \
                         --ledger"
                    ));
                }
                _ => filters.push(argument),
            }
        }
        let means = |filter: &String| {
            if exact {
                filter == TEST_NAME
            } else {
                TEST_NAME.contains(filter.as_str())
            }
        };
        // Nothing here is marked as ignored, so asking for ignored tests only asks for none.
        if ignored || skips.iter().any(means) || !(filters.is_empty() || filters.iter().any(means))
        {
            return Ok(Self::Nothing);
        }
        Ok(if list {
            Self::List { terse }
        } else {
            Self::Run(options)
        })
    }
}

impl Options {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || -> Result<u64, String> {
            value
                .parse()
                .map_err(|_| format!("{name} must be a number, not {value:?}"))
        };
        match name {
            "kills" => self.kills = number()?,
            "faults" => self.faults = Some(number()?),
            "only" => self.only = Some(fault(value)?),
            "operations" => self.operations = number()?,
            "workers" => {
                self.workers = u32::try_from(number()?)
                    .ok()
                    .filter(|workers| (2..=64).contains(workers))
                    .ok_or("workers must be between 2 and 64")?;
            }
            "batch" => {
                self.batch = u32::try_from(number()?)
                    .ok()
                    .filter(|batch| (2..=1_000).contains(batch))
                    .ok_or("batch must be between 2 and 1000")?;
            }
            "seed" => self.seed = number()?,
            "minutes" => self.minutes = number()?,
            "ledger" => self.ledger = Some(value.into()),
            _ => {
                self.mode = Some(match value {
                    "plain" => Mode::Plain,
                    "transactional" => Mode::Transactional,
                    _ => return Err("mode must be plain or transactional".into()),
                });
            }
        }
        Ok(())
    }
}

/// The fault of this name, with hyphens.
fn fault(name: &str) -> Result<Fault, String> {
    let names = Fault::ALL.map(|fault| fault.as_str().replace(' ', "-"));
    let known = Fault::ALL.into_iter().zip(&names);
    known
        .into_iter()
        .find_map(|(fault, known)| (known == name).then_some(fault))
        .ok_or_else(|| format!("only must be one of {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Wanted, String> {
        Wanted::read(line.split_whitespace().map(str::to_owned), |name| {
            (name == "INBOX_CRASH_SEED").then(|| "7".to_owned())
        })
    }

    fn options(line: &str) -> Options {
        match read(line).unwrap() {
            Wanted::Run(options) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn arguments_win_over_the_environment_and_the_defaults() {
        assert_eq!(options("").seed, 7);
        let given = options("--kills 200 --operations=100000 --seed 9 --mode transactional");
        assert_eq!(
            (given.kills, given.operations, given.seed),
            (200, 100_000, 9)
        );
        assert_eq!(given.mode, Some(Mode::Transactional));
        assert_eq!(options("--faults 3").faults, Some(3));
        assert_eq!(options("--batch 200").batch, 200);
        let only = options("--only clock-moved").only;
        assert_eq!(only, Some(Fault::ClockMoved));
        let long = options("--minutes 60 --ledger runs.ndjson");
        assert_eq!(
            (long.minutes, long.ledger),
            (60, Some("runs.ndjson".into()))
        );
        for bad in [
            "--kills",
            "--kills x",
            "--workers 1",
            "--batch 1",
            "--mode fast",
            "--only clock",
            "--kill 3",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_test_runners_arguments_are_understood() {
        for line in [
            "-q --test-threads 2 --nocapture",
            "--test-threads=1 --color always crash",
            "--exact crash",
            "other cra --skip kill",
        ] {
            assert_eq!(options(line).seed, 7, "{line}");
        }
        for line in [
            "other",
            "--exact cra",
            "--skip crash",
            "--ignored",
            "--list other",
        ] {
            assert_eq!(read(line), Ok(Wanted::Nothing), "{line}");
        }
        assert_eq!(read("--list"), Ok(Wanted::List { terse: false }));
        assert_eq!(
            read("--list --format terse"),
            Ok(Wanted::List { terse: true })
        );
    }
}
