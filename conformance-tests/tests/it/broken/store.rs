//! The wrapper around a memory store, with its defect.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Due, Edit, Error, Extended, Filter, HandlerName,
    Intervention, Key, Lease, LeaseTerms, Listing, Message, Migration, Operate, OperatorName, Page,
    Progress, PurgeRequest, Receipt, Record, Result, Schema, Settled, Settlement, Slice,
    Statistics, Store, Subscription,
};
use inbox_memory::MemoryStore;

use super::{Defect, corrupting::Corrupt, schema, schema::Condition, unavailable, waking};

/// A memory store with a defect, and switches for outages and for its end. Another process has the same
/// memory, a defect of its own, and an end of its own.
pub(crate) struct Broken<D> {
    pub(super) inner: MemoryStore,
    pub(super) defect: D,
    pub(super) condition: Condition,
    pub(super) corrupt: Corrupt,
    pub(super) is_away: Arc<AtomicBool>,
    pub(super) outages: Arc<AtomicUsize>,
    pub(super) is_closed: AtomicBool,
}

impl<D: Defect> Broken<D> {
    fn is_blind(&self, operation: &str) -> bool {
        self.is_away.load(Ordering::SeqCst) && self.defect.blind() == operation
    }

    fn check(&self, operation: &'static str) -> Result<&MemoryStore> {
        let is_up = self.check_is_up(operation);
        if self.defect.unnamed() == operation && is_up.is_err() {
            return Err(Error::new(self.defect.away_as(), "the store is away"));
        }
        is_up
    }

    fn check_is_up(&self, operation: &'static str) -> Result<&MemoryStore> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(unavailable(operation));
        }
        if self.is_away.load(Ordering::SeqCst) {
            let kind = self.defect.away_as();
            return Err(Error::new(kind, "the store is away").in_operation(operation));
        }
        Ok(&self.inner)
    }

    /// Does an operation, unless the store is away; then the answer of one that is blind to it.
    async fn ask<'a, T, F>(
        &'a self,
        operation: &'static str,
        nothing: T,
        doing: impl FnOnce(&'a MemoryStore) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let doing = || async {
            self.condition.check(&self.defect, operation)?;
            doing(&self.inner).await
        };
        self.set_up(operation, nothing, doing).await
    }

    /// The same, whether there is an inbox or not.
    async fn set_up<T, F>(
        &self,
        operation: &'static str,
        nothing: T,
        doing: impl FnOnce() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        if self.is_blind(operation) {
            return Ok(nothing);
        }
        if let Err(error) = self.check(operation) {
            if self.defect.denied() == operation {
                doing().await?;
            }
            return Err(error);
        }
        self.defect.enter(operation).await;
        let answer = doing().await;
        self.defect.leave(operation);
        answer
    }
}

#[async_trait]
impl<D: Defect> Store for Broken<D> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.defect.capabilities(&self.inner);
        capabilities.transactions = self.defect.in_transactions().is_some();
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let is_away = self.is_away.load(Ordering::SeqCst);
        if is_away && self.defect.denied() != "receive" {
            return self.defect.away(messages);
        }
        let receive = |inner| self.defect.receive(inner, messages);
        self.ask("receive", Vec::new(), receive).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let claim = async |inner| {
            let claims = self.defect.claim(inner, request).await?;
            self.corrupt.set_aside(&self.defect, inner, claims).await
        };
        self.ask("claim", Claims::default(), claim).await
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let lost = vec![Settled::LeaseLost; batch.len()];
        let settle = |inner| self.defect.settle(inner, batch);
        self.ask("settle", lost, settle).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        let lost = vec![Extended::LeaseLost; leases.len()];
        let extend = |inner| self.defect.extend(inner, leases, length);
        self.ask("extend", lost, extend).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        let begin = async |inner| {
            self.corrupt.check(&self.defect, "begin", message.key())?;
            self.defect.begin(inner, message, terms).await
        };
        self.ask("begin", Begun::Blocked, begin).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        let inner = self.check("subscribe")?;
        self.defect.enter("subscribe").await;
        let subscription = self.defect.subscribe(inner, handlers).await;
        self.defect.leave("subscribe");
        let outages = Arc::clone(&self.outages);
        Ok(if self.defect.is_deaf_after_an_outage() {
            Box::new(waking::Deaf::new(subscription?, outages))
        } else {
            subscription?
        })
    }

    async fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }
}

#[async_trait]
impl<D: Defect> Schema for Broken<D> {
    fn ddl(&self) -> String {
        if self.defect.at_set_up() == schema::Mistake::NoStatements {
            return String::new();
        }
        self.inner.ddl()
    }

    fn exists_query(&self) -> String {
        if self.defect.at_set_up() == schema::Mistake::NoStatements {
            return String::new();
        }
        self.inner.exists_query()
    }

    fn expected_version(&self) -> u32 {
        schema::VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        self.set_up("version", None, async || Ok(self.condition.version()))
            .await
    }

    async fn exists(&self) -> Result<bool> {
        let exists = async || self.condition.exists(&self.defect);
        self.set_up("exists", false, exists).await
    }

    async fn create(&self) -> Result<()> {
        let create = async || self.condition.create(&self.defect).await;
        self.set_up("create", (), create).await
    }

    async fn migrate(&self) -> Result<Migration> {
        let nothing = Migration {
            from: None,
            to: 0,
            works_from: 0,
        };
        let migrate = async || self.condition.migrate(&self.defect).await;
        self.set_up("migrate", nothing, migrate).await
    }

    async fn remove(&self) -> Result<()> {
        let remove = async || {
            self.condition.remove(&self.defect).await?;
            if self.defect.at_set_up() == schema::Mistake::RemovesNothing {
                return Ok(());
            }
            self.inner.remove().await
        };
        self.set_up("remove", (), remove).await
    }
}

#[async_trait]
impl<D: Defect> Operate for Broken<D> {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let get = async |inner| {
            self.corrupt.check(&self.defect, "get", key)?;
            self.defect.get(inner, key).await
        };
        self.ask("get", None, get).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        let list = async |inner| {
            let listing = self.defect.list(inner, filter, page).await?;
            self.corrupt.apart(&self.defect, "list", listing)
        };
        self.ask("list", Listing::default(), list).await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        self.ask("count", 0, |inner| self.defect.count(inner, filter))
            .await
    }

    async fn statistics(&self) -> Result<Statistics> {
        let statistics = |inner| self.defect.statistics(inner);
        self.ask("statistics", Statistics::default(), statistics)
            .await
    }

    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        // What it changes is the store's own: defects of interventions are those of the unsigned.
        self.inner.signed_by(operator)
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        let replay = |inner| self.defect.replay(inner, key, edit);
        self.ask("replay", Intervention::NotFound, replay).await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let replay = |inner| self.defect.replay_slice(inner, filter, slice);
        self.ask("replay_slice", NO_PROGRESS, replay).await
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        let reschedule = |inner| self.defect.reschedule(inner, key, due);
        self.ask("reschedule", Intervention::NotFound, reschedule)
            .await
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        let reschedule = |inner| self.defect.reschedule_slice(inner, filter, slice, due);
        self.ask("reschedule_slice", NO_PROGRESS, reschedule).await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let discard = |inner| self.defect.discard(inner, key);
        self.ask("discard", Intervention::NotFound, discard).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let discard = |inner| self.defect.discard_slice(inner, filter, slice);
        self.ask("discard_slice", NO_PROGRESS, discard).await
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        let clear = |inner| self.defect.clear_slice(inner, handler, slice);
        self.ask("clear_slice", NO_PROGRESS, clear).await
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        let pause = |inner| self.defect.pause(inner, handler);
        self.ask("pause", (), pause).await
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        let resume = |inner| self.defect.resume(inner, handler);
        self.ask("resume", (), resume).await
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        self.ask("paused", Vec::new(), |inner| self.defect.paused(inner))
            .await
    }

    async fn purge(&self, expired: &PurgeRequest) -> Result<u64> {
        self.ask("purge", 0, |inner| self.defect.purge(inner, expired))
            .await
    }

    async fn expired(&self, expired: &PurgeRequest) -> Result<Listing> {
        let list = async |inner| {
            let listing = self.defect.expired(inner, expired).await?;
            self.corrupt.apart(&self.defect, "expired", listing)
        };
        self.ask("expired", Listing::default(), list).await
    }

    async fn purge_archived(&self, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let purge = |inner| self.defect.purge_archived(inner, expired, keys);
        self.ask("purge_archived", 0, purge).await
    }

    async fn drop_payloads(&self, expired: &PurgeRequest) -> Result<u64> {
        let drop = |inner| self.defect.drop_payloads(inner, expired);
        self.ask("drop_payloads", 0, drop).await
    }
}

const NO_PROGRESS: Progress = Progress {
    changed: 0,
    next: None,
};
