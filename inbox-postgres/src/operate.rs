//! The operator's side: looking and intervening.

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::{
    Bytes, Cursor, Filter, HandlerName, HandlerStatistics, Intervention, Key, Listing, Operate,
    Page, Progress, PurgeRequest, Record, Result, Slice, State, Statistics,
};
use sqlx::{
    Row as _, SqlStr,
    postgres::{PgArguments, PgRow},
};

use crate::{
    error::in_operation,
    partitions::{ANY, FEW, overdue},
    rows,
    statements::ByStates,
    store::{On, PostgresStore},
    time::{Instant, micros},
    work::{Arguments, key_arguments},
};

/// One statement of a purge deletes this many messages, so that what it holds and writes at once
/// stays small.
const PURGE_SLICE: u32 = 250;

/// A filter with its states as the statements take them.
struct Meaning<'a> {
    filter: &'a Filter,
    states: Vec<State>,
}

impl<'a> Meaning<'a> {
    /// Of any state unless the filter says otherwise.
    fn of(filter: &'a Filter) -> Self {
        Self {
            filter,
            states: filter.states.clone(),
        }
    }

    /// Of those states of the filter that are `eligible`; dead when it has none.
    fn eligible(filter: &'a Filter, eligible: &[State]) -> Option<Self> {
        let states: Vec<State> = if filter.states.is_empty() {
            vec![State::Dead]
        } else {
            filter
                .states
                .iter()
                .copied()
                .filter(|state| eligible.contains(state))
                .collect()
        };
        (!states.is_empty()).then_some(Self { filter, states })
    }

    fn text<'s>(&self, by_states: &'s ByStates) -> &'s SqlStr {
        let set_aside = |state: &State| matches!(state, State::Dead | State::Discarded);
        if !self.states.is_empty() && self.states.iter().all(set_aside) {
            &by_states.set_aside
        } else {
            &by_states.any
        }
    }

    fn wants(&self, states: &[State]) -> bool {
        self.states.is_empty() || self.states.iter().any(|state| states.contains(state))
    }

    /// `$1` to `$11` of `list.sql`.
    fn arguments(&self, operation: &'static str, beyond: i64, limit: u32) -> Arguments {
        let codes = || self.states.iter().map(|state| i16::from(state.code()));
        let filter = self.filter;
        Arguments::new(operation)
            .with(beyond)
            .with(i64::from(limit))
            .with((!self.states.is_empty()).then(|| codes().collect::<Vec<_>>()))
            .with(filter.handler.as_ref().map(AsRef::<str>::as_ref))
            .with(filter.kind.as_ref().map(AsRef::<str>::as_ref))
            .with(filter.ordering_key.as_ref().map(AsRef::<str>::as_ref))
            .with(filter.older_than.map(micros))
            .with(filter.newer_than.map(micros))
            // NUL cannot be in a stored error, nor be sent as text.
            .with(
                filter
                    .error_contains
                    .as_ref()
                    .map(|text| text.replace('\0', "\u{1}")),
            )
            .with(self.wants(&[State::Pending, State::Leased, State::Dead]))
            .with(self.wants(&[State::Processed, State::Discarded]))
    }
}

fn after(operation: &'static str, cursor: Option<&Cursor>, start: i64) -> Result<i64> {
    cursor.map_or(Ok(start), |cursor| {
        cursor.sequence().map_err(|e| e.in_operation(operation))
    })
}

fn number(operation: &'static str, answer: &[PgRow], column: usize) -> Result<u64> {
    let first = answer.first().map(|row| row.try_get::<i64, _>(column));
    let number = first.transpose().map_err(in_operation(operation))?;
    Ok(number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0))
}

fn numbers(operation: &'static str, answer: &[PgRow]) -> Result<Vec<i64>> {
    let first = answer.first().map(|row| row.try_get::<Vec<i64>, _>(0));
    Ok(first
        .transpose()
        .map_err(in_operation(operation))?
        .unwrap_or_default())
}

impl PostgresStore {
    /// Sorts rows into those that can be read and the others.
    fn listing(&self, operation: &'static str, answer: &[PgRow]) -> Result<Listing> {
        let mut listing = Listing::default();
        for row in answer {
            match rows::record(row) {
                Ok(record) => listing.records.push(record),
                Err(reason) => {
                    let seq = row.try_get(0).map_err(in_operation(operation))?;
                    let inbox = &self.inner.work.inbox;
                    listing.corrupt.push(rows::corrupt_row(inbox, seq, reason));
                }
            }
        }
        Ok(listing)
    }

    async fn find(&self, operation: &'static str, key: &Key) -> Result<Option<Record>> {
        let work = &self.inner.work;
        let arguments = key_arguments(operation, key).finish()?;
        let answer = self
            .run(operation, On::Pool, &work.statements.get, arguments)
            .await?;
        answer
            .first()
            .map(|row| {
                rows::record(row).map_err(|reason| {
                    work.corrupt(operation, row.try_get(0).unwrap_or_default(), reason)
                })
            })
            .transpose()
    }

    /// Runs a function that changes messages, and answers which.
    async fn change(
        &self,
        operation: &'static str,
        on: On<'_>,
        text: &SqlStr,
        arguments: PgArguments,
    ) -> Result<Vec<i64>> {
        let answer = self.run(operation, on, text, arguments).await?;
        numbers(operation, &answer)
    }

    /// Changes one slice of what `meaning` says.
    async fn change_slice(
        &self,
        operation: &'static str,
        texts: &ByStates,
        meaning: Option<Meaning<'_>>,
        slice: &Slice,
        with_payload_only: bool,
    ) -> Result<Progress> {
        let beyond = after(operation, slice.after.as_ref(), 0)?;
        let (Some(meaning), 1..) = (meaning, slice.limit) else {
            return Ok(Progress {
                changed: 0,
                next: None,
            });
        };
        let arguments = meaning
            .arguments(operation, beyond, slice.limit)
            .with(with_payload_only)
            .with(self.inner.work.notifications)
            .finish()?;
        let text = meaning.text(texts);
        let answer = self
            .run(operation, On::PoolPlannedAnew, text, arguments)
            .await?;
        let mapped = in_operation(operation);
        let (mut chosen, mut last): (i32, Option<i64>) = (0, None);
        if let Some(row) = answer.first() {
            chosen = row.try_get(1).map_err(mapped)?;
            last = row.try_get(2).map_err(mapped)?;
        }
        // Whether the end is reached shows in how many were found. Of those, others may have
        // changed some at the same time, which are not to be changed any more.
        let full = u32::try_from(chosen).is_ok_and(|chosen| chosen >= slice.limit);
        Ok(Progress {
            changed: numbers(operation, &answer)?.len() as u64,
            next: last.filter(|_| full).map(Cursor::from),
        })
    }
}

fn handler_statistics(handler: HandlerName, row: &PgRow) -> sqlx::Result<HandlerStatistics> {
    let count = |index: usize| -> sqlx::Result<u64> {
        Ok(u64::try_from(row.try_get::<i64, _>(index)?).unwrap_or(0))
    };
    let now = row.try_get::<Instant, _>(10)?.0;
    let age = |index: usize| -> sqlx::Result<Option<Duration>> {
        let since: Option<Instant> = row.try_get(index)?;
        Ok(since.map(|since| {
            Duration::from_micros(u64::try_from(now.saturating_sub(since.0)).unwrap_or(0))
        }))
    };
    let lost = count(6)?;
    let mut statistics = HandlerStatistics::empty(handler);
    statistics.pending = count(1)? + lost;
    statistics.leased = count(2)?.saturating_sub(lost);
    statistics.processed = count(3)?;
    statistics.dead = count(4)?;
    statistics.discarded = count(5)?;
    statistics.blocking = count(7)?;
    statistics.lag = age(8)?;
    statistics.oldest_due_age = age(9)?;
    Ok(statistics)
}

#[async_trait]
impl Operate for PostgresStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        self.find("get", key).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        const OPERATION: &str = "list";
        let statements = &self.inner.work.statements;
        let (texts, start) = if page.newest_first {
            (&statements.list_newest, i64::MAX)
        } else {
            (&statements.list, 0)
        };
        let beyond = after(OPERATION, page.after.as_ref(), start)?;
        let limit = page.limit.min(Page::MAX);
        if limit == 0 {
            return Ok(Listing::default());
        }
        let meaning = Meaning::of(filter);
        // One more than asked for tells whether there is a next page.
        let arguments = meaning
            .arguments(OPERATION, beyond, limit + 1)
            .with(page.with_payload)
            .finish()?;
        let mut answer = self
            .run(
                OPERATION,
                On::PoolPlannedAnew,
                meaning.text(texts),
                arguments,
            )
            .await?;
        let more = answer.len() > limit as usize;
        answer.truncate(limit as usize);
        let mut listing = self.listing(OPERATION, &answer)?;
        if let (true, Some(last)) = (more, answer.last()) {
            let seq: i64 = last.try_get(0).map_err(in_operation(OPERATION))?;
            listing.next = Some(Cursor::from(seq));
        }
        Ok(listing)
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        const OPERATION: &str = "count";
        let meaning = Meaning::of(filter);
        let text = meaning.text(&self.inner.work.statements.count);
        let arguments = meaning.arguments(OPERATION, 0, 1).with(true).finish()?;
        let answer = self
            .run(OPERATION, On::PoolPlannedAnew, text, arguments)
            .await?;
        number(OPERATION, &answer, 0)
    }

    async fn statistics(&self) -> Result<Statistics> {
        const OPERATION: &str = "statistics";
        let text = &self.inner.work.statements.statistics;
        let arguments = PgArguments::default();
        let answer = self.run(OPERATION, On::Pool, text, arguments).await?;
        let mut handlers = Vec::with_capacity(answer.len());
        for row in &answer {
            // A name that breaks the rules is a corrupt row, which claim and list report.
            let Ok(handler) = HandlerName::new(row.try_get::<&str, _>(0).unwrap_or_default())
            else {
                continue;
            };
            handlers.push(handler_statistics(handler, row).map_err(in_operation(OPERATION))?);
        }
        handlers.sort_by(|a, b| a.handler.cmp(&b.handler));
        Ok(Statistics { handlers })
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        const OPERATION: &str = "replay";
        let work = &self.inner.work;
        if let Some(payload) = &payload {
            work.check_replacement(payload)
                .map_err(|invalid| invalid.in_operation(OPERATION))?;
        }
        loop {
            let arguments = work
                .with_payload(key_arguments(OPERATION, key), payload.as_ref())
                .with(work.notifications)
                .finish()?;
            let changed = self
                .change(OPERATION, On::Pool, &work.statements.replay, arguments)
                .await
                .map_err(|error| self.payload_error(OPERATION, error))?;
            if !changed.is_empty() {
                return Ok(Intervention::Done);
            }
            match self.find(OPERATION, key).await? {
                None => return Ok(Intervention::NotFound),
                Some(record) if !record.state.is_final() => {
                    return Ok(Intervention::WrongState(record.state));
                }
                Some(record) if payload.is_none() && record.payload.is_none() => {
                    return Ok(Intervention::PayloadDropped);
                }
                // It became final just now.
                Some(_) => {}
            }
        }
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let eligible = [State::Processed, State::Dead, State::Discarded];
        let texts = &self.inner.work.statements.replay_slice;
        let meaning = Meaning::eligible(filter, &eligible);
        self.change_slice("replay_slice", texts, meaning, slice, true)
            .await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        const OPERATION: &str = "discard";
        let work = &self.inner.work;
        loop {
            let arguments = key_arguments(OPERATION, key)
                .with(work.notifications)
                .finish()?;
            let changed = self
                .change(OPERATION, On::Pool, &work.statements.discard, arguments)
                .await?;
            if !changed.is_empty() {
                return Ok(Intervention::Done);
            }
            match self.find(OPERATION, key).await? {
                None => return Ok(Intervention::NotFound),
                // It became pending or dead just now.
                Some(record) if matches!(record.state, State::Pending | State::Dead) => {}
                Some(record) => return Ok(Intervention::WrongState(record.state)),
            }
        }
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let texts = &self.inner.work.statements.discard_slice;
        let meaning = Meaning::eligible(filter, &[State::Pending, State::Dead]);
        self.change_slice("discard_slice", texts, meaning, slice, false)
            .await
    }

    async fn purge(&self, expired: &PurgeRequest) -> Result<u64> {
        const OPERATION: &str = "purge";
        let partitions = self.inner.options.partitions.as_ref();
        let mut left = expired.limit();
        if left == 0 {
            return Ok(0);
        }
        let mut purged = 0;
        if let Some(partitions) = partitions {
            self.keep_partitions(OPERATION, partitions).await?;
            purged = self.drop_partitions(OPERATION, expired, FEW, left).await?;
            left = left.saturating_sub(u32::try_from(purged).unwrap_or(u32::MAX));
        }
        let older_than = overdue(partitions, expired);
        while left > 0 {
            let limit = left.min(PURGE_SLICE);
            let arguments = Arguments::new(OPERATION)
                .with(i16::from(expired.state().code()))
                .with(micros(older_than))
                .with(i32::try_from(limit).unwrap_or(i32::MAX))
                .with(self.inner.work.notifications)
                .finish()?;
            let text = &self.inner.work.statements.purge;
            let started = std::time::Instant::now();
            let answer = self.run(OPERATION, On::Pool, text, arguments).await?;
            let (found, slice) = (
                number(OPERATION, &answer, 0)?,
                number(OPERATION, &answer, 1)?,
            );
            purged += slice;
            left = left.saturating_sub(u32::try_from(slice).unwrap_or(u32::MAX));
            // Those found whose ordering key others are changing are still there, and would
            // be found again.
            if found < u64::from(limit) || slice == 0 {
                break;
            }
            // Rests as long as it worked, so that the server is never busy with it alone; also behind
            // the last, since a caller that reaches the limit asks for more.
            tokio::time::sleep(started.elapsed()).await;
        }
        Ok(purged)
    }

    async fn expired(&self, expired: &PurgeRequest) -> Result<Listing> {
        const OPERATION: &str = "expired";
        let arguments = Arguments::new(OPERATION)
            .with(i16::from(expired.state().code()))
            .with(micros(expired.older_than()))
            .with(i64::from(expired.limit()))
            .finish()?;
        let text = &self.inner.work.statements.expired;
        let answer = self.run(OPERATION, On::Pool, text, arguments).await?;
        self.listing(OPERATION, &answer)
    }

    async fn purge_archived(&self, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        const OPERATION: &str = "purge_archived";
        let mut purged = 0;
        for some in keys.chunks(PURGE_SLICE as usize) {
            let arguments = Arguments::new(OPERATION)
                .with(i16::from(expired.state().code()))
                .with(micros(expired.older_than()))
                .with(some.iter().map(|k| k.handler.as_str()).collect::<Vec<_>>())
                .with(some.iter().map(|k| k.id.as_str()).collect::<Vec<_>>())
                .with(self.inner.work.notifications)
                .finish()?;
            let text = &self.inner.work.statements.purge_keys;
            let answer = self.run(OPERATION, On::Pool, text, arguments).await?;
            purged += number(OPERATION, &answer, 0)?;
        }
        if let (Some(partitions), false) = (&self.inner.options.partitions, keys.is_empty()) {
            self.keep_partitions(OPERATION, partitions).await?;
            self.drop_partitions(OPERATION, expired, ANY, PURGE_SLICE)
                .await?;
        }
        Ok(purged)
    }
}
