//! The conformance suite, over the MongoDB store.

use inbox_mongo::conformance::MongoHarness;
use test_servers::control::{Outage, own};

use crate::common;

fn harness() -> MongoHarness {
    // A machine may be slow.
    let times = "serverSelectionTimeoutMS=30000&connectTimeoutMS=30000";
    let harness = std::thread::spawn(move || {
        let url = common::shared_url().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(MongoHarness::new(&common::with(&url, times)))
    });
    let harness = harness.join().unwrap().unwrap();
    harness.servers(own(common::kind(), &[], Outage::Stopped))
}

conformance_tests::conformance!(harness());
