//! Claiming: a selection of what is due first, its leases, and a look at the messages, in one packet.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use inbox_api::{
    AfterDead, ClaimRequest, Claims, Effect, Leased, Outcome, Result, duration_micros, from_micros,
};
use sqlx::{Row as _, mysql::MySqlRow};
use tokio::time::Instant;

use crate::{
    claim_runs::claim_in_runs,
    compact_counters::compact_sometimes,
    connection::Connection,
    context::{CHUNK_ROWS, Context},
    error::failed,
    list_variables::most_numbers,
    multi_statement::{Access, Answers, Script},
    rows::{self, LeasedRow, lease},
    settle::{Detail, Ending, add_settle},
    statement::{Secrecy, Statement},
};

/// How often a claim looks again when it got nothing although something is due.
const LOOKS: u64 = 6;

pub(crate) async fn claim(connection: Connection<'_>, request: &ClaimRequest) -> Result<Claims> {
    if request.handlers.is_empty() || request.limit == 0 {
        return Ok(Claims::default());
    }
    let claims = if request.run_limit > 1 {
        claim_in_runs(connection, request).await?
    } else {
        claim_singly(connection, request).await?
    };
    compact_sometimes(connection).await;
    Ok(claims)
}

/// Takes one message of each ordering key at most.
async fn claim_singly(connection: Connection<'_>, request: &ClaimRequest) -> Result<Claims> {
    let (inner, context) = (connection.inner, connection.context);
    let most = most_claimed(context, request);
    let mut looks = Looks::new(connection);
    let mut from = inner.claim_cursor.of(request);
    let (answers, at) = loop {
        let mut script = connection.script(Access::Write);
        let at = add_claim(context, &mut script, request, from);
        let answers = connection.run(Access::Write, script).await?;
        let missed = Missed::read(&answers, at + 1).map_err(failed)?;
        if missed == Missed::Runs {
            // What is leased in runs, by other workers, may have run out.
            return claim_in_runs(connection, request).await;
        }
        let last = last_due(&answers, at, most).map_err(failed)?;
        inner.claim_cursor.advance(request, last);
        if from.take().is_some() && answers.rows(at).is_empty() {
            continue;
        }
        if missed == Missed::Nothing || !looks.again().await {
            break (answers, at);
        }
    };
    read_claims(connection, request, &answers, at).await
}

/// What a claim got that was given out at `at`. What cannot be read is set aside.
pub(crate) async fn read_claims(
    connection: Connection<'_>,
    request: &ClaimRequest,
    answers: &Answers,
    at: usize,
) -> Result<Claims> {
    let length = duration_micros(request.terms.length());
    let lease_end = answers.now().map_err(failed)?.saturating_add(length);
    let rows = read_rows(answers, at).map_err(failed)?;
    if rows.iter().all(|row| row.found.is_ok()) {
        return Ok(Claims {
            leased: leases(rows, lease_end),
            ..Claims::default()
        });
    }
    // The leases are given by now, whatever becomes of the second look.
    read_again(connection, rows, lease_end)
        .await
        .map_err(|error| error.with_effect(Effect::Unknown))
}

/// Why a claim got nothing.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Missed {
    /// Nothing is due, or it got something.
    Nothing,
    /// Something is due. A range that ends is read one row too far, and that row is locked for a
    /// moment: a message may be skipped because of a claim for another handler. So an empty answer
    /// is only believed when nothing is due, or after a few looks.
    Due,
    /// The same, and runs are under way.
    Runs,
}

impl Missed {
    /// What `claim_missed.sql` answers.
    pub(crate) fn read(answers: &Answers, place: usize) -> sqlx::Result<Self> {
        Ok(match answers.number(place)? {
            0 => Self::Nothing,
            2 => Self::Runs,
            _ => Self::Due,
        })
    }
}

/// How often a claim has looked.
pub(crate) struct Looks {
    until: Instant,
    made: u64,
}

impl Looks {
    pub(crate) fn new(connection: Connection<'_>) -> Self {
        Self {
            until: connection.until,
            made: 1,
        }
    }

    /// Whether to look again, behind a pause.
    pub(crate) async fn again(&mut self) -> bool {
        let again = Instant::now() + Duration::from_millis(self.made).mul_f64(fastrand::f64());
        if self.made == LOOKS || again >= self.until {
            return false;
        }
        tokio::time::sleep_until(again).await;
        self.made += 1;
        true
    }
}

fn most_claimed(context: &Context, request: &ClaimRequest) -> usize {
    most_numbers(context).min(request.limit as usize)
}

/// What a claim selects from, and how it asks whether anything is due there.
pub(crate) struct Selection {
    pub(crate) queues: Statement,
    pub(crate) due: Statement,
    pub(crate) handlers: Statement,
}

impl Selection {
    /// Up to `limit` of each handler and queue, of what became due no sooner than `from`, or of anything.
    pub(crate) fn new(
        context: &Context,
        request: &ClaimRequest,
        from: Option<i64>,
        columns: &str,
        limit: usize,
    ) -> Self {
        let sql = &context.sql;
        let names: BTreeSet<_> = request.handlers.iter().collect();
        // Behind a full claim the leases that ran out can wait, too: the end of those that are
        // gone is not seen before all their index entries are passed.
        let (queue_file, from_queues): (_, &[i64]) = match from {
            Some(_) => (&sql.claim_queue_from, &[0]),
            None => (&sql.claim_queue, &[0, 1]),
        };
        let mut selection = Self {
            queues: Statement::default(),
            due: Statement::default(),
            handlers: Statement::default(),
        };
        for (n, name) in names.into_iter().enumerate() {
            let name = name.as_str().as_bytes();
            selection.handlers.push(if n == 0 { "" } else { ", " });
            selection.handlers.bytes(name);
            selection.due.push(if n == 0 { "" } else { " OR " });
            for template in &sql.claim_due {
                let due = template.fill(&[("handler", Statement::of_bytes(name))]);
                selection.due.append(&due);
            }
            for queue in from_queues {
                let values = [
                    ("selected", Statement::new(columns)),
                    ("handler", Statement::of_bytes(name)),
                    ("queue", Statement::of_number(*queue)),
                    ("from", Statement::of_number(from.unwrap_or_default())),
                    ("limit", Statement::of_number(limit as i64)),
                ];
                for template in queue_file {
                    let first = selection.queues.is_empty();
                    selection
                        .queues
                        .push(if first { "" } else { "\nUNION ALL\n" });
                    selection.queues.append(&template.fill(&values));
                }
            }
        }
        selection
    }
}

/// Adds a claim to `script`, of messages that became due no sooner than `from`, or of any.
/// Answers where the messages stand; behind them it says whether there was nothing to take
/// although something is due.
fn add_claim(
    context: &Context,
    script: &mut Script,
    request: &ClaimRequest,
    from: Option<i64>,
) -> usize {
    let limit = most_claimed(context, request);
    if limit > CHUNK_ROWS {
        script.forget_lists();
    }
    let selection = Selection::new(context, request, from, "seq, visible_at", limit);
    let values = [
        ("handlers", selection.handlers),
        ("queues", selection.queues),
        ("limit", Statement::of_number(limit as i64)),
    ];
    script.fill(&context.sql.claim, &values);
    add_lease(context, script, request);
    add_look(context, script, selection.due)
}

/// Adds the leases of what was selected.
pub(crate) fn add_lease(context: &Context, script: &mut Script, request: &ClaimRequest) {
    let length = Statement::of_number(duration_micros(request.terms.length()));
    let worker = Statement::of_bytes(request.terms.worker().as_str().as_bytes());
    let values = [("length", length), ("worker", worker)];
    script.fill(&context.sql.claim_lease, &values);
}

/// Adds a look at what was leased, and behind it what [`Missed`] reads.
pub(crate) fn add_look(context: &Context, script: &mut Script, due: Statement) -> usize {
    let at = script.all(&context.sql.claim_rows);
    script.fill(&context.sql.claim_missed, &[("due", due)]);
    at
}

/// When the last message of a claim became due, or the first one of its run, if it got as many as it asked for.
pub(crate) fn last_due(answers: &Answers, at: usize, most: usize) -> sqlx::Result<Option<i64>> {
    let rows = answers.rows(at);
    if rows.len() < most {
        return Ok(None);
    }
    let mut last = None;
    for row in rows {
        last = last.max(Some(row.try_get_unchecked(13)?));
    }
    Ok(last)
}

/// A row of `claim_rows.sql`.
struct ClaimedRow {
    /// When the first of its run became due, which is itself where there is no run.
    due: i64,
    first: i64,
    seq: i64,
    in_run: bool,
    token: i64,
    /// Or why it cannot be read.
    found: Result<rows::Claimed, String>,
}

impl ClaimedRow {
    fn read(row: &MySqlRow) -> sqlx::Result<Self> {
        let seq = row.try_get_unchecked(0)?;
        let first: Option<i64> = row.try_get_unchecked(14)?;
        let in_run: Option<i64> = row.try_get_unchecked(15)?;
        Ok(Self {
            due: row.try_get_unchecked(13)?,
            first: first.unwrap_or(seq),
            seq,
            in_run: in_run == Some(1),
            token: row.try_get_unchecked(8)?,
            found: rows::read_claimed(row),
        })
    }

    fn leased_row(&self) -> LeasedRow {
        LeasedRow {
            seq: self.seq,
            token: self.token,
            // Its ordering key, if any, is found by the row.
            ordered: true,
            in_run: self.in_run,
        }
    }
}

/// What a claim got, in its order.
fn read_rows(answers: &Answers, at: usize) -> sqlx::Result<Vec<ClaimedRow>> {
    let rows = answers.rows(at).iter().map(ClaimedRow::read);
    let mut rows = rows.collect::<sqlx::Result<Vec<_>>>()?;
    // Neither server promises an order of aggregated or joined rows.
    rows.sort_unstable_by_key(|row| (row.due, row.first, row.seq));
    Ok(rows)
}

/// The leases until `until` of those that can be read.
fn leases(rows: Vec<ClaimedRow>, until: i64) -> Vec<Leased> {
    let leased = rows.into_iter().filter_map(|row| {
        let found = row.found.ok()?;
        Some(Leased {
            lease: lease(&found.message, row.seq, row.token, row.in_run, until),
            message: found.message,
            attempts: found.attempts,
            replays: found.replays,
            accepted_at: from_micros(found.accepted_at),
        })
    });
    leased.collect()
}

/// What a claim got of which something could not be read. It may be there all the same, if it was
/// stored just now (see `multi_statement.rs`). What cannot be read by locking reads either is set aside, and
/// those behind it in its run are handed back.
async fn read_again(
    connection: Connection<'_>,
    rows: Vec<ClaimedRow>,
    lease_end: i64,
) -> Result<Claims> {
    let context = connection.context;
    let tokens: HashMap<i64, i64> = rows.iter().map(|row| (row.seq, row.token)).collect();
    let mut script = connection.script(Access::Write);
    script.add(set_claimed(&rows));
    let at = script.all(&context.sql.claim_rows_again);
    let answers = connection.run(Access::Write, script).await?;
    let mut rows = read_rows(&answers, at).map_err(failed)?;
    // Not what another worker has by now.
    rows.retain(|row| tokens.get(&row.seq) == Some(&row.token));
    let inbox = context.options.inbox.as_str();
    let (mut corrupt, mut endings, mut cut) = (Vec::new(), Vec::new(), HashSet::new());
    rows.retain(|row| {
        let outcome = if cut.contains(&row.first) {
            Outcome::Release
        } else if let Err(reason) = &row.found {
            let seq = row.seq;
            tracing::error!(inbox, seq, reason, "corrupt message set aside");
            corrupt.push(rows::corrupt_row(inbox, seq, reason.clone()));
            cut.insert(row.first);
            Outcome::Dead {
                reason: format!("corrupt: {reason}"),
                after: AfterDead::Continue,
            }
        } else {
            return true;
        };
        endings.push((row.leased_row(), outcome));
        false
    });
    if !endings.is_empty() {
        set_aside(connection, endings).await?;
    }
    Ok(Claims {
        leased: leases(rows, lease_end),
        corrupt,
    })
}

/// The list that the statements of a claim read.
fn set_claimed(rows: &[ClaimedRow]) -> Statement {
    let mut set = Statement::new("SET @inbox_claimed = '[");
    for (n, row) in rows.iter().enumerate() {
        set.push(if n == 0 { "[" } else { ",[" }).number(row.due);
        set.push(",").number(row.seq).push(",").number(row.first);
        set.push(",").number(i64::from(row.in_run)).push("]");
    }
    set.push("]'");
    set
}

/// Ends leases of rows that were claimed and cannot be read, and of those behind them.
async fn set_aside(
    connection: Connection<'_>,
    mut outcomes: Vec<(LeasedRow, Outcome)>,
) -> Result<()> {
    outcomes.sort_unstable_by_key(|(row, _)| row.seq);
    let endings: Vec<_> = outcomes
        .iter()
        .map(|(row, outcome)| Ending {
            handler: None,
            row: *row,
            outcome,
        })
        .collect();
    let mut script = connection.script(Access::Write);
    let (context, secrecy) = (connection.context, Secrecy::Inline);
    add_settle(context, &mut script, &endings, secrecy, Detail::Each);
    connection.run(Access::Write, script).await?;
    // It may have been first of its ordering key.
    connection.inner.signal.raise();
    Ok(())
}
