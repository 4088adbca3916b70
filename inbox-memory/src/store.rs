//! The store, and the working side of it.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Extended, HandlerName, Lease, LeaseTerms, Message,
    OperatorName, Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store, Subscription,
    Wakeups as Reach,
};

use crate::{begin, claim, extend, options::MemoryOptions, queues::Queues, receive, settle};

/// An inbox in memory. Everything in it is gone when the process ends.
///
/// Cloning is cheap, and clones share the inbox. See the [crate documentation](crate).
#[derive(Clone)]
pub struct MemoryStore {
    queues: Arc<Queues>,
    /// Who signs interventions.
    pub(crate) operator: Option<OperatorName>,
}

impl MemoryStore {
    /// An empty inbox with the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::with(MemoryOptions::new())
    }

    /// An empty inbox.
    #[must_use]
    pub fn with(options: MemoryOptions) -> Self {
        Self {
            queues: Arc::new(Queues::new(options)),
            operator: None,
        }
    }

    /// Another inbox, with a copy of all that is in this one at one moment, open leases with their tokens included. From
    /// then on the two change apart, by one clock: for a test that tries what would happen, or that begins many times at
    /// the same point. It is open, also if this one is closed. Takes time and memory in proportion to what is there;
    /// payloads are shared.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            queues: Arc::new(self.queues.copied()),
            operator: self.operator.clone(),
        }
    }

    /// The queues, unless the store is closed.
    pub(crate) fn open(&self) -> Result<&Queues> {
        self.queues.check_open()?;
        Ok(&self.queues)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal(
            "nothing: gone when the process ends",
            self.queues.options.payload_limit,
        );
        capabilities.ordering = true;
        capabilities.runs = true;
        capabilities.wakeups = Reach::SameProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.open()
            .and_then(|queues| receive::receive(queues, messages))
            .map_err(|error| error.in_operation("receive"))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.open()
            .map(|queues| claim::claim(queues, request))
            .map_err(|error| error.in_operation("claim"))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.open()
            .map(|queues| settle::settle(queues, settlements))
            .map_err(|error| error.in_operation("settle"))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.open()
            .and_then(|queues| extend::extend(queues, leases, length))
            .map_err(|error| error.in_operation("extend"))
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.open()
            .and_then(|queues| begin::begin(queues, message, terms))
            .map_err(|error| error.in_operation("begin"))
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.open()
            .map(|queues| queues.wakeups.subscribe(handlers))
            .map_err(|error| error.in_operation("subscribe"))
    }

    /// Closes the inbox for all clones, and wakes their subscriptions once.
    async fn close(&self) {
        self.queues.close();
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("options", &self.queues.options)
            .finish_non_exhaustive()
    }
}
