//! ElasticMQ behind a proxy that takes TLS, as it takes none itself.

use inbox_sqs::{Connection, SqsPublisher};
use test_servers::{Kind, require_or_skip};
use tokio::runtime::Runtime;

use super::{
    certificates::Certificates,
    proxy,
    receiving::{Broker, Trust, publish},
};

#[test]
fn a_queue_of_sqs_is_received_over_tls() {
    let server = require_or_skip(Kind::Elasticmq);
    let Some(server) = server.unwrap_or_else(|error| panic!("{error}")) else {
        return;
    };
    let (_, rest) = server.url().split_once("://").unwrap();
    let (address, account) = rest.split_once('/').unwrap();
    let certificates = Certificates::new();
    let runtime = Runtime::new().unwrap();
    let tls_port = runtime.block_on(proxy::start(&certificates, address));
    let plain = format!("sqs+http://key:secret@{rest}?region=elasticmq");
    let connection = Connection::from_url(&plain).unwrap();
    let create = connection.client().create_queue().queue_name("tls-orders");
    runtime.block_on(create.send()).unwrap();
    let publisher = SqsPublisher::new(connection);
    Broker {
        certificates: &certificates,
        trust: Trust::System,
        tls_port,
        plain_port: address.rsplit_once(':').unwrap().1.parse().unwrap(),
        without_tls: "speak TLS",
        credentials: "key:secret@",
        from: &|server| format!("sqs://{server}/{account}/tls-orders?region=elasticmq&wait_s=1"),
        send: &|id| publish(&runtime, &publisher, "tls-orders", id),
    }
    .is_received_from_if_it_is_trusted();
}
