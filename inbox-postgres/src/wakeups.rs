//! Wake-ups: one connection that listens for the notifications of all processes.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, Result, Subscription};
use inbox_sqlx::close_all_of;
use sqlx::{
    Acquire as _, Connection as _,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use tokio::{
    sync::{Mutex, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{connection::Database, connection_guard::OrClose, error::before};

const RECONNECT: Duration = Duration::from_millis(500);

/// A connection that has been quiet for so long is asked for a sign of life: often enough for most
/// firewalls and address translators to remember it.
const PROBE_AFTER: Duration = Duration::from_secs(30);

/// Subscribes to the `listener` of the store, or to a new one.
pub(crate) async fn subscribe(
    database: &Database,
    listener: &Mutex<Weak<Listener>>,
) -> Result<Box<dyn Subscription>> {
    database.check_open()?;
    if !database.options.notifications {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "notifications are turned off in this store's options",
        ));
    }
    let listening = async {
        let mut current = listener.lock().await;
        if let Some(listener) = current.upgrade() {
            return Ok(listener);
        }
        let connection = database.connections.pool().connect_options();
        let channel = database.names.channel();
        let listener = Listener::start((*connection).clone(), channel, database.limit()).await?;
        let listener = Arc::new(listener);
        *current = Arc::downgrade(&listener);
        Ok(listener)
    };
    let listener = timeout(database.limit(), listening)
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
        .map_err(before)?;
    Ok(Box::new(ListenerSubscription::new(listener)))
}

/// The task that listens; ends with the last subscription.
#[derive(Debug)]
pub(crate) struct Listener {
    causes: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens first, so that no notification after the return is missed. `limit` is for each
    /// request of the server.
    async fn start(
        connection: PgConnectOptions,
        channel: String,
        limit: Duration,
    ) -> sqlx::Result<Self> {
        let listener = connect(&connection, &channel, limit).await?;
        let causes = watch::Sender::new(0);
        let listening = listen(connection, channel, listener, causes.clone(), limit);
        let task = tokio::spawn(OrClose::new(listening));
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

async fn connect(
    connection: &PgConnectOptions,
    channel: &str,
    limit: Duration,
) -> sqlx::Result<PgListener> {
    let connecting = OrClose::new(async {
        // Its own pool: a listener keeps its connection, and a small pool would have none
        // left. One for each connection, so that a lost one has no place in the next one's.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(limit)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(connection.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(channel).await?;
        Ok(listener)
    });
    timeout(limit, connecting)
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

async fn listen(
    connection: PgConnectOptions,
    channel: String,
    mut listener: PgListener,
    causes: watch::Sender<u64>,
    limit: Duration,
) {
    loop {
        if let Err(error) = notification(&mut listener, limit).await {
            tracing::warn!(%error, "the connection for wake-ups is lost; making another one");
            close_all_of(listener);
            listener = loop {
                sleep(RECONNECT).await;
                if let Ok(listener) = connect(&connection, &channel, limit).await {
                    break listener;
                }
            };
        }
        // Also after a new connection: what was notified meanwhile is lost.
        causes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Waits for one. Fails when the connection is lost, or has been quiet and does not answer.
async fn notification(listener: &mut PgListener, limit: Duration) -> sqlx::Result<()> {
    let lost = || sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into());
    loop {
        if let Ok(received) = timeout(PROBE_AFTER.min(limit), listener.try_recv()).await {
            return received?.map(drop).ok_or_else(lost);
        }
        let probe = async { listener.acquire().await?.ping().await };
        timeout(limit, probe)
            .await
            .map_err(|_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))??;
    }
}

/// Wakes on every cause in the inbox, whichever handler it is for.
struct ListenerSubscription {
    causes: watch::Receiver<u64>,
    _listener: Arc<Listener>,
}

impl ListenerSubscription {
    fn new(listener: Arc<Listener>) -> Self {
        Self {
            causes: listener.causes.subscribe(),
            _listener: listener,
        }
    }
}

#[async_trait]
impl Subscription for ListenerSubscription {
    async fn woken(&mut self) {
        if self.causes.changed().await.is_err() {
            // The store is closed: nothing will ever become due here.
            std::future::pending::<()>().await;
        }
    }
}
