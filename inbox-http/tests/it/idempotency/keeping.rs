//! What is kept of a response, and for how long.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    routing::post,
};
use inbox::{AfterDead, HandlerName, Janitor, State};

use super::{Runs, layer};
use crate::{
    places::{Place, on_each_store},
    server::{Site, until},
};

on_each_store!(
    the_headers_that_are_kept_can_be_chosen,
    a_key_that_was_given_up_is_closed_until_it_is_purged,
);

async fn the_headers_that_are_kept_can_be_chosen<P: Place>(place: P) {
    let headers = [
        ("content-type", "text/plain"),
        ("x-receipt", "1"),
        ("x-trace", "2"),
        ("set-cookie", "session=secret"),
        ("upgrade", "none"),
        ("inbox-fingerprint", "forged"),
    ];
    let handler = move || async move {
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        (HeaderMap::from_iter(headers), "paid")
    };
    // All but one; and what can never be kept, though it is asked for.
    let choosing = layer(place.inbox()).keep_headers(|name| name != "x-trace");
    let app = Router::new().route("/", post(handler)).layer(choosing);
    let site = Site::serve(app).await;
    let first = site.with_key("/", "k", "").await;
    for (name, value) in headers {
        assert_eq!(first.header(name), Some(value), "{name}");
    }
    let again = site.with_key("/", "k", "").await;
    assert!(again.is_replay());
    assert_eq!(again.text(), "paid");
    for (name, value) in headers {
        let is_kept = ["content-type", "x-receipt", "set-cookie"].contains(&name);
        assert_eq!(again.header(name), is_kept.then_some(value), "{name}");
    }
    // None, of a layer on the same inbox.
    let bare = layer(place.inbox()).keep_headers(|_| false);
    let app = Router::new().route("/bare", post(handler)).layer(bare);
    let site = Site::serve(app).await;
    site.with_key("/bare", "k", "").await;
    let again = site.with_key("/bare", "k", "").await;
    assert!(again.is_replay());
    assert_eq!(again.text(), "paid");
    for name in ["content-type", "x-receipt", "set-cookie"] {
        assert_eq!(again.header(name), None, "{name}");
    }
    assert_eq!(again.header(header::CONTENT_LENGTH.as_str()), Some("4"));
}

/// Its client never came back.
async fn a_key_that_was_given_up_is_closed_until_it_is_purged<P: Place>(place: P) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move {
            let status = match runs.count() {
                1 => StatusCode::INTERNAL_SERVER_ERROR,
                _ => StatusCode::CREATED,
            };
            (status, format!("run {}", runs.so_far()))
        }
    };
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    assert_eq!(site.with_key("/", "k", "").await.status, 500);
    let state = async || place.messages().await.first().map(|message| message.state);
    assert_eq!(state().await, Some(State::Pending));

    let payments = HandlerName::new("payments").unwrap();
    let moment = Duration::from_millis(1);
    let giving_up = Janitor::builder(place.inbox()).give_up_after(
        Arc::new(place.store()),
        [payments],
        moment,
        AfterDead::Continue,
    );
    let giving_up = giving_up.build().unwrap();
    until(async || giving_up.sweep().await.unwrap().abandoned == 1).await;
    assert_eq!(state().await, Some(State::Dead));
    for body in ["", "other"] {
        let closed = site.with_key("/", "k", body).await;
        assert_eq!(closed.status, 409);
        assert_eq!(closed.problem(), "key-closed");
    }
    assert_eq!(runs.so_far(), 1);

    let purging = Janitor::builder(place.inbox()).keep_dead(moment);
    let purging = purging.build().unwrap();
    until(async || {
        purging.sweep().await.unwrap();
        state().await.is_none()
    })
    .await;
    let answer = site.with_key("/", "k", "other").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (201, "run 2"));
}
