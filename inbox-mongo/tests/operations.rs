//! What the conformance suite does not look at: the schema as text, errors of the server, TTL,
//! what is left behind by a crash between two documents, and what a standalone server lacks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

mod common;

use std::time::Duration;

use common::{Place, handler, message, worker};
use inbox_api::{
    ErrorKind, Expired, Operate as _, OrderingKey, Outcome, Receipt, Schema as _, State,
    Store as _, StoreExt as _, Transactional as _,
};
use inbox_mongo::{
    MongoOptions, MongoStore,
    mongodb::bson::{Document, doc, oid::ObjectId},
};

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
async fn the_ddl_sets_up_what_create_does() {
    let Some(place) = Place::shared() else { return };
    let store = place.connect().await.unwrap();
    let ddl = store.ddl();
    let commands: Vec<Document> = ddl
        .split("db.runCommand(")
        .skip(1)
        .map(|command| {
            let json = command.trim().strip_suffix(");").unwrap();
            serde_json::from_str(json).unwrap()
        })
        .collect();
    assert_eq!(commands.len(), 4);
    for command in commands {
        place.run(command).await.unwrap();
    }
    assert!(store.exists().await.unwrap());
    assert_eq!(
        store.receive_one(&message("a")).await.unwrap(),
        Receipt::Accepted
    );
    assert_eq!(claim_ids(&store).await, ["a"]);
}

#[tokio::test]
async fn an_index_with_other_options_is_noticed() {
    let Some(place) = Place::shared() else { return };
    let store = place.store().await;
    assert!(store.exists().await.unwrap());
    // FerretDB's answer to this is not one that the driver takes.
    let _ = place
        .run(doc! { "dropIndexes": "inbox_message", "index": "claim" })
        .await;
    assert!(!store.exists().await.unwrap());
    place
        .run(doc! { "createIndexes": "inbox_message", "indexes": [
            { "name": "claim", "key": { "handler": 1, "visibleAt": 1, "seq": 1 } },
        ] })
        .await
        .unwrap();
    assert!(!store.exists().await.unwrap());
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion);
    assert!(error.to_string().contains("the index claim"), "{error}");
}

#[tokio::test]
async fn a_set_up_that_broke_off_is_completed() {
    let Some(place) = Place::shared() else { return };
    let store = place.connect().await.unwrap();
    place
        .run(doc! { "insert": "inbox_meta", "documents": [{
            "_id": "schema", "marker": "inbox.mongo", "version": 1, "complete": false,
        }] })
        .await
        .unwrap();
    assert!(!store.exists().await.unwrap());
    let error = store.receive_one(&message("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion);
    store.create().await.unwrap();
    assert!(store.exists().await.unwrap());
    assert_eq!(
        store.receive_one(&message("a")).await.unwrap(),
        Receipt::Accepted
    );
}

/// As a worker leaves it that is killed after its settlement, before the next message of the
/// ordering key was let through.
#[tokio::test]
async fn claims_find_what_a_crash_left_marked() {
    let Some(place) = Place::shared() else { return };
    let store = place.store().await;
    for id in ["a", "b"] {
        let _ = store.receive_one(&in_order(id)).await.unwrap();
    }
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages
        .update_one(
            doc! { "id": "a" },
            doc! { "$set": {
                "state": 2, "finishedAt": 1_i64, "visibleAt": 1_i64, "lane": 2,
                "mark": ObjectId::new(),
            }, "$unset": { "open": "" } },
        )
        .await
        .unwrap();
    assert_eq!(claim_ids(&store).await, ["b"]);
    let done = messages.find_one(doc! { "id": "a" }).await.unwrap();
    assert!(!done.unwrap().contains_key("lane"));
}

/// As a receiver leaves it that is killed between the two.
#[tokio::test]
async fn a_message_that_was_only_marked_is_handed_out_in_order() {
    let Some(place) = Place::shared() else { return };
    let store = place.store().await;
    let _ = store
        .receive(&[in_order("a"), in_order("b")])
        .await
        .unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages
        .update_many(
            doc! {},
            doc! { "$set": { "lane": 2, "mark": ObjectId::new() } },
        )
        .await
        .unwrap();
    assert_eq!(claim_ids(&store).await, ["a"]);
    assert_eq!(claim_ids(&store).await, Vec::<String>::new());
}

/// Two looks at the same time may let two messages through; the second is handed back.
#[tokio::test]
async fn only_the_first_of_an_ordering_key_is_kept() {
    let Some(place) = Place::shared() else { return };
    let store = place.store().await;
    let _ = store
        .receive(&[in_order("a"), in_order("b"), message("c")])
        .await
        .unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    let both_in_front = || async {
        messages
            .update_one(doc! { "id": "b" }, doc! { "$set": { "lane": 1 } })
            .await
            .unwrap();
    };
    both_in_front().await;
    let mut ids = claim_ids(&store).await;
    ids.sort();
    assert_eq!(ids, ["a", "c"]);
    // While the first is leased, too.
    both_in_front().await;
    assert_eq!(claim_ids(&store).await, Vec::<String>::new());
    let begun = {
        both_in_front().await;
        let terms = inbox_api::LeaseTerms::new(LEASE, worker()).unwrap();
        store.begin(&in_order("b"), &terms).await.unwrap()
    };
    assert_eq!(begun, inbox_api::Begun::Blocked);
    let record = store.get(in_order("b").key()).await.unwrap().unwrap();
    assert_eq!(record.state, State::Pending);
    assert_eq!(record.attempts.started, 0);
}

#[tokio::test]
async fn purging_a_blocking_message_lets_the_next_one_through() {
    let Some(place) = Place::shared() else { return };
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
    let expired = Expired::new(State::Dead, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    assert_eq!(claim_ids(&store).await, ["b"]);
}

#[tokio::test]
async fn processed_messages_get_the_date_of_their_expiry() {
    let Some(mut place) = Place::shared() else {
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
    let replayed = store.replay(message("a").key(), None).await.unwrap();
    assert_eq!(replayed, inbox_api::Intervention::Done);
    let stored = messages.find_one(doc! {}).await.unwrap().unwrap();
    assert!(!stored.contains_key("expireAt"));
}

#[tokio::test]
async fn a_standalone_server_is_refused_for_transactions() {
    let Some(place) = Place::shared() else { return };
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
async fn nobody_there_is_unavailable() {
    let url = "mongodb://app:secret@127.0.0.1:9/?serverSelectionTimeoutMS=200";
    let error = MongoStore::connect_url(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!format!("{error:?}").contains("secret"));
    let options = MongoOptions::from_url("mongodb://localhost/shop?inbox=orders");
    assert!(options.is_ok());
}

#[tokio::test]
async fn a_text_that_looks_like_a_field_is_kept_as_it_is() {
    let Some(place) = Place::shared() else { return };
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
}

/// Roles exist only where there are users.
#[tokio::test]
async fn the_documented_role_is_enough() {
    let Some(place) = Place::shared() else { return };
    let created = place
        .run(doc! {
            "createRole": "inboxWorker",
            "privileges": [
                {
                    "resource": { "db": &place.database, "collection": "inbox_message" },
                    "actions": ["find", "insert", "update", "remove"],
                },
                {
                    "resource": { "db": &place.database, "collection": "inbox_meta" },
                    "actions": ["find", "update"],
                },
            ],
            "roles": [],
        })
        .await;
    if created.is_err() {
        println!("NOT CHECKED: this server has no roles");
        return;
    }
    let user = doc! {
        "createUser": "worker", "pwd": "worker", "roles": ["inboxWorker"],
    };
    place.run(user).await.unwrap();
    let owner = place.store().await;
    let url = place.url.replacen("://", "://worker:worker@", 1);
    let url = format!("{url}{}?authSource={}", place.database, place.database);
    let store = MongoStore::connect_url(&url).await.unwrap();
    let _ = store.receive_one(&message("a")).await.unwrap();
    assert_eq!(claim_ids(&store).await, ["a"]);
    let _ = owner.statistics().await.unwrap();
}
