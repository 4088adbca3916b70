//! Stores with one classic defect each: a correct memory store behind a wrapper that spoils one
//! thing.

mod claiming;
mod lengths;
mod operating;
mod receiving;
mod settling;
mod texts;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use conformance_tests::{Fixture, Harness, Need, Offered, SchemaVariant, Settings};
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Clock, Error, ErrorKind, Expired, Extended, Filter,
    HandlerName, Inbox, Intervention, Key, Lease, LeaseTerms, Listing, Message, Migration, Operate,
    Page, Progress, Receipt, Record, Result, Schema, Settled, Settlement, Slice, Statistics, Store,
    Subscription,
};
use inbox_memory::{MemoryOptions, MemoryStore};

pub(crate) use {
    claiming::{CrashNotCounted, LocalClock, NoRecovery, TwoBeginners},
    lengths::{
        OtherAges, OtherDelays, OtherExtensions, OtherLeases, OtherRetries, capped, early,
        in_seconds,
    },
    operating::{
        LoopingSlices, NeverUnblocked, PagingByOffset, PurgeForgetsEarly, PurgeTakesPending,
        ReplayKeepsAttempts, SlicesEndEarly,
    },
    receiving::{
        CheckThenInsert, DuplicateFailsBatch, FoldsCase, FoldsTrailingSpace, KeyWithoutHandler,
        LosesBatchMember, Overwrites, StatusInKey,
    },
    settling::{Overtakes, RetryAtOnce, UnfencedExtend, UnfencedSettle, WorkerNameAsFence},
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

    async fn purge(&self, inner: &MemoryStore, expired: &Expired) -> Result<u64> {
        inner.purge(expired).await
    }

    async fn count(&self, inner: &MemoryStore, filter: &Filter) -> Result<u64> {
        inner.count(filter).await
    }

    async fn expired(&self, inner: &MemoryStore, expired: &Expired) -> Result<Listing> {
        inner.expired(expired).await
    }

    /// The operation that answers with nothing while the store is away.
    fn blind(&self) -> &'static str {
        ""
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

/// A limit that a listing does not keep to.
pub(crate) struct ExpiredWithoutLimit;

#[async_trait]
impl Defect for ExpiredWithoutLimit {
    async fn expired(&self, inner: &MemoryStore, expired: &Expired) -> Result<Listing> {
        let all = Expired::new(expired.state(), expired.older_than(), 1000).unwrap();
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
    Error::new(ErrorKind::Unavailable, operation, "the store is away")
}

/// A memory store with a defect and a switch for outages.
pub(crate) struct Broken<D> {
    inner: MemoryStore,
    defect: D,
    is_away: AtomicBool,
}

impl<D: Defect> Broken<D> {
    fn is_blind(&self, operation: &str) -> bool {
        self.is_away.load(Ordering::SeqCst) && self.defect.blind() == operation
    }

    fn check(&self, operation: &'static str) -> Result<&MemoryStore> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(unavailable(operation));
        }
        Ok(&self.inner)
    }
}

#[async_trait]
impl<D: Defect> Store for Broken<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        match self.check("receive") {
            Ok(inner) => self.defect.receive(inner, messages).await,
            Err(_) => self.defect.away(messages),
        }
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        if self.is_blind("claim") {
            return Ok(Claims::default());
        }
        self.defect.claim(self.check("claim")?, request).await
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Settled>> {
        if self.is_blind("settle") {
            return Ok(vec![Settled::LeaseLost; batch.len()]);
        }
        self.defect.settle(self.check("settle")?, batch).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        if self.is_blind("extend") {
            return Ok(vec![Extended::LeaseLost; leases.len()]);
        }
        self.defect
            .extend(self.check("extend")?, leases, length)
            .await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.defect
            .begin(self.check("begin")?, message, terms)
            .await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.inner.subscribe(handlers).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl<D: Defect> Schema for Broken<D> {
    fn ddl(&self) -> String {
        self.inner.ddl()
    }

    fn expected_version(&self) -> u32 {
        self.inner.expected_version()
    }

    async fn version(&self) -> Result<Option<u32>> {
        self.inner.version().await
    }

    async fn exists(&self) -> Result<bool> {
        self.inner.exists().await
    }

    async fn create(&self) -> Result<()> {
        self.inner.create().await
    }

    async fn migrate(&self) -> Result<Migration> {
        self.inner.migrate().await
    }
}

#[async_trait]
impl<D: Defect> Operate for Broken<D> {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        if self.is_blind("get") {
            return Ok(None);
        }
        self.defect.get(self.check("get")?, key).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        if self.is_blind("list") {
            return Ok(Listing::default());
        }
        self.defect.list(self.check("list")?, filter, page).await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        if self.is_blind("count") {
            return Ok(0);
        }
        self.defect.count(self.check("count")?, filter).await
    }

    async fn statistics(&self) -> Result<Statistics> {
        if self.is_blind("statistics") {
            return Ok(Statistics::default());
        }
        self.defect.statistics(self.check("statistics")?).await
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        if self.is_blind("replay") {
            return Ok(Intervention::NotFound);
        }
        self.defect
            .replay(self.check("replay")?, key, payload)
            .await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        if self.is_blind("replay_slice") {
            return Ok(Progress {
                changed: 0,
                next: None,
            });
        }
        let inner = self.check("replay_slice")?;
        self.defect.replay_slice(inner, filter, slice).await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        if self.is_blind("discard") {
            return Ok(Intervention::NotFound);
        }
        self.check("discard")?.discard(key).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        if self.is_blind("discard_slice") {
            return Ok(Progress {
                changed: 0,
                next: None,
            });
        }
        self.defect
            .discard_slice(self.check("discard_slice")?, filter, slice)
            .await
    }

    async fn purge(&self, expired: &Expired) -> Result<u64> {
        if self.is_blind("purge") {
            return Ok(0);
        }
        self.defect.purge(self.check("purge")?, expired).await
    }

    async fn expired(&self, expired: &Expired) -> Result<Listing> {
        if self.is_blind("expired") {
            return Ok(Listing::default());
        }
        self.defect.expired(self.check("expired")?, expired).await
    }

    async fn purge_archived(&self, expired: &Expired, keys: &[Key]) -> Result<u64> {
        if self.is_blind("purge_archived") {
            return Ok(0);
        }
        self.check("purge_archived")?
            .purge_archived(expired, keys)
            .await
    }
}

/// Makes fresh stores with the defect that the function makes.
pub(crate) struct Workshop<D: Defect> {
    pub(crate) name: &'static str,
    pub(crate) defect: fn() -> D,
}

#[async_trait]
impl<D: Defect> Harness for Workshop<D> {
    fn name(&self) -> String {
        self.name.into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let defaults = MemoryOptions::default();
        let clock = Clock::system();
        let inner = MemoryStore::with(MemoryOptions {
            payload_limit: settings.payload_limit.unwrap_or(defaults.payload_limit),
            drop_processed_payloads: settings.drop_processed_payloads,
            clock: clock.clone(),
        });
        let store = Arc::new(Broken {
            inner,
            defect: (self.defect)(),
            is_away: AtomicBool::new(false),
        });
        Ok(Box::new(Place { store, clock }))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        vec![
            Need::SecondConnection,
            Need::WakeupsAcrossProcesses,
            Need::Restart,
            Need::PowerLoss,
            Need::OutageAmidWrites,
            Need::Transactions,
            Need::Silence,
            Need::CorruptRows,
            Need::Schema(SchemaVariant::Missing),
            Need::Schema(SchemaVariant::Incomplete),
            Need::Schema(SchemaVariant::Older),
            Need::Schema(SchemaVariant::Newer),
            Need::Schema(SchemaVariant::Foreign),
        ]
    }
}

struct Place<D> {
    store: Arc<Broken<D>>,
    clock: Clock,
}

#[async_trait]
impl<D: Defect> Fixture for Place<D> {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.store.clone()
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }

    async fn begin_outage(&self) -> Offered<()> {
        self.store.is_away.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn end_outage(&self) -> Offered<()> {
        self.store.is_away.store(false, Ordering::SeqCst);
        Ok(())
    }
}
