//! A store that is late, fails, or is overtaken by others when a test says so, around a real one.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Due, Edit, Error, ErrorKind, Extended, Filter,
    HandlerName, Inbox, Intervention, Key, Lease, LeaseTerms, Listing, Message, Migration, Operate,
    OperatorName, Outcome, Page, Progress, PurgeRequest, Receipt, Record, Result, Schema, Settled,
    Settlement, Slice, Statistics, Store, Subscription,
};
use tokio::sync::Semaphore;

use crate::support::end_all;

pub(crate) type Meanwhile = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is to happen.
pub(crate) struct Hooks {
    /// Behind the next look at a message others replay it, and a worker finishes it.
    pub(crate) is_overtaken: AtomicBool,
    /// Listings fail.
    pub(crate) lists_fail: AtomicBool,
    /// Is done behind the next look at what is paused.
    pub(crate) meanwhile: Mutex<Option<Meanwhile>>,
    /// Each pause takes a permit.
    pub(crate) pauses: Semaphore,
    /// The slices of replays so far.
    pub(crate) slices: Mutex<Vec<Slice>>,
}

/// Its handles that sign share its hooks.
pub(crate) struct Hooked {
    pub(crate) store: Arc<dyn Inbox>,
    operate: Arc<dyn Operate>,
    pub(crate) hooks: Arc<Hooks>,
}

impl Hooked {
    pub(crate) fn new(store: Arc<dyn Inbox>) -> Arc<Self> {
        let hooks = Hooks {
            is_overtaken: AtomicBool::new(false),
            lists_fail: AtomicBool::new(false),
            meanwhile: Mutex::default(),
            pauses: Semaphore::new(0),
            slices: Mutex::default(),
        };
        let operate: Arc<dyn Operate> = store.clone();
        Arc::new(Self {
            store,
            operate,
            hooks: Arc::new(hooks),
        })
    }

    async fn overtake(&self, key: &Key) -> Result<()> {
        let _ = self.store.replay(key, &Edit::default()).await?;
        let processed = Outcome::Processed { result: None };
        end_all(self.store.as_ref(), key.handler.as_str(), processed).await;
        Ok(())
    }
}

#[async_trait]
impl Store for Hooked {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.store.receive(messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.store.claim(request).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.store.settle(settlements).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.store.extend(leases, length).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.store.begin(message, terms).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.store.subscribe(handlers).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

#[async_trait]
impl Schema for Hooked {
    fn ddl(&self) -> String {
        self.store.ddl()
    }

    fn exists_query(&self) -> String {
        self.store.exists_query()
    }

    fn expected_version(&self) -> u32 {
        self.store.expected_version()
    }

    async fn version(&self) -> Result<Option<u32>> {
        self.store.version().await
    }

    async fn exists(&self) -> Result<bool> {
        self.store.exists().await
    }

    async fn create(&self) -> Result<()> {
        self.store.create().await
    }

    async fn migrate(&self) -> Result<Migration> {
        self.store.migrate().await
    }

    async fn remove(&self) -> Result<()> {
        self.store.remove().await
    }
}

#[async_trait]
impl Operate for Hooked {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        Arc::new(Self {
            store: Arc::clone(&self.store),
            operate: self.store.signed_by(operator),
            hooks: Arc::clone(&self.hooks),
        })
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let found = self.operate.get(key).await;
        if self.hooks.is_overtaken.swap(false, SeqCst) {
            self.overtake(key).await?;
        }
        found
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        if self.hooks.lists_fail.load(SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "planned"));
        }
        self.operate.list(filter, page).await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        self.operate.count(filter).await
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.operate.statistics().await
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        self.operate.replay(key, edit).await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.hooks.slices.lock().unwrap().push(slice.clone());
        self.operate.replay_slice(filter, slice).await
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        self.operate.reschedule(key, due).await
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        self.operate.reschedule_slice(filter, slice, due).await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.operate.discard(key).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.operate.discard_slice(filter, slice).await
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        self.operate.clear_slice(handler, slice).await
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        self.hooks.pauses.acquire().await.unwrap().forget();
        self.operate.pause(handler).await
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        self.operate.resume(handler).await
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        let found = self.operate.paused().await;
        let meanwhile = self.hooks.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile.await;
        }
        found
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        self.operate.purge(request).await
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        self.operate.expired(request).await
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        self.operate.purge_archived(request, keys).await
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        self.operate.drop_payloads(request).await
    }
}
