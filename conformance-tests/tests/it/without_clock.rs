//! Most stores have a server, whose clock nobody can move: the suite must do without, in short
//! real times.

use std::{sync::Arc, time::Duration};

use conformance_tests::{Fresh, Need, Ready, Verdict, run};
use inbox_api::DEFAULT_PAYLOAD_LIMIT;
use inbox_memory::{MemoryOptions, MemoryStore};

fn without_clock() -> Ready {
    Ready::new("without a clock", |settings| async move {
        let options = MemoryOptions::new()
            .payload_limit(settings.payload_limit.unwrap_or(DEFAULT_PAYLOAD_LIMIT))
            .drop_processed_payloads(settings.drop_processed_payloads);
        Ok(Fresh::new(MemoryStore::with(options)))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_movable_clock_passes() {
    let report = run(Arc::new(without_clock()), "").await;
    assert_eq!(report.failed, 0, "{report}");
    let clock = report.cases.iter().filter(|case| {
        matches!(
            case.verdict,
            Verdict::NotChecked {
                need: Need::Clock,
                ..
            }
        )
    });
    // Only what cannot be shown in a fifth of a second is left unchecked for it: minutes to weeks.
    let long = ["moments", "horizons"];
    let clock = clock.filter(|case| !long.contains(&case.group));
    assert!(clock.count() <= 15, "{report}");
    let longest = report
        .cases
        .iter()
        .map(|case| case.seconds)
        .fold(0.0, f64::max);
    assert!(longest < Duration::from_secs(60).as_secs_f64(), "{report}");
}
