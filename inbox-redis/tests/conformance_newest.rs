//! The conformance suite, whole, on the newest Redis there is here.

mod common;

use common::harness::OnServer;

fn harness() -> OnServer {
    OnServer {
        name: "redis, on Redis 8",
        cluster: false,
        shards: 1,
        server: &common::REDIS_8,
    }
}

conformance_tests::conformance!(harness());
