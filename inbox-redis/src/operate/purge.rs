//! Retention: what a purge deletes, or drops the payloads of.

use std::{collections::BTreeMap, time::Instant};

use inbox_api::{HandlerName, Key, Listing, Page, PurgeRequest, Result, duration_micros};

use super::{changes::Changes, records::load, scan::STEP, statistics};
use crate::{
    connection::Connection,
    cross_shard::locate_call,
    keys::field,
    reply::{self, Taker},
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
    let mut changes = Changes::new(connection);
    let done = take_steps(&mut changes, request, act).await;
    changes.end(done).await
}

async fn take_steps(changes: &mut Changes<'_>, request: &PurgeRequest, act: &Act) -> Result<u64> {
    let connection = changes.connection();
    let handlers = handlers_of(connection, request).await?;
    let (mut done, mut left) = (0, request.limit() as usize);
    while left > 0 {
        let wanted = left.min(STEP);
        let started = Instant::now();
        let found = find_expired(connection, &handlers, request, wanted, act.with_content).await?;
        let full = found.rows.len() == wanted;
        let mut by_shard = found.spent;
        for row in found.rows {
            by_shard
                .entry(row.shard)
                .or_default()
                .fields
                .push(row.field);
        }
        let mut step = 0;
        for (shard, part) in by_shard {
            step += act_in(changes, shard, request, part, act.script).await?;
        }
        done += step;
        left = left.saturating_sub(usize::try_from(step).unwrap_or(usize::MAX));
        if !full || step == 0 {
            break;
        }
        rest(started).await;
        changes.confirm_many().await?;
    }
    Ok(done)
}

/// Rests for as long as the work took, since a server runs one script at a time; also after the last,
/// since a caller that reaches the limit asks for more.
async fn rest(since: Instant) {
    tokio::time::sleep(since.elapsed()).await;
}

pub(super) async fn expired(connection: &Connection, request: &PurgeRequest) -> Result<Listing> {
    connection.check_open()?;
    let limit = request.limit().min(Page::MAX) as usize;
    if limit == 0 {
        return Ok(Listing::default());
    }
    let handlers = handlers_of(connection, request).await?;
    let found = find_expired(connection, &handlers, request, limit, false).await?;
    load(connection, found.rows, true).await
}

pub(super) async fn purge_archived(
    connection: &Connection,
    request: &PurgeRequest,
    keys: &[Key],
) -> Result<u64> {
    connection.check_open()?;
    let keys = keys.iter().filter(|key| {
        request
            .handler()
            .is_none_or(|handler| *handler == key.handler)
    });
    let mut fields: Vec<String> = keys.map(field).collect();
    // One that is named twice is removed once.
    fields.sort_unstable();
    fields.dedup();
    let mut changes = Changes::new(connection);
    let purged = purge_fields(&mut changes, request, &fields).await;
    changes.end(purged).await
}

async fn purge_fields(
    changes: &mut Changes<'_>,
    request: &PurgeRequest,
    fields: &[String],
) -> Result<u64> {
    let mut purged = 0;
    for step in fields.chunks(STEP) {
        for (shard, fields) in locate(changes.connection(), step).await? {
            let part = Part {
                fields,
                ..Part::default()
            };
            purged += act_in(changes, shard, request, part, &PURGE).await?;
        }
        changes.confirm_many().await?;
    }
    Ok(purged)
}

/// By shard, which of these fields it has: each may be in that of its ordering key, which is not known here.
async fn locate(connection: &Connection, fields: &[String]) -> Result<BTreeMap<u16, Vec<String>>> {
    let layout = connection.layout();
    if layout.shards() == 1 {
        return Ok(BTreeMap::from([(0, fields.to_vec())]));
    }
    let calls = layout
        .all()
        .map(|shard| locate_call(connection, shard, fields));
    let answers = connection.run_all(calls.collect()).await?;
    let mut located = BTreeMap::new();
    for (shard, answer) in layout.all().zip(answers) {
        let here = reply::texts(answer)?;
        if !here.is_empty() {
            located.insert(shard, here);
        }
    }
    Ok(located)
}

/// The handlers whose messages `request` selects.
async fn handlers_of(connection: &Connection, request: &PurgeRequest) -> Result<Vec<HandlerName>> {
    match request.handler() {
        Some(handler) => Ok(vec![handler.clone()]),
        None => statistics::handlers(connection).await,
    }
}

/// What is to be done in one shard.
#[derive(Default)]
struct Part {
    fields: Vec<String>,
    /// Handlers whose history begins with entries that mean nothing any more, to be passed for good.
    spent: Vec<HandlerName>,
}

#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    /// By shard, without fields.
    spent: BTreeMap<u16, Part>,
}

/// The messages of these handlers that `request` selects, the longest-finished of all shards first.
async fn find_expired(
    connection: &Connection,
    handlers: &[HandlerName],
    request: &PurgeRequest,
    limit: usize,
    with_content: bool,
) -> Result<Found> {
    let mut found = Found::default();
    let mut rows: Vec<(i64, Row)> = Vec::new();
    let mut looks: Vec<Look> = connection.layout().all().map(Look::new).collect();
    loop {
        let started = Instant::now();
        let calls = looks.iter().map(|look| {
            let mut call = connection.call(&PURGE_FIND, look.shard, handlers);
            call.arg(request.state().code())
                .arg(duration_micros(request.older_than()))
                .arg(limit - look.found)
                .arg(u8::from(with_content));
            for (handler, entry) in &look.reached {
                call.arg(handler).arg(entry);
            }
            call
        });
        let answers = connection.run_all(calls.collect()).await?;
        for (look, answer) in looks.iter_mut().zip(answers) {
            let mut answer = Taker::of(answer)?;
            let now = answer.number()?;
            for entry in answer.list()? {
                let mut entry = Taker::of(entry)?;
                let at = entry.number()?;
                let mut row = rows::row(look.shard, 0, now, entry.next()?)?;
                row.at = at;
                rows.push((connection.clocks().common(look.shard, at), row));
                look.found += 1;
            }
            for handler in answer.list()? {
                let name = reply::text(&handler)?.map(HandlerName::new);
                let spent = &mut found.spent.entry(look.shard).or_default().spent;
                spent.extend(name.and_then(std::result::Result::ok));
            }
            look.reached.clear();
            let mut reached = answer.list()?.into_iter();
            while let (Some(handler), Some(entry)) = (reached.next(), reached.next()) {
                let names = (reply::text(&handler)?, reply::text(&entry)?);
                if let (Some(handler), Some(entry)) = names {
                    look.reached.insert(handler.to_owned(), entry.to_owned());
                }
            }
        }
        looks.retain(|look| !look.reached.is_empty() && look.found < limit);
        if looks.is_empty() {
            break;
        }
        rest(started).await;
    }
    rows.sort_by_key(|(at, _)| *at);
    rows.truncate(limit);
    found.rows = rows.into_iter().map(|(_, row)| row).collect();
    Ok(found)
}

/// How far one shard has been looked through, which takes several scripts where much was replayed or has
/// no content any more.
struct Look {
    shard: u16,
    found: usize,
    /// By handler the last entry of its history, unless all has been looked at.
    reached: BTreeMap<String, String>,
}

impl Look {
    fn new(shard: u16) -> Self {
        Self {
            shard,
            found: 0,
            reached: BTreeMap::new(),
        }
    }
}

/// Answers how many of the messages it applied to. What takes too long for one script is left to others, as is to pass
/// for good what means nothing any more.
async fn act_in(
    changes: &mut Changes<'_>,
    shard: u16,
    request: &PurgeRequest,
    part: Part,
    script: &'static Script,
) -> Result<u64> {
    let Part {
        mut fields,
        mut spent,
    } = part;
    let mut done = 0;
    loop {
        let started = Instant::now();
        let named = fields
            .iter()
            .filter_map(|field| HandlerName::new(field.split_once('\0')?.0).ok());
        let handlers: Vec<HandlerName> = named.chain(spent).collect();
        let mut call = changes.connection().call(script, shard, &handlers);
        call.arg(request.state().code())
            .arg(duration_micros(request.older_than()));
        for field in &fields {
            call.arg(field);
        }
        let mut answer = Taker::of(changes.run(call).await?)?;
        done += answer.unsigned()?;
        changes.forget(shard, answer.list()?).await;
        fields = reply::texts(answer.next()?)?;
        // Each script gets on with the first of them, however many there are.
        spent = statistics::read_handlers(answer.list()?);
        if fields.is_empty() && spent.is_empty() {
            return Ok(done);
        }
        rest(started).await;
    }
}
