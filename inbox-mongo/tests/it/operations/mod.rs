//! What the conformance suite does not look at: the schema as text, errors of the server, TTL,
//! what is left behind by a crash between two documents, and what a standalone server lacks.

mod connecting;
mod counts;
mod left_behind;
mod roles;
mod set_up;

use std::time::Duration;

use inbox_api::{
    Edit, ErrorKind, Intervention, Operate as _, OrderingKey, Outcome, PurgeRequest, Receipt,
    Schema as _, State, Store as _, StoreExt as _, Transactional as _,
};
use inbox_mongo::{
    MongoOptions, MongoStore,
    mongodb::bson::{Document, doc, oid::ObjectId},
};

use crate::common::{self, TestInbox, handler, message, worker};

const LEASE: Duration = Duration::from_secs(60);

fn in_order(id: &str) -> inbox_api::Message {
    message(id).with_ordering_key(OrderingKey::new("customer-1").unwrap())
}

async fn claim_ids(store: &MongoStore) -> Vec<String> {
    let claims = store
        .claim_for(&handler(), 10, LEASE, &worker())
        .await
        .unwrap();
    let ids = claims.leased.iter();
    ids.map(|leased| leased.message.id().to_string()).collect()
}

#[tokio::test]
async fn a_payload_over_the_limit_is_refused_with_the_limit() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let limit = store.capabilities().payload_limit;
    assert_eq!(limit, 15 * 512 * 1024);
    let large = |id: &str, size: usize| {
        inbox_api::Message::new(
            handler(),
            inbox_api::MessageId::new(id).unwrap(),
            inbox_api::Kind::new("order.placed").unwrap(),
            vec![7; size],
        )
    };
    let receipts = store
        .receive(&[large("a", limit + 1), large("b", limit), message("c")])
        .await
        .unwrap();
    let Receipt::Refused(refused) = &receipts[0] else {
        panic!("{receipts:?}");
    };
    assert!(
        refused.to_string().contains(&limit.to_string()),
        "{refused}"
    );
    assert_eq!(receipts[1..], [Receipt::Accepted, Receipt::Accepted]);
    let record = store.get(large("b", 0).key()).await.unwrap().unwrap();
    assert_eq!(record.payload.unwrap().len(), limit);
}

#[tokio::test]
async fn purging_a_blocking_message_lets_the_next_one_through() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store
        .receive(&[in_order("a"), in_order("b")])
        .await
        .unwrap();
    let claims = store
        .claim_for(&handler(), 1, LEASE, &worker())
        .await
        .unwrap();
    let dead = Outcome::Dead {
        reason: "no".into(),
        after: inbox_api::AfterDead::Block,
    };
    let _ = store
        .settle_one(&claims.leased[0].lease, dead)
        .await
        .unwrap();
    assert_eq!(claim_ids(&store).await, Vec::<String>::new());
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    assert_eq!(claim_ids(&store).await, ["b"]);
}

/// One that was set aside because its payload is gone says how long that was.
#[tokio::test]
async fn a_message_whose_payload_is_gone_is_not_replayed_as_it_is() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store.receive_one(&message("a")).await.unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages
        .update_one(doc! { "id": "a" }, doc! { "$unset": { "payload": "" } })
        .await
        .unwrap();
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    assert_eq!(claims.unwrap().corrupt.len(), 1);
    let record = store.get(message("a").key()).await.unwrap().unwrap();
    assert_eq!(record.state, State::Dead);
    assert!(record.payload_bytes.is_some());
    let replayed = store.replay(message("a").key(), &Edit::default()).await;
    assert_eq!(replayed.unwrap(), Intervention::PayloadDropped);
    let edit = Edit {
        payload: Some("another".into()),
        ..Edit::default()
    };
    let replayed = store.replay(message("a").key(), &edit).await;
    assert_eq!(replayed.unwrap(), Intervention::Done);
    assert_eq!(claim_ids(&store).await, ["a"]);
}

#[tokio::test]
async fn processed_messages_get_the_date_of_their_expiry() {
    let Some(mut place) = TestInbox::shared() else {
        return;
    };
    let week = Duration::from_secs(7 * 24 * 3600);
    place.options = place.options.expire_processed_after(Some(week));
    let store = place.store().await;
    let _ = store.receive_one(&message("a")).await.unwrap();
    let claims = store
        .claim_for(&handler(), 1, LEASE, &worker())
        .await
        .unwrap();
    let lease = &claims.leased[0].lease;
    let _ = store
        .settle_one(lease, Outcome::Processed { result: None })
        .await
        .unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    let stored = messages.find_one(doc! {}).await.unwrap().unwrap();
    let expiry = stored.get_datetime("expireAt").unwrap().timestamp_millis();
    let finished = stored.get_i64("finishedAt").unwrap() / 1000;
    assert_eq!(expiry - finished, i64::try_from(week.as_millis()).unwrap());
    // A replayed message does not expire.
    let replayed = store
        .replay(message("a").key(), &Edit::default())
        .await
        .unwrap();
    assert_eq!(replayed, Intervention::Done);
    let stored = messages.find_one(doc! {}).await.unwrap().unwrap();
    assert!(!stored.contains_key("expireAt"));
}

#[tokio::test]
async fn a_standalone_server_is_refused_for_transactions() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    if common::replicates(&place.url).await {
        assert!(store.capabilities().transactions);
        return;
    }
    assert!(!store.capabilities().transactions);
    let error = store.open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("replica set"), "{error}");
}

#[tokio::test]
async fn a_text_that_looks_like_a_field_is_kept_as_it_is() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store.receive_one(&message("$id")).await.unwrap();
    let claims = store
        .claim_for(
            &handler(),
            1,
            LEASE,
            &inbox_api::WorkerName::new("$seq").unwrap(),
        )
        .await
        .unwrap();
    let retry = Outcome::Retry {
        after: Duration::ZERO,
        error: "$payload".into(),
    };
    let _ = store
        .settle_one(&claims.leased[0].lease, retry)
        .await
        .unwrap();
    let record = store.get(message("$id").key()).await.unwrap().unwrap();
    assert_eq!(record.last_error.as_deref(), Some("$payload"));
    assert_eq!(record.worker.unwrap().as_str(), "$seq");
    let [past] = record.history.as_slice() else {
        panic!("{:?}", record.history);
    };
    assert_eq!(
        (past.worker.as_str(), past.error.as_str()),
        ("$seq", "$payload")
    );
}
