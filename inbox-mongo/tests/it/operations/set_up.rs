//! The schema as text, set up, removed, and left half done.

use super::*;

use crate::common;

fn commands(ddl: &str) -> Vec<Document> {
    ddl.split("db.runCommand(")
        .skip(1)
        .map(|command| {
            let json = command.trim().strip_suffix(");").unwrap();
            serde_json::from_str(json).unwrap()
        })
        .collect()
}

#[tokio::test]
async fn the_ddl_sets_up_what_create_does() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.connect().await.unwrap();
    let ddl = store.ddl();
    let database = format!("db = db.getSiblingDB(\"{}\");", place.database);
    assert!(ddl.contains(&database), "{ddl}");
    let commands = commands(&ddl);
    assert_eq!(commands.len(), 5);
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

/// How many documents each of the commands finds that show whether there is an inbox.
async fn found_by_exists_query(place: &TestInbox, store: &MongoStore) -> Vec<usize> {
    let mut found = Vec::new();
    for command in commands(&store.exists_query()) {
        let reply = place.run(command).await;
        let first = reply.as_ref().ok().map(|reply| {
            let cursor = reply.get_document("cursor").unwrap();
            cursor.get_array("firstBatch").unwrap().len()
        });
        found.push(first.unwrap_or(0));
    }
    found
}

#[tokio::test]
async fn the_exists_query_finds_what_exists_does() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.connect().await.unwrap();
    assert_eq!(found_by_exists_query(&place, &store).await, [0, 0, 0, 0]);
    store.create().await.unwrap();
    // Six indexes, and that of `_id`.
    assert_eq!(found_by_exists_query(&place, &store).await, [1, 2, 1, 7]);
}

#[tokio::test]
async fn an_inbox_is_removed_and_nothing_else() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store.receive_one(&message("a")).await.unwrap();
    let insert = |collection: &str| doc! { "insert": collection, "documents": [{ "_id": 1 }] };
    place.run(insert("inbox_message_old")).await.unwrap();
    let other = place.connect().await.unwrap();
    assert_eq!(claim_ids(&other).await, ["a"]);
    store.remove().await.unwrap();
    let left = place.raw().await.list_collection_names().await.unwrap();
    assert_eq!(left, ["inbox_message_old"]);
    // Also those who have looked before.
    let claimed = other.claim_for(&handler(), 1, LEASE, &worker()).await;
    assert_eq!(claimed.unwrap_err().kind(), ErrorKind::SchemaMissing);
    let received = other.receive_one(&message("b")).await;
    assert_eq!(received.unwrap_err().kind(), ErrorKind::SchemaMissing);
    store.remove().await.unwrap();
    store.create().await.unwrap();
    assert_eq!(
        other.receive_one(&message("a")).await.unwrap(),
        Receipt::Accepted
    );
}

/// As a removal leaves it that broke off after its first collection.
#[tokio::test]
async fn a_removal_that_broke_off_is_completed() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let raw = place.raw().await;
    raw.collection::<Document>("inbox_message")
        .drop()
        .await
        .unwrap();
    store.remove().await.unwrap();
    assert_eq!(store.version().await.unwrap(), None);
    // What is another's is left alone.
    let insert = doc! { "insert": "inbox_message", "documents": [{ "_id": "x" }] };
    place.run(insert).await.unwrap();
    let error = store.remove().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion);
}

/// A server makes a collection by itself for what a worker inserts that had drawn its numbers before.
#[tokio::test]
async fn what_workers_leave_behind_of_a_removed_inbox_is_removed() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store.receive_one(&message("a")).await.unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    let late = messages.find_one(doc! {}).await.unwrap().unwrap();
    store.remove().await.unwrap();
    let segment = doc! { "_id": 0_i64, "openUntil": 5_i64 };
    let late = [("inbox_message", late), ("inbox_meta", segment)];
    for left in [&late[..1], &late[1..], &late[..]] {
        for (collection, document) in left {
            let insert = doc! { "insert": *collection, "documents": [document.clone()] };
            place.run(insert).await.unwrap();
        }
        let error = store.create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaVersion);
        assert!(error.to_string().contains("remove does"), "{error}");
        store.remove().await.unwrap();
        assert_eq!(
            raw.list_collection_names().await.unwrap(),
            Vec::<String>::new()
        );
    }
    // A message that was worked on is none of these: it may be what is left of an inbox that is needed.
    let mut worked_on = late[0].1.clone();
    worked_on.insert("token", 1_i64);
    let insert = doc! { "insert": "inbox_message", "documents": [worked_on] };
    place.run(insert).await.unwrap();
    let error = store.remove().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion);
    assert_eq!(messages.count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test]
async fn a_ddl_that_broke_off_is_completed() {
    let Some(url) = common::shared_url() else {
        return;
    };
    for done in 1..5 {
        let place = TestInbox::at(url.clone());
        let store = place.connect().await.unwrap();
        for command in commands(&store.ddl()).into_iter().take(done) {
            place.run(command).await.unwrap();
        }
        assert!(!store.exists().await.unwrap());
        let error = store.statistics().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaVersion);
        assert!(error.to_string().contains("create or migrate"), "{error}");
        store.create().await.unwrap();
        assert!(store.exists().await.unwrap(), "after {done}");
        let _ = store.receive_one(&message("a")).await.unwrap();
    }
}

#[tokio::test]
async fn an_index_with_other_options_is_noticed() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    assert!(store.exists().await.unwrap());
    // FerretDB's answer to this is not one that the driver takes.
    let _ = place
        .run(doc! { "dropIndexes": "inbox_message", "index": "claim" })
        .await;
    assert!(!store.exists().await.unwrap());
    let claim = store.claim_for(&handler(), 10, LEASE, &worker()).await;
    let error = claim.unwrap_err();
    assert!(error.to_string().contains("migrate"), "{error}");
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
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.connect().await.unwrap();
    place
        .run(doc! { "insert": "inbox_meta", "documents": [{
            "_id": "schema", "marker": "inbox.mongo", "version": 1, "worksFrom": 1, "complete": false,
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

#[tokio::test]
async fn one_process_at_a_time_sets_up() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.connect().await.unwrap();
    // As a process leaves it that was killed in the middle, with two seconds left of its lock.
    place
        .run(doc! { "insert": "inbox_meta", "documents": [{
            "_id": "schema", "marker": "inbox.mongo", "version": 1, "worksFrom": 1, "complete": false,
        }] })
        .await
        .unwrap();
    let until = doc! { "$add": [
        { "$multiply": [{ "$toLong": "$$NOW" }, 1000_i64] }, 2_000_000_i64,
    ] };
    let started = std::time::Instant::now();
    place
        .run(doc! { "update": "inbox_meta", "updates": [{
            "q": { "_id": "schema" },
            "u": [{ "$set": { "lock": { "by": ObjectId::new(), "until": until } } }],
        }] })
        .await
        .unwrap();
    let migrations = [store.clone(), store.clone(), store.clone()]
        .map(|store| tokio::spawn(async move { store.migrate().await.unwrap().from }));
    let mut did = 0;
    for migration in migrations {
        did += u32::from(migration.await.unwrap().is_none());
    }
    assert_eq!(did, 1);
    assert!(started.elapsed() > Duration::from_millis(1500));
    assert!(store.exists().await.unwrap());
    let meta = place.raw().await.collection::<Document>("inbox_meta");
    let mark = meta.find_one(doc! { "_id": "schema" }).await.unwrap();
    assert!(!mark.unwrap().contains_key("lock"));
}

/// Others wait for a process that sets up, and have time left when it has died.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_up_is_taken_over_from_a_process_that_died() {
    let Some(url) = common::shared_url() else {
        return;
    };
    let mut set_ups = tokio::task::JoinSet::new();
    let mut broken_off = 0;
    for patience in [5, 10, 15, 20, 30, 40, 60, 80] {
        let mut place = TestInbox::at(url.clone());
        place.options = place.options.operation_timeout(Duration::from_secs(6));
        let store = place.connect().await.unwrap();
        let options = place.options.clone();
        // A runtime that ends takes its tasks with it, as a process does.
        let ended = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let dying = MongoStore::connect(options).await.unwrap();
                let limit = Duration::from_millis(patience);
                tokio::time::timeout(limit, dying.create()).await.is_ok()
            })
        });
        let ended = tokio::task::spawn_blocking(|| ended.join().unwrap());
        broken_off += usize::from(!ended.await.unwrap());
        set_ups.spawn(async move {
            store.create().await.unwrap();
            assert!(store.exists().await.unwrap(), "after {patience} ms");
            place
        });
    }
    assert!(broken_off > 0, "every set-up had ended");
    set_ups.join_all().await;
}
