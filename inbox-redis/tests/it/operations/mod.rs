//! What is particular to Redis, a subject in each file, and what they share.

mod history;
mod looking;
mod permissions;
mod servers;
mod set_up;
mod settling;
mod shards;

use std::time::{Duration, Instant};

use inbox_api::{
    AfterDead, Begun, Bytes, ClaimRequest, Due, Edit, Effect, ErrorKind, Extended, Filter,
    HandlerName, Intervention, Key, Kind, LeaseTerms, Leased, Message, MessageId, Operate,
    OrderingKey, Outcome, Page, PurgeRequest, Receipt, Record, Schema, Settled, Settlement, State,
    Store, StoreExt, WorkerName,
};
use inbox_redis::{
    Command, Confirmations, RedisOptions, RedisStore, StartChecks, conformance::contradictions,
};
use redis::Value;
use test_servers::{Kind as Server, find_own, or_skip};

use crate::common::{self, Raw, options, store, url};

const LENGTH: Duration = Duration::from_secs(30);

fn handler() -> HandlerName {
    HandlerName::new("billing").unwrap()
}

fn message(id: &str) -> Message {
    Message::new(
        handler(),
        MessageId::new(id).unwrap(),
        Kind::new("k").unwrap(),
        format!("payload of {id}"),
    )
}

fn ordered(id: &str, key: &str) -> Message {
    message(id).with_ordering_key(OrderingKey::new(key).unwrap())
}

fn key(id: &str) -> Key {
    Key::new(handler(), MessageId::new(id).unwrap())
}

fn terms() -> LeaseTerms {
    LeaseTerms::new(LENGTH, WorkerName::new("worker-1").unwrap()).unwrap()
}

async fn claim(store: &RedisStore, limit: u32) -> Vec<Leased> {
    let request = ClaimRequest {
        handlers: vec![handler()],
        limit,
        terms: terms(),
        run_limit: 1,
    };
    store.claim(&request).await.unwrap().leased
}

fn processed() -> Outcome {
    Outcome::Processed { result: None }
}

async fn settle_all(store: &RedisStore, leased: Vec<Leased>) {
    let settlements: Vec<Settlement> = leased
        .into_iter()
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: processed(),
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert!(settled.iter().all(|one| *one == Settled::Done));
}

/// Options on the shared server, or nothing where there is none.
fn shared(shards: u16) -> Option<RedisOptions> {
    Some(options(&url(&common::SERVER)?, false, shards))
}

async fn raw() -> Raw {
    Raw::connect(&url(&common::SERVER).unwrap(), false)
        .await
        .unwrap()
}

/// A server of this test's own, with these arguments.
async fn own(arguments: &'static [&'static str]) -> Option<test_servers::Server> {
    let found = tokio::task::spawn_blocking(|| find_own(Server::Redis, arguments));
    or_skip(Server::Redis, found.await.unwrap()).unwrap()
}
