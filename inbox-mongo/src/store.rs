//! The store: the client, and the working side.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Effect, Error, ErrorKind, Extended, HandlerName,
    Lease, LeaseTerms, Message, Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store,
    Subscription, Wakeups,
};
use mongodb::{
    Client,
    error::ErrorKind as Driver,
    options::{ClientOptions, ConnectionString},
};
use tokio::sync::oneshot;

use crate::{
    begin, claim,
    database::{Database, SERVER_SELECTION_TIMEOUT},
    error::refused,
    options::{DEFAULT_DATABASE, MongoOptions},
    receive, schema,
    settle::{self, Repetition},
    stages::Keeping,
    wakeups::Wakers,
};

/// An inbox in a MongoDB database. Clones share its client.
///
/// A value belongs to the tokio runtime in which it was made.
#[derive(Clone)]
pub struct MongoStore {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MongoStore")
            .field("options", &self.inner.options)
            .field("server", &self.inner.database.server)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) options: MongoOptions,
    pub(crate) database: Database,
    pub(crate) wakers: Wakers,
    /// How far claims spread, because others took the same messages.
    pub(crate) spread: AtomicU32,
    /// Whether the client is shut down with the store.
    owns_client: bool,
    /// Whether a claim got no answer, perhaps because no majority confirms anything.
    pub(crate) doubtful: AtomicBool,
    /// Whether an inbox of the right version was found there.
    checked: AtomicBool,
    closed: AtomicBool,
}

impl Inner {
    pub(crate) fn keeping(&self) -> Keeping {
        Keeping {
            drop_payload: self.options.drop_processed_payloads,
            expire_after: self.options.expire_processed_after,
        }
    }

    /// Ends leases outside of a transaction, and lets the next of their ordering keys through.
    pub(crate) async fn settle(
        &self,
        operation: &'static str,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let mut on = self.database.on(operation);
        let limit = self.options.payload_limit;
        let keeping = self.keeping();
        let settled =
            settle::settle(&mut on, settlements, limit, keeping, Repetition::Done).await?;
        settled.rehead(&mut on).await?;
        self.wakers.raise();
        Ok(settled.answers)
    }

    /// Fails unless an inbox of the right version is there. Looks once.
    pub(crate) async fn check_schema(&self, operation: &'static str) -> Result<()> {
        if !self.checked.load(Ordering::Relaxed) {
            schema::check_version(operation, &self.database).await?;
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Marks the store as doubtful unless it is taken away before: also when the future that has it is
/// dropped.
struct Doubt<'a>(Option<&'a AtomicBool>);

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if let Some(doubtful) = self.0 {
            doubtful.store(true, Ordering::Relaxed);
        }
    }
}

impl MongoStore {
    /// Connects with a client of its own. Does not set the inbox up: see
    /// [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Unavailable` when no server can be reached, `Denied` when it refuses the credentials,
    /// `Invalid` when the driver refuses the settings, or cannot read a file that they name.
    pub async fn connect(connection: ConnectionString, options: MongoOptions) -> Result<Self> {
        const OPERATION: &str = "connect";
        // In a task of its own, as everything that the driver does.
        let connecting = tokio::spawn(async move {
            let mut settings = ClientOptions::parse(connection)
                .await
                .map_err(|error| refused(OPERATION, &error))?;
            settings
                .server_selection_timeout
                .get_or_insert(SERVER_SELECTION_TIMEOUT);
            settings
                .connect_timeout
                .get_or_insert(SERVER_SELECTION_TIMEOUT);
            settings.retry_writes = Some(true);
            Client::with_options(settings).map_err(|error| match error.kind.as_ref() {
                // Nothing is sent yet, and this is the only file that the driver reads so.
                Driver::Io(error) => Error::new(
                    ErrorKind::Invalid,
                    OPERATION,
                    format!("the file of tlsCertificateKeyFile cannot be read: {error}"),
                ),
                _ => refused(OPERATION, &error),
            })
        });
        let client = connecting
            .await
            .map_err(|error| ended(OPERATION, error))??;
        Self::new(client, true, options).await
    }

    /// Connects to what `url` names: [`MongoOptions::from_url`] and
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// As those two.
    pub async fn connect_url(url: &str) -> Result<Self> {
        let (connection, options) = MongoOptions::from_url(url)?;
        Self::connect(connection, options).await
    }

    /// Uses a client of the application's, after asking the server what it can do.
    /// [`close`](inbox_api::Store::close) leaves it running. Its defaults for concerns and read
    /// preference have no effect here; its time-outs have.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn with_client(client: Client, options: MongoOptions) -> Result<Self> {
        Self::new(client, false, options).await
    }

    async fn new(client: Client, owns_client: bool, options: MongoOptions) -> Result<Self> {
        let database = tokio::spawn({
            let options = options.clone();
            async move {
                let default = client.default_database();
                let name = options
                    .database
                    .as_deref()
                    .or(default.as_ref().map(mongodb::Database::name))
                    .unwrap_or(DEFAULT_DATABASE);
                Database::new(
                    client.clone(),
                    name,
                    options.inbox.clone(),
                    options.offset.clone(),
                )
                .await
            }
        })
        .await
        .map_err(|error| ended("connect", error))??;
        Ok(Self {
            inner: Arc::new(Inner {
                wakers: Wakers::new(),
                database,
                options,
                spread: AtomicU32::new(0),
                owns_client,
                doubtful: AtomicBool::new(false),
                checked: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            }),
        })
    }

    pub(crate) fn check_open(&self, operation: &'static str) -> Result<()> {
        if self.inner.closed.load(Ordering::Relaxed) {
            let context = "the store is closed";
            return Err(Error::new(ErrorKind::Unavailable, operation, context));
        }
        Ok(())
    }

    /// Does `work` in a task of its own, whatever becomes of the future that waits for it: the
    /// driver's futures must not be dropped in the middle, and an operation of several requests is
    /// carried through.
    pub(crate) async fn task<T, F>(
        &self,
        operation: &'static str,
        work: impl FnOnce(Arc<Inner>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.check_open(operation)?;
        let task = tokio::spawn(work(Arc::clone(&self.inner)));
        self.wait(operation, task).await?
    }

    /// As [`task`](Self::task), for what needs an inbox of the right version.
    pub(crate) async fn checked_task<T, F>(
        &self,
        operation: &'static str,
        work: impl FnOnce(Arc<Inner>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.task(operation, move |inner| async move {
            inner.check_schema(operation).await?;
            work(inner).await
        })
        .await
    }

    /// Waits for a task, for as long as an operation may take.
    pub(crate) async fn wait<T>(
        &self,
        operation: &'static str,
        task: tokio::task::JoinHandle<T>,
    ) -> Result<T> {
        let limit = self.inner.options.operation_timeout;
        match tokio::time::timeout(limit, task).await {
            Ok(ended_task) => ended_task.map_err(|error| ended(operation, error)),
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                operation,
                "the server did not answer within the operation's time-out",
            )
            .with_effect(Effect::Unknown)),
        }
    }
}

pub(crate) fn ended(operation: &'static str, error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the runtime is ending")
        .with_effect(Effect::Unknown)
        .with_source(error)
}

#[async_trait]
impl Store for MongoStore {
    fn capabilities(&self) -> Capabilities {
        let replicates = self.inner.database.server.replicates();
        let mut capabilities = Capabilities::minimal(
            if replicates {
                "acknowledged by a majority of the replica set and journaled there: survives a \
                 crash of every member, a power cut, and the loss of a minority"
            } else {
                "journaled: survives a crash of the server and a power cut, but not the loss of \
                 its disk"
            },
            self.inner.options.payload_limit,
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
        const OPERATION: &str = "receive";
        self.check_open(OPERATION)?;
        let plan = receive::Plan::new(messages, self.inner.options.payload_limit);
        if plan.is_empty() {
            return Ok(plan.receipts());
        }
        self.checked_task(OPERATION, |inner| async move {
            receive::receive(&inner, OPERATION, plan).await
        })
        .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        const OPERATION: &str = "claim";
        self.check_open(OPERATION)?;
        if request.handlers.is_empty() || request.limit == 0 {
            return Ok(Claims::default());
        }
        let request = request.clone();
        let (give, given) = oneshot::channel();
        let task = self.checked_task(OPERATION, |inner| async move {
            let claims = claim::claim(&inner, OPERATION, &request).await?;
            if !claims.corrupt.is_empty() {
                // What was set aside may have been first of its ordering key.
                inner.wakers.raise();
            }
            if let Err(claims) = give.send(claims) {
                // Nobody waits any more.
                claim::hand_back(&inner, OPERATION, &claims).await?;
            }
            Ok(())
        });
        let mut doubt = Doubt(Some(&self.inner.doubtful));
        match task.await {
            Err(error) if error.is_retryable() => return Err(error),
            outcome => {
                doubt.0 = None;
                outcome?;
            }
        }
        given.await.map_err(|_| {
            Error::new(ErrorKind::Other, OPERATION, "a claim was not handed over")
                .with_effect(Effect::Unknown)
        })
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        const OPERATION: &str = "settle";
        self.check_open(OPERATION)?;
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let settlements = settlements.to_vec();
        self.checked_task(OPERATION, |inner| async move {
            inner.settle(OPERATION, &settlements).await
        })
        .await
    }

    async fn extend(&self, leases: &[Lease], length: std::time::Duration) -> Result<Vec<Extended>> {
        const OPERATION: &str = "extend";
        self.check_open(OPERATION)?;
        LeaseTerms::check_length(length).map_err(|invalid| invalid.in_operation(OPERATION))?;
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let leases = leases.to_vec();
        self.checked_task(OPERATION, move |inner| async move {
            settle::extend(&mut inner.database.on(OPERATION), &leases, length).await
        })
        .await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        const OPERATION: &str = "begin";
        self.check_open(OPERATION)?;
        message
            .check_payload(self.inner.options.payload_limit)
            .map_err(|invalid| invalid.in_operation(OPERATION))?;
        let (message, terms) = (message.clone(), terms.clone());
        self.checked_task(OPERATION, |inner| async move {
            begin::begin(&inner.database, OPERATION, &message, &terms).await
        })
        .await
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        const OPERATION: &str = "subscribe";
        self.task(OPERATION, |inner| async move {
            inner.wakers.subscribe(OPERATION, &inner.database).await
        })
        .await
    }

    async fn close(&self) {
        if self.inner.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        self.inner.wakers.stop();
        if self.inner.owns_client {
            let client = self.inner.database.client.clone();
            let closing = tokio::spawn(async move { client.shutdown().immediate(true).await });
            let _ = closing.await;
        }
    }
}
