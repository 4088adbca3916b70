//! A store that blocks, fails, answers late or not at all, and remembers what it accepted in which
//! order.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Effect, Error, ErrorKind, Extended, Filter,
    HandlerName, Inbox, Lease, LeaseTerms, Message, Page, Receipt, Record, Result, Settled,
    Settlement, Store, Subscription,
};
use tokio::{sync::watch, time::sleep};

use crate::{Failure, context::some};

/// Where calls of `receive` wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    /// Before anything is stored, from the call of this number on.
    BeforeCall(usize),
    /// After it is stored, before it is answered.
    Answer,
}

/// What happens to a call of `receive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails and has stored nothing.
    Before(ErrorKind),
    /// It stores, and fails all the same.
    After,
}

pub(crate) struct Shelf {
    inner: Arc<dyn Inbox>,
    gate: watch::Sender<Gate>,
    pause: Mutex<Duration>,
    faults: Mutex<VecDeque<Fault>>,
    calls: AtomicUsize,
    asked: AtomicUsize,
    log: Arc<tokio::sync::Mutex<()>>,
    noted: Arc<Mutex<Noted>>,
}

#[derive(Default)]
struct Noted {
    accepted: Vec<Message>,
    duplicates: usize,
}

impl Shelf {
    pub(crate) async fn new() -> std::result::Result<Arc<Self>, Failure> {
        let inner = inbox::connect("memory://").await?;
        inner.create().await?;
        Ok(Arc::new(Self::on(inner, Arc::default(), Arc::default())))
    }

    fn on(
        inner: Arc<dyn Inbox>,
        log: Arc<tokio::sync::Mutex<()>>,
        noted: Arc<Mutex<Noted>>,
    ) -> Self {
        Self {
            inner,
            gate: watch::Sender::new(Gate::Open),
            pause: Mutex::default(),
            faults: Mutex::default(),
            calls: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            log,
            noted,
        }
    }

    /// Another connection to the same store, with a gate of its own.
    pub(crate) fn sibling(&self) -> Arc<Self> {
        let inner = Arc::clone(&self.inner);
        let (log, noted) = (Arc::clone(&self.log), Arc::clone(&self.noted));
        Arc::new(Self::on(inner, log, noted))
    }

    pub(crate) fn set_gate(&self, gate: Gate) {
        self.gate.send_replace(gate);
    }

    /// Holds all calls from now on before they store anything.
    pub(crate) fn hold(&self) {
        self.set_gate(Gate::BeforeCall(0));
    }

    pub(crate) fn open(&self) {
        self.set_gate(Gate::Open);
    }

    /// Each call takes so long.
    pub(crate) fn slow(&self, pause: Duration) {
        *lock(&self.pause) = pause;
    }

    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.faults).extend(faults);
    }

    /// Messages that it was asked to store, again and again counted.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    /// What was accepted, in its order.
    pub(crate) fn accepted(&self) -> Vec<Message> {
        lock(&self.noted).accepted.clone()
    }

    /// How often something came that was there.
    pub(crate) fn duplicates(&self) -> usize {
        lock(&self.noted).duplicates
    }

    /// The records of a handler, with payloads.
    pub(crate) async fn records(&self, handler: &str) -> std::result::Result<Vec<Record>, Failure> {
        let filter = Filter {
            handler: Some(HandlerName::new(handler)?),
            ..Filter::default()
        };
        let page = Page {
            with_payload: true,
            ..Page::first(Page::MAX)
        };
        Ok(self.inner.list(&filter, &page).await?.records)
    }

    /// That it has exactly these ids for the handler `orders`.
    pub(crate) async fn holds(
        &self,
        ids: impl IntoIterator<Item = String>,
    ) -> std::result::Result<(), Failure> {
        let expected: BTreeSet<String> = ids.into_iter().collect();
        let records = self.records("orders").await?;
        let stored: BTreeSet<String> = records
            .iter()
            .map(|record| record.key.id.as_str().to_owned())
            .collect();
        let lost = some(expected.difference(&stored));
        let foreign = some(stored.difference(&expected));
        if stored != expected {
            return Err(format!("lost: {lost}; stored, but not expected: {foreign}").into());
        }
        Ok(())
    }

    /// That the messages of each ordering key were accepted in the order of their numbers.
    pub(crate) fn in_order(&self) -> std::result::Result<(), Failure> {
        let mut last: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for message in self.accepted() {
            let (Some(key), id) = (message.ordering_key(), message.id().as_str()) else {
                return Err(format!("{} has no ordering key", message.id()).into());
            };
            let number = id.strip_prefix("m-").and_then(|number| number.parse().ok());
            let number: usize = number.ok_or_else(|| format!("{id} has no number"))?;
            if let Some((before, of)) = last.get(key.as_str())
                && *before > number
            {
                return Err(format!("of the key {key}, {id} was accepted after {of}").into());
            }
            last.insert(key.as_str().into(), (number, id.into()));
        }
        Ok(())
    }

    async fn pass(&self, waits: impl Fn(&Gate) -> bool) {
        let mut gate = self.gate.subscribe();
        // The sender is this value's own, so it cannot be gone.
        let _ = gate.wait_for(|gate| !waits(gate)).await;
    }

    /// Stores and notes it as one step, so that the order of the notes is that of the store.
    async fn keep(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let _turn = self.log.lock().await;
        let receipts = self.inner.receive(messages).await?;
        let mut noted = lock(&self.noted);
        for (message, receipt) in messages.iter().zip(&receipts) {
            match receipt {
                Receipt::Accepted => noted.accepted.push(message.clone()),
                Receipt::Duplicate { .. } => noted.duplicates += 1,
                Receipt::Refused(_) => {}
            }
        }
        Ok(receipts)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Store for Shelf {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let call = self.calls.fetch_add(1, SeqCst);
        self.asked.fetch_add(messages.len(), SeqCst);
        self.pass(|gate| matches!(gate, Gate::BeforeCall(first) if call >= *first))
            .await;
        let pause = *lock(&self.pause);
        if !pause.is_zero() {
            sleep(pause).await;
        }
        let fault = lock(&self.faults).pop_front();
        if let Some(Fault::Before(kind)) = fault {
            return Err(Error::new(kind, "planned").in_operation("receive"));
        }
        let receipts = self.keep(messages).await?;
        self.pass(|gate| *gate == Gate::Answer).await;
        if fault == Some(Fault::After) {
            let lost = Error::new(ErrorKind::Unavailable, "planned, the answer is lost");
            return Err(lost.in_operation("receive").with_effect(Effect::Unknown));
        }
        Ok(receipts)
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.inner.claim(request).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.inner.settle(settlements).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.inner.extend(leases, length).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.inner.begin(message, terms).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.inner.subscribe(handlers).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
