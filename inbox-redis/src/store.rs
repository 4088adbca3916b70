//! The store: connecting, closing, and the working side, whose operations have a file each.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Extended, HandlerName, Lease, LeaseTerms, Message,
    OperatorName, Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store, Subscription,
    Wakeups as Reach,
};

use crate::{
    begin, claim, connection::Shared, extend, options::RedisOptions, receive, settle,
    wakeups::Wakeups,
};

/// An inbox on Redis, Valkey or a cluster of them. Clones share its connections.
///
/// A value belongs to the tokio runtime in which it was connected.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) shared: Arc<Shared>,
    wakeups: Arc<Wakeups>,
    /// Who signs interventions.
    pub(crate) operator: Option<OperatorName>,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects, and looks at the server's settings ([`StartChecks`](crate::StartChecks)). Does
    /// not set up the inbox: see [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached; `Denied` when it refuses the
    /// credentials; `Unsupported` when it is older than Redis 7, when its settings may lose
    /// messages, or when it cannot give the [`Confirmations`](crate::Confirmations) that are asked for;
    /// `Invalid` for certificates that cannot be read.
    pub async fn connect(options: RedisOptions) -> Result<Self> {
        let wakeups = Arc::new(Wakeups::new(&options));
        let shared = Shared::open(options)
            .await
            .map_err(|error| error.in_operation("connect"))?;
        Ok(Self {
            shared: Arc::new(shared),
            wakeups,
            operator: None,
        })
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal(
            if self.shared.confirms() {
                "as the server persists, and what was demanded of replicas or append-only files"
            } else {
                "as the server persists; a fail-over can lose what replicas did not have yet"
            },
            self.shared.options.payload_limit,
        );
        capabilities.multi_process = true;
        capabilities.ordering = true;
        capabilities.runs = true;
        capabilities.wakeups = Reach::EveryProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::MessageId;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let operation = self.shared.operation("receive");
        let received = receive::receive(&operation, messages).await;
        received.map_err(|error| operation.failed(error))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let operation = self.shared.operation("claim");
        let claims = claim::claim(&operation, request).await;
        claims.map_err(|error| operation.failed(error))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let operation = self.shared.operation("settle");
        let settled = settle::settle(&operation, settlements).await;
        settled.map_err(|error| operation.failed(error))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        let operation = self.shared.operation("extend");
        let extended = extend::extend(&operation, leases, length).await;
        extended.map_err(|error| operation.failed(error))
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        let operation = self.shared.operation("begin");
        let begun = begin::begin(&operation, message, terms).await;
        begun.map_err(|error| operation.failed(error))
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        let subscribed = async {
            self.shared.check_open()?;
            self.wakeups.subscribe(handlers).await
        };
        let subscribed: Result<_> = subscribed.await;
        subscribed.map_err(|error| error.in_operation("subscribe"))
    }

    async fn close(&self) {
        self.shared.close();
        self.wakeups.close();
    }
}
