//! Settling a batch: one statement for all outcomes, and an answer for each.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use inbox_api::{
    AfterDead, Bytes, Outcome, Result, Settled, Settlement, State, check_size, duration_micros,
    error_text,
};
use sqlx::{Row as _, SqliteConnection};
use tokio::time::Instant;

use crate::{
    batch::{CHUNK_BYTES, CHUNK_ROWS, Chunk, json},
    connection::Database,
    error::failed,
    rows::{lease_row, seq_and_token},
};

/// Row, token, new state, attempts finished, due, error, blocks, result's place and length.
type SettleRow<'a> = (
    i64,
    i64,
    u8,
    u8,
    Option<i64>,
    Option<Cow<'a, str>>,
    bool,
    Option<usize>,
    usize,
);

/// Answers to a batch of settlements.
pub(crate) struct Answers {
    pub(crate) settled: Vec<Settled>,
    /// Whether a message may have become claimable.
    pub(crate) wake: bool,
}

/// About how much of a statement's room an outcome takes.
fn size(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Processed { result } => result.as_ref().map_or(0, Bytes::len),
        Outcome::Retry { error: text, .. } | Outcome::Dead { reason: text, .. } => text.len(),
        Outcome::Release => 0,
    }
}

fn is_processed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Processed { .. })
}

/// Whether an outcome makes the message itself claimable at once.
fn is_due_at_once(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Release => true,
        Outcome::Retry { after, .. } => after.is_zero(),
        Outcome::Processed { .. } | Outcome::Dead { .. } => false,
    }
}

fn add<'a>(
    chunk: &mut Chunk<SettleRow<'a>>,
    (seq, token): (i64, i64),
    outcome: &'a Outcome,
    now: i64,
) {
    let code = State::code;
    let row = match outcome {
        Outcome::Processed { result } => {
            let at = result.as_ref().map(|result| chunk.append(result));
            let bytes = result.as_ref().map_or(0, Bytes::len);
            let state = code(State::Processed);
            (seq, token, state, 1, None, None, false, at, bytes)
        }
        Outcome::Retry { after, error } => {
            let due = Some(now.saturating_add(duration_micros(*after)));
            let error = Some(error_text(error));
            let state = code(State::Pending);
            (seq, token, state, 1, due, error, false, None, 0)
        }
        Outcome::Dead { reason, after } => {
            let blocks = *after == AfterDead::Block;
            let reason = Some(error_text(reason));
            let state = code(State::Dead);
            (seq, token, state, 1, None, reason, blocks, None, 0)
        }
        Outcome::Release => {
            let state = code(State::Pending);
            (seq, token, state, 0, None, None, false, None, 0)
        }
    };
    chunk.text_bytes += row.5.as_ref().map_or(0, |text| text.len());
    chunk.rows.push(row);
}

/// Row and token, if that is all there is to say.
fn processed_without_result(row: &SettleRow<'_>) -> Option<(i64, i64)> {
    let (seq, token, state, .., result_at, _) = row;
    (*state == State::Processed.code() && result_at.is_none()).then_some((*seq, *token))
}

/// What it means that a lease was settled before.
#[derive(Clone, Copy)]
pub(crate) enum Repetition {
    /// The reply was lost; all is well.
    Done,
    /// The transaction at hand must not commit.
    Lost,
}

pub(crate) async fn settle(
    database: &Database,
    settlements: &[Settlement],
) -> Result<Vec<Settled>> {
    if settlements.is_empty() {
        return Ok(Vec::new());
    }
    database
        .run(|until| attempt(database, settlements, until))
        .await
}

async fn attempt(
    database: &Database,
    settlements: &[Settlement],
    until: Instant,
) -> Result<Vec<Settled>> {
    let answers = if settles_at_once(database, settlements) {
        let mut connection = database.writer(until).await?;
        settle_on(database, &mut connection, settlements, Repetition::Done).await?
    } else {
        let mut transaction = database.begin(until).await?;
        let answers = settle_on(database, &mut transaction, settlements, Repetition::Done).await?;
        transaction.commit().await.map_err(failed)?;
        answers
    };
    if answers.wake {
        database.signal.raise();
    }
    Ok(answers.settled)
}

/// Whether settling is one statement, which needs no transaction around it.
pub(crate) fn settles_at_once(database: &Database, settlements: &[Settlement]) -> bool {
    let bytes: usize = settlements.iter().map(|s| size(&s.outcome)).sum();
    settlements.len() <= CHUNK_ROWS
        && bytes < CHUNK_BYTES
        && !(database.options.drop_processed_payloads
            && settlements.iter().any(|s| is_processed(&s.outcome)))
}

/// Settles on a connection with or without a transaction.
pub(crate) async fn settle_on(
    database: &Database,
    connection: &mut SqliteConnection,
    settlements: &[Settlement],
    repetition: Repetition,
) -> Result<Answers> {
    let now = database.now();
    // Of several settlements of one lease the first one counts and the others repeat it.
    let mut outcomes = HashMap::with_capacity(settlements.len());
    let mut refused = HashMap::new();
    let mut chunks: Vec<Chunk<SettleRow<'_>>> = Vec::new();
    for (place, settlement) in settlements.iter().enumerate() {
        if let Outcome::Processed {
            result: Some(result),
        } = &settlement.outcome
            && let Err(invalid) = check_size("result", result.len(), database.options.payload_limit)
        {
            refused.insert(place, invalid);
            continue;
        }
        let lease = lease_row(&settlement.lease);
        if outcomes.contains_key(&lease) {
            continue;
        }
        outcomes.insert(lease, &settlement.outcome);
        let more = size(&settlement.outcome);
        if chunks.last().is_none_or(|chunk| chunk.is_full_for(more)) {
            chunks.push(Chunk::new());
        }
        if let Some(chunk) = chunks.last_mut() {
            add(chunk, lease, &settlement.outcome, now);
        }
    }

    let (applied, wake) = apply(database, connection, chunks, &outcomes, now).await?;
    let newest = match repetition {
        Repetition::Done => newest_tokens(database, connection, &outcomes, &applied).await?,
        Repetition::Lost => applied.into_iter().collect(),
    };
    let settled = settlements
        .iter()
        .enumerate()
        .map(|(place, settlement)| {
            let (seq, token) = lease_row(&settlement.lease);
            if let Some(invalid) = refused.remove(&place) {
                Settled::Refused(invalid)
            } else if newest.get(&seq) == Some(&token) {
                Settled::Done
            } else {
                Settled::LeaseLost
            }
        })
        .collect();
    Ok(Answers { settled, wake })
}

/// Writes the outcomes of the leases that still stand. Answers which those were, and whether
/// a message may have become claimable.
async fn apply(
    database: &Database,
    connection: &mut SqliteConnection,
    chunks: Vec<Chunk<SettleRow<'_>>>,
    outcomes: &HashMap<(i64, i64), &Outcome>,
    now: i64,
) -> Result<(HashSet<(i64, i64)>, bool)> {
    let mut applied = HashSet::with_capacity(outcomes.len());
    let (mut wake, mut processed) = (false, Vec::new());
    for chunk in chunks {
        let processed_only: Option<Vec<(i64, i64)>> =
            chunk.rows.iter().map(processed_without_result).collect();
        let query = match processed_only {
            Some(leases) => {
                sqlx::query(database.statements.settle_processed.clone()).bind(json(&leases)?)
            }
            None => sqlx::query(database.statements.settle.clone())
                .bind(json(&chunk.rows)?)
                .bind(chunk.bytes),
        };
        let returned = query
            .bind(now)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?;
        for row in &returned {
            let lease = seq_and_token(row).map_err(failed)?;
            let ordered = row.try_get::<i64, _>(2).map_err(failed)? == 1;
            let outcome = outcomes.get(&lease);
            wake |= ordered || outcome.is_some_and(|outcome| is_due_at_once(outcome));
            if outcome.is_some_and(|outcome| is_processed(outcome)) {
                processed.push(lease.0);
            }
            applied.insert(lease);
        }
    }
    if database.options.drop_processed_payloads && !processed.is_empty() {
        sqlx::query(database.statements.settle_drop_payloads.clone())
            .bind(json(&processed)?)
            .execute(connection)
            .await
            .map_err(failed)?;
    }
    Ok((applied, wake))
}

/// The newest token of each row: what tells a repetition from a lost lease. Looks only at the
/// rows that were not changed just now, usually none.
async fn newest_tokens(
    database: &Database,
    connection: &mut SqliteConnection,
    outcomes: &HashMap<(i64, i64), &Outcome>,
    applied: &HashSet<(i64, i64)>,
) -> Result<HashMap<i64, i64>> {
    let mut newest: HashMap<i64, i64> = applied.iter().copied().collect();
    let unclear: Vec<i64> = outcomes
        .keys()
        .map(|(seq, _)| *seq)
        .filter(|seq| !newest.contains_key(seq))
        .collect();
    if unclear.is_empty() {
        return Ok(newest);
    }
    let returned = sqlx::query(database.statements.settle_tokens.clone())
        .bind(json(&unclear)?)
        .fetch_all(connection)
        .await
        .map_err(failed)?;
    for row in &returned {
        let (seq, token) = seq_and_token(row).map_err(failed)?;
        newest.insert(seq, token);
    }
    Ok(newest)
}
