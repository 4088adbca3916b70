//! The processor: claims due messages, runs their handlers and settles them.

mod batch;
mod batch_middleware;
mod batch_run;
mod batch_transaction;
mod blocking;
mod breaker;
mod builder;
mod claims;
mod conclusions;
mod driver;
mod failed_attempt;
mod failure;
mod forming;
mod handler;
mod json;
mod lane;
mod leases;
mod look_ahead;
mod middleware;
mod monitor;
mod one_by_one;
mod one_by_one_transaction;
mod outcomes;
mod rate;
mod rehearsal;
mod router;
mod run_length;
mod runs;
mod settling;
mod table;
mod task;
mod transaction;
mod transaction_run;
mod wakeups;

use std::{
    borrow::Cow, collections::HashMap, fmt, ops::AddAssign, panic::resume_unwind, sync::Arc,
    time::Duration,
};

use tokio::task::JoinError;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::Instrument as _;

pub use batch::{Answers, Batch, BatchHandler, Batches};
pub use batch_transaction::{
    TransactionalBatchHandler, batch_in_transaction, batch_in_transaction_fn,
};
pub use breaker::CircuitBreaker;
pub use builder::ProcessorBuilder;
pub use failed_attempt::FailedAttempt;
pub use failure::{Failure, Remedy};
pub(crate) use failure::{Rule, Ruling};
pub use handler::{Completion, Context, Handler};
pub use json::json;
pub use middleware::{Middleware, Next};
pub use one_by_one::one_by_one;
pub use one_by_one_transaction::{one_by_one_in_transaction, one_by_one_in_transaction_fn};
pub use rate::Rate;
pub use router::{Fallback, KindOptions, Router};
pub(crate) use task::panic_text;
pub use transaction::{LentTransaction, TransactionalHandler, in_transaction, in_transaction_fn};

use self::{
    blocking::Warned, driver::Driver, monitor::Monitor, outcomes::UnknownKinds, router::Route,
};
use crate::{
    AfterDead, Error, ErrorKind, HandlerName, Hooks, LeaseTerms, Message, Operate, Result,
    RetryPolicy, Store, patience::Patient, service::PartHealth, telemetry::HandlerMetrics,
    vitals::Vitals,
};

/// Claims due messages in batches, runs a handler for each, and settles the outcomes in batches.
/// Run as many as you like, in one process or in many.
///
/// - A message is held from its claim until its outcome is stored, at most
///   [`concurrency`](ProcessorBuilder::concurrency) and
///   [`look_ahead`](ProcessorBuilder::look_ahead) together at a time for each router: memory does not
///   grow with the backlog.
/// - Routers do not hold each other up: each has its own room, and its own
///   [limits](Router::rate), [retries](Router::retry) and [circuit](Router::circuit_breaker) where it
///   is given them. They share claims as far as they have as much room, settlements and renewals.
/// - Leases are renewed while handlers run. When one is lost all the same, the handler is told
///   through [`Context::cancellation`], its outcome is discarded, and the worker that holds the message
///   now decides.
/// - Handlers share the runtime's threads with this processor. One that blocks its thread (long
///   computations, `thread::sleep`, blocking I/O) holds up other handlers, and when all threads
///   are blocked no lease is renewed: messages whose lease has run out before their handler could
///   start are handed back, and others may be run elsewhere too. Such work belongs into
///   [`spawn_blocking`](tokio::task::spawn_blocking). A handler that keeps its thread for longer
///   than a second, or a third of the lease, is named in a warning once it lets go of it; one that
///   never does, as in a deadlock, is not.
/// - Each attempt runs in a `tracing` span `handle`, with handler, kind, id, attempt and, if the
///   message has the header, [`traceparent`](crate::headers::TRACEPARENT) as fields. With the
///   feature `opentelemetry` and a layer of `tracing-opentelemetry`, the span is a child of the
///   producer's, and has the name, the kind and the attributes of OpenTelemetry's conventions for messaging
///   (`process billing`, consumer, `messaging.message.id`).
/// - Panics and time-outs are failed attempts. An attempt that ends with its process is counted
///   too: a message that has used up its attempts is dead without being run again.
/// - While the store cannot be reached, outcomes are kept and tried again, and nothing new is
///   claimed.
///
/// ```
/// use inbox::{
///     CancellationToken, Context, HandlerName, Kind, Message, MessageId, Processor, Router, StoreExt,
/// };
///
/// #[derive(serde::Deserialize)]
/// struct OrderPlaced { order: u64 }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = inbox::connect("memory://").await?;
/// store.create().await?;
/// let billing = HandlerName::new("billing")?;
/// let (id, kind) = (MessageId::new("evt-1")?, Kind::new("order.placed")?);
/// let message = Message::new(billing, id, kind, r#"{"order": 7}"#);
/// let _ = store.receive_one(&message).await?;
///
/// async fn charge(event: OrderPlaced, _: Context) -> Result<(), std::io::Error> {
///     println!("charging for order {}", event.order);
///     Ok(())
/// }
///
/// let router = Router::new("billing").on_json("order.placed", charge);
/// let processor = Processor::builder(store).router(router).build()?;
/// let shutdown = CancellationToken::new();
/// let summary = processor.run_until_idle(shutdown).await?;
/// assert_eq!(summary.processed, 1);
/// # Ok(())
/// # }
/// ```
pub struct Processor {
    config: Arc<Config>,
    monitor: Option<Monitor>,
}

/// What a processor works with; shared with the tasks of its handlers.
struct Config {
    store: Patient,
    served: Vec<Served>,
    /// Where each handler name stands in `served`.
    places: HashMap<HandlerName, usize>,
    hooks: Option<Arc<dyn Hooks>>,
    /// What routers have unless they say otherwise.
    retry: RetryPolicy,
    after_dead: AfterDead,
    terms: LeaseTerms,
    look_ahead: usize,
    batch: usize,
    poll_min: Duration,
    poll_max: Duration,
    settle_batch: usize,
    settle_linger: Duration,
    drain_limit: Duration,
    vitals: Vitals,
}

/// A router and its terms.
struct Served {
    name: HandlerName,
    router: Router,
    concurrency: usize,
    /// Present if it has batch handlers.
    batches: Option<Batches>,
    rate: Option<Rate>,
    retry: RetryPolicy,
    timeout: Option<Duration>,
    terms: LeaseTerms,
    after_dead: AfterDead,
    breaker: Option<CircuitBreaker>,
    metrics: HandlerMetrics,
    warned: Warned,
    unknown_kinds: UnknownKinds,
}

impl Served {
    /// How many messages of an ordering key a claim may take.
    fn run_limit(&self) -> u32 {
        let run = self.batches.map_or(1, |batches| batches.run);
        u32::try_from(run).unwrap_or(u32::MAX)
    }

    /// How long a handler may run on a message.
    fn timeout(&self, message: &Message) -> Option<Duration> {
        self.router.timeout_of(message).or(self.timeout)
    }
}

impl Config {
    /// Where the router of this handler name stands.
    fn place(&self, handler: &HandlerName) -> Option<usize> {
        // Most processors have one.
        match &*self.served {
            [only] => (only.name == *handler).then_some(0),
            _ => self.places.get(handler).copied(),
        }
    }

    fn served_for(&self, message: &Message) -> Option<&Served> {
        self.served.get(self.place(message.handler())?)
    }

    /// When a message is tried again that has failed.
    fn retry(&self, message: &Message) -> Cow<'_, RetryPolicy> {
        let Some(served) = self.served_for(message) else {
            return Cow::Borrowed(&self.retry);
        };
        let own = served.router.retry_of(message);
        own.unwrap_or(Cow::Borrowed(&served.retry))
    }

    /// What happens to a message that no handler is for.
    fn fallback(&self, message: &Message) -> Option<Fallback> {
        match self.served_for(message)?.router.route(message.kind()) {
            Route::Fallback(fallback) => Some(fallback),
            Route::Handler(_) | Route::Batch(_) => None,
        }
    }

    /// What happens to later messages of its ordering key when a message dies.
    fn after_dead(&self, message: &Message) -> AfterDead {
        let served = self.served_for(message);
        served.map_or(self.after_dead, |served| served.after_dead)
    }

    fn shortest_lease(&self) -> Duration {
        let lengths = self.served.iter().map(|served| served.terms.length());
        lengths.min().unwrap_or(self.terms.length())
    }
}

/// When a run ends.
enum Until {
    Shutdown,
    Idle,
    Drained(Arc<dyn Operate>),
}

/// What a processor did in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Messages claimed. One whose lease has run out while it is held here, and that is claimed again, counts
    /// twice, and ends once.
    pub claimed: u64,
    /// Messages settled as processed.
    pub processed: u64,
    /// Attempts that failed and will be made again.
    pub retried: u64,
    /// Attempts that were put off without being counted.
    pub deferred: u64,
    /// Messages settled as dead.
    pub dead: u64,
    /// Messages handed back, without having been run or because a shutdown or an outage cut their
    /// handler short.
    pub released: u64,
    /// Messages that another worker had taken over.
    pub lease_lost: u64,
    /// Messages whose outcome could not be stored before the end, or was refused; their leases run
    /// out by themselves. A claim that was not answered before the end counts as one, whatever it
    /// has taken; so does a message of which it is not known whether its
    /// [transaction](crate::in_transaction) has committed.
    pub abandoned: u64,
}

/// Adds another run's figures.
impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        let Self {
            claimed,
            processed,
            retried,
            deferred,
            dead,
            released,
            lease_lost,
            abandoned,
        } = other;
        self.claimed += claimed;
        self.processed += processed;
        self.retried += retried;
        self.deferred += deferred;
        self.dead += dead;
        self.released += released;
        self.lease_lost += lease_lost;
        self.abandoned += abandoned;
    }
}

impl Processor {
    /// A processor on `store`, with default settings and as yet without handlers.
    #[must_use]
    pub fn builder(store: Arc<impl Store + ?Sized>) -> ProcessorBuilder {
        // An Arc of a store is a store itself; the second Arc erases its type.
        ProcessorBuilder::new(Arc::new(store))
    }

    /// Runs until `shutdown` is cancelled. Then it claims nothing more, hands back what it has
    /// not started, lets running handlers finish within the
    /// [`drain_limit`](ProcessorBuilder::drain_limit), and returns.
    ///
    /// Handlers that outlive the limit are told to stop and dropped a second later. Their messages
    /// are handed back: due at once, and the attempt is not counted, since being shut down is not
    /// the message's fault. (They may have had effects all the same, as any attempt that is
    /// repeated.)
    ///
    /// Dropping the future drops the running handlers, as soon as the runtime gets to it; their
    /// messages are run again when the leases have run out.
    ///
    /// # Errors
    /// An error of the store that is not worth repeating, such as missing permissions. What runs
    /// then is finished and settled, as far as possible, as at shutdown.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<Summary> {
        self.run_until(Until::Shutdown, shutdown).await
    }

    /// As [`run`](Self::run), but also ends when nothing is due and nothing is running. Messages
    /// that wait for a retry or a later due time remain.
    ///
    /// Of a router that may start nothing at present, because of its [rate](Router::rate), a
    /// [pause](Failure::pause) or an open [circuit](Router::circuit_breaker), it is not known what is
    /// due: this waits until it is asked. With a circuit that does not close, it goes on until
    /// `shutdown` is cancelled.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_until_idle(&self, shutdown: CancellationToken) -> Result<Summary> {
        self.run_until(Until::Idle, shutdown).await
    }

    /// As [`run`](Self::run), but also ends when none of its handlers' messages is pending or
    /// leased, by any worker: scheduled retries are waited for. `operate` has to be of the same
    /// inbox.
    ///
    /// Messages behind a dead one that blocks their ordering key stay pending, and so do those of
    /// unknown kinds, which are [left](Fallback::Leave) unless set; with them, this goes on until an
    /// operator intervenes, another worker takes them, or `shutdown` is cancelled.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_until_drained(
        &self,
        operate: Arc<dyn Operate>,
        shutdown: CancellationToken,
    ) -> Result<Summary> {
        self.run_until(Until::Drained(operate), shutdown).await
    }

    /// Makes its drain limit no longer than this.
    pub(crate) fn limit_drain(&mut self, limit: Duration) {
        // Nothing else has it before a run.
        if let Some(config) = Arc::get_mut(&mut self.config) {
            config.drain_limit = config.drain_limit.min(limit);
        }
    }

    /// How it does at this moment, for a probe of a program without a [`Service`](crate::Service), which also
    /// asks the store: whether its loop turns, and what keeps it from its work. Asks nobody.
    #[must_use]
    pub fn health(&self) -> PartHealth {
        PartHealth::alone("processor", &self.config.vitals, None)
    }

    /// How a run does.
    pub(crate) fn vitals(&self) -> Vitals {
        self.config.vitals.clone()
    }

    async fn run_until(&self, until: Until, shutdown: CancellationToken) -> Result<Summary> {
        let driver = Driver::new(self.config.clone(), until).run(shutdown);
        // In its own task, apart from those of the handlers: what the application's main thread
        // waits for is woken across threads, which costs as much as all else here.
        let vitals = self.config.vitals.clone();
        let driver = async move { vitals.watch(driver).await };
        let driver = AbortOnDropHandle::new(tokio::spawn(driver.in_current_span()));
        match &self.monitor {
            None => ended(driver.await),
            Some(monitor) => tokio::select! {
                summary = driver => ended(summary),
                () = monitor.watch(&self.config) => Ok(Summary::default()),
            },
        }
    }
}

/// What the driver's task came to.
fn ended(task: Result<Result<Summary>, JoinError>) -> Result<Summary> {
    task.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => {
            let context = "the runtime was shut down";
            Err(Error::new(ErrorKind::Other, context).in_operation("process"))
        }
    })
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processor")
            .field("handlers", &self.config.places.keys())
            .field("worker", self.config.terms.worker())
            .finish_non_exhaustive()
    }
}
