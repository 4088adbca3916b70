//! Redis with a port for TLS.

use inbox_redis_streams::RedisStreamsPublisher;
use test_servers::{Kind, find_own, or_skip};
use tokio::runtime::Runtime;

use super::{
    certificates::Certificates,
    free_port,
    receiving::{Broker, Trust, publish},
};

#[test]
fn a_stream_of_redis_is_received_over_tls() {
    let certificates = Certificates::new();
    let tls_port = free_port();
    let found = find_own(
        Kind::Redis,
        &[
            "--tls-port",
            &tls_port.to_string(),
            "--tls-cert-file",
            &certificates.server(),
            "--tls-key-file",
            &certificates.key(),
            "--tls-ca-cert-file",
            &certificates.authority(),
            "--tls-auth-clients",
            "no",
        ],
    );
    let Some(server) = or_skip(Kind::Redis, found).unwrap() else {
        return;
    };
    let (_, plain_port) = server.url().trim_end_matches('/').rsplit_once(':').unwrap();
    let runtime = Runtime::new().unwrap();
    let plain = server.url().replacen("redis", "redis+stream", 1);
    let publisher = RedisStreamsPublisher::from_url(&plain).unwrap();
    Broker {
        certificates: &certificates,
        trust: Trust::Url,
        tls_port,
        plain_port: plain_port.parse().unwrap(),
        without_tls: "speak TLS",
        credentials: "",
        from: &|server| {
            format!("rediss+stream://{server}/0?stream=orders&group=billing&create=true")
        },
        send: &|id| publish(&runtime, &publisher, "orders", id),
    }
    .is_received_from_if_it_is_trusted();
}
