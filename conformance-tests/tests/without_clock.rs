//! Most stores have a server, whose clock nobody can move: the suite must do without, in short
//! real times.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use conformance_tests::{Fixture, Harness, Need, Offered, Settings, Verdict, run};
use inbox_api::Inbox;
use inbox_memory::{MemoryOptions, MemoryStore};

struct Plain;

#[async_trait]
impl Harness for Plain {
    fn name(&self) -> String {
        "without a clock".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let defaults = MemoryOptions::default();
        let options = MemoryOptions {
            payload_limit: settings.payload_limit.unwrap_or(defaults.payload_limit),
            drop_processed_payloads: settings.drop_processed_payloads,
            ..defaults
        };
        Ok(Box::new(Place(MemoryStore::with(options))))
    }
}

struct Place(MemoryStore);

impl Fixture for Place {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.0.clone())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_movable_clock_passes() {
    let report = run(Arc::new(Plain), "").await;
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
    assert!(clock.count() <= 12, "{report}");
    let longest = report
        .cases
        .iter()
        .map(|case| case.seconds)
        .fold(0.0, f64::max);
    assert!(longest < Duration::from_secs(10).as_secs_f64(), "{report}");
}
