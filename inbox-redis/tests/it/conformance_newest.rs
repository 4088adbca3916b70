//! The conformance suite, whole, on the newest Redis there is here, with what is on its disk as the
//! only thing that counts.
//!
//! `INBOX_TEST_SUITE_ON=valkey`, `valkey-shards`, `valkey-cluster` or `redis-8-cluster` takes another
//! server, by hand; on a cluster, what a replica has counts.

use inbox_redis::conformance::RedisHarness;
use test_servers::Kind;

use crate::common::{self, by_a_replica, by_the_disk};

fn harness() -> RedisHarness {
    let on = std::env::var("INBOX_TEST_SUITE_ON").unwrap_or_default();
    let server = match on.as_str() {
        "valkey" | "valkey-shards" => (Kind::Valkey, &common::VALKEY),
        "valkey-cluster" => (Kind::ValkeyCluster, &common::VALKEY_CLUSTER),
        "redis-8-cluster" => (Kind::Redis8Cluster, &common::REDIS_8_CLUSTER),
        _ => (Kind::Redis8, &common::REDIS_8),
    };
    let is_cluster = on.ends_with("-cluster");
    let shards = if is_cluster || on.ends_with("-shards") {
        6
    } else {
        1
    };
    let confirmations = if is_cluster {
        by_a_replica()
    } else {
        by_the_disk()
    };
    common::harness(server, shards, confirmations)
}

conformance_tests::conformance!(harness());
