//! The conformance suite, on one server, spread over shards: of it, what depends most on the server. The whole is on a
//! cluster, whose shards are the same, in `conformance_cluster.rs`; here by hand, with `INBOX_TEST_SUITE_ON=shards`.

use inbox_redis::{Confirmations, conformance::RedisHarness};
use test_servers::Kind;

use crate::common;

fn harness() -> RedisHarness {
    let server = (Kind::Redis, &common::SERVER);
    common::harness(server, 5, Confirmations::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let is_whole = std::env::var("INBOX_TEST_SUITE_ON").is_ok_and(|on| on == "shards");
    common::conforms(&common::SERVER, harness, is_whole).await;
}
