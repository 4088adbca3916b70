//! A program that runs the suite and reports, for those who want more of it than a test runner shows.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use lexopt::prelude::*;

use crate::{
    harness::Harness,
    options::Options,
    registry::Case,
    report::{CaseReport, Report, Verdict},
    run::run_with,
};

const USAGE: &str = "\
Runs the conformance suite, reports on standard output, and shows its progress on standard error.

Usage: PROGRAM [OPTIONS] [FILTER]

  FILTER             only the cases whose group::name contains this
  --list             list the cases with their rules, and run none
  --json FILE        write the report as JSON as well; - is standard output, without the text
  --junit FILE       write the report as JUnit XML as well; - as above
  --seed NUMBER      of the model, run the one sequence of this seed
  --sequences NUMBER of the model, how many sequences to draw
  --budget SECONDS   of the model, draw no more sequences after so long
  --jobs NUMBER      how many cases run at a time, 1 by default
  --scale NUMBER     compare the time of each operation with so many messages too, 100000 say, and
                     with a hundredth of them; takes minutes
  --help             show this

Ends with 0 when all that was checked holds and all that was not is declared, with 1 when not, and
with 2 when the arguments cannot be read, a file cannot be written or something is left behind.
";

const USAGE_ERROR: u8 = 2;

#[derive(Debug, Default)]
struct Arguments {
    options: Options,
    list: bool,
    help: bool,
    json: Option<PathBuf>,
    junit: Option<PathBuf>,
}

impl Arguments {
    fn read(mut parser: lexopt::Parser) -> Result<Self, lexopt::Error> {
        let mut arguments = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("list") => arguments.list = true,
                Long("help") | Short('h') => arguments.help = true,
                Long("json") => arguments.json = Some(parser.value()?.into()),
                Long("junit") => arguments.junit = Some(parser.value()?.into()),
                Long("seed") => arguments.options.seed = Some(parser.value()?.parse()?),
                Long("sequences") => arguments.options.sequences = Some(parser.value()?.parse()?),
                Long("budget") => {
                    let seconds = parser.value()?.parse()?;
                    arguments.options.budget = Some(Duration::from_secs(seconds));
                }
                Long("scale") => arguments.options.scale = Some(parser.value()?.parse()?),
                Long("jobs") => arguments.options.jobs = Some(parser.value()?.parse()?),
                Value(filter) if arguments.options.filter.is_empty() => {
                    arguments.options.filter = filter.string()?;
                }
                other => return Err(other.unexpected()),
            }
        }
        Ok(arguments)
    }

    fn is_to_standard_output(&self) -> bool {
        let files = [&self.json, &self.junit];
        files
            .iter()
            .any(|file| file.as_deref().is_some_and(is_dash))
    }
}

fn is_dash(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The `main` of a report program: reads the program's arguments, runs the suite on a runtime of its
/// own, and writes the report. `--help` says what it takes.
///
/// ```no_run
/// # use conformance_tests::{Fresh, Ready};
/// # use inbox_memory::MemoryStore;
/// // In examples/conformance.rs or in a tests/ file with `harness = false`.
/// fn main() -> std::process::ExitCode {
///     conformance_tests::main(Ready::new("my store", |_| async {
///         Ok(Fresh::new(MemoryStore::new()))
///     }))
/// }
/// ```
///
/// Answers 0 when all that was checked holds ([`Report::is_clean`]), 1 when not, and 2 when the
/// arguments cannot be read or a file cannot be written.
pub fn main(harness: impl Harness) -> ExitCode {
    let arguments = match Arguments::read(lexopt::Parser::from_env()) {
        Ok(arguments) => arguments,
        Err(error) => return failed(&format!("{error}\n\n{USAGE}")),
    };
    if arguments.help {
        return written(print(USAGE), ExitCode::SUCCESS);
    }
    if arguments.list {
        return written(list(&arguments.options), ExitCode::SUCCESS);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("no runtime: {error}")),
    };
    let harness = Arc::new(harness);
    let report = runtime.block_on(run_with(harness.clone(), &arguments.options, progress));
    let cleaned = runtime.block_on(harness.clean_up());
    // A case that hangs must not hang the program.
    runtime.shutdown_timeout(Duration::from_secs(5));
    let verdict = if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    let outcome = written(write(&arguments, &report), verdict);
    match cleaned {
        Ok(()) => outcome,
        Err(error) => failed(&error.to_string()),
    }
}

fn write(arguments: &Arguments, report: &Report) -> io::Result<()> {
    if let Some(file) = &arguments.json {
        write_to(file, &report.to_json())?;
    }
    if let Some(file) = &arguments.junit {
        write_to(file, &report.to_junit())?;
    }
    if !arguments.is_to_standard_output() {
        print(&format!("{report}\n"))?;
    }
    Ok(())
}

fn write_to(file: &Path, text: &str) -> io::Result<()> {
    if is_dash(file) {
        return print(text);
    }
    std::fs::write(file, text)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

fn list(options: &Options) -> io::Result<()> {
    let line = |case: &Case| format!("{}: {}\n", case.id(), case.rule);
    print(&options.cases().map(line).collect::<String>())
}

/// To standard output; a reader that has left is no failure.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn progress(case: &CaseReport) {
    let verdict = match &case.verdict {
        Verdict::Passed => "ok",
        Verdict::Failed { .. } => "FAILED",
        Verdict::NotChecked { .. } => "not checked",
    };
    let CaseReport {
        group,
        name,
        seconds,
        ..
    } = case;
    // Nobody may be reading.
    let _ = writeln!(
        io::stderr(),
        "{group}::{name} ... {verdict} ({seconds:.2} s)"
    );
}

fn written(result: io::Result<()>, verdict: ExitCode) -> ExitCode {
    match result {
        Ok(()) => verdict,
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(why: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "{why}");
    ExitCode::from(USAGE_ERROR)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    fn read(arguments: &[&str]) -> Result<Arguments, lexopt::Error> {
        Arguments::read(lexopt::Parser::from_args(arguments))
    }

    #[test]
    fn arguments_are_read() {
        let all = read(&[
            "fencing::",
            "--seed=7",
            "--sequences",
            "3",
            "--budget",
            "60",
            "--jobs=2",
            "--scale=100000",
            "--json",
            "-",
        ]);
        let all = all.unwrap();
        assert_eq!(
            all.options,
            Options {
                filter: "fencing::".into(),
                seed: Some(7),
                sequences: Some(3),
                budget: Some(Duration::from_secs(60)),
                jobs: NonZeroUsize::new(2),
                scale: NonZeroUsize::new(100_000),
            }
        );
        assert!(all.is_to_standard_output() && !all.list && !all.help);
        assert!(
            !read(&["--junit", "report.xml"])
                .unwrap()
                .is_to_standard_output()
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (arguments, named) in [
            (&["--sed", "7"][..], "--sed"),
            (&["--seed", "x"], "x"),
            (&["--budget"], "--budget"),
            (&["one", "two"], "two"),
        ] {
            let error = read(arguments).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
