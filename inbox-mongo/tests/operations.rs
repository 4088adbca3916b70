//! What the conformance suite does not look at: the schema as text, errors of the server, TTL,
//! what is left behind by a crash between two documents, and what a standalone server lacks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

mod common;

use std::time::Duration;

use common::{TestInbox, handler, message, worker};
use inbox_api::{
    ErrorKind, Operate as _, OrderingKey, Outcome, PurgeRequest, Receipt, Schema as _, State,
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

#[tokio::test]
async fn one_process_at_a_time_sets_up() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.connect().await.unwrap();
    // As a process leaves it that was killed in the middle, with two seconds left of its lock.
    place
        .run(doc! { "insert": "inbox_meta", "documents": [{
            "_id": "schema", "marker": "inbox.mongo", "version": 1, "complete": false,
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

/// Counts of a handler: pending, leased, processed.
async fn counts(store: &MongoStore) -> (u64, u64, u64) {
    let statistics = store.statistics().await.unwrap();
    let of = &statistics.handlers[0];
    (of.pending, of.leased, of.processed)
}

#[tokio::test]
async fn counts_of_closed_segments_are_kept_until_something_changes_there() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let old: Vec<_> = ["a", "b", "c"].map(message).into();
    let _ = store.receive(&old).await.unwrap();
    let meta = place.raw().await.collection::<Document>("inbox_meta");
    // As if twenty thousand numbers had been drawn since.
    meta.update_one(
        doc! { "_id": "sequence" },
        doc! { "$set": { "last": 20_100_i64 } },
    )
    .await
    .unwrap();
    let _ = store.receive_one(&message("d")).await.unwrap();
    let kept = || async { meta.find_one(doc! { "_id": 0_i64 }).await.unwrap().unwrap() };
    assert_eq!(counts(&store).await, (4, 0, 0));
    assert!(!kept().await.contains_key("counts"));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (4, 0, 0));
    assert_eq!(kept().await.get_array("counts").unwrap().len(), 1);
    // They are what is answered.
    meta.update_one(
        doc! { "_id": 0_i64 },
        doc! { "$set": { "counts.0.count": 41_i64 } },
    )
    .await
    .unwrap();
    assert_eq!(counts(&store).await, (42, 0, 0));
    // Until something changes: by this process, or by another one that knows nothing of it.
    let claims = store
        .claim_for(&handler(), 1, Duration::from_secs(3600), &worker())
        .await
        .unwrap();
    assert!(!kept().await.contains_key("counts"));
    assert_eq!(counts(&store).await, (3, 1, 0));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (3, 1, 0));
    assert!(kept().await.contains_key("counts"));
    let other = place.connect().await.unwrap();
    let lease = &claims.leased[0].lease;
    let _ = other
        .settle_one(lease, Outcome::Processed { result: None })
        .await
        .unwrap();
    assert_eq!(counts(&store).await, (3, 0, 1));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (3, 0, 1));
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    assert_eq!(counts(&store).await, (3, 0, 0));
}

#[tokio::test]
async fn counts_are_not_kept_beyond_an_expiry() {
    let Some(mut place) = TestInbox::shared() else {
        return;
    };
    let day = Duration::from_secs(24 * 3600);
    place.options = place.options.expire_processed_after(Some(day));
    let store = place.store().await;
    let _ = store.receive(&["a", "b"].map(message)).await.unwrap();
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    let lease = claims.unwrap().leased.remove(0).lease;
    let _ = store
        .settle_one(&lease, Outcome::Processed { result: None })
        .await
        .unwrap();
    let raw = place.raw().await;
    let meta = raw.collection::<Document>("inbox_meta");
    meta.update_one(
        doc! { "_id": "sequence" },
        doc! { "$set": { "last": 10_000_i64 } },
    )
    .await
    .unwrap();
    assert_eq!(counts(&store).await, (1, 0, 1));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (1, 0, 1));
    let kept = meta.find_one(doc! { "_id": 0_i64 }).await.unwrap().unwrap();
    assert!(kept.contains_key("counts") && kept.contains_key("expires"));
    // As the server does by itself.
    let messages = raw.collection::<Document>("inbox_message");
    let gone = messages.delete_one(doc! { "expireAt": { "$exists": true } });
    assert_eq!(gone.await.unwrap().deleted_count, 1);
    place.offset.advance(day);
    assert_eq!(counts(&store).await, (1, 0, 0));
}

/// As a worker leaves it that is killed after its settlement, before the next message of the
/// ordering key was let through.
#[tokio::test]
async fn claims_find_what_a_crash_left_marked() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
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
    let Some(place) = TestInbox::shared() else {
        return;
    };
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

/// The lane of a message that a crash has left marked, as of one that was processed.
fn left_behind() -> Document {
    doc! { "$set": {
        "state": 2, "finishedAt": 1_i64, "visibleAt": 1_i64, "lane": 2, "mark": ObjectId::new(),
    } }
}

#[tokio::test]
async fn a_claim_of_one_message_goes_past_marks() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let marked: Vec<_> = (0..20).map(|n| message(&format!("old-{n}"))).collect();
    let _ = store.receive(&marked).await.unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages.update_many(doc! {}, left_behind()).await.unwrap();
    let _ = store.receive_one(&message("new")).await.unwrap();
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    assert_eq!(claims.unwrap().leased.len(), 1);
}

#[tokio::test]
async fn a_purge_goes_past_marks() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let marked: Vec<_> = (0..1100).map(|n| message(&format!("old-{n}"))).collect();
    let _ = store.receive(&marked).await.unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages.update_many(doc! {}, left_behind()).await.unwrap();
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 2000).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1100);
}

/// As a worker leaves it that is killed between leasing a message that is not the first of its
/// ordering key and finding that out.
#[tokio::test]
async fn a_lease_that_was_never_verified_is_no_precedence() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store
        .receive(&[in_order("a"), in_order("b")])
        .await
        .unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages
        .update_one(
            doc! { "id": "b" },
            doc! { "$set": { "lane": 1, "state": 1, "visibleAt": 1_i64 } },
        )
        .await
        .unwrap();
    let mut handed_out = Vec::new();
    for _ in 0..3 {
        handed_out.extend(claim_ids(&store).await);
    }
    assert_eq!(handed_out, ["a"]);
}

/// Two looks at the same time may let two messages through; the second is handed back.
#[tokio::test]
async fn only_the_first_of_an_ordering_key_is_kept() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
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
    let replayed = store.replay(message("a").key(), None).await.unwrap();
    assert_eq!(replayed, inbox_api::Intervention::Done);
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

async fn cannot_connect(url: &str) -> String {
    let url = common::with(url, "serverSelectionTimeoutMS=1000");
    let url = url.replacen("://", "://app:secret@", 1);
    let options = MongoOptions::from_url(&url).unwrap();
    let error = MongoStore::connect(options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), inbox_api::Effect::None);
    assert!(!format!("{error:?}").contains("secret"));
    error.context().to_owned()
}

#[tokio::test]
async fn why_no_server_can_be_used_is_told() {
    let refused = cannot_connect("mongodb://127.0.0.1:9/").await;
    assert!(
        refused.contains("127.0.0.1:9: Connection refused"),
        "{refused}"
    );
    let nameless = cannot_connect("mongodb://nowhere.invalid/").await;
    assert!(
        nameless.contains("nowhere.invalid:27017: failed to lookup"),
        "{nameless}"
    );
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let silence = cannot_connect(&format!("mongodb://{address}/")).await;
    assert!(
        silence.contains(&format!("{address} has not answered")),
        "{silence}"
    );
}

#[tokio::test]
async fn why_a_server_cannot_be_used_is_told() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    if place.url.contains('?') || common::replicates(&place.url).await {
        println!("NOT CHECKED: the shared server is not a plain standalone server");
        return;
    }
    let tls = cannot_connect(&format!("{}?tls=true", place.url)).await;
    assert!(
        tls.contains("tls right?") || tls.contains("speak TLS"),
        "{tls}"
    );
    let set = cannot_connect(&format!("{}?replicaSet=rs0", place.url)).await;
    assert!(set.contains("a member of the replica set rs0"), "{set}");
}

#[tokio::test]
async fn tls_files_that_cannot_be_read_are_named() {
    for (setting, named) in [
        ("tlsCAFile", "/nowhere.pem"),
        ("tlsCertificateKeyFile", "tlsCertificateKeyFile"),
    ] {
        let url = format!("mongodb://127.0.0.1:9/?{setting}=/nowhere.pem");
        let options = MongoOptions::from_url(&url).unwrap();
        let error = MongoStore::connect(options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.context().contains(named), "{error}");
        assert!(error.context().contains("No such file"), "{error}");
    }
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
}

/// Roles exist only where there are users.
#[tokio::test]
async fn the_documented_role_is_enough() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    for role in common::documented_roles(&place.database) {
        let mut command = doc! { "createRole": role.get_str("role").unwrap() };
        command.extend(role.into_iter().filter(|(field, _)| field != "role"));
        if place.run(command).await.is_err() {
            println!("NOT CHECKED: this server has no roles");
            return;
        }
    }
    let connect = |role: &'static str| {
        let place = &place;
        async move {
            let user = doc! { "createUser": role, "pwd": "secret", "roles": [role] };
            place.run(user).await.unwrap();
            let url = place.url.replacen("://", &format!("://{role}:secret@"), 1);
            let url = url.replacen("/?", &format!("/{}?", place.database), 1);
            let url = if url.contains('?') {
                url
            } else {
                format!("{url}{}", place.database)
            };
            let url = common::with(&url, &format!("authSource={}", place.database));
            let options = MongoOptions::from_url(&url).unwrap();
            MongoStore::connect(options).await.unwrap()
        }
    };
    connect("inboxOwner").await.create().await.unwrap();
    let store = connect("inboxWorker").await;
    assert!(store.exists().await.unwrap());
    store.migrate().await.unwrap();
    let _ = store.receive_one(&message("a")).await.unwrap();
    assert_eq!(claim_ids(&store).await, ["a"]);
    let _ = store.statistics().await.unwrap();
}
