//! The receiver: sends ranges of messages that overlap with those of all other receivers and with
//! its own, so that most of what it sends is a duplicate. Some it handles at once, as an inline consumer does.

use std::{io, time::Duration};

use inbox_api::{
    Begun, ContentType, HandlerName, Invalid, Key, Kind, LeaseTerms, Message, MessageId,
    OrderingKey, Receipt, Record, Result as StoreResult,
};

use super::{LEASES, Worker, handlers, pause_after, process, worker_name};
use crate::{
    crash::{
        history::{Answered, Asked, sent},
        options::Mode,
        point::Point,
    },
    needs::BoxError,
};

/// So many messages after each other share their ordering keys.
const BLOCK: u64 = 300;
const ORDERING_KEYS: u64 = 6;
/// So many messages at a time may be handled at once, one after the other.
const INLINE: u64 = 3;

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
        ("its kind", sent.kind() == message.kind()),
        ("its payload", sent.payload() == message.payload()),
        (
            "its content type",
            sent.content_type() == message.content_type(),
        ),
        ("its headers", sent.headers() == message.headers()),
        (
            "its ordering key",
            sent.ordering_key() == message.ordering_key(),
        ),
    ];
    parts
        .into_iter()
        .find_map(|(part, is_same)| (!is_same).then_some(part))
}

/// The same of a record without its payload.
pub(crate) fn altered_record(record: &Record) -> Option<&'static str> {
    let sent = sent_as(&record.key)?;
    let length = u64::try_from(sent.payload().len()).ok();
    let parts = [
        ("its kind", sent.kind() == &record.kind),
        (
            "its payload",
            length == record.payload_bytes && sent.fingerprint() == record.fingerprint,
        ),
        (
            "its content type",
            sent.content_type() == record.content_type.as_ref(),
        ),
        ("its headers", sent.headers() == &record.headers),
        (
            "its ordering key",
            sent.ordering_key() == record.ordering_key.as_ref(),
        ),
    ];
    parts
        .into_iter()
        .find_map(|(part, is_same)| (!is_same).then_some(part))
}

fn sent_as(key: &Key) -> Option<Message> {
    let all = messages(number_of(key)?, &handlers().ok()?).ok()?;
    all.into_iter().find(|message| message.key() == key)
}

/// The number of a key that [`messages`] made.
pub(crate) fn number_of(key: &Key) -> Option<u64> {
    key.id.as_str().strip_prefix('m')?.parse().ok()
}

pub(super) async fn run(
    worker: &Worker,
    mut random: fastrand::Rng,
    first: u64,
) -> Result<(), BoxError> {
    let handlers = handlers()?;
    let largest = u64::from(worker.batch);
    let mut next = first;
    while !worker.finishing() {
        let size = if random.u8(..4) == 0 {
            1
        } else {
            random.u64(2..=largest)
        };
        let hold = worker.holding();
        let lowest = worker.lowest();
        next = next.max(lowest);
        let start = if hold || random.u8(..3) == 0 {
            next.saturating_sub(random.u64(1..=4 * largest)).max(lowest)
        } else {
            next
        };
        let end = if hold {
            (start + size).min(next)
        } else {
            start + size
        };
        let mut batch = Vec::new();
        for number in start..end {
            batch.extend(messages(number, &handlers)?);
        }
        if batch.is_empty() {
            // There is nothing new to be sent, and what is old may be purged soon.
            tokio::time::sleep(Duration::from_millis(40)).await;
            continue;
        }
        if size <= INLINE && random.bool() {
            for message in &batch {
                inline(worker, &mut random, message).await?;
            }
            next = next.max(end);
            continue;
        }
        // A copy within the batch.
        if random.u8(..4) == 0 {
            batch.extend(batch.first().cloned());
        }
        worker.pass(Point::BeforeReceive)?;
        match receive(worker, &batch, random.u8(..4) == 0).await? {
            Ok(_) => next = next.max(end),
            // Unknown: sending it again is what a broker does.
            Err(error) => pause_after(&error).await,
        }
        let pause = if hold { 40 } else { random.u64(..12) };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    Ok(())
}

/// Begins the message, and handles it if it may run. Otherwise another delivery will come, or a processor claims it.
async fn inline(
    worker: &Worker,
    random: &mut fastrand::Rng,
    message: &Message,
) -> Result<(), BoxError> {
    let length = Duration::from_millis(random.u64(LEASES));
    let name = worker_name()?;
    let terms = LeaseTerms::new(length, name)?;
    let asked = Asked::Begin {
        message: sent(message),
        length: process::micros(length),
    };
    let points = [Point::DuringBegin, Point::AfterBegin];
    let begin = worker.opened.inbox.begin(message, &terms);
    match worker.call(asked, points, begin, Answered::begun).await? {
        Ok(Begun::Run(leased)) => process::work(worker, random, vec![*leased], length).await,
        Ok(_) => Ok(()),
        Err(error) => {
            pause_after(&error).await;
            Ok(())
        }
    }
}

async fn receive(
    worker: &Worker,
    batch: &[Message],
    in_transaction: bool,
) -> io::Result<StoreResult<Vec<Receipt>>> {
    let transactions = worker
        .opened
        .transactions
        .as_ref()
        .filter(|_| in_transaction && worker.mode == Mode::Transactional);
    let asked = Asked::Receive {
        messages: batch.iter().map(sent).collect(),
        transaction: transactions.is_some(),
    };
    let call = async {
        let Some(transactions) = transactions else {
            return worker.opened.inbox.receive(batch).await;
        };
        let mut transaction = transactions.open().await?;
        let receipts = transaction.receive(batch).await?;
        transaction.commit().await?;
        Ok(receipts)
    };
    let points = [Point::DuringReceive, Point::AfterReceive];
    worker
        .call(asked, points, call, |receipts| Answered::receipts(receipts))
        .await
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
        assert_eq!(altered(&other), Some("its payload"));
        let nobody = HandlerName::new("nobody").unwrap();
        assert_eq!(altered(&other.for_handler(nobody)), None);
    }
}
