//! The operator's side: looks on the read connections, changes on the write connection.

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::{
    Bytes, Cursor, Filter, HandlerName, HandlerStatistics, Intervention, Key, Listing, Operate,
    Page, Progress, PurgeRequest, Record, Result, Slice, State, Statistics, check_size,
    duration_micros,
};
use sqlx::{
    Connection as _, Row as _, SqlStr, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use tokio::time::Instant;

use crate::{
    error::in_operation,
    operation::Limited,
    rows::{self, Stored},
    statements::ByStates,
    store::{BEGIN, SqliteStore},
    work::json,
};

/// A purge holds the write lock for this many rows at a time, so that live traffic gets in
/// between.
const PURGE_SLICE: u32 = 500;

type Bound<'q> = Query<'q, Sqlite, SqliteArguments>;

/// A filter with its times resolved and its states as the statements take them.
struct Meaning<'a> {
    filter: &'a Filter,
    states: Vec<State>,
    now: i64,
}

impl<'a> Meaning<'a> {
    /// Of any state unless the filter says otherwise.
    fn of(filter: &'a Filter, now: i64) -> Self {
        Self {
            filter,
            states: filter.states.clone(),
            now,
        }
    }

    /// Of those states of the filter that are `eligible`; dead when it has none.
    fn eligible(filter: &'a Filter, eligible: &[State], now: i64) -> Option<Self> {
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
        (!states.is_empty()).then_some(Self {
            filter,
            states,
            now,
        })
    }

    fn text(&self, by_states: &ByStates) -> SqlStr {
        match self.states.as_slice() {
            [State::Dead] => by_states.dead.clone(),
            _ => by_states.any.clone(),
        }
    }

    /// `?1` to `?10` of `list.sql`.
    fn bind(&self, text: SqlStr, beyond: i64, limit: i64) -> Bound<'a> {
        let codes: Vec<_> = self.states.iter().map(|state| state.code()).collect();
        let states = (!codes.is_empty()).then(|| format!("{codes:?}"));
        let ago = |age: Duration| self.now.saturating_sub(duration_micros(age));
        let filter = self.filter;
        sqlx::query(text)
            .bind(beyond)
            .bind(limit)
            .bind(self.now)
            .bind(states)
            .bind(filter.handler.as_ref().map(AsRef::<str>::as_ref))
            .bind(filter.kind.as_ref().map(AsRef::<str>::as_ref))
            .bind(filter.ordering_key.as_ref().map(AsRef::<str>::as_ref))
            .bind(filter.older_than.map(ago))
            .bind(filter.newer_than.map(ago))
            .bind(filter.error_contains.as_deref())
    }
}

const NOTHING: Progress = Progress {
    changed: 0,
    next: None,
};

fn after(operation: &'static str, cursor: Option<&Cursor>, start: i64) -> Result<i64> {
    cursor.map_or(Ok(start), |cursor| {
        cursor.sequence().map_err(|e| e.in_operation(operation))
    })
}

fn sequence(row: &SqliteRow) -> sqlx::Result<i64> {
    row.try_get(0)
}

impl SqliteStore {
    /// Sorts rows into those that can be read and the others.
    fn listing(&self, returned: &[SqliteRow], now: i64) -> sqlx::Result<Listing> {
        let mut listing = Listing::default();
        for row in returned {
            match rows::stored(row, now) {
                Ok(stored) => listing.records.push(stored.record),
                Err(reason) => listing.corrupt.push(rows::corrupt_row(
                    &self.inner.work.inbox,
                    sequence(row)?,
                    reason,
                )),
            }
        }
        Ok(listing)
    }

    async fn find(
        &self,
        operation: &'static str,
        connection: &mut SqliteConnection,
        key: &Key,
        now: i64,
    ) -> Result<Option<Stored>> {
        let found = sqlx::query(self.inner.work.statements.get.clone())
            .bind(key.handler.as_str())
            .bind(key.id.as_str())
            .fetch_optional(connection)
            .await
            .map_err(in_operation(operation))?;
        found
            .map(|row| {
                rows::stored(&row, now)
                    .map_err(|reason| self.inner.work.corrupt(operation, &row, reason))
            })
            .transpose()
    }

    /// Runs `replay.sql` or `discard.sql` on rows that were found eligible under the write lock.
    async fn change(
        &self,
        operation: &'static str,
        connection: &mut SqliteConnection,
        text: SqlStr,
        sequences: &[i64],
        now: i64,
    ) -> Result<()> {
        sqlx::query(text)
            .bind(json(operation, &sequences)?)
            .bind(now)
            .execute(connection)
            .await
            .map_err(in_operation(operation))?;
        Ok(())
    }

    /// Changes one slice of those messages that `filter` means and whose state is `eligible`.
    async fn change_slice(
        &self,
        operation: &'static str,
        text: &SqlStr,
        (filter, eligible): (&Filter, &[State]),
        slice: &Slice,
        until: Instant,
    ) -> Result<Progress> {
        let beyond = after(operation, slice.after.as_ref(), 0)?;
        if slice.limit == 0 || Meaning::eligible(filter, eligible, 0).is_none() {
            return Ok(NOTHING);
        }
        let connection = self.writer(operation, until).await?;
        let mut limited = Limited::new(operation, connection, until).await?;
        let connection = &mut limited.connection;
        let mapped = in_operation(operation);
        let mut transaction = connection.begin_with(BEGIN).await.map_err(mapped)?;
        let Some(meaning) = Meaning::eligible(filter, eligible, self.now()) else {
            return Ok(NOTHING);
        };
        // What was dropped cannot be replayed; what is not processed has its payload.
        let with_payload_only = eligible.contains(&State::Processed);
        let eligible = meaning.text(&self.inner.work.statements.eligible);
        let found = meaning
            .bind(eligible, beyond, i64::from(slice.limit))
            .bind(with_payload_only)
            .fetch_all(&mut *transaction)
            .await
            .map_err(mapped)?;
        let sequences = found
            .iter()
            .map(sequence)
            .collect::<sqlx::Result<Vec<_>>>()
            .map_err(mapped)?;
        let Some(last) = sequences.last() else {
            transaction.rollback().await.map_err(mapped)?;
            limited.give_back();
            return Ok(NOTHING);
        };
        self.change(
            operation,
            &mut transaction,
            text.clone(),
            &sequences,
            meaning.now,
        )
        .await?;
        transaction.commit().await.map_err(mapped)?;
        self.inner.signal.raise();
        limited.give_back();
        let full = sequences.len() >= slice.limit as usize;
        Ok(Progress {
            changed: sequences.len() as u64,
            next: full.then(|| Cursor::from(*last)),
        })
    }

    async fn replay_one(
        &self,
        key: &Key,
        payload: Option<&Bytes>,
        until: Instant,
    ) -> Result<Intervention> {
        const OPERATION: &str = "replay";
        let mapped = in_operation(OPERATION);
        let statements = &self.inner.work.statements;
        let mut transaction = self.locked(OPERATION, until).await?;
        let now = self.now();
        let refused = match self.find(OPERATION, &mut transaction, key, now).await? {
            None => Intervention::NotFound,
            Some(stored) if !stored.stored_state.is_final() => {
                Intervention::WrongState(stored.record.state)
            }
            Some(stored) if payload.is_none() && stored.record.payload.is_none() => {
                Intervention::PayloadDropped
            }
            Some(stored) => {
                let text = statements.replay.clone();
                self.change(OPERATION, &mut transaction, text, &[stored.seq], now)
                    .await?;
                if let Some(payload) = payload {
                    sqlx::query(statements.edit_payload.clone())
                        .bind(stored.seq)
                        .bind(payload.as_ref())
                        .execute(&mut *transaction)
                        .await
                        .map_err(mapped)?;
                }
                transaction.commit().await.map_err(mapped)?;
                self.inner.signal.raise();
                return Ok(Intervention::Done);
            }
        };
        transaction.rollback().await.map_err(mapped)?;
        Ok(refused)
    }

    async fn discard_one(&self, key: &Key, until: Instant) -> Result<Intervention> {
        const OPERATION: &str = "discard";
        let mapped = in_operation(OPERATION);
        let mut transaction = self.locked(OPERATION, until).await?;
        let now = self.now();
        let refused = match self.find(OPERATION, &mut transaction, key, now).await? {
            None => Intervention::NotFound,
            Some(stored) => match stored.record.state {
                State::Pending | State::Dead => {
                    let text = self.inner.work.statements.discard.clone();
                    self.change(OPERATION, &mut transaction, text, &[stored.seq], now)
                        .await?;
                    transaction.commit().await.map_err(mapped)?;
                    self.inner.signal.raise();
                    return Ok(Intervention::Done);
                }
                state => Intervention::WrongState(state),
            },
        };
        transaction.rollback().await.map_err(mapped)?;
        Ok(refused)
    }

    async fn statistics_now(&self, until: Instant) -> Result<Statistics> {
        const OPERATION: &str = "statistics";
        let mapped = in_operation(OPERATION);
        let mut connection = self.reader(OPERATION, until).await?;
        let now = self.now();
        let returned = sqlx::query(self.inner.work.statements.statistics.clone())
            .bind(now)
            .fetch_all(&mut *connection)
            .await
            .map_err(mapped)?;
        let mut handlers = Vec::with_capacity(returned.len());
        for row in &returned {
            // A name that breaks the rules is a corrupt row, which claim and list report.
            let Ok(handler) = HandlerName::new(row.try_get::<&str, _>(0).unwrap_or_default())
            else {
                continue;
            };
            handlers.push(handler_statistics(handler, row, now).map_err(mapped)?);
        }
        handlers.sort_by(|a, b| a.handler.cmp(&b.handler));
        Ok(Statistics { handlers })
    }

    async fn get_one(&self, key: &Key, until: Instant) -> Result<Option<Record>> {
        let mut connection = self.reader("get", until).await?;
        let found = self.find("get", &mut connection, key, self.now()).await?;
        Ok(found.map(|stored| stored.record))
    }

    async fn list_page(&self, filter: &Filter, page: &Page, until: Instant) -> Result<Listing> {
        const OPERATION: &str = "list";
        let mapped = in_operation(OPERATION);
        let statements = &self.inner.work.statements;
        let (texts, start) = if page.newest_first {
            (&statements.list_newest, i64::MAX)
        } else {
            (&statements.list, 0)
        };
        let beyond = after(OPERATION, page.after.as_ref(), start)?;
        let limit = page.limit.min(Page::MAX);
        let connection = self.reader(OPERATION, until).await?;
        let mut limited = Limited::new(OPERATION, connection, until).await?;
        let meaning = Meaning::of(filter, self.now());
        // One more than asked for tells whether there is a next page.
        let mut returned = meaning
            .bind(meaning.text(texts), beyond, i64::from(limit) + 1)
            .bind(page.with_payload)
            .fetch_all(&mut *limited.connection)
            .await
            .map_err(mapped)?;
        limited.give_back();
        let more = returned.len() > limit as usize;
        returned.truncate(limit as usize);
        let mut listing = self.listing(&returned, meaning.now).map_err(mapped)?;
        if let (true, Some(last)) = (more, returned.last()) {
            listing.next = Some(Cursor::from(sequence(last).map_err(mapped)?));
        }
        Ok(listing)
    }

    async fn count_all(&self, filter: &Filter, until: Instant) -> Result<u64> {
        const OPERATION: &str = "count";
        let mapped = in_operation(OPERATION);
        let connection = self.reader(OPERATION, until).await?;
        let mut limited = Limited::new(OPERATION, connection, until).await?;
        let meaning = Meaning::of(filter, self.now());
        let row = meaning
            .bind(meaning.text(&self.inner.work.statements.count), 0, 0)
            .fetch_one(&mut *limited.connection)
            .await
            .map_err(mapped)?;
        limited.give_back();
        Ok(sequence(&row).map_err(mapped)?.unsigned_abs())
    }

    async fn expired_now(&self, expired: &PurgeRequest, until: Instant) -> Result<Listing> {
        const OPERATION: &str = "expired";
        let mapped = in_operation(OPERATION);
        let mut connection = self.reader(OPERATION, until).await?;
        let returned = sqlx::query(self.inner.work.statements.expired.clone())
            .bind(i64::from(expired.state().code()))
            .bind(self.finished_before(expired))
            .bind(i64::from(expired.limit()))
            .fetch_all(&mut *connection)
            .await
            .map_err(mapped)?;
        self.listing(&returned, self.now()).map_err(mapped)
    }

    fn finished_before(&self, expired: &PurgeRequest) -> i64 {
        self.now()
            .saturating_sub(duration_micros(expired.older_than()))
    }

    async fn purge_slice(&self, expired: &PurgeRequest, limit: u32, until: Instant) -> Result<u64> {
        const OPERATION: &str = "purge";
        let mut connection = self.writer(OPERATION, until).await?;
        let purged = sqlx::query(self.inner.work.statements.purge.clone())
            .bind(i64::from(expired.state().code()))
            .bind(self.finished_before(expired))
            .bind(i64::from(limit))
            .execute(&mut *connection)
            .await
            .map_err(in_operation(OPERATION))?;
        Ok(purged.rows_affected())
    }

    async fn purge_some_archived(
        &self,
        expired: &PurgeRequest,
        keys: &[Key],
        until: Instant,
    ) -> Result<u64> {
        const OPERATION: &str = "purge_archived";
        let keys: Vec<_> = keys
            .iter()
            .map(|key| (key.handler.as_str(), key.id.as_str()))
            .collect();
        let keys = json(OPERATION, &keys)?;
        let mut connection = self.writer(OPERATION, until).await?;
        let purged = sqlx::query(self.inner.work.statements.purge_keys.clone())
            .bind(i64::from(expired.state().code()))
            .bind(self.finished_before(expired))
            .bind(keys)
            .execute(&mut *connection)
            .await
            .map_err(in_operation(OPERATION))?;
        Ok(purged.rows_affected())
    }

    /// A blocking dead letter that is purged lets its ordering key move on.
    fn wake_after_purge(&self, expired: &PurgeRequest, purged: u64) {
        if purged > 0 && expired.state() == State::Dead {
            self.inner.signal.raise();
        }
    }
}

fn handler_statistics(
    handler: HandlerName,
    row: &SqliteRow,
    now: i64,
) -> sqlx::Result<HandlerStatistics> {
    let count = |index: usize| -> sqlx::Result<u64> {
        Ok(u64::try_from(row.try_get::<i64, _>(index)?).unwrap_or(0))
    };
    let age = |index: usize| -> sqlx::Result<Option<Duration>> {
        let since: Option<i64> = row.try_get(index)?;
        Ok(since.map(|since| {
            Duration::from_micros(u64::try_from(now.saturating_sub(since)).unwrap_or(0))
        }))
    };
    let lost = count(6)?;
    let mut statistics = HandlerStatistics::empty(handler);
    statistics.pending = count(1)? + lost;
    statistics.leased = count(2)?.saturating_sub(lost);
    statistics.processed = count(3)?;
    statistics.dead = count(4)?;
    statistics.discarded = count(5)?;
    statistics.blocking = count(9)?;
    statistics.lag = age(7)?;
    statistics.oldest_due_age = age(8)?;
    Ok(statistics)
}

#[async_trait]
impl Operate for SqliteStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        self.run("get", |until| self.get_one(key, until)).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        if page.limit == 0 {
            after("list", page.after.as_ref(), 0)?;
            return Ok(Listing::default());
        }
        self.run("list", |until| self.list_page(filter, page, until))
            .await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        self.run("count", |until| self.count_all(filter, until))
            .await
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.run("statistics", |until| self.statistics_now(until))
            .await
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        let payload = payload.as_ref();
        if let Some(payload) = payload {
            check_size("payload", payload.len(), self.inner.work.payload_limit)
                .map_err(|invalid| invalid.in_operation("replay"))?;
        }
        self.run("replay", |until| self.replay_one(key, payload, until))
            .await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        const OPERATION: &str = "replay_slice";
        let text = &self.inner.work.statements.replay;
        let eligible = [State::Processed, State::Dead, State::Discarded];
        let wanted = (filter, eligible.as_slice());
        self.run(OPERATION, |until| {
            self.change_slice(OPERATION, text, wanted, slice, until)
        })
        .await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.run("discard", |until| self.discard_one(key, until))
            .await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        const OPERATION: &str = "discard_slice";
        let text = &self.inner.work.statements.discard;
        let eligible = [State::Pending, State::Dead];
        let wanted = (filter, eligible.as_slice());
        self.run(OPERATION, |until| {
            self.change_slice(OPERATION, text, wanted, slice, until)
        })
        .await
    }

    async fn purge(&self, expired: &PurgeRequest) -> Result<u64> {
        let mut purged = 0;
        let mut left = expired.limit();
        while left > 0 {
            let limit = left.min(PURGE_SLICE);
            let started = std::time::Instant::now();
            let slice = self
                .run("purge", |until| self.purge_slice(expired, limit, until))
                .await?;
            self.wake_after_purge(expired, slice);
            purged += slice;
            left -= limit;
            if slice < u64::from(limit) {
                break;
            }
            // Rests as long as it worked, so that other writers get their turn; also behind the last,
            // since a caller that reaches the limit asks for more.
            tokio::time::sleep(started.elapsed()).await;
        }
        Ok(purged)
    }

    async fn expired(&self, expired: &PurgeRequest) -> Result<Listing> {
        self.run("expired", |until| self.expired_now(expired, until))
            .await
    }

    async fn purge_archived(&self, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let mut purged = 0;
        for some in keys.chunks(PURGE_SLICE as usize) {
            let slice = self
                .run("purge_archived", |until| {
                    self.purge_some_archived(expired, some, until)
                })
                .await?;
            self.wake_after_purge(expired, slice);
            purged += slice;
        }
        Ok(purged)
    }
}
