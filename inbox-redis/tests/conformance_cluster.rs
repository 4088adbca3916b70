//! The conformance suite, on a cluster of six processes, with what a replica has as the only thing that
//! counts.

mod common;

use common::harness::{OnServer, by_a_replica};

fn harness() -> OnServer {
    OnServer {
        name: "redis, on a cluster of six processes",
        cluster: true,
        shards: 6,
        server: &common::CLUSTER,
        confirmations: by_a_replica(),
    }
}

conformance_tests::conformance!(harness());
