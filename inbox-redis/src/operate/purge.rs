//! Retention: what a purge deletes, or drops the payloads of.

use std::{collections::BTreeMap, time::Instant};

use inbox_api::{HandlerName, Key, Listing, Page, PurgeRequest, Result, duration_micros};

use super::{records::load, scan::STEP, statistics};
use crate::{
    connection::Connection,
    cross_shard,
    keys::field,
    reply::Taker,
    rows::{self, Row},
    scripts::{DROP_PAYLOADS, PURGE, PURGE_FIND, Script},
};

/// What is done to the messages that a request selects.
struct Act {
    script: &'static Script,
    /// Whether only those that have a payload or a result are meant.
    with_content: bool,
}

pub(super) async fn purge(connection: &Connection, request: &PurgeRequest) -> Result<u64> {
    let act = Act {
        script: &PURGE,
        with_content: false,
    };
    in_steps(connection, request, &act).await
}

pub(super) async fn drop_payloads(connection: &Connection, request: &PurgeRequest) -> Result<u64> {
    let act = Act {
        script: &DROP_PAYLOADS,
        with_content: true,
    };
    in_steps(connection, request, &act).await
}

async fn in_steps(connection: &Connection, request: &PurgeRequest, act: &Act) -> Result<u64> {
    connection.check_open()?;
    let handlers = handlers_of(connection, request).await?;
    let (mut done, mut left) = (0, request.limit() as usize);
    while left > 0 {
        let wanted = left.min(STEP);
        let started = Instant::now();
        let found = find_expired(connection, &handlers, request, wanted, act.with_content).await?;
        let full = found.len() == wanted;
        let mut by_shard: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for row in found {
            by_shard.entry(row.shard).or_default().push(row.field);
        }
        let mut step = 0;
        for (shard, fields) in by_shard {
            step += act_in(connection, shard, request, &fields, act.script).await?;
        }
        done += step;
        left = left.saturating_sub(usize::try_from(step).unwrap_or(usize::MAX));
        if !full || step == 0 {
            break;
        }
        // Rests as long as it worked, since the server runs one script at a time; also after the
        // last, since a caller that reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(done)
}

pub(super) async fn expired(connection: &Connection, request: &PurgeRequest) -> Result<Listing> {
    connection.check_open()?;
    let limit = request.limit().min(Page::MAX) as usize;
    if limit == 0 {
        return Ok(Listing::default());
    }
    let handlers = handlers_of(connection, request).await?;
    let found = find_expired(connection, &handlers, request, limit, false).await?;
    load(connection, found, true).await
}

pub(super) async fn purge_archived(
    connection: &Connection,
    request: &PurgeRequest,
    keys: &[Key],
) -> Result<u64> {
    connection.check_open()?;
    let mut purged = 0;
    let keys = keys.iter().filter(|key| {
        request
            .handler()
            .is_none_or(|handler| *handler == key.handler)
    });
    // Each may be in the shard of its ordering key, which is not known here.
    let mut fields: Vec<String> = keys.map(field).collect();
    // One that is named twice is removed once.
    fields.sort_unstable();
    fields.dedup();
    for step in fields.chunks(STEP) {
        for shard in connection.layout().all() {
            purged += act_in(connection, shard, request, step, &PURGE).await?;
        }
    }
    Ok(purged)
}

/// The handlers whose messages `request` selects.
async fn handlers_of(connection: &Connection, request: &PurgeRequest) -> Result<Vec<HandlerName>> {
    match request.handler() {
        Some(handler) => Ok(vec![handler.clone()]),
        None => statistics::handlers(connection).await,
    }
}

/// The messages of these handlers that `request` selects, the longest-finished of all shards first.
async fn find_expired(
    connection: &Connection,
    handlers: &[HandlerName],
    request: &PurgeRequest,
    limit: usize,
    with_content: bool,
) -> Result<Vec<Row>> {
    let calls = connection.layout().all().map(|shard| {
        let mut call = connection.call(&PURGE_FIND, shard, handlers);
        call.arg(request.state().code())
            .arg(duration_micros(request.older_than()))
            .arg(limit)
            .arg(u8::from(with_content));
        call
    });
    let answers = connection.run_all(calls.collect()).await?;
    let mut found = Vec::new();
    for (shard, answer) in connection.layout().all().zip(answers) {
        let mut answer = Taker::of(answer)?;
        let now = answer.number()?;
        for entry in answer.list()? {
            let mut entry = Taker::of(entry)?;
            let at = entry.number()?;
            let mut row = rows::row(shard, 0, now, entry.next()?)?;
            row.at = at;
            found.push((connection.clocks().common(shard, at), row));
        }
    }
    found.sort_by_key(|(at, _)| *at);
    found.truncate(limit);
    Ok(found.into_iter().map(|(_, row)| row).collect())
}

/// Answers how many of the messages it applied to.
async fn act_in(
    connection: &Connection,
    shard: u16,
    request: &PurgeRequest,
    fields: &[String],
    script: &'static Script,
) -> Result<u64> {
    let handlers: Vec<HandlerName> = fields
        .iter()
        .filter_map(|field| HandlerName::new(field.split_once('\0')?.0).ok())
        .collect();
    let mut call = connection.call(script, shard, &handlers);
    call.arg(request.state().code())
        .arg(duration_micros(request.older_than()));
    for field in fields {
        call.arg(field);
    }
    let mut answer = Taker::of(connection.run(call).await?)?;
    let done = answer.unsigned()?;
    cross_shard::forget(connection, shard, answer.list()?).await;
    Ok(done)
}
