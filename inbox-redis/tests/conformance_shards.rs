//! The conformance suite, on one server, spread over shards.

mod common;

use common::harness::OnServer;
use inbox_redis::Confirmations;

fn harness() -> OnServer {
    OnServer {
        name: "redis, on one server, spread over shards",
        cluster: false,
        shards: 5,
        server: &common::SERVER,
        confirmations: Confirmations::default(),
    }
}

conformance_tests::conformance!(harness());
