//! Wake-ups by publish and subscribe, on their own connection.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{
    StreamExt as _,
    future::{Either, select},
};
use inbox_api::{Effect, Error, ErrorKind, HandlerName, Result, Subscription};
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{client::client, error, keys::Layout, options::RedisOptions};

const RECONNECT: Duration = Duration::from_millis(200);
/// A silent connection is asked for a sign of life so often.
const PING: Duration = Duration::from_secs(10);
/// How long it may take to answer that.
const PONG: Duration = Duration::from_secs(10);

struct Waiting {
    handlers: Vec<HandlerName>,
    signal: Weak<Notify>,
}

/// Who wants to be woken. There is one connection for all of a store's subscriptions.
#[derive(Default)]
struct Shared {
    waiting: Mutex<Vec<Waiting>>,
    closed: watch::Sender<bool>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who wait for this handler, or all.
    fn wake(&self, handler: Option<&str>) {
        self.lock().retain(|waiting| {
            let Some(signal) = waiting.signal.upgrade() else {
                return false;
            };
            let means = |name: &str| waiting.handlers.iter().any(|h| h.as_str() == name);
            if handler.is_none_or(means) {
                signal.notify_one();
            }
            true
        });
    }

    /// Does `work`, which ends where it is when the store is closed: `None`, also if it is closed already.
    async fn until_closed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut closed = self.closed.subscribe();
        let closing = pin!(closed.wait_for(|closed| *closed));
        match select(closing, pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((done, _)) => Some(done),
        }
    }

    fn check_open(&self) -> Result<()> {
        if *self.closed.borrow() {
            return Err(closed());
        }
        Ok(())
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is closed").with_effect(Effect::None)
}

/// Ends its task when the last subscription is gone.
struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) struct Wakeups {
    options: RedisOptions,
    prefix: String,
    shared: Arc<Shared>,
    listener: tokio::sync::Mutex<Weak<Listener>>,
}

impl Wakeups {
    pub(crate) fn new(options: &RedisOptions) -> Self {
        Self {
            prefix: Layout::new(&options.inbox, options.shards).channel(),
            options: options.clone(),
            shared: Arc::default(),
            listener: tokio::sync::Mutex::new(Weak::new()),
        }
    }

    pub(crate) async fn subscribe(
        &self,
        handlers: &[HandlerName],
    ) -> Result<Box<dyn Subscription>> {
        let mut current = self.listener.lock().await;
        let listener = match current.upgrade().filter(|l| !l.0.is_finished()) {
            Some(listener) => listener,
            None => {
                // Connected first, so that nothing after the return goes unheard.
                let listening = listen(&self.options, &self.prefix, 0);
                let connection = self.shared.until_closed(listening).await;
                let connection = connection.unwrap_or_else(|| Err(closed()))?;
                let (options, prefix) = (self.options.clone(), self.prefix.clone());
                let shared = Arc::clone(&self.shared);
                let task = tokio::spawn(async move {
                    let hearing = hear(&options, &prefix, &shared, connection.split());
                    shared.until_closed(hearing).await;
                });
                let listener = Arc::new(Listener(task));
                *current = Arc::downgrade(&listener);
                listener
            }
        };
        let signal = Arc::new(Notify::new());
        self.shared.lock().push(Waiting {
            handlers: handlers.to_vec(),
            signal: Arc::downgrade(&signal),
        });
        // Who comes too late for the last wake-up finds it closed here.
        self.shared.check_open()?;
        Ok(Box::new(Subscribed {
            signal,
            _listener: listener,
        }))
    }

    /// Wakes everybody once, who then find the store closed, and hangs up, also where a connection is only being made.
    pub(crate) fn close(&self) {
        self.shared.closed.send_replace(true);
        self.shared.wake(None);
    }
}

/// A connection that hears all of the inbox's wake-ups. In a cluster any node does: what is
/// published reaches all of them.
async fn listen(options: &RedisOptions, prefix: &str, node: usize) -> Result<PubSub> {
    let connect = async {
        let client = client(options, node)?;
        let mut connection = client.get_async_pubsub().await.map_err(error::before)?;
        connection
            .psubscribe(format!("{prefix}*"))
            .await
            .map_err(error::before)?;
        Ok(connection)
    };
    timeout(options.operation_timeout, connect)
        .await
        .unwrap_or_else(|_| {
            let reason = "the server did not answer in time";
            Err(Error::new(ErrorKind::Unavailable, reason).with_effect(Effect::None))
        })
}

/// Passes wake-ups on until the task is ended; connects again when the connection breaks.
async fn hear(
    options: &RedisOptions,
    prefix: &str,
    shared: &Shared,
    (mut sink, mut stream): (PubSubSink, PubSubStream),
) {
    let mut node = 0;
    loop {
        until_broken(
            prefix,
            shared,
            &mut sink,
            &mut stream,
            options.operation_timeout.min(PONG),
        )
        .await;
        tracing::warn!("the connection for wake-ups failed; connecting again");
        (sink, stream) = loop {
            node += 1;
            match listen(options, prefix, node).await {
                Ok(connection) => break connection.split(),
                Err(_) => sleep(RECONNECT).await,
            }
        };
        // Whatever was published meanwhile was not heard.
        shared.wake(None);
    }
}

async fn until_broken(
    prefix: &str,
    shared: &Shared,
    sink: &mut PubSubSink,
    stream: &mut PubSubStream,
    patience: Duration,
) {
    loop {
        match timeout(PING, stream.next()).await {
            Ok(Some(message)) => {
                shared.wake(message.get_channel_name().strip_prefix(prefix));
            }
            Ok(None) => return,
            Err(_silence) => {
                let ping = timeout(patience, sink.ping::<redis::Value>()).await;
                if !matches!(ping, Ok(Ok(_))) {
                    return;
                }
            }
        }
    }
}

struct Subscribed {
    signal: Arc<Notify>,
    _listener: Arc<Listener>,
}

#[async_trait]
impl Subscription for Subscribed {
    async fn woken(&mut self) {
        // A permit that reaches a future which is then dropped goes back to the signal.
        self.signal.notified().await;
    }
}
