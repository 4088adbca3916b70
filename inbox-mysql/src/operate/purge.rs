//! Retention: final messages are deleted, or lose their content, a transaction for some hundreds at a time,
//! so that its locks are short.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Instant};

use inbox_api::{Key, Listing, PurgeRequest, Result, State, duration_micros};
use sqlx::Row as _;

use super::records::read_listing;
use crate::{
    connection::{Connection, Inner},
    context::Context,
    error::failed,
    list_variables::{most_names, most_numbers, set_names, set_numbers},
    multi_statement::{Access, Script},
    statement::Statement,
};

/// The most rows of one transaction.
const SLICE: u32 = 500;
/// The most entries of the index that are read at once, of all ranges together.
const MOST_READ: usize = 50_000;
/// The least and the most of one range.
const OF_RANGE: (usize, usize) = (10, 5000);
/// The most ranges of one statement.
const RANGES: usize = 500;

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
    let mut finals = FinalMessages::of(Connection::new(inner), request, taken).await?;
    while left > 0 {
        let wanted = left.min(slice_size(&inner.context)) as usize;
        let started = Instant::now();
        let slice = take_slice(inner, &mut finals, taken, wanted).await;
        let (found, slice) = slice.map_err(|error| error.after_changes(changed > 0))?;
        changed += slice;
        // Those that others hold, or have taken since they were found, make room for more.
        left = left.saturating_sub(u32::try_from(slice).unwrap_or(u32::MAX));
        if found < wanted {
            break;
        }
        // Rests as long as it worked, so that the server is never busy with it alone; also behind
        // the last, since a caller that reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(changed)
}

/// Final messages that a request selects, the longest-finished first. Each range of the index is read from its front,
/// a few entries at a time, and only as far as it is needed.
struct FinalMessages<'a> {
    request: &'a PurgeRequest,
    ranges: Vec<Range>,
    /// What was read and not handed out: when it was finished, its number, and the place of its range.
    at_hand: BinaryHeap<Reverse<(i64, i64, usize)>>,
    /// The places of ranges of which nothing is at hand, and more may be there.
    unread: Vec<usize>,
}

/// The final messages of one handler, with or without content.
struct Range {
    handler: Vec<u8>,
    kept: i64,
    /// Where to read on: behind this time and number.
    behind: Option<(i64, i64)>,
    /// How many are at hand.
    at_hand: usize,
    /// Whether nothing was left when it was last read.
    is_read: bool,
}

impl Range {
    /// A further condition: that it was not read before.
    fn read_on(&self) -> Statement {
        let mut condition = Statement::default();
        if let Some((time, seq)) = self.behind {
            condition.push(" AND x.finished_at >= ").number(time);
            condition.push(" AND (x.finished_at > ").number(time);
            condition.push(" OR x.seq > ").number(seq).push(")");
        }
        condition
    }
}

impl<'a> FinalMessages<'a> {
    async fn of(
        connection: Connection<'_>,
        request: &'a PurgeRequest,
        taken: Taken,
    ) -> Result<Self> {
        let mut ranges = Vec::new();
        for handler in handlers(connection, request).await? {
            for kept in taken.kept() {
                ranges.push(Range {
                    handler: handler.clone(),
                    kept: *kept,
                    behind: None,
                    at_hand: 0,
                    is_read: false,
                });
            }
        }
        Ok(Self {
            request,
            unread: (0..ranges.len()).collect(),
            ranges,
            at_hand: BinaryHeap::new(),
        })
    }

    /// The numbers of the next ones, up to `most`. Fewer: these were the last.
    async fn next(&mut self, connection: Connection<'_>, most: usize) -> Result<Vec<i64>> {
        let mut seqs = Vec::new();
        while seqs.len() < most {
            if !self.unread.is_empty() {
                self.read(connection).await?;
            }
            let Some(Reverse((_, seq, place))) = self.at_hand.pop() else {
                break;
            };
            seqs.push(seq);
            if let Some(range) = self.ranges.get_mut(place) {
                range.at_hand -= 1;
                if range.at_hand == 0 && !range.is_read {
                    self.unread.push(place);
                }
            }
        }
        Ok(seqs)
    }

    /// Reads on in all that is unread.
    async fn read(&mut self, connection: Connection<'_>) -> Result<()> {
        let (least, most) = OF_RANGE;
        let limit = (MOST_READ / self.unread.len().max(1)).clamp(least, most);
        let limit = limit.min(self.request.limit() as usize);
        while !self.unread.is_empty() {
            let some = self.unread.len().min(RANGES);
            let places: Vec<_> = self.unread.drain(..some).collect();
            self.read_ranges(connection, &places, limit).await?;
        }
        Ok(())
    }

    async fn read_ranges(
        &mut self,
        connection: Connection<'_>,
        places: &[usize],
        limit: usize,
    ) -> Result<()> {
        let context = connection.context;
        let ranges = self.selects(context, places, limit);
        let mut script = connection.script(Access::Read);
        let at = script.fill(&context.sql.final_ranges, &[("ranges", ranges)]);
        let answers = connection.run(Access::Read, script).await?;
        for row in answers.rows(at) {
            let number = |column: usize| row.try_get_unchecked::<i64, _>(column).map_err(failed);
            let place = usize::try_from(number(0)?).unwrap_or(usize::MAX);
            let entry = (number(1)?, number(2)?);
            if let Some(range) = self.ranges.get_mut(place) {
                range.behind = range.behind.max(Some(entry));
                range.at_hand += 1;
                self.at_hand.push(Reverse((entry.0, entry.1, place)));
            }
        }
        for place in places {
            if let Some(range) = self.ranges.get_mut(*place) {
                range.is_read = range.at_hand < limit;
            }
        }
        Ok(())
    }

    /// Up to `limit` of each range at one of these places, joined.
    fn selects(&self, context: &Context, places: &[usize], limit: usize) -> Statement {
        let mut selects = Statement::default();
        let found = places
            .iter()
            .filter_map(|place| Some((*place, self.ranges.get(*place)?)));
        for (place, range) in found {
            let values = [
                ("place", Statement::of_number(place as i64)),
                ("table", table(context, self.request)),
                ("handler", Statement::of_bytes(&range.handler)),
                ("state", in_state(self.request)),
                ("kept", Statement::of_number(range.kept)),
                ("until", until(self.request)),
                ("behind", range.read_on()),
                ("limit", Statement::of_number(limit as i64)),
            ];
            for template in &context.sql.final_range {
                selects.push(if selects.is_empty() {
                    ""
                } else {
                    "\nUNION ALL\n"
                });
                selects.append(&template.fill(&values));
            }
        }
        selects
    }
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
        let slice = run_purge(connection, script, at, request).await;
        purged += slice.map_err(|error| error.after_changes(purged > 0))?;
    }
    Ok(purged)
}

pub(super) async fn expired(connection: Connection<'_>, request: &PurgeRequest) -> Result<Listing> {
    let context = connection.context;
    let mut finals = FinalMessages::of(connection, request, Taken::All).await?;
    let mut listing = Listing::default();
    let mut left = request.limit() as usize;
    while left > 0 {
        let wanted = left.min(most_numbers(context));
        let seqs = finals.next(connection, wanted).await?;
        if seqs.is_empty() {
            break;
        }
        let values = [
            ("table", table(context, request)),
            ("expired", is_expired(request)),
            ("limit", Statement::of_number(wanted as i64)),
        ];
        let mut script = connection.script(Access::Read);
        script.add(set_numbers("@inbox_seqs", &seqs));
        let at = script.fill(&context.sql.expired, &values);
        let answers = connection.run(Access::Read, script).await?;
        let now = answers.now().map_err(failed)?;
        let rows = answers.rows(at);
        let found = read_listing(context, rows, now).map_err(failed)?;
        listing.records.extend(found.records);
        listing.corrupt.extend(found.corrupt);
        if seqs.len() < wanted {
            break;
        }
        // One that was replayed meanwhile leaves room for another.
        left = left.saturating_sub(rows.len());
    }
    Ok(listing)
}

fn slice_size(context: &Context) -> u32 {
    SLICE.min(u32::try_from(most_names(context)).unwrap_or(SLICE))
}

/// Takes the next up to `most` messages, as far as no other transaction holds them or has changed them since they were
/// found. Answers with how many were found and how many were taken.
async fn take_slice(
    inner: &Arc<Inner>,
    finals: &mut FinalMessages<'_>,
    taken: Taken,
    most: usize,
) -> Result<(usize, u64)> {
    let seqs = finals.next(Connection::new(inner), most).await?;
    if seqs.is_empty() {
        return Ok((0, 0));
    }
    let (context, request) = (&inner.context, finals.request);
    let connection = Connection::new(inner);
    let mut script = connection.script(Access::Write);
    script.add(set_numbers("@inbox_seqs", &seqs));
    let skip = Statement::new("SKIP LOCKED");
    let at = match taken {
        Taken::All => add_purge(context, &mut script, request, skip),
        Taken::Content => add_drop(context, &mut script, request, skip),
    };
    let slice = run_purge(connection, script, at, request).await?;
    Ok((seqs.len(), slice))
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
