//! The suite is tested itself: each broken store must be caught by the case that names its
//! defect, and the same wrapper without a defect must pass everything.

use std::{collections::BTreeSet, num::NonZeroUsize, sync::Arc};

use conformance_tests::{CASES, Harness, Need, Options, Report, Verdict, run, run_with};

use crate::broken::{self, Correct, Defect, Workshop};

fn workshop<D: Defect>(name: &'static str, defect: fn() -> D) -> Arc<dyn Harness> {
    Arc::new(Workshop { name, defect })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_correct_store_passes_everything() {
    let report = run(workshop("correct", || Correct), "").await;
    assert!(report.is_conformant(), "{report}");
    assert!(report.passed > 200, "{report}");
}

/// What a store cannot do is not checked, and raises no alarm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_the_fewest_capabilities_passes() {
    let minimal = || broken::minimal::Minimal(broken::minimal::Keys::Refused);
    let report = run(workshop("minimal", minimal), "").await;
    assert_eq!(report.failed, 0, "{report}");
    assert!(report.passed > 150, "{report}");
    let needs: BTreeSet<Need> = report
        .undeclared()
        .filter_map(|case| match case.verdict {
            Verdict::NotChecked { need, .. } => Some(need),
            _ => None,
        })
        .collect();
    let lacking = [Need::Ordering, Need::Wakeups, Need::BatchAtomicity];
    assert_eq!(needs, BTreeSet::from(lacking), "{report}");
}

/// The same, where the harness can do nothing either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_store_with_the_fewest_capabilities_passes() {
    let report = run(Arc::new(broken::minimal::Bare), "").await;
    assert!(report.is_conformant(), "{report}");
    assert!(report.passed > 120, "{report}");
}

async fn with_scale(harness: Arc<dyn Harness>, filter: &str, messages: usize) -> Report {
    let options = Options {
        filter: filter.into(),
        scale: NonZeroUsize::new(messages),
        ..Options::default()
    };
    run_with(harness, &options, |_| {}).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_correct_store_costs_the_same_at_any_scale() {
    let report = with_scale(workshop("correct", || Correct), "scale::", 20_000).await;
    assert_eq!((report.passed, report.failed), (2, 0), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_costs_the_same_at_any_scale() {
    let store = Arc::new(broken::pace::SlowStore { has_clock: false });
    let report = with_scale(store, "scale::", 5_000).await;
    assert_eq!((report.passed, report.failed), (2, 0), "{report}");
}

/// So that those with a mistake are caught for it and not for what they are made of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_correct_transactions_keep_the_order() {
    let sound = || broken::skewed::Transactional(broken::skewed::Mistake::None);
    let report = run(workshop("transactional", sound), "skew::").await;
    assert_eq!((report.passed, report.failed), (3, 0), "{report}");
    for one in [
        "outage::a_commit",
        "outage::each_answer",
        "transactions::a_settlement_in",
        "transactions::a_new_message",
        "transactions::what_breaks",
    ] {
        let report = run(workshop("transactional", sound), one).await;
        assert_eq!((report.passed, report.failed), (1, 0), "{report}");
    }
}

/// What a store cannot do outside of a transaction is not asked for within one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_without_ordering_pass() {
    let minimal = || broken::minimal::MinimalTransactional;
    for one in [
        "transactions::settling_with",
        "transactions::a_settlement_in",
        "transactions::what_breaks",
    ] {
        let report = run(workshop("minimal", minimal), one).await;
        assert_eq!((report.passed, report.failed), (1, 0), "{report}");
    }
}

/// A store that is right and takes its time raises no alarm. The runtime's time runs ahead while all
/// wait, and with it the store's clock.
async fn a_slow_store_passes(has_clock: bool) {
    let mut groups: Vec<&str> = CASES.iter().map(|case| case.group).collect();
    groups.dedup();
    let mut alarms = Vec::new();
    // The model blocks its thread, and with it the runtime's time.
    for group in groups.into_iter().filter(|group| *group != "model") {
        let store = Arc::new(broken::pace::SlowStore { has_clock });
        let report = run(store, &format!("{group}::")).await;
        if report.failed > 0 {
            alarms.push(report.to_string());
        }
    }
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_with_a_clock_passes() {
    a_slow_store_passes(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_without_a_clock_passes() {
    a_slow_store_passes(false).await;
}

/// The case that names the defect fails. What else does is of no interest.
async fn is_caught(harness: Arc<dyn Harness>, id: &str) {
    let report = with_scale(harness, id, 10_000).await;
    let case = report
        .cases
        .iter()
        .find(|case| format!("{}::{}", case.group, case.name) == id)
        .unwrap_or_else(|| panic!("there is no case {id}"));
    match &case.verdict {
        // For those who look whether it says what is wrong.
        Verdict::Failed { seen } if !seen.is_empty() => println!("{id}: {seen}"),
        _ => panic!("{id} did not catch the broken store\n{report}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_finds_a_short_sequence_and_its_seed() {
    // Begin and settle, or receive, claim and settle: nothing shorter shows the defect. A single
    // search can end at a detour, of which each step is needed with the others, and a single
    // round of sequences can miss the defect; ten cannot.
    let mut found = Vec::new();
    for _ in 0..10 {
        let report = run(workshop("retry at once", || broken::RetryAtOnce), "model::").await;
        if let Some(Verdict::Failed { seen }) = report.cases.first().map(|case| &case.verdict) {
            assert!(seen.contains("INBOX_CONFORMANCE_SEED="), "{seen}");
            let steps = seen
                .lines()
                .filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
            if (2..=3).contains(&steps.count()) {
                return;
            }
            found.push(seen.clone());
        }
    }
    panic!(
        "no short sequence for the broken store\n{}",
        found.join("\n\n")
    );
}

macro_rules! tests {
    (
        waits { $($slow:ident: $slow_defect:expr => $slow_id:literal,)* }
        at_once { $($test:ident: $defect:expr => $id:literal,)* }
    ) => {
        const BROKEN: &[(&str, &str)] = &[
            $((stringify!($slow), $slow_id),)*
            $((stringify!($test), $id),)*
        ];
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $slow() {
                is_caught(workshop(stringify!($slow), || $slow_defect), $slow_id).await;
            }
        )*
        $(
            #[tokio::test(start_paused = true)]
            async fn $test() {
                is_caught(workshop(stringify!($test), || $defect), $id).await;
            }
        )*
    };
}

broken::table::table!(tests);

/// A case is renamed or removed together with what is proven by it.
#[test]
fn there_are_enough_broken_stores() {
    assert!(BROKEN.len() >= 350);
}

/// As `cargo run -p conformance-tests --example mutants -- --markdown` prints it.
#[test]
fn the_readme_lists_them() {
    let readme = include_str!("../../README.md");
    let mut rows = readme.lines().filter(|line| line.ends_with("` |"));
    for (name, id) in BROKEN {
        let row = format!("| {} | `{id}` |", name.replace('_', " "));
        assert_eq!(rows.next(), Some(&*row));
    }
    assert_eq!(rows.next(), None);
}
