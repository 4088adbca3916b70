//! Transactions, and the renewals that share their connections.

use std::{sync::Arc, time::Duration};

use axum::{Router, http::StatusCode, routing::post};
use inbox::{
    Filter, Operate as _,
    postgres::{PostgresOptions, PostgresStore},
    sqlite::{SqliteOptions, SqliteStore},
};
use inbox_http::{
    IdempotencyLayer,
    idempotency::{InTransaction, Tx},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::Runs;
use crate::{
    places::{Place, Postgres, Sqlite},
    server::{Site, until},
};

/// Long enough for a busy machine to renew it in time.
const LEASE: Duration = Duration::from_secs(4);

/// Writes an effect for each run, and takes its time.
fn app<P: Place>(
    schema: String,
    layer: IdempotencyLayer<InTransaction<P::Store>>,
    runs: &Runs,
    takes: Duration,
) -> Router {
    let runs = runs.clone();
    let handler = move |mut tx: Tx<P::Store>| async move {
        let effect = format!("{schema}/{}", runs.count());
        P::write(&mut tx, &effect).await.unwrap();
        sleep(takes).await;
        StatusCode::CREATED
    };
    let layer = layer.lease(LEASE).unwrap();
    Router::new().route("/", post(handler)).layer(layer)
}

/// Many at a time, together longer than a lease; another process, with connections of its own, gets copies
/// meanwhile, which would run if a lease had run out.
async fn all_keep_their_leases<P: Place>(
    place: P,
    elsewhere: P::Store,
    most: Option<usize>,
    (requests, takes): (usize, Duration),
) {
    let runs = Runs::default();
    let layer = |store| {
        let layer = IdempotencyLayer::in_transaction(store, "bookings").unwrap();
        match most {
            Some(most) => layer.max_transactions(most),
            None => layer,
        }
    };
    let seen = elsewhere.clone();
    let here = Site::serve(app::<P>(place.schema(), layer(place.store()), &runs, takes)).await;
    let other = Site::serve(app::<P>(place.schema(), layer(elsewhere), &runs, takes)).await;
    let (here, other) = (Arc::new(here), Arc::new(other));
    let sent = Instant::now();
    let first = (0..requests).map(|key| {
        let here = here.clone();
        tokio::spawn(async move { here.with_key("/", &key.to_string(), "").await })
    });
    let first: Vec<_> = first.collect();
    // A copy that came first would run elsewhere.
    let all = Filter::default();
    until(async || {
        seen.count(&all)
            .await
            .is_ok_and(|begun| begun == requests as u64)
    })
    .await;
    let began = Instant::now();
    let copies = (0..requests).map(|key| {
        let (other, key) = (other.clone(), key.to_string());
        tokio::spawn(async move {
            // The first keys would be free again then, and the last ones a lease after they began.
            sleep_until(sent + LEASE).await;
            while began.elapsed() < 3 * LEASE {
                let answer = other.with_key("/", &key, "").await;
                let is_known = answer.is_replay() || answer.status != StatusCode::CREATED;
                assert!(is_known, "{key}: {answer:?}");
                sleep(LEASE / 5).await;
            }
        })
    });
    let copies: Vec<_> = copies.collect();
    for first in first {
        let answer = first.await.unwrap();
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
        assert!(!answer.is_replay());
    }
    for copy in copies {
        copy.await.unwrap();
    }
    assert_eq!(runs.so_far(), requests);
    assert_eq!(place.effects().await.len(), requests);
}

/// The pool has ten connections, as it has unless set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_while_transactions_take_all_connections_on_postgresql() {
    let Some(place) = Postgres::make().await else {
        return;
    };
    let options = PostgresOptions::from_url(place.url()).unwrap();
    let options = options.schema(place.schema_name());
    let elsewhere = PostgresStore::connect(options).await.unwrap();
    // Longer than a lease, and shorter than the other half may wait for its turn.
    let load = (16, Duration::from_secs(6));
    all_keep_their_leases(place, elsewhere, None, load).await;
}

/// Its key is free again when it is told to come later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waited_too_long_for_its_transaction_is_told_to_come_again() {
    let Some(place) = Postgres::make().await else {
        return;
    };
    let (runs, gate) = (Runs::default(), Arc::new(Notify::new()));
    let handler = {
        let (runs, gate) = (runs.clone(), gate.clone());
        async move |_: Tx<PostgresStore>| {
            let number = runs.count();
            if number == 1 {
                gate.notified().await;
            }
            format!("run {number}")
        }
    };
    let layer = IdempotencyLayer::in_transaction(place.store(), "bookings").unwrap();
    let app = Router::new()
        .route("/", post(handler))
        .layer(layer.max_transactions(1));
    let site = Site::serve(app).await;
    let meanwhile = async {
        until(async || runs.so_far() == 1).await;
        let late = site.with_key("/", "late", "").await;
        assert_eq!(late.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(late.problem(), "store-unavailable");
        assert!(late.header("retry-after").is_some());
        assert_eq!(runs.so_far(), 1);
        gate.notify_one();
    };
    let (first, ()) = tokio::join!(site.with_key("/", "first", ""), meanwhile);
    assert_eq!(first.text(), "run 1");
    let late = site.with_key("/", "late", "").await;
    assert_eq!((late.text(), late.is_replay()), ("run 2", false));
}

/// There is one writer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_while_transactions_wait_for_their_turn_on_sqlite() {
    let place = Sqlite::make().await.unwrap();
    let elsewhere = SqliteStore::connect(SqliteOptions::new(place.path()))
        .await
        .unwrap();
    // Longer than a lease in all.
    let load = (16, Duration::from_millis(375));
    all_keep_their_leases(place, elsewhere, Some(1), load).await;
}
