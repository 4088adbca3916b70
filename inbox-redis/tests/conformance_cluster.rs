//! The conformance suite, on a cluster of six processes, with what a replica has as the only thing that
//! counts.

mod common;

use common::by_a_replica;
use inbox_redis::conformance::RedisHarness;
use test_servers::Kind;

fn harness() -> RedisHarness {
    let cluster = (Kind::RedisCluster, &common::CLUSTER);
    common::harness(cluster, 6, by_a_replica())
}

conformance_tests::conformance!(harness());
