//! Purging: final messages are deleted, a transaction for some hundreds at a time, so that its locks are
//! short.

use std::{sync::Arc, time::Instant};

use inbox_api::{Key, Listing, PurgeRequest, Result, State, duration_micros};

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

pub(super) async fn purge(inner: &Arc<Inner>, request: &PurgeRequest) -> Result<u64> {
    let mut purged = 0;
    let mut left = request.limit();
    while left > 0 {
        let limit = left.min(slice_size(&inner.context));
        let started = Instant::now();
        let slice = purge_slice(Connection::new(inner), request, limit).await?;
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

pub(super) async fn purge_archived(
    inner: &Arc<Inner>,
    request: &PurgeRequest,
    keys: &[Key],
) -> Result<u64> {
    let mut purged = 0;
    let context = &inner.context;
    for some in keys.chunks(slice_size(context) as usize) {
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
        purged += run_purge(connection, script, at, request).await?;
    }
    Ok(purged)
}

pub(super) async fn expired(connection: Connection<'_>, request: &PurgeRequest) -> Result<Listing> {
    let context = connection.context;
    let values = [
        ("table", table(context, request)),
        ("expired", is_expired(request)),
        ("limit", Statement::of_number(i64::from(request.limit()))),
    ];
    let mut script = connection.script(Access::Read);
    let at = script.fill(&context.sql.expired, &values);
    let answers = connection.run(Access::Read, script).await?;
    let now = answers.now().map_err(failed)?;
    read_listing(context, answers.rows(at), now).map_err(failed)
}

fn slice_size(context: &Context) -> u32 {
    SLICE.min(u32::try_from(most_names(context)).unwrap_or(SLICE))
}

async fn purge_slice(
    connection: Connection<'_>,
    request: &PurgeRequest,
    limit: u32,
) -> Result<u64> {
    let context = connection.context;
    // Dead letters are locked behind their ordering keys.
    let locking = match request.state() {
        State::Dead => "",
        _ => "FOR UPDATE SKIP LOCKED",
    };
    let values = [
        ("table", table(context, request)),
        ("expired", is_expired(request)),
        ("limit", Statement::of_number(i64::from(limit))),
        ("locking", Statement::new(locking)),
    ];
    let mut script = connection.script(Access::Write);
    script.fill(&context.sql.purge_select, &values);
    let at = add_purge(context, &mut script, request, Statement::new("SKIP LOCKED"));
    run_purge(connection, script, at, request).await
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
    let mut condition = Statement::default();
    if request.state() != State::Dead {
        condition
            .push("x.state = ")
            .number(i64::from(request.state().code()))
            .push(" AND ");
    }
    condition.push("x.finished_at <= @inbox_now - ");
    condition.number(duration_micros(request.older_than()));
    condition
}
