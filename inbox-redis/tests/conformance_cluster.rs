//! The conformance suite, on a cluster of six processes.

mod common;

use common::harness::OnServer;

fn harness() -> OnServer {
    OnServer {
        name: "redis, on a cluster of six processes",
        cluster: true,
        shards: 6,
        server: &common::CLUSTER,
    }
}

conformance_tests::conformance!(harness());
