//! The store, and the working side of it.
//!
//! Each operation is one write transaction over its whole batch. Inside it, looking first and
//! writing afterwards is safe: redb runs one write transaction at a time, so nothing can happen
//! between the two. (On a database with concurrent writers the same decisions belong into one
//! statement each.)

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Extended, HandlerName, Lease, LeaseTerms, Message,
    OperatorName, Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store, Subscription,
    Wakeups as Reach,
};
use redb::Database;

use crate::{
    begin::begin,
    claim::claim,
    connection::Inner,
    extend::extend,
    options::RedbOptions,
    receive::{receive, refusals},
    settle::settle,
};

/// An inbox in a redb file. Cheap to clone; clones share the inbox.
///
/// See the [crate documentation](crate).
#[derive(Clone)]
pub struct RedbStore {
    inner: Arc<Inner>,
    /// Who signs interventions.
    operator: Option<OperatorName>,
}

impl RedbStore {
    /// Opens the file, and makes an empty one if there is none. It sets up no inbox: that is
    /// [`Schema::create`](inbox_api::Schema::create)'s to do. Reads and may repair the file, so it
    /// blocks: call it at start-up, or under `spawn_blocking`.
    ///
    /// # Errors
    /// `Unavailable` when another process or another store has the file open, or the disk fails;
    /// `Invalid` when the file is not a redb database; `SchemaVersion` when it has a format that
    /// this build's redb cannot read; `Denied` when it cannot be read and written.
    pub fn open(options: RedbOptions) -> Result<Self> {
        match Inner::open(options) {
            Ok(inner) => Ok(Self {
                inner: Arc::new(inner),
                operator: None,
            }),
            Err(error) => Err(error.in_operation("open")),
        }
    }

    /// Lends the database, for a backup or for a look at the tables with redb's own means: the file
    /// is locked, so nobody else can. Blocks; closing waits for `look`.
    ///
    /// # Errors
    /// `Unavailable` when the store is closed or the disk has failed.
    pub fn with_database<T>(&self, look: impl FnOnce(&Database) -> T) -> Result<T> {
        self.inner
            .with_database(|database| Ok(look(database)))
            .map_err(|error| error.in_operation("with_database"))
    }

    pub(crate) fn with_operator(self, operator: OperatorName) -> Self {
        let operator = Some(operator);
        Self { operator, ..self }
    }

    pub(crate) fn operator(&self) -> Option<&OperatorName> {
        self.operator.as_ref()
    }

    pub(crate) fn inner(&self) -> Arc<Inner> {
        Arc::clone(&self.inner)
    }

    pub(crate) fn options(&self) -> &RedbOptions {
        &self.inner.options
    }

    async fn receive_batch(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.inner.check_open()?;
        // Sizes are checked before any I/O, and a batch with nothing to store does none.
        let refusals = refusals(messages, self.options().payload_limit);
        if refusals.iter().all(Option::is_some) {
            let refused = refusals.into_iter().flatten();
            return Ok(refused.map(Receipt::Refused).collect());
        }
        // Messages are reference-counted, so handing a copy to the other thread costs little.
        let messages = messages.to_vec();
        self.inner()
            .write(move |transaction| receive(transaction, &messages, refusals))
            .await
    }

    async fn claim_batch(&self, request: &ClaimRequest) -> Result<Claims> {
        self.inner.check_open()?;
        if request.handlers.is_empty() || request.limit == 0 {
            return Ok(Claims::default());
        }
        let request = request.clone();
        self.inner()
            .write(move |transaction| claim(transaction, &request))
            .await
    }

    async fn settle_batch(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.inner.check_open()?;
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let settlements = settlements.to_vec();
        let options = self.options().clone();
        self.inner()
            .write(move |transaction| {
                let each = settlements.iter();
                each.map(|settlement| settle(transaction, settlement, &options))
                    .collect()
            })
            .await
    }

    async fn extend_batch(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.inner.check_open()?;
        LeaseTerms::check_length(length)?;
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let leases = leases.to_vec();
        self.inner()
            .write(move |transaction| {
                let each = leases.iter();
                each.map(|lease| extend(transaction, lease, length))
                    .collect()
            })
            .await
    }

    async fn begin_one(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.inner.check_open()?;
        message.check_payload(self.options().payload_limit)?;
        let (message, terms) = (message.clone(), terms.clone());
        self.inner()
            .write(move |transaction| begin(transaction, &message, &terms))
            .await
    }
}

/// Each method names itself in its errors, so that nothing below has to know its name.
#[async_trait]
impl Store for RedbStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal(
            "survives a process kill and a power cut",
            self.options().payload_limit,
        );
        // `multi_process` and `transactions` stay false: redb locks the file, and as the file is
        // the inbox's own, no application has other writes to put into one transaction with it.
        capabilities.ordering = true;
        capabilities.wakeups = Reach::SameProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.receive_batch(messages)
            .await
            .map_err(|error| error.in_operation("receive"))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.claim_batch(request)
            .await
            .map_err(|error| error.in_operation("claim"))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.settle_batch(settlements)
            .await
            .map_err(|error| error.in_operation("settle"))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.extend_batch(leases, length)
            .await
            .map_err(|error| error.in_operation("extend"))
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.begin_one(message, terms)
            .await
            .map_err(|error| error.in_operation("begin"))
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.inner
            .check_open()
            .map_err(|error| error.in_operation("subscribe"))?;
        Ok(self.inner.wakeups.subscribe())
    }

    /// Waits for the operations that are running, closes the file for all clones, and wakes their
    /// subscriptions once.
    async fn close(&self) {
        self.inner().close().await;
    }
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore")
            .field("options", self.options())
            .finish_non_exhaustive()
    }
}
