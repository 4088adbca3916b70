//! What the processor's tests share: a store that can be watched and disturbed, and short forms.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Begun, Bytes, CancellationToken, Capabilities, ClaimRequest, Claims, Clock, CorruptRow, Effect,
    Error, ErrorKind, Extended, Filter, HandlerName, Hooks, Inbox, Invalid, Key, Kind, Lease,
    LeaseTerms, Leased, Message, MessageId, Outcome, Page, Processor, ProcessorBuilder, Receipt,
    Record, Result, RetryPolicy, Router, Settled, Settlement, State, Store, StoreExt as _,
    Subscription, Summary, WorkerName,
};
use inbox_memory::{MemoryOptions, MemoryStore};
use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

/// What goes wrong with an operation, until told otherwise.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// It fails and changes nothing.
    Refuse(ErrorKind),
    /// The same, for one call.
    RefuseOnce(ErrorKind),
    /// It is done, and the reply is lost.
    LoseReply,
    /// A settlement is refused when it has a text or a result, or always.
    RefuseOutcome { always: bool },
    /// A settlement as dead is refused, with its own text or always.
    RefuseDead { always: bool },
    /// It is done when the operation is calmed, and answered then.
    Hold,
    /// It is done at once, and answered when the operation is calmed.
    HoldAnswer,
}

/// A real store that records what is asked of it and fails when told to.
pub struct Spy {
    pub inner: Arc<dyn Inbox>,
    pub clock: Clock,
    trouble: Mutex<HashMap<&'static str, Trouble>>,
    pub claim_limits: Mutex<Vec<u32>>,
    pub settle_sizes: Mutex<Vec<usize>>,
    /// The ids of what is settled, call by call.
    pub settled_ids: Mutex<Vec<Vec<String>>>,
    pub extends: Mutex<usize>,
    /// Reported by the next claim.
    pub corrupt: Mutex<Vec<CorruptRow>>,
    /// One permit per claim's answer, when there is a gate.
    pub claim_gate: Option<Arc<Semaphore>>,
    /// Tells held calls that an operation was calmed.
    calmed: Notify,
    /// Until when the store's clock has followed this runtime's.
    followed: Mutex<Option<Instant>>,
}

impl Spy {
    pub fn new() -> Self {
        Self::with(MemoryOptions::new())
    }

    pub fn with(options: MemoryOptions) -> Self {
        let clock = Clock::system();
        let store = MemoryStore::with(options.clock(clock.clone()));
        Self::around(Arc::new(store), clock)
    }

    pub fn around(inner: Arc<dyn Inbox>, clock: Clock) -> Self {
        Self {
            inner,
            clock,
            trouble: Mutex::default(),
            claim_limits: Mutex::default(),
            settle_sizes: Mutex::default(),
            settled_ids: Mutex::default(),
            extends: Mutex::default(),
            corrupt: Mutex::default(),
            claim_gate: None,
            calmed: Notify::new(),
            followed: Mutex::default(),
        }
    }

    /// From now on the store's clock goes on with the runtime's, which a test may have paused.
    pub fn follow_the_runtime(&self) {
        *self.followed.lock().unwrap() = Some(Instant::now());
    }

    pub fn follow(&self) {
        if let Some(until) = &mut *self.followed.lock().unwrap() {
            let now = Instant::now();
            self.clock.advance(now - *until);
            *until = now;
        }
    }

    pub fn disturb(&self, operation: &'static str, trouble: Trouble) {
        self.trouble.lock().unwrap().insert(operation, trouble);
        self.calmed.notify_waiters();
    }

    pub fn calm(&self, operation: &'static str) {
        self.trouble.lock().unwrap().remove(operation);
        self.calmed.notify_waiters();
    }

    async fn settle_unrefused(
        &self,
        settlements: &[Settlement],
        always: bool,
    ) -> Result<Vec<Settled>> {
        let mut answers = Vec::new();
        for settlement in settlements {
            let is_refused = match &settlement.outcome {
                Outcome::Processed { result } => result.is_some(),
                Outcome::Retry { error: text, .. } | Outcome::Dead { reason: text, .. } => {
                    text.contains("odd")
                }
                Outcome::Defer { error, .. } => {
                    error.as_ref().is_some_and(|text| text.contains("odd"))
                }
                Outcome::Release => false,
            };
            answers.push(if is_refused || always {
                Settled::Refused(Invalid::Empty { what: "planned" })
            } else {
                let outcome = settlement.outcome.clone();
                self.inner.settle_one(&settlement.lease, outcome).await?
            });
        }
        Ok(answers)
    }

    fn trouble(&self, operation: &'static str) -> Option<Trouble> {
        self.trouble.lock().unwrap().get(operation).copied()
    }

    async fn wait_while(&self, is_held: impl Fn() -> bool) {
        while is_held() {
            let calmed = self.calmed.notified();
            if is_held() {
                calmed.await;
            }
        }
    }

    async fn run<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.wait_while(|| matches!(self.trouble(operation), Some(Trouble::Hold)))
            .await;
        self.follow();
        match self.trouble(operation) {
            None
            | Some(Trouble::Hold | Trouble::RefuseOutcome { .. } | Trouble::RefuseDead { .. }) => {
                work.await
            }
            Some(Trouble::Refuse(kind)) => Err(Error::new(kind, "planned").in_operation(operation)),
            Some(Trouble::RefuseOnce(kind)) => {
                self.calm(operation);
                Err(Error::new(kind, "planned").in_operation(operation))
            }
            Some(Trouble::HoldAnswer) => {
                let answer = work.await;
                self.wait_while(|| matches!(self.trouble(operation), Some(Trouble::HoldAnswer)))
                    .await;
                answer
            }
            Some(Trouble::LoseReply) => {
                work.await?;
                let error = Error::new(ErrorKind::Unavailable, "reply lost, as planned")
                    .in_operation(operation);
                Err(error.with_effect(Effect::Unknown))
            }
        }
    }

    pub async fn receive_all(&self, messages: impl IntoIterator<Item = Message>) {
        let messages: Vec<_> = messages.into_iter().collect();
        let receipts = self.inner.receive(&messages).await.unwrap();
        assert!(receipts.iter().all(|r| *r == Receipt::Accepted));
    }

    pub async fn record(&self, id: impl std::fmt::Display) -> Record {
        self.inner.get(&key(id)).await.unwrap().unwrap()
    }

    pub async fn count(&self, state: State) -> u64 {
        let states = vec![state];
        let filter = Filter {
            states,
            ..Filter::default()
        };
        self.inner.count(&filter).await.unwrap()
    }

    pub async fn records(&self) -> Vec<Record> {
        let page = Page::first(Page::MAX);
        self.inner
            .list(&Filter::default(), &page)
            .await
            .unwrap()
            .records
    }

    /// Claims as a worker that crashes: nothing is settled, and the lease runs out.
    pub async fn crash(&self, limit: u32) -> Vec<Leased> {
        let worker = WorkerName::new("crasher").unwrap();
        let length = Duration::from_secs(1);
        let claims = self
            .inner
            .claim_for(&billing(), limit, length, &worker)
            .await
            .unwrap();
        self.clock.advance(Duration::from_secs(2));
        claims.leased
    }
}

#[async_trait]
impl Store for Spy {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.run("receive", self.inner.receive(messages)).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.claim_limits.lock().unwrap().push(request.limit);
        let mut claims = self.run("claim", self.inner.claim(request)).await?;
        if let Some(gate) = &self.claim_gate {
            gate.acquire().await.unwrap().forget();
        }
        claims.corrupt.append(&mut self.corrupt.lock().unwrap());
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.settle_sizes.lock().unwrap().push(settlements.len());
        let ids = settlements.iter().map(|one| one.lease.key.id.to_string());
        self.settled_ids.lock().unwrap().push(ids.collect());
        if let Some(Trouble::RefuseOutcome { always }) = self.trouble("settle") {
            return self.settle_unrefused(settlements, always).await;
        }
        if let Some(Trouble::RefuseDead { always }) = self.trouble("settle")
            && let [settlement] = settlements
            && let Outcome::Dead { reason, .. } = &settlement.outcome
            && (always || reason.contains("abandoned"))
        {
            return Ok(vec![Settled::Refused(Invalid::Empty { what: "planned" })]);
        }
        self.run("settle", self.inner.settle(settlements)).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        *self.extends.lock().unwrap() += 1;
        self.run("extend", self.inner.extend(leases, length)).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.inner.begin(message, terms).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.run("subscribe", self.inner.subscribe(handlers)).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Keeps what the processor told.
#[derive(Clone, Default)]
pub struct Told {
    told: Arc<Mutex<Vec<String>>>,
    pub failures: Arc<Mutex<Vec<String>>>,
}

impl Told {
    fn add(&self, text: String) {
        self.told.lock().unwrap().push(text);
    }

    pub fn all(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }
}

#[async_trait]
impl Hooks for Told {
    async fn attempt_failed(&self, message: &Leased, error: &str, _: Duration) {
        self.failures
            .lock()
            .unwrap()
            .push(format!("failed {}: {error}", message.message.id()));
    }

    async fn dead_lettered(&self, message: &Leased, reason: &str) {
        self.add(format!("dead {}: {reason}", message.message.id()));
    }

    async fn lease_lost(&self, message: &Leased) {
        self.add(format!("lost {}", message.message.id()));
    }

    async fn outcome_refused(&self, message: &Leased, reason: &str) {
        self.add(format!("refused {}: {reason}", message.message.id()));
    }

    async fn corrupt_row(&self, row: &CorruptRow) {
        self.add(format!("corrupt {}", row.place));
    }

    async fn backlog_age(&self, handler: &inbox::HandlerStatistics, limit: Duration) {
        assert!(handler.lag.unwrap() > limit);
        self.add(format!("backlog {}", handler.handler));
    }
}

pub fn billing() -> HandlerName {
    HandlerName::new("billing").unwrap()
}

pub fn key(id: impl std::fmt::Display) -> Key {
    Key::new(billing(), MessageId::new(id.to_string()).unwrap())
}

pub fn message_of(kind: &str, id: impl std::fmt::Display, payload: impl Into<Bytes>) -> Message {
    Message::new(billing(), key(id).id, Kind::new(kind).unwrap(), payload)
}

pub fn message(id: impl std::fmt::Display) -> Message {
    message_of("order.placed", id, r#"{"order": 7}"#)
}

/// Retries at once, up to this many attempts.
pub fn at_once(attempts: u32) -> RetryPolicy {
    RetryPolicy::default()
        .with_max_attempts(attempts)
        .with_delays(Duration::ZERO, Duration::ZERO)
}

/// A processor that looks for work often.
pub fn processor(spy: &Arc<Spy>, router: Router) -> ProcessorBuilder {
    Processor::builder(spy.clone())
        .router(router)
        .poll_intervals(Duration::from_millis(2), Duration::from_millis(10))
}

/// Runs until nothing is due. Long enough for the slowest machine, so that only a hang fails.
pub async fn until_idle(builder: ProcessorBuilder) -> Summary {
    let processor = builder.build().unwrap();
    let run = processor.run_until_idle(CancellationToken::new());
    tokio::time::timeout(Duration::from_secs(60), run)
        .await
        .unwrap()
        .unwrap()
}

/// The same where the runtime's clock is paused, so that a limit would be over at once.
pub async fn until_idle_by_a_paused_clock(builder: ProcessorBuilder) -> Summary {
    let processor = builder.build().unwrap();
    let run = processor.run_until_idle(CancellationToken::new());
    run.await.unwrap()
}

/// Waits until something is so; panics when it never is.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..24_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}
