//! Effects that commit together with the response.

use std::sync::{Arc, Mutex};

use axum::{Router, http::StatusCode, routing::post};
use inbox_http::{IdempotencyLayer, idempotency::Tx};

use super::Runs;
use crate::{
    more_places::{MongoDb, on_ferretdb},
    places::{Place, Postgres, on_store},
    server::{Answer, Site},
};

macro_rules! on_stores {
    ($($module:ident: $place:path),* $(,)?) => {
        $(on_store!(
            $module: $place,
            effects_and_response_commit_together,
            what_is_not_kept_is_rolled_back,
            of_many_copies_at_once_one_has_effects,
            a_transaction_that_is_kept_is_rolled_back,
            without_a_key_there_is_no_transaction,
        );)*
    };
}

on_stores!(
    sqlite: crate::places::Sqlite,
    postgres: crate::places::Postgres,
    mariadb: crate::more_places::MariaDb,
    mongodb: crate::more_places::MongoDb,
);

// It differs from MariaDB in locks and in what it says of them.
on_store!(
    mysql: crate::more_places::MySql,
    effects_and_response_commit_together,
    what_is_not_kept_is_rolled_back,
    of_many_copies_at_once_one_has_effects,
);

#[tokio::test]
async fn a_server_without_transactions_is_refused() {
    let Some(store) = on_ferretdb().await else {
        return;
    };
    let refused = IdempotencyLayer::in_transaction(store.clone(), "bookings");
    assert!(refused.is_err());
    // What needs none works there, too.
    let layer = IdempotencyLayer::new(Arc::new(store), "bookings").unwrap();
    let runs = Runs::default();
    let count = runs.clone();
    let handler = move || async move { format!("run {}", count.count()) };
    let app = Router::new().route("/", post(handler)).layer(layer);
    let site = Site::serve(app).await;
    for number in 0..3 {
        let answer = site.with_key("/", "k", "").await;
        assert_eq!((answer.text(), answer.is_replay()), ("run 1", number > 0));
    }
}

/// Writes an effect, and ends with the status that the body names.
fn app<P: Place>(place: &P, runs: &Runs) -> Router {
    let (runs, schema) = (runs.clone(), place.schema());
    let handler = move |mut tx: Tx<P::Store>, body: String| async move {
        let number = runs.count();
        P::write(&mut tx, &format!("{schema}/{number}"))
            .await
            .unwrap();
        assert_ne!(body, "panic", "as it was asked to");
        let status = body.parse().unwrap_or(StatusCode::CREATED);
        (status, format!("run {number}"))
    };
    let layer = IdempotencyLayer::in_transaction(place.store(), "bookings").unwrap();
    Router::new().route("/", post(handler)).layer(layer)
}

async fn effects_and_response_commit_together<P: Place>(place: P) {
    let runs = Runs::default();
    let site = Site::serve(app(&place, &runs)).await;
    for number in 0..3 {
        let answer = site.with_key("/", "k", "").await;
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "run 1"));
        assert_eq!(answer.is_replay(), number > 0);
    }
    assert_eq!(
        site.with_key("/", "k", "other").await.problem(),
        "key-reused"
    );
    // A refusal of the handler's is kept, and so is what it wrote.
    for _ in 0..2 {
        assert_eq!(site.with_key("/", "l", "402").await.text(), "run 2");
    }
    assert_eq!(place.effects().await, ["1", "2"]);
}

async fn what_is_not_kept_is_rolled_back<P: Place>(place: P) {
    let runs = Runs::default();
    let site = Site::serve(app(&place, &runs)).await;
    for (number, body) in [(1, "503"), (2, "503"), (3, "429")] {
        let key = body;
        let answer = site.with_key("/", key, body).await;
        assert_eq!(answer.text(), format!("run {number}"));
    }
    let panicked = site.with_key("/", "p", "panic").await;
    assert_eq!(panicked.problem(), "failed");
    assert!(place.effects().await.is_empty());
    assert_eq!(site.with_key("/", "k", "").await.text(), "run 5");
    assert_eq!(place.effects().await, ["5"]);
}

async fn of_many_copies_at_once_one_has_effects<P: Place>(place: P) {
    let runs = Runs::default();
    let sites = [
        Site::serve(app(&place, &runs)).await,
        Site::serve(app(&place, &runs)).await,
    ];
    let copies = (0..20).map(|number| sites[number % 2].with_key("/", "k", ""));
    let answers = futures_util::future::join_all(copies).await;
    let effects = place.effects().await;
    assert_eq!(effects.len(), 1);
    let text = format!("run {}", effects[0]);
    for answer in answers {
        match answer.status.as_u16() {
            201 => assert_eq!(answer.text(), text),
            _ => assert_eq!(answer.problem(), "in-progress"),
        }
    }
}

/// Books the same place with each key, and answers 409 where it is taken, or 201.
async fn taken<P: Place>(place: &P) -> Site {
    let effect = format!("{}/1", place.schema());
    let handler = move |mut tx: Tx<P::Store>| async move {
        match P::write(&mut tx, &effect).await {
            Ok(()) => StatusCode::CREATED,
            Err(_) => StatusCode::CONFLICT,
        }
    };
    let layer = IdempotencyLayer::in_transaction(place.store(), "bookings").unwrap();
    let app = Router::new().route("/", post(handler)).route_layer(layer);
    let site = Site::serve(app).await;
    assert_eq!(site.with_key("/", "first", "").await.status, 201);
    site
}

fn told(answer: &Answer) -> (u16, String) {
    (answer.status.as_u16(), answer.problem())
}

#[tokio::test]
async fn on_postgresql_a_request_whose_statement_failed_has_failed() {
    let Some(place) = Postgres::make().await else {
        return;
    };
    place.change("ALTER TABLE", "ADD UNIQUE (id)").await;
    let site = taken(&place).await;
    for _ in 0..2 {
        let answer = site.with_key("/", "second", "").await;
        assert_eq!(told(&answer), (500, "failed".to_owned()));
    }
    place.change("DELETE FROM", "").await;
    assert_eq!(site.with_key("/", "second", "").await.status, 201);
    assert_eq!(place.effects().await, ["1"]);
}

/// Its server may not tell this from a conflict with another transaction.
#[tokio::test]
async fn on_mongodb_a_request_whose_write_failed_is_not_kept() {
    let Some(place) = MongoDb::make().await else {
        return;
    };
    let site = taken(&place).await;
    for _ in 0..2 {
        let answer = site.with_key("/", "second", "").await;
        assert!(answer.status.is_server_error(), "{answer:?}");
    }
    place.clear().await;
    assert_eq!(site.with_key("/", "second", "").await.status, 201);
    assert_eq!(place.effects().await, ["1"]);
}

/// As in a task that outlives the request.
async fn a_transaction_that_is_kept_is_rolled_back<P: Place>(place: P) {
    type Kept<P> = Arc<Mutex<Option<Tx<<P as Place>::Store>>>>;
    let kept: Kept<P> = Arc::default();
    let schema = place.schema();
    let handler = {
        let kept = kept.clone();
        move |mut tx: Tx<P::Store>| async move {
            P::write(&mut tx, &format!("{schema}/1")).await.unwrap();
            *kept.lock().unwrap() = Some(tx);
        }
    };
    let layer = IdempotencyLayer::in_transaction(place.store(), "bookings").unwrap();
    let app = Router::new().route("/", post(handler)).layer(layer);
    let site = Site::serve(app).await;
    // On SQLite the attempt cannot even be settled before the transaction ends.
    let answer = async { site.with_key("/", "k", "").await };
    let ends = async {
        crate::server::until(async || kept.lock().unwrap().is_some()).await;
        // The handler has put it there, and has to end before it goes.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        drop(kept.lock().unwrap().take());
    };
    let (answer, ()) = tokio::join!(answer, ends);
    assert_eq!(told(&answer), (500, "failed".to_owned()));
    assert!(place.effects().await.is_empty());
}

async fn without_a_key_there_is_no_transaction<P: Place>(place: P) {
    let handler = |_: Tx<P::Store>| async { StatusCode::OK };
    let layer = IdempotencyLayer::in_transaction(place.store(), "bookings").unwrap();
    let optional = layer.optional([http::Method::POST]);
    let app: Router = Router::new()
        .route("/", post(handler))
        .layer(optional)
        .route("/bare", post(handler));
    let site = Site::serve(app).await;
    assert_eq!(site.post("/", &[], "").await.status, 500);
    assert_eq!(site.with_key("/bare", "k", "").await.status, 500);
    assert_eq!(site.with_key("/", "k", "").await.status, 200);
}
