//! Bodies of requests and responses: large, slow, streamed, broken.

use std::{convert::Infallible, io, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{
        HeaderMap, HeaderValue,
        header::{CONTENT_TYPE, TRAILER},
    },
    routing::post,
};
use futures_util::{StreamExt as _, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use inbox::{
    Schema as _,
    sqlite::{SqliteOptions, SqliteStore},
};
use tokio::sync::mpsc;

use super::{Runs, layer};
use crate::{
    places::{Place, on_each_store},
    server::Site,
};

on_each_store!(
    requests_over_the_limit_are_refused,
    a_slow_request_is_refused,
    a_response_over_the_limit_passes_and_is_not_replayed,
    a_stream_passes_and_is_not_replayed,
    a_response_that_breaks_off_is_not_kept,
    trailers_reach_the_first_client,
);

async fn requests_over_the_limit_are_refused<P: Place>(place: P) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: Bytes| async move { format!("run {} of {}", runs.count(), body.len()) }
    };
    let limited = layer(place.inbox()).request_limit(1000);
    let app = Router::new().route("/", post(handler)).layer(limited);
    let site = Site::serve(app).await;
    let key = [("idempotency-key", "k")];
    let streamed = |bytes: usize| {
        let pieces =
            vec![Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 100])); bytes / 100];
        reqwest::Body::wrap_stream(stream::iter(pieces))
    };
    let whole = site.post("/", &key, vec![b'x'; 1001]).await;
    let in_pieces = site.post("/", &key, streamed(1100)).await;
    for refused in [whole, in_pieces] {
        assert_eq!(refused.status, 413);
        assert_eq!(refused.problem(), "request-too-large");
        assert_eq!(refused.json()["limit"], 1000);
    }
    assert!(place.messages().await.is_empty());
    // However it comes, it is the same request.
    assert_eq!(
        site.post("/", &key, vec![b'x'; 1000]).await.text(),
        "run 1 of 1000"
    );
    assert_eq!(
        site.post("/", &key, streamed(1000)).await.text(),
        "run 1 of 1000"
    );
}

async fn a_slow_request_is_refused<P: Place>(place: P) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move { format!("run {}", runs.count()) }
    };
    let hasty = layer(place.inbox()).read_timeout(Duration::from_millis(50));
    let app = Router::new().route("/", post(handler)).layer(hasty);
    let site = Site::serve(app).await;
    let request =
        b"POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ncontent-length: 5\r\n\r\nabc";
    let answer = site.raw(request).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("request-too-slow"), "{answer}");
    assert_eq!(runs.so_far(), 0);
    assert!(place.messages().await.is_empty());
}

async fn a_response_over_the_limit_passes_and_is_not_replayed<P: Place>(place: P) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |streamed: Bytes| async move {
            runs.count();
            let pieces = vec![Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 100])); 11];
            if streamed.is_empty() {
                Body::from(vec![b'x'; 1100])
            } else {
                Body::from_stream(stream::iter(pieces))
            }
        }
    };
    let limited = layer(place.inbox()).response_limit(1000);
    let app = Router::new().route("/", post(handler)).layer(limited);
    let site = Site::serve(app).await;
    for (key, body) in [("a", ""), ("b", "streamed")] {
        let first = site.with_key("/", key, body).await;
        assert_eq!((first.status.as_u16(), first.body.len()), (200, 1100));
        let again = site.with_key("/", key, body).await;
        assert_eq!(again.status, 410);
        assert_eq!(again.problem(), "response-not-kept");
        assert_eq!(again.json()["original-status"], 200);
        assert_eq!(
            site.with_key("/", key, "other").await.problem(),
            "key-reused"
        );
    }
    assert_eq!(runs.so_far(), 2);
}

/// The store's own limit, which is below the layer's.
#[tokio::test]
async fn a_response_over_the_stores_limit_is_still_one_to_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("inbox.db")).payload_limit(1000);
    let store = SqliteStore::connect(options).await.unwrap();
    store.create().await.unwrap();
    let app = Router::new()
        .route("/", post(|| async { "x".repeat(1001) }))
        .layer(layer(std::sync::Arc::new(store)));
    let site = Site::serve(app).await;
    assert_eq!(site.with_key("/", "k", "").await.body.len(), 1001);
    let again = site.with_key("/", "k", "").await;
    assert_eq!(again.problem(), "response-not-kept");
    assert_eq!(again.json()["original-status"], 200);
    let other = site.with_key("/", "k", "other").await;
    assert_eq!(other.problem(), "key-reused");
}

/// Its beginning reaches the client before it has an end.
async fn a_stream_passes_and_is_not_replayed<P: Place>(place: P) {
    let (sender, pieces) = mpsc::channel::<Bytes>(1);
    let pieces = std::sync::Arc::new(tokio::sync::Mutex::new(Some(pieces)));
    let handler = move || async move {
        let mut pieces = pieces.lock().await.take().unwrap();
        let stream = stream::poll_fn(move |context| pieces.poll_recv(context));
        let body = Body::from_stream(stream.map(Ok::<_, io::Error>));
        ([(CONTENT_TYPE, "text/event-stream")], body)
    };
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    let client = crate::server::client();
    let request = client.post(site.url("/")).header("idempotency-key", "k");
    let mut response = request.send().await.unwrap();
    sender
        .send(Bytes::from_static(b"data: 1\n\n"))
        .await
        .unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "data: 1\n\n");
    let again = site.with_key("/", "k", "").await;
    assert_eq!(again.problem(), "response-not-kept");
    drop(sender);
    assert_eq!(response.chunk().await.unwrap(), None);
}

async fn a_response_that_breaks_off_is_not_kept<P: Place>(place: P) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move {
            let end = match runs.count() {
                1 => Err(io::Error::other("broke off")),
                _ => Ok(Bytes::from_static(b"end")),
            };
            Body::from_stream(stream::iter([Ok(Bytes::from_static(b"begin ")), end]))
        }
    };
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    let broken = site.with_key("/", "k", "").await;
    assert_eq!(
        (broken.status.as_u16(), broken.problem().as_str()),
        (500, "failed")
    );
    for _ in 0..2 {
        assert_eq!(site.with_key("/", "k", "").await.text(), "begin end");
    }
    assert_eq!(runs.so_far(), 2);
}

async fn trailers_reach_the_first_client<P: Place>(place: P) {
    let handler = || async {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-digest", HeaderValue::from_static("1a2b"));
        let data = Frame::data(Bytes::from_static(b"body"));
        let frames = [data, Frame::trailers(trailers)].map(Ok::<_, Infallible>);
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        ([(TRAILER, "x-digest")], body)
    };
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    let request = b"POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\nte: trailers\r\n\
        connection: close\r\ncontent-length: 0\r\n\r\n";
    let first = site.raw(request).await;
    assert!(
        first.contains("\r\n4\r\nbody\r\n0\r\nx-digest: 1a2b\r\n"),
        "{first}"
    );
    // They are not kept.
    let again = site.raw(request).await;
    assert!(again.contains("idempotency-replayed: true\r\n"), "{again}");
    assert!(again.ends_with("\r\n\r\nbody"), "{again}");
    assert!(!again.contains("x-digest"), "{again}");
}
