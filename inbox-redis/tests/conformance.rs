//! The conformance suite, on one server.

mod common;

use common::harness::OnServer;

fn harness() -> OnServer {
    OnServer {
        name: "redis, on one server",
        cluster: false,
        shards: 1,
        server: &common::SERVER,
    }
}

conformance_tests::conformance!(harness());
