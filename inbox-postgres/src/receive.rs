//! Receiving: a batch in one statement, or in as many as its bytes take.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    ops::Range,
    time::Instant,
};

use inbox_api::{Fingerprint, Key, Message, Receipt, Result};
use sqlx::{
    PgConnection, Row as _,
    postgres::{PgArguments, PgRow},
};

use crate::{
    arguments::{Arguments, due, unless_all_none},
    chunks::{CHUNK_BYTES, ELEMENT_BYTES, Filling},
    connection::{Database, On},
    error::{before, failed, is_refused_value},
    options::PostgresOptions,
    rows::only,
};

/// Messages of one statement, by their places in the input.
type Chunk = Vec<usize>;

pub(crate) async fn receive(database: &Database, messages: &[Message]) -> Result<Vec<Receipt>> {
    database.check_open()?;
    let started = Instant::now();
    match receive_batch(database, messages, &HashSet::new()).await {
        Err(error) if database.options.payload_type.is_json() && is_refused_value(&error) => {
            let again = async {
                let refused = find_refused(database, messages).await?;
                receive_batch(database, messages, &refused).await
            };
            // One time limit for all of it.
            let left = database.limit().saturating_sub(started.elapsed());
            database.in_time_within(left, again).await
        }
        outcome => outcome,
    }
}

/// The places of the messages whose payload the server does not take as JSON, although it is. Halves of the batch are
/// stored and taken back, as only that statement shows it; this is rare, and the others are still stored
/// together or not at all.
async fn find_refused(database: &Database, messages: &[Message]) -> Result<HashSet<usize>> {
    let mut search = Search::within(messages.len());
    while let Some(places) = search.next() {
        let some = messages.get(places.clone()).unwrap_or_default();
        let looking = async {
            let mut transaction = database.begin_transaction().await?;
            let is_refused = match receive_in(database, &mut transaction, some).await {
                Err(error) if is_refused_value(&error) => true,
                stored => stored.map(|_| false)?,
            };
            transaction.rollback().await.map_err(before)?;
            Ok(is_refused)
        };
        if database.in_time(looking).await? {
            search.narrow(places);
        }
    }
    Ok(search.found)
}

/// A search for what makes a batch be refused, by halves.
struct Search {
    left: Vec<Range<usize>>,
    found: HashSet<usize>,
}

impl Search {
    /// In a batch of so many messages that was refused.
    fn within(count: usize) -> Self {
        let mut search = Self {
            left: Vec::new(),
            found: HashSet::new(),
        };
        search.narrow(0..count);
        search
    }

    /// The places that are to be tried next.
    fn next(&mut self) -> Option<Range<usize>> {
        self.left.pop()
    }

    /// Among these places is one that is refused.
    fn narrow(&mut self, places: Range<usize>) {
        if places.len() <= 1 {
            self.found.extend(places);
            return;
        }
        let middle = places.start + places.len() / 2;
        self.left.extend([middle..places.end, places.start..middle]);
    }
}

/// In a transaction of the caller's.
pub(crate) async fn receive_in(
    database: &Database,
    connection: &mut PgConnection,
    messages: &[Message],
) -> Result<Vec<Receipt>> {
    let mut batch = Batch::new(&database.options, messages, &HashSet::new(), CHUNK_BYTES);
    for chunk in std::mem::take(&mut batch.chunks) {
        let on = On::Transaction(&mut *connection);
        batch.receive_chunk(database, on, &chunk).await?;
    }
    Ok(batch.receipts())
}

/// `refused`: the places of those that are not stored.
async fn receive_batch(
    database: &Database,
    messages: &[Message],
    refused: &HashSet<usize>,
) -> Result<Vec<Receipt>> {
    let mut batch = Batch::new(&database.options, messages, refused, CHUNK_BYTES);
    let chunks = std::mem::take(&mut batch.chunks);
    match chunks.as_slice() {
        [] => {}
        [chunk] => batch.receive_chunk(database, On::Pool, chunk).await?,
        // More bytes than one statement takes.
        _ => {
            let receiving = async {
                let mut transaction = database.begin_transaction().await?;
                for chunk in &chunks {
                    let on = On::Transaction(&mut transaction);
                    batch.receive_chunk(database, on, chunk).await?;
                }
                transaction.commit().await.map_err(failed)
            };
            database.in_time(receiving).await?;
        }
    }
    Ok(batch.receipts())
}

/// What becomes of the messages of one call.
struct Batch<'a> {
    messages: &'a [Message],
    /// Of those that are refused or stored.
    outcomes: Vec<Option<Receipt>>,
    chunks: Vec<Chunk>,
    /// Later copies of a key, with the places of the first ones, which are those that count.
    copies: HashMap<usize, usize>,
    /// The fingerprints that the keys of duplicates were accepted with.
    kept: HashMap<usize, Fingerprint>,
}

impl<'a> Batch<'a> {
    fn new(
        options: &PostgresOptions,
        messages: &'a [Message],
        refused: &HashSet<usize>,
        limit: usize,
    ) -> Self {
        let mut batch = Self {
            messages,
            outcomes: vec![None; messages.len()],
            chunks: Vec::new(),
            copies: HashMap::new(),
            kept: HashMap::new(),
        };
        let mut seen: HashMap<&Key, usize> = HashMap::with_capacity(messages.len());
        let mut filling = Filling::within(limit);
        let each = messages.iter().zip(&mut batch.outcomes).enumerate();
        for (place, (message, outcome)) in each {
            if let Err(invalid) = options.check_message(message) {
                *outcome = Some(Receipt::Refused(invalid));
                continue;
            }
            if refused.contains(&place) {
                *outcome = Some(Receipt::Refused(options.payload_type.not_json()));
                continue;
            }
            match seen.entry(message.key()) {
                Entry::Occupied(first) => {
                    batch.copies.insert(place, *first.get());
                    continue;
                }
                Entry::Vacant(first) => first.insert(place),
            };
            let begins = filling.overflows(bytes_of(message));
            match batch.chunks.last_mut() {
                Some(chunk) if !begins => chunk.push(place),
                _ => batch.chunks.push(vec![place]),
            }
        }
        batch
    }

    async fn receive_chunk(
        &mut self,
        database: &Database,
        on: On<'_>,
        chunk: &Chunk,
    ) -> Result<()> {
        let alone = matches!(on, On::Pool);
        let arguments = arguments(&database.options, self.messages, chunk, alone)?;
        let text = &database.statements.receive;
        let answer = database.run(on, text, arguments).await?;
        self.read(only(&answer)?, chunk).map_err(failed)
    }

    /// Reads which messages of a chunk were stored, and the fingerprints of the others' keys.
    fn read(&mut self, row: &PgRow, chunk: &Chunk) -> sqlx::Result<()> {
        // They count from 0, in the chunk.
        let in_batch = |place: i32| chunk.get(usize::try_from(place).ok()?).copied();
        let stored: Option<Vec<i32>> = row.try_get(0)?;
        for place in stored.into_iter().flatten().filter_map(in_batch) {
            if let Some(outcome) = self.outcomes.get_mut(place) {
                *outcome = Some(Receipt::Accepted);
            }
        }
        let known: Option<Vec<i32>> = row.try_get(1)?;
        let fingerprints: Option<Vec<i64>> = row.try_get(2)?;
        let fingerprints = fingerprints.into_iter().flatten();
        for (place, fingerprint) in known.into_iter().flatten().zip(fingerprints) {
            let place = in_batch(place);
            self.kept
                .extend(place.map(|place| (place, Fingerprint::new(fingerprint))));
        }
        Ok(())
    }

    /// Whether the message at `place` is not what the key of the one at `first` was accepted with. A
    /// key that is gone again has nothing to differ from.
    fn differs(&self, place: usize, first: usize) -> bool {
        let fingerprint_at = |place: usize| self.messages.get(place).map(Message::fingerprint);
        let accepted_with = match self.outcomes.get(first) {
            Some(Some(Receipt::Accepted)) => fingerprint_at(first),
            _ => self.kept.get(&first).copied(),
        };
        accepted_with.is_some_and(|kept| fingerprint_at(place) != Some(kept))
    }

    /// In order of the input.
    fn receipts(self) -> Vec<Receipt> {
        (0..)
            .zip(&self.outcomes)
            .map(|(place, outcome)| match outcome {
                Some(receipt) => receipt.clone(),
                None => Receipt::Duplicate {
                    differs: self.differs(place, self.copies.get(&place).copied().unwrap_or(place)),
                },
            })
            .collect()
    }
}

/// `alone`: not within a longer transaction.
fn arguments(
    options: &PostgresOptions,
    messages: &[Message],
    chunk: &Chunk,
    alone: bool,
) -> Result<PgArguments> {
    let in_chunk: Vec<&Message> = chunk
        .iter()
        .filter_map(|place| messages.get(*place))
        .collect();
    let mut sorted: Vec<(usize, &Message)> = in_chunk.iter().copied().enumerate().collect();
    sorted.sort_unstable_by_key(|(_, message)| message.key());
    let each = || sorted.iter().map(|(_, message)| *message);

    let arguments = Arguments::with_capacity(each().map(bytes_of).sum())
        .with(each().map(|m| m.handler().as_str()).collect::<Vec<_>>())
        .with(each().map(|m| m.id().as_str()).collect::<Vec<_>>())
        .with(each().map(|m| m.kind().as_str()).collect::<Vec<_>>())
        .with(unless_all_none(
            each().map(|m| m.content_type().map(AsRef::<str>::as_ref)),
        ))
        .with(unless_all_none(
            each().map(|m| m.ordering_key().map(AsRef::<str>::as_ref)),
        ))
        .with(each().map(|m| m.headers().to_json()).collect::<Vec<_>>());
    let places: Vec<i32> = sorted
        .iter()
        .map(|(place, _)| i32::try_from(*place).unwrap_or(i32::MAX))
        .collect();
    let (at, after): (Vec<_>, Vec<_>) = in_chunk.iter().map(|m| due(m)).unzip();
    options
        .payload_type
        .with_each(arguments, each().map(Message::payload))
        .with(each().map(|m| m.fingerprint().get()).collect::<Vec<_>>())
        .with(places)
        .with(unless_all_none(at.into_iter()))
        .with(unless_all_none(after.into_iter()))
        .with(options.notifications)
        .with(alone)
        .finish()
}

/// About as many as are sent for it; never fewer but for what JSON escapes.
fn bytes_of(message: &Message) -> usize {
    let headers = message.headers();
    let texts = headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + 6);
    let optional = [
        message.content_type().map(|text| text.as_str().len()),
        message.ordering_key().map(|text| text.as_str().len()),
    ];
    ELEMENT_BYTES
        + message.payload().len()
        + message.handler().as_str().len()
        + message.id().as_str().len()
        + message.kind().as_str().len()
        + texts.sum::<usize>()
        + optional.into_iter().flatten().sum::<usize>()
}

#[cfg(test)]
mod tests {
    use inbox_api::{HandlerName, Headers, Kind, MessageId};

    use super::*;

    const LIMIT: usize = 300 * 1024;

    #[test]
    fn what_is_refused_is_found_in_few_steps() {
        for bad in [&[0][..], &[499], &[7, 8, 300], &[]] {
            let mut search = Search::within(500);
            let mut steps = 0;
            while let Some(places) = search.next() {
                steps += 1;
                if bad.iter().any(|bad| places.contains(bad)) {
                    search.narrow(places);
                }
            }
            assert_eq!(search.found, bad.iter().copied().collect());
            assert!(steps <= 20 * bad.len().max(1), "{bad:?}: {steps}");
        }
        assert_eq!(Search::within(1).found, HashSet::from([0]));
    }

    fn message(id: &str, payload: usize, headers: usize) -> Message {
        let mut all = Headers::new();
        all.insert("h", "x".repeat(headers)).unwrap();
        Message::new(
            HandlerName::new("h").unwrap(),
            MessageId::new(id).unwrap(),
            Kind::new("k").unwrap(),
            vec![0; payload],
        )
        .with_headers(all)
    }

    fn sizes(messages: &[Message]) -> Vec<usize> {
        let batch = Batch::new(&PostgresOptions::new(), messages, &HashSet::new(), LIMIT);
        batch.chunks.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_batch_is_split_by_all_that_is_sent_for_it() {
        let many = |payload, headers| -> Vec<Message> {
            (0..10)
                .map(|n| message(&n.to_string(), payload, headers))
                .collect()
        };
        assert_eq!(sizes(&many(10, 10)), [10]);
        assert_eq!(sizes(&many(60_000, 10)), [5, 5]);
        assert_eq!(sizes(&many(10, 60_000)), [5, 5]);
        assert_eq!(sizes(&many(400_000, 10)), [1; 10]);
        assert_eq!(sizes(&[]), [0; 0]);
    }
}
