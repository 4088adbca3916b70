//! The conformance suite, whole, on the newest Redis there is here, with what is on its disk as the
//! only thing that counts.
//!
//! `INBOX_TEST_SUITE_ON=valkey`, `valkey-shards`, `valkey-cluster` or `redis-8-cluster` takes another
//! server, by hand; on a cluster, what a replica has counts.

mod common;

use common::harness::{OnServer, by_a_replica, by_the_disk};

fn harness() -> OnServer {
    let on = std::env::var("INBOX_TEST_SUITE_ON").unwrap_or_default();
    let (name, server) = match on.as_str() {
        "valkey" | "valkey-shards" => ("redis, on Valkey", &common::VALKEY),
        "valkey-cluster" => ("redis, on a cluster of Valkey", &common::VALKEY_CLUSTER),
        "redis-8-cluster" => ("redis, on a cluster of Redis 8", &common::REDIS_8_CLUSTER),
        _ => ("redis, on Redis 8", &common::REDIS_8),
    };
    let cluster = on.ends_with("-cluster");
    OnServer {
        name,
        cluster,
        shards: if cluster || on.ends_with("-shards") {
            6
        } else {
            1
        },
        server,
        confirmations: if cluster {
            by_a_replica()
        } else {
            by_the_disk()
        },
    }
}

conformance_tests::conformance!(harness());
