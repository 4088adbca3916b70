//! The scripts of receive and extend, and how their answers are read. The same scripts serve the
//! store's own operations and the transactional ones.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use inbox_api::{
    Bytes, ContentType, Due, Error, FencingToken, Invalid, Key, Lease, Message, OrderingKey,
    Receipt, Result, duration_micros, from_micros, to_micros,
};
use sqlx::{Row as _, mysql::MySqlRow};

use crate::{
    options::{MySqlOptions, PayloadColumn},
    rows,
    script::{Answers, CHANGED, PACKET_OVERHEAD, Script, Secrecy, Statement, Value},
    server::Server,
    statements::{Statements, Storing},
};

/// What one statement takes at most, unless the server takes less.
const CHUNK_BYTES: usize = 16 * 1024 * 1024;
pub(crate) const CHUNK_ROWS: usize = 1000;
/// How many messages are stored with one statement whose values are bound. The server remembers
/// these statements, so there are few of them; what is left over is sent as text.
const BOUND_ROWS: [usize; 4] = [500, 250, 100, 50];
/// What a message's texts take in addition to payload and headers, generously.
const ROW_OVERHEAD: usize = 8192;
/// A payload that is only too large because of the server's setting.
const IN_PACKET: &str = "payload, with what else is in one of the server's max_allowed_packet,";
/// Nesting in JSON payloads that both servers take.
const JSON_DEPTH: usize = 30;

/// Statements and settings, without a connection.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) sql: Statements,
    pub(crate) options: MySqlOptions,
    pub(crate) server: Server,
}

/// Whose transaction messages are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The store's own, at `READ COMMITTED`.
    Own,
    /// The caller's, at any isolation level.
    Callers,
}

/// What a receive's answers mean.
pub(crate) struct Receiving {
    receipts: Vec<Receipt>,
    /// The places in the batch of what is to be stored, and where it says what was.
    wanted: Vec<usize>,
    stored: Option<Stored>,
}

/// Keys that are known before anything is stored.
#[derive(Debug, Default)]
pub(crate) struct Known(HashSet<(Vec<u8>, Vec<u8>)>);

impl Known {
    /// The answers of [`Work::look_for`].
    pub(crate) fn of(answers: &Answers, places: &[usize]) -> sqlx::Result<Self> {
        let rows = places.iter().flat_map(|place| answers.rows(*place));
        let keys = rows.map(|row| Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?)));
        keys.collect::<sqlx::Result<_>>().map(Self)
    }

    fn has(&self, key: &Key) -> bool {
        let bytes = |text: &str| text.as_bytes().to_vec();
        !self.0.is_empty()
            && self
                .0
                .contains(&(bytes(key.handler.as_str()), bytes(key.id.as_str())))
    }
}

/// Where it says which messages were new.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    /// How many.
    pub(crate) counted: usize,
    /// The keys of the new ones, unless all were.
    listed: Option<usize>,
}

impl Receiving {
    /// Whether nothing is left to be stored.
    pub(crate) fn is_empty(&self) -> bool {
        self.stored.is_none()
    }

    /// The answers for `messages`, which are those that were to be received.
    pub(crate) fn receipts(
        self,
        messages: &[Message],
        answers: &Answers,
    ) -> sqlx::Result<Vec<Receipt>> {
        let mut receipts = self.receipts;
        let Some(stored) = self.stored else {
            return Ok(receipts);
        };
        let mut accept = |place: usize| {
            if let Some(receipt) = receipts.get_mut(place) {
                *receipt = Receipt::Accepted;
            }
        };
        if answers.number(stored.counted)? == self.wanted.len() as i64 {
            self.wanted.into_iter().for_each(&mut accept);
            return Ok(receipts);
        }
        let rows = stored.listed.map_or(&[][..], |at| answers.rows(at));
        if rows.is_empty() {
            return Ok(receipts);
        }
        let places: HashMap<_, _> = self
            .wanted
            .iter()
            .filter_map(|place| Some((messages.get(*place)?.key(), *place)))
            .map(|(key, place)| {
                (
                    (key.handler.as_str().as_bytes(), key.id.as_str().as_bytes()),
                    place,
                )
            })
            .collect();
        for row in rows {
            let key: (&[u8], &[u8]) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
            if let Some(place) = places.get(&key) {
                accept(*place);
            }
        }
        Ok(receipts)
    }
}

impl Work {
    pub(crate) fn new(options: MySqlOptions, server: Server) -> Self {
        Self {
            sql: Statements::new(&options),
            options,
            server,
        }
    }

    /// The largest value that fits into one of the server's packets, in bytes.
    pub(crate) fn most_in_packet(&self) -> usize {
        let taken = PACKET_OVERHEAD + ROW_OVERHEAD;
        self.server.max_packet.saturating_sub(taken)
    }

    /// The largest payload and the largest result that this store and this server take.
    pub(crate) fn payload_limit(&self) -> usize {
        self.options.payload_limit.min(self.most_in_packet())
    }

    /// Whether this store and this server take the payload.
    pub(crate) fn check_payload(&self, payload: &Bytes, others: usize) -> Result<(), Invalid> {
        inbox_api::check_size("payload", payload.len(), self.options.payload_limit)?;
        let limit = self.most_in_packet().saturating_sub(others);
        inbox_api::check_size(IN_PACKET, payload.len(), limit)?;
        if self.options.payload_column == PayloadColumn::Json && !is_json(payload) {
            return Err(Invalid::Malformed {
                what: "payload",
                expected: "JSON, since this inbox's payload column is of that type",
            });
        }
        Ok(())
    }

    pub(crate) fn check_message(&self, message: &Message) -> Result<(), Invalid> {
        let headers = message.headers();
        // Without any it is no more than what is set aside for a message in any case.
        let other_bytes = if headers.is_empty() {
            0
        } else {
            headers.to_json().len()
        };
        self.check_payload(message.payload(), other_bytes)
    }

    /// Adds a look for the keys of those `messages` that can be stored to `script`: see
    /// [`Self::store_one`]. Answers with where they are, and how many keys it looks for.
    pub(crate) fn look_for(
        &self,
        script: &mut Script,
        messages: &[Message],
    ) -> (Vec<usize>, usize) {
        let sound = messages.iter().filter(|m| self.check_message(m).is_ok());
        let keys: BTreeSet<_> = sound
            .map(|m| (m.handler().as_str(), m.id().as_str()))
            .collect();
        let lists = self.name_lists("@inbox_ids", keys.iter().copied());
        let places = lists.into_iter().map(|list| {
            script.add(list);
            script.all(&self.sql.known) + self.sql.known.len() - 1
        });
        (places.collect(), keys.len())
    }

    /// Adds the storing of `messages` to `script`, but for those that are known.
    pub(crate) fn receive(
        &self,
        script: &mut Script,
        messages: &[Message],
        known: &Known,
        whose: Whose,
        secrecy: Secrecy,
    ) -> Receiving {
        let mut receiving = Receiving {
            receipts: Vec::with_capacity(messages.len()),
            wanted: Vec::new(),
            stored: None,
        };
        let mut seen = HashSet::with_capacity(messages.len());
        let mut wanted = Vec::with_capacity(messages.len());
        for (place, message) in messages.iter().enumerate() {
            receiving.receipts.push(match self.check_message(message) {
                Err(invalid) => Receipt::Refused(invalid),
                Ok(()) => {
                    if seen.insert(message.key()) && !known.has(message.key()) {
                        wanted.push((place, message));
                    }
                    Receipt::Duplicate
                }
            });
        }
        let keys: BTreeSet<_> = wanted.iter().filter_map(|(_, m)| ordering_key(m)).collect();
        self.lock_keys(script, &keys);
        if !wanted.is_empty() {
            let ordered = !keys.is_empty();
            receiving.stored = Some(self.store(script, &wanted, ordered, whose, secrecy));
            receiving.wanted = wanted.iter().map(|(place, _)| *place).collect();
        }
        self.rehead(script, &keys);
        receiving
    }

    /// Locks ordering keys, in their order.
    fn lock_keys(&self, script: &mut Script, keys: &BTreeSet<(&str, &str)>) {
        for list in self.name_lists("@inbox_keys", keys.iter().copied()) {
            script.add(list);
            script.all(&self.sql.lock_keys);
        }
    }

    /// Gives the locked ordering keys their heads.
    fn rehead(&self, script: &mut Script, keys: &BTreeSet<(&str, &str)>) {
        let lists = self.name_lists("@inbox_keys", keys.iter().copied());
        // A single one is still there.
        let several = lists.len() > 1;
        for list in lists {
            if several {
                script.add(list);
            }
            script.all(&self.sql.rehead);
        }
    }

    /// Begins to store: draws the mark of what is stored, and forgets the number that was drawn last.
    fn begin_batch(script: &mut Script) {
        let mut set = Statement::new("SET @inbox_batch = ");
        set.number(fastrand::i64(..));
        set.push(", @inbox_first = 0, @inbox_end = 0, @inbox_drawn = LAST_INSERT_ID(0)");
        script.add(set);
    }

    /// Keeps the first number that was drawn, and how far those of this statement can go. A message
    /// whose key was known keeps the number that was drawn for it from being used.
    fn keep_numbers(script: &mut Script, rows: usize) {
        let mut set = Statement::new(
            "SET @inbox_first = IF(@inbox_first = 0, LAST_INSERT_ID(), @inbox_first), \
             @inbox_end = GREATEST(@inbox_end, LAST_INSERT_ID() + @@auto_increment_increment * ",
        );
        set.number(rows as i64).push(")");
        script.add(set);
    }

    /// Stores messages of different keys.
    fn store(
        &self,
        script: &mut Script,
        messages: &[(usize, &Message)],
        ordered: bool,
        whose: Whose,
        secrecy: Secrecy,
    ) -> Stored {
        Self::begin_batch(script);
        let in_order: Vec<_> = messages.iter().map(|(_, message)| *message).collect();
        // In the order of the batch, in which they are numbered. Batches with the same keys in other
        // orders may deadlock then, and are stored again.
        let mut rest = in_order.as_slice();
        if whose == Whose::Own {
            for rows in BOUND_ROWS {
                while let Some((some, others)) = rest.split_at_checked(rows)
                    && let Some(statement) = self.bound_rows(some)
                {
                    script.add(statement);
                    Self::keep_numbers(script, rows);
                    rest = others;
                }
            }
        }
        self.store_as_text(script, rest, secrecy);
        let most = messages.len() as i64;
        let (storing, counted) = match (messages, whose) {
            ([_], _) => (&self.sql.one, self.queue(script, &self.sql.one)),
            (some, Whose::Callers) if some.len() <= self.most_numbers() => {
                script.fixed("SET @inbox_seqs = NULL");
                script.fixed(&self.sql.list_stored);
                (&self.sql.listed, self.queue(script, &self.sql.listed))
            }
            _ => (&self.sql.several, self.queue_several(script, most)),
        };
        self.count_stored(script, storing, messages);
        let listed = (most > 1).then(|| {
            let mut list = Statement::new(storing.keys.as_str());
            list.push(" AND @inbox_count < ").number(most);
            script.add(list)
        });
        if ordered {
            script.fixed(&storing.open);
        }
        Stored { counted, listed }
    }

    /// Queues what was stored. Answers where it says how many that is, which is `@inbox_count` then.
    fn queue(&self, script: &mut Script, storing: &Storing) -> usize {
        script.fixed(&storing.queue);
        script.changed()
    }

    /// The same for several messages, up to the last number that theirs can be when the server draws
    /// the numbers of a statement in one go; and behind it when some are still missing.
    fn queue_several(&self, script: &mut Script, most: i64) -> usize {
        script.fixed(&self.sql.several.queue);
        script.keep_changed();
        let mut beyond = Statement::new(self.sql.beyond.as_str());
        beyond.push(" AND @inbox_count < ").number(most);
        script.add(beyond);
        script.fixed(&format!(
            "SET @inbox_end = IF({CHANGED} > 0, 9223372036854775807, @inbox_end), \
             @inbox_count = @inbox_count + {CHANGED}",
        ));
        script.fixed("SELECT @inbox_count")
    }

    /// Adds what was stored to the tally.
    fn count_stored(&self, script: &mut Script, storing: &Storing, messages: &[(usize, &Message)]) {
        let mut handlers = messages.iter().map(|(_, message)| message.handler());
        let first = handlers.next();
        match first {
            Some(handler) if handlers.all(|other| other == handler) => {
                let mut count = Statement::new(self.sql.expand(
                    "INSERT INTO {tally} (handler, backlog, processed, dead, discarded) SELECT ",
                ));
                count
                    .bytes(handler.as_str().as_bytes())
                    .push(", @inbox_count, 0, 0, 0 FROM DUAL WHERE @inbox_count > 0");
                script.add(count);
            }
            _ => {
                script.fixed(&storing.count);
            }
        }
    }

    /// That many messages in their order, all values bound: the server need not read a text then,
    /// which takes longer than all the rest. `None` when they do not fit into a packet.
    fn bound_rows(&self, messages: &[&Message]) -> Option<Statement> {
        let mut statement = Statement::new(self.sql.store_head.as_str()).repeats();
        for (n, message) in messages.iter().enumerate() {
            statement.push(if n == 0 { "(" } else { ",\n(" });
            for text in [
                message.handler().as_str(),
                message.id().as_str(),
                message.kind().as_str(),
            ] {
                statement.bind(Value::text(text)).push(", ");
            }
            let text = |text: Option<&str>| text.map_or(Value::Null, Value::text);
            let content_type = message.content_type().map(ContentType::as_str);
            statement.bind(text(content_type));
            let headers = Value::Bytes(message.headers().to_json().into());
            statement.push(", ").bind(headers);
            let ordering_key = message.ordering_key().map(OrderingKey::as_str);
            statement.push(", ").bind(text(ordering_key));
            let (delay, at) = match message.due() {
                Due::Now => (0, 0),
                Due::After(delay) => (duration_micros(delay), 0),
                Due::At(time) => (0, to_micros(time)),
            };
            statement.push(", @inbox_now, GREATEST(@inbox_now + ");
            statement.bind(Value::Number(delay)).push(", ");
            statement.bind(Value::Number(at)).push("), @inbox_batch, ");
            let payload = message.payload();
            statement
                .bind(Value::Number(payload.len() as i64))
                .push(", ");
            self.payload(&mut statement, payload, Secrecy::Bind);
            statement.push(")");
        }
        statement.push(&self.sql.store_tail);
        let fits = statement.size() <= self.most_in_chunk();
        fits.then_some(statement)
    }

    fn most_in_chunk(&self) -> usize {
        CHUNK_BYTES.min(self.most_in_packet())
    }

    fn store_as_text(&self, script: &mut Script, messages: &[&Message], secrecy: Secrecy) {
        let mut chunk = Statement::default();
        let mut rows = 0;
        for message in messages {
            let row = self.message_row(message, secrecy);
            let full = chunk.size() + row.size() > self.most_in_chunk();
            if rows > 0 && (rows >= CHUNK_ROWS || full) {
                chunk.push(&self.sql.store_tail);
                script.add(std::mem::take(&mut chunk));
                Self::keep_numbers(script, rows);
                rows = 0;
            }
            chunk.push(if rows == 0 {
                &self.sql.store_head
            } else {
                ",\n"
            });
            chunk.append(row);
            rows += 1;
        }
        if rows > 0 {
            chunk.push(&self.sql.store_tail);
            script.add(chunk);
            Self::keep_numbers(script, rows);
        }
    }

    fn message_row(&self, message: &Message, secrecy: Secrecy) -> Statement {
        let mut row = Statement::new("(");
        for text in [
            message.handler().as_str(),
            message.id().as_str(),
            message.kind().as_str(),
        ] {
            row.bytes(text.as_bytes()).push(", ");
        }
        let content_type = message.content_type().map(|text| text.as_str().as_bytes());
        row.optional(content_type);
        // Values of headers may be as personal as a payload.
        let headers = Bytes::from(message.headers().to_json());
        let secrecy_of_headers = if message.headers().is_empty() {
            Secrecy::Inline
        } else {
            secrecy
        };
        row.push(", ").secret(&headers, secrecy_of_headers);
        let ordering_key = message.ordering_key().map(|key| key.as_str().as_bytes());
        row.push(", ").optional(ordering_key);
        row.push(", @inbox_now, ");
        match message.due() {
            Due::Now => row.push("@inbox_now"),
            Due::After(delay) => row.push("@inbox_now + ").number(duration_micros(delay)),
            Due::At(time) => row
                .push("GREATEST(@inbox_now, ")
                .number(to_micros(time))
                .push(")"),
        };
        row.push(", @inbox_batch, ")
            .number(message.payload().len() as i64)
            .push(", ");
        self.payload(&mut row, message.payload(), secrecy);
        row.push(")");
        row
    }

    /// The payload as its column takes it.
    pub(crate) fn payload(&self, statement: &mut Statement, payload: &Bytes, secrecy: Secrecy) {
        match self.options.payload_column {
            PayloadColumn::LongBlob => {
                statement.secret(payload, secrecy);
            }
            PayloadColumn::Json => {
                statement
                    .push("CONVERT(")
                    .secret(payload, secrecy)
                    .push(" USING utf8mb4)");
            }
        }
    }

    /// Stores one message under the next number, and no more than that. Whether it was new shows in
    /// whether it is there under `@inbox_first` and `@inbox_batch`.
    pub(crate) fn store_content(&self, script: &mut Script, message: &Message, secrecy: Secrecy) {
        Self::begin_batch(script);
        self.store_as_text(script, &[message], secrecy);
    }

    /// What comes before [`Self::store_one`].
    pub(crate) fn prepare_one(&self, script: &mut Script, message: &Message) {
        self.lock_keys(script, &ordering_key(message).into_iter().collect());
        Self::begin_batch(script);
    }

    /// For an inline use: stores one message, unless its key is `known`. In a transaction that goes on, a
    /// look for it comes first: an insert that meets a known key locks the gap before it, too, and so
    /// what others are about to store. What the look misses, because it is being stored just now, the
    /// insert finds.
    pub(crate) fn store_one(
        &self,
        script: &mut Script,
        message: &Message,
        known: bool,
        secrecy: Secrecy,
    ) -> Stored {
        let keys: BTreeSet<_> = ordering_key(message).into_iter().collect();
        if !known {
            self.store_as_text(script, &[message], secrecy);
        }
        let counted = self.queue(script, &self.sql.one);
        self.count_stored(script, &self.sql.one, &[(0, message)]);
        if !keys.is_empty() {
            script.fixed(&self.sql.one.open);
        }
        self.rehead(script, &keys);
        Stored {
            counted,
            listed: None,
        }
    }

    /// Adds an extension of these leases to `script`, past those whose rows others hold. Answers there
    /// with the ends of those that stand.
    pub(crate) fn extend(
        &self,
        script: &mut Script,
        held: &[(i64, i64)],
        length: Duration,
    ) -> Vec<usize> {
        let lists = held.chunks(self.most_numbers()).map(|some| {
            let mut set = Statement::pairs("@inbox_held", some.iter().copied());
            set.push(", @inbox_length = ")
                .number(duration_micros(length));
            script.add(set);
            script.all(&self.sql.extend);
            script.all(&self.sql.extend_ends)
        });
        lists.collect()
    }

    /// The ends of leases that a script answered with, by row and token.
    pub(crate) fn ends(
        answers: &Answers,
        places: &[usize],
    ) -> sqlx::Result<HashMap<(i64, i64), i64>> {
        let rows = places.iter().flat_map(|place| answers.rows(*place));
        rows.map(|row| Ok((pair(row)?, row.try_get_unchecked(2)?)))
            .collect()
    }

    /// The newest tokens of `newest.sql`.
    pub(crate) fn newest(
        &self,
        answers: &Answers,
        places: &[usize],
    ) -> sqlx::Result<HashMap<i64, i64>> {
        let mut newest = HashMap::new();
        for row in places.iter().flat_map(|place| answers.rows(*place)) {
            let token: Option<i64> = row.try_get_unchecked(1)?;
            if let Some(token) = token {
                newest.insert(row.try_get_unchecked(0)?, token);
            }
        }
        Ok(newest)
    }

    pub(crate) fn corrupt(&self, operation: &'static str, seq: i64, reason: String) -> Error {
        let found = rows::corrupt_row(self.options.inbox.as_str(), seq, reason);
        Error::new(
            inbox_api::ErrorKind::Corrupt,
            operation,
            format!("{}: {}", found.place, found.reason),
        )
    }
}

fn ordering_key(message: &Message) -> Option<(&str, &str)> {
    let key = message.ordering_key()?;
    Some((message.handler().as_str(), key.as_str()))
}

fn is_json(payload: &[u8]) -> bool {
    let mut depth = 0_usize;
    let shallow = payload.iter().all(|byte| {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth <= JSON_DEPTH
    });
    shallow && serde_json::from_slice::<serde_json::Value>(payload).is_ok()
}

/// The row and the token that a lease names, and whether the message has an ordering key: the
/// locator is the sequence number, shifted by one bit for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) seq: i64,
    pub(crate) token: i64,
    pub(crate) ordered: bool,
}

pub(crate) fn held(lease: &Lease) -> Held {
    Held {
        seq: i64::try_from(lease.locator >> 1).unwrap_or(-1),
        token: lease.token.get(),
        ordered: lease.locator & 1 == 1,
    }
}

pub(crate) fn lease(message: &Message, seq: i64, token: i64, until: i64) -> Lease {
    Lease {
        key: message.key().clone(),
        token: FencingToken::new(token),
        locator: seq.unsigned_abs() << 1 | u64::from(message.ordering_key().is_some()),
        until: from_micros(until),
    }
}

/// The first two columns.
pub(crate) fn pair(row: &MySqlRow) -> sqlx::Result<(i64, i64)> {
    Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_a_server_would_refuse_is_refused_first() {
        for good in ["{}", "[1, \"a\"]", "null", "1.5e3", "\"\\u00e4\""] {
            assert!(is_json(good.as_bytes()), "{good}");
        }
        let deep = "[".repeat(31) + &"]".repeat(31);
        for bad in ["", "{", "text", "\"\\ud800\"", "1e999", deep.as_str()] {
            assert!(!is_json(bad.as_bytes()), "{bad}");
        }
    }
}
