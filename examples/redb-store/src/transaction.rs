//! One write transaction: the rows and all their indexes, kept in step.
//!
//! A message changes in one way only, [`Transaction::replace`]: out of the indexes as it stood, back in
//! as it stands now. So each index follows from the state row alone, and no operation has to know
//! any of them.

use inbox_api::{
    CorruptRow, ErrorKind, FencingToken, Headers, History, Key, Lease, LeaseTerms, Leased, Message,
    OrderingKey, State, duration_micros, error_text, from_micros, headers::CORRELATION_ID,
};
use redb::{ReadableTable, WriteTransaction};
use serde::Serialize;

use crate::{
    error::Failure,
    rows::{Decoded, MessageRow, Stage, StateRow, decode},
    tables::{BLOCKING, HELD, Tables, WAITING, come, seq_of, unique},
};

pub(crate) struct Transaction<'t> {
    pub(crate) tables: Tables<'t>,
    /// One moment for the whole operation, read after redb has given this transaction its turn:
    /// so times do not run against the order of commits.
    pub(crate) now: i64,
    /// Whether there is anything to commit.
    pub(crate) is_changed: bool,
    /// Whether something became claimable that was not.
    pub(crate) has_news: bool,
}

/// Where an index says that a claimable message is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate<'a> {
    /// When it became claimable. First, because candidates are taken in this order.
    at: i64,
    pub(crate) seq: i64,
    handler: &'a str,
    /// `Pending` or `Leased`, by the index that it was found in.
    stored_as: State,
}

/// A sequence number and, if it is pending, a due time.
type Head = (i64, Option<i64>);

impl<'t> Transaction<'t> {
    pub(crate) fn open(transaction: &'t WriteTransaction, now: i64) -> Result<Self, Failure> {
        Ok(Self {
            tables: Tables::open(transaction)?,
            now,
            is_changed: false,
            has_news: false,
        })
    }

    pub(crate) fn seq_of(&self, key: &Key) -> Result<Option<i64>, Failure> {
        Ok(seq_of(&self.tables.key, key)?)
    }

    /// Where a message stands. `Ok(Err)` when its row does not read.
    pub(crate) fn state(&self, seq: i64) -> Result<Decoded<StateRow>, Failure> {
        Ok(decode("state", self.tables.state.get(seq)?))
    }

    /// The row that `lease` was drawn for, if its token is still the newest. The token alone decides:
    /// a lease that has run out still counts as long as nobody has claimed the message since, and the
    /// worker's name plays no part.
    pub(crate) fn leased_row(&self, lease: &Lease) -> Result<Option<StateRow>, Failure> {
        let Ok(seq) = i64::try_from(lease.locator) else {
            return Ok(None);
        };
        // A row that is gone, or does not read, is nobody's. A new life of the same key has another
        // sequence number, so the old lease does not find it.
        let row = self.state(seq)?.ok();
        Ok(row.filter(|row| row.key == lease.key && row.token == lease.token.get()))
    }

    /// Whether a message of that key is another than the one that was accepted. One whose row does not
    /// read cannot tell.
    pub(crate) fn differs(&self, seq: i64, message: &Message) -> Result<bool, Failure> {
        let first = self.state(seq)?;
        Ok(first.is_ok_and(|row| row.fingerprint != message.fingerprint().get()))
    }

    /// Stores a message whose key is not known.
    pub(crate) fn insert(&mut self, message: &Message) -> Result<StateRow, Failure> {
        let seq = self.draw("seq", |last| last.saturating_add(1))?;
        let row = StateRow {
            seq,
            key: message.key().clone(),
            kind: message.kind().clone(),
            ordering_key: message.ordering_key().cloned(),
            correlation_id: message.headers().get(CORRELATION_ID).map(Into::into),
            payload_bytes: Some(message.payload().len() as u64),
            has_result: false,
            fingerprint: message.fingerprint().get(),
            accepted_at: self.now,
            due_at: message.due().resolve(self.now),
            stage: Stage::Pending,
            token: 0,
            started: 0,
            finished: 0,
            replays: 0,
            leased_at: None,
            worker: None,
            last_error: None,
            history: History::default(),
        };
        let received = MessageRow {
            content_type: message.content_type().cloned(),
            headers: message.headers().clone(),
        };
        self.write_message(seq, &received)?;
        let tables = &mut self.tables;
        tables.key.insert(unique(&row.key), seq)?;
        tables.payload.insert(seq, message.payload().as_ref())?;
        self.write(&row)?;
        Ok(row)
    }

    fn write_message(&mut self, seq: i64, row: &MessageRow) -> Result<(), Failure> {
        self.tables.message.insert(seq, encode(row)?.as_slice())?;
        Ok(())
    }

    /// Puts other headers in the place of a message's. `Ok(Err)` when its row does not read.
    pub(crate) fn replace_headers(
        &mut self,
        seq: i64,
        headers: Headers,
    ) -> Result<Decoded<()>, Failure> {
        let received = decode::<MessageRow>("message", self.tables.message.get(seq)?);
        let content_type = match received {
            Ok(received) => received.content_type,
            Err(reason) => return Ok(Err(reason)),
        };
        let edited = MessageRow {
            content_type,
            headers,
        };
        self.write_message(seq, &edited).map(Ok)
    }

    /// Puts `after` in the place of `before`, which is the row as it was read in this transaction.
    pub(crate) fn replace(&mut self, before: &StateRow, after: &StateRow) -> Result<(), Failure> {
        self.take_from_indexes(before)?;
        self.write(after)
    }

    /// Deletes a message, and with it the protection of its key.
    pub(crate) fn remove(&mut self, row: &StateRow) -> Result<(), Failure> {
        self.take_from_indexes(row)?;
        if let Some(key) = &row.ordering_key {
            self.advance(row.key.handler.as_str(), key)?;
        }
        let tables = &mut self.tables;
        tables.key.remove(unique(&row.key))?;
        tables.state.remove(row.seq)?;
        tables.message.remove(row.seq)?;
        tables.payload.remove(row.seq)?;
        tables.result.remove(row.seq)?;
        self.is_changed = true;
        Ok(())
    }

    fn write(&mut self, row: &StateRow) -> Result<(), Failure> {
        self.tables.state.insert(row.seq, encode(row)?.as_slice())?;
        self.put_into_indexes(row)?;
        self.is_changed = true;
        Ok(())
    }

    /// A token greater than all that this inbox has ever drawn.
    pub(crate) fn draw_token(&mut self) -> Result<i64, Failure> {
        let now = self.now;
        self.draw("token", |last| FencingToken::after(last, now).get())
    }

    fn draw(&mut self, counter: &str, next: impl Fn(i64) -> i64) -> Result<i64, Failure> {
        let counters = &mut self.tables.counter;
        let last = counters.get(counter)?.map_or(0, |last| last.value());
        let drawn = next(last);
        counters.insert(counter, drawn)?;
        Ok(drawn)
    }

    /// Up to `limit` claimable messages of `handlers`, the longest-due first. Reads no more than
    /// `limit` rows of each index, however many messages wait.
    pub(crate) fn candidates<'a>(
        &self,
        handlers: impl Iterator<Item = &'a str>,
        limit: usize,
    ) -> Result<Vec<Candidate<'a>>, Failure> {
        let mut found = Vec::new();
        let indexes = [
            (&self.tables.ready, State::Pending),
            (&self.tables.lease, State::Leased),
        ];
        for handler in handlers {
            if self.tables.paused.get(handler)?.is_some() {
                continue;
            }
            for (index, stored_as) in indexes {
                for moment in come(index, handler, self.now)?.take(limit) {
                    let (at, seq) = moment?;
                    found.push(Candidate {
                        at,
                        seq,
                        handler,
                        stored_as,
                    });
                }
            }
        }
        found.sort_unstable();
        found.truncate(limit);
        Ok(found)
    }

    /// Takes the lease on a claimable message, under a new token, and counts the attempt as
    /// started: so that one which kills its worker is counted too. `Ok(Err)` when a row does not
    /// read; nothing is changed then.
    pub(crate) fn lease(
        &mut self,
        seq: i64,
        terms: &LeaseTerms,
    ) -> Result<Decoded<Leased>, Failure> {
        let before = match self.state(seq)? {
            Ok(row) => row,
            Err(reason) => return Ok(Err(reason)),
        };
        let message = match self.message(&before)? {
            Ok(message) => message,
            Err(reason) => return Ok(Err(reason)),
        };
        let until = self.now.saturating_add(duration_micros(terms.length()));
        let after = StateRow {
            stage: Stage::Leased { until },
            token: self.draw_token()?,
            started: before.started.saturating_add(1),
            leased_at: Some(self.now),
            worker: Some(terms.worker().clone()),
            ..before.clone()
        };
        self.replace(&before, &after)?;
        Ok(Ok(Leased {
            message,
            attempts: after.attempts(),
            replays: after.replays,
            accepted_at: from_micros(after.accepted_at),
            lease: Lease {
                key: after.key,
                token: FencingToken::new(after.token),
                locator: seq.unsigned_abs(),
                until: from_micros(until),
            },
        }))
    }

    fn message(&self, row: &StateRow) -> Result<Decoded<Message>, Failure> {
        let received = decode("message", self.tables.message.get(row.seq)?);
        let payload = self.tables.payload.get(row.seq)?;
        Ok(received.and_then(|received| {
            let payload = payload.ok_or("the payload row is missing")?;
            Ok(row.message(received, payload.value().to_vec().into()))
        }))
    }

    /// Makes a candidate dead that does not read, so that it stops nobody else and an operator
    /// sees it. If even its state row does not read, all that can be done is to hand it out no
    /// more: nobody can tell whether its ordering key may go on, so that stays blocked.
    pub(crate) fn set_aside(
        &mut self,
        candidate: &Candidate<'_>,
        reason: String,
    ) -> Result<CorruptRow, Failure> {
        let seq = candidate.seq;
        if let Ok(before) = self.state(seq)? {
            let after = StateRow {
                stage: Stage::Dead {
                    at: self.now,
                    blocks: false,
                },
                // The holder before learns that it is no longer its own.
                token: self.draw_token()?,
                last_error: Some(error_text(&format!("corrupt: {reason}")).into_owned()),
                ..before.clone()
            };
            self.replace(&before, &after)?;
        } else {
            self.count(candidate.handler, candidate.stored_as.code(), -1)?;
            self.count(candidate.handler, State::Dead.code(), 1)?;
            self.is_changed = true;
        }
        // Whatever its row says: what has been set aside is not found again.
        let place = (candidate.handler, candidate.at, seq);
        self.tables.ready.remove(place)?;
        self.tables.lease.remove(place)?;
        Ok(corrupt_row(seq, reason))
    }

    /// Whether it is the message's turn among those of its ordering key.
    pub(crate) fn is_head(&self, row: &StateRow) -> Result<bool, Failure> {
        let Some(key) = &row.ordering_key else {
            return Ok(true);
        };
        let head = self.head(row.key.handler.as_str(), key)?;
        Ok(head.is_some_and(|(seq, _)| seq == row.seq))
    }

    /// The only message of an ordering key that may be claimed.
    fn head(&self, handler: &str, key: &OrderingKey) -> Result<Option<Head>, Failure> {
        let key = key.as_str();
        let line = (handler, key, HELD, i64::MIN)..=(handler, key, WAITING, i64::MAX);
        let first = self.tables.line.range(line)?.next().transpose()?;
        Ok(first.map(|(place, due_at)| (place.value().3, due_at.value())))
    }

    /// Takes a message out of all indexes as it stands, and with it the head of its line, whose
    /// place may be about to change.
    fn take_from_indexes(&mut self, row: &StateRow) -> Result<(), Failure> {
        let handler = row.key.handler.as_str();
        self.count_row(row, -1)?;
        if let Stage::Leased { until } = row.stage {
            self.tables.lease.remove((handler, until, row.seq))?;
        }
        if let Some(at) = row.stage.finished_at() {
            let code = row.stage.state().code();
            let end = (handler, code, row.has_content(), at, row.seq);
            self.tables.finished.remove(end)?;
        }
        match &row.ordering_key {
            None => {
                self.tables.ready.remove((handler, row.due_at, row.seq))?;
            }
            Some(key) => {
                if let Some((head, Some(due_at))) = self.head(handler, key)? {
                    self.tables.ready.remove((handler, due_at, head))?;
                }
                self.tables.line.remove(place_in_line(row, key))?;
            }
        }
        Ok(())
    }

    /// Puts a message into the indexes as it stands, and lets the head of its line come due.
    fn put_into_indexes(&mut self, row: &StateRow) -> Result<(), Failure> {
        let handler = row.key.handler.as_str();
        self.count_row(row, 1)?;
        if let Stage::Leased { until } = row.stage {
            self.tables.lease.insert((handler, until, row.seq), ())?;
        }
        if let Some(at) = row.stage.finished_at() {
            let code = row.stage.state().code();
            let end = (handler, code, row.has_content(), at, row.seq);
            self.tables.finished.insert(end, ())?;
        }
        let due_at = (row.stage == Stage::Pending).then_some(row.due_at);
        match &row.ordering_key {
            None => {
                if let Some(due_at) = due_at {
                    self.make_ready(handler, due_at, row.seq)?;
                }
            }
            Some(key) => {
                if row.stage.is_open() {
                    self.tables.line.insert(place_in_line(row, key), due_at)?;
                }
                self.advance(handler, key)?;
            }
        }
        Ok(())
    }

    /// Lets the head of a line come due, if it is pending. A head that is leased, or dead and
    /// blocking, keeps the others out of the index.
    fn advance(&mut self, handler: &str, key: &OrderingKey) -> Result<(), Failure> {
        if let Some((head, Some(due_at))) = self.head(handler, key)? {
            self.make_ready(handler, due_at, head)?;
        }
        Ok(())
    }

    fn make_ready(&mut self, handler: &str, due_at: i64, seq: i64) -> Result<(), Failure> {
        self.tables.ready.insert((handler, due_at, seq), ())?;
        self.has_news |= due_at <= self.now;
        Ok(())
    }

    /// Counts one message more or less. A handler without messages leaves no row behind.
    fn count_row(&mut self, row: &StateRow, change: i64) -> Result<(), Failure> {
        let handler = row.key.handler.as_str();
        if row.stage.blocks() {
            self.count(handler, BLOCKING, change)?;
        }
        self.count(handler, row.stage.state().code(), change)
    }

    fn count(&mut self, handler: &str, code: u8, change: i64) -> Result<(), Failure> {
        let place = (handler, code);
        let counts = &mut self.tables.count;
        let was = counts.get(place)?.map_or(0, |count| count.value());
        match was.saturating_add_signed(change) {
            0 => drop(counts.remove(place)?),
            is => drop(counts.insert(place, is)?),
        }
        Ok(())
    }
}

fn place_in_line<'a>(row: &'a StateRow, key: &'a OrderingKey) -> (&'a str, &'a str, u8, i64) {
    let is_held = matches!(row.stage, Stage::Leased { .. });
    let rank = if is_held { HELD } else { WAITING };
    (row.key.handler.as_str(), key.as_str(), rank, row.seq)
}

fn encode(row: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(row).map_err(|_| {
        let context = "a row cannot be written as JSON".into();
        Failure::Found(ErrorKind::Other, context)
    })
}

/// Where a row is, for people with redb's own tools.
pub(crate) fn corrupt_row(seq: i64, reason: String) -> CorruptRow {
    CorruptRow {
        place: format!("tables state and message, seq {seq}"),
        reason,
    }
}
