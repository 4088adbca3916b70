//! `inbox dashboard`: who may reach it, and what is told of changes.

use std::io::Read as _;

use nix::sys::signal::Signal;
use reqwest::{Client, StatusCode};

use crate::support::{Place, event, signal};

const TOKEN: &str = "a-token-for-tests-0123456789";

fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}

fn with_a_dead_message() -> Place {
    let place = Place::new();
    place.file("one.ndjson", event("1", "k", "{\"a\":1}"));
    place
        .inbox(&["run", "one.ndjson", "--", "sh", "-c", "exit 65"])
        .exits(4);
    place
}

#[tokio::test]
async fn it_looks_and_mends_and_ends_when_told() {
    let place = with_a_dead_message();
    let (mut child, mut said, address) = place.dashboard(&[]);
    let client = client();
    let overview = client
        .get(format!("{address}/overview"))
        .send()
        .await
        .unwrap();
    assert_eq!(overview.status(), StatusCode::OK);
    assert!(overview.text().await.unwrap().contains("default"));
    let replay = client
        .post(format!("{address}/api/replay"))
        .header("content-type", "application/json")
        .body(r#"{"filter":{}}"#);
    let answer = replay.send().await.unwrap().text().await.unwrap();
    assert!(answer.contains("\"changed\":1"), "{answer}");
    // A site that has given its name this machine's address.
    let rebound = client
        .get(format!("{address}/overview"))
        .header("host", "evil.example");
    let status = rebound.send().await.unwrap().status();
    assert_eq!(status, StatusCode::MISDIRECTED_REQUEST);
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("inbox::audit"), "{rest}");
    assert!(rest.contains("action=\"replay\""), "{rest}");
}

#[tokio::test]
async fn a_token_opens_it() {
    let place = with_a_dead_message();
    place.file("token", TOKEN);
    let arguments = ["--token-file", "token", "--read-only", "--hide-payloads"];
    let (mut child, _said, address) = place.dashboard(&arguments);
    let client = client();
    let url = format!("{address}/api/message?handler=default&id=1");
    let closed = client.get(&url).send().await.unwrap();
    assert_eq!(closed.status(), StatusCode::UNAUTHORIZED);
    let open = client.get(&url).bearer_auth(TOKEN).send().await.unwrap();
    let text = open.text().await.unwrap();
    assert!(text.contains("\"payload\":null"), "{text}");
    let replay = client
        .post(format!("{address}/api/replay"))
        .bearer_auth(TOKEN)
        .send();
    assert_eq!(replay.await.unwrap().status(), StatusCode::FORBIDDEN);
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_other_machines_can_reach_needs_a_token() {
    let place = with_a_dead_message();
    place
        .inbox(&["dashboard", "--listen", "0.0.0.0:0"])
        .exits(2)
        .complains("give a token with --token-file");
    place.file("short", "hunter2");
    let refused = place
        .inbox(&["dashboard", "--token-file", "short"])
        .exits(2)
        .complains("the token cannot be used");
    assert!(!refused.stderr.contains("hunter2"));
    place
        .inbox(&["dashboard", "--token-env", "INBOX_ABSENT"])
        .exits(2)
        .complains("INBOX_ABSENT is not set");
    place
        .inbox(&["dashboard", "--trace-link", "javascript:{trace_id}"])
        .exits(2)
        .complains("--trace-link");
    place
        .inbox(&["dashboard", "--certificate", "c.pem"])
        .exits(2);
}
