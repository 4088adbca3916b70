//! Senders for tests in which a cluster changes under load.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use inbox_api::{HandlerName, Kind, Message, MessageId, OrderingKey, Store as _};
use inbox_redis::RedisStore;

/// One message in three has an ordering key.
pub fn message(handler: &HandlerName, id: u64) -> Message {
    let message = Message::new(
        handler.clone(),
        MessageId::new(id.to_string()).unwrap(),
        Kind::new("k").unwrap(),
        format!("payload {id}"),
    );
    match id % 3 {
        0 => message.with_ordering_key(OrderingKey::new(format!("key {}", id % 50)).unwrap()),
        _ => message,
    }
}

/// Sends batches until told to stop; counts and answers the messages that were acknowledged.
pub async fn send(
    store: RedisStore,
    handler: HandlerName,
    first: u64,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) -> Vec<u64> {
    let (mut acknowledged, mut number) = (Vec::new(), first);
    while !stop.load(Ordering::Relaxed) {
        let ids: Vec<u64> = (number..number + 10).collect();
        let batch: Vec<Message> = ids.iter().map(|id| message(&handler, *id)).collect();
        match store.receive(&batch).await {
            Ok(receipts) => {
                assert_eq!(receipts.len(), batch.len());
                count.fetch_add(ids.len(), Ordering::Relaxed);
                acknowledged.extend(ids);
                number += 10;
            }
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    acknowledged
}
