//! A store that fails on command, around a real one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Due, Edit, Effect, Error, ErrorKind, Extended,
    Filter, HandlerName, Inbox, Intervention, Invalid, Key, Kind, Lease, LeaseTerms, Listing,
    Message, MessageId, Operate, OperatorName, Page, Progress, PurgeRequest, Receipt, Record,
    Result, Settled, Settlement, Slice, Statistics, Store, Subscription,
};
use tokio::sync::Semaphore;

/// What happens to the next call of an operation.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Nothing.
    Pass,
    /// It fails and certainly changed nothing.
    Before(ErrorKind),
    /// It is done, and its reply is lost.
    After(ErrorKind),
    /// It is done, and the answer never comes.
    Hang,
    /// It is not done, and the answer never comes.
    Never,
    /// It is done after others have had a few turns.
    Late,
    /// It is done so much later.
    Later(Duration),
    /// It is done at once, and answered so much later.
    Slow(Duration),
}

pub(crate) struct FaultyStore {
    pub(crate) inner: Arc<dyn Inbox>,
    faults: Mutex<VecDeque<(&'static str, Fault)>>,
    calls: Mutex<Vec<&'static str>>,
    batches: Mutex<Vec<Vec<String>>>,
    /// One permit per receive, when there is a gate.
    pub(crate) gate: Option<Arc<Semaphore>>,
    /// A key that receive refuses.
    pub(crate) refused: Option<Key>,
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn Inbox>) -> Self {
        Self {
            inner,
            faults: Mutex::default(),
            calls: Mutex::default(),
            batches: Mutex::default(),
            gate: None,
            refused: None,
        }
    }

    /// Appends to what happens to calls of `operation`, in order.
    pub(crate) fn plan(&self, operation: &'static str, faults: impl IntoIterator<Item = Fault>) {
        let planned = faults.into_iter().map(|fault| (operation, fault));
        self.faults.lock().unwrap().extend(planned);
    }

    /// Forgets what is planned and has not happened.
    pub(crate) fn forget_plans(&self) {
        self.faults.lock().unwrap().clear();
    }

    pub(crate) fn calls(&self, operation: &str) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| **call == operation).count()
    }

    /// The keys of each receive so far.
    pub(crate) fn batches(&self) -> Vec<Vec<String>> {
        self.batches.lock().unwrap().clone()
    }

    async fn receive_unrefused(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let is_refused = |message: &&Message| Some(message.key()) == self.refused.as_ref();
        let passed: Vec<Message> = messages
            .iter()
            .filter(|m| !is_refused(m))
            .cloned()
            .collect();
        let mut receipts = self.inner.receive(&passed).await?.into_iter();
        let answer = |message| {
            if is_refused(&message) {
                return Receipt::Refused(Invalid::Empty { what: "planned" });
            }
            receipts.next().unwrap()
        };
        Ok(messages.iter().map(answer).collect())
    }

    fn next_fault(&self, operation: &'static str) -> Fault {
        self.calls.lock().unwrap().push(operation);
        let mut faults = self.faults.lock().unwrap();
        match faults.iter().position(|(of, _)| *of == operation) {
            Some(index) => faults.remove(index).unwrap().1,
            None => Fault::Pass,
        }
    }

    async fn with<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match self.next_fault(operation) {
            Fault::Pass => work.await,
            Fault::Before(kind) => Err(Error::new(kind, "planned, before").in_operation(operation)),
            Fault::After(kind) => {
                work.await?;
                Err(Error::new(kind, "planned, reply lost")
                    .in_operation(operation)
                    .with_effect(Effect::Unknown))
            }
            Fault::Never => std::future::pending().await,
            Fault::Later(time) => {
                tokio::time::sleep(time).await;
                work.await
            }
            Fault::Slow(time) => {
                let answer = work.await;
                tokio::time::sleep(time).await;
                answer
            }
            Fault::Late => {
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                work.await
            }
            Fault::Hang => {
                work.await?;
                std::future::pending().await
            }
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let keys = messages.iter().map(|m| m.key().to_string()).collect();
        self.batches.lock().unwrap().push(keys);
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        self.with("receive", self.receive_unrefused(messages)).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.with("claim", self.inner.claim(request)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.with("settle", self.inner.settle(settlements)).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.with("extend", self.inner.extend(leases, length)).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.with("begin", self.inner.begin(message, terms)).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.inner.subscribe(handlers).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl Operate for FaultyStore {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        self.inner.signed_by(operator)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        self.with("get", self.inner.get(key)).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        self.with("list", self.inner.list(filter, page)).await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        self.inner.count(filter).await
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.with("statistics", self.inner.statistics()).await
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        self.inner.replay(key, edit).await
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        self.inner.reschedule(key, due).await
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        self.inner.reschedule_slice(filter, slice, due).await
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        self.inner.clear_slice(handler, slice).await
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        self.inner.pause(handler).await
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        self.inner.resume(handler).await
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        self.inner.paused().await
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        self.inner.drop_payloads(request).await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.inner.replay_slice(filter, slice).await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.inner.discard(key).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.inner.discard_slice(filter, slice).await
    }

    async fn purge(&self, expired: &PurgeRequest) -> Result<u64> {
        self.with("purge", self.inner.purge(expired)).await
    }

    async fn expired(&self, expired: &PurgeRequest) -> Result<Listing> {
        self.with("expired", self.inner.expired(expired)).await
    }

    async fn purge_archived(&self, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        self.with("purge_archived", self.inner.purge_archived(expired, keys))
            .await
    }
}

/// A memory inbox that is set up.
pub(crate) async fn memory() -> Arc<dyn Inbox> {
    let inbox = inbox::connect("memory://").await.unwrap();
    inbox.create().await.unwrap();
    inbox
}

pub(crate) fn handler(name: &str) -> HandlerName {
    HandlerName::new(name).unwrap()
}

pub(crate) fn message(id: impl std::fmt::Display) -> Message {
    Message::new(
        handler("billing"),
        MessageId::new(id.to_string()).unwrap(),
        Kind::new("order.placed").unwrap(),
        format!("payload of {id}"),
    )
}
