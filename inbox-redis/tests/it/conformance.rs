//! The conformance suite, on one server.

use inbox_redis::{Confirmations, conformance::RedisHarness};
use test_servers::Kind;

use crate::common;

fn harness() -> RedisHarness {
    let server = (Kind::Redis, &common::SERVER);
    common::harness(server, 1, Confirmations::default())
}

conformance_tests::conformance!(harness());
