//! Wake-ups: a signal within the process. Neither server has notifications, so that the workers
//! of other processes poll.

use async_trait::async_trait;
use inbox_api::Subscription;
use tokio::sync::watch;

/// Counts causes to look for work. Clones share the count.
#[derive(Clone, Debug)]
pub(crate) struct Signal(watch::Sender<u64>);

impl Signal {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    pub(crate) fn raise(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(crate) fn subscribe(&self) -> Subscribed {
        Subscribed(self.0.subscribe())
    }
}

/// Wakes on every cause in the inbox, whichever handler it is for.
pub(crate) struct Subscribed(watch::Receiver<u64>);

#[async_trait]
impl Subscription for Subscribed {
    async fn woken(&mut self) {
        if self.0.changed().await.is_err() {
            // The store is gone: nothing will ever become due here.
            std::future::pending::<()>().await;
        }
    }
}
