//! What is logged, and what is not.

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use inbox::Store;
use inbox_http::{IdempotencyLayer, idempotency::Tx};
use tracing::Level;

use super::layer;
use crate::{
    logged::Log,
    places::{Away, Place as _, Sqlite, in_memory},
    server::Site,
};

const KEY: &str = "4242-key";
const TOKEN: &str = "4242-token";
const REQUEST: &str = "4242-request";
const RESPONSE: &str = "4242-response";
const PANIC: &str = "4242-panic";

const SECRETS: [&str; 6] = [KEY, TOKEN, REQUEST, RESPONSE, PANIC, "4242-header"];

/// Does what the query says.
fn app(layer: IdempotencyLayer) -> Router {
    let handler = |headers: HeaderMap, body: String| async move {
        assert!(headers.contains_key("authorization"));
        assert!(body.starts_with(REQUEST));
        assert!(!body.ends_with("panic"), "{PANIC}");
        let status = match body.ends_with("fail") {
            true => StatusCode::INTERNAL_SERVER_ERROR,
            false => StatusCode::CREATED,
        };
        (status, [("x-secret", "4242-header")], RESPONSE)
    };
    Router::new().route("/pay", post(handler)).layer(layer)
}

async fn pay(site: &Site, key: &str, what: &str) -> u16 {
    let headers = [
        ("idempotency-key", key),
        ("authorization", TOKEN),
        ("x-secret", "4242-header"),
    ];
    let body = format!("{REQUEST} {what}");
    site.post("/pay", &headers, body).await.status.as_u16()
}

#[tokio::test]
async fn no_secret_and_no_body_is_logged_at_any_level() {
    let (log, _guard) = Log::of(Level::TRACE);
    let store = Away::new(in_memory().await);
    let layer = layer(store.clone());
    let site = Site::serve(app(layer)).await;
    assert_eq!(pay(&site, KEY, "").await, 201);
    assert_eq!(pay(&site, KEY, "").await, 201);
    assert_eq!(pay(&site, KEY, "other").await, 422);
    assert_eq!(pay(&site, "4242-key, 4242-key", "").await, 400);
    assert_eq!(pay(&site, "4242-key-2", "fail").await, 500);
    assert_eq!(pay(&site, "4242-key-3", "panic").await, 500);
    store.set(true);
    assert_eq!(pay(&site, KEY, "").await, 503);
    // What the client and the server of HTTP say at this level is theirs.
    let lines = log.lines(&[" inbox"]);
    for what in ["its service panicked", "request not let through"] {
        assert!(lines.iter().any(|line| line.contains(what)), "{lines:#?}");
    }
    for line in lines {
        for secret in SECRETS {
            assert!(!line.contains(secret), "{line}");
        }
    }
}

/// An operator learns of what has gone wrong, and is not bothered with what clients do.
#[tokio::test]
async fn what_went_wrong_is_logged_and_nothing_else() {
    let (log, _guard) = Log::of(Level::WARN);
    let store = Away::new(in_memory().await);
    let site = Site::serve(app(layer(store.clone()))).await;
    let said = || log.lines(&[" inbox"]);
    for (key, what, status) in [
        ("a", "", 201),
        ("a", "", 201),
        ("a", "other", 422),
        ("a b", "", 400),
        ("b", "fail", 500),
    ] {
        assert_eq!(pay(&site, key, what).await, status);
    }
    assert_eq!(said(), [""; 0]);
    assert_eq!(pay(&site, "c", "panic").await, 500);
    assert_eq!(said().len(), 1);
    assert!(said()[0].contains("ERROR"), "{:?}", said());
    store.set(true);
    // The outage, not each request that meets it.
    for _ in 0..2 {
        assert_eq!(pay(&site, "d", "").await, 503);
    }
    assert_eq!(said().len(), 2);
    assert!(
        said()[1].contains("WARN") && said()[1].contains("away"),
        "{:?}",
        said()
    );
    store.set(false);

    // The response was given, and could not be recorded.
    let going = store.clone();
    let handler = move || async move {
        going.set(true);
        RESPONSE
    };
    let layer = layer(store.clone() as Arc<dyn Store>);
    let app = Router::new().route("/going", post(handler)).layer(layer);
    let site = Site::serve(app).await;
    assert_eq!(site.with_key("/going", "e", "").await.text(), RESPONSE);
    assert_eq!(said().len(), 4);
    assert!(said()[2].contains("inbox::outage"), "{:?}", said());
    assert!(said()[3].contains("not recorded"), "{:?}", said());
    assert!(log.lines(&[RESPONSE]).is_empty());
}

#[tokio::test]
async fn a_transaction_that_cannot_be_committed_is_logged() {
    let (log, _guard) = Log::of(Level::WARN);
    let place = Sqlite::make().await.unwrap();
    let kept = Arc::new(std::sync::Mutex::new(None));
    let keeping = kept.clone();
    let handler = move |tx: Tx<inbox::sqlite::SqliteStore>| async move {
        *keeping.lock().unwrap() = Some(tx);
        RESPONSE
    };
    let layer = IdempotencyLayer::in_transaction(place.store(), "bookings").unwrap();
    let app = Router::new().route("/", post(handler)).layer(layer);
    let site = Site::serve(app).await;
    let ends = async {
        crate::server::until(async || kept.lock().unwrap().is_some()).await;
        drop(kept.lock().unwrap().take());
    };
    let (answer, ()) = tokio::join!(site.with_key("/", KEY, ""), ends);
    assert_eq!(answer.problem(), "failed");
    let lines = log.lines(&["ERROR", "its transaction cannot be committed"]);
    assert_eq!(lines.len(), 1, "{:#?}", log.lines(&[]));
    assert!(log.lines(&["4242"]).is_empty());
}
