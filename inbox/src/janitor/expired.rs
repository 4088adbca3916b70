//! What a sweep deletes, archives or drops the payloads of.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{Archiver, End, Janitor, NO_ANSWER, Retention, Sweep, SweepError};
use crate::{HandlerName, Key, PurgeRequest, Result, State, pace::Slices};

/// The most corrupt rows that a sweep with an archiver looks past.
const CORRUPT_LIMIT: u32 = 10_000;

/// Messages that have been final for long enough.
#[derive(Clone, Copy)]
struct Group<'a> {
    /// Of all handlers if it is none.
    handler: Option<&'a HandlerName>,
    state: State,
    age: Duration,
}

impl Group<'_> {
    fn request(&self, limit: u32) -> Result<PurgeRequest> {
        let request = PurgeRequest::new(self.state, self.age, limit)
            .map_err(|invalid| invalid.in_operation("purge"))?;
        Ok(match self.handler {
            Some(handler) => request.for_handler(handler.clone()),
            None => request,
        })
    }
}

impl Janitor {
    pub(super) async fn sweep_expired(
        &self,
        sweep: &mut Sweep,
        end: End<'_>,
    ) -> Result<(), SweepError> {
        if self.own.is_empty() {
            return self.sweep_by(&self.retention, None, sweep, end).await;
        }
        let looking = || self.operate.statistics();
        let statistics = self.ask(end, "statistics", looking).await?;
        for handler in statistics.handlers {
            let handler = handler.handler;
            let retention = self.own.get(&handler).unwrap_or(&self.retention);
            self.sweep_by(retention, Some(&handler), sweep, end).await?;
        }
        Ok(())
    }

    async fn sweep_by(
        &self,
        retention: &Retention,
        handler: Option<&HandlerName>,
        sweep: &mut Sweep,
        end: End<'_>,
    ) -> Result<(), SweepError> {
        let group = |(state, age)| Group {
            handler,
            state,
            age,
        };
        for group in retention.states().map(group) {
            match &self.archiver {
                None => self.purge(sweep, &group, end).await?,
                Some(archiver) => {
                    let archived = self.archive(&**archiver, sweep, &group, end);
                    sweep.corrupt += archived.await?;
                }
            }
        }
        match retention.payloads() {
            Some(age) => {
                let group = group((State::Processed, age));
                self.drop_payloads(sweep, &group, end).await
            }
            None => Ok(()),
        }
    }

    async fn drop_payloads(
        &self,
        sweep: &mut Sweep,
        group: &Group<'_>,
        end: End<'_>,
    ) -> Result<(), SweepError> {
        let request = group.request(self.slice)?;
        while !end.has_come() {
            let began = Instant::now();
            let dropping = || self.operate.drop_payloads(&request);
            let step = self.ask(end, "drop_payloads", dropping).await?;
            sweep.payloads += step;
            if step < u64::from(self.slice) {
                break;
            }
            end.rest(began).await;
        }
        Ok(())
    }

    async fn purge(
        &self,
        sweep: &mut Sweep,
        group: &Group<'_>,
        end: End<'_>,
    ) -> Result<(), SweepError> {
        let expired = group.request(self.slice)?;
        loop {
            if end.has_come() {
                return Ok(());
            }
            let began = Instant::now();
            let purging = || self.operate.purge(&expired);
            let step = self.ask(end, "purge", purging).await?;
            sweep.add(group.state, step);
            if step < u64::from(self.slice) {
                return Ok(());
            }
            end.rest(began).await;
        }
    }

    /// Returns how many rows are corrupt.
    async fn archive(
        &self,
        archiver: &dyn Archiver,
        sweep: &mut Sweep,
        group: &Group<'_>,
        end: End<'_>,
    ) -> Result<u64, SweepError> {
        let mut corrupt = 0;
        // They come with their payloads.
        let mut slices = Slices::new(self.slice);
        loop {
            if end.has_come() {
                return Ok(corrupt.into());
            }
            // Corrupt rows stay, at the front of every slice: look past them.
            let limit = slices.size().saturating_add(corrupt);
            let began = Instant::now();
            let expired = group.request(limit)?;
            let listing = || self.operate.expired(&expired);
            let listing = self.ask(end, "expired", listing).await?;
            let listed = Instant::now();
            slices.saw(&listing.records);
            let seen = u32::try_from(listing.corrupt.len()).unwrap_or(u32::MAX);
            for row in listing.corrupt.iter().skip(corrupt as usize) {
                tracing::error!(
                    place = row.place,
                    reason = row.reason,
                    "corrupt row cannot be archived and stays"
                );
            }
            let has_more_corrupt = seen > corrupt && seen <= CORRUPT_LIMIT;
            corrupt = seen;
            let keys: Vec<Key> = listing.records.iter().map(|r| r.key.clone()).collect();
            let mut step = 0;
            if !keys.is_empty() {
                let archiving = AssertUnwindSafe(archiver.archive(&listing.records));
                match end.unless_given_up(archiving.catch_unwind()).await {
                    Some(Ok(archived)) => archived,
                    Some(Err(_)) => Err("the archiver panicked".into()),
                    None => Err(NO_ANSWER.into()),
                }
                .map_err(SweepError::Archiver)?;
                // What was listed has grown older since. What has not was replayed, and is final again:
                // not as it was archived.
                let purging = || async {
                    let age = group.age.saturating_add(listed.elapsed());
                    let archived = Group { age, ..*group }.request(limit)?;
                    self.operate.purge_archived(&archived, &keys).await
                };
                step = self.ask(end, "purge_archived", purging).await?;
                sweep.add(group.state, step);
            }
            let found = listing.records.len() + listing.corrupt.len();
            let is_last = found < limit as usize;
            // Without progress another janitor is at the same slice, and goes on with the rest.
            if is_last || step == 0 && !has_more_corrupt {
                return Ok(corrupt.into());
            }
            end.rest(began).await;
        }
    }
}
