//! A commit that is given up while it is under way, as when a synchronous standby has gone: what is told of the message
//! is what becomes of it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Begun, Bytes, Capabilities, ClaimRequest, Claims, Effect, Error, ErrorKind, Extended, Failure,
    HandlerName, Key, Lease, LeaseTerms, Message, Processor, Receipt, Recorded, Result, Router,
    Settled, Settlement, State, Store, Subscription, Transactional, in_transaction_fn,
    postgres::PostgresStore,
};
use sqlx::{Postgres, Transaction};

use crate::{
    postgres_support::Place,
    processor_support::{Told, billing, message, until_idle},
};

/// A store whose first commit goes unanswered, and takes place when its message is settled once more.
#[derive(Clone)]
struct Lagging {
    inner: PostgresStore,
    lags: Arc<AtomicBool>,
    under_way: Arc<Mutex<Option<Transaction<'static, Postgres>>>>,
}

impl Lagging {
    /// Lets the commit that is under way take place, if there is one.
    fn go_on(&self) {
        let Some(transaction) = self.under_way.lock().unwrap().take() else {
            return;
        };
        let store = self.inner.clone();
        tokio::spawn(async move { store.commit(transaction).await.unwrap() });
    }
}

#[async_trait]
impl Store for Lagging {
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
        self.go_on();
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

#[async_trait]
impl Transactional for Lagging {
    type Transaction = Transaction<'static, Postgres>;

    async fn open(&self) -> Result<Self::Transaction> {
        self.inner.open().await
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<()> {
        if !self.lags.swap(false, SeqCst) {
            return self.inner.commit(transaction).await;
        }
        *self.under_way.lock().unwrap() = Some(transaction);
        let error = Error::new(ErrorKind::Unavailable, "no answer, as planned");
        Err(error.in_operation("commit").with_effect(Effect::Unknown))
    }

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        self.inner.roll_back(transaction).await
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        self.inner.receive_in(transaction, messages).await
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        self.inner.record_in(transaction, message, result).await
    }

    async fn keep_result_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &Key,
        result: Bytes,
    ) -> Result<()> {
        self.inner.keep_result_in(transaction, key, result).await
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        self.go_on();
        self.inner.settle_in(transaction, settlements).await
    }
}

/// Defect: a look at the message came before the commit, and told that it had not taken place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_still_under_way_is_waited_for() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let receipts = place.store.receive(&[message("1")]).await.unwrap();
    assert_eq!(receipts, [Receipt::Accepted]);
    let store = Lagging {
        inner: place.store.clone(),
        lags: Arc::new(AtomicBool::new(true)),
        under_way: Arc::default(),
    };
    let handler = in_transaction_fn(store.clone(), |_, _| async { Ok::<_, Failure>(()) });
    let told = Told::default();
    let builder = Processor::builder(Arc::new(store))
        .router(Router::new(billing()).on("order.placed", handler))
        .hooks(told.clone());
    let summary = until_idle(builder).await;
    let counted = (summary.processed, summary.retried, summary.abandoned);
    assert_eq!(counted, (1, 0, 0), "{summary:?}");
    assert!(told.all().is_empty(), "{:?}", told.all());
    let failures = told.failures.lock().unwrap().clone();
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(place.statistics().await.count(State::Processed), 1);
}
