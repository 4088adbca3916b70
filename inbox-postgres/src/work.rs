//! What each operation sends and how its answer is read, without saying where it runs: the store's
//! own operations and the transactional ones are the same calls.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use inbox_api::{
    AfterDead, Attempts, Begun, Bytes, ClaimRequest, Due, Error, ErrorKind, Extended, FencingToken,
    InboxName, Invalid, Key, Lease, LeaseTerms, Leased, Message, Outcome, Receipt, Recorded,
    Result, Settled, Settlement, check_size, error_text, from_micros, to_micros,
};
use serde::de::IgnoredAny;
use sqlx::{
    Encode, Postgres, Row as _, Type,
    postgres::{PgArguments, PgRow},
};

use crate::{
    chunks::{CHUNK_BYTES, Filling, bytes_of, bytes_of_outcome},
    claim_cursor::Since,
    error::in_operation,
    options::{PayloadType, PostgresOptions},
    rows,
    statements::{Names, Statements},
    time::{Instant, micros},
};

/// Statements and settings, without a connection.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) statements: Statements,
    pub(crate) inbox: InboxName,
    payload_type: PayloadType,
    payload_limit: usize,
    drop_processed_payloads: bool,
    pub(crate) notifications: bool,
}

/// Collects a statement's arguments.
pub(crate) struct Arguments {
    operation: &'static str,
    list: PgArguments,
    failed: Option<Error>,
}

impl Arguments {
    pub(crate) fn new(operation: &'static str) -> Self {
        Self {
            operation,
            list: PgArguments::default(),
            failed: None,
        }
    }

    pub(crate) fn with<'t, T: Encode<'t, Postgres> + Type<Postgres>>(mut self, value: T) -> Self {
        use sqlx::Arguments as _;

        if let Err(error) = self.list.add(value) {
            let context = "a value cannot be sent";
            self.failed =
                Some(Error::new(ErrorKind::Invalid, self.operation, context).with_source(error));
        }
        self
    }

    pub(crate) fn finish(self) -> Result<PgArguments> {
        self.failed.map_or(Ok(self.list), Err)
    }
}

fn handlers_since(handlers: &[&str], since: &[Since]) -> Arguments {
    let times = |of: fn(&Since) -> i64| since.iter().map(|s| Instant(of(s))).collect::<Vec<_>>();
    Arguments::new("claim")
        .with(handlers)
        .with(times(|since| since.pending))
        .with(times(|since| since.leased))
}

/// What no message of a batch has, such as a due time, is not sent as an array of nothing.
fn given<T>(each: impl Iterator<Item = Option<T>>) -> Option<Vec<Option<T>>> {
    let all: Vec<Option<T>> = each.collect();
    all.iter().any(Option::is_some).then_some(all)
}

/// Messages of one statement, by their places in the input.
pub(crate) type Chunk = Vec<usize>;

/// A settlement as it is sent: row and token of its lease, and what becomes of it.
pub(crate) type Sent<'a> = ((i64, i64), &'a Outcome);

impl Work {
    pub(crate) fn new(options: &PostgresOptions, names: &Names) -> Self {
        Self {
            statements: Statements::new(names),
            inbox: options.inbox.clone(),
            payload_type: options.payload_type,
            payload_limit: options.payload_limit,
            drop_processed_payloads: options.drop_processed_payloads,
            notifications: options.notifications,
        }
    }

    /// Before any I/O: whether this store takes the message.
    pub(crate) fn check(&self, message: &Message) -> std::result::Result<(), Invalid> {
        message.check_payload(self.payload_limit)?;
        self.check_payload_type(message.payload())
    }

    fn check_payload_type(&self, payload: &[u8]) -> std::result::Result<(), Invalid> {
        // As text first: what is passed over is not looked at for being UTF-8.
        let json = || serde_json::from_str::<IgnoredAny>(std::str::from_utf8(payload).ok()?).ok();
        if self.payload_type != PayloadType::Bytea && json().is_none() {
            return Err(self.not_json());
        }
        Ok(())
    }

    /// The answer to a payload that the payload column does not take.
    pub(crate) fn not_json(&self) -> Invalid {
        Invalid::Malformed {
            what: "payload",
            expected: match self.payload_type {
                PayloadType::Jsonb => "JSON without \\u0000, since the inbox keeps it as jsonb",
                _ => "JSON, since the inbox keeps it as json",
            },
        }
    }

    pub(crate) fn keeps_json(&self) -> bool {
        self.payload_type != PayloadType::Bytea
    }

    pub(crate) fn check_replacement(&self, payload: &Bytes) -> std::result::Result<(), Invalid> {
        check_size("payload", payload.len(), self.payload_limit)?;
        self.check_payload_type(payload)
    }

    pub(crate) fn check_result(&self, result: Option<&Bytes>) -> std::result::Result<(), Invalid> {
        check_size("result", result.map_or(0, Bytes::len), self.payload_limit)
    }

    fn with_payloads<'a>(
        &self,
        arguments: Arguments,
        payloads: impl Iterator<Item = &'a Bytes>,
    ) -> Arguments {
        match self.payload_type {
            PayloadType::Bytea => {
                arguments.with(payloads.map(AsRef::as_ref).collect::<Vec<&[u8]>>())
            }
            PayloadType::Json | PayloadType::Jsonb => {
                arguments.with(payloads.map(as_text).collect::<Vec<_>>())
            }
        }
    }

    pub(crate) fn with_payload(&self, arguments: Arguments, payload: Option<&Bytes>) -> Arguments {
        match self.payload_type {
            PayloadType::Bytea => arguments.with(payload.map(AsRef::<[u8]>::as_ref)),
            PayloadType::Json | PayloadType::Jsonb => arguments.with(payload.map(as_text)),
        }
    }

    /// Which messages are refused, and the others in chunks. The first copy of a key is the one
    /// that counts.
    pub(crate) fn lay_out(&self, messages: &[Message]) -> (Vec<Receipt>, Vec<Chunk>) {
        self.lay_out_within(messages, CHUNK_BYTES)
    }

    fn lay_out_within(&self, messages: &[Message], limit: usize) -> (Vec<Receipt>, Vec<Chunk>) {
        let mut receipts = Vec::with_capacity(messages.len());
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut seen = HashSet::with_capacity(messages.len());
        let mut filling = Filling::within(limit);
        for (place, message) in messages.iter().enumerate() {
            if let Err(invalid) = self.check(message) {
                receipts.push(Receipt::Refused(invalid));
                continue;
            }
            receipts.push(Receipt::Duplicate);
            if !seen.insert(message.key()) {
                continue;
            }
            let begins = filling.overflows(bytes_of(message));
            match chunks.last_mut() {
                Some(chunk) if !begins => chunk.push(place),
                _ => chunks.push(vec![place]),
            }
        }
        (receipts, chunks)
    }

    /// `alone`: not within a transaction of the caller's.
    pub(crate) fn receive(
        &self,
        operation: &'static str,
        messages: &[Message],
        chunk: &Chunk,
        alone: bool,
    ) -> Result<PgArguments> {
        let chosen: Vec<&Message> = chunk
            .iter()
            .filter_map(|place| messages.get(*place))
            .collect();
        let mut sorted: Vec<(usize, &Message)> = chosen.iter().copied().enumerate().collect();
        sorted.sort_unstable_by_key(|(_, message)| message.key());
        let each = || sorted.iter().map(|(_, message)| *message);

        let arguments = Arguments::new(operation)
            .with(each().map(|m| m.handler().as_str()).collect::<Vec<_>>())
            .with(each().map(|m| m.id().as_str()).collect::<Vec<_>>())
            .with(each().map(|m| m.kind().as_str()).collect::<Vec<_>>())
            .with(given(
                each().map(|m| m.content_type().map(AsRef::<str>::as_ref)),
            ))
            .with(given(
                each().map(|m| m.ordering_key().map(AsRef::<str>::as_ref)),
            ))
            .with(each().map(|m| m.headers().to_json()).collect::<Vec<_>>());
        let places: Vec<i32> = sorted
            .iter()
            .map(|(place, _)| i32::try_from(*place).unwrap_or(i32::MAX))
            .collect();
        let (at, after): (Vec<_>, Vec<_>) = chosen.iter().map(|m| due(m)).unzip();
        self.with_payloads(arguments, each().map(Message::payload))
            .with(places)
            .with(given(at.into_iter()))
            .with(given(after.into_iter()))
            .with(self.notifications)
            .with(alone)
            .finish()
    }

    /// Reads the answer to [`receive`](Self::receive) into `receipts`.
    pub(crate) fn received(
        operation: &'static str,
        answer: &[PgRow],
        chunk: &Chunk,
        receipts: &mut [Receipt],
    ) -> Result<()> {
        let accepted: Option<Vec<i32>> = only(operation, answer)?
            .try_get(0)
            .map_err(in_operation(operation))?;
        for place in accepted.unwrap_or_default() {
            let receipt = usize::try_from(place)
                .ok()
                .and_then(|place| receipts.get_mut(*chunk.get(place)?));
            if let Some(receipt) = receipt {
                *receipt = Receipt::Accepted;
            }
        }
        Ok(())
    }

    /// Before a claim, to learn where it may start.
    pub(crate) fn front(&self, handlers: &[&str], since: &[Since]) -> Result<PgArguments> {
        handlers_since(handlers, since).finish()
    }

    pub(crate) fn claim(
        &self,
        request: &ClaimRequest,
        handlers: &[&str],
        since: &[Since],
    ) -> Result<PgArguments> {
        handlers_since(handlers, since)
            .with(i32::try_from(request.limit).unwrap_or(i32::MAX))
            .with(micros(request.terms.length()))
            .with(request.terms.worker().as_str())
            .finish()
    }

    pub(crate) fn extend(&self, leases: &[Lease], length: Duration) -> Result<PgArguments> {
        let mut held: Vec<(i64, i64)> = leases.iter().map(held).collect();
        held.sort_unstable();
        held.dedup();
        Arguments::new("extend")
            .with(held.iter().map(|(seq, _)| *seq).collect::<Vec<_>>())
            .with(held.iter().map(|(_, token)| *token).collect::<Vec<_>>())
            .with(micros(length))
            .finish()
    }

    pub(crate) fn extended(answer: &[PgRow], leases: &[Lease]) -> Result<Vec<Extended>> {
        const OPERATION: &str = "extend";
        let mapped = in_operation(OPERATION);
        let row = only(OPERATION, answer)?;
        let places: Option<Vec<i64>> = row.try_get(0).map_err(mapped)?;
        let until: Instant = row.try_get(1).map_err(mapped)?;
        let kept_places: Option<Vec<i64>> = row.try_get(2).map_err(mapped)?;
        let kept_until: Option<Vec<Instant>> = row.try_get(3).map_err(mapped)?;
        let mut sorted: Vec<(i64, i64)> = leases.iter().map(held).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut ends: HashMap<(i64, i64), Instant> = chosen(&sorted, places)
            .into_iter()
            .map(|held| (held, until))
            .collect();
        let kept = kept_places.into_iter().flatten();
        for (place, until) in kept.zip(kept_until.into_iter().flatten()) {
            let kept = chosen(&sorted, Some(vec![place]));
            ends.extend(kept.into_iter().map(|held| (held, until)));
        }
        Ok(leases
            .iter()
            .map(|lease| match ends.get(&held(lease)) {
                Some(until) => Extended::Until(from_micros(until.0)),
                None => Extended::LeaseLost,
            })
            .collect())
    }

    pub(crate) fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<PgArguments> {
        self.one("begin", message)
            .with(micros(terms.length()))
            .with(terms.worker().as_str())
            .finish()
    }

    fn one(&self, operation: &'static str, message: &Message) -> Arguments {
        let (at, after) = due(message);
        let arguments = Arguments::new(operation)
            .with(message.handler().as_str())
            .with(message.id().as_str())
            .with(message.kind().as_str())
            .with(message.content_type().map(AsRef::<str>::as_ref))
            .with(message.ordering_key().map(AsRef::<str>::as_ref))
            .with(message.headers().to_json());
        self.with_payload(arguments, Some(message.payload()))
            .with(at)
            .with(after)
    }

    pub(crate) fn begun(&self, answer: &[PgRow], message: &Message) -> Result<Begun> {
        const OPERATION: &str = "begin";
        let mapped = in_operation(OPERATION);
        let row = only(OPERATION, answer)?;
        Ok(match row.try_get::<&str, _>(0).map_err(mapped)? {
            "new" => {
                let seq = row.try_get(4).map_err(mapped)?;
                Begun::Run(Box::new(Leased {
                    message: message.clone().with_due(Due::Now),
                    lease: Lease {
                        key: message.key().clone(),
                        token: FencingToken::new(row.try_get(5).map_err(mapped)?),
                        locator: rows::locator(seq, message.ordering_key().is_some()),
                        until: from_micros(row.try_get::<Instant, _>(1).map_err(mapped)?.0),
                    },
                    attempts: Attempts {
                        started: 1,
                        finished: 0,
                    },
                    accepted_at: from_micros(row.try_get::<Instant, _>(8).map_err(mapped)?.0),
                }))
            }
            "run" => {
                let leased = rows::begun(row, message.key()).map_err(|reason| {
                    let seq = row.try_get(4).unwrap_or_default();
                    self.corrupt(OPERATION, seq, reason)
                })?;
                Begun::Run(Box::new(leased))
            }
            "processed" => Begun::Processed {
                result: kept(row).map_err(mapped)?,
            },
            "busy" => Begun::Busy {
                until: from_micros(row.try_get::<Instant, _>(1).map_err(mapped)?.0),
            },
            "blocked" => Begun::Blocked,
            "dead" => Begun::Dead {
                reason: reason(row).map_err(mapped)?,
            },
            "discarded" => Begun::Discarded,
            _ => return Err(unknown_answer(OPERATION)),
        })
    }

    pub(crate) fn record(&self, message: &Message, result: Option<&Bytes>) -> Result<PgArguments> {
        self.one("record_in", message)
            .with(result.map(AsRef::<[u8]>::as_ref))
            .with(self.drop_processed_payloads)
            .with(self.notifications)
            .finish()
    }

    pub(crate) fn recorded(answer: &[PgRow]) -> Result<Recorded> {
        const OPERATION: &str = "record_in";
        let mapped = in_operation(OPERATION);
        let row = only(OPERATION, answer)?;
        Ok(match row.try_get::<&str, _>(0).map_err(mapped)? {
            "recorded" => Recorded::First,
            "processed" => Recorded::Processed {
                result: kept(row).map_err(mapped)?,
            },
            "busy" => Recorded::Busy {
                until: from_micros(row.try_get::<Instant, _>(1).map_err(mapped)?.0),
            },
            "blocked" => Recorded::Blocked,
            "dead" => Recorded::Dead {
                reason: reason(row).map_err(mapped)?,
            },
            "discarded" => Recorded::Discarded,
            _ => return Err(unknown_answer(OPERATION)),
        })
    }

    pub(crate) fn corrupt(&self, operation: &'static str, seq: i64, reason: String) -> Error {
        let row = rows::corrupt_row(&self.inbox, seq, reason);
        let context = format!("{}: {}", row.place, row.reason);
        Error::new(ErrorKind::Corrupt, operation, context)
    }

    /// Checks and sorts settlements.
    pub(crate) fn settle<'a>(&self, settlements: &'a [Settlement]) -> Settle<'a> {
        let mut settle = Settle {
            refused: HashMap::new(),
            outcomes: Vec::with_capacity(settlements.len()),
            any_ordered: false,
        };
        let mut seen = HashSet::with_capacity(settlements.len());
        for (place, settlement) in settlements.iter().enumerate() {
            if let Outcome::Processed { result } = &settlement.outcome
                && let Err(invalid) = self.check_result(result.as_ref())
            {
                settle.refused.insert(place, invalid);
                continue;
            }
            // Of several settlements of one lease the first one counts and the others repeat it.
            let held = held(&settlement.lease);
            if seen.insert(held) {
                settle.any_ordered |= rows::located(settlement.lease.locator).1;
                settle.outcomes.push((held, &settlement.outcome));
            }
        }
        settle.outcomes.sort_unstable_by_key(|(held, _)| *held);
        settle
    }

    pub(crate) fn settle_arguments(
        &self,
        operation: &'static str,
        outcomes: &[Sent<'_>],
        any_ordered: bool,
        waiting: Waiting,
    ) -> Result<PgArguments> {
        let any = |test: fn(&Outcome) -> bool| outcomes.iter().any(|(_, outcome)| test(outcome));
        // Columns without a value are sent as NULL rather than as arrays of NULLs.
        let delays = any(|o| matches!(o, Outcome::Retry { .. })).then(|| {
            each(outcomes, |outcome| match outcome {
                Outcome::Retry { after, .. } => Some(micros(*after)),
                _ => None,
            })
        });
        let errors =
            any(|o| matches!(o, Outcome::Retry { .. } | Outcome::Dead { .. })).then(|| {
                each(outcomes, |outcome| match outcome {
                    Outcome::Retry { error, .. } => Some(error_text(error)),
                    Outcome::Dead { reason, .. } => Some(error_text(reason)),
                    _ => None,
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
        Arguments::new(operation)
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
            .with(blocking)
            .with(results)
            .with(any_ordered)
            .with(self.drop_processed_payloads)
            .with(self.notifications)
            .with(!matches!(waiting, Waiting::InTransaction))
            .with(match waiting {
                Waiting::For(patience) => {
                    Some(i32::try_from(patience.as_millis()).unwrap_or(i32::MAX))
                }
                Waiting::InTransaction | Waiting::ToTheEnd => None,
            })
            .finish()
    }
}

/// For how long a settlement waits for what others have locked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
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

/// The outcome as `settle.sql` knows it.
fn code(outcome: &Outcome) -> i16 {
    match outcome {
        Outcome::Release => 0,
        Outcome::Retry { .. } => 1,
        Outcome::Processed { .. } => 2,
        Outcome::Dead { .. } => 3,
    }
}

/// Due at a time, or after a delay; neither means now.
fn due(message: &Message) -> (Option<Instant>, Option<i64>) {
    match message.due() {
        Due::Now => (None, None),
        Due::At(time) => (Some(Instant(to_micros(time))), None),
        Due::After(delay) => (None, Some(micros(delay))),
    }
}

/// Checked to be JSON, which is UTF-8.
fn as_text(payload: &Bytes) -> &str {
    std::str::from_utf8(payload).unwrap_or_default()
}

/// Row and token of a lease.
fn held(lease: &Lease) -> (i64, i64) {
    (rows::located(lease.locator).0, lease.token.get())
}

/// Those of `held` that stand at `places`, counted from 1.
fn chosen(held: &[(i64, i64)], places: Option<Vec<i64>>) -> HashSet<(i64, i64)> {
    places
        .unwrap_or_default()
        .into_iter()
        .filter_map(|place| held.get(usize::try_from(place - 1).ok()?).copied())
        .collect()
}

fn only<'r>(operation: &'static str, answer: &'r [PgRow]) -> Result<&'r PgRow> {
    answer.first().ok_or_else(|| unknown_answer(operation))
}

fn unknown_answer(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        "installed functions do not match this build; run `inbox schema migrate`",
    )
}

fn kept(row: &PgRow) -> sqlx::Result<Option<Bytes>> {
    Ok(row
        .try_get::<Option<&[u8]>, _>(3)?
        .map(Bytes::copy_from_slice))
}

fn reason(row: &PgRow) -> sqlx::Result<String> {
    Ok(row.try_get::<Option<String>, _>(2)?.unwrap_or_default())
}

/// Settlements, checked and sorted.
pub(crate) struct Settle<'a> {
    refused: HashMap<usize, Invalid>,
    outcomes: Vec<Sent<'a>>,
    /// Whether any lease is on a message with an ordering key.
    pub(crate) any_ordered: bool,
}

/// What it means that a lease was settled before.
#[derive(Clone, Copy)]
pub(crate) enum Repetition {
    /// The reply was lost; all is well.
    Done,
    /// The transaction at hand must not commit.
    Lost,
}

impl<'a> Settle<'a> {
    /// What to send, as so many statements as it takes.
    pub(crate) fn chunks(&self) -> Vec<&[Sent<'a>]> {
        self.chunks_within(CHUNK_BYTES)
    }

    fn chunks_within(&self, limit: usize) -> Vec<&[Sent<'a>]> {
        let mut filling = Filling::within(limit);
        if let Some((_, first)) = self.outcomes.first() {
            filling.overflows(bytes_of_outcome(first));
        }
        self.outcomes
            .chunk_by(|_, (_, outcome)| !filling.overflows(bytes_of_outcome(outcome)))
            .collect()
    }

    /// Those of the leases in `chunk` that stood.
    pub(crate) fn standing(
        operation: &'static str,
        chunk: &[Sent<'_>],
        answer: &[PgRow],
        repetition: Repetition,
    ) -> Result<HashSet<(i64, i64)>> {
        let mapped = in_operation(operation);
        let row = only(operation, answer)?;
        let sorted: Vec<_> = chunk.iter().map(|(held, _)| *held).collect();
        let mut standing = chosen(&sorted, row.try_get(0).map_err(mapped)?);
        if matches!(repetition, Repetition::Done) {
            standing.extend(chosen(&sorted, row.try_get(1).map_err(mapped)?));
        }
        Ok(standing)
    }

    /// The answers, in order of the input.
    pub(crate) fn settled(
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
                } else if standing.contains(&held(&settlement.lease)) {
                    Settled::Done
                } else {
                    Settled::LeaseLost
                }
            })
            .collect()
    }
}

/// Makes a key's two halves the first two arguments.
pub(crate) fn key_arguments(operation: &'static str, key: &Key) -> Arguments {
    Arguments::new(operation)
        .with(key.handler.as_str())
        .with(key.id.as_str())
}

#[cfg(test)]
mod tests;
