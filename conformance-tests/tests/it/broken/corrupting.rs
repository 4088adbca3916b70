//! Rows that cannot be read, and the mistakes that are made at them.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use inbox_api::{
    AfterDead, Claims, CorruptRow, Error, ErrorKind, Key, Listing, Outcome, Record, Result,
    Settlement, State, Store as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// A claim fails at the first.
    ClaimFails,
    /// A claim hands it out like any other.
    ClaimHandsItOut,
    /// A claim leaves out what it cannot read and says nothing.
    ClaimIsSilent,
    /// It is set aside as something that nobody sees again.
    ClaimDiscards,
    /// It is left leased, so that it is reported again and again.
    ClaimComesBack,
    /// What is set aside blocks its ordering key.
    ClaimBlocks,
    GetSaysNothing,
    GetSaysOther,
    BeginSaysNothing,
    BeginSaysOther,
    ListFails,
    ListIsSilent,
    ExpiredFails,
}

/// The keys whose rows are corrupt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Corrupt(Arc<Mutex<HashSet<Key>>>);

fn unreadable(operation: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, "the headers are not texts").in_operation(operation)
}

fn row(key: &Key) -> CorruptRow {
    CorruptRow {
        place: format!("the row of {key}"),
        reason: "the headers are not texts".into(),
    }
}

impl Corrupt {
    pub(crate) fn spoil(&self, key: &Key) {
        self.0.lock().unwrap().insert(key.clone());
    }

    fn has(&self, key: &Key) -> bool {
        self.0.lock().unwrap().contains(key)
    }

    pub(crate) fn check(
        &self,
        defect: &impl Defect,
        operation: &'static str,
        key: &Key,
    ) -> Result<()> {
        match (defect.at_corrupt_rows(), operation) {
            _ if !self.has(key) => Ok(()),
            (Mistake::GetSaysNothing, "get") | (Mistake::BeginSaysNothing, "begin") => Ok(()),
            (Mistake::GetSaysOther, "get") | (Mistake::BeginSaysOther, "begin") => {
                Err(Error::new(ErrorKind::Other, "it failed").in_operation(operation))
            }
            _ => Err(unreadable(operation)),
        }
    }

    pub(crate) async fn set_aside(
        &self,
        defect: &impl Defect,
        inner: &MemoryStore,
        mut claims: Claims,
    ) -> Result<Claims> {
        let mistake = defect.at_corrupt_rows();
        let corrupt = |leased: &inbox_api::Leased| self.has(&leased.lease.key);
        if mistake == Mistake::ClaimHandsItOut || !claims.leased.iter().any(corrupt) {
            return Ok(claims);
        }
        if mistake == Mistake::ClaimFails {
            return Err(unreadable("claim"));
        }
        let (spoilt, sound) = claims.leased.into_iter().partition(corrupt);
        claims.leased = sound;
        for leased in spoilt {
            let key = leased.lease.key.clone();
            let outcome = if mistake == Mistake::ClaimComesBack {
                Outcome::Release
            } else {
                Outcome::Dead {
                    reason: "corrupt".into(),
                    after: match mistake {
                        Mistake::ClaimBlocks => AfterDead::Block,
                        _ => AfterDead::Continue,
                    },
                }
            };
            let lease = leased.lease;
            let _ = inner.settle(&[Settlement { lease, outcome }]).await?;
            if mistake == Mistake::ClaimDiscards {
                let _ = inbox_api::Operate::discard(inner, &key).await?;
            }
            if mistake != Mistake::ClaimIsSilent {
                claims.corrupt.push(row(&key));
            }
        }
        Ok(claims)
    }

    pub(crate) fn apart(
        &self,
        defect: &impl Defect,
        operation: &'static str,
        mut listing: Listing,
    ) -> Result<Listing> {
        let mistake = defect.at_corrupt_rows();
        let corrupt = |record: &Record| self.has(&record.key);
        let (spoilt, sound): (Vec<_>, _) = listing.records.into_iter().partition(corrupt);
        listing.records = sound;
        if spoilt.is_empty() {
            return Ok(listing);
        }
        match (mistake, operation) {
            (Mistake::ListFails, "list") | (Mistake::ExpiredFails, "expired") => {
                Err(unreadable(operation))
            }
            (Mistake::ListIsSilent, "list") => Ok(listing),
            _ => {
                listing.corrupt = spoilt.iter().map(|record| row(&record.key)).collect();
                Ok(listing)
            }
        }
    }
}

/// One mistake at corrupt rows.
pub(crate) struct Mistaken(pub(crate) Mistake);

impl Defect for Mistaken {
    fn at_corrupt_rows(&self) -> Mistake {
        self.0
    }
}

/// Forgets the key of a corrupt row when it is set aside.
#[derive(Default)]
pub(crate) struct ForgetsCorruptKeys;

#[async_trait::async_trait]
impl Defect for ForgetsCorruptKeys {
    async fn receive(
        &self,
        inner: &MemoryStore,
        messages: &[inbox_api::Message],
    ) -> Result<Vec<inbox_api::Receipt>> {
        // What died without an attempt of a handler's.
        for message in messages {
            let record = inbox_api::Operate::get(inner, message.key()).await?;
            let corrupt = record.is_some_and(|record| {
                record.state == State::Dead && record.last_error.as_deref() == Some("corrupt")
            });
            if corrupt {
                let expired =
                    inbox_api::PurgeRequest::new(State::Dead, std::time::Duration::ZERO, 1);
                let expired = expired.unwrap();
                let keys = [message.key().clone()];
                let _ = inbox_api::Operate::purge_archived(inner, &expired, &keys).await?;
            }
        }
        inner.receive(messages).await
    }
}
