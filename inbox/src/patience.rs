//! An end to every call of a store, also of one that has no time limit itself.

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep};

use crate::{
    Begun, Capabilities, ClaimRequest, Claims, Effect, Error, ErrorKind, Extended, HandlerName,
    Invalid, Lease, LeaseTerms, Message, Receipt, Result, Settled, Settlement, Store, Subscription,
    processor::panic_text,
    telemetry::{self, OUTAGE},
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

/// A call is told of when it has taken a sixth of its limit, at the latest after this.
const LATEST_WARNING: Duration = Duration::from_secs(10);

/// An outage that lasts is told of again after this, and one that ended unseen is not taken for the
/// next one's beginning.
const REMINDER: Duration = Duration::from_secs(10 * 60);

/// What a renewal may take at least, however short the lease.
const LEAST_FOR_RENEWAL: Duration = Duration::from_secs(5);

/// A call's answer, for a loop that nothing waits for: a panic in a store is an error like others there, or
/// the loop would be gone and nothing would tell.
pub(crate) async fn answer_of<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let caught = AssertUnwindSafe(call).catch_unwind().await;
    caught.unwrap_or_else(|panic| Err(Error::new(ErrorKind::Other, panic_text(&*panic))))
}

/// How long calls of one store may take, and whether they take long at present. Clones share that.
#[derive(Clone)]
pub(crate) struct Patience {
    pub(crate) limit: Duration,
    silence: Arc<Mutex<Option<Silence>>>,
    /// When the store's one transaction was opened last, if it has one at a time.
    turned: Arc<Mutex<Option<Instant>>>,
}

/// A time in which a store leaves calls without an answer. It is logged where it begins and where it
/// ends, however many calls meet it.
struct Silence {
    began: Instant,
    told: Instant,
    calls: u64,
    operations: BTreeSet<&'static str>,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            silence: Arc::default(),
            turned: Arc::default(),
        }
    }

    /// The same store with another limit.
    fn at_most(&self, limit: Duration) -> Self {
        Self {
            limit,
            ..self.clone()
        }
    }

    /// Waits for a call's answer up to the limit. Then its future is dropped, and it has failed as
    /// unavailable: it may have happened or not.
    pub(crate) async fn within<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.limit;
        let began = Instant::now();
        let pause = (limit / 6).min(LATEST_WARNING);
        let mut is_told = false;
        let mut call = pin!(call);
        loop {
            let elapsed = began.elapsed();
            if elapsed >= limit {
                let context = format!("no answer within {limit:?}");
                let error = Error::new(ErrorKind::Unavailable, context)
                    .in_operation(operation)
                    .with_effect(Effect::Unknown);
                telemetry::store_error(operation, &error);
                return Err(error);
            }
            if elapsed >= pause && !is_told && !self.goes_on(pause) {
                self.takes_long(operation, began, elapsed);
                is_told = true;
            }
            tokio::select! {
                biased;
                answer = &mut call => return self.answered(operation, answer),
                () = sleep(pause.min(limit - elapsed)) => {}
            }
        }
    }

    /// Takes note that the store's one transaction was opened: calls wait for it in a queue, and the queue goes on.
    pub(crate) fn note_turn(&self) {
        *self.turned() = Some(Instant::now());
    }

    /// Whether there was such a turn within that time.
    fn goes_on(&self, within: Duration) -> bool {
        self.turned()
            .is_some_and(|turned| turned.elapsed() < within)
    }

    fn turned(&self) -> MutexGuard<'_, Option<Instant>> {
        self.turned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silence(&self) -> MutexGuard<'_, Option<Silence>> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn takes_long(&self, operation: &'static str, began: Instant, elapsed: Duration) {
        let limit = self.limit;
        let now = Instant::now();
        let mut silence = self.silence();
        let is_told = silence
            .as_ref()
            .is_some_and(|silence| now.duration_since(silence.told) < REMINDER);
        let silence = silence.get_or_insert_with(|| Silence {
            began,
            told: now,
            calls: 0,
            operations: BTreeSet::new(),
        });
        silence.calls += 1;
        silence.operations.insert(operation);
        if is_told {
            tracing::debug!(target: OUTAGE, operation, ?elapsed, ?limit, "another call takes long");
            return;
        }
        silence.told = now;
        let calls = silence.calls;
        tracing::warn!(target: OUTAGE,
            operation,
            calls,
            ?elapsed,
            ?limit,
            "a call to the store takes long"
        );
    }

    /// A success, or an error that is not about reaching the store, ends the silence that such a
    /// call has met. Another operation's does not: where writers wait, readers may not.
    fn answered<T>(&self, operation: &'static str, answer: Result<T>) -> Result<T> {
        if let Err(error) = &answer {
            telemetry::store_error(operation, error);
        }
        if answer.as_ref().is_err_and(Error::is_retryable) {
            return answer;
        }
        let mut silence = self.silence();
        let is_met = |silence: &mut Silence| silence.operations.contains(operation);
        if let Some(silence) = silence.take_if(is_met) {
            let (after, calls) = (silence.began.elapsed(), silence.calls);
            tracing::info!(target: OUTAGE, operation, ?after, calls, "the store answers again");
        }
        drop(silence);
        answer
    }
}

/// A store of which every call ends.
#[derive(Clone)]
pub(crate) struct Patient {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) patience: Patience,
}

impl Patient {
    /// Extends leases of which others are as short as `shortest` and wait for the answer.
    pub(crate) async fn extend_among(
        &self,
        leases: &[Lease],
        length: Duration,
        shortest: Duration,
    ) -> Result<Vec<Extended>> {
        // There has to be time for another try before the leases run out.
        let longest = (shortest / 2).max(LEAST_FOR_RENEWAL);
        let patience = self.patience.at_most(self.patience.limit.min(longest));
        let extending = self.store.extend(leases, length);
        patience.within("extend", extending).await
    }
}

#[async_trait]
impl Store for Patient {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.patience
            .within("receive", self.store.receive(messages))
            .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.patience
            .within("claim", self.store.claim(request))
            .await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.patience
            .within("settle", self.store.settle(settlements))
            .await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.extend_among(leases, length, length).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.patience
            .within("begin", self.store.begin(message, terms))
            .await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.patience
            .within("subscribe", self.store.subscribe(handlers))
            .await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
