//! An end to every call of a store, also of one that has no time limit itself.

use std::{pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use crate::{
    Begun, Capabilities, ClaimRequest, Claims, Effect, Error, ErrorKind, Extended, HandlerName,
    Invalid, Lease, LeaseTerms, Message, Receipt, Result, Settled, Settlement, Store, Subscription,
};

/// How long one call may take by default: twice what stores allow their own operations.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// The least that one call may be given: with nothing at all, each that has to wait would be given
/// up and made again for ever.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);

/// Refuses a time limit that leaves no time.
pub(crate) fn check_limit(limit: Duration, what: &'static str) -> Result<(), Invalid> {
    if limit < SHORTEST {
        let expected = "at least a millisecond";
        return Err(Invalid::OutOfRange { what, expected });
    }
    Ok(())
}

/// Warns when a call has taken a sixth of its limit, at the latest after this.
const LATEST_WARNING: Duration = Duration::from_secs(60);

/// What a renewal may take at least, however short the lease.
const LEAST_FOR_RENEWAL: Duration = Duration::from_secs(5);

/// Waits for a call's answer up to `limit`. Then its future is dropped, and it has failed as
/// unavailable: it may have happened or not.
pub(crate) async fn within<T>(
    limit: Duration,
    operation: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let began = Instant::now();
    let mut call = pin!(call);
    let mut timer = pin!(sleep((limit / 6).min(LATEST_WARNING)));
    tokio::select! {
        biased;
        answer = &mut call => return answer,
        () = &mut timer => {}
    }
    let elapsed = began.elapsed();
    tracing::warn!(
        operation,
        ?elapsed,
        ?limit,
        "a call to the store takes long"
    );
    tokio::select! {
        biased;
        answer = &mut call => {
            tracing::info!(operation, elapsed = ?began.elapsed(), "the store has answered");
            answer
        }
        () = sleep(limit.saturating_sub(elapsed)) => {
            let context = format!("no answer within {limit:?}");
            Err(Error::new(ErrorKind::Unavailable, operation, context)
                .with_effect(Effect::Unknown))
        }
    }
}

/// A store of which every call ends.
#[derive(Clone)]
pub(crate) struct Patient {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) limit: Duration,
}

#[async_trait]
impl Store for Patient {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        within(self.limit, "receive", self.store.receive(messages)).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        within(self.limit, "claim", self.store.claim(request)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        within(self.limit, "settle", self.store.settle(settlements)).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        // There has to be time for another try before the leases run out.
        let limit = self.limit.min((length / 2).max(LEAST_FOR_RENEWAL));
        within(limit, "extend", self.store.extend(leases, length)).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        within(self.limit, "begin", self.store.begin(message, terms)).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        within(self.limit, "subscribe", self.store.subscribe(handlers)).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
