//! SQLite, with transactions that go wrong on demand.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Begun, Bytes, Capabilities, ClaimRequest, Claims, Clock, Context, Effect, Error, ErrorKind,
    Extended, HandlerName, Key, Lease, LeaseTerms, Message, Receipt, Recorded, Result, Settled,
    Settlement, Store, StoreExt as _, Subscription, Transactional, WorkerName,
};
use inbox_sqlite::SqliteStore;
use sqlx::{Sqlite, Transaction};
use tokio::sync::Notify;

use super::LIMIT;
use crate::processor_support::billing;

/// SQLite, with commits and openings that go wrong on demand.
#[derive(Clone)]
pub(super) struct Fickle {
    pub(super) inner: SqliteStore,
    pub(super) clock: Clock,
    /// Another worker takes the message over before the next transaction is opened.
    pub(super) steal: Arc<AtomicBool>,
    /// So many openings fail.
    pub(super) outage: Arc<AtomicUsize>,
    /// The next call of this name never answers.
    pub(super) hangs: Arc<Mutex<Option<&'static str>>>,
    /// Told of a commit that has taken place and never answers.
    pub(super) committed: Arc<Notify>,
    /// Told of each claim that has found something.
    pub(super) claimed: Arc<Notify>,
    /// The transactions that were opened.
    pub(super) opened: Arc<AtomicUsize>,
}

impl Fickle {
    async fn hang_in(&self, operation: &'static str) {
        let is_next = self
            .hangs
            .lock()
            .unwrap()
            .take_if(|next| *next == operation);
        if is_next.is_some() {
            std::future::pending::<()>().await;
        }
    }
}

pub(super) struct Fragile {
    pub(super) inner: Transaction<'static, Sqlite>,
    pub(super) commit: Commit,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Commit {
    Works,
    Fails,
    /// It does not take place, and nobody is told.
    Vanishes,
    LosesReply,
    /// It is answered after the next claim that finds something.
    AnswersLate,
    Hangs,
    /// It takes place when the handler's [`LIMIT`] is over.
    Outlasts,
    Conflicts,
}

impl Fragile {
    /// The effect that has to happen once.
    pub(super) async fn write(
        &mut self,
        context: &Context,
    ) -> std::result::Result<(), sqlx::Error> {
        sqlx::query("INSERT INTO effects (id) VALUES (?)")
            .bind(context.message().id().as_str())
            .execute(&mut *self.inner)
            .await?;
        Ok(())
    }
}

#[async_trait]
impl Store for Fickle {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.exclusive_transactions = true;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.inner.receive(messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let claims = self.inner.claim(request).await?;
        if !claims.leased.is_empty() {
            self.claimed.notify_waiters();
        }
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.hang_in("settle").await;
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
impl Transactional for Fickle {
    type Transaction = Fragile;

    async fn open(&self) -> Result<Fragile> {
        self.hang_in("open").await;
        if self.steal.swap(false, SeqCst) {
            self.clock.advance(Duration::from_secs(3600));
            let thief = WorkerName::new("thief").unwrap();
            let length = Duration::from_secs(24 * 60 * 60);
            let claims = self.inner.claim_for(&billing(), 1, length, &thief).await?;
            assert_eq!(claims.leased.len(), 1);
        }
        if self
            .outage
            .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
            .is_ok()
        {
            return Err(Error::new(ErrorKind::Unavailable, "planned").in_operation("open"));
        }
        let inner = self.inner.open().await?;
        self.opened.fetch_add(1, SeqCst);
        Ok(Fragile {
            inner,
            commit: Commit::Works,
        })
    }

    async fn commit(&self, transaction: Fragile) -> Result<()> {
        self.hang_in("commit").await;
        let error = || Error::new(ErrorKind::Unavailable, "planned").in_operation("commit");
        match transaction.commit {
            Commit::Works => self.inner.commit(transaction.inner).await,
            Commit::Fails => Err(error()),
            Commit::Conflicts => {
                Err(Error::new(ErrorKind::Conflict, "planned").in_operation("commit"))
            }
            Commit::Vanishes => {
                self.inner.roll_back(transaction.inner).await?;
                Err(error().with_effect(Effect::Unknown))
            }
            Commit::LosesReply => {
                self.inner.commit(transaction.inner).await?;
                Err(error().with_effect(Effect::Unknown))
            }
            Commit::AnswersLate => {
                let mut claimed = pin!(self.claimed.notified());
                claimed.as_mut().enable();
                self.inner.commit(transaction.inner).await?;
                claimed.await;
                // What was claimed reaches the processor before this answer.
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok(())
            }
            Commit::Hangs => {
                self.inner.commit(transaction.inner).await?;
                self.committed.notify_one();
                std::future::pending().await
            }
            Commit::Outlasts => {
                // The limit began before this does.
                tokio::time::pause();
                tokio::time::sleep(LIMIT).await;
                tokio::time::resume();
                self.inner.commit(transaction.inner).await
            }
        }
    }

    async fn roll_back(&self, transaction: Fragile) -> Result<()> {
        self.hang_in("roll back").await;
        self.inner.roll_back(transaction.inner).await
    }

    async fn receive_in(&self, to: &mut Fragile, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.inner.receive_in(&mut to.inner, messages).await
    }

    async fn record_in(
        &self,
        to: &mut Fragile,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        self.inner.record_in(&mut to.inner, message, result).await
    }

    async fn keep_result_in(&self, to: &mut Fragile, key: &Key, result: Bytes) -> Result<()> {
        self.inner.keep_result_in(&mut to.inner, key, result).await
    }

    async fn settle_in(&self, to: &mut Fragile, all: &[Settlement]) -> Result<Vec<Settled>> {
        self.hang_in("settle").await;
        self.inner.settle_in(&mut to.inner, all).await
    }
}
