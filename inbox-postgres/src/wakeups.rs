//! Wake-ups: one connection that listens for the notifications of all processes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::Subscription;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

const RECONNECT: Duration = Duration::from_millis(500);

/// The task that listens; ends with the last subscription.
#[derive(Debug)]
pub(crate) struct Listener {
    causes: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens first, so that no notification after the return is missed.
    pub(crate) async fn start(connection: PgConnectOptions, channel: String) -> sqlx::Result<Self> {
        // Of its own: a listener keeps its connection, and a small pool would have none left.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(connection);
        let listener = connect(&pool, &channel).await?;
        let causes = watch::Sender::new(0);
        let task = tokio::spawn(listen(pool, channel, listener, causes.clone()));
        Ok(Self { causes, task })
    }

    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn connect(pool: &PgPool, channel: &str) -> sqlx::Result<PgListener> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    Ok(listener)
}

async fn listen(
    pool: PgPool,
    channel: String,
    mut listener: PgListener,
    causes: watch::Sender<u64>,
) {
    loop {
        match listener.try_recv().await {
            // `None`: the connection was lost and made anew.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the connection for wake-ups failed; connecting anew");
                drop(listener);
                listener = loop {
                    sleep(RECONNECT).await;
                    if let Ok(listener) = connect(&pool, &channel).await {
                        break listener;
                    }
                };
            }
        }
        // Also after a new connection: what was notified meanwhile is lost.
        causes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Wakes on every cause in the inbox, whichever handler it is for.
pub(crate) struct Subscribed {
    causes: watch::Receiver<u64>,
    _listener: Arc<Listener>,
}

impl Subscribed {
    pub(crate) fn new(listener: Arc<Listener>) -> Self {
        Self {
            causes: listener.causes.subscribe(),
            _listener: listener,
        }
    }
}

#[async_trait]
impl Subscription for Subscribed {
    async fn woken(&mut self) {
        if self.causes.changed().await.is_err() {
            // The store is closed: nothing will ever become due here.
            std::future::pending::<()>().await;
        }
    }
}
