//! The conformance suite, on one server, spread over shards.

mod common;

use common::harness::OnServer;

fn harness() -> OnServer {
    OnServer {
        name: "redis, on one server, spread over shards",
        cluster: false,
        shards: 5,
        server: &common::SERVER,
    }
}

conformance_tests::conformance!(harness());
