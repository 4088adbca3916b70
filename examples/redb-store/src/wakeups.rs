//! Wake-ups within the process.
//!
//! One counter for the whole inbox: a subscription wakes for other handlers too, which the
//! contract allows. It saves keeping track of who waits for what.

use async_trait::async_trait;
use inbox_api::Subscription;
use tokio::sync::watch;

/// Counts the occasions on which something became claimable.
pub(crate) struct Wakeups(watch::Sender<u64>);

impl Wakeups {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Called after the commit, never before: who is woken must find what woke it.
    pub(crate) fn wake(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// A watch keeps its newest value, so what happens between two waits is not missed.
    pub(crate) fn subscribe(&self) -> Box<dyn Subscription> {
        Box::new(Woken(self.0.subscribe()))
    }
}

struct Woken(watch::Receiver<u64>);

#[async_trait]
impl Subscription for Woken {
    async fn woken(&mut self) {
        if self.0.changed().await.is_err() {
            // The store is gone, so nothing will become due any more.
            std::future::pending::<()>().await;
        }
    }
}
