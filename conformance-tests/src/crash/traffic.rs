//! What is sent in a run: each message is made from its number, so that what becomes of it can be compared.

use inbox_api::{
    ContentType, HandlerName, Invalid, Key, Kind, Message, MessageId, OrderingKey, Record,
};

use super::worker::handlers;

/// So many messages after each other share their ordering keys.
const BLOCK: u64 = 300;
const ORDERING_KEYS: u64 = 6;

/// The copies of the message of that number, always the same: one per handler that wants it.
pub(crate) fn messages(
    number: u64,
    [billing, shipping]: &[HandlerName; 2],
) -> Result<Vec<Message>, Invalid> {
    let mut message = Message::new(
        if number.is_multiple_of(2) {
            billing
        } else {
            shipping
        }
        .clone(),
        MessageId::new(format!("m{number}"))?,
        Kind::new("crash.test")?,
        payload(number),
    );
    if number.is_multiple_of(2) {
        message = message
            .with_content_type(ContentType::new("text/plain")?)
            .with_header("number", number.to_string())?;
    }
    if number.is_multiple_of(3) {
        let key = number / BLOCK * ORDERING_KEYS + number / 3 % ORDERING_KEYS;
        message = message.with_ordering_key(OrderingKey::new(format!("o{key}"))?);
    }
    if !number.is_multiple_of(5) {
        return Ok(vec![message]);
    }
    // One delivery that fans out.
    Ok(vec![
        message.for_handler(billing.clone()),
        message.for_handler(shipping.clone()),
    ])
}

/// Empty, any bytes, or long now and then.
fn payload(number: u64) -> Vec<u8> {
    let text = format!("payload of m{number}, ");
    match number % 16 {
        1 => Vec::new(),
        2 => (0..=u8::MAX).chain(text.bytes()).collect(),
        3 => text.repeat(150).into_bytes(),
        _ => text.into_bytes(),
    }
}

/// What of a message is not as [`messages`] made it. Nothing of one that it did not make.
pub(crate) fn altered(message: &Message) -> Option<&'static str> {
    let sent = sent_as(message.key())?;
    let parts = [
        sent.payload() == message.payload(),
        sent.kind() == message.kind(),
        sent.content_type() == message.content_type(),
        sent.headers() == message.headers(),
        sent.ordering_key() == message.ordering_key(),
    ];
    first_altered(parts)
}

/// The same of a record without its payload.
pub(crate) fn altered_record(record: &Record) -> Option<&'static str> {
    let sent = sent_as(&record.key)?;
    let length = u64::try_from(sent.payload().len()).ok();
    let parts = [
        length == record.payload_bytes && sent.fingerprint() == record.fingerprint,
        sent.kind() == &record.kind,
        sent.content_type() == record.content_type.as_ref(),
        sent.headers() == &record.headers,
        sent.ordering_key() == record.ordering_key.as_ref(),
    ];
    first_altered(parts)
}

fn first_altered(are_same: [bool; 5]) -> Option<&'static str> {
    let names = ["payload", "kind", "content type", "headers", "ordering key"];
    let mut parts = are_same.into_iter().zip(names);
    parts.find_map(|(is_same, name)| (!is_same).then_some(name))
}

fn sent_as(key: &Key) -> Option<Message> {
    let all = messages(number_of(key)?, &handlers().ok()?).ok()?;
    all.into_iter().find(|message| message.key() == key)
}

/// The number of a key that [`messages`] made.
pub(crate) fn number_of(key: &Key) -> Option<u64> {
    key.id.as_str().strip_prefix('m')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use inbox_api::{Filter, Operate as _, Page, Schema as _, Store as _};
    use inbox_memory::{MemoryOptions, MemoryStore};

    use super::*;

    #[tokio::test]
    async fn what_is_not_as_it_was_sent_is_seen() {
        let store = MemoryStore::with(MemoryOptions::new());
        store.create().await.unwrap();
        let both = handlers().unwrap();
        let all = (0..32).flat_map(|number| messages(number, &both).unwrap());
        let all: Vec<Message> = all.collect();
        store.receive(&all).await.unwrap();
        assert!(all.iter().all(|message| altered(message).is_none()));
        let list = async || {
            let listing = store.list(&Filter::default(), &Page::first(100)).await;
            listing.unwrap().records
        };
        assert_eq!(list().await.len(), all.len());
        assert!(
            list()
                .await
                .iter()
                .all(|record| altered_record(record).is_none())
        );

        let other = Message::new(
            both[0].clone(),
            all[0].id().clone(),
            all[0].kind().clone(),
            "another",
        );
        assert_eq!(altered(&other), Some("payload"));
        let nobody = HandlerName::new("nobody").unwrap();
        assert_eq!(altered(&other.for_handler(nobody)), None);
    }
}
