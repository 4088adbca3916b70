//! Retention: final messages are deleted, or lose their content, a transaction for some hundreds at a time,
//! so that its locks are short.

use std::{sync::Arc, time::Instant};

use inbox_api::{Key, Listing, PurgeRequest, Result, State, duration_micros};
use sqlx::Row as _;

use super::records::read_listing;
use crate::{
    connection::{Connection, Inner},
    context::Context,
    error::failed,
    list_variables::{most_names, set_names},
    multi_statement::{Access, Script},
    statement::Statement,
};

/// The most rows of one transaction.
const SLICE: u32 = 500;
/// The most rows that a selection locks, of which a slice is taken. Each range may have all of it.
const MOST_LOCKED: u32 = 5000;
/// The least of a slice, however many ranges there are.
const LEAST: u32 = 10;
/// Of so many handlers at a time, the longest-finished messages come first.
const HANDLERS: usize = 250;

/// What is taken from final messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    All,
    /// Payloads and results.
    Content,
}

impl Taken {
    /// The values of `kept` of those that have it.
    fn kept(self) -> &'static [i64] {
        match self {
            Self::All => &[0, 1],
            Self::Content => &[1],
        }
    }
}

pub(super) async fn purge(inner: &Arc<Inner>, request: &PurgeRequest) -> Result<u64> {
    take_in_slices(inner, request, Taken::All).await
}

pub(super) async fn drop_payloads(inner: &Arc<Inner>, request: &PurgeRequest) -> Result<u64> {
    take_in_slices(inner, request, Taken::Content).await
}

async fn take_in_slices(inner: &Arc<Inner>, request: &PurgeRequest, taken: Taken) -> Result<u64> {
    let mut changed = 0;
    let mut left = request.limit();
    let handlers = handlers(Connection::new(inner), request).await?;
    for some in handlers.chunks(HANDLERS) {
        while left > 0 {
            let ranges = some.len() * taken.kept().len();
            let limit = left.min(slice_size(&inner.context, ranges));
            let started = Instant::now();
            let slice = take_slice(Connection::new(inner), request, some, taken, limit).await;
            let slice = slice.map_err(|error| error.after_changes(changed > 0))?;
            changed += slice;
            left -= limit;
            if slice < u64::from(limit) {
                break;
            }
            // Rests as long as it worked, so that the server is never busy with it alone; also behind
            // the last, since a caller that reaches the limit asks for more.
            tokio::time::sleep(started.elapsed()).await;
        }
    }
    Ok(changed)
}

/// The handlers of which there may be something to take. The index of final messages is by handler, so
/// that one is purged without a look at the history of the others.
async fn handlers(connection: Connection<'_>, request: &PurgeRequest) -> Result<Vec<Vec<u8>>> {
    if let Some(handler) = request.handler() {
        return Ok(vec![handler.as_str().as_bytes().to_vec()]);
    }
    let column = Statement::new(match request.state() {
        State::Dead => "dead",
        State::Discarded => "discarded",
        _ => "processed",
    });
    let mut script = connection.script(Access::Read);
    let file = &connection.context.sql.final_handlers;
    let at = script.fill(file, &[("column", column)]);
    let answers = connection.run(Access::Read, script).await?;
    let names = answers.rows(at).iter().map(|row| row.try_get_unchecked(0));
    names.collect::<sqlx::Result<_>>().map_err(failed)
}

pub(super) async fn purge_archived(
    inner: &Arc<Inner>,
    request: &PurgeRequest,
    keys: &[Key],
) -> Result<u64> {
    let mut purged = 0;
    let context = &inner.context;
    for some in keys.chunks(slice_size(context, 1) as usize) {
        let connection = Connection::new(inner);
        let mut script = connection.script(Access::Write);
        let pairs = some
            .iter()
            .map(|key| (key.handler.as_str(), key.id.as_str()));
        for list in set_names(context, "@inbox_keys", pairs) {
            script.add(list);
        }
        script.all(&context.sql.purge_keys);
        let at = add_purge(context, &mut script, request, Statement::default());
        let slice = run_purge(connection, script, at, request).await;
        purged += slice.map_err(|error| error.after_changes(purged > 0))?;
    }
    Ok(purged)
}

pub(super) async fn expired(connection: Connection<'_>, request: &PurgeRequest) -> Result<Listing> {
    let context = connection.context;
    let mut listing = Listing::default();
    let mut left = request.limit();
    for some in handlers(connection, request).await?.chunks(HANDLERS) {
        let nothing_locked = Statement::default();
        let ranges = ranges(context, request, some, Taken::All, left, &nothing_locked);
        let values = [
            ("ranges", ranges),
            ("limit", Statement::of_number(i64::from(left))),
        ];
        let mut script = connection.script(Access::Read);
        let at = script.fill(&context.sql.expired, &values);
        let answers = connection.run(Access::Read, script).await?;
        let now = answers.now().map_err(failed)?;
        let rows = answers.rows(at);
        left = left.saturating_sub(u32::try_from(rows.len()).unwrap_or(left));
        let found = read_listing(context, rows, now).map_err(failed)?;
        listing.records.extend(found.records);
        listing.corrupt.extend(found.corrupt);
        if left == 0 {
            break;
        }
    }
    Ok(listing)
}

fn slice_size(context: &Context, ranges: usize) -> u32 {
    let ranges = u32::try_from(ranges).unwrap_or(u32::MAX).max(1);
    (MOST_LOCKED / ranges)
        .clamp(LEAST, SLICE)
        .min(u32::try_from(most_names(context)).unwrap_or(SLICE))
}

/// Up to `limit` of each handler's messages that `request` selects, joined.
fn ranges(
    context: &Context,
    request: &PurgeRequest,
    handlers: &[Vec<u8>],
    taken: Taken,
    limit: u32,
    locking: &Statement,
) -> Statement {
    let mut ranges = Statement::default();
    for handler in handlers {
        for kept in taken.kept() {
            let values = [
                ("table", table(context, request)),
                ("handler", Statement::of_bytes(handler)),
                ("state", in_state(request)),
                ("kept", Statement::of_number(*kept)),
                ("until", until(request)),
                ("limit", Statement::of_number(i64::from(limit))),
                ("locking", Statement::new(locking.text.clone())),
            ];
            for template in &context.sql.final_range {
                ranges.push(if ranges.is_empty() {
                    ""
                } else {
                    "\nUNION ALL\n"
                });
                ranges.append(&template.fill(&values));
            }
        }
    }
    ranges
}

async fn take_slice(
    connection: Connection<'_>,
    request: &PurgeRequest,
    handlers: &[Vec<u8>],
    taken: Taken,
    limit: u32,
) -> Result<u64> {
    let context = connection.context;
    // Dead letters that are deleted are locked behind their ordering keys.
    let locking = Statement::new(match (request.state(), taken) {
        (State::Dead, Taken::All) => "",
        _ => "FOR UPDATE SKIP LOCKED",
    });
    let ranges = ranges(context, request, handlers, taken, limit, &locking);
    let values = [
        ("ranges", ranges),
        ("limit", Statement::of_number(i64::from(limit))),
    ];
    let mut script = connection.script(Access::Write);
    script.fill(&context.sql.purge_select, &values);
    let skip = Statement::new("SKIP LOCKED");
    let at = match taken {
        Taken::All => add_purge(context, &mut script, request, skip),
        Taken::Content => add_drop(context, &mut script, request, skip),
    };
    run_purge(connection, script, at, request).await
}

/// Adds the loss of content of what is in `@inbox_seqs` and still as `request` says.
fn add_drop(
    context: &Context,
    script: &mut Script,
    request: &PurgeRequest,
    locking: Statement,
) -> usize {
    let sql = &context.sql;
    let mut expired = is_expired(request);
    expired.push(" AND x.kept = 1");
    let values = [
        ("table", table(context, request)),
        ("expired", expired),
        ("locking", locking),
    ];
    script.fill(&sql.purge_lock, &values);
    let dropped = script.all(&sql.count_selected);
    let and_result = match request.state() {
        State::Dead => "",
        _ => ", x.result = NULL",
    };
    let values = [
        ("table", table(context, request)),
        ("and_result", Statement::new(and_result)),
    ];
    script.fill(&sql.drop_content, &values);
    dropped
}

/// Adds the deletion of what is in `@inbox_seqs` and still as `request` says.
fn add_purge(
    context: &Context,
    script: &mut Script,
    request: &PurgeRequest,
    locking: Statement,
) -> usize {
    let sql = &context.sql;
    let dead = request.state() == State::Dead;
    if dead {
        script.all(&sql.select_keys);
        script.all(&sql.lock_keys);
    }
    let values = [
        ("table", table(context, request)),
        ("expired", is_expired(request)),
        ("locking", locking),
    ];
    script.fill(&sql.purge_lock, &values);
    let purged = script.all(&sql.count_selected);
    if dead {
        script.all(&sql.purge_dead);
        script.all(&sql.promote_key_heads);
    } else {
        script.all(&sql.purge_done);
    }
    purged
}

async fn run_purge(
    connection: Connection<'_>,
    script: Script,
    at: usize,
    request: &PurgeRequest,
) -> Result<u64> {
    let answers = connection.run(Access::Write, script).await?;
    let purged = answers.number(at).map_err(failed)?;
    // A blocking dead letter that is purged lets its ordering key move on.
    if purged > 0 && request.state() == State::Dead {
        connection.inner.wake();
    }
    Ok(purged.unsigned_abs())
}

/// The table that holds such messages.
fn table(context: &Context, request: &PurgeRequest) -> Statement {
    context.sql.table(match request.state() {
        State::Dead => "dead",
        _ => "done",
    })
}

/// The condition on that table.
fn is_expired(request: &PurgeRequest) -> Statement {
    let mut condition = Statement::new("x.finished_at <= ");
    condition.append(&until(request)).append(&in_state(request));
    if let Some(handler) = request.handler() {
        condition.push(" AND x.handler = ");
        condition.bytes(handler.as_str().as_bytes());
    }
    condition
}

/// The last time at which they have finished.
fn until(request: &PurgeRequest) -> Statement {
    let mut until = Statement::new("@inbox_now - ");
    until.number(duration_micros(request.older_than()));
    until
}

/// Further conditions on a row of the table that it is in that state.
fn in_state(request: &PurgeRequest) -> Statement {
    let mut state = Statement::default();
    if request.state() != State::Dead {
        state.push(" AND x.state = ");
        state.number(i64::from(request.state().code()));
    }
    state
}
