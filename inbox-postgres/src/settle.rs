//! Settling: a batch in one statement, or in two past rows that other transactions hold.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use inbox_api::{
    AfterDead, Bytes, Effect, Error, Invalid, Outcome, PastAttempt, Result, Settled, Settlement,
    error_text,
};
use sqlx::{
    Row as _,
    postgres::{PgArguments, PgRow},
};

use crate::{
    arguments::Arguments,
    chunks::{CHUNK_BYTES, ELEMENT_BYTES, Filling},
    connection::{Database, On},
    error::{before, failed, is_lock_timeout},
    options::PostgresOptions,
    rows::{self, only, row_and_token},
    time::micros,
};

/// So long a batch waits for each lock of another transaction before the rest of it goes past.
const PATIENCE: Duration = Duration::from_secs(1);

/// A settlement as it is sent: row and token of its lease, and what becomes of it.
type Sent<'a> = ((i64, i64), &'a Outcome);

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
    mut on: On<'_>,
    settlements: &[Settlement],
    repetition: Repetition,
) -> Result<Vec<Settled>> {
    if matches!(on, On::Pool) {
        database.check_open()?;
    }
    let batch = Batch::new(&database.options, settlements);
    let mut standing = HashSet::with_capacity(settlements.len());
    let mut sending = Sending {
        database,
        any_ordered: batch.any_ordered,
        repetition,
        left: database.limit(),
    };
    for (n, chunk) in batch.chunks(CHUNK_BYTES).into_iter().enumerate() {
        let sent = match &mut on {
            On::MarkedTransaction(connection) => {
                let on = On::MarkedTransaction(connection);
                sending.send(on, chunk, Waiting::InTransaction).await
            }
            _ => {
                // What was sent before is settled.
                let sent = sending.send_alone(chunk).await;
                sent.map_err(|error| {
                    if n > 0 {
                        with_unknown_effect(error)
                    } else {
                        error
                    }
                })
            }
        };
        standing.extend(sent?);
    }
    Ok(batch.answers(&standing, settlements))
}

/// Makes rows that cannot be read dead, under the leases that a claim has just given them.
pub(crate) async fn set_aside(
    database: &Database,
    mut outcomes: Vec<((i64, i64), Outcome)>,
) -> Result<()> {
    outcomes.sort_unstable_by_key(|(lease, _)| *lease);
    let sent: Vec<Sent<'_>> = outcomes.iter().map(|(lease, o)| (*lease, o)).collect();
    let sending = Sending {
        database,
        any_ordered: true,
        repetition: Repetition::Done,
        left: database.limit(),
    };
    sending.send(On::Pool, &sent, Waiting::ToTheEnd).await?;
    Ok(())
}

fn with_unknown_effect(error: Error) -> Error {
    error.with_effect(Effect::Unknown)
}

struct Sending<'s> {
    database: &'s Database,
    any_ordered: bool,
    repetition: Repetition,
    /// Of the time for what is being sent.
    left: Duration,
}

impl Sending<'_> {
    /// Answers which of the leases stood.
    async fn send(
        &self,
        on: On<'_>,
        chunk: &[Sent<'_>],
        waiting: Waiting,
    ) -> Result<HashSet<(i64, i64)>> {
        let database = self.database;
        let (text, arguments) = match chunk {
            [(lease, Outcome::Processed { result })] if !self.any_ordered => (
                &database.statements.settle_one,
                arguments_of_one(&database.options, *lease, result.as_ref(), waiting)?,
            ),
            _ => (
                &database.statements.settle,
                arguments(&database.options, chunk, self.any_ordered, waiting)?,
            ),
        };
        let answer = database.run_within(self.left, on, text, arguments).await?;
        find_standing(chunk, &answer, self.repetition)
    }

    /// In its own transaction. A row that another one holds for longer than a moment must not
    /// keep the rest of the batch waiting, whose leases run out: it is settled after that.
    async fn send_alone(&mut self, chunk: &[Sent<'_>]) -> Result<HashSet<(i64, i64)>> {
        let (began, limit) = (Instant::now(), self.database.limit());
        self.left = limit;
        if chunk.len() == 1 {
            return self.send(On::Pool, chunk, Waiting::ToTheEnd).await;
        }
        let patience = PATIENCE.min(limit / 4).max(Duration::from_millis(1));
        match self.send(On::Pool, chunk, Waiting::For(patience)).await {
            Err(error) if is_lock_timeout(&error) => {}
            outcome => return outcome,
        }
        let locked = self.find_locked(chunk).await?;
        let (held, free): (Vec<_>, Vec<_>) =
            chunk.iter().partition(|((seq, _), _)| locked.contains(seq));
        let mut standing = HashSet::with_capacity(chunk.len());
        for (some, behind_others) in [(&free, false), (&held, !free.is_empty())] {
            if some.is_empty() {
                continue;
            }
            self.left = limit.saturating_sub(began.elapsed());
            let sent = self.send(On::Pool, some, Waiting::ToTheEnd).await;
            standing.extend(sent.map_err(|error| match behind_others {
                true => with_unknown_effect(error),
                false => error,
            })?);
        }
        Ok(standing)
    }

    /// The numbers of the rows that others hold.
    async fn find_locked(&self, chunk: &[Sent<'_>]) -> Result<HashSet<i64>> {
        let seqs: Vec<i64> = chunk.iter().map(|((seq, _), _)| *seq).collect();
        let arguments = Arguments::new().with(seqs).finish()?;
        let text = &self.database.statements.settle_locked;
        let answer = self.database.run(On::Pool, text, arguments).await?;
        let locked: sqlx::Result<_> = answer.iter().map(|row| row.try_get(0)).collect();
        locked.map_err(before)
    }
}

/// Settlements, checked and sorted.
struct Batch<'a> {
    refused: HashMap<usize, Invalid>,
    outcomes: Vec<Sent<'a>>,
    /// Whether any lease is on a message with an ordering key.
    any_ordered: bool,
}

impl<'a> Batch<'a> {
    fn new(options: &PostgresOptions, settlements: &'a [Settlement]) -> Self {
        let mut batch = Self {
            refused: HashMap::new(),
            outcomes: Vec::with_capacity(settlements.len()),
            any_ordered: false,
        };
        let mut seen = HashSet::with_capacity(settlements.len());
        for (place, settlement) in settlements.iter().enumerate() {
            if let Outcome::Processed { result } = &settlement.outcome
                && let Err(invalid) = options.check_result(result.as_ref())
            {
                batch.refused.insert(place, invalid);
                continue;
            }
            // Of several settlements of one lease the first one counts and the others repeat it.
            let lease = row_and_token(&settlement.lease);
            if seen.insert(lease) {
                batch.any_ordered |= rows::read_locator(settlement.lease.locator).1;
                batch.outcomes.push((lease, &settlement.outcome));
            }
        }
        batch.outcomes.sort_unstable_by_key(|(lease, _)| *lease);
        batch
    }

    /// What to send, as so many statements as it takes.
    fn chunks(&self, limit: usize) -> Vec<&[Sent<'a>]> {
        let mut filling = Filling::within(limit);
        if let Some((_, first)) = self.outcomes.first() {
            filling.overflows(bytes_of_outcome(first));
        }
        self.outcomes
            .chunk_by(|_, (_, outcome)| !filling.overflows(bytes_of_outcome(outcome)))
            .collect()
    }

    /// The answers, in order of the input.
    fn answers(
        mut self,
        standing: &HashSet<(i64, i64)>,
        settlements: &[Settlement],
    ) -> Vec<Settled> {
        settlements
            .iter()
            .enumerate()
            .map(|(place, settlement)| {
                if let Some(invalid) = self.refused.remove(&place) {
                    Settled::Refused(invalid)
                } else if standing.contains(&row_and_token(&settlement.lease)) {
                    Settled::Done
                } else {
                    Settled::LeaseLost
                }
            })
            .collect()
    }
}

/// Those of the leases in `chunk` that stood.
fn find_standing(
    chunk: &[Sent<'_>],
    answer: &[PgRow],
    repetition: Repetition,
) -> Result<HashSet<(i64, i64)>> {
    let row = only(answer)?;
    let columns = match repetition {
        Repetition::Done => 0..2,
        Repetition::Lost => 0..1,
    };
    let mut standing = HashSet::with_capacity(chunk.len());
    for column in columns {
        let places: Option<Vec<i64>> = row.try_get(column).map_err(failed)?;
        for place in places.into_iter().flatten() {
            // They count from 1.
            let sent = usize::try_from(place - 1).ok().and_then(|n| chunk.get(n));
            standing.extend(sent.map(|(lease, _)| *lease));
        }
    }
    Ok(standing)
}

/// Of a processed message without an ordering key, which is locked by nothing but its row.
fn arguments_of_one(
    options: &PostgresOptions,
    (seq, token): (i64, i64),
    result: Option<&Bytes>,
    waiting: Waiting,
) -> Result<PgArguments> {
    Arguments::new()
        .with(seq)
        .with(token)
        .with(result.map(AsRef::<[u8]>::as_ref))
        .with(options.drop_processed_payloads)
        .with(options.notifications)
        .with(!matches!(waiting, Waiting::InTransaction))
        .finish()
}

fn arguments(
    options: &PostgresOptions,
    outcomes: &[Sent<'_>],
    any_ordered: bool,
    waiting: Waiting,
) -> Result<PgArguments> {
    let any = |test: fn(&Outcome) -> bool| outcomes.iter().any(|(_, outcome)| test(outcome));
    // Columns without a value are sent as NULL rather than as arrays of NULLs.
    let delays = any(|o| matches!(o, Outcome::Retry { .. } | Outcome::Defer { .. })).then(|| {
        each(outcomes, |outcome| match outcome {
            Outcome::Retry { after, .. } | Outcome::Defer { after, .. } => Some(micros(*after)),
            _ => None,
        })
    });
    let errors = any(|o| error_of(o).is_some())
        .then(|| each(outcomes, |outcome| error_of(outcome).map(error_text)));
    let short_errors = any(|o| error_of(o).is_some_and(|e| e.len() > PastAttempt::MAX_ERROR_BYTES))
        .then(|| {
            each(outcomes, |outcome| {
                error_of(outcome).map(PastAttempt::error_text)
            })
        });
    let blocking = any(|o| matches!(o, Outcome::Dead { .. })).then(|| {
        each(outcomes, |outcome| {
            matches!(
                outcome,
                Outcome::Dead {
                    after: AfterDead::Block,
                    ..
                }
            )
        })
    });
    let results = any(|o| matches!(o, Outcome::Processed { result: Some(_) })).then(|| {
        each(outcomes, |outcome| match outcome {
            Outcome::Processed { result } => result.as_ref().map(AsRef::<[u8]>::as_ref),
            _ => None,
        })
    });
    Arguments::new()
        .with(
            outcomes
                .iter()
                .map(|((seq, _), _)| *seq)
                .collect::<Vec<_>>(),
        )
        .with(
            outcomes
                .iter()
                .map(|((_, token), _)| *token)
                .collect::<Vec<_>>(),
        )
        .with(each(outcomes, code))
        .with(delays)
        .with(errors)
        .with(short_errors)
        .with(blocking)
        .with(results)
        .with(any_ordered)
        .with(options.drop_processed_payloads)
        .with(options.notifications)
        .with(!matches!(waiting, Waiting::InTransaction))
        .with(match waiting {
            Waiting::For(patience) => Some(i32::try_from(patience.as_millis()).unwrap_or(i32::MAX)),
            Waiting::InTransaction | Waiting::ToTheEnd => None,
        })
        .finish()
}

/// For how long a settlement waits for what others have locked.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    /// As long as the caller's transaction does.
    InTransaction,
    /// As long as the operation may take.
    ToTheEnd,
    /// For each lock.
    For(Duration),
}

fn each<'a, T>(outcomes: &[Sent<'a>], value: impl Fn(&'a Outcome) -> T) -> Vec<T> {
    outcomes.iter().map(|(_, outcome)| value(outcome)).collect()
}

fn error_of(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::Retry { error: text, .. } | Outcome::Dead { reason: text, .. } => Some(text),
        Outcome::Defer { error, .. } => error.as_deref(),
        Outcome::Processed { .. } | Outcome::Release => None,
    }
}

/// The outcome as `settle.sql` knows it.
fn code(outcome: &Outcome) -> i16 {
    match outcome {
        Outcome::Defer { .. } => -1,
        Outcome::Release => 0,
        Outcome::Retry { .. } => 1,
        Outcome::Processed { .. } => 2,
        Outcome::Dead { .. } => 3,
    }
}

fn bytes_of_outcome(outcome: &Outcome) -> usize {
    ELEMENT_BYTES
        + match outcome {
            Outcome::Processed { result } => result.as_ref().map_or(0, Bytes::len),
            other => error_of(other).map_or(0, |text| error_text(text).len()),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settlements_are_split_by_results_and_errors() {
        let outcomes = [
            Outcome::Processed {
                result: Some(vec![0; 100_000].into()),
            },
            Outcome::Retry {
                after: std::time::Duration::ZERO,
                error: "x".repeat(60_000),
            },
            Outcome::Dead {
                reason: "x".repeat(60_000),
                after: AfterDead::Continue,
            },
        ];
        for (outcome, expected) in outcomes.iter().zip([vec![3, 3, 1], vec![7], vec![7]]) {
            let batch = Batch {
                refused: HashMap::new(),
                outcomes: (0..7).map(|n| ((n, n), outcome)).collect(),
                any_ordered: false,
            };
            let sizes: Vec<usize> = batch
                .chunks(300 * 1024)
                .iter()
                .map(|chunk| chunk.len())
                .collect();
            assert_eq!(sizes, expected, "{outcome:?}");
            let whole: Vec<usize> = batch
                .chunks(CHUNK_BYTES)
                .iter()
                .map(|chunk| chunk.len())
                .collect();
            assert_eq!(whole, [7]);
        }
    }
}
