//! Messages and what is done with them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use inbox_api::{
    ClaimRequest, HandlerName, Key, Kind, LeaseTerms, Leased, Message, MessageId, OrderingKey,
    Outcome, Store as _, WorkerName,
};
use inbox_redis::RedisStore;

pub const LENGTH: Duration = Duration::from_secs(60);

pub fn handler() -> HandlerName {
    HandlerName::new("billing").unwrap()
}

pub fn message(id: &str) -> Message {
    Message::new(
        handler(),
        MessageId::new(id).unwrap(),
        Kind::new("k").unwrap(),
        format!("payload of {id}"),
    )
}

pub fn ordered(id: &str, key: &str) -> Message {
    message(id).with_ordering_key(OrderingKey::new(key).unwrap())
}

pub fn key(id: &str) -> Key {
    message(id).key().clone()
}

pub fn terms() -> LeaseTerms {
    LeaseTerms::new(LENGTH, WorkerName::new("w").unwrap()).unwrap()
}

pub async fn claim(store: &RedisStore, limit: u32) -> inbox_api::Result<Vec<Leased>> {
    claim_up_to(store, limit, 1).await
}

/// With runs of any length.
pub async fn claim_runs(store: &RedisStore, limit: u32) -> inbox_api::Result<Vec<Leased>> {
    claim_up_to(store, limit, limit).await
}

async fn claim_up_to(
    store: &RedisStore,
    limit: u32,
    run_limit: u32,
) -> inbox_api::Result<Vec<Leased>> {
    let request = ClaimRequest {
        handlers: vec![handler()],
        limit,
        terms: terms(),
        run_limit,
    };
    let claims = store.claim(&request).await?;
    assert!(claims.corrupt.is_empty(), "{:?}", claims.corrupt);
    Ok(claims.leased)
}

pub fn processed() -> Outcome {
    Outcome::Processed { result: None }
}
