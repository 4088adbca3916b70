//! Wake-ups that come too early, get lost, or do not come.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{
    ClaimRequest, Claims, Edit, Filter, HandlerName, Intervention, Key, Message, Operate as _,
    Outcome, Progress, PurgeRequest, Receipt, Result, Settled, Settlement, Slice, Store as _,
    Subscription,
};
use inbox_memory::MemoryStore;
use tokio::sync::Notify;

use super::Defect;

/// Wakes every subscription after every change, but for what `deaf` names.
#[derive(Default)]
pub(crate) struct Wakes {
    deaf: &'static str,
    /// After this change no signal comes, but before it.
    early: &'static str,
    /// A signal that reaches a wait is gone with it.
    lossy: bool,
    listeners: Mutex<Vec<Arc<Listener>>>,
}

pub(crate) fn deaf_to(cause: &'static str) -> Wakes {
    Wakes {
        deaf: cause,
        ..Wakes::default()
    }
}

pub(crate) fn early_at(cause: &'static str) -> Wakes {
    Wakes {
        early: cause,
        ..Wakes::default()
    }
}

pub(crate) fn lossy() -> Wakes {
    Wakes {
        lossy: true,
        ..Wakes::default()
    }
}

#[derive(Default)]
struct Listener {
    notify: Notify,
    waiting: AtomicUsize,
    raised: AtomicBool,
}

struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Lossy(Arc<Listener>);

#[async_trait]
impl Subscription for Lossy {
    async fn woken(&mut self) {
        if self.0.raised.swap(false, Ordering::SeqCst) {
            return;
        }
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.0.waiting);
        self.0.notify.notified().await;
    }
}

struct Sound(Arc<Listener>);

#[async_trait]
impl Subscription for Sound {
    async fn woken(&mut self) {
        self.0.notify.notified().await;
    }
}

impl Wakes {
    fn raise(&self) {
        for listener in &*self.listeners.lock().unwrap() {
            if !self.lossy {
                listener.notify.notify_one();
            } else if listener.waiting.load(Ordering::SeqCst) > 0 {
                listener.notify.notify_waiters();
            } else {
                listener.raised.store(true, Ordering::SeqCst);
            }
        }
    }

    async fn around<T>(&self, cause: &str, change: impl Future<Output = T>) -> T {
        if self.early == cause {
            self.raise();
            tokio::time::sleep(Duration::from_millis(5)).await;
            return change.await;
        }
        let answer = change.await;
        if self.deaf != cause {
            self.raise();
        }
        answer
    }
}

fn cause(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Processed { .. } => "processed",
        Outcome::Retry { .. } => "retry",
        Outcome::Dead { .. } => "dead",
        Outcome::Release => "release",
        Outcome::Defer { .. } => "defer",
    }
}

#[async_trait]
impl Defect for Wakes {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.around("receive", inner.receive(messages)).await
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let cause = batch.first().map_or("", |first| cause(&first.outcome));
        self.around(cause, inner.settle(batch)).await
    }

    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        self.around("replay", inner.replay(key, edit)).await
    }

    async fn discard(&self, inner: &MemoryStore, key: &Key) -> Result<Intervention> {
        self.around("discard", inner.discard(key)).await
    }

    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let change = inner.replay_slice(filter, slice);
        self.around("replay_slice", change).await
    }

    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let change = inner.discard_slice(filter, slice);
        self.around("discard_slice", change).await
    }

    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        self.around("purge", inner.purge(expired)).await
    }

    async fn purge_archived(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        let change = inner.purge_archived(expired, keys);
        self.around("purge_archived", change).await
    }

    async fn subscribe(&self, _: &MemoryStore, _: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        let listener = Arc::new(Listener::default());
        self.listeners.lock().unwrap().push(Arc::clone(&listener));
        Ok(if self.lossy {
            Box::new(Lossy(listener))
        } else {
            Box::new(Sound(listener))
        })
    }
}

/// Waits a little for more signals, and forgets the one that it has when it is dropped meanwhile.
pub(crate) struct Gathers;

struct Gathering(Box<dyn Subscription>);

#[async_trait]
impl Subscription for Gathering {
    async fn woken(&mut self) {
        self.0.woken().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[async_trait]
impl Defect for Gathers {
    async fn subscribe(
        &self,
        inner: &MemoryStore,
        handlers: &[HandlerName],
    ) -> Result<Box<dyn Subscription>> {
        Ok(Box::new(Gathering(inner.subscribe(handlers).await?)))
    }
}

/// Hears of some of its handlers only.
pub(crate) struct HearsOf(pub(crate) fn(&[HandlerName]) -> &[HandlerName]);

pub(crate) fn the_first(handlers: &[HandlerName]) -> &[HandlerName] {
    &handlers[..1]
}

pub(crate) fn the_last(handlers: &[HandlerName]) -> &[HandlerName] {
    &handlers[handlers.len() - 1..]
}

#[async_trait]
impl Defect for HearsOf {
    async fn subscribe(
        &self,
        inner: &MemoryStore,
        handlers: &[HandlerName],
    ) -> Result<Box<dyn Subscription>> {
        inner.subscribe((self.0)(handlers)).await
    }
}

/// One member of a batch decides whether there is a signal: the answers of others are not looked at.
#[derive(Default)]
pub(crate) struct LooksAt {
    first: bool,
    wakes: Wakes,
}

pub(crate) fn looks_at_the_first() -> LooksAt {
    LooksAt {
        first: true,
        ..LooksAt::default()
    }
}

fn member<T>(all: &[T], first: bool) -> Option<&T> {
    if first { all.first() } else { all.last() }
}

#[async_trait]
impl Defect for LooksAt {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let receipts = inner.receive(messages).await?;
        let due = |message: &Message| message.due() == inbox_api::Due::Now;
        if member(&receipts, self.first) == Some(&Receipt::Accepted)
            && member(messages, self.first).is_some_and(due)
        {
            self.wakes.raise();
        }
        Ok(receipts)
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let settled = inner.settle(batch).await?;
        let returned = |one: &Settlement| !matches!(one.outcome, Outcome::Processed { .. });
        if member(batch, self.first).is_some_and(returned) {
            self.wakes.raise();
        }
        Ok(settled)
    }

    async fn subscribe(
        &self,
        inner: &MemoryStore,
        handlers: &[HandlerName],
    ) -> Result<Box<dyn Subscription>> {
        self.wakes.subscribe(inner, handlers).await
    }
}

/// Says nothing when it sets a corrupt row aside: other signals come as they should.
pub(crate) struct SilentAboutCorruptRows(Wakes);

pub(crate) fn silent_about_corrupt_rows() -> SilentAboutCorruptRows {
    SilentAboutCorruptRows(Wakes::default())
}

#[async_trait]
impl Defect for SilentAboutCorruptRows {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        inner.claim(request).await
    }

    async fn subscribe(
        &self,
        inner: &MemoryStore,
        handlers: &[HandlerName],
    ) -> Result<Box<dyn Subscription>> {
        self.0.subscribe(inner, handlers).await
    }
}

/// Subscriptions end with the connection that they had.
pub(crate) struct DeafAfterAnOutage;

impl Defect for DeafAfterAnOutage {
    fn is_deaf_after_an_outage(&self) -> bool {
        true
    }
}

/// Hears nothing more once the store has been away.
pub(crate) struct Deaf {
    inner: Box<dyn Subscription>,
    outages: Arc<AtomicUsize>,
    at_first: usize,
}

impl Deaf {
    pub(crate) fn new(inner: Box<dyn Subscription>, outages: Arc<AtomicUsize>) -> Self {
        let at_first = outages.load(Ordering::SeqCst);
        Self {
            inner,
            outages,
            at_first,
        }
    }
}

#[async_trait]
impl Subscription for Deaf {
    async fn woken(&mut self) {
        self.inner.woken().await;
        if self.outages.load(Ordering::SeqCst) > self.at_first {
            std::future::pending::<()>().await;
        }
    }
}
