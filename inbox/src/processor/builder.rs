//! What can be chosen about a processor.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use super::{
    Config, Middleware, Processor, Router, Served, blocking::Warned, monitor::Monitor,
    outcomes::UnknownKinds,
};
use crate::{
    AfterDead, Hooks, Invalid, LeaseTerms, Operate, RetryPolicy, Store, WorkerName,
    patience::{Patience, Patient, STORE_TIMEOUT, check_limit},
    telemetry::HandlerMetrics,
    vitals::Vitals,
};

/// Sets up a [`Processor`]; from [`Processor::builder`].
pub struct ProcessorBuilder {
    store: Arc<dyn Store>,
    routers: Vec<Router>,
    middleware: Vec<Arc<dyn Middleware>>,
    hooks: Option<Arc<dyn Hooks>>,
    retry: RetryPolicy,
    after_dead: AfterDead,
    concurrency: usize,
    look_ahead: usize,
    batch: u32,
    lease: Duration,
    handler_timeout: Option<Duration>,
    poll: (Duration, Duration),
    settle_batch: Option<usize>,
    settle_linger: Duration,
    drain_limit: Duration,
    store_timeout: Duration,
    worker: Option<WorkerName>,
    monitor: Option<Monitor>,
}

/// Outcomes that one round trip may store by default, also where claims take fewer: what several
/// small claims took may end together.
const LEAST_SETTLED: usize = 250;

impl ProcessorBuilder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            routers: Vec::new(),
            middleware: Vec::new(),
            hooks: None,
            retry: RetryPolicy::default(),
            after_dead: AfterDead::default(),
            concurrency: 64,
            look_ahead: 0,
            batch: 100,
            lease: Duration::from_secs(60),
            handler_timeout: None,
            poll: (Duration::from_millis(20), Duration::from_secs(1)),
            settle_batch: None,
            settle_linger: Duration::from_millis(2),
            drain_limit: Duration::from_secs(20),
            store_timeout: STORE_TIMEOUT,
            worker: None,
            monitor: None,
        }
    }

    /// Adds a handler name with its handlers. At least one is needed, and each name once.
    #[must_use]
    pub fn router(mut self, router: Router) -> Self {
        self.routers.push(router);
        self
    }

    /// Adds something that runs around all handlers of all routers, around the routers' own
    /// [middleware](Router::middleware), and within what was added before.
    #[must_use]
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Sets how many handlers of each router run at a time, unless the router
    /// [says otherwise](Router::concurrency). Default: 64. Up to 65,536.
    ///
    /// Together with the [`look_ahead`](Self::look_ahead) it is how many messages this processor
    /// holds at most for each router, from their claim until their outcome is stored, and the only bound
    /// on their memory: with payloads at the stores' default limit of 16 MiB, 64 messages take 1 GiB.
    /// Where payloads may be large, set both, or the store's limit, to fit. Calls of hooks that are
    /// outstanding also hold a message each, up to a thousand.
    #[must_use]
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages;
        self
    }

    /// Sets how many messages of each router may be claimed before there is room for their handlers, and outcomes
    /// gather while other handlers run, so that few handlers at a time do not pay for a claim and a
    /// settlement each. Default: 0, so that nothing is claimed that cannot be run at once, and
    /// [`concurrency`](Self::concurrency) bounds all that is held. Up to 65,536; 32 is enough for most.
    ///
    /// As many wait as quick handlers start within a tenth of a second, going by how long they took
    /// of late, and no more than a mebibyte of payloads, going by the last claim: handlers that take
    /// long, or large messages, are claimed one by one as they can be run. What has waited for a
    /// second, or a third of a shorter lease, is handed back, as at a shutdown.
    ///
    /// A claim counts the attempt. When the process is killed, what waits has used up one of its
    /// attempts without having been run. A message on its last attempt therefore never waits: it runs
    /// or is handed back at once; and with a single [attempt](Self::retry) nothing waits. Meanwhile
    /// other workers cannot take what waits here. Routers with [batch handlers](crate::BatchHandler)
    /// claim nothing ahead; what waits there, [`Batches::at_once`](crate::Batches::at_once) says.
    #[must_use]
    pub fn look_ahead(mut self, messages: usize) -> Self {
        self.look_ahead = messages;
        self
    }

    /// Sets the most messages to take in one claim, but for routers with
    /// [batch handlers](crate::BatchHandler). Default: 100. Never more are taken than can
    /// be run at once or [wait](Self::look_ahead), so `concurrency` should be about twice as large for
    /// the best throughput.
    #[must_use]
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch = messages;
        self
    }

    /// Sets the length of leases. Default: 60 seconds. They are renewed for as long as a handler
    /// runs, so this is not a limit on its work but the time after which the messages of a
    /// crashed worker are run again.
    #[must_use]
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = length;
        self
    }

    /// Sets for how long a handler may run: then its future is dropped, and the attempt has
    /// failed, unless it had been [cut short](super::Context::cancellation) before: then the message
    /// is handed back. Default: no limit.
    ///
    /// A transaction of [`in_transaction`](crate::in_transaction) that is being committed then is not
    /// dropped: it may be durable already. The commit has the [`store_timeout`](Self::store_timeout), and
    /// so has the look for whether it took place when its answer was lost. Nor is one that is being rolled back: what the
    /// handler has answered counts.
    #[must_use]
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.handler_timeout = Some(limit);
        self
    }

    /// Sets how often and when failed messages are tried again. Default:
    /// [`RetryPolicy::default`], ten attempts within about 43 minutes.
    ///
    /// A message whose last attempt is due, and which has crashed a worker before, runs alone among
    /// the messages of its handler, so that what they do does not count against it. Other handlers
    /// go on meanwhile. (With a single attempt there is no such second chance.)
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sets whether later messages of the same ordering key may pass a dead one.
    #[must_use]
    pub fn after_dead(mut self, after: AfterDead) -> Self {
        self.after_dead = after;
        self
    }

    /// Sets how often to look for work when there is none: at `min` after the last work, then
    /// less and less often, down to once per `max`. Default: 20 milliseconds to one second. With
    /// a store that has wake-ups, new work is found at once all the same.
    #[must_use]
    pub fn poll_intervals(mut self, min: Duration, max: Duration) -> Self {
        self.poll = (min, max);
        self
    }

    /// Sets how many outcomes are stored in one round trip at most, and how long the first waits
    /// for others while handlers run. Default: as many as are claimed in one
    /// ([`batch`](Self::batch), [`Batches`](crate::Batches)) but at least 250, and 2 milliseconds. When no handler runs, nothing
    /// waits.
    #[must_use]
    pub fn settle_batching(mut self, messages: usize, linger: Duration) -> Self {
        self.settle_batch = Some(messages);
        self.settle_linger = linger;
        self
    }

    /// Sets for how long handlers may go on after shutdown. Default: 20 seconds. After that they
    /// are told to stop, and dropped a second later. At most five seconds after the limit, or
    /// after the end of the last handler if that is sooner, the processor returns; with hooks that
    /// are still outstanding then, at most two seconds later: by default within the 30 seconds that
    /// Kubernetes leaves a process.
    #[must_use]
    pub fn drain_limit(mut self, limit: Duration) -> Self {
        self.drain_limit = limit;
        self
    }

    /// Sets how long one call of the store may take, those of [`in_transaction`](crate::in_transaction)
    /// included. Default: 60 seconds, twice the `operation_timeout` of the stores; set both when a
    /// store is to take longer. A call that exceeds it is given up and made again, where that is
    /// safe; one that has taken a sixth of it, or ten seconds, is warned of, once in an outage. A
    /// renewal is given up sooner, after half a lease (or five seconds, if that is longer), so that
    /// there is time for another.
    #[must_use]
    pub fn store_timeout(mut self, limit: Duration) -> Self {
        self.store_timeout = limit;
        self
    }

    /// Sets the name that leases show to operators. Default: the process id and a random number.
    #[must_use]
    pub fn worker(mut self, name: WorkerName) -> Self {
        self.worker = Some(name);
        self
    }

    /// Sets whom to tell about failed attempts, dead letters, lost leases and the like.
    #[must_use]
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Some(Arc::new(hooks));
        self
    }

    /// Looks at the statistics once per `interval` while running, and calls
    /// [`Hooks::backlog_age`] for each of this processor's handlers whose lag is over `limit`.
    #[must_use]
    pub fn backlog_monitor(
        mut self,
        operate: Arc<dyn Operate>,
        limit: Duration,
        interval: Duration,
    ) -> Self {
        self.monitor = Some(Monitor {
            operate,
            limit,
            interval,
        });
        self
    }

    /// Builds the processor. No I/O happens yet.
    ///
    /// # Errors
    /// [`Invalid`] without a router, with two of one name or one with an invalid name or kind, and for
    /// numbers and durations out of range.
    pub fn build(self) -> Result<Processor, Invalid> {
        if self.look_ahead > 65_536 {
            return Err(Invalid::OutOfRange {
                what: "look-ahead",
                expected: "at most 65536",
            });
        }
        let claim_batch = self.batch as usize;
        in_range(claim_batch, 65_536, "batch")?;
        let batches = self.routers.iter().filter_map(Router::batching);
        let batches = batches.map(|batches| batches.messages.min(65_536));
        let most_claimed = batches.chain([claim_batch]);
        let most_claimed = most_claimed.max().unwrap_or(claim_batch);
        let settle_batch = self.settle_batch.unwrap_or(most_claimed.max(LEAST_SETTLED));
        in_range(settle_batch, 65_536, "settle batch")?;
        check_limit(self.store_timeout, "store timeout")?;
        if let Some(limit) = self.handler_timeout {
            check_limit(limit, "handler timeout")?;
        }
        let (poll_min, poll_max) = self.poll;
        if poll_min < Duration::from_millis(1) || poll_max < poll_min {
            return Err(Invalid::OutOfRange {
                what: "poll intervals",
                expected: "at least a millisecond, the second at least the first",
            });
        }
        if let Some(monitor) = &self.monitor {
            check_limit(monitor.interval, "backlog monitor's interval")?;
        }
        let worker = self.worker.clone().map_or_else(default_worker, Ok)?;
        let terms = LeaseTerms::new(self.lease, worker)?;
        let mut builder = self;
        let routers = std::mem::take(&mut builder.routers);
        let mut served = Vec::with_capacity(routers.len());
        let mut places = HashMap::with_capacity(routers.len());
        for router in routers {
            let one = builder.serve(router, &terms)?;
            if places.insert(one.name.clone(), served.len()).is_some() {
                return Err(Invalid::Malformed {
                    what: "the list of routers",
                    expected: "one router per handler name",
                });
            }
            served.push(one);
        }
        if served.is_empty() {
            return Err(Invalid::Empty {
                what: "the list of routers",
            });
        }
        let config = Config {
            terms,
            served,
            places,
            store: Patient {
                store: builder.store,
                patience: Patience::new(builder.store_timeout),
            },
            hooks: builder.hooks,
            retry: builder.retry,
            after_dead: builder.after_dead,
            look_ahead: builder.look_ahead,
            batch: claim_batch,
            poll_min,
            poll_max,
            settle_batch,
            settle_linger: builder.settle_linger,
            drain_limit: builder.drain_limit,
            vitals: Vitals::default(),
        };
        Ok(Processor {
            config: Arc::new(config),
            monitor: builder.monitor,
        })
    }

    /// A router with the terms that it says, and this builder's for the rest.
    fn serve(&self, mut router: Router, terms: &LeaseTerms) -> Result<Served, Invalid> {
        let name = router.check()?;
        router.surround(&self.middleware);
        let own = router.terms.clone();
        let batches = router.batching();
        let room = batches.map_or(0, |batches| batches.room().min(65_536));
        let concurrency = own.concurrency.unwrap_or(self.concurrency.max(room));
        in_range(concurrency, 65_536, "concurrency")?;
        let lease = own.lease.unwrap_or(terms.length());
        Ok(Served {
            concurrency,
            batches,
            rate: own.rate,
            retry: own.retry.unwrap_or_else(|| self.retry.clone()),
            timeout: own.timeout.or(self.handler_timeout),
            terms: LeaseTerms::new(lease, terms.worker().clone())?,
            after_dead: own.after_dead.unwrap_or(self.after_dead),
            breaker: own.breaker,
            metrics: HandlerMetrics::new(&name),
            warned: Warned::default(),
            unknown_kinds: UnknownKinds::default(),
            router,
            name,
        })
    }
}

fn in_range(number: usize, most: usize, what: &'static str) -> Result<(), Invalid> {
    if number == 0 || number > most {
        return Err(Invalid::OutOfRange {
            what,
            expected: "between 1 and 65536",
        });
    }
    Ok(())
}

fn default_worker() -> Result<WorkerName, Invalid> {
    let (process, random) = (std::process::id(), fastrand::u32(..));
    WorkerName::new(format!("process-{process}-{random:08x}"))
}

impl fmt::Debug for ProcessorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessorBuilder")
            .field("routers", &self.routers)
            .field("concurrency", &self.concurrency)
            .field("look_ahead", &self.look_ahead)
            .field("batch", &self.batch)
            .field("lease", &self.lease)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
