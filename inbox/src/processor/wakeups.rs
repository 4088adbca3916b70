//! The store's wake-up signal, kept alive in addition to polling.

use std::sync::Arc;

use backon::Retryable as _;
use tokio::sync::Notify;

use super::Config;
use crate::{Store as _, Subscription, Wakeups, backoff::through_an_outage};

/// Passes the store's signals on to `woken`. Never returns.
pub(super) async fn watch(config: Arc<Config>, woken: Arc<Notify>) {
    if let Some(mut subscription) = subscribe(&config).await {
        loop {
            subscription.woken().await;
            woken.notify_one();
        }
    }
    std::future::pending::<()>().await;
}

/// Subscribes, however long that takes; polling goes on meanwhile. `None` when the store has no
/// signals.
async fn subscribe(config: &Config) -> Option<Box<dyn Subscription>> {
    if config.store.capabilities().wakeups == Wakeups::None {
        return None;
    }
    let handlers: Vec<_> = config
        .served
        .iter()
        .map(|served| served.name.clone())
        .collect();
    let mut is_first = true;
    let subscription = (|| config.store.subscribe(&handlers))
        .retry(through_an_outage())
        .when(crate::Error::is_retryable)
        .notify(|error, _| {
            if std::mem::take(&mut is_first) {
                tracing::warn!(%error, "no wake-ups yet; polling meanwhile");
            }
        })
        .await;
    match subscription {
        Ok(subscription) => Some(subscription),
        Err(error) => {
            tracing::warn!(%error, "no wake-ups; polling only");
            None
        }
    }
}
