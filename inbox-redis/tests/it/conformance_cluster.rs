//! The conformance suite, on a cluster of six processes, with what a replica has as the only thing that
//! counts.

use inbox_redis::conformance::RedisHarness;
use test_servers::Kind;

use crate::common::{self, by_a_replica};

fn harness() -> RedisHarness {
    let cluster = (Kind::RedisCluster, &common::CLUSTER);
    common::harness(cluster, 6, by_a_replica())
}

conformance_tests::conformance!(harness());
