//! NATS with a port that takes TLS, and one that does not.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
};

use inbox_nats::NatsPublisher;
use test_servers::{Kind, Server, find_own, or_skip};
use tokio::runtime::Runtime;

use super::{
    certificates::Certificates,
    receiving::{Broker, Trust, publish},
};

/// A server that is sent this by hand.
fn create_stream(port: u16) {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = r#"{"name":"ORDERS","subjects":["orders"],"storage":"memory"}"#;
    write!(
        &stream,
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB $JS.API.STREAM.CREATE.ORDERS answer {}\r\n{request}\r\n",
        request.len()
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines();
    let answer = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with('{')));
    let answer = answer.unwrap().unwrap();
    assert!(
        answer.contains("stream_create_response") && !answer.contains("error"),
        "{answer}"
    );
}

fn port(server: &Server) -> u16 {
    let (_, port) = server.url().trim_end_matches('/').rsplit_once(':').unwrap();
    port.parse().unwrap()
}

#[test]
fn a_stream_of_nats_is_received_over_tls() {
    let certificates = Certificates::new();
    // A port that takes TLS takes clients without it, too, only if the file says so.
    let settings = certificates.write(
        "nats.conf",
        &format!(
            "tls {{ cert_file: \"{}\", key_file: \"{}\" }}\nallow_non_tls: true\n",
            certificates.server(),
            certificates.key()
        ),
    );
    let found = find_own(Kind::Nats, &["--config", &settings]);
    let Some(server) = or_skip(Kind::Nats, found).unwrap() else {
        return;
    };
    let Some(plain) = or_skip(Kind::Nats, find_own(Kind::Nats, &[])).unwrap() else {
        return;
    };
    create_stream(port(&server));
    let runtime = Runtime::new().unwrap();
    let publisher = NatsPublisher::from_url(server.url()).unwrap();
    Broker {
        certificates: &certificates,
        trust: Trust::System,
        tls_port: port(&server),
        plain_port: port(&plain),
        without_tls: "speak TLS",
        credentials: "",
        from: &|server| format!("tls://{server}/?stream=ORDERS&consumer=billing&create=true"),
        send: &|id| publish(&runtime, &publisher, "orders", id),
    }
    .is_received_from_if_it_is_trusted();
}
