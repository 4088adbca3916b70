//! The conformance suite, on one server, spread over shards.

use inbox_redis::{Confirmations, conformance::RedisHarness};
use test_servers::Kind;

use crate::common;

fn harness() -> RedisHarness {
    let server = (Kind::Redis, &common::SERVER);
    common::harness(server, 5, Confirmations::default())
}

conformance_tests::conformance!(harness());
