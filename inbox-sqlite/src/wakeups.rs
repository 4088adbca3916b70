//! Wake-ups: a signal within the process, and a look at SQLite's own change counter for the
//! commits of other processes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::Subscription;
use sqlx::{ConnectOptions as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

const INTERVAL: Duration = Duration::from_millis(25);
const RECONNECT: Duration = Duration::from_secs(1);

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
}

/// The task that looks for other processes' commits; ends with the last subscription.
#[derive(Debug)]
pub(crate) struct Watcher(JoinHandle<()>);

impl Watcher {
    /// Connects first, so that no commit after the return goes unseen.
    pub(crate) async fn start(options: SqliteConnectOptions, signal: Signal) -> sqlx::Result<Self> {
        let mut connection = options.connect().await?;
        let seen = data_version(&mut connection).await?;
        let task = tokio::spawn(watch_file(options, signal, connection, seen));
        Ok(Self(task))
    }

    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Changes whenever another connection has committed. Reads a few bytes of shared memory.
async fn data_version(connection: &mut SqliteConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar("PRAGMA data_version")
        .fetch_one(connection)
        .await
}

async fn watch_file(
    options: SqliteConnectOptions,
    signal: Signal,
    mut connection: SqliteConnection,
    mut seen: i64,
) {
    loop {
        sleep(INTERVAL).await;
        match data_version(&mut connection).await {
            Ok(now) if now == seen => {}
            Ok(now) => {
                seen = now;
                signal.raise();
            }
            Err(error) => {
                tracing::warn!(%error, "the connection for wake-ups failed; connecting anew");
                (connection, seen) = reconnect(&options).await;
                signal.raise();
            }
        }
    }
}

async fn reconnect(options: &SqliteConnectOptions) -> (SqliteConnection, i64) {
    loop {
        sleep(RECONNECT).await;
        if let Ok(mut connection) = options.connect().await
            && let Ok(seen) = data_version(&mut connection).await
        {
            return (connection, seen);
        }
    }
}

/// Wakes on every cause in the file, whichever handler it is for.
pub(crate) struct Subscribed {
    causes: watch::Receiver<u64>,
    _watcher: Arc<Watcher>,
}

impl Subscribed {
    pub(crate) fn new(signal: &Signal, watcher: Arc<Watcher>) -> Self {
        Self {
            causes: signal.0.subscribe(),
            _watcher: watcher,
        }
    }
}

#[async_trait]
impl Subscription for Subscribed {
    async fn woken(&mut self) {
        if self.causes.changed().await.is_err() {
            // The store is gone: nothing will ever become due here.
            std::future::pending::<()>().await;
        }
    }
}
