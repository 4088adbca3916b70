//! Claiming: a selection of what is due first, its leases, and a look at the messages, in one packet.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use inbox_api::{
    AfterDead, ClaimRequest, Claims, Effect, Leased, Outcome, Result, duration_micros, from_micros,
};
use sqlx::Row as _;
use tokio::time::Instant;

use crate::{
    compact_counters::compact_sometimes,
    connection::Connection,
    context::{CHUNK_ROWS, Context},
    error::failed,
    list_variables::{most_numbers, set_pairs},
    multi_statement::{Access, Answers, Script},
    rows::{self, LeasedRow, lease},
    settle::{Detail, Ending, add_settle},
    statement::{Secrecy, Statement},
};

/// How often a claim looks again when it got nothing although something is due.
const LOOKS: u64 = 6;

/// A row that was claimed and cannot be read.
struct Unreadable {
    seq: i64,
    token: i64,
    reason: String,
}

pub(crate) async fn claim(connection: Connection<'_>, request: &ClaimRequest) -> Result<Claims> {
    if request.handlers.is_empty() || request.limit == 0 {
        return Ok(Claims::default());
    }
    let (inner, context) = (connection.inner, connection.context);
    let mut looks = 1;
    let mut from = inner.claim_cursor.of(request);
    let (answers, at) = loop {
        let mut script = connection.script(Access::Write);
        let at = add_claim(context, &mut script, request, from);
        let answers = connection.run(Access::Write, script).await?;
        let last = last_due(context, &answers, at, request).map_err(failed)?;
        inner.claim_cursor.advance(request, last);
        if from.take().is_some() && answers.rows(at).is_empty() {
            continue;
        }
        // A range that ends is read one row too far, and that row is locked for a moment: a
        // message may be skipped because of a claim for another handler. So an empty answer
        // is only believed when nothing is due, or after a few looks.
        let missed = answers.number(at + 1).map_err(failed)? == 1;
        let again = Instant::now() + Duration::from_millis(looks).mul_f64(fastrand::f64());
        if !missed || looks == LOOKS || again >= connection.until {
            break (answers, at);
        }
        tokio::time::sleep_until(again).await;
        looks += 1;
    };
    let length = duration_micros(request.terms.length());
    let lease_end = answers.now().map_err(failed)?.saturating_add(length);
    let (leased, unreadable) = read_claim(&answers, at, lease_end).map_err(failed)?;
    let claims = if unreadable.is_empty() {
        Claims {
            leased,
            ..Claims::default()
        }
    } else {
        // The leases are given by now, whatever becomes of the second look.
        read_again(connection, &answers, at, lease_end)
            .await
            .map_err(|error| error.with_effect(Effect::Unknown))?
    };
    compact_sometimes(connection).await;
    Ok(claims)
}

fn most_claimed(context: &Context, request: &ClaimRequest) -> usize {
    most_numbers(context).min(request.limit as usize)
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
    let sql = &context.sql;
    let limit = most_claimed(context, request) as i64;
    let handlers: BTreeSet<_> = request.handlers.iter().collect();
    if limit > CHUNK_ROWS as i64 {
        script.forget_lists();
    }
    // Behind a full claim the leases that ran out can wait, too: the end of those that are
    // gone is not seen before all their index entries are passed.
    let (queue_file, queues): (_, &[i64]) = match from {
        Some(_) => (&sql.claim_queue_from, &[0]),
        None => (&sql.claim_queue, &[0, 1]),
    };
    let (mut selection, mut due) = (Statement::default(), Statement::default());
    for (n, handler) in handlers.into_iter().enumerate() {
        let handler = handler.as_str().as_bytes();
        due.push(if n == 0 { "" } else { " OR " });
        for template in &sql.claim_due {
            due.append(&template.fill(&[("handler", Statement::of_bytes(handler))]));
        }
        for queue in queues {
            let values = [
                ("handler", Statement::of_bytes(handler)),
                ("queue", Statement::of_number(*queue)),
                ("from", Statement::of_number(from.unwrap_or_default())),
                ("limit", Statement::of_number(limit)),
            ];
            for template in queue_file {
                selection.push(if selection.is_empty() {
                    ""
                } else {
                    "\nUNION ALL\n"
                });
                selection.append(&template.fill(&values));
            }
        }
    }
    let limit = Statement::of_number(limit);
    script.fill(&sql.claim, &[("queues", selection), ("limit", limit)]);
    let length = Statement::of_number(duration_micros(request.terms.length()));
    let worker = Statement::of_bytes(request.terms.worker().as_str().as_bytes());
    script.fill(&sql.claim_lease, &[("length", length), ("worker", worker)]);
    let at = script.all(&sql.claim_rows);
    script.fill(&sql.claim_missed, &[("due", due)]);
    at
}

/// When the last message of a claim became due, if it got as many as it asked for.
fn last_due(
    context: &Context,
    answers: &Answers,
    at: usize,
    request: &ClaimRequest,
) -> sqlx::Result<Option<i64>> {
    let rows = answers.rows(at);
    if rows.len() < most_claimed(context, request) {
        return Ok(None);
    }
    let mut last = None;
    for row in rows {
        last = last.max(Some(row.try_get_unchecked(13)?));
    }
    Ok(last)
}

/// What a claim got until `until`, and what of it cannot be read.
fn read_claim(
    answers: &Answers,
    at: usize,
    until: i64,
) -> sqlx::Result<(Vec<Leased>, Vec<Unreadable>)> {
    let mut leased = Vec::with_capacity(answers.rows(at).len());
    let mut unreadable = Vec::new();
    let mut rows = Vec::with_capacity(answers.rows(at).len());
    for row in answers.rows(at) {
        let seq: i64 = row.try_get_unchecked(0)?;
        let due: i64 = row.try_get_unchecked(13)?;
        rows.push((due, seq, row));
    }
    // Neither server promises an order of aggregated or joined rows.
    rows.sort_unstable_by_key(|(due, seq, _)| (*due, *seq));
    for (_, seq, row) in rows {
        let token: i64 = row.try_get_unchecked(8)?;
        match rows::read_claimed(row) {
            Ok(found) => leased.push(Leased {
                lease: lease(&found.message, seq, token, until),
                message: found.message,
                attempts: found.attempts,
                replays: found.replays,
                accepted_at: from_micros(found.accepted_at),
            }),
            Err(reason) => unreadable.push(Unreadable { seq, token, reason }),
        }
    }
    Ok((leased, unreadable))
}

/// What a claim got of which something could not be read. It may be there all the same, if it was
/// stored just now (see `multi_statement.rs`). What cannot be read by locking reads either is set aside.
async fn read_again(
    connection: Connection<'_>,
    answers: &Answers,
    at: usize,
    lease_end: i64,
) -> Result<Claims> {
    let tokens: HashMap<i64, i64> = answers
        .rows(at)
        .iter()
        .map(|row| Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(8)?)))
        .collect::<sqlx::Result<_>>()
        .map_err(failed)?;
    let context = connection.context;
    let mut script = connection.script(Access::Write);
    let pairs = answers.rows(at).iter().map(|row| {
        let number = |column: usize| row.try_get_unchecked(column).unwrap_or_default();
        (number(13), number(0))
    });
    script.add(set_pairs("@inbox_claimed", pairs));
    let at = script.all(&context.sql.claim_rows_again);
    let answers = connection.run(Access::Write, script).await?;
    let (mut leased, mut unreadable) = read_claim(&answers, at, lease_end).map_err(failed)?;
    // Not what another worker has by now.
    leased.retain(|leased| {
        let row = LeasedRow::of(&leased.lease);
        tokens.get(&row.seq) == Some(&row.token)
    });
    unreadable.retain(|row| tokens.get(&row.seq) == Some(&row.token));
    let inbox = context.options.inbox.as_str();
    let corrupt = unreadable
        .iter()
        .map(|row| {
            let (seq, reason) = (row.seq, row.reason.as_str());
            tracing::error!(inbox, seq, reason, "corrupt message set aside");
            rows::corrupt_row(inbox, seq, reason.to_owned())
        })
        .collect();
    if !unreadable.is_empty() {
        set_aside(connection, unreadable).await?;
    }
    Ok(Claims { leased, corrupt })
}

/// Makes rows dead that were claimed and cannot be read.
async fn set_aside(connection: Connection<'_>, unreadable: Vec<Unreadable>) -> Result<()> {
    let outcomes: Vec<_> = unreadable
        .into_iter()
        .map(|row| {
            // Its ordering key, if any, is found by the row.
            let leased = LeasedRow {
                seq: row.seq,
                token: row.token,
                ordered: true,
            };
            let outcome = Outcome::Dead {
                reason: format!("corrupt: {}", row.reason),
                after: AfterDead::Continue,
            };
            (leased, outcome)
        })
        .collect();
    let mut endings: Vec<_> = outcomes
        .iter()
        .map(|(row, outcome)| Ending {
            handler: None,
            row: *row,
            outcome,
        })
        .collect();
    endings.sort_unstable_by_key(|ending| ending.row.seq);
    let mut script = connection.script(Access::Write);
    let (context, secrecy) = (connection.context, Secrecy::Inline);
    add_settle(context, &mut script, &endings, secrecy, Detail::Each);
    connection.run(Access::Write, script).await?;
    // It may have been first of its ordering key.
    connection.inner.signal.raise();
    Ok(())
}
