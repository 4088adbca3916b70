//! Everything that works on an inbox in one process, as one service.
//!
//! A [`Service`] runs any number of receivers, processors, inline consumers' drains, janitors and tasks
//! of the application's own (such as a web server), with one shutdown token, one order of shutdown, one
//! [`Summary`] and one error. [`Health`] tells how it does. Each part works alone just as well.
//!
//! ```
//! use inbox::receiver::{ChannelSource, Receiver, Submission};
//! use inbox::{CancellationToken, Context, Failure, Janitor, Message, Processor, Router, Service};
//! # #[derive(serde::Serialize)]
//! # struct OrderPlaced { order: u64 }
//! # impl inbox::Event for OrderPlaced { const KIND: &'static str = "order.placed"; }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let inbox = inbox::connect("memory://").await?;
//! inbox.migrate().await?;
//! let shutdown = CancellationToken::new(); // to be cancelled on SIGTERM
//! let stop = shutdown.clone();
//! let charge = move |_: Context| {
//!     stop.cancel();
//!     async { Ok::<_, Failure>(()) }
//! };
//! let processor = Processor::builder(inbox.clone())
//!     .router(Router::new("billing").on("order.placed", charge))
//!     .build()?;
//! let janitor = Janitor::builder(inbox.clone())
//!     .keep_processed(std::time::Duration::from_secs(30 * 24 * 60 * 60))
//!     .build()?;
//! let (orders, channel) = tokio::sync::mpsc::channel(100);
//! let service = Service::builder(inbox.clone())
//!     .receiver("orders", Receiver::builder(inbox).build(), ChannelSource::new(channel))
//!     .processor("billing", processor)
//!     .janitor("retention", janitor)
//!     .build()?;
//! let health = service.health(); // for probes: cheap to ask
//! assert!(health.report().is_live && !health.report().is_ready);
//!
//! let message = Message::json("billing", "evt-1", &OrderPlaced { order: 7 })?;
//! orders.send(Submission::new(message).0).await?;
//! let summary = service.run(shutdown).await?;
//! assert_eq!(summary.processors.processed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # The order of shutdown
//! When the token is cancelled, or a part has failed:
//! 1. Receivers and tasks are told to end. They store what they have taken.
//! 2. When they have ended, or two seconds later (a quarter of a limit under eight), inline consumers are drained and processors are told to
//!    end. They let running handlers finish.
//! 3. When all these have ended, janitors are told to end.
//! 4. The store is closed.
//!
//! Whatever has not ended at the [limit](ServiceBuilder::shutdown_limit) is dropped, which loses no
//! message: leases run out, and what was not acknowledged is delivered again.

mod health;
mod part;
mod run;
mod summary;

use std::{collections::HashSet, error::Error as StdError, fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

pub use health::{Health, PartHealth, Report, Stage};
pub use summary::{ServiceError, Summary};

use self::part::{Part, Task, Work};
use crate::{
    Inbox, InlineConsumer, Invalid, Janitor, Processor, Receiver, RetryPolicy,
    patience::check_limit, receiver::Source,
};

/// All that works on an inbox in one process. See the [module](crate::service).
pub struct Service {
    inbox: Arc<dyn Inbox>,
    parts: Vec<Part>,
    restart: Option<RetryPolicy>,
    shutdown_limit: Duration,
    probe_interval: Duration,
    health: Health,
}

/// Sets up a [`Service`]; from [`Service::builder`].
#[must_use]
pub struct ServiceBuilder {
    inbox: Arc<dyn Inbox>,
    parts: Vec<Part>,
    restart: Option<RetryPolicy>,
    shutdown_limit: Duration,
    probe_interval: Duration,
}

impl Service {
    /// A service on `inbox`, as yet without parts. Its parts have to be of the same inbox. It closes
    /// the store at its end.
    pub fn builder(inbox: Arc<impl Inbox + ?Sized + 'static>) -> ServiceBuilder {
        ServiceBuilder {
            // An Arc of an inbox is one itself; the second Arc erases its type.
            inbox: Arc::new(inbox),
            parts: Vec::new(),
            restart: None,
            shutdown_limit: Duration::from_secs(28),
            probe_interval: Duration::from_secs(5),
        }
    }

    /// How it does, for probes and dashboards: before, while and after it runs.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Runs all parts until `shutdown` is cancelled, then ends them in
    /// [order](crate::service#the-order-of-shutdown). It also ends when all parts have ended by
    /// themselves: a receiver does when its source has, a task when it returns. Inline consumers have ended
    /// when there were tasks and all have; without any task, nobody knows who still calls them, and only
    /// `shutdown` ends the service.
    ///
    /// May be dropped at any await point; then all parts are, and its [health](Self::health) says that it has ended.
    ///
    /// # Errors
    /// [`ServiceError`] when a part has failed, or panicked, and was not to be
    /// [restarted](ServiceBuilder::restart): the first one of them. The others were shut down in order.
    pub async fn run(self, shutdown: CancellationToken) -> Result<Summary, ServiceError> {
        run::run(self, shutdown).await
    }
}

impl ServiceBuilder {
    /// Adds a receiver that takes from `source`. When the source ends it ends, and the rest goes on.
    pub fn receiver(
        self,
        name: impl Into<String>,
        receiver: Receiver,
        source: impl Source + 'static,
    ) -> Self {
        self.part(name, Work::receiver(receiver, source))
    }

    /// Adds a processor.
    pub fn processor(self, name: impl Into<String>, processor: Processor) -> Self {
        self.part(name, Work::Processor(processor))
    }

    /// Adds an inline consumer, or that of an [`InboxLayer`](crate::InboxLayer), to be
    /// [drained](InlineConsumer::drain) within `limit` at the end. What feeds it should be a
    /// [task](Self::task), so that it ends before. Without any task, the service runs until it is told to end.
    pub fn inline(
        self,
        name: impl Into<String>,
        consumer: InlineConsumer,
        limit: Duration,
    ) -> Self {
        self.part(name, Work::Inline(consumer, limit))
    }

    /// Adds a janitor.
    pub fn janitor(self, name: impl Into<String>, janitor: Janitor) -> Self {
        self.part(name, Work::Janitor(janitor))
    }

    /// Adds something of the application's own that brings messages in, such as a web server. It is
    /// told to end with the receivers, by the token that it is given.
    ///
    /// Its error ends the rest. It cannot be restarted.
    ///
    /// ```text
    /// .task("web", |shutdown| async move {
    ///     let server = axum::serve(listener, app);
    ///     server.with_graceful_shutdown(shutdown.cancelled_owned()).await
    /// })
    /// ```
    pub fn task<F, Fut, E>(self, name: impl Into<String>, task: F) -> Self
    where
        F: FnOnce(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let task: Task = Box::new(move |shutdown| {
            let running = task(shutdown);
            Box::pin(async move { running.await.map_err(Into::into) })
        });
        self.part(name, Work::Task(Some(task)))
    }

    /// Restarts a part that has failed or panicked, after a delay of `policy`, rather than end the
    /// rest; with its last attempt it does. A part that ran for a minute has not failed before.
    /// Default: a failure ends the rest, for a supervisor to start the process again.
    ///
    /// What fails is what waiting inside the part does not mend: a permission that is missing, a source
    /// that has failed for good. An outage of the store is waited for in any case.
    pub fn restart(mut self, policy: RetryPolicy) -> Self {
        self.restart = Some(policy);
        self
    }

    /// Sets how long a shutdown may take. Default: 28 seconds, within the 30 that Kubernetes leaves a
    /// process; closing the store takes one more at most. Processors, receivers and inline consumers have limits of their own within it, 20
    /// seconds and less unless set. Longer ones of processors and inline consumers are cut to what is left of it
    /// less six seconds, or half of it, so that what still runs is handed back and costs no attempt. A limit under
    /// four seconds is too short for handlers that do not heed their cancellation.
    pub fn shutdown_limit(mut self, limit: Duration) -> Self {
        self.shutdown_limit = limit;
        self
    }

    /// Sets how often the store is asked whether it answers and its schema is right, for
    /// [`Health`]. Default: every 5 seconds.
    pub fn probe_interval(mut self, interval: Duration) -> Self {
        self.probe_interval = interval;
        self
    }

    fn part(mut self, name: impl Into<String>, work: Work) -> Self {
        let name = name.into();
        self.parts.push(Part { name, work });
        self
    }

    /// Builds the service. Nothing runs yet.
    ///
    /// # Errors
    /// [`Invalid`] without parts, with two of one name, and when the probe's interval is shorter than a
    /// millisecond.
    pub fn build(self) -> Result<Service, Invalid> {
        check_limit(self.probe_interval, "probe interval")?;
        if self.parts.is_empty() {
            let what = "the list of parts";
            return Err(Invalid::Empty { what });
        }
        let names: HashSet<_> = self.parts.iter().map(|part| &part.name).collect();
        if names.len() < self.parts.len() {
            return Err(Invalid::Malformed {
                what: "the list of parts",
                expected: "one part per name",
            });
        }
        Ok(Service {
            health: Health::of(&self.parts),
            inbox: self.inbox,
            parts: self.parts,
            restart: self.restart,
            shutdown_limit: self.shutdown_limit,
            probe_interval: self.probe_interval,
        })
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("parts", &self.parts)
            .field("restart", &self.restart)
            .field("shutdown_limit", &self.shutdown_limit)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ServiceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceBuilder")
            .field("parts", &self.parts)
            .field("restart", &self.restart)
            .field("shutdown_limit", &self.shutdown_limit)
            .finish_non_exhaustive()
    }
}
