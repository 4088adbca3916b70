//! Wake-ups: a signal within the process, and for the commits of other processes a look at SQLite's
//! own change counter and, when it has changed, for messages that are due.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{Clock, Subscription};
use sqlx::{
    ConnectOptions as _, Connection as _, SqlStr, SqliteConnection, sqlite::SqliteConnectOptions,
};
use tokio::{sync::watch, task::JoinSet, time::sleep};

use crate::file_identity::FileIdentity;

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

/// Ends the task that looks for other processes' commits, by a word or when it is dropped with the
/// last subscription.
#[derive(Debug)]
pub(crate) struct Watcher(watch::Sender<()>);

/// A store's tasks that look for other processes' commits: one while there are subscriptions, and
/// those that are about to end.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    current: Weak<Watcher>,
    tasks: JoinSet<()>,
}

impl Watchers {
    /// The one that runs, or a new one. Connects first, so that no commit after the return goes
    /// unseen.
    pub(crate) async fn current(
        &mut self,
        look: impl FnOnce() -> Look,
        signal: &Signal,
    ) -> sqlx::Result<Arc<Watcher>> {
        while self.tasks.try_join_next().is_some() {}
        if let Some(watcher) = self.current.upgrade() {
            return Ok(watcher);
        }
        let look = look();
        let mut connection = look.options.connect().await?;
        let seen = data_version(&mut connection).await?;
        let (word, stop) = watch::channel(());
        self.tasks
            .spawn(watch_file(look, signal.clone(), connection, seen, stop));
        let watcher = Arc::new(Watcher(word));
        self.current = Arc::downgrade(&watcher);
        Ok(watcher)
    }

    /// Ends all, and waits until their connections are closed. One that closed later would take the
    /// log of a new file of the same name for its own, and delete it.
    pub(crate) async fn stop(&mut self) {
        if let Some(watcher) = self.current.upgrade() {
            watcher.0.send_replace(());
        }
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Changes whenever another connection has committed. Reads a few bytes of shared memory.
async fn data_version(connection: &mut SqliteConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar("PRAGMA data_version")
        .fetch_one(connection)
        .await
}

/// How a watcher looks.
pub(crate) struct Look {
    pub(crate) options: SqliteConnectOptions,
    pub(crate) due: SqlStr,
    pub(crate) clock: Clock,
    pub(crate) identity: Arc<FileIdentity>,
}

impl Look {
    /// Whether there may be work. Most commits make nothing due: those of this store itself, which
    /// the counter counts as well, leases, extensions, and messages that are processed.
    async fn is_any_due(&self, connection: &mut SqliteConnection) -> bool {
        sqlx::query_scalar(self.due.clone())
            .bind(self.clock.now_micros())
            .fetch_one(connection)
            .await
            .unwrap_or(true)
    }
}

async fn watch_file(
    look: Look,
    signal: Signal,
    mut connection: SqliteConnection,
    mut seen: i64,
    mut stop: watch::Receiver<()>,
) {
    let mut interval = INTERVAL;
    loop {
        tokio::select! {
            _ = stop.changed() => break,
            () = sleep(interval) => {}
        }
        if look.identity.check().is_err() {
            // Those who wait for work are to find out.
            signal.raise();
            interval = RECONNECT;
            continue;
        }
        interval = INTERVAL;
        match data_version(&mut connection).await {
            Ok(now) if now == seen => {}
            Ok(now) => {
                seen = now;
                if look.is_any_due(&mut connection).await {
                    signal.raise();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the connection for wake-ups failed; connecting again");
                let _ = connection.close().await;
                let Some(reconnected) = reconnect(&look.options, &mut stop).await else {
                    return;
                };
                (connection, seen) = reconnected;
                signal.raise();
            }
        }
    }
    let _ = connection.close().await;
}

/// `None` when it was stopped before.
async fn reconnect(
    options: &SqliteConnectOptions,
    stop: &mut watch::Receiver<()>,
) -> Option<(SqliteConnection, i64)> {
    loop {
        tokio::select! {
            _ = stop.changed() => return None,
            () = sleep(RECONNECT) => {}
        }
        if let Ok(mut connection) = options.connect().await {
            if let Ok(seen) = data_version(&mut connection).await {
                return Some((connection, seen));
            }
            let _ = connection.close().await;
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
