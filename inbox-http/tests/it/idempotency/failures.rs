//! Clients that leave, handlers that panic, and a store that is away.

use std::{sync::Arc, time::Duration};

use axum::{Router, http::StatusCode, routing::post};
use inbox_http::idempotency::OnConflict;
use tokio::sync::Notify;

use super::{Runs, layer};
use crate::{
    places::{Away, Place, on_each_store},
    server::{Site, until},
};

on_each_store!(
    a_client_that_leaves_neither_cancels_nor_blocks,
    a_copy_that_waits_goes_with_its_client,
    a_lease_is_renewed_while_the_handler_runs,
    after_a_panic_the_next_one_runs,
    a_store_that_is_away_lets_nothing_through,
    what_could_not_be_recorded_does_not_run_again,
    a_response_whose_lease_was_lost_gives_way_to_the_others,
    a_layer_that_was_drained_lets_nothing_through,
);

async fn a_client_that_leaves_neither_cancels_nor_blocks<P: Place>(place: P) {
    let (runs, gate) = (Runs::default(), Arc::new(Notify::new()));
    let handler = {
        let (runs, gate) = (runs.clone(), gate.clone());
        move || async move {
            let number = runs.count();
            gate.notified().await;
            format!("run {number}")
        }
    };
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    {
        let leaving = site.with_key("/", "k", "");
        tokio::select! {
            answer = leaving => panic!("{answer:?}"),
            () = until(async || runs.so_far() == 1) => {}
        }
    }
    assert_eq!(site.with_key("/", "k", "").await.problem(), "in-progress");
    gate.notify_one();
    until(async || site.with_key("/", "k", "").await.is_replay()).await;
    assert_eq!(site.with_key("/", "k", "").await.text(), "run 1");
    assert_eq!(runs.so_far(), 1);
}

/// The first one fails, so that a copy could run next.
async fn a_copy_that_waits_goes_with_its_client<P: Place>(place: P) {
    let (runs, gate) = (Runs::default(), Arc::new(Notify::new()));
    let handler = {
        let (runs, gate) = (runs.clone(), gate.clone());
        move || async move {
            if runs.count() == 1 {
                gate.notified().await;
                return StatusCode::INTERNAL_SERVER_ERROR;
            }
            StatusCode::OK
        }
    };
    let layer = layer(place.inbox()).on_conflict(OnConflict::Wait(Duration::from_secs(60)));
    let app = Router::new().route("/", post(handler)).layer(layer);
    let site = Site::serve(app).await;
    let first = async { site.with_key("/", "k", "").await };
    let leaving = async {
        until(async || runs.so_far() == 1).await;
        let copies = (0..3).map(|_| site.with_key("/", "k", ""));
        let copies = futures_util::future::join_all(copies);
        let left = tokio::time::timeout(Duration::from_millis(500), copies).await;
        assert!(left.is_err(), "{left:?}");
        // The server notices.
        tokio::time::sleep(Duration::from_millis(500)).await;
        gate.notify_one();
    };
    let (first, ()) = tokio::join!(first, leaving);
    assert_eq!(first.status, 500);
    // Those who wait look again within a second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(runs.so_far(), 1);
    let next = site.with_key("/", "k", "").await;
    assert_eq!((next.status.as_u16(), next.is_replay()), (200, false));
}

async fn a_lease_is_renewed_while_the_handler_runs<P: Place>(place: P) {
    let (runs, gate) = (Runs::default(), Arc::new(Notify::new()));
    let handler = {
        let (runs, gate) = (runs.clone(), gate.clone());
        move || async move {
            let number = runs.count();
            gate.notified().await;
            format!("run {number}")
        }
    };
    // Renewed in time by a machine that is slow.
    let lease = Duration::from_secs(6);
    let app = |layer: inbox_http::IdempotencyLayer| {
        let layer = layer.lease(lease).unwrap();
        Router::new().route("/", post(handler.clone())).layer(layer)
    };
    let site = Site::serve(app(layer(place.inbox()))).await;
    // Another process knows of the lease only.
    let elsewhere = Site::serve(app(layer(place.inbox()))).await;
    let first = async { site.with_key("/", "k", "").await };
    let others = async {
        until(async || runs.so_far() == 1).await;
        let began = tokio::time::Instant::now();
        while began.elapsed() < 2 * lease {
            let refused = elsewhere.with_key("/", "k", "").await;
            assert_eq!(refused.problem(), "in-progress");
            tokio::time::sleep(lease / 10).await;
        }
        gate.notify_one();
    };
    let (first, ()) = tokio::join!(first, others);
    assert_eq!(first.text(), "run 1");
    assert_eq!(elsewhere.with_key("/", "k", "").await.text(), "run 1");
}

async fn after_a_panic_the_next_one_runs<P: Place>(place: P) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move {
            let number = runs.count();
            assert!(number > 1, "the first one panics");
            format!("run {number}")
        }
    };
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer(place.inbox()));
    let site = Site::serve(app).await;
    let failed = site.with_key("/", "k", "").await;
    assert_eq!(
        (failed.status.as_u16(), failed.problem().as_str()),
        (500, "failed")
    );
    assert!(!failed.text().contains("panic"));
    for _ in 0..2 {
        assert_eq!(site.with_key("/", "k", "").await.text(), "run 2");
    }
}

async fn a_store_that_is_away_lets_nothing_through<P: Place>(place: P) {
    let (runs, store) = (Runs::default(), Away::new(place.inbox()));
    let handler = {
        let runs = runs.clone();
        move || async move { format!("run {}", runs.count()) }
    };
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer(store.clone()));
    let site = Site::serve(app).await;
    assert_eq!(site.with_key("/", "known", "").await.text(), "run 1");
    store.set(true);
    for key in ["new", "known"] {
        let refused = site.with_key("/", key, "").await;
        assert_eq!(refused.status, 503);
        assert_eq!(refused.problem(), "store-unavailable");
        assert!(refused.header("retry-after").is_some());
    }
    assert_eq!(runs.so_far(), 1);
    store.set(false);
    assert_eq!(site.with_key("/", "new", "").await.text(), "run 2");
    assert_eq!(site.with_key("/", "known", "").await.text(), "run 1");
}

/// The store goes away while the handler runs, and its client has an answer that no other may contradict.
async fn what_could_not_be_recorded_does_not_run_again<P: Place>(place: P) {
    let (runs, store) = (Runs::default(), Away::new(place.inbox()));
    let handler = {
        let (runs, store) = (runs.clone(), store.clone());
        move || async move {
            store.set(true);
            format!("run {}", runs.count())
        }
    };
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer(store.clone()));
    let site = Site::serve(app).await;
    assert_eq!(site.with_key("/", "k", "").await.text(), "run 1");
    assert_eq!(
        site.with_key("/", "k", "").await.problem(),
        "store-unavailable"
    );
    store.set(false);
    let again = site.with_key("/", "k", "").await;
    assert_eq!(again.text(), "run 1");
    assert!(again.is_replay());
    assert_eq!(runs.so_far(), 1);
}

async fn a_layer_that_was_drained_lets_nothing_through<P: Place>(place: P) {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move || async move { format!("run {}", runs.count()) }
    };
    let layer = layer(place.inbox());
    let app = Router::new().route("/", post(handler)).layer(layer.clone());
    let site = Site::serve(app).await;
    assert!(layer.drain(Duration::from_secs(60)).await);
    assert_eq!(
        site.with_key("/", "k", "").await.problem(),
        "store-unavailable"
    );
    assert_eq!(runs.so_far(), 0);
}

/// Renewals fail until the lease has run out, and another process runs the copy.
async fn a_response_whose_lease_was_lost_gives_way_to_the_others<P: Place>(place: P) {
    let (runs, store, gate) = (
        Runs::default(),
        Away::new(place.inbox()),
        Arc::new(Notify::new()),
    );
    let handler = |gate: Option<Arc<Notify>>| {
        let runs = runs.clone();
        async move || {
            let number = runs.count();
            if let Some(gate) = gate {
                gate.notified().await;
            }
            format!("run {number}")
        }
    };
    let lease = Duration::from_millis(500);
    let site = async |store, gate| {
        let layer = layer(store).lease(lease).unwrap();
        let app = Router::new().route("/", post(handler(gate))).layer(layer);
        Site::serve(app).await
    };
    let here = site(store.clone(), Some(gate.clone())).await;
    let elsewhere = site(place.inbox(), None).await;
    let others = async {
        until(async || runs.so_far() == 1).await;
        store.set(true);
        until(async || elsewhere.with_key("/", "k", "").await.status == 200).await;
        store.set(false);
        gate.notify_one();
    };
    let (first, ()) = tokio::join!(here.with_key("/", "k", ""), others);
    assert_eq!(
        (first.status.as_u16(), first.problem().as_str()),
        (409, "in-progress")
    );
    assert!(first.header("retry-after").is_some());
    for site in [&here, &elsewhere] {
        let again = site.with_key("/", "k", "").await;
        assert!(again.is_replay());
        assert_eq!(again.text(), "run 2");
    }
    assert_eq!(runs.so_far(), 2);
}

/// However many there are, those that are done need not wait behind all that begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_requests_at_once_some_begin_at_a_time() {
    let (runs, store) = (Runs::default(), Away::new(crate::places::in_memory().await));
    let handler = {
        let runs = runs.clone();
        async move || format!("run {}", runs.count())
    };
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer(store.clone()));
    let site = Site::serve(app).await;
    let keys: Vec<_> = (0..1000).map(|key| key.to_string()).collect();
    let answers = keys.iter().map(|key| site.with_key("/", key, ""));
    for answer in futures_util::future::join_all(answers).await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(runs.so_far(), 1000);
    let most = store.most_begins.load(std::sync::atomic::Ordering::SeqCst);
    assert!((2..=128).contains(&most), "{most}");
}
