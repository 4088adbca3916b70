//! The rules in short on stores on which the others do not run.

use std::{sync::Arc, time::Duration};

use axum::{Router, http::StatusCode, routing::post};
use inbox::Inbox;
use inbox_http::idempotency::OnConflict;
use tokio::sync::Notify;

use super::{Runs, layer};
use crate::{
    more_places::{MariaDb, MySql, OnRedis},
    places::Place as _,
    server::{Site, until},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb() {
    if let Some(place) = MariaDb::make().await {
        holds(place.inbox()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql() {
    if let Some(place) = MySql::make().await {
        holds(place.inbox()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    if let Some(place) = OnRedis::make().await {
        holds(place.inbox()).await;
    }
}

/// Two servers on one inbox. The first run fails and the second panics; the third takes until the gate opens.
async fn holds(inbox: Arc<dyn Inbox>) {
    let (runs, gate) = (Runs::default(), Arc::new(Notify::new()));
    let app = || {
        let (runs, gate) = (runs.clone(), gate.clone());
        let handler = async move |body: String| {
            let number = runs.count();
            assert!(number != 2, "as it was asked to");
            if number == 1 {
                return (StatusCode::SERVICE_UNAVAILABLE, String::new());
            }
            if body == "gated" {
                gate.notified().await;
            }
            (StatusCode::CREATED, format!("run {number}"))
        };
        Router::new().route("/", post(handler))
    };
    let waiting = layer(inbox.clone()).on_conflict(OnConflict::Wait(Duration::from_secs(60)));
    let one = Site::serve(app().layer(layer(inbox.clone()))).await;
    let other = Site::serve(app().layer(layer(inbox))).await;
    let patient = Site::serve(app().layer(waiting)).await;

    assert_eq!(one.with_key("/", "k", "gated").await.status, 503);
    let panicked = other.with_key("/", "k", "gated").await;
    assert_eq!(
        (panicked.status.as_u16(), panicked.problem()),
        (500, "failed".into())
    );
    let meanwhile = async {
        until(async || runs.so_far() == 3).await;
        let copy = other.with_key("/", "k", "gated").await;
        assert_eq!(
            (copy.status.as_u16(), copy.problem()),
            (409, "in-progress".into())
        );
        assert!(copy.header("retry-after").is_some());
        let opens = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            gate.notify_one();
        };
        tokio::join!(patient.with_key("/", "k", "gated"), opens).0
    };
    let (first, waited) = tokio::join!(one.with_key("/", "k", "gated"), meanwhile);
    assert_eq!((first.status.as_u16(), first.text()), (201, "run 3"));
    assert!(!first.is_replay());
    for copy in [waited, other.with_key("/", "k", "gated").await] {
        assert_eq!((copy.status.as_u16(), copy.text()), (201, "run 3"));
        assert!(copy.is_replay());
    }
    let another = other.with_key("/", "k", "another").await;
    assert_eq!(
        (another.status.as_u16(), another.problem()),
        (422, "key-reused".into())
    );
    assert_eq!(runs.so_far(), 3);

    // Of many copies at once, one runs.
    let copies = (0..20).map(|number| {
        let site = if number % 2 == 0 { &one } else { &other };
        site.with_key("/", "many", "")
    });
    for answer in futures_util::future::join_all(copies).await {
        match answer.status.as_u16() {
            201 => assert_eq!(answer.text(), "run 4"),
            _ => assert_eq!(answer.problem(), "in-progress"),
        }
    }
    assert_eq!(runs.so_far(), 4);
}
