//! Wake-ups: one connection that listens for the notifications of all processes.

use std::{
    io,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, Result, Subscription};
use inbox_sqlx::close_all_of;
use sqlx::{
    Acquire as _, PgConnection,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use tokio::{
    sync::{Mutex, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    connection::Database,
    connection_guard::OrClose,
    error::before,
    read_only::{ONLY_READS, only_reads},
};

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
        let refusals = database.refused_writes.subscribe();
        let connection = (*connection).clone();
        let started = Listener::start(connection, channel, database.limit(), refusals).await;
        let listener = Arc::new(started.map_err(before)?);
        // A close that did not wait for this has not seen it.
        database.check_open()?;
        *current = Arc::downgrade(&listener);
        Ok(listener)
    };
    let listener = timeout(database.limit(), listening)
        .await
        .unwrap_or_else(|_| Err(before(sqlx::Error::PoolTimedOut)))?;
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
    /// request of the server. `refusals` changes when a server has refused to write, which may be this one.
    async fn start(
        connection: PgConnectOptions,
        channel: String,
        limit: Duration,
        refusals: watch::Receiver<Option<Instant>>,
    ) -> sqlx::Result<Self> {
        let listener = connect(&connection, &channel, limit).await?;
        let causes = watch::Sender::new(0);
        let listening = listen(
            connection,
            channel,
            listener,
            causes.clone(),
            limit,
            refusals,
        );
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
    mut refusals: watch::Receiver<Option<Instant>>,
) {
    loop {
        if let Err(error) = notification(&mut listener, limit, &mut refusals).await {
            tracing::warn!(%error, "the connection for wake-ups is lost; making another one");
            close_all_of(listener);
            listener = loop {
                sleep(RECONNECT).await;
                if let Ok(mut listener) = connect(&connection, &channel, limit).await {
                    if ensure_writes(&mut listener, limit).await.is_ok() {
                        break listener;
                    }
                    close_all_of(listener);
                }
            };
        }
        // Also after a new connection: what was notified meanwhile is lost.
        causes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Waits for one. Fails when the connection is lost, has been quiet and does not answer, or is to a server that takes
/// no writes any more.
async fn notification(
    listener: &mut PgListener,
    limit: Duration,
    refusals: &mut watch::Receiver<Option<Instant>>,
) -> sqlx::Result<()> {
    let lost = || sqlx::Error::Io(io::ErrorKind::ConnectionAborted.into());
    loop {
        tokio::select! {
            received = timeout(PROBE_AFTER.min(limit), listener.try_recv()) => {
                if let Ok(received) = received {
                    return received?.map(drop).ok_or_else(lost);
                }
            }
            Ok(()) = refusals.changed() => {}
        }
        ensure_writes(listener, limit).await?;
    }
}

/// Fails where the server does not answer, and where it only reads: nothing is notified there.
async fn ensure_writes(listener: &mut PgListener, limit: Duration) -> sqlx::Result<()> {
    let asking = async {
        let connection: &mut PgConnection = listener.acquire().await?;
        sqlx::raw_sql(ONLY_READS).fetch_all(connection).await
    };
    let answer = timeout(limit, asking)
        .await
        .map_err(|_| sqlx::Error::Io(io::ErrorKind::TimedOut.into()))??;
    if only_reads(&answer) {
        return Err(sqlx::Error::Io(io::Error::other("the server only reads")));
    }
    Ok(())
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
