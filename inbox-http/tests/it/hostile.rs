//! Requests of any bytes: no panic, no answer of 500, and nothing stored that was not signed.
//!
//! `INBOX_HTTP_HOSTILE` is how many; 3,000 unless set.

use std::sync::LazyLock;

use axum::{Router, body::Body, routing::post};
use http::{HeaderName, HeaderValue, Method, Request};
use inbox::Operate as _;
use inbox_http::{Endpoint, IdempotencyLayer, Provider, WebhookReceiver};
use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, TestRunner},
};
use tower::ServiceExt as _;

use crate::{places::in_memory, server::Site};

static CASES: LazyLock<u32> = LazyLock::new(|| {
    let cases = std::env::var("INBOX_HTTP_HOSTILE");
    cases.map_or(3_000, |cases| cases.parse().unwrap())
});

/// Names that mean something somewhere, so that their values are read.
const NAMES: [&str; 24] = [
    "authorization",
    "ce-id",
    "ce-source",
    "ce-specversion",
    "ce-type",
    "ce-x",
    "content-encoding",
    "content-length",
    "content-type",
    "i-twilio-idempotency-token",
    "idempotency-key",
    "stripe-signature",
    "traceparent",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "x-github-delivery",
    "x-github-event",
    "x-hub-signature-256",
    "x-shopify-hmac-sha256",
    "x-slack-request-timestamp",
    "x-slack-signature",
    "x-twilio-signature",
    "x-user",
];

const PATHS: [&str; 9] = [
    "/pay",
    "/open",
    "/standard",
    "/github",
    "/stripe",
    "/slack",
    "/shopify",
    "/twilio",
    "/events",
];

/// Near to what is expected, so that it gets further in.
const BODIES: [&str; 6] = [
    r#"{"id":"1","type":"t"}"#,
    r#"{"type":"url_verification","challenge":7}"#,
    r#"[{"specversion":"1.0","id":"1","source":"s","type":"t"},[]]"#,
    r#"{"specversion":"1.0","id":"","source":"s","type":"t","data_base64":"="}"#,
    "a=1&a=2&%zz=%ff",
    r#"{"id":{"id":[1,2,{"#,
];

const VALUES: [&str; 12] = [
    "application/json",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "application/x-www-form-urlencoded",
    "1.0",
    "\"key\"",
    "\"\\\"",
    "t=1,v1=00,t=2",
    "v1,a v1, v2,b",
    "sha256=zz",
    "Bearer %FF",
    "-9223372036854775808",
];

async fn app() -> (Router, std::sync::Arc<dyn inbox::Inbox>) {
    let store = in_memory().await;
    let secrets = ["secret"];
    let providers = [
        (
            "/standard",
            Provider::standard_webhooks(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]),
        ),
        ("/github", Provider::github(secrets)),
        ("/stripe", Provider::stripe(secrets)),
        ("/slack", Provider::slack(secrets)),
        ("/shopify", Provider::shopify(secrets)),
        ("/twilio", Provider::twilio(secrets, "https://a.example")),
        ("/events", Provider::cloud_events(secrets)),
    ];
    let mut webhooks = WebhookReceiver::new(store.clone());
    for (path, provider) in providers {
        let endpoint = Endpoint::new(provider.unwrap(), ["signed"]).unwrap();
        webhooks = webhooks
            .endpoint(path, endpoint.ordering_field("/a/0"))
            .unwrap();
    }
    let open = Endpoint::new(Provider::cloud_events_from_anybody(), ["open"]).unwrap();
    let webhooks = webhooks.endpoint("/open", open).unwrap();
    let layer = IdempotencyLayer::new(store.clone(), "payments").unwrap();
    let pay = Router::new()
        .route("/pay", post(|body: String| async { body }))
        .layer(layer);
    (pay.merge(webhooks.into_router()), store)
}

fn headers() -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    let any_value = vec(any::<u8>(), 0..40);
    let known = proptest::sample::select(&VALUES[..]).prop_map(|value| value.as_bytes().to_vec());
    let value = prop_oneof![any_value, known];
    vec((proptest::sample::select(&NAMES[..]), value), 0..10)
}

fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let known = proptest::sample::select(&BODIES[..]).prop_map(|body| body.as_bytes().to_vec());
    prop_oneof![vec(any::<u8>(), 0..200), known]
}

#[test]
fn requests_of_any_headers_and_bodies_are_answered() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (app, store) = runtime.block_on(app());
    let config = Config {
        cases: *CASES,
        failure_persistence: None,
        ..Config::default()
    };
    let requests = (proptest::sample::select(&PATHS[..]), headers(), bodies());
    let answered = TestRunner::new(config).run(&requests, |(path, headers, body)| {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().unwrap();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                request
                    .headers_mut()
                    .append(HeaderName::from_static(name), value);
            }
        }
        let response = runtime.block_on(app.clone().oneshot(request)).unwrap();
        let status = response.status().as_u16();
        prop_assert!(status < 500, "{path}: {status}");
        Ok(())
    });
    answered.unwrap();
    let statistics = runtime.block_on(store.statistics()).unwrap();
    let handlers = statistics.handlers.iter();
    let stored: Vec<&str> = handlers.map(|of| of.handler.as_str()).collect();
    assert!(!stored.contains(&"signed"), "{stored:?}");
    // The others did get somewhere.
    assert!(stored.contains(&"payments"), "{stored:?}");
}

/// On a connection, where headers need not even be headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_any_kind_do_not_stop_the_server() {
    let (app, _) = app().await;
    let site = Site::serve(app).await;
    let mut runner = TestRunner::deterministic();
    for _ in 0..*CASES / 10 {
        let generated = (headers(), bodies(), vec(any::<u8>(), 0..20));
        let (headers, body, noise) = generated.new_tree(&mut runner).unwrap().current();
        let mut bytes = b"POST /open HTTP/1.1\r\nhost: a\r\nconnection: close\r\n".to_vec();
        for (name, value) in headers.iter().filter(|(name, _)| *name != "content-length") {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&noise);
        let answer = site.raw(&bytes).await;
        assert!(!answer.starts_with("HTTP/1.1 5"), "{answer}");
    }
    let key = [("idempotency-key", "after")];
    assert_eq!(site.post("/pay", &key, "works").await.text(), "works");
}
