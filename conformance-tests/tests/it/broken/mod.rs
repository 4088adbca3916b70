//! Stores with one classic defect each: a correct memory store behind a wrapper that spoils one
//! thing.

pub(crate) mod archiving;
pub(crate) mod behind;
pub(crate) mod bulk;
pub(crate) mod claiming;
pub(crate) mod corners;
pub(crate) mod corrupting;
pub(crate) mod decided;
pub(crate) mod deferring;
pub(crate) mod history;
pub(crate) mod horizons;
pub(crate) mod inconsistent;
pub(crate) mod leaking;
mod lengths;
pub(crate) mod looking;
pub(crate) mod minimal;
mod operating;
pub(crate) mod pace;
pub(crate) mod pausing;
pub(crate) mod racing;
mod receiving;
pub(crate) mod rescheduling;
pub(crate) mod retaining;
pub(crate) mod runs;
pub(crate) mod scanning;
pub(crate) mod schema;
mod settling;
pub(crate) mod skewed;
mod store;
pub(crate) mod table;
pub(crate) mod telling;
mod texts;
pub(crate) mod waking;
mod workshop;

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Due, Edit, Error, ErrorKind, Extended, Filter,
    HandlerName, Intervention, Key, Lease, LeaseTerms, Listing, Message, Operate, Page, Progress,
    PurgeRequest, Receipt, Record, Result, Settled, Settlement, Slice, Statistics, Store,
    Subscription,
};
use inbox_memory::MemoryStore;

pub(crate) use store::Broken;
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

    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        inner.replay(key, edit).await
    }

    async fn reschedule(&self, inner: &MemoryStore, key: &Key, due: Due) -> Result<Intervention> {
        inner.reschedule(key, due).await
    }

    async fn reschedule_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
        due: Due,
    ) -> Result<Progress> {
        inner.reschedule_slice(filter, slice, due).await
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

    async fn clear_slice(
        &self,
        inner: &MemoryStore,
        handler: &HandlerName,
        slice: &Slice,
    ) -> Result<Progress> {
        inner.clear_slice(handler, slice).await
    }

    async fn pause(&self, inner: &MemoryStore, handler: &HandlerName) -> Result<()> {
        inner.pause(handler).await
    }

    async fn resume(&self, inner: &MemoryStore, handler: &HandlerName) -> Result<()> {
        inner.resume(handler).await
    }

    async fn paused(&self, inner: &MemoryStore) -> Result<Vec<HandlerName>> {
        inner.paused().await
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

    async fn drop_payloads(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        inner.drop_payloads(expired).await
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
        Ok(vec![Receipt::Duplicate { differs: false }; messages.len()])
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
