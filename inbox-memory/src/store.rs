//! The store itself, and the working side of it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Error, ErrorKind, Extended, HandlerName, Invalid,
    Lease, LeaseTerms, Message, Outcome, Receipt, ReceiveAtomicity, Result, Settled, Settlement,
    Store, Subscription, Wakeups as Reach, check_size,
};

use crate::{MemoryOptions, queue::Queue, wakeups::Wakeups};

/// An inbox in memory. Everything in it is gone when the process ends.
///
/// Cloning is cheap, and clones share the inbox. See the [crate documentation](crate).
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    options: MemoryOptions,
    is_closed: AtomicBool,
    /// The sequence number of the message accepted last, of all handlers.
    last_seq: AtomicI64,
    /// In order of name, which is the order in which locks are taken. Only grows.
    queues: RwLock<BTreeMap<HandlerName, SharedQueue>>,
    wakeups: Wakeups,
}

pub(crate) type SharedQueue = Arc<Mutex<Queue>>;

impl MemoryStore {
    /// An empty inbox with the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::with(MemoryOptions::default())
    }

    /// An empty inbox.
    #[must_use]
    pub fn with(options: MemoryOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                options,
                is_closed: AtomicBool::new(false),
                last_seq: AtomicI64::new(0),
                queues: RwLock::default(),
                wakeups: Wakeups::default(),
            }),
        }
    }

    pub(crate) fn options(&self) -> &MemoryOptions {
        &self.inner.options
    }

    pub(crate) fn check_open(&self, operation: &'static str) -> Result<()> {
        if self.inner.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                operation,
                "the store is closed",
            ));
        }
        Ok(())
    }

    /// The queues of those of `handlers` that have one, in order of name.
    pub(crate) fn queues_of<'a>(
        &self,
        handlers: impl Iterator<Item = &'a HandlerName>,
    ) -> Vec<SharedQueue> {
        let handlers: BTreeSet<&HandlerName> = handlers.collect();
        let queues = self
            .inner
            .queues
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        handlers
            .into_iter()
            .filter_map(|handler| queues.get(handler).cloned())
            .collect()
    }

    /// All queues, in order of name.
    pub(crate) fn all_queues(&self) -> Vec<SharedQueue> {
        let queues = self
            .inner
            .queues
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        queues.values().cloned().collect()
    }

    /// The queues of `handlers`, in order of name, made where there are none yet.
    fn queues_made_for<'a>(
        &self,
        handlers: impl Iterator<Item = &'a HandlerName>,
    ) -> Vec<SharedQueue> {
        let handlers: BTreeSet<&HandlerName> = handlers.collect();
        let found = self.queues_of(handlers.iter().copied());
        if found.len() == handlers.len() {
            return found;
        }
        let mut queues = self
            .inner
            .queues
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let make = |handler: &HandlerName| Arc::new(Mutex::new(Queue::new(handler.clone())));
        handlers
            .into_iter()
            .map(|handler| {
                let queue = queues.entry(handler.clone());
                Arc::clone(queue.or_insert_with(|| make(handler)))
            })
            .collect()
    }

    /// Locks `queues`, which are in order of name, and does `work` at one moment of the store's
    /// clock. Then wakes those who wait for what has become claimable by it.
    pub(crate) fn with_queues<R>(
        &self,
        queues: &[SharedQueue],
        work: impl FnOnce(&mut Locked<'_>, i64) -> R,
    ) -> R {
        let mut locked = Locked(queues.iter().map(lock).collect());
        let now = self.inner.options.clock.now_micros();
        let answer = work(&mut locked, now);
        let with_news: Vec<HandlerName> = locked
            .0
            .iter_mut()
            .filter_map(|queue| queue.take_news().then(|| queue.handler().clone()))
            .collect();
        drop(locked);
        self.inner.wakeups.wake(&with_news);
        answer
    }

    fn next_seq(&self) -> i64 {
        self.inner.last_seq.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn lock(queue: &SharedQueue) -> MutexGuard<'_, Queue> {
    // A queue is left whole between two transitions, and nothing that runs within one panics.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The locked queues of one operation, in order of name.
pub(crate) struct Locked<'a>(Vec<MutexGuard<'a, Queue>>);

impl Locked<'_> {
    /// The queue of `handler`, if it is among them.
    pub(crate) fn get(&mut self, handler: &HandlerName) -> Option<&mut Queue> {
        let found = self
            .0
            .binary_search_by(|queue| queue.handler().cmp(handler));
        found.ok().map(|position| &mut *self.0[position])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.0.iter().map(|queue| &**queue)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal(
            "nothing: gone when the process ends",
            self.options().payload_limit,
        );
        capabilities.ordering = true;
        capabilities.wakeups = Reach::SameProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.check_open("receive")?;
        let queues = self.queues_made_for(messages.iter().map(Message::handler));
        let receive = |queues: &mut Locked<'_>, message: &Message, now| {
            if let Err(invalid) = message.check_payload(self.options().payload_limit) {
                return Ok(Receipt::Refused(invalid));
            }
            let queue = queues
                .get(message.handler())
                .ok_or_else(|| no_queue("receive"))?;
            Ok(queue.receive(message, || self.next_seq(), now))
        };
        self.with_queues(&queues, |queues, now| {
            messages
                .iter()
                .map(|message| receive(queues, message, now))
                .collect()
        })
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.check_open("claim")?;
        let queues = self.queues_of(request.handlers.iter());
        let limit = request.limit as usize;
        let leased = self.with_queues(&queues, |Locked(queues), now| {
            // The longest-due message of each queue; the smallest of them is the next to take.
            let mut first: BinaryHeap<Reverse<(i64, i64, usize)>> = BinaryHeap::new();
            let next_of = |queue: &Queue, position: usize| {
                let (at, seq) = queue.first_claimable(now)?;
                Some(Reverse((at, seq, position)))
            };
            for (position, queue) in queues.iter().enumerate() {
                first.extend(next_of(queue, position));
            }
            let mut leased = Vec::new();
            while leased.len() < limit
                && let Some(Reverse((_, seq, position))) = first.pop()
            {
                let queue = &mut queues[position];
                leased.extend(queue.lease(seq, &request.terms, now));
                first.extend(next_of(queue, position));
            }
            leased
        });
        Ok(Claims {
            leased,
            corrupt: Vec::new(),
        })
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.check_open("settle")?;
        let MemoryOptions {
            payload_limit,
            drop_processed_payloads,
            ..
        } = *self.options();
        let queues = self.queues_of(settlements.iter().map(|s| &s.lease.key.handler));
        Ok(self.with_queues(&queues, |queues, now| {
            let settle = |settlement: &Settlement| {
                if let Err(invalid) = check_result(&settlement.outcome, payload_limit) {
                    return Settled::Refused(invalid);
                }
                queues
                    .get(&settlement.lease.key.handler)
                    .map_or(Settled::LeaseLost, |queue| {
                        queue.settle(settlement, drop_processed_payloads, now)
                    })
            };
            settlements.iter().map(settle).collect()
        }))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.check_open("extend")?;
        LeaseTerms::check_length(length).map_err(|invalid| invalid.in_operation("extend"))?;
        let queues = self.queues_of(leases.iter().map(|lease| &lease.key.handler));
        Ok(self.with_queues(&queues, |queues, now| {
            let extend = |lease: &Lease| {
                queues
                    .get(&lease.key.handler)
                    .map_or(Extended::LeaseLost, |queue| {
                        queue.extend(lease, length, now)
                    })
            };
            leases.iter().map(extend).collect()
        }))
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.check_open("begin")?;
        message
            .check_payload(self.options().payload_limit)
            .map_err(|invalid| invalid.in_operation("begin"))?;
        let queues = self.queues_made_for(std::iter::once(message.handler()));
        self.with_queues(&queues, |queues, now| {
            let queue = queues.get(message.handler())?;
            let _known_or_not = queue.receive(message, || self.next_seq(), now);
            queue.begin(message.id(), terms, now)
        })
        .ok_or_else(|| no_queue("begin"))
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.check_open("subscribe")?;
        Ok(self.inner.wakeups.subscribe(handlers))
    }

    /// Closes the inbox for all clones, and wakes their subscriptions once.
    async fn close(&self) {
        self.inner.is_closed.store(true, Ordering::Release);
        self.inner.wakeups.wake_all();
    }
}

fn check_result(outcome: &Outcome, limit: usize) -> Result<(), Invalid> {
    match outcome {
        Outcome::Processed {
            result: Some(result),
        } => check_size("result", result.len(), limit),
        _ => Ok(()),
    }
}

/// Queues are made before they are locked and never removed, so nobody gets to see this.
fn no_queue(operation: &'static str) -> Error {
    Error::new(ErrorKind::Other, operation, "the handler has no queue")
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("options", self.options())
            .finish_non_exhaustive()
    }
}
