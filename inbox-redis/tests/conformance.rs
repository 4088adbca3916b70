//! The conformance suite, on one server.

mod common;

use common::harness::OnServer;
use inbox_redis::Confirmations;

fn harness() -> OnServer {
    OnServer {
        name: "redis, on one server",
        cluster: false,
        shards: 1,
        server: &common::SERVER,
        confirmations: Confirmations::default(),
    }
}

conformance_tests::conformance!(harness());
