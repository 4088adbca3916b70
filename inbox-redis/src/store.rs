//! The store: its connection, and the working side.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Extended, HandlerName, Lease, LeaseTerms, Message,
    Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store, Subscription, Wakeups as Reach,
    check_size,
};
use redis::Value;

use crate::{
    checks,
    connection::{Addressed, Connection},
    error::closed,
    keys::Layout,
    options::RedisOptions,
    scripts::{Call, Caller},
    wakeups::Wakeups,
};

/// An inbox on Redis, Valkey or a cluster of them. Clones share its connections.
///
/// A value belongs to the tokio runtime in which it was connected.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) inner: Arc<Inner>,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) options: RedisOptions,
    pub(crate) caller: Caller,
    /// `None` once closed.
    connection: RwLock<Option<Connection>>,
    pub(crate) wakeups: Wakeups,
}

impl RedisStore {
    /// Connects, and looks at the server's settings ([`StartChecks`](crate::StartChecks)). Does
    /// not set up the inbox: see [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached; `Denied` when it refuses the
    /// credentials; `Unsupported` when it is older than Redis 7, or when its settings may lose
    /// messages; `Invalid` for certificates that cannot be read.
    pub async fn connect(options: RedisOptions) -> Result<Self> {
        let connection = Connection::connect(&options).await?;
        checks::check(&connection, &options).await?;
        let layout = Layout::new(&options.inbox, options.shards);
        let caller = Caller::new(layout, options.offset.clone());
        hear_clocks(&caller, &connection).await;
        Ok(Self {
            inner: Arc::new(Inner {
                caller,
                wakeups: Wakeups::new(&options),
                connection: RwLock::new(Some(connection)),
                options,
            }),
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.inner.caller.layout
    }

    pub(crate) fn connection(&self, operation: &'static str) -> Result<Connection> {
        let connection = self
            .inner
            .connection
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        connection.clone().ok_or_else(|| closed(operation))
    }

    async fn send(&self, operation: &'static str, call: Call, confirmed: bool) -> Result<Value> {
        let layout = self.layout();
        let confirmed_by = confirmed.then(|| layout.meta(call.shard));
        self.connection(operation)?
            .run(Addressed {
                operation,
                slot: layout.slot(call.shard),
                script: call.script,
                command: call.command,
                confirmed_by,
            })
            .await
    }

    pub(crate) async fn run(&self, operation: &'static str, call: Call) -> Result<Value> {
        self.send(operation, call, false).await
    }

    /// As [`Self::run`], and waits for the confirmations that the options demand.
    pub(crate) async fn run_confirmed(&self, operation: &'static str, call: Call) -> Result<Value> {
        let confirmed = self.inner.options.confirmations.any();
        self.send(operation, call, confirmed).await
    }

    /// All at once; the first error is the answer.
    pub(crate) async fn run_all(
        &self,
        operation: &'static str,
        calls: Vec<Call>,
    ) -> Result<Vec<Value>> {
        try_join_all(calls.into_iter().map(|call| self.run(operation, call))).await
    }

    /// All at once, confirmed. Lets every call end even if one fails, so that as much as can be
    /// done is done.
    pub(crate) async fn run_all_confirmed(
        &self,
        operation: &'static str,
        calls: Vec<Call>,
    ) -> Result<Vec<Value>> {
        let calls = calls
            .into_iter()
            .map(|call| self.run_confirmed(operation, call));
        join_all(calls).await.into_iter().collect()
    }
}

/// Looks at the clock of each shard's server, where there are several. One that does not answer is
/// heard later.
async fn hear_clocks(caller: &Caller, connection: &Connection) {
    if caller.layout.shards() == 1 {
        return;
    }
    let looks = caller.layout.all().map(|shard| async move {
        let sent = Instant::now();
        if let Some(time) = connection.time(caller.layout.slot(shard)).await {
            caller.clocks.hear(shard, time, sent);
        }
    });
    join_all(looks).await;
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let options = &self.inner.options;
        let mut capabilities = Capabilities::minimal(
            if options.confirmations.any() {
                "as the server persists, and what was demanded of replicas or append-only files"
            } else {
                "as the server persists; a fail-over can lose what replicas did not have yet"
            },
            options.payload_limit,
        );
        capabilities.multi_process = true;
        capabilities.ordering = true;
        capabilities.wakeups = Reach::EveryProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::MessageId;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.connection("receive")?;
        self.receive_batch(messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.connection("claim")?;
        if request.handlers.is_empty() || request.limit == 0 {
            return Ok(Claims::default());
        }
        self.claim_batch(request).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.connection("settle")?;
        self.settle_batch(settlements).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.connection("extend")?;
        LeaseTerms::check_length(length).map_err(|invalid| invalid.in_operation("extend"))?;
        self.extend_batch(leases, length).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.connection("begin")?;
        check_size(
            "payload",
            message.payload().len(),
            self.inner.options.payload_limit,
        )
        .map_err(|invalid| invalid.in_operation("begin"))?;
        self.begin_one(message, terms).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.connection("subscribe")?;
        self.inner.wakeups.subscribe(handlers).await
    }

    async fn close(&self) {
        *self
            .inner
            .connection
            .write()
            .unwrap_or_else(PoisonError::into_inner) = None;
        self.inner.wakeups.close();
    }
}
