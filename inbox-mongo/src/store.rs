//! The store: connecting, closing, and the working side, whose operations have a file each.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Extended, HandlerName, Lease, LeaseTerms, Message,
    OperatorName, Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store, Subscription,
    Wakeups,
};
use mongodb::Client;

use crate::{begin, claim, connection::Database, extend, options::MongoOptions, receive, settle};

/// An inbox in a MongoDB database. Clones share its client.
///
/// A value belongs to the tokio runtime in which it was made.
#[derive(Clone)]
pub struct MongoStore {
    pub(crate) database: Arc<Database>,
    /// Who signs interventions.
    pub(crate) operator: Option<OperatorName>,
}

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoStore")
            .field("options", &self.database.options)
            .field("server", &self.database.server)
            .finish_non_exhaustive()
    }
}

impl MongoStore {
    /// Connects with its own client, to the server of the URL that the options were read from. Does
    /// not set the inbox up: see [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Unavailable` when no server can be reached, `Denied` when it refuses the credentials,
    /// `Invalid` when the options name no server, and when the driver refuses the settings, or cannot
    /// read a file that they name.
    pub async fn connect(options: MongoOptions) -> Result<Self> {
        Self::open(None, options).await
    }

    /// Uses a client of the application's, after asking the server what it can do.
    /// [`close`](inbox_api::Store::close) leaves it running. Its defaults for concerns and read
    /// preference have no effect here; its time-outs have.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn with_client(client: Client, options: MongoOptions) -> Result<Self> {
        Self::open(Some(client), options).await
    }

    async fn open(client: Option<Client>, options: MongoOptions) -> Result<Self> {
        let database = Database::open(client, options)
            .await
            .map_err(|error| error.in_operation("connect"))?;
        Ok(Self {
            database: Arc::new(database),
            operator: None,
        })
    }
}

#[async_trait]
impl Store for MongoStore {
    fn capabilities(&self) -> Capabilities {
        let replicates = self.database.server.replicates();
        let mut capabilities = Capabilities::minimal(
            if replicates {
                "acknowledged by a majority of the replica set and journaled there: survives a \
                 crash of every member, a power cut, and the loss of a minority"
            } else {
                "journaled: survives a crash of the server and a power cut, but not the loss of \
                 its disk"
            },
            self.database.options.payload_limit,
        );
        capabilities.multi_process = true;
        capabilities.transactions = replicates;
        capabilities.ordering = true;
        capabilities.wakeups = if replicates {
            Wakeups::EveryProcess
        } else {
            Wakeups::SameProcess
        };
        capabilities.receive_atomicity = ReceiveAtomicity::MessageId;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let received = receive::receive(&self.database, messages).await;
        received.map_err(|error| error.in_operation("receive"))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let claims = claim::claim(&self.database, request).await;
        claims.map_err(|error| error.in_operation("claim"))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let settled = settle::settle(&self.database, settlements).await;
        settled.map_err(|error| error.in_operation("settle"))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        let extended = extend::extend(&self.database, leases, length).await;
        extended.map_err(|error| error.in_operation("extend"))
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        let begun = begin::begin(&self.database, message, terms).await;
        begun.map_err(|error| error.in_operation("begin"))
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        let subscribed = self.database.task(|database| async move {
            let (messages, replicates) = (database.messages(), database.server.replicates());
            database.wakers.subscribe(messages, replicates).await
        });
        let subscribed = subscribed.await;
        subscribed.map_err(|error| error.in_operation("subscribe"))
    }

    async fn close(&self) {
        self.database.close().await;
    }
}
