//! A transaction that has committed, and whose answer is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{Router, http::StatusCode, routing::post};
use inbox::{
    Begun, Bytes, Capabilities, ClaimRequest, Claims, Effect, Error, ErrorKind, Extended,
    HandlerName, Key, Lease, LeaseTerms, Message, Receipt, Recorded, Result, Settled, Settlement,
    Store, Subscription, Transactional, sqlite::SqliteStore,
};
use inbox_http::{IdempotencyLayer, idempotency::Tx};
use tracing::Level;

use super::Runs;
use crate::{
    logged::Log,
    places::{Place as _, Sqlite},
    server::Site,
};

/// A store that loses the answer to the next commit, which takes place or does not.
#[derive(Clone)]
struct Losing {
    inner: SqliteStore,
    loses: Arc<AtomicBool>,
    commits: bool,
}

#[async_trait]
impl Store for Losing {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.inner.receive(messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.inner.claim(request).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.inner.settle(settlements).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.inner.extend(leases, length).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.inner.begin(message, terms).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.inner.subscribe(handlers).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

type Transaction = <SqliteStore as Transactional>::Transaction;

#[async_trait]
impl Transactional for Losing {
    type Transaction = Transaction;

    async fn open(&self) -> Result<Transaction> {
        self.inner.open().await
    }

    async fn commit(&self, transaction: Transaction) -> Result<()> {
        if !self.loses.swap(false, SeqCst) {
            return self.inner.commit(transaction).await;
        }
        match self.commits {
            true => self.inner.commit(transaction).await?,
            false => self.inner.roll_back(transaction).await?,
        }
        let error = Error::new(ErrorKind::Unavailable, "no answer, as planned");
        Err(error.in_operation("commit").with_effect(Effect::Unknown))
    }

    async fn roll_back(&self, transaction: Transaction) -> Result<()> {
        self.inner.roll_back(transaction).await
    }

    async fn receive_in(
        &self,
        transaction: &mut Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        self.inner.receive_in(transaction, messages).await
    }

    async fn record_in(
        &self,
        transaction: &mut Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        self.inner.record_in(transaction, message, result).await
    }

    async fn keep_result_in(
        &self,
        transaction: &mut Transaction,
        key: &Key,
        result: Bytes,
    ) -> Result<()> {
        self.inner.keep_result_in(transaction, key, result).await
    }

    async fn settle_in(
        &self,
        transaction: &mut Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        self.inner.settle_in(transaction, settlements).await
    }
}

/// A site whose requests write the number of their run, on a store that loses an answer.
async fn losing(place: &Sqlite, commits: bool) -> Site {
    let store = Losing {
        inner: place.store(),
        loses: Arc::new(AtomicBool::new(true)),
        commits,
    };
    let runs = Runs::default();
    let handler = move |mut tx: Tx<Losing>| async move {
        let number = runs.count();
        Sqlite::write(&mut tx, &format!("main/{number}"))
            .await
            .unwrap();
        (StatusCode::CREATED, format!("run {number}"))
    };
    let layer = IdempotencyLayer::in_transaction(store, "bookings").unwrap();
    Site::serve(Router::new().route("/", post(handler)).layer(layer)).await
}

/// Defect: it was told as a failed attempt, and its client to come again.
#[tokio::test]
async fn a_request_whose_transaction_has_committed_is_answered() {
    let (log, _guard) = Log::of(Level::INFO);
    let place = Sqlite::make().await.unwrap();
    let site = losing(&place, true).await;
    for _ in 0..2 {
        let answer = site.with_key("/", "k", "").await;
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "run 1"));
        assert!(answer.is_replay());
    }
    assert_eq!(place.effects().await, ["1"]);
    assert_eq!(log.lines(&["attempt failed"]), [""; 0]);
}

#[tokio::test]
async fn a_request_whose_transaction_has_not_committed_runs_again() {
    let (log, _guard) = Log::of(Level::INFO);
    let place = Sqlite::make().await.unwrap();
    let site = losing(&place, false).await;
    let answer = site.with_key("/", "k", "").await;
    assert_eq!(answer.problem(), "store-unavailable");
    assert_eq!(log.lines(&["attempt failed"]).len(), 1);
    let answer = site.with_key("/", "k", "").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (201, "run 2"));
    assert_eq!(place.effects().await, ["2"]);
}
