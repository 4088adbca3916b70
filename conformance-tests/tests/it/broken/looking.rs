//! Answers that say something else than what is stored.

use async_trait::async_trait;
use inbox_api::{
    Attempts, Begun, ClaimRequest, Claims, Edit, Error, ErrorKind, Extended, Filter,
    HandlerStatistics, Headers, Key, Lease, LeaseTerms, Listing, Message, Operate as _, Outcome,
    Page, PurgeRequest, Receipt, Record, Result, Settled, Settlement, Statistics, Store as _,
    StoreExt as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// A part of every record is lost, or shown otherwise.
pub(crate) struct Shows(pub(crate) fn(&mut Record));

#[async_trait]
impl Defect for Shows {
    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        record.iter_mut().for_each(self.0);
        Ok(record)
    }

    async fn list(&self, inner: &MemoryStore, filter: &Filter, page: &Page) -> Result<Listing> {
        let mut listing = inner.list(filter, page).await?;
        listing.records.iter_mut().for_each(self.0);
        Ok(listing)
    }

    async fn expired(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<Listing> {
        let mut listing = inner.expired(expired).await?;
        listing.records.iter_mut().for_each(self.0);
        Ok(listing)
    }
}

pub(crate) fn no_content_type(record: &mut Record) {
    record.content_type = None;
}

pub(crate) fn no_headers(record: &mut Record) {
    record.headers = Headers::new();
}

pub(crate) fn no_worker(record: &mut Record) {
    record.worker = None;
}

pub(crate) fn no_finished_at(record: &mut Record) {
    record.finished_at = None;
}

pub(crate) fn no_result(record: &mut Record) {
    record.result = None;
}

pub(crate) fn no_error(record: &mut Record) {
    record.last_error = None;
}

pub(crate) fn short_errors(record: &mut Record) {
    if let Some(error) = &mut record.last_error {
        *error = error.chars().take(255).collect();
    }
}

pub(crate) fn no_finished_attempts(record: &mut Record) {
    record.attempts.finished = 0;
}

pub(crate) fn attempts_in_one(record: &mut Record) {
    let Attempts { started, finished } = record.attempts;
    record.attempts.finished = started.max(finished);
}

pub(crate) fn no_replays(record: &mut Record) {
    record.replays = 0;
}

pub(crate) fn no_lease_end(record: &mut Record) {
    record.lease_until = None;
}

pub(crate) fn no_blocking(record: &mut Record) {
    record.blocks_ordering_key = false;
}

pub(crate) fn due_when_accepted(record: &mut Record) {
    record.due_at = record.accepted_at;
}

/// A listing that reads its filter, or its page, otherwise.
pub(crate) struct Lists {
    pub(crate) filter: fn(&mut Filter),
    pub(crate) page: fn(&mut Page),
}

pub(crate) fn lists(filter: fn(&mut Filter)) -> Lists {
    Lists {
        filter,
        page: |_| {},
    }
}

pub(crate) fn pages(page: fn(&mut Page)) -> Lists {
    Lists {
        filter: |_| {},
        page,
    }
}

pub(crate) fn always_with_payload(page: &mut Page) {
    page.with_payload = true;
}

pub(crate) fn never_with_payload(page: &mut Page) {
    page.with_payload = false;
}

pub(crate) fn always_earliest_first(page: &mut Page) {
    page.newest_first = false;
}

pub(crate) fn of_one_at_least(page: &mut Page) {
    page.limit = page.limit.max(1);
}

pub(crate) fn from_the_start_at_nonsense(page: &mut Page) {
    page.after = page.after.take().filter(|after| after.sequence().is_ok());
}

#[async_trait]
impl Defect for Lists {
    async fn list(&self, inner: &MemoryStore, filter: &Filter, page: &Page) -> Result<Listing> {
        let (mut filter, mut page) = (filter.clone(), page.clone());
        (self.filter)(&mut filter);
        (self.page)(&mut page);
        inner.list(&filter, &page).await
    }
}

/// Errors are searched without regard to case.
pub(crate) struct FoldsErrors;

#[async_trait]
impl Defect for FoldsErrors {
    async fn list(&self, inner: &MemoryStore, filter: &Filter, page: &Page) -> Result<Listing> {
        let Some(text) = &filter.error_contains else {
            return inner.list(filter, page).await;
        };
        let all = Filter {
            error_contains: None,
            ..filter.clone()
        };
        let mut listing = inner.list(&all, page).await?;
        let text = text.to_lowercase();
        listing.records.retain(|record| {
            let error = record.last_error.as_ref();
            error.is_some_and(|error| error.to_lowercase().contains(&text))
        });
        Ok(listing)
    }
}

/// A part of the statistics is lost, or another.
pub(crate) struct Counts(pub(crate) fn(&mut Vec<HandlerStatistics>));

#[async_trait]
impl Defect for Counts {
    async fn statistics(&self, inner: &MemoryStore) -> Result<Statistics> {
        let mut statistics = inner.statistics().await?;
        (self.0)(&mut statistics.handlers);
        Ok(statistics)
    }
}

pub(crate) fn leased_as_pending(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        handler.pending += std::mem::take(&mut handler.leased);
    }
}

pub(crate) fn all_pending_due(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        handler.due = handler.pending.min(HandlerStatistics::DUE_COUNTED);
    }
}

pub(crate) fn paused_not_due(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        if handler.paused {
            handler.due = 0;
        }
    }
}

pub(crate) fn backlog_counted(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        if handler.due == HandlerStatistics::DUE_COUNTED {
            handler.due = handler.pending;
        }
    }
}

pub(crate) fn discarded_as_dead(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        handler.dead += std::mem::take(&mut handler.discarded);
    }
}

pub(crate) fn age_for_lag(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        handler.lag = handler.oldest_due_age;
    }
}

pub(crate) fn lag_for_age(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        handler.oldest_due_age = handler.lag;
    }
}

pub(crate) fn no_lag_of_nothing(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        handler.lag = Some(handler.lag.unwrap_or_default());
    }
}

pub(crate) fn all_dead_block(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        handler.blocking = handler.dead;
    }
}

pub(crate) fn empty_handlers(handlers: &mut Vec<HandlerStatistics>) {
    if handlers.is_empty() {
        let name = inbox_api::HandlerName::new("orders").unwrap();
        let mut empty = HandlerStatistics::empty(name);
        empty.lag = Some(std::time::Duration::ZERO);
        handlers.push(empty);
    }
}

/// begin answers otherwise.
pub(crate) struct Begins(pub(crate) fn(&Message, Begun) -> Begun);

#[async_trait]
impl Defect for Begins {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        let begun = inner.begin(message, terms).await?;
        Ok((self.0)(message, begun))
    }
}

pub(crate) fn without_a_result(_: &Message, begun: Begun) -> Begun {
    match begun {
        Begun::Processed { .. } => Begun::Processed { result: None },
        other => other,
    }
}

pub(crate) fn without_a_reason(_: &Message, begun: Begun) -> Begun {
    match begun {
        Begun::Dead { .. } => Begun::Dead {
            reason: String::new(),
        },
        other => other,
    }
}

pub(crate) fn discarded_for_processed(_: &Message, begun: Begun) -> Begun {
    match begun {
        Begun::Discarded => Begun::Processed { result: None },
        other => other,
    }
}

pub(crate) fn blocked_for_busy(_: &Message, begun: Begun) -> Begun {
    match begun {
        Begun::Busy { .. } => Begun::Blocked,
        other => other,
    }
}

pub(crate) fn what_was_sent(message: &Message, mut begun: Begun) -> Begun {
    if let Begun::Run(leased) = &mut begun {
        leased.message = message.clone();
    }
    begun
}

/// Outcomes are kept otherwise.
pub(crate) struct Keeps(pub(crate) fn(Outcome) -> Outcome);

#[async_trait]
impl Defect for Keeps {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut batch = batch.to_vec();
        for settlement in &mut batch {
            settlement.outcome = (self.0)(settlement.outcome.clone());
        }
        inner.settle(&batch).await
    }
}

pub(crate) fn no_empty_results(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Processed { result } => Outcome::Processed {
            result: result.filter(|result| !result.is_empty()),
        },
        other => other,
    }
}

pub(crate) fn deaths_that_block(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Dead { reason, .. } => Outcome::Dead {
            reason,
            after: inbox_api::AfterDead::Block,
        },
        other => other,
    }
}

pub(crate) fn deaths_that_never_block(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Dead { reason, .. } => Outcome::Dead {
            reason,
            after: inbox_api::AfterDead::Continue,
        },
        other => other,
    }
}

pub(crate) fn releases_that_are_retries(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Release => Outcome::Retry {
            after: std::time::Duration::ZERO,
            error: String::new(),
        },
        other => other,
    }
}

pub(crate) fn retries_that_are_releases(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Retry { after, .. } if after.is_zero() => Outcome::Release,
        other => other,
    }
}

/// One message over the limit fails its batch.
pub(crate) struct RefusalFailsBatch;

#[async_trait]
impl Defect for RefusalFailsBatch {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let limit = inner.capabilities().payload_limit;
        for message in messages {
            message
                .check_payload(limit)
                .map_err(|invalid| invalid.in_operation("receive"))?;
        }
        inner.receive(messages).await
    }
}

/// The limit itself is over it.
pub(crate) struct LimitIsOut;

#[async_trait]
impl Defect for LimitIsOut {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let limit = inner.capabilities().payload_limit - 1;
        let mut receipts = Vec::new();
        for message in messages {
            receipts.push(match message.check_payload(limit) {
                Err(invalid) => Receipt::Refused(invalid),
                Ok(()) => inner.receive_one(message).await?,
            });
        }
        Ok(receipts)
    }
}

/// An error that quotes what it is about.
pub(crate) struct QuotesPayloads;

#[async_trait]
impl Defect for QuotesPayloads {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        inner.begin(message, terms).await.map_err(|_| {
            let payload = String::from_utf8_lossy(message.payload()).into_owned();
            Error::new(ErrorKind::Invalid, format!("too long: {payload}")).in_operation("begin")
        })
    }

    async fn replay(
        &self,
        inner: &MemoryStore,
        key: &Key,
        edit: &Edit,
    ) -> Result<inbox_api::Intervention> {
        let shown = edit.payload.clone().unwrap_or_default();
        inner.replay(key, edit).await.map_err(|_| {
            let payload = String::from_utf8_lossy(&shown).into_owned();
            Error::new(ErrorKind::Invalid, format!("too long: {payload}")).in_operation("replay")
        })
    }
}

/// Of two equal leases in one batch the second is lost, or fails it.
pub(crate) struct OneLeaseEach {
    pub(crate) fails: bool,
}

#[async_trait]
impl Defect for OneLeaseEach {
    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: std::time::Duration,
    ) -> Result<Vec<Extended>> {
        let mut extended = inner.extend(leases, length).await?;
        for (n, lease) in leases.iter().enumerate() {
            if leases[..n].contains(lease) {
                if self.fails {
                    let text = "ON CONFLICT DO UPDATE command cannot affect row a second time";
                    return Err(Error::new(ErrorKind::Other, text).in_operation("extend"));
                }
                extended[n] = Extended::LeaseLost;
            }
        }
        Ok(extended)
    }
}

/// A claim that takes one more, or in the opposite order.
pub(crate) struct Claiming(pub(crate) fn(&mut ClaimRequest), pub(crate) fn(&mut Claims));

#[async_trait]
impl Defect for Claiming {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut request = request.clone();
        (self.0)(&mut request);
        let mut claims = inner.claim(&request).await?;
        (self.1)(&mut claims);
        Ok(claims)
    }
}

pub(crate) fn one_more() -> Claiming {
    Claiming(
        |request| request.limit = request.limit.saturating_add(1),
        |_| {},
    )
}

pub(crate) fn the_youngest_first() -> Claiming {
    Claiming(|_| {}, |claims| claims.leased.reverse())
}

pub(crate) fn the_first_handler_only() -> Claiming {
    Claiming(|request| request.handlers.truncate(1), |_| {})
}
