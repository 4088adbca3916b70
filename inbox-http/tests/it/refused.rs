//! Refusals of requests whose bodies are not read: who sends everything first finds the answer all the same.

use std::time::Duration;

use axum::{Router, routing::post};
use inbox_http::{
    Endpoint, IdempotencyLayer, Provider, WebhookReceiver,
    api::{Api, Token},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    places::{Place, on_each_store},
    server::Site,
};

on_each_store!(
    a_refusal_reaches_one_who_sends_all_of_the_body_first,
    one_who_asks_first_is_refused_and_not_told_to_go_on,
    a_body_that_nobody_needs_is_not_waited_for_for_long,
);

const TOKEN: &str = "a-token-of-16-characters";
/// More than is on its way between the two at one time, as a rule.
const LARGE: usize = 4_000_000;

async fn site<P: Place>(place: &P) -> Site {
    let layer = IdempotencyLayer::new(place.inbox(), "payments").unwrap();
    let api = Api::builder(place.inbox())
        .token(Token::new(TOKEN).unwrap())
        .body_limit(1_000_000)
        .build();
    let github = Endpoint::new(Provider::github([TOKEN]).unwrap(), ["ci"]).unwrap();
    let events = Endpoint::new(Provider::cloud_events([TOKEN]).unwrap(), ["ci"]).unwrap();
    let webhooks = WebhookReceiver::new(place.inbox())
        .endpoint("/github", github)
        .unwrap()
        .endpoint("/events", events)
        .unwrap();
    let paying = Router::new()
        .route("/pay", post(|| async { "paid" }))
        .route_layer(layer.request_limit(1_000_000));
    Site::serve(paying.merge(api.router()).merge(webhooks.into_router())).await
}

/// Sends a request's head, waits for the beginning of the answer, and sends the body nevertheless, as one does
/// who does not look for an answer before.
async fn answer(site: &Site, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(site.address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\ncontent-length: {LARGE}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.readable().await.unwrap();
    stream.write_all(&vec![b' '; LARGE]).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn a_refusal_reaches_one_who_sends_all_of_the_body_first<P: Place>(place: P) {
    let site = site(&place).await;
    let json = "content-type: application/json";
    let token = format!("authorization: Bearer {TOKEN}\r\n{json}");
    let encoded = format!("{token}\r\ncontent-encoding: gzip");
    let cases = [
        ("/github", json, 401, "signature-missing"),
        ("/events", &token, 413, "too-large"),
        ("/events", &encoded, 415, "encoded"),
        ("/v1/messages", json, 401, "unauthorized"),
        ("/v1/settle", &token, 413, "too-large"),
        ("/pay", "idempotency-key: ", 400, "key-malformed"),
        ("/pay", "idempotency-key: k", 413, "request-too-large"),
    ];
    for (path, headers, status, code) in cases {
        let answer = answer(&site, path, headers).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(code),
            "{path} {headers}: {answer}"
        );
    }
    assert!(place.messages().await.is_empty());
}

async fn one_who_asks_first_is_refused_and_not_told_to_go_on<P: Place>(place: P) {
    let site = site(&place).await;
    let head = b"POST /github HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
        content-length: 1000\r\nexpect: 100-continue\r\n\r\n";
    let answer = site.raw(head).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(!answer.contains(" 100 "), "{answer}");
}

async fn a_body_that_nobody_needs_is_not_waited_for_for_long<P: Place>(place: P) {
    let site = site(&place).await;
    let mut stream = TcpStream::connect(site.address).await.unwrap();
    let head = b"POST /github HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
        content-length: 1000\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut answer = Vec::new();
    // Until the connection is closed.
    let reading = stream.read_to_end(&mut answer);
    let read = tokio::time::timeout(Duration::from_secs(60), reading).await;
    read.unwrap().unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 401 "));
}
