//! Messages in a sharded collection, through a `mongos`. Not run where there is none.

use std::time::Duration;

use inbox_api::{
    Effect, ErrorKind, Message, OrderingKey, Outcome, Receipt, Schema as _, Settled, Settlement,
    Store as _, StoreExt as _, Transactional as _,
};
use inbox_mongo::{MongoStore, mongodb::bson::doc};
use test_servers::{Kind, find_own, or_skip};

use crate::common::{self, TestInbox, handler, message, worker};

const LEASE: Duration = Duration::from_secs(60);

fn in_order(id: &str) -> Message {
    message(id).with_ordering_key(OrderingKey::new("customer-1").unwrap())
}

/// Claims two messages of one ordering key one after the other: the first is settled by itself, the
/// second in a transaction.
async fn works_in_order(store: &MongoStore) {
    for id in ["a", "b"] {
        let received = store.receive_one(&in_order(id)).await.unwrap();
        assert_eq!(received, Receipt::Accepted);
    }
    for (id, in_transaction) in [("a", false), ("b", true)] {
        let claims = store.claim_for(&handler(), 10, LEASE, &worker()).await;
        let leased = claims.unwrap().leased;
        let ids = leased.iter().map(|leased| leased.message.id().as_str());
        assert_eq!(ids.collect::<Vec<_>>(), [id]);
        let settlement = Settlement {
            lease: leased[0].lease.clone(),
            outcome: Outcome::Processed { result: None },
        };
        if in_transaction {
            let mut transaction = store.open_for(&[leased[0].lease.clone()]).await.unwrap();
            let settled = store.settle_in(&mut transaction, &[settlement]).await;
            assert_eq!(settled.unwrap(), [Settled::Done]);
            store.commit(transaction).await.unwrap();
        } else {
            let outcome = settlement.outcome;
            let settled = store.settle_one(&leased[0].lease, outcome).await;
            assert_eq!(settled.unwrap(), Settled::Done);
        }
    }
}

/// The first operation says so, before it has stored anything. What is not sharded works on every
/// cluster.
#[tokio::test]
async fn sharded_messages_need_a_server_that_looks_them_up() {
    let found = or_skip(Kind::MongodbSharded, find_own(Kind::MongodbSharded, &[]));
    let Some(server) = found.unwrap() else {
        return;
    };
    works_in_order(&*TestInbox::at(server.url().to_owned()).store().await).await;

    let place = TestInbox::at(server.url().to_owned());
    place.store().await.close().await;
    let admin = common::client(&place.url).await.database("admin");
    let build = admin.run_command(doc! { "buildInfo": 1 }).await.unwrap();
    let version = build.get_array("versionArray").unwrap();
    let part = |n: usize| version[n].as_i32().unwrap();
    for command in [
        doc! { "enableSharding": &place.database },
        doc! {
            "shardCollection": format!("{}.inbox_message", place.database),
            "key": { "handler": 1, "_id": 1 },
        },
    ] {
        admin.run_command(command).await.unwrap();
    }
    let store = place.connect().await.unwrap();
    if (part(0), part(1)) >= (5, 1) {
        works_in_order(&store).await;
        return;
    }
    assert!(store.exists().await.unwrap());
    for refused in [
        store.receive_one(&in_order("a")).await.map(drop),
        store.receive_one(&message("b")).await.map(drop),
        store
            .claim_for(&handler(), 10, LEASE, &worker())
            .await
            .map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(error.effect(), Effect::None, "{error}");
        assert!(error.to_string().contains("5.1"), "{error}");
    }
    let stored = place
        .raw()
        .await
        .collection::<inbox_mongo::mongodb::bson::Document>("inbox_message");
    assert_eq!(stored.count_documents(doc! {}).await.unwrap(), 0);
}
