//! Receiving: a batch in one statement, or in as many as its bytes take.

use std::collections::HashSet;

use inbox_api::{Message, Receipt, Result};
use sqlx::{
    PgConnection, Row as _,
    postgres::{PgArguments, PgRow},
};

use crate::{
    arguments::{Arguments, due, unless_all_none},
    chunks::{CHUNK_BYTES, ELEMENT_BYTES, Filling},
    connection::{Database, On},
    error::{failed, is_refused_value},
    options::PostgresOptions,
    rows::only,
};

/// Messages of one statement, by their places in the input.
type Chunk = Vec<usize>;

pub(crate) async fn receive(database: &Database, messages: &[Message]) -> Result<Vec<Receipt>> {
    database.check_open()?;
    match receive_batch(database, messages).await {
        Err(error) if database.options.payload_type.is_json() && is_refused_value(&error) => {
            receive_each(database, messages).await
        }
        outcome => outcome,
    }
}

/// In a transaction of the caller's.
pub(crate) async fn receive_in(
    database: &Database,
    connection: &mut PgConnection,
    messages: &[Message],
) -> Result<Vec<Receipt>> {
    let (mut receipts, chunks) = split(&database.options, messages, CHUNK_BYTES);
    for chunk in &chunks {
        let on = On::Transaction(&mut *connection);
        receive_chunk(database, on, messages, chunk, &mut receipts).await?;
    }
    Ok(receipts)
}

async fn receive_batch(database: &Database, messages: &[Message]) -> Result<Vec<Receipt>> {
    let (mut receipts, chunks) = split(&database.options, messages, CHUNK_BYTES);
    match chunks.as_slice() {
        [] => {}
        [chunk] => receive_chunk(database, On::Pool, messages, chunk, &mut receipts).await?,
        // More bytes than one statement takes.
        _ => {
            let receiving = async {
                let mut transaction = database.begin_transaction().await?;
                for chunk in &chunks {
                    let on = On::Transaction(&mut transaction);
                    receive_chunk(database, on, messages, chunk, &mut receipts).await?;
                }
                transaction.commit().await.map_err(failed)
            };
            database.in_time(receiving).await?;
        }
    }
    Ok(receipts)
}

/// Finds the message whose payload the server does not take as JSON, although it is: each is
/// stored by itself.
async fn receive_each(database: &Database, messages: &[Message]) -> Result<Vec<Receipt>> {
    let mut receipts = Vec::with_capacity(messages.len());
    for message in messages {
        match receive_batch(database, std::slice::from_ref(message)).await {
            Ok(receipt) => receipts.extend(receipt),
            Err(error) if is_refused_value(&error) => {
                let refused = database.options.payload_type.not_json();
                receipts.push(Receipt::Refused(refused));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(receipts)
}

async fn receive_chunk(
    database: &Database,
    on: On<'_>,
    messages: &[Message],
    chunk: &Chunk,
    receipts: &mut [Receipt],
) -> Result<()> {
    let alone = matches!(on, On::Pool);
    let arguments = arguments(&database.options, messages, chunk, alone)?;
    let text = &database.statements.receive;
    let answer = database.run(on, text, arguments).await?;
    read(&answer, chunk, receipts)
}

/// Which messages are refused, and the others in chunks. The first copy of a key is the one
/// that counts.
fn split(
    options: &PostgresOptions,
    messages: &[Message],
    limit: usize,
) -> (Vec<Receipt>, Vec<Chunk>) {
    let mut receipts = Vec::with_capacity(messages.len());
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut seen = HashSet::with_capacity(messages.len());
    let mut filling = Filling::within(limit);
    for (place, message) in messages.iter().enumerate() {
        if let Err(invalid) = options.check_message(message) {
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

    let arguments = Arguments::new()
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
        .with(places)
        .with(unless_all_none(at.into_iter()))
        .with(unless_all_none(after.into_iter()))
        .with(options.notifications)
        .with(alone)
        .finish()
}

/// Reads the places of the messages that were stored into `receipts`.
fn read(answer: &[PgRow], chunk: &Chunk, receipts: &mut [Receipt]) -> Result<()> {
    let accepted: Option<Vec<i32>> = only(answer)?.try_get(0).map_err(failed)?;
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
        let (_, chunks) = split(&PostgresOptions::new(), messages, LIMIT);
        chunks.iter().map(Vec::len).collect()
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
