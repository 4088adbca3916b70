//! Stores with one classic defect each: a correct memory store behind a wrapper that spoils one
//! thing.

pub(crate) mod archiving;
pub(crate) mod bulk;
mod claiming;
pub(crate) mod corners;
pub(crate) mod corrupting;
pub(crate) mod decided;
pub(crate) mod deferring;
pub(crate) mod horizons;
pub(crate) mod inconsistent;
pub(crate) mod leaking;
mod lengths;
pub(crate) mod looking;
pub(crate) mod minimal;
mod operating;
pub(crate) mod pace;
pub(crate) mod racing;
mod receiving;
pub(crate) mod scanning;
pub(crate) mod schema;
mod settling;
pub(crate) mod skewed;
pub(crate) mod table;
mod texts;
pub(crate) mod waking;
mod workshop;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Error, ErrorKind, Extended, Filter, HandlerName,
    Intervention, Key, Lease, LeaseTerms, Listing, Message, Migration, Operate, Page, Progress,
    PurgeRequest, Receipt, Record, Result, Schema, Settled, Settlement, Slice, Statistics, Store,
    Subscription,
};
use inbox_memory::MemoryStore;

use corrupting::Corrupt;
use schema::Condition;

pub(crate) use workshop::Workshop;
pub(crate) use {
    claiming::{CrashNotCounted, LocalClock, NoRecovery, TwoBeginners},
    lengths::{
        DueInSeconds, OtherAges, OtherAgesOf, OtherDeferrals, OtherDelays, OtherExtensions,
        OtherLeases, OtherRetries, at_least_a_second, capped, early, in_seconds,
    },
    operating::{
        LoopingSlices, NeverUnblocked, PagingByOffset, PurgeForgetsEarly, PurgeTakesPending,
        ReplayKeepsAttempts, SlicesEndEarly,
    },
    receiving::{
        CheckThenInsert, DuplicateFailsBatch, FoldsCase, FoldsTrailingSpace, KeyWithoutHandler,
        LosesBatchMember, Overwrites, StatusInKey,
    },
    settling::{
        OneOutcome, Overtakes, RetryAtOnce, UnfencedExtend, UnfencedSettle, WorkerNameAsFence,
    },
    texts::{
        BeginRewrites, EmptyIsNone, KindByPrefix, Rewrites, parsed_json, trimmed,
        with_a_kind_in_lower_case, with_a_short_ordering_key, with_a_trimmed_kind,
        with_headers_in_lower_case, with_plain_line_ends, with_trimmed_headers,
        without_byte_order_mark, without_content_type,
    },
};

/// What a broken store does differently. Every method passes through unless a defect replaces it.
#[async_trait]
pub(crate) trait Defect: Send + Sync + 'static {
    fn capabilities(&self, inner: &MemoryStore) -> Capabilities {
        inner.capabilities()
    }

    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        inner.receive(messages).await
    }

    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        inner.claim(request).await
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        inner.settle(batch).await
    }

    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Extended>> {
        inner.extend(leases, length).await
    }

    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        inner.begin(message, terms).await
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        inner.get(key).await
    }

    async fn list(&self, inner: &MemoryStore, filter: &Filter, page: &Page) -> Result<Listing> {
        inner.list(filter, page).await
    }

    async fn replay(
        &self,
        inner: &MemoryStore,
        key: &Key,
        payload: Option<Bytes>,
    ) -> Result<Intervention> {
        inner.replay(key, payload).await
    }

    async fn discard(&self, inner: &MemoryStore, key: &Key) -> Result<Intervention> {
        inner.discard(key).await
    }

    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        inner.discard_slice(filter, slice).await
    }

    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        inner.replay_slice(filter, slice).await
    }

    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        inner.purge(expired).await
    }

    async fn count(&self, inner: &MemoryStore, filter: &Filter) -> Result<u64> {
        inner.count(filter).await
    }

    async fn expired(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<Listing> {
        inner.expired(expired).await
    }

    async fn purge_archived(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        inner.purge_archived(expired, keys).await
    }

    async fn subscribe(
        &self,
        inner: &MemoryStore,
        handlers: &[HandlerName],
    ) -> Result<Box<dyn Subscription>> {
        inner.subscribe(handlers).await
    }

    /// What an operation waits for before it begins.
    async fn enter(&self, operation: &'static str) {
        let _ = operation;
    }

    /// What it gives back at its end.
    fn leave(&self, operation: &'static str) {
        let _ = operation;
    }

    /// Whether the defect is the server's, and the same for all processes.
    fn is_the_servers(&self) -> bool {
        false
    }

    /// What goes wrong at the set-up.
    fn at_set_up(&self) -> schema::Mistake {
        schema::Mistake::None
    }

    /// What goes wrong where a row is corrupt.
    fn at_corrupt_rows(&self) -> corrupting::Mistake {
        corrupting::Mistake::None
    }

    /// The operation that answers with nothing while the store is away.
    fn blind(&self) -> &'static str {
        ""
    }

    /// The operation whose errors do not name it.
    fn unnamed(&self) -> &'static str {
        ""
    }

    /// The operation that is done while the store is away, and denied to have been.
    fn denied(&self) -> &'static str {
        ""
    }

    /// What every operation fails as while the store is away.
    fn away_as(&self) -> ErrorKind {
        ErrorKind::Unavailable
    }

    /// Whether a subscription ends with the connection that it had.
    fn is_deaf_after_an_outage(&self) -> bool {
        false
    }

    /// What its own tables keep that does not agree.
    async fn inconsistencies(&self, _: &MemoryStore) -> Vec<String> {
        Vec::new()
    }

    /// What goes wrong in transactions, if there are any.
    fn in_transactions(&self) -> Option<skewed::Mistake> {
        None
    }

    async fn statistics(&self, inner: &MemoryStore) -> Result<Statistics> {
        inner.statistics().await
    }

    /// What a receive answers while the store is away.
    fn away(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let _ = messages;
        Err(unavailable("receive"))
    }
}

/// The wrapper around a store without a defect, which must pass everything.
pub(crate) struct Correct;

impl Defect for Correct {}

/// A unique violation and an unreachable database are taken for the same.
pub(crate) struct OutageAsDuplicate;

impl Defect for OutageAsDuplicate {
    fn away(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        Ok(vec![Receipt::Duplicate; messages.len()])
    }
}

/// An operation answers with nothing when it cannot ask.
pub(crate) struct Blind(pub(crate) &'static str);

impl Defect for Blind {
    fn blind(&self) -> &'static str {
        self.0
    }
}

/// An error that does not say in which operation it was met.
pub(crate) struct Unnamed(pub(crate) &'static str);

impl Defect for Unnamed {
    fn unnamed(&self) -> &'static str {
        self.0
    }
}

/// An outage is taken for something that the caller has to mend.
pub(crate) struct AwayAs(pub(crate) ErrorKind);

impl Defect for AwayAs {
    fn away_as(&self) -> ErrorKind {
        self.0
    }
}

/// A limit that a listing does not keep to.
pub(crate) struct ExpiredWithoutLimit;

#[async_trait]
impl Defect for ExpiredWithoutLimit {
    async fn expired(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<Listing> {
        let all = PurgeRequest::new(expired.state(), expired.older_than(), 1000).unwrap();
        inner.expired(&all).await
    }
}

/// Asks for each handler by itself.
pub(crate) struct ClaimsByHandler;

#[async_trait]
impl Defect for ClaimsByHandler {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = Claims::default();
        for handler in &request.handlers {
            let request = ClaimRequest {
                handlers: vec![handler.clone()],
                ..request.clone()
            };
            claims.leased.extend(inner.claim(&request).await?.leased);
        }
        Ok(claims)
    }
}

fn unavailable(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, "the store is away").in_operation(operation)
}

/// A memory store with a defect, and switches for outages and for its end. Another process has the same
/// memory, a defect of its own, and an end of its own.
pub(crate) struct Broken<D> {
    inner: MemoryStore,
    defect: D,
    condition: Condition,
    corrupt: Corrupt,
    is_away: Arc<AtomicBool>,
    outages: Arc<AtomicUsize>,
    is_closed: AtomicBool,
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

    fn expected_version(&self) -> u32 {
        schema::VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        self.set_up("version", None, async || Ok(self.condition.version()))
            .await
    }

    async fn exists(&self) -> Result<bool> {
        let exists = async || Ok(self.condition.exists(&self.defect));
        self.set_up("exists", false, exists).await
    }

    async fn create(&self) -> Result<()> {
        let create = async || self.condition.create(&self.defect).await;
        self.set_up("create", (), create).await
    }

    async fn migrate(&self) -> Result<Migration> {
        let nothing = Migration { from: None, to: 0 };
        let migrate = async || self.condition.migrate(&self.defect).await;
        self.set_up("migrate", nothing, migrate).await
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

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        let replay = |inner| self.defect.replay(inner, key, payload);
        self.ask("replay", Intervention::NotFound, replay).await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let replay = |inner| self.defect.replay_slice(inner, filter, slice);
        self.ask("replay_slice", NO_PROGRESS, replay).await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let discard = |inner| self.defect.discard(inner, key);
        self.ask("discard", Intervention::NotFound, discard).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let discard = |inner| self.defect.discard_slice(inner, filter, slice);
        self.ask("discard_slice", NO_PROGRESS, discard).await
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
}

const NO_PROGRESS: Progress = Progress {
    changed: 0,
    next: None,
};
