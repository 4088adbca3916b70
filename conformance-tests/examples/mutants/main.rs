//! How much the suite sees: runs it on stores that are broken on purpose, each in one way, and prints
//! which case catches which.
//!
//! ```text
//! cargo run -p conformance-tests --example mutants
//! ```

#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared with the suite's own tests, which use all of it"
)]
#[path = "../../tests/it/broken/mod.rs"]
mod broken;

use std::{
    io::{self, Write as _},
    num::NonZeroUsize,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use broken::{Defect, Workshop};
use conformance_tests::{Harness, Options, Verdict, run_with};

/// Messages enough for a scan to show.
const SCALE: usize = 10_000;

/// Most of them wait more than they work.
const THREADS: usize = 8;

struct Mutant {
    name: &'static str,
    case: &'static str,
    harness: fn() -> Arc<dyn Harness>,
    /// Whether it needs real time.
    waits: bool,
}

fn workshop<D: Defect>(name: &'static str, defect: fn() -> D) -> Arc<dyn Harness> {
    Arc::new(Workshop { name, defect })
}

macro_rules! mutants {
    (
        waits { $($slow:ident: $slow_defect:expr => $slow_id:literal,)* }
        at_once { $($name:ident: $defect:expr => $id:literal,)* }
    ) => {
        const MUTANTS: &[Mutant] = &[
            $(Mutant {
                name: stringify!($slow),
                case: $slow_id,
                harness: || workshop(stringify!($slow), || $slow_defect),
                waits: true,
            },)*
            $(Mutant {
                name: stringify!($name),
                case: $id,
                harness: || workshop(stringify!($name), || $defect),
                waits: false,
            },)*
        ];
    };
}

broken::table::table!(mutants);

impl Mutant {
    /// What the case says of it, if it is caught.
    fn seen(&self) -> io::Result<Option<String>> {
        let runtime = if self.waits {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?
        } else {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()?
        };
        let options = Options {
            filter: self.case.into(),
            scale: NonZeroUsize::new(SCALE),
            ..Options::default()
        };
        let report = runtime.block_on(run_with((self.harness)(), &options, |_| {}));
        let mut cases = report.cases.into_iter();
        let case = cases.find(|case| format!("{}::{}", case.group, case.name) == self.case);
        Ok(case.and_then(|case| match case.verdict {
            Verdict::Failed { seen } => Some(seen),
            _ => None,
        }))
    }

    fn words(&self) -> String {
        self.name.replace('_', " ")
    }
}

fn main() -> ExitCode {
    match print() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all were caught.
fn print() -> io::Result<bool> {
    let mut out = io::stdout();
    if std::env::args().any(|argument| argument == "--markdown") {
        writeln!(out, "| what is broken | the case that says so |\n|---|---|")?;
        for mutant in MUTANTS {
            writeln!(out, "| {} | `{}` |", mutant.words(), mutant.case)?;
        }
        return Ok(true);
    }
    let (next, caught) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failure = Mutex::new(None);
    let work = || -> io::Result<()> {
        while let Some(mutant) = MUTANTS.get(next.fetch_add(1, Ordering::Relaxed)) {
            let seen = mutant.seen()?;
            caught.fetch_add(usize::from(seen.is_some()), Ordering::Relaxed);
            let seen = seen.as_deref().unwrap_or("NOT CAUGHT");
            let seen = seen.lines().next().unwrap_or_default();
            let line = format!("{}\n  {}\n  {seen}\n", mutant.words(), mutant.case);
            io::stdout().write_all(line.as_bytes())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                if let Err(error) = work() {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let (caught, all) = (caught.into_inner(), MUTANTS.len());
    writeln!(
        out,
        "\n{caught} of {all} broken stores are caught by the case that names the defect"
    )?;
    Ok(caught == all)
}
