//! Kafka with a listener for TLS.

use std::{fs, time::Duration};

use inbox_kafka::{Connection, KafkaPublisher};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
};
use test_servers::{Kind, find_own, or_skip};
use tokio::runtime::Runtime;

use super::{
    certificates::Certificates,
    receiving::{Broker, Trust, publish},
};

const TOPIC: &str = "tls-orders";

fn create_topic(runtime: &Runtime, address: &str) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address);
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let topic = NewTopic::new(TOPIC, 1, TopicReplication::Fixed(1));
    let options = AdminOptions::new();
    let made = runtime.block_on(admin.create_topics(&[topic], &options));
    made.unwrap().remove(0).unwrap();
}

#[test]
fn a_topic_of_kafka_is_received_over_tls() {
    let certificates = Certificates::new();
    let key_and_server = certificates.key_and_server();
    let arguments = [
        "--override",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTRA:SSL",
        "--override",
        "ssl.keystore.type=PEM",
        "--override",
        &format!("ssl.keystore.location={key_and_server}"),
    ];
    let Some(server) = or_skip(Kind::Kafka, find_own(Kind::Kafka, &arguments)).unwrap() else {
        return;
    };
    let home = server.directory().unwrap();
    let settings = fs::read_to_string(home.join("server.properties")).unwrap();
    let (_, extra) = settings.rsplit_once("EXTRA://localhost:").unwrap();
    let address = server.url().trim_start_matches("kafka://");
    let address = address.trim_end_matches('/');
    let runtime = Runtime::new().unwrap();
    create_topic(&runtime, address);
    let publisher = KafkaPublisher::new(Connection::new(address)).timeout(Duration::from_secs(20));
    Broker {
        certificates: &certificates,
        trust: Trust::Url,
        tls_port: extra.trim_end().parse().unwrap(),
        plain_port: address.rsplit_once(':').unwrap().1.parse().unwrap(),
        without_tls: "connecting to a PLAINTEXT broker listener?",
        credentials: "",
        from: &|server| {
            let sasl = if server.contains('@') { "&sasl=plain" } else { "" };
            format!("kafka://{server}/?topic={TOPIC}&group=billing&rejected=stop&session_timeout_ms=6000&tls=true{sasl}")
        },
        send: &|id| publish(&runtime, &publisher, TOPIC, id),
    }
    .is_received_from_if_it_is_trusted();
}
