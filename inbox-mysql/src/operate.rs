//! The operator's side: looks, and changes of single messages and of slices.

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::{
    Bytes, Cursor, Error, ErrorKind, Filter, HandlerName, HandlerStatistics, Intervention, Key,
    Listing, Operate, Page, Progress, PurgeRequest, Record, Result, Slice, State, Statistics,
    duration_micros,
};
use sqlx::{Row as _, mysql::MySqlRow};
use tokio::time::Instant;

use crate::{
    error::in_operation,
    rows,
    script::{Access, Answers, Script, Statement},
    store::MySqlStore,
};

const REPLAYABLE: [State; 3] = [State::Processed, State::Dead, State::Discarded];
const DISCARDABLE: [State; 2] = [State::Pending, State::Dead];

/// A purge is a transaction for this many rows at a time, so that its locks are short.
const PURGE_SLICE: u32 = 500;
/// Locks the rows of `x` only. MySQL cannot lock a list that is joined to them and has to be told
/// so; MariaDB takes the clause for a comment.
const OF_X: &str = " FOR UPDATE /*!80000 OF x */";
/// How often an intervention is tried when the message changes meanwhile.
const TRIES: u32 = 10;

/// Which table leads a query, so that it reads neither the history nor the backlog in vain. Its
/// alias is that of `columns.sql`.
#[derive(Clone, Copy)]
enum Lead {
    Message,
    Work,
    Dead,
    Done,
}

impl Lead {
    fn of(states: &[State]) -> Self {
        let within = |some: &[State]| states.iter().all(|state| some.contains(state));
        if states.is_empty() {
            Self::Message
        } else if within(&[State::Dead]) {
            Self::Dead
        } else if within(&[State::Pending, State::Leased]) {
            Self::Work
        } else if within(&[State::Processed, State::Discarded]) {
            Self::Done
        } else {
            Self::Message
        }
    }

    fn alias(self) -> &'static str {
        match self {
            Self::Message => "m",
            Self::Work => "w",
            Self::Dead => "d",
            Self::Done => "f",
        }
    }

    fn from(self) -> String {
        let tables = [
            ("m", "{message}"),
            ("w", "{work}"),
            ("d", "{dead}"),
            ("f", "{done}"),
        ];
        let lead = self.alias();
        let table = |alias| {
            tables
                .iter()
                .find(|(a, _)| *a == alias)
                .map_or("", |(_, t)| *t)
        };
        let mut text = format!("FROM {} AS {lead}", table(lead));
        if lead != "m" {
            text += &format!(
                " STRAIGHT_JOIN {{message}} AS m FORCE INDEX (PRIMARY) ON m.seq = {lead}.seq"
            );
        }
        for (alias, table) in tables {
            if alias != lead && alias != "m" {
                text += &format!(" LEFT JOIN {table} AS {alias} ON {alias}.seq = {lead}.seq");
            }
        }
        text
    }
}

/// Whether a row of `columns.sql` is shown in one of these states.
fn in_states(states: &[State]) -> String {
    let conditions: Vec<_> = states
        .iter()
        .map(|state| match state {
            State::Pending => {
                "(w.seq IS NOT NULL AND (w.queue <> 1 OR w.visible_at <= @inbox_now))"
            }
            State::Leased => "(w.queue = 1 AND w.visible_at > @inbox_now)",
            State::Processed => "f.state = 2",
            State::Dead => "d.seq IS NOT NULL",
            State::Discarded => "f.state = 4",
        })
        .collect();
    conditions.join(" OR ")
}

/// Adds what `filter` means, with these states (none: any), to a `WHERE` that has begun.
fn add_filter(statement: &mut Statement, filter: &Filter, states: &[State]) {
    if !states.is_empty() {
        statement.push(" AND (").push(&in_states(states)).push(")");
    }
    for (column, wanted) in [
        (
            "m.handler",
            filter.handler.as_ref().map(AsRef::<str>::as_ref),
        ),
        ("m.kind", filter.kind.as_ref().map(AsRef::<str>::as_ref)),
        (
            "m.ordering_key",
            filter.ordering_key.as_ref().map(AsRef::<str>::as_ref),
        ),
    ] {
        if let Some(wanted) = wanted {
            statement
                .push(" AND ")
                .push(column)
                .push(" = ")
                .bytes(wanted.as_bytes());
        }
    }
    if let Some(age) = filter.older_than {
        statement
            .push(" AND m.accepted_at <= @inbox_now - ")
            .number(duration_micros(age));
    }
    if let Some(age) = filter.newer_than {
        statement
            .push(" AND m.accepted_at > @inbox_now - ")
            .number(duration_micros(age));
    }
    if let Some(text) = &filter.error_contains {
        statement.push(" AND LOCATE(").bytes(text.as_bytes());
        statement.push(", COALESCE(w.last_error, d.last_error, f.last_error)) > 0");
    }
}

/// Those states of the filter that are `eligible`; dead when it has none.
fn eligible(filter: &Filter, eligible: &[State]) -> Vec<State> {
    if filter.states.is_empty() {
        return vec![State::Dead];
    }
    let states = filter.states.iter().copied();
    states.filter(|state| eligible.contains(state)).collect()
}

fn after(operation: &'static str, cursor: Option<&Cursor>, start: i64) -> Result<i64> {
    cursor.map_or(Ok(start), |cursor| {
        cursor.sequence().map_err(|e| e.in_operation(operation))
    })
}

fn sequence(row: &MySqlRow) -> sqlx::Result<i64> {
    row.try_get_unchecked(0)
}

/// What an operator does to a message.
enum Change {
    Replay { payload: Option<Bytes> },
    Discard,
}

impl MySqlStore {
    fn sql(&self, template: &str) -> String {
        self.inner.work.sql.expand(template)
    }

    /// Sorts rows into those that can be read and the others.
    fn listing(&self, returned: &[MySqlRow], now: i64) -> sqlx::Result<Listing> {
        let mut listing = Listing::default();
        for row in returned {
            match rows::stored(row, now) {
                Ok(stored) => listing.records.push(stored.record),
                Err(reason) => {
                    let inbox = self.inner.work.options.inbox.as_str();
                    let corrupt = rows::corrupt_row(inbox, sequence(row)?, reason);
                    listing.corrupt.push(corrupt);
                }
            }
        }
        Ok(listing)
    }

    /// Adds a change of the messages in `@inbox_seqs` to `script`, as far as they are in one of
    /// `states` when they are locked. Answers where it says how many were changed.
    fn change(&self, script: &mut Script, change: &Change, states: &[State]) -> usize {
        let sql = &self.inner.work.sql;
        let lock = |script: &mut Script, statements: &[String], payload_there: &str| {
            for statement in statements {
                let statement = statement.replace("{states}", &in_states(states));
                script.fixed(&statement.replace("{payload_there}", payload_there));
            }
        };
        script.all(&sql.keys_of);
        script.all(&sql.lock_keys);
        let changed = match change {
            Change::Replay { payload } => {
                script.all(&sql.demote);
                let payload_there = match payload {
                    Some(_) => "TRUE",
                    None => "m.payload_bytes IS NOT NULL",
                };
                lock(script, &sql.replay_lock, payload_there);
                let changed = script.all(&sql.chosen);
                if let Some(payload) = payload {
                    let mut edit = Statement::new(self.sql(
                        "UPDATE {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq \
                         SET m.payload_bytes = ",
                    ));
                    edit.number(payload.len() as i64).push(", m.payload = ");
                    let secrecy = self.secrecy();
                    self.inner.work.payload(&mut edit, payload, secrecy);
                    script.add(edit);
                }
                script.all(&sql.replay);
                changed
            }
            Change::Discard => {
                lock(script, &sql.discard_lock, "");
                let changed = script.all(&sql.chosen);
                script.all(&sql.discard);
                changed
            }
        };
        script.all(&sql.rehead);
        changed
    }

    async fn intervene(
        &self,
        operation: &'static str,
        key: &Key,
        change: &Change,
    ) -> Result<Intervention> {
        let until = self.until();
        for _ in 0..TRIES {
            let answer = self.try_to_intervene(operation, until, key, change);
            if let Some(answer) = answer.await? {
                return Ok(answer);
            }
        }
        let context = "the message changed its state again and again";
        Err(Error::new(ErrorKind::Conflict, operation, context))
    }

    /// `None`: the message became eligible just behind the look at it.
    async fn try_to_intervene(
        &self,
        operation: &'static str,
        until: Instant,
        key: &Key,
        change: &Change,
    ) -> Result<Option<Intervention>> {
        let mapped = in_operation(operation);
        let work = &self.inner.work;
        let mut script = self.script(Access::Write);
        work.find(&mut script, key);
        script.fixed("SET @inbox_seqs = CONCAT('[', @inbox_seq, ']')");
        let states: &[State] = match change {
            Change::Replay { .. } => &REPLAYABLE,
            Change::Discard => &DISCARDABLE,
        };
        let changed = self.change(&mut script, change, states);
        // What it is now says why nothing was changed, if nothing was.
        let now = script.fixed(&work.select_records("m.seq = @inbox_seq"));
        let answers = self.run(operation, until, Access::Write, script).await?;
        if answers.number(changed).map_err(mapped)? > 0 {
            self.inner.claim_cursor.forget();
            self.inner.signal.raise();
            return Ok(Some(Intervention::Done));
        }
        let Some(stored) = work.only(operation, &answers, now)? else {
            return Ok(Some(Intervention::NotFound));
        };
        let shown = stored.record.state;
        Ok(match change {
            Change::Replay { payload } if stored.stored_state.is_final() => {
                let lacks_payload = payload.is_none() && stored.record.payload.is_none();
                lacks_payload.then_some(Intervention::PayloadDropped)
            }
            Change::Discard if matches!(shown, State::Pending | State::Dead) => None,
            _ => Some(Intervention::WrongState(shown)),
        })
    }

    /// Changes one slice of what `filter` says.
    async fn change_slice(
        &self,
        operation: &'static str,
        filter: &Filter,
        states: &[State],
        slice: &Slice,
        change: Change,
    ) -> Result<Progress> {
        let mapped = in_operation(operation);
        let beyond = after(operation, slice.after.as_ref(), 0)?;
        let limit = (slice.limit as usize).min(self.inner.work.most_names()) as i64;
        let none = Progress {
            changed: 0,
            next: None,
        };
        if states.is_empty() || limit == 0 {
            return Ok(none);
        }
        let lead = Lead::of(states);
        let mut choose = Statement::new(self.sql(&format!(
            "{{agg}} SELECT JSON_ARRAYAGG(seq) INTO @inbox_seqs FROM (SELECT {0}.seq {1} \
             WHERE {0}.seq > ",
            lead.alias(),
            lead.from()
        )));
        choose.number(beyond);
        if matches!(change, Change::Replay { .. }) {
            choose.push(" AND m.payload_bytes IS NOT NULL");
        }
        add_filter(&mut choose, filter, states);
        choose
            .push(" ORDER BY ")
            .push(lead.alias())
            .push(".seq LIMIT ");
        choose.number(limit).push(") AS t");

        let mut script = self.script(Access::Write);
        script.fixed("SET @inbox_seqs = NULL");
        script.add(choose);
        let chosen = script.all(&self.inner.work.sql.chosen);
        let changed = self.change(&mut script, &change, states);
        let until = self.until();
        let answers = self.run(operation, until, Access::Write, script).await?;
        let changed = answers.number(changed).map_err(mapped)?.unsigned_abs();
        if changed > 0 {
            self.inner.claim_cursor.forget();
            self.inner.signal.raise();
        }
        let row = answers.rows(chosen).first();
        let (count, last): (i64, Option<i64>) = match row {
            Some(row) => (
                row.try_get_unchecked(0).map_err(mapped)?,
                row.try_get_unchecked(1).map_err(mapped)?,
            ),
            None => (0, None),
        };
        Ok(Progress {
            changed,
            next: last.filter(|_| count == limit).map(Cursor::from),
        })
    }

    /// Adds the deletion of what is in `@inbox_seqs` and still as `expired` says.
    fn purge_chosen(&self, script: &mut Script, expired: &PurgeRequest, wait: bool) -> usize {
        let sql = &self.inner.work.sql;
        let dead = expired.state() == State::Dead;
        if dead {
            script.all(&sql.keys_of);
            script.all(&sql.lock_keys);
        }
        script.fixed("SET @inbox_picked = NULL");
        let mut pick = Statement::new(self.sql(if dead {
            "{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked FROM (SELECT x.seq \
             FROM {seqs} AS j STRAIGHT_JOIN {dead} AS x FORCE INDEX (PRIMARY) ON x.seq = j.seq WHERE TRUE"
        } else {
            "{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked FROM (SELECT x.seq \
             FROM {seqs} AS j STRAIGHT_JOIN {done} AS x FORCE INDEX (PRIMARY) ON x.seq = j.seq WHERE x.state = "
        }));
        if !dead {
            pick.number(i64::from(expired.state().code()));
        }
        pick.push(" AND x.finished_at <= @inbox_now - ");
        pick.number(duration_micros(expired.older_than()));
        pick.push(OF_X).push(if wait { "" } else { " SKIP LOCKED" });
        pick.push(") AS t");
        script.add(pick);
        script.fixed("SET @inbox_seqs = @inbox_picked");
        let purged = script.all(&sql.chosen);
        if dead {
            script.all(&sql.purge_dead);
            script.all(&sql.rehead);
        } else {
            script.all(&sql.purge_done);
        }
        purged
    }

    async fn purged(
        &self,
        operation: &'static str,
        script: Script,
        at: usize,
        expired: &PurgeRequest,
    ) -> Result<u64> {
        let until = self.until();
        let answers = self.run(operation, until, Access::Write, script).await?;
        let purged = answers.number(at).map_err(in_operation(operation))?;
        // A blocking dead letter that is purged lets its ordering key move on.
        if purged > 0 && expired.state() == State::Dead {
            self.inner.claim_cursor.forget();
            self.inner.signal.raise();
        }
        Ok(purged.unsigned_abs())
    }

    /// The conditions of `expired` on the table that holds such messages.
    fn add_expired(statement: &mut Statement, expired: &PurgeRequest, limit: u32) {
        if expired.state() != State::Dead {
            statement
                .push("x.state = ")
                .number(i64::from(expired.state().code()))
                .push(" AND ");
        }
        statement.push("x.finished_at <= @inbox_now - ");
        statement.number(duration_micros(expired.older_than()));
        statement
            .push(" ORDER BY x.finished_at, x.seq LIMIT ")
            .number(i64::from(limit));
    }

    fn purge_slice_size(&self) -> u32 {
        PURGE_SLICE.min(u32::try_from(self.inner.work.most_names()).unwrap_or(PURGE_SLICE))
    }

    async fn purge_slice(&self, expired: &PurgeRequest, limit: u32) -> Result<u64> {
        let dead = expired.state() == State::Dead;
        let mut script = self.script(Access::Write);
        script.fixed("SET @inbox_seqs = NULL");
        let table = if dead { "{dead}" } else { "{done}" };
        let mut choose = Statement::new(self.sql(&format!(
            "{{agg}} SELECT JSON_ARRAYAGG(seq) INTO @inbox_seqs FROM (SELECT x.seq \
             FROM {table} AS x FORCE INDEX (expired) WHERE "
        )));
        Self::add_expired(&mut choose, expired, limit);
        // Dead letters are locked behind their ordering keys.
        choose.push(if dead {
            ") AS t"
        } else {
            " FOR UPDATE SKIP LOCKED) AS t"
        });
        script.add(choose);
        let at = self.purge_chosen(&mut script, expired, false);
        self.purged("purge", script, at, expired).await
    }
}

fn handler_statistics(
    handler: HandlerName,
    row: &MySqlRow,
    now: i64,
) -> sqlx::Result<HandlerStatistics> {
    let count = |index: usize| -> sqlx::Result<u64> {
        Ok(u64::try_from(row.try_get_unchecked::<i64, _>(index)?).unwrap_or(0))
    };
    let micros = |index: usize| row.try_get_unchecked::<Option<i64>, _>(index);
    let age =
        |since: i64| Duration::from_micros(u64::try_from(now.saturating_sub(since)).unwrap_or(0));
    let (backlog, leased) = (count(1)?, count(5)?);
    let mut statistics = HandlerStatistics::empty(handler);
    statistics.pending = backlog.saturating_sub(leased);
    statistics.leased = leased;
    statistics.processed = count(2)?;
    statistics.dead = count(3)?;
    statistics.discarded = count(4)?;
    statistics.blocking = count(12)?;
    // The longest due of those that wait and of those whose lease has run out.
    let waiting = (micros(6)?, micros(7)?, micros(8)?);
    let lost = (micros(9)?, micros(10)?, micros(11)?);
    let first = match (waiting, lost) {
        ((Some(a), seq_a, _), (Some(b), seq_b, _)) if (b, seq_b) < (a, seq_a) => lost,
        ((Some(_), _, _), _) => waiting,
        _ => lost,
    };
    statistics.lag = first.0.map(age);
    statistics.oldest_due_age = first.2.map(age);
    Ok(statistics)
}

#[async_trait]
impl Operate for MySqlStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        const OPERATION: &str = "get";
        let work = &self.inner.work;
        let mut script = self.script(Access::Read);
        let mut get = Statement::new(work.select_records("m.handler = "));
        get.bytes(key.handler.as_str().as_bytes());
        get.push(" AND m.id = ").bytes(key.id.as_str().as_bytes());
        let at = script.add(get);
        let until = self.until();
        let answers = self.run(OPERATION, until, Access::Read, script).await?;
        let stored = work.only(OPERATION, &answers, at)?;
        Ok(stored.map(|stored| stored.record))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        const OPERATION: &str = "list";
        let mapped = in_operation(OPERATION);
        let start = if page.newest_first { i64::MAX } else { 0 };
        let beyond = after(OPERATION, page.after.as_ref(), start)?;
        let limit = page.limit.min(Page::MAX);
        if limit == 0 {
            return Ok(Listing::default());
        }
        let lead = Lead::of(&filter.states);
        let content = if page.with_payload {
            "m.payload, f.result"
        } else {
            "NULL, NULL"
        };
        let (beyond_is, direction) = if page.newest_first {
            ("<", "DESC")
        } else {
            (">", "ASC")
        };
        let alias = lead.alias();
        let mut list = Statement::new(self.sql(&format!(
            "SELECT {{columns}}, {content} {} WHERE {alias}.seq {beyond_is} ",
            lead.from()
        )));
        list.number(beyond);
        add_filter(&mut list, filter, &filter.states);
        list.push(&format!(" ORDER BY {alias}.seq {direction} LIMIT "));
        // One more than asked for tells whether there is a next page.
        list.number(i64::from(limit) + 1);
        let mut script = self.script(Access::Read);
        let at = script.add(list);
        let until = self.until();
        let answers = self.run(OPERATION, until, Access::Read, script).await?;
        let returned = answers.rows(at);
        let shown = returned.get(..limit as usize).unwrap_or(returned);
        let now = answers.now().map_err(mapped)?;
        let mut listing = self.listing(shown, now).map_err(mapped)?;
        if let (true, Some(last)) = (returned.len() > shown.len(), shown.last()) {
            listing.next = Some(Cursor::from(sequence(last).map_err(mapped)?));
        }
        Ok(listing)
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        const OPERATION: &str = "count";
        let lead = Lead::of(&filter.states);
        let mut count =
            Statement::new(self.sql(&format!("SELECT COUNT(*) {} WHERE TRUE", lead.from())));
        add_filter(&mut count, filter, &filter.states);
        let mut script = self.script(Access::Read);
        let at = script.add(count);
        let until = self.until();
        let answers = self.run(OPERATION, until, Access::Read, script).await?;
        let counted = answers.number(at).map_err(in_operation(OPERATION))?;
        Ok(counted.unsigned_abs())
    }

    async fn statistics(&self) -> Result<Statistics> {
        const OPERATION: &str = "statistics";
        let mapped = in_operation(OPERATION);
        let mut script = self.script(Access::Read);
        let at = script.all(&self.inner.work.sql.statistics);
        let until = self.until();
        let answers: Answers = self.run(OPERATION, until, Access::Read, script).await?;
        let now = answers.now().map_err(mapped)?;
        let mut handlers = Vec::new();
        for row in answers.rows(at) {
            let name: &[u8] = row.try_get_unchecked(0).map_err(mapped)?;
            // A name that breaks the rules is a corrupt row, which claim and list report.
            let Some(handler) = std::str::from_utf8(name)
                .ok()
                .and_then(|name| HandlerName::new(name).ok())
            else {
                continue;
            };
            handlers.push(handler_statistics(handler, row, now).map_err(mapped)?);
        }
        handlers.sort_by(|a, b| a.handler.cmp(&b.handler));
        Ok(Statistics { handlers })
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        const OPERATION: &str = "replay";
        if let Some(payload) = &payload {
            self.inner
                .work
                .check_payload(payload, 0)
                .map_err(|invalid| invalid.in_operation(OPERATION))?;
        }
        self.intervene(OPERATION, key, &Change::Replay { payload })
            .await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let states = eligible(filter, &REPLAYABLE);
        let change = Change::Replay { payload: None };
        self.change_slice("replay_slice", filter, &states, slice, change)
            .await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.intervene("discard", key, &Change::Discard).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let states = eligible(filter, &DISCARDABLE);
        self.change_slice("discard_slice", filter, &states, slice, Change::Discard)
            .await
    }

    async fn purge(&self, expired: &PurgeRequest) -> Result<u64> {
        let mut purged = 0;
        let mut left = expired.limit();
        while left > 0 {
            let limit = left.min(self.purge_slice_size());
            let started = std::time::Instant::now();
            let slice = self.purge_slice(expired, limit).await?;
            purged += slice;
            left -= limit;
            if slice < u64::from(limit) {
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
        let mapped = in_operation(OPERATION);
        let lead = match expired.state() {
            State::Dead => "{dead} AS x FORCE INDEX (expired)",
            _ => "{done} AS x FORCE INDEX (expired)",
        };
        let mut select = Statement::new(self.sql(&format!(
            "SELECT {{columns}}, m.payload, f.result FROM {lead} \
             STRAIGHT_JOIN {{message}} AS m FORCE INDEX (PRIMARY) ON m.seq = x.seq \
             LEFT JOIN {{work}} AS w FORCE INDEX (PRIMARY) ON w.seq = x.seq \
             LEFT JOIN {{dead}} AS d FORCE INDEX (PRIMARY) ON d.seq = x.seq \
             LEFT JOIN {{done}} AS f FORCE INDEX (PRIMARY) ON f.seq = x.seq WHERE "
        )));
        Self::add_expired(&mut select, expired, expired.limit());
        let mut script = self.script(Access::Read);
        let at = script.add(select);
        let until = self.until();
        let answers = self.run(OPERATION, until, Access::Read, script).await?;
        let now = answers.now().map_err(mapped)?;
        self.listing(answers.rows(at), now).map_err(mapped)
    }

    async fn purge_archived(&self, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let mut purged = 0;
        let work = &self.inner.work;
        for some in keys.chunks(self.purge_slice_size() as usize) {
            let mut script = self.script(Access::Write);
            script.fixed("SET @inbox_seqs = NULL");
            let pairs = some
                .iter()
                .map(|key| (key.handler.as_str(), key.id.as_str()));
            for list in work.name_lists("@inbox_keys", pairs) {
                script.add(list);
            }
            script.fixed(&self.sql(
                "{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_seqs FROM (SELECT DISTINCT m.seq \
                 FROM {keys} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (message_key) \
                 ON m.handler = UNHEX(j.h) AND m.id = UNHEX(j.k) ORDER BY m.seq LIMIT 1000000) AS t",
            ));
            let at = self.purge_chosen(&mut script, expired, true);
            purged += self.purged("purge_archived", script, at, expired).await?;
        }
        Ok(purged)
    }
}
