//! Running cases, inside a test runner and outside.

use std::{
    fmt,
    io::Write as _,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use tokio::task::JoinSet;

use crate::{
    check::{CaseResult, Unmet, panic_text},
    harness::Harness,
    options::Options,
    registry::{CASES, Case, SCALE},
    report::{CaseReport, Report, Verdict},
    test_inbox::Context,
    time_text::readable,
};

/// The longest that a case may take; one that hangs fails rather than stopping the suite.
const LONGEST_CASE: Duration = Duration::from_secs(300);
/// The longest that one of many messages may take.
const LONGEST_OF_SCALE: Duration = Duration::from_secs(3600);

impl Options {
    /// The cases that they mean.
    pub fn cases(&self) -> impl Iterator<Item = &'static Case> {
        let scale = if self.scale.is_some() { SCALE } else { &[] };
        CASES
            .iter()
            .chain(scale)
            .filter(|case| case.id().contains(&self.filter))
    }
}

/// Runs the cases whose `group::name` contains `filter`, one after the other, and reports. An
/// empty filter means all.
///
/// Needs a multi-threaded tokio runtime with time enabled. Dropping the future aborts the case under
/// way; what that case has started by itself ends with the runtime.
pub async fn run(harness: Arc<dyn Harness>, filter: &str) -> Report {
    let options = Options {
        filter: filter.into(),
        ..Options::default()
    };
    run_with(harness, &options, |_| {}).await
}

/// As [`run`], with more options, and calls `watch` after each case, in the suite's order, for a
/// progress display.
pub async fn run_with(
    harness: Arc<dyn Harness>,
    options: &Options,
    mut watch: impl FnMut(&CaseReport) + Send,
) -> Report {
    let running: Vec<_> = options
        .cases()
        .map(|case| run_case(&harness, case, options))
        .collect();
    let mut reports = stream::iter(running).buffered(options.jobs.map_or(1, NonZeroUsize::get));
    let mut cases = Vec::new();
    while let Some(report) = reports.next().await {
        watch(&report);
        cases.push(report);
    }
    Report::new(harness.name(), options.filter.clone(), cases)
}

async fn run_case(harness: &Arc<dyn Harness>, case: &Case, options: &Options) -> CaseReport {
    let started = Instant::now();
    let context = Context::new(Arc::clone(harness), options.clone());
    let running = (case.run)(context.clone());
    let case_and_check = async move {
        running.await?;
        context.check_inboxes().await
    };
    // A task of its own, so that a panic ends this case and no other. The set ends it when this
    // future is dropped.
    let mut task = JoinSet::new();
    task.spawn(case_and_check);
    let longest = if SCALE.iter().any(|other| std::ptr::eq(case, other)) {
        LONGEST_OF_SCALE
    } else {
        LONGEST_CASE
    };
    let result = match tokio::time::timeout(longest, task.join_next()).await {
        Ok(Some(Ok(result))) => result,
        Ok(Some(Err(error))) => Err(Unmet::Failed(match error.try_into_panic() {
            Ok(panic) => format!("it panicked: {}", panic_text(&*panic)),
            Err(error) => format!("it did not finish: {error}"),
        })),
        // The set has its one task.
        Ok(None) | Err(_) => Err(Unmet::Failed(format!(
            "it did not finish within {} seconds",
            longest.as_secs()
        ))),
    };
    CaseReport {
        group: case.group,
        name: case.name,
        rule: case.rule,
        verdict: verdict(result, harness.as_ref()),
        seconds: started.elapsed().as_secs_f64(),
    }
}

fn verdict(result: CaseResult, harness: &dyn Harness) -> Verdict {
    match result {
        Ok(()) => Verdict::Passed,
        Err(Unmet::Failed(seen)) => Verdict::Failed {
            seen: readable(&seen),
        },
        Err(Unmet::NotChecked(need)) => Verdict::NotChecked {
            need,
            why: need.to_string(),
            expected: harness.expected_not_checked().contains(&need),
        },
    }
}

/// Why a generated test failed. `Debug` is what the test runner prints.
pub struct TestFailure(String);

impl fmt::Debug for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Runs the one case `id` on a runtime of its own. This is what [`conformance!`](crate::conformance)
/// expands to.
///
/// # Errors
/// When the case failed, or could not be checked and the harness did not declare it.
pub fn test(harness: impl Harness, id: &str) -> Result<(), TestFailure> {
    let case = CASES
        .iter()
        .chain(SCALE)
        .find(|case| case.id() == id)
        .ok_or_else(|| TestFailure(format!("there is no case {id}")))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| TestFailure(format!("no runtime: {error}")))?;
    let name = harness.name();
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let report = runtime.block_on(run_case(&harness, case, &Options::default()));
    // A hung case must not hang the test through the runtime's own shutdown.
    runtime.shutdown_timeout(Duration::from_secs(5));
    match report.verdict {
        Verdict::Passed => Ok(()),
        Verdict::Failed { seen } => Err(TestFailure(format!(
            "\n  case: {id}\n  rule: {}\n  seen: {seen}\n",
            case.rule
        ))),
        Verdict::NotChecked {
            why,
            expected: true,
            ..
        } => {
            // Straight to the stream: what goes through the macros is captured when a test
            // passes, and a case that was not checked must not look like one that passed.
            // In one piece, so that it does not run into the runner's own lines.
            let line = format!("conformance of {name}: {id} NOT CHECKED: {why}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            Ok(())
        }
        Verdict::NotChecked { need, why, .. } => Err(TestFailure(format!(
            "\n  case: {id}\n  rule: {}\n  not checked: {why}\n  If that is how it is, add \
             Need::{need:?} to the harness's expected_not_checked().\n",
            case.rule
        ))),
    }
}
