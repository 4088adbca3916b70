//! Receiving: storing a batch, or one message for an inline use. The same statements serve the store's own
//! transactions and those of callers.

use std::collections::{BTreeSet, HashMap, HashSet};

use inbox_api::{
    Bytes, ContentType, Due, Effect, Headers, Message, OrderingKey, Receipt, Result,
    duration_micros, to_micros,
};
use sqlx::Row as _;

use crate::{
    compact_counters::compact_sometimes,
    connection::Connection,
    context::{CHUNK_ROWS, Context},
    error::failed,
    first_copies::{Fingerprints, Received, add_fingerprints, look_for_first_copies},
    list_variables::{most_numbers, set_names},
    lookup::key_values,
    multi_statement::{Access, Answers, CHANGED, Script},
    ordering::{add_lock_keys, add_promote_heads, ordering_key},
    statement::{Secrecy, Statement, Value},
    statements::OfStored,
};

/// What one statement takes at most, unless the server takes less.
const CHUNK_BYTES: usize = 16 * 1024 * 1024;
/// How many messages are stored with one statement whose values are bound. The server remembers
/// these statements, so there are few of them; what is left over is sent as text.
const BOUND_ROWS: [usize; 4] = [500, 250, 100, 50];

/// Receives a batch in a transaction of the store's.
pub(crate) async fn receive(
    connection: Connection<'_>,
    messages: &[Message],
) -> Result<Vec<Receipt>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let (context, secrecy) = (connection.context, connection.secrecy());
    let mut script = connection.script(Access::Write);
    // The locks of what is known last for as long as one transaction of the store's.
    let none = Fingerprints::default();
    let receiving = add_receive(context, &mut script, messages, &none, Owner::Store, secrecy);
    let answers = if receiving.is_empty() {
        Answers::default()
    } else {
        connection.run(Access::Write, script).await?
    };
    let received = receiving.read(messages, &answers).map_err(failed)?;
    if received.receipts.contains(&Receipt::Accepted) {
        connection.inner.signal.raise();
    }
    let first_copies = look_for_first_copies(connection, messages, &received)
        .await
        // What is new is stored by now.
        .map_err(|error| error.with_effect(Effect::Unknown))?;
    compact_sometimes(connection).await;
    Ok(received.compare(messages, &first_copies))
}

/// Whose transaction messages are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The store's own, at `READ COMMITTED`.
    Store,
    /// The caller's, at any isolation level.
    Caller,
}

/// Adds a look for the keys of those `messages` that can be stored to `script`: see
/// [`add_store_one`]. Answers with where they are, and how many keys it looks for.
pub(crate) fn add_look_for_keys(
    context: &Context,
    script: &mut Script,
    messages: &[Message],
) -> (Vec<usize>, usize) {
    let sound = messages.iter().filter(|m| context.check_message(m).is_ok());
    let keys: BTreeSet<_> = sound
        .map(|m| (m.handler().as_str(), m.id().as_str()))
        .collect();
    let lists = set_names(context, "@inbox_ids", keys.iter().copied());
    let known = &context.sql.receive_known;
    let places = lists.into_iter().map(|list| {
        script.add(list);
        script.all(known) + known.len() - 1
    });
    (places.collect(), keys.len())
}

/// What a receive's answers mean.
pub(crate) struct Receiving {
    receipts: Vec<Receipt>,
    /// The places in the batch of what is to be stored, and where it says what was.
    wanted: Vec<usize>,
    stored: Option<Stored>,
}

/// Where it says which messages were new.
struct Stored {
    /// How many.
    counted: usize,
    /// The keys of the new ones, unless all were.
    new_keys: Option<usize>,
    fingerprints: FirstCopies,
}

/// Where the fingerprints of those stand that were not new.
enum FirstCopies {
    /// Of the one message, in the row that counts it.
    One,
    /// In rows of their own.
    Listed(Vec<usize>),
    /// In no row of this script.
    Elsewhere,
}

impl Receiving {
    /// Whether nothing is left to be stored.
    pub(crate) fn is_empty(&self) -> bool {
        self.stored.is_none()
    }

    /// Reads which of `messages` were new, which are those that were to be received.
    pub(crate) fn read(self, messages: &[Message], answers: &Answers) -> sqlx::Result<Received> {
        let mut received = Received {
            receipts: self.receipts,
            fingerprints: Fingerprints::default(),
            unknown: Vec::new(),
        };
        let Some(stored) = self.stored else {
            return Ok(received);
        };
        let mut accept = |place: usize| {
            if let Some(receipt) = received.receipts.get_mut(place) {
                *receipt = Receipt::Accepted;
            }
        };
        if answers.number(stored.counted)? == self.wanted.len() as i64 {
            self.wanted.into_iter().for_each(&mut accept);
            return Ok(received);
        }
        let rows = stored.new_keys.map_or(&[][..], |at| answers.rows(at));
        let mut places: HashMap<_, _> = self
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
            if let Some(place) = places.remove(&key) {
                accept(place);
            }
        }
        match stored.fingerprints {
            FirstCopies::Elsewhere => received.unknown = places.into_values().collect(),
            FirstCopies::Listed(at) => received.fingerprints = Fingerprints::read(answers, &at)?,
            FirstCopies::One => {
                let message = self.wanted.first().and_then(|place| messages.get(*place));
                let row = answers.rows(stored.counted).first();
                if let (Some(message), Some(row)) = (message, row)
                    && let Some(fingerprint) = row.try_get_unchecked(1)?
                {
                    received.fingerprints = Fingerprints::one(message.key(), fingerprint);
                }
            }
        }
        Ok(received)
    }
}

/// Adds the storing of `messages` to `script`, but for those that are known.
pub(crate) fn add_receive(
    context: &Context,
    script: &mut Script,
    messages: &[Message],
    known: &Fingerprints,
    owner: Owner,
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
        receiving
            .receipts
            .push(match context.check_message(message) {
                Err(invalid) => Receipt::Refused(invalid),
                Ok(()) => {
                    if seen.insert(message.key()) && known.of(message.key()).is_none() {
                        receiving.wanted.push(place);
                        wanted.push(message);
                    }
                    Receipt::Duplicate { differs: false }
                }
            });
    }
    let keys: BTreeSet<_> = wanted.iter().filter_map(|m| ordering_key(m)).collect();
    add_lock_keys(context, script, &keys);
    if !wanted.is_empty() {
        let ordered = !keys.is_empty();
        let stored = add_store(context, script, &wanted, ordered, owner, secrecy);
        receiving.stored = Some(stored);
    }
    add_promote_heads(context, script, &keys);
    receiving
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
fn add_store(
    context: &Context,
    script: &mut Script,
    messages: &[&Message],
    ordered: bool,
    owner: Owner,
    secrecy: Secrecy,
) -> Stored {
    begin_batch(script);
    // In the order of the batch, in which they are numbered. Batches with the same keys in other
    // orders may deadlock then, and are stored again.
    let mut rest = messages;
    if owner == Owner::Store {
        for rows in BOUND_ROWS {
            while let Some((some, others)) = rest.split_at_checked(rows)
                && let Some(statement) = bind_rows(context, some)
            {
                script.add(statement);
                keep_numbers(script, rows);
                rest = others;
            }
        }
    }
    add_as_text(context, script, rest, secrecy);
    let sql = &context.sql;
    let most = messages.len() as i64;
    let (stored, counted) = match (messages, owner) {
        ([message], _) => {
            script.all(&sql.one.queue);
            script.keep_changed();
            let counted = script.fill(&sql.receive_one, &key_values(message.key()));
            (&sql.one, counted)
        }
        (some, Owner::Caller) if some.len() <= most_numbers(context) => {
            script.all(&sql.receive_list);
            (&sql.listed, add_queue(script, &sql.listed))
        }
        _ => (&sql.several, add_queue_several(context, script, most)),
    };
    add_count(context, script, stored, messages);
    let new_keys = (most > 1).then(|| {
        let most = Statement::of_number(most);
        script.fill(&stored.new_keys, &[("most", most)])
    });
    let fingerprints = match (messages, owner) {
        ([_], _) => FirstCopies::One,
        (_, Owner::Store) => FirstCopies::Elsewhere,
        // A later look would miss them, or lock more than a transaction of the caller's should.
        (some, Owner::Caller) => {
            let keys = some.iter().map(|m| (m.handler().as_str(), m.id().as_str()));
            let mut wanted = Statement::new("@inbox_count < ");
            wanted.number(most);
            let places = add_fingerprints(context, script, &keys.collect(), wanted);
            FirstCopies::Listed(places)
        }
    };
    if ordered {
        script.all(&stored.open);
    }
    Stored {
        counted,
        new_keys,
        fingerprints,
    }
}

/// Queues what was stored. Answers where it says how many that is, which is `@inbox_count` then.
fn add_queue(script: &mut Script, stored: &OfStored) -> usize {
    script.all(&stored.queue);
    script.changed()
}

/// The same for several messages, up to the last number that theirs can be when the server draws
/// the numbers of a statement in one go; and behind it when some are still missing.
fn add_queue_several(context: &Context, script: &mut Script, most: i64) -> usize {
    script.all(&context.sql.several.queue);
    script.keep_changed();
    let most = Statement::of_number(most);
    script.fill(&context.sql.queue_beyond, &[("most", most)]);
    script.fixed(&format!(
        "SET @inbox_end = IF({CHANGED} > 0, 9223372036854775807, @inbox_end), \
         @inbox_count = @inbox_count + {CHANGED}",
    ));
    script.fixed("SELECT @inbox_count")
}

/// Adds what was stored to the tally.
fn add_count(context: &Context, script: &mut Script, stored: &OfStored, messages: &[&Message]) {
    let mut handlers = messages.iter().map(|message| message.handler());
    let first = handlers.next();
    match first {
        Some(handler) if handlers.all(|other| other == handler) => {
            let handler = Statement::of_bytes(handler.as_str().as_bytes());
            script.fill(&context.sql.receive_count, &[("handler", handler)]);
        }
        _ => {
            script.all(&stored.count_handlers);
        }
    }
}

/// That many messages in their order, all values bound: the server need not read a text then,
/// which takes longer than all the rest. `None` when they do not fit into a packet.
fn bind_rows(context: &Context, messages: &[&Message]) -> Option<Statement> {
    let (before, behind) = context.sql.receive.around();
    let mut statement = Statement::new(before).repeats();
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
            .bind(Value::Number(message.fingerprint().get()))
            .push(", ")
            .bind(Value::Number(payload.len() as i64))
            .push(", ");
        context.push_payload(&mut statement, payload, Secrecy::Bind);
        statement.push(")");
    }
    statement.push(behind);
    let fits = statement.size() <= most_in_chunk(context);
    fits.then_some(statement)
}

fn most_in_chunk(context: &Context) -> usize {
    CHUNK_BYTES.min(context.most_in_packet())
}

fn add_as_text(context: &Context, script: &mut Script, messages: &[&Message], secrecy: Secrecy) {
    let (before, behind) = context.sql.receive.around();
    let mut chunk = Statement::default();
    let mut rows = 0;
    for message in messages {
        let row = text_row(context, message, secrecy);
        let full = chunk.size() + row.size() > most_in_chunk(context);
        if rows > 0 && (rows >= CHUNK_ROWS || full) {
            chunk.push(behind);
            script.add(std::mem::take(&mut chunk));
            keep_numbers(script, rows);
            rows = 0;
        }
        chunk.push(if rows == 0 { before } else { ",\n" });
        chunk.append(&row);
        rows += 1;
    }
    if rows > 0 {
        chunk.push(behind);
        script.add(chunk);
        keep_numbers(script, rows);
    }
}

/// Values of headers may be as personal as a payload.
pub(crate) fn headers_value(headers: &Headers, secrecy: Secrecy) -> Statement {
    let secrecy = if headers.is_empty() {
        Secrecy::Inline
    } else {
        secrecy
    };
    Statement::of_secret(&Bytes::from(headers.to_json()), secrecy)
}

fn text_row(context: &Context, message: &Message, secrecy: Secrecy) -> Statement {
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
    row.push(", ")
        .append(&headers_value(message.headers(), secrecy));
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
        .number(message.fingerprint().get())
        .push(", ")
        .number(message.payload().len() as i64)
        .push(", ");
    context.push_payload(&mut row, message.payload(), secrecy);
    row.push(")");
    row
}

/// What comes before [`add_store_one`].
pub(crate) fn add_prepare_one(context: &Context, script: &mut Script, message: &Message) {
    add_lock_keys(
        context,
        script,
        &ordering_key(message).into_iter().collect(),
    );
    begin_batch(script);
}

/// For an inline use: stores one message, unless its key is `known`. In a transaction that goes on, a
/// look for it comes first: an insert that meets a known key locks the gap before it, too, and so
/// what others are about to store. What the look misses, because it is being stored just now, the
/// insert finds. Answers where it says whether the message was new.
pub(crate) fn add_store_one(
    context: &Context,
    script: &mut Script,
    message: &Message,
    known: bool,
    secrecy: Secrecy,
) -> usize {
    let stored = &context.sql.one;
    let keys: BTreeSet<_> = ordering_key(message).into_iter().collect();
    if !known {
        add_as_text(context, script, &[message], secrecy);
    }
    let counted = add_queue(script, stored);
    add_count(context, script, stored, &[message]);
    if !keys.is_empty() {
        script.all(&stored.open);
    }
    add_promote_heads(context, script, &keys);
    counted
}
