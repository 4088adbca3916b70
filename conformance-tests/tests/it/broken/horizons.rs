//! What ends by itself, wraps, or stops at a round number.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    ClaimRequest, Claims, FencingToken, Filter, Key, Leased, Listing, Message, Operate as _, Page,
    PurgeRequest, Receipt, Record, Result, Settled, Settlement, State, Statistics, Store as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// What has been in a state for 300 days is forgotten: a partition that is dropped, a time to live.
pub(crate) struct Forgets(pub(crate) State);

#[async_trait]
impl Defect for Forgets {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let days = |n: u64| Duration::from_secs(n * 86_400);
        let mut state = self.0;
        if state == State::Pending {
            let old = Filter {
                states: vec![State::Pending],
                older_than: Some(days(300)),
                ..Filter::default()
            };
            for record in inner.list(&old, &Page::first(100)).await?.records {
                let _ = inner.discard(&record.key).await?;
                let now = PurgeRequest::new(State::Discarded, Duration::ZERO, 1).unwrap();
                let _ = inner.purge_archived(&now, &[record.key]).await?;
            }
            state = State::Processed;
        }
        if state == self.0 {
            let old = PurgeRequest::new(state, days(300), 100).unwrap();
            let _ = inner.purge(&old).await?;
        }
        inner.receive(messages).await
    }
}

/// What attempts and replays are kept as.
pub(crate) struct Counter(pub(crate) fn(u32) -> u32);

pub(crate) fn that_wraps(count: u32) -> u32 {
    count & 0xff
}

pub(crate) fn that_stays(count: u32) -> u32 {
    count.min(255)
}

#[async_trait]
impl Defect for Counter {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = inner.claim(request).await?;
        for leased in &mut claims.leased {
            leased.attempts.started = (self.0)(leased.attempts.started);
        }
        Ok(claims)
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        if let Some(record) = &mut record {
            record.attempts.started = (self.0)(record.attempts.started);
            record.attempts.finished = (self.0)(record.attempts.finished);
            record.replays = (self.0)(record.replays);
        }
        Ok(record)
    }
}

const MAX: u64 = Page::MAX as u64;

/// Counting ends where a page does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountsPages {
    Count,
    Statistics,
    /// The longest page is taken for the last.
    Next,
    /// A page is as long as it is asked to be.
    Limit,
}

#[async_trait]
impl Defect for CountsPages {
    async fn count(&self, inner: &MemoryStore, filter: &Filter) -> Result<u64> {
        let count = inner.count(filter).await?;
        Ok(match self {
            Self::Count => count.min(MAX),
            _ => count,
        })
    }

    async fn statistics(&self, inner: &MemoryStore) -> Result<Statistics> {
        let mut statistics = inner.statistics().await?;
        if *self == Self::Statistics {
            for handler in &mut statistics.handlers {
                handler.pending = handler.pending.min(MAX);
            }
        }
        Ok(statistics)
    }

    async fn list(&self, inner: &MemoryStore, filter: &Filter, page: &Page) -> Result<Listing> {
        let mut listing = inner.list(filter, page).await?;
        match self {
            Self::Next if listing.records.len() as u64 == MAX => listing.next = None,
            Self::Limit if page.limit > Page::MAX => {
                while let Some(after) = listing.next.take() {
                    let after = Some(after);
                    let more = inner
                        .list(
                            filter,
                            &Page {
                                after,
                                ..page.clone()
                            },
                        )
                        .await?;
                    listing.records.extend(more.records);
                    listing.next = more.next;
                }
            }
            _ => {}
        }
        Ok(listing)
    }
}

/// The tokens by which the store knows those that were handed out.
type Known = HashMap<(Key, FencingToken), FencingToken>;

/// Tokens that a process draws by itself: it counts its leases from its start, or the attempts of the
/// message.
#[derive(Default)]
pub(crate) struct OwnTokens {
    of_attempts: bool,
    drawn: Mutex<(i64, Known)>,
}

pub(crate) fn tokens_of_attempts() -> OwnTokens {
    OwnTokens {
        of_attempts: true,
        ..OwnTokens::default()
    }
}

impl OwnTokens {
    fn rename(&self, leased: &mut Leased) {
        let (last, known) = &mut *self.drawn.lock().unwrap();
        *last += 1;
        let drawn = FencingToken::new(if self.of_attempts {
            i64::from(leased.attempts.started)
        } else {
            *last
        });
        known.insert((leased.lease.key.clone(), drawn), leased.lease.token);
        leased.lease.token = drawn;
    }
}

#[async_trait]
impl Defect for OwnTokens {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = inner.claim(request).await?;
        for leased in &mut claims.leased {
            self.rename(leased);
        }
        Ok(claims)
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut batch = batch.to_vec();
        for settlement in &mut batch {
            let known = &self.drawn.lock().unwrap().1;
            let lease = &mut settlement.lease;
            let drawn = known.get(&(lease.key.clone(), lease.token));
            lease.token = drawn.copied().unwrap_or(lease.token);
        }
        inner.settle(&batch).await
    }
}
