//! Settling a batch: one statement for all outcomes, and an answer for each.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use inbox_api::{
    AfterDead, AttemptEnd, Bytes, Effect, Error, Invalid, Outcome, PastAttempt, Result, Settled,
    Settlement, State, check_size, duration_micros, error_text,
};
use sqlx::{Connection as _, Row as _, SqliteConnection, sqlite::SqliteRow};
use tokio::time::Instant;

use crate::{
    batch::{ByRow, CHUNK_BYTES, CHUNK_ROWS, Chunk, json},
    connection::Database,
    error::failed,
    rows::{lease_row, seq_and_token},
    shared_transaction,
    statements::BEGIN,
};

/// Row, token, new state, attempts finished (of none, the start is taken back), due, error, blocks,
/// result's place and length; and of what goes into the history, how it ended and how many characters
/// of the error are kept.
pub(crate) type SettleRow<'a> = (
    i64,
    i64,
    u8,
    u8,
    Option<i64>,
    Option<Cow<'a, str>>,
    bool,
    Option<usize>,
    usize,
    Option<AttemptEnd>,
    usize,
);

/// The answers to a batch of settlements.
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
        Outcome::Defer { error, .. } => error.as_ref().map_or(0, String::len),
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
        Outcome::Retry { after, .. } | Outcome::Defer { after, .. } => after.is_zero(),
        Outcome::Processed { .. } | Outcome::Dead { .. } => false,
    }
}

fn add<'a>(
    chunk: &mut Chunk<SettleRow<'a>>,
    (seq, token): (i64, i64),
    outcome: &'a Outcome,
    now: i64,
) {
    let delayed = |after: Duration| Some(now.saturating_add(duration_micros(after)));
    let (state, finishes, due, error, blocks, result) = match outcome {
        Outcome::Processed { result } => (State::Processed, 1, None, None, false, result.as_ref()),
        Outcome::Retry { after, error } => {
            let error = Some(error_text(error));
            (State::Pending, 1, delayed(*after), error, false, None)
        }
        Outcome::Dead { reason, after } => {
            let blocks = *after == AfterDead::Block;
            (State::Dead, 1, None, Some(error_text(reason)), blocks, None)
        }
        Outcome::Release => (State::Pending, 0, None, None, false, None),
        Outcome::Defer { after, error } => {
            let error = error.as_deref().map(error_text);
            (State::Pending, 0, delayed(*after), error, false, None)
        }
    };
    let result_at = result.map(|result| chunk.append(result));
    let result_bytes = result.map_or(0, Bytes::len);
    let past = AttemptEnd::of(outcome);
    let past_characters = past.map_or(0, |(_, error)| {
        PastAttempt::error_text(error).chars().count()
    });
    chunk.text_bytes += error.as_ref().map_or(0, |text| text.len());
    chunk.rows.push((
        seq,
        token,
        state.code(),
        finishes,
        due,
        error,
        blocks,
        result_at,
        result_bytes,
        past.map(|(end, _)| end),
        past_characters,
    ));
}

/// About how much of a statement's room settlements take, in bytes.
pub(crate) fn bytes(settlements: &[Settlement]) -> usize {
    settlements.iter().map(|s| size(&s.outcome)).sum()
}

/// Row and token, if that is all there is to say.
fn processed_without_result(row: &SettleRow<'_>) -> Option<(i64, i64)> {
    let (seq, token, state, .., result_at, _, _, _) = row;
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
    database: &Arc<Database>,
    settlements: &[Settlement],
) -> Result<Vec<Settled>> {
    if settlements.is_empty() {
        return Ok(Vec::new());
    }
    if shared_transaction::is_small(settlements.len(), bytes(settlements))
        && settles_at_once(database, settlements)
    {
        return shared_transaction::settle(database, settlements.to_vec()).await;
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
    let mut writer = database.writer(until).await?;
    let answers = if settles_at_once(database, settlements) {
        settle_on(database, &mut writer, settlements, Repetition::Done).await?
    } else {
        let mut transaction = writer.begin_with(BEGIN).await.map_err(failed)?;
        let answers = settle_on(database, &mut transaction, settlements, Repetition::Done).await?;
        transaction.commit().await.map_err(failed)?;
        answers
    };
    database.keep(writer);
    if answers.wake {
        database.signal.raise();
    }
    Ok(answers.settled)
}

/// Whether settling is one statement, which needs no transaction around it.
pub(crate) fn settles_at_once(database: &Database, settlements: &[Settlement]) -> bool {
    settlements.len() <= CHUNK_ROWS
        && bytes(settlements) < CHUNK_BYTES
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
    let mut batch = Batch::new(settlements, database.options.payload_limit, now);
    let mut applied = Applied::default();
    for chunk in std::mem::take(&mut batch.chunks) {
        let query = match parameters(chunk)? {
            Parameters::Processed { leases } => {
                sqlx::query(database.statements.settle_processed.clone()).bind(leases)
            }
            Parameters::Any { rows, results } => sqlx::query(database.statements.settle.clone())
                .bind(rows)
                .bind(results),
        };
        let returned = query
            .bind(now)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?;
        batch.read(&returned, &mut applied).map_err(failed)?;
    }
    if database.options.drop_processed_payloads && !applied.processed.is_empty() {
        sqlx::query(database.statements.drop_payloads.clone())
            .bind(json(&applied.processed)?)
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
    }
    let wake = applied.wake;
    let newest = match repetition {
        Repetition::Done => batch.newest_tokens(database, connection, applied).await?,
        Repetition::Lost => applied.leases.into_iter().collect(),
    };
    let settled = batch.answers(&newest);
    Ok(Answers { settled, wake })
}

/// Settlements, checked and laid out.
pub(crate) struct Batch<'a> {
    settlements: Vec<&'a Settlement>,
    /// Of several settlements of one lease the first one counts and the others repeat it.
    outcomes: HashMap<(i64, i64), &'a Outcome>,
    refused: HashMap<usize, Invalid>,
    pub(crate) chunks: Vec<Chunk<SettleRow<'a>>>,
}

/// What a statement takes of a batch.
pub(crate) enum Parameters {
    /// `settle_processed.sql`
    Processed { leases: String },
    /// `settle.sql`
    Any { rows: String, results: Vec<u8> },
}

pub(crate) fn parameters(chunk: Chunk<SettleRow<'_>>) -> Result<Parameters> {
    let processed_only: Option<Vec<(i64, i64)>> =
        chunk.rows.iter().map(processed_without_result).collect();
    Ok(match processed_only {
        Some(leases) => Parameters::Processed {
            leases: json(&ByRow(&leases))?,
        },
        None => Parameters::Any {
            rows: json(&chunk.rows)?,
            results: chunk.bytes,
        },
    })
}

/// A failure behind the statement that settles, which may be committed.
pub(crate) fn unclear_end(error: sqlx::Error) -> Error {
    failed(error).with_effect(Effect::Unknown)
}

/// The newest token of each row.
pub(crate) fn read_tokens(returned: &[SqliteRow]) -> sqlx::Result<HashMap<i64, i64>> {
    returned.iter().map(seq_and_token).collect()
}

/// What was settled.
#[derive(Default)]
pub(crate) struct Applied {
    pub(crate) leases: HashSet<(i64, i64)>,
    processed: Vec<i64>,
    /// Whether a message may have become claimable.
    pub(crate) wake: bool,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        settlements: impl IntoIterator<Item = &'a Settlement>,
        payload_limit: usize,
        now: i64,
    ) -> Self {
        let mut batch = Self {
            settlements: settlements.into_iter().collect(),
            outcomes: HashMap::new(),
            refused: HashMap::new(),
            chunks: Vec::new(),
        };
        for (place, settlement) in batch.settlements.iter().enumerate() {
            if let Outcome::Processed {
                result: Some(result),
            } = &settlement.outcome
                && let Err(invalid) = check_size("result", result.len(), payload_limit)
            {
                batch.refused.insert(place, invalid);
                continue;
            }
            let lease = lease_row(&settlement.lease);
            if batch.outcomes.contains_key(&lease) {
                continue;
            }
            batch.outcomes.insert(lease, &settlement.outcome);
            let more = size(&settlement.outcome);
            let last = batch.chunks.last();
            if last.is_none_or(|chunk| chunk.is_full_for(more)) {
                batch.chunks.push(Chunk::new());
            }
            if let Some(chunk) = batch.chunks.last_mut() {
                add(chunk, lease, &settlement.outcome, now);
            }
        }
        batch
    }

    /// Takes note of the leases that a statement has ended.
    pub(crate) fn read(&self, returned: &[SqliteRow], applied: &mut Applied) -> sqlx::Result<()> {
        for row in returned {
            let lease = seq_and_token(row)?;
            let ordered = row.try_get::<i64, _>(2)? == 1;
            let outcome = self.outcomes.get(&lease);
            applied.wake |= ordered || outcome.is_some_and(|outcome| is_due_at_once(outcome));
            if outcome.is_some_and(|outcome| is_processed(outcome)) {
                applied.processed.push(lease.0);
            }
            applied.leases.insert(lease);
        }
        Ok(())
    }

    /// The newest token of each row: what tells a repetition from a lost lease. Looks only at the
    /// rows that were not changed just now, usually none.
    pub(crate) async fn newest_tokens(
        &self,
        database: &Database,
        connection: &mut SqliteConnection,
        applied: Applied,
    ) -> Result<HashMap<i64, i64>> {
        let mut newest: HashMap<i64, i64> = applied.leases.into_iter().collect();
        let unclear: Vec<i64> = self
            .outcomes
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
            .map_err(unclear_end)?;
        newest.extend(read_tokens(&returned).map_err(unclear_end)?);
        Ok(newest)
    }

    /// The rows of all leases.
    pub(crate) fn rows(&self) -> Vec<i64> {
        self.outcomes.keys().map(|(seq, _)| *seq).collect()
    }

    /// One for each settlement.
    pub(crate) fn answers(mut self, newest: &HashMap<i64, i64>) -> Vec<Settled> {
        let answer = |(place, settlement): (usize, &&Settlement)| {
            let (seq, token) = lease_row(&settlement.lease);
            if let Some(invalid) = self.refused.remove(&place) {
                Settled::Refused(invalid)
            } else if newest.get(&seq) == Some(&token) {
                Settled::Done
            } else {
                Settled::LeaseLost
            }
        };
        self.settlements.iter().enumerate().map(answer).collect()
    }
}
