//! What is refused is counted, each by its reason.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::Router;
use http::Method;
use inbox_http::{Endpoint, Provider, WebhookReceiver};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::hex_signature;
use crate::{
    places::{Place, on_each_store},
    server::Site,
};

on_each_store!(each_refusal_is_counted_and_nothing_is_stored);

const SECRET: &str = "It's a Secret to Everybody";

/// The counters of all tests in this process, by name and labels.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

static BOOK: LazyLock<Book> = LazyLock::new(|| {
    let book = Book::default();
    metrics::set_global_recorder(book.clone()).unwrap_or_else(|error| panic!("{error}"));
    book
});

impl Book {
    fn webhooks(&self, endpoint: &str, outcome: &str) -> u64 {
        let name = format!("inbox_http_webhooks_total {endpoint} {outcome}");
        let counters = self.0.lock().unwrap();
        let counter = counters.get(&name);
        counter.map_or(0, |counter| counter.load(Ordering::SeqCst))
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<_> = key.labels().map(metrics::Label::value).collect();
        let name = format!("{} {}", key.name(), labels.join(" "));
        let counter = self.0.lock().unwrap().entry(name).or_default().clone();
        Counter::from_arc(counter)
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

async fn each_refusal_is_counted_and_nothing_is_stored<P: Place>(place: P) {
    let book = &*BOOK;
    // No other test's.
    let path = format!("/counted/{}", place.schema());
    let provider = Provider::stripe([SECRET]).unwrap();
    let endpoint = Endpoint::new(provider, ["h"]).unwrap();
    let receiver = || {
        let receiver = WebhookReceiver::new(place.inbox()).body_limit(100);
        receiver.endpoint(&path, endpoint.clone()).unwrap()
    };
    let serve = async |receiver: WebhookReceiver| {
        Site::serve(Router::new().fallback_service(receiver.into_service())).await
    };
    let site = serve(receiver()).await;
    let body = r#"{"id":"evt_1","type":"t"}"#;
    let sign = |time: u64, body: &str| {
        let signature = hex_signature(SECRET, &format!("{time}.{body}"));
        format!("t={time},v1={signature}")
    };
    let now = crate::server::seconds_now();
    let post = async |content_type: &str, signature: &str, body: &str| {
        let headers = [
            ("content-type", content_type),
            ("stripe-signature", signature),
        ];
        site.post(&path, &headers, body.to_owned()).await
    };
    let json = "application/json";
    let unknown = book.webhooks("unknown", "unknown-endpoint");
    let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n");
    let signed = sign(now, body);
    let cut_off = format!("{head}stripe-signature: {signed}\r\ncontent-length: 5\r\n\r\nabc");
    let encoded = [
        ("content-type", json),
        ("content-encoding", "gzip"),
        ("stripe-signature", &signed),
    ];
    let refused = [
        (
            415,
            "encoded",
            site.post(&path, &encoded, body.to_owned()).await,
        ),
        (415, "wrong-content-type", post("text/xml", "", body).await),
        (
            413,
            "too-large",
            post(json, &sign(now, ""), &"x".repeat(101)).await,
        ),
        (401, "signature-missing", post(json, "", body).await),
        (
            401,
            "wrong-signature",
            post(json, &sign(now, "{}"), body).await,
        ),
        (
            401,
            "out-of-time",
            post(json, &sign(now - 301, body), body).await,
        ),
        (
            422,
            "not-an-event",
            post(json, &sign(now, "{}"), "{}").await,
        ),
        (
            405,
            "method-not-allowed",
            site.send(Method::GET, &path, &[], "").await,
        ),
    ];
    for (status, code, answer) in refused {
        assert_eq!(answer.status, status);
        assert_eq!(answer.problem(), code);
        assert_eq!(book.webhooks(&path, code), 1, "{code}");
    }
    // Too short a time for what is sent whole.
    let hasty = receiver().read_timeout(Duration::from_millis(50));
    let slow = serve(hasty).await.raw(cut_off.as_bytes()).await;
    assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
    assert_eq!(book.webhooks(&path, "too-slow"), 1);
    assert_eq!(site.post("/another", &[], "").await.status, 404);
    assert!(book.webhooks("unknown", "unknown-endpoint") > unknown);
    assert!(place.messages().await.is_empty());

    for (status, outcome) in [(202, "accepted"), (200, "duplicate")] {
        assert_eq!(post(json, &sign(now, body), body).await.status, status);
        assert_eq!(book.webhooks(&path, outcome), 1);
    }
}
