//! The conformance suite on the newest Redis there is here, with what is on its disk as the only thing that counts: of
//! it, what depends most on the server.
//!
//! `INBOX_TEST_SUITE_ON=redis-8`, `valkey`, `valkey-shards`, `valkey-cluster` or `redis-8-cluster` takes the whole to
//! that server, by hand; on a cluster, what a replica has counts.

use inbox_redis::conformance::RedisHarness;
use test_servers::Kind;

use crate::common::{self, Shared, by_a_replica, by_the_disk};

fn server(on: &str) -> (Kind, &'static Shared) {
    match on {
        "valkey" | "valkey-shards" => (Kind::Valkey, &common::VALKEY),
        "valkey-cluster" => (Kind::ValkeyCluster, &common::VALKEY_CLUSTER),
        "redis-8-cluster" => (Kind::Redis8Cluster, &common::REDIS_8_CLUSTER),
        _ => (Kind::Redis8, &common::REDIS_8),
    }
}

fn harness(on: &str) -> RedisHarness {
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
    common::harness(server(on), shards, confirmations)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let on = std::env::var("INBOX_TEST_SUITE_ON");
    let (is_whole, on) = (on.is_ok(), on.unwrap_or_default());
    common::conforms(server(&on).1, || harness(&on), is_whole).await;
}
