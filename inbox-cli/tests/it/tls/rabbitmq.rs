//! RabbitMQ with ports for TLS.

use std::fs;

use inbox_rabbitmq::RabbitMqPublisher;
use test_servers::{Kind, Server, find_own, or_skip};
use tokio::runtime::Runtime;

use super::{
    certificates::Certificates,
    free_port,
    receiving::{Broker, Trust, publish},
};

/// A server that takes TLS at these ports, that of queues first.
fn server(certificates: &Certificates, ports: [u16; 2]) -> Option<Server> {
    let [queues, streams] = ports.map(|port| format!(r#"[{{"127.0.0.1",{port}}}]"#));
    let options = format!(
        r#"[{{certfile,"{}"}},{{keyfile,"{}"}}]"#,
        certificates.server(),
        certificates.key()
    );
    let found = find_own(
        Kind::RabbitMq,
        &[
            "-rabbit",
            "ssl_options",
            &options,
            "-rabbit",
            "ssl_listeners",
            &queues,
            "-rabbitmq_stream",
            "ssl_listeners",
            &streams,
        ],
    );
    or_skip(Kind::RabbitMq, found).unwrap()
}

/// Both on one server, which takes some seconds to start.
#[test]
fn queues_and_streams_of_rabbitmq_are_received_over_tls() {
    let certificates = Certificates::new();
    let ports = [free_port(), free_port()];
    let Some(server) = server(&certificates, ports) else {
        return;
    };
    // Docker is not asked for RabbitMQ, so the server has a directory.
    let settings = fs::read_to_string(server.directory().unwrap().join("rabbitmq.conf")).unwrap();
    let plain_port = |name: &str| {
        let line = settings.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().rsplit_once(':').unwrap().1.parse().unwrap()
    };
    let runtime = Runtime::new().unwrap();
    let publisher = RabbitMqPublisher::from_url(server.url()).unwrap();
    let send = |queue: &str, id: &str| publish(&runtime, &publisher, queue, id);
    let queue = Broker {
        certificates: &certificates,
        trust: Trust::System,
        tls_port: ports[0],
        plain_port: plain_port("listeners.tcp.1"),
        without_tls: "speak TLS",
        credentials: "guest:guest@",
        from: &|server| format!("amqps://{server}/%2f?queue=tls-orders&create=true"),
        send: &|id| send("tls-orders", id),
    };
    let stream = Broker {
        tls_port: ports[1],
        plain_port: plain_port("stream.listeners.tcp.1"),
        from: &|server| {
            format!(
                "rabbitmq-stream+tls://{server}/%2f?stream=tls-events&consumer=billing&create=true"
            )
        },
        send: &|id| send("tls-events", id),
        ..queue
    };
    queue.is_received_from_if_it_is_trusted();
    stream.is_received_from_if_it_is_trusted();
}
