//! What commits together with a response: nothing, or a transaction of the store.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::Extensions;
use inbox::{Effect, Error, ErrorKind, Lease, Outcome, Result, Settled, Settlement, Transactional};
use tokio::{
    sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// What commits together with a response. Implemented by [`Untied`] and [`InTransaction`], and by
/// nothing else.
pub trait Unit: Clone + Send + Sync + sealed::Unit + 'static {}

impl<U: sealed::Unit + Clone + Send + Sync + 'static> Unit for U {}

pub(super) mod sealed {
    use super::{Bytes, Extensions, Lease, Result};

    pub trait Unit {
        /// Whether [`complete`](Self::complete) settles the lease.
        const SETTLES: bool;

        type Opened: Send;

        /// Begins, and lends to the request what the handler is to use.
        fn open(
            &self,
            lease: &Lease,
            request: &mut Extensions,
        ) -> impl Future<Output = Result<Self::Opened>> + Send;

        /// Makes the work durable together with `response`, or, where the store has no room for that,
        /// with `mark`.
        fn complete(
            &self,
            opened: Self::Opened,
            lease: &Lease,
            response: Bytes,
            mark: impl FnOnce() -> Bytes + Send,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Undoes the work.
        fn abandon(&self, opened: Self::Opened) -> impl Future<Output = ()> + Send;
    }
}

/// Effects are anywhere, and made before the response is kept.
#[derive(Clone, Copy, Debug)]
pub struct Untied;

impl sealed::Unit for Untied {
    const SETTLES: bool = false;

    type Opened = ();

    async fn open(&self, _: &Lease, _: &mut Extensions) -> Result<()> {
        Ok(())
    }

    async fn complete(
        &self,
        (): (),
        _: &Lease,
        _: Bytes,
        _: impl FnOnce() -> Bytes + Send,
    ) -> Result<()> {
        Ok(())
    }

    async fn abandon(&self, (): ()) {}
}

/// Effects are writes in a transaction of the store.
#[derive(Clone)]
pub struct InTransaction<S> {
    store: S,
    /// One for each transaction that may be open.
    permits: Arc<Semaphore>,
}

/// How many transactions are open at one time unless set: fewer than the connections that stores on servers
/// open by themselves, which are ten.
const TRANSACTIONS: usize = 8;

/// How long a request waits until others have ended their transactions.
const TURN: Duration = Duration::from_secs(10);

impl<S> InTransaction<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            permits: Arc::new(Semaphore::new(TRANSACTIONS)),
        }
    }

    pub(super) fn set_most(&mut self, transactions: usize) {
        let most = transactions.clamp(1, Semaphore::MAX_PERMITS);
        self.permits = Arc::new(Semaphore::new(most));
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = timeout(TURN, self.permits.clone().acquire_owned()).await;
        permit
            .ok()
            .and_then(std::result::Result::ok)
            .ok_or_else(|| {
                let context = "other requests have not ended their transactions in time";
                Error::new(ErrorKind::Unavailable, context).with_effect(Effect::None)
            })
    }
}

impl<S> fmt::Debug for InTransaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InTransaction")
    }
}

type Shared<S> = Arc<Mutex<<S as Transactional>::Transaction>>;

/// A transaction that was lent to a request.
pub struct Opened<S: Transactional> {
    shared: Shared<S>,
    _permit: OwnedSemaphorePermit,
}

impl<S: Transactional> fmt::Debug for Opened<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opened")
    }
}

impl<S> sealed::Unit for InTransaction<S>
where
    S: Transactional + Clone,
    S::Transaction: 'static,
{
    const SETTLES: bool = true;

    type Opened = Opened<S>;

    async fn open(&self, lease: &Lease, request: &mut Extensions) -> Result<Opened<S>> {
        let permit = self.permit().await?;
        let transaction = self.store.open_for(std::slice::from_ref(lease)).await?;
        let shared = Arc::new(Mutex::new(transaction));
        request.insert(Lent::<S>(shared.clone()));
        Ok(Opened {
            shared,
            _permit: permit,
        })
    }

    async fn complete(
        &self,
        opened: Opened<S>,
        lease: &Lease,
        response: Bytes,
        mark: impl FnOnce() -> Bytes + Send,
    ) -> Result<()> {
        let mut transaction = take_back(opened.shared)?;
        let mut settled = self.settle(&mut transaction, lease, response).await;
        if let Ok(Settled::Refused(_)) = settled {
            settled = self.settle(&mut transaction, lease, mark()).await;
        }
        let failure = match settled {
            Ok(Settled::Done) => return self.store.commit(transaction).await,
            // Another worker does the same work, or has done it.
            Ok(Settled::LeaseLost) => Error::new(ErrorKind::Conflict, "the lease was lost"),
            Ok(Settled::Refused(invalid)) => invalid.into(),
            Err(error) => error,
        };
        self.roll_back(transaction).await;
        Err(failure)
    }

    async fn abandon(&self, opened: Opened<S>) {
        // One that the handler has kept is rolled back where it ends.
        if let Ok(transaction) = take_back(opened.shared) {
            self.roll_back(transaction).await;
        }
    }
}

impl<S: Transactional> InTransaction<S> {
    async fn settle(
        &self,
        transaction: &mut S::Transaction,
        lease: &Lease,
        result: Bytes,
    ) -> Result<Settled> {
        let settlement = Settlement {
            lease: lease.clone(),
            outcome: Outcome::Processed {
                result: Some(result),
            },
        };
        let settled = self.store.settle_in(transaction, &[settlement]).await?;
        settled.into_iter().next().ok_or_else(|| {
            Error::new(ErrorKind::Other, "the store gave no answer").in_operation("settle_in")
        })
    }

    async fn roll_back(&self, transaction: S::Transaction) {
        if let Err(error) = self.store.roll_back(transaction).await {
            tracing::debug!(%error, "transaction not rolled back; its end undoes it");
        }
    }
}

/// Fails when the handler has kept the transaction: in a task, or in its response.
fn take_back<T>(shared: Arc<Mutex<T>>) -> Result<T> {
    let transaction = Arc::into_inner(shared).map(Mutex::into_inner);
    transaction.ok_or_else(|| {
        let context = "the handler has kept its transaction, which is rolled back";
        Error::new(ErrorKind::Other, context).with_effect(Effect::None)
    })
}

struct Lent<S: Transactional>(Shared<S>);

impl<S: Transactional> Clone for Lent<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The transaction of a request behind [`IdempotencyLayer::in_transaction`], an axum extractor.
///
/// Dereferences to the store's own transaction type. It goes back when it is dropped, at the end of
/// the handler as a rule; a handler that keeps it for longer has failed.
///
/// [`IdempotencyLayer::in_transaction`]: crate::IdempotencyLayer::in_transaction
pub struct Tx<S: Transactional>
where
    S::Transaction: 'static,
{
    guard: OwnedMutexGuard<S::Transaction>,
    store: PhantomData<fn() -> S>,
}

impl<S: Transactional> Tx<S>
where
    S::Transaction: 'static,
{
    /// Takes the transaction out of a request's extensions; `None` when there is none, since it was
    /// taken before, or the request has no key and passed the layer by.
    pub fn take(request: &mut Extensions) -> Option<Self> {
        let Lent(shared) = request.remove::<Lent<S>>()?;
        let guard = shared.try_lock_owned().ok()?;
        let store = PhantomData;
        Some(Self { guard, store })
    }
}

impl<S: Transactional> Deref for Tx<S> {
    type Target = S::Transaction;

    fn deref(&self) -> &S::Transaction {
        &self.guard
    }
}

impl<S: Transactional> DerefMut for Tx<S> {
    fn deref_mut(&mut self) -> &mut S::Transaction {
        &mut self.guard
    }
}

impl<S: Transactional> fmt::Debug for Tx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

/// Refused with 500 where the layer has opened none: it is not mounted on this route, or the
/// request has no key.
#[cfg(feature = "axum")]
impl<S, State> axum::extract::FromRequestParts<State> for Tx<S>
where
    S: Transactional,
    S::Transaction: 'static,
    State: Send + Sync,
{
    type Rejection = http::StatusCode;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &State,
    ) -> Result<Self, Self::Rejection> {
        Self::take(&mut parts.extensions).ok_or_else(|| {
            tracing::error!("no transaction: the layer is not there, or the request has no key");
            http::StatusCode::INTERNAL_SERVER_ERROR
        })
    }
}
