//! What only a replica set has: transactions that meet each other and other workers, and members that
//! take over. Not run where there is no `mongod`.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_api::{
    Begun, Effect, ErrorKind, Extended, HandlerName, InboxName, LeaseTerms, Message, Operate as _,
    OrderingKey, Outcome, Receipt, Recorded, Schema as _, Settled, Settlement, State, Store as _,
    StoreExt as _, Transactional as _,
};
use inbox_mongo::{
    MongoStore, MongoTransaction,
    mongodb::{
        Client,
        bson::{Document, doc},
        event::{EventHandler, command::CommandEvent},
        options::ClientOptions,
    },
};
use test_servers::{Kind, find_own, or_skip};

use crate::{
    common::{self, TestInbox, handler, lock, message, worker},
    requests::{Sent, listening_from_the_start},
};

const LEASE: Duration = Duration::from_secs(60);

/// A place on the shared server, if it has transactions.
async fn place() -> Option<(TestInbox, Arc<MongoStore>)> {
    let place = TestInbox::shared()?;
    if !common::replicates(&place.url).await {
        println!("NOT CHECKED: this server has no replica sets; there is no mongod on PATH");
        return None;
    }
    let store = place.store().await;
    Some((place, store))
}

fn in_order(id: &str) -> Message {
    message(id).with_ordering_key(OrderingKey::new("customer-1").unwrap())
}

fn processed() -> Outcome {
    Outcome::Processed { result: None }
}

/// Of two transactions on two messages of one ordering key, neither sees the other's.
#[tokio::test]
async fn two_transactions_do_not_both_begin_an_ordering_key() {
    let Some((_place, store)) = place().await else {
        return;
    };
    let mut one = store.open().await.unwrap();
    let mut other = store.open().await.unwrap();
    let first = store.record_in(&mut one, &in_order("a"), None).await;
    assert_eq!(first.unwrap(), Recorded::First);
    let second = store.record_in(&mut other, &in_order("b"), None).await;
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Conflict);
    store.roll_back(other).await.unwrap();
    store.commit(one).await.unwrap();
    let mut other = store.open().await.unwrap();
    let second = store.record_in(&mut other, &in_order("b"), None).await;
    assert_eq!(second.unwrap(), Recorded::First);
    store.commit(other).await.unwrap();
}

/// A transaction that began before a message of the key was accepted and claimed sees neither.
#[tokio::test]
async fn a_snapshot_older_than_a_claim_is_no_precedence() {
    let Some((place, store)) = place().await else {
        return;
    };
    let raw = place.raw().await;
    raw.create_collection("own").await.unwrap();
    let mut transaction = store.open().await.unwrap();
    // From here on it sees what there was.
    let session = transaction.session().unwrap();
    let own = session
        .client()
        .database(&place.database)
        .collection::<Document>("own");
    own.insert_one(doc! { "_id": 1 })
        .session(session)
        .await
        .unwrap();
    let _ = store.receive_one(&in_order("a")).await.unwrap();
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    assert_eq!(claims.unwrap().leased.len(), 1);
    let later = store
        .record_in(&mut transaction, &in_order("b"), None)
        .await;
    match later {
        Ok(recorded) => assert_eq!(recorded, Recorded::Blocked),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
    }
    store.roll_back(transaction).await.unwrap();
}

/// A transaction that has settled the first message.
async fn settled_in_transaction(store: &MongoStore) -> MongoTransaction {
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    let lease = claims.unwrap().leased.remove(0).lease;
    let mut transaction = store.open().await.unwrap();
    let settlement = Settlement {
        lease,
        outcome: processed(),
    };
    let settled = store.settle_in(&mut transaction, &[settlement]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    transaction
}

/// Its own settlement in the same transaction lets the next one of the key through.
#[tokio::test]
async fn a_transaction_follows_what_it_has_settled_itself() {
    let Some((_place, store)) = place().await else {
        return;
    };
    let _ = store.receive_one(&in_order("a")).await.unwrap();
    let mut transaction = settled_in_transaction(&store).await;
    let next = store
        .record_in(&mut transaction, &in_order("b"), None)
        .await;
    assert_eq!(next.unwrap(), Recorded::First);
    store.commit(transaction).await.unwrap();
}

/// Whichever member answers: it must not look at the ordering keys as they were before.
#[tokio::test]
async fn what_follows_a_commit_sees_it() {
    let Some((place, _store)) = place().await else {
        return;
    };
    let (store, sent) = listening_from_the_start(&place).await;
    // One delivery for two handlers, which is stored in a transaction.
    let other = HandlerName::new("other").unwrap();
    let both = [in_order("a"), in_order("a").for_handler(other)];
    let _ = store.receive(&both).await.unwrap();
    looks_after_its_commit(&sent);
    let transaction = settled_in_transaction(&store).await;
    store.commit(transaction).await.unwrap();
    looks_after_its_commit(&sent);
}

/// Whether what was sent behind the commit waits for what the commit has changed.
fn looks_after_its_commit(sent: &Sent) {
    let sent = std::mem::take(&mut *lock(sent));
    let mut sent = sent
        .iter()
        .skip_while(|command| !command.contains_key("commitTransaction"));
    let commit = sent.next().unwrap();
    let look = sent
        .find(|command| command.contains_key("aggregate"))
        .unwrap();
    assert_eq!(look.get("lsid"), commit.get("lsid"));
    let concern = look.get_document("readConcern").unwrap();
    assert!(concern.contains_key("afterClusterTime"), "{concern}");
}

/// Waits until so many change streams have been closed.
async fn until_closed(sent: &Sent, streams: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let closed = lock(sent)
            .iter()
            .filter(|command| command.contains_key("killCursors"))
            .count();
        if closed >= streams {
            return;
        }
        assert!(Instant::now() < deadline, "{closed} of {streams}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A change stream that is only being opened when the store is closed is closed again.
#[tokio::test]
async fn closing_while_a_subscription_is_being_made_leaves_no_change_stream() {
    let Some((place, _store)) = place().await else {
        return;
    };
    let (store, sent) = listening_from_the_start(&place).await;
    let handlers = [handler()];
    let (subscribed, ()) = tokio::join!(store.subscribe(&handlers), store.close());
    let error = subscribed.err().expect("the store is closed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    until_closed(&sent, 1).await;
}

#[tokio::test]
async fn closing_ends_all_subscriptions_that_were_made_at_once() {
    let Some((place, _store)) = place().await else {
        return;
    };
    let (store, sent) = listening_from_the_start(&place).await;
    let handlers = [handler()];
    let (one, other) = tokio::join!(store.subscribe(&handlers), store.subscribe(&handlers));
    let _subscriptions = (one.unwrap(), other.unwrap());
    store.close().await;
    until_closed(&sent, 2).await;
}

/// Of a batch with a message that is held, the others are settled first, and may be another's before the
/// whole is answered, and that one's settled, and a third one's.
#[tokio::test]
async fn what_is_settled_before_a_held_message_is_done() {
    let Some((place, store)) = place().await else {
        return;
    };
    let (proxy, url) = common::proxied(&place.url).await.unwrap();
    let proxy = Arc::new(proxy);
    let mut options = ClientOptions::parse(&url).await.unwrap();
    let (stalled, looked) = (Arc::clone(&proxy), AtomicBool::new(false));
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        // It looks for what is held, the first time.
        if let CommandEvent::Started(started) = event
            && started.command.contains_key("autocommit")
            && !looked.swap(true, Ordering::Relaxed)
        {
            stalled.stall();
        }
    }));
    let client = Client::with_options(options).unwrap();
    let slow = MongoStore::with_client(client, place.options.clone());
    let slow = slow.await.unwrap();
    let _ = store.receive(&["a", "b"].map(message)).await.unwrap();
    let claims = store.claim_for(&handler(), 2, LEASE, &worker()).await;
    let leased = claims.unwrap().leased.into_iter();
    let settlements: Vec<_> = leased
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: Outcome::Release,
        })
        .collect();
    let mut transaction = store.open().await.unwrap();
    let held = store.settle_in(&mut transaction, &settlements[1..]).await;
    assert_eq!(held.unwrap(), [Settled::Done]);
    let settling = tokio::spawn(async move { slow.settle(&settlements).await });
    let deadline = Instant::now() + Duration::from_secs(20);
    // Before the slow one looks what it has done, and in between its looks.
    for outcome in [Outcome::Release, Outcome::Release, processed()] {
        let again = loop {
            let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
            if let Some(leased) = claims.unwrap().leased.pop() {
                break leased;
            }
            assert!(Instant::now() < deadline, "it is not settled");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let settled = store.settle_one(&again.lease, outcome).await;
        assert_eq!(settled.unwrap(), Settled::Done);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    store.roll_back(transaction).await.unwrap();
    proxy.forward();
    let settled = settling.await.unwrap();
    assert_eq!(settled.unwrap(), [Settled::Done, Settled::Done]);
}

/// What an open transaction holds costs the others a short time, once: they do not wait for its end.
#[tokio::test]
async fn a_held_message_is_left_out() {
    let Some((_place, store)) = place().await else {
        return;
    };
    let many: Vec<_> = (0..100).map(|n| message(&format!("m-{n}"))).collect();
    let _ = store.receive(&many).await.unwrap();
    let mut transaction = store.open().await.unwrap();
    let recorded = store.record_in(&mut transaction, &many[50], None).await;
    assert_eq!(recorded.unwrap(), Recorded::First);
    let claims = store.claim_for(&handler(), 100, LEASE, &worker()).await;
    assert_eq!(claims.unwrap().leased.len(), 99);
    let terms = LeaseTerms::new(LEASE, worker()).unwrap();
    let begun = store.begin(&many[50], &terms).await.unwrap();
    assert!(matches!(begun, Begun::Busy { .. }), "{begun:?}");
    // The transaction is open still.
    let next = message("next");
    let recorded = store.record_in(&mut transaction, &next, None).await;
    assert_eq!(recorded.unwrap(), Recorded::First);
    store.roll_back(transaction).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let claims = store.claim_for(&handler(), 100, LEASE, &worker()).await;
        if !claims.unwrap().leased.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "it is left out for good");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Where nothing is written for a while, be it a slow server or a backup, nothing is held: what was
/// not leased in time is leased as soon as it can be.
#[tokio::test]
async fn a_slow_server_is_not_taken_for_an_open_transaction() {
    let Some((_shared, _)) = place().await else {
        return;
    };
    let Some(server) = common::own_server() else {
        return;
    };
    let place = TestInbox::at(server.url().to_owned());
    let store = place.store().await;
    let many: Vec<_> = (0..20).map(|n| message(&format!("m-{n}"))).collect();
    let _ = store.receive(&many).await.unwrap();
    let admin = common::client(&place.url).await.database("admin");
    // So that what follows is about the messages only.
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    assert_eq!(claims.unwrap().leased.len(), 1);

    let lock = doc! { "fsync": 1, "lock": true };
    admin.run_command(lock).await.unwrap();
    let claiming = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.claim_for(&handler(), 20, LEASE, &worker()).await })
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    admin.run_command(doc! { "fsyncUnlock": 1 }).await.unwrap();
    let mut leased = claiming
        .await
        .unwrap()
        .map_or(0, |claims| claims.leased.len());
    let started = Instant::now();
    let claims = store.claim_for(&handler(), 20, LEASE, &worker()).await;
    leased += claims.unwrap().leased.len();
    assert_eq!(leased, 19, "after {:?}", started.elapsed());
}

/// Also the renewals of other leases of the same claim.
#[tokio::test]
async fn renewals_do_not_wait_for_a_transaction_and_do_not_spoil_it() {
    let Some((place, store)) = place().await else {
        return;
    };
    let raw = place.raw().await;
    raw.create_collection("own").await.unwrap();
    let messages = ["a", "b", "c"].map(message);
    let _ = store.receive(&messages).await.unwrap();
    let length = Duration::from_secs(5);
    let claims = store.claim_for(&handler(), 3, length, &worker()).await;
    let leases: Vec<_> = claims
        .unwrap()
        .leased
        .into_iter()
        .map(|l| l.lease)
        .collect();
    let mut transaction = store.open_for(&leases[..1]).await.unwrap();
    let session = transaction.session().unwrap();
    let own = session
        .client()
        .database(&place.database)
        .collection::<Document>("own");
    own.insert_one(doc! { "_id": 1 })
        .session(session)
        .await
        .unwrap();
    for _ in 0..4 {
        let extended = store.extend(&leases, length).await.unwrap();
        assert!(extended.iter().all(|e| matches!(e, Extended::Until(_))));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let settlement = Settlement {
        lease: leases[0].clone(),
        outcome: processed(),
    };
    let settled = store.settle_in(&mut transaction, &[settlement]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    // Held by the settlement now.
    let started = Instant::now();
    let extended = store.extend(&leases[1..], length).await.unwrap();
    assert!(extended.iter().all(|e| matches!(e, Extended::Until(_))));
    assert!(started.elapsed() < Duration::from_secs(3));
    store.commit(transaction).await.unwrap();
}

/// The handler has not noticed that a step failed, which had changed something before.
#[tokio::test]
async fn nothing_is_committed_behind_a_step_that_failed_half_way() {
    let Some((place, store)) = place().await else {
        return;
    };
    let raw = place.raw().await;
    raw.create_collection("own").await.unwrap();
    let own = raw.collection::<Document>("own");
    let mut transaction = store.open().await.unwrap();
    let session = transaction.session().unwrap();
    let in_session = session
        .client()
        .database(&place.database)
        .collection::<Document>("own");
    in_session
        .insert_one(doc! { "_id": 1 })
        .session(session)
        .await
        .unwrap();
    // The guard of the ordering key is written before a number is drawn.
    let meta = raw.collection::<Document>("inbox_meta");
    let sequence = doc! { "_id": "sequence" };
    let numbers = meta.find_one_and_delete(sequence).await.unwrap().unwrap();
    let half = store
        .record_in(&mut transaction, &in_order("a"), None)
        .await;
    assert_eq!(half.unwrap_err().kind(), ErrorKind::SchemaMissing);
    meta.insert_one(numbers).await.unwrap();
    let next = store.record_in(&mut transaction, &message("b"), None).await;
    assert_eq!(next.unwrap_err().kind(), ErrorKind::Conflict);
    let error = store.commit(transaction).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert_eq!(own.count_documents(doc! {}).await.unwrap(), 0);
    let guards = meta.count_documents(doc! { "held": { "$exists": true } });
    assert_eq!(guards.await.unwrap(), 0);
}

/// Whichever store commits: marks are looked at, and counts opened, in the inbox that they are of.
#[tokio::test]
async fn each_inbox_of_a_transaction_has_its_own_books() {
    let Some((place, _)) = place().await else {
        return;
    };
    let client = common::client(&place.url).await;
    let other = InboxName::new("other").unwrap();
    let options = place.options.clone().inbox_name(other);
    let first = MongoStore::with_client(client.clone(), place.options.clone()).await;
    let second = MongoStore::with_client(client, options).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    second.create().await.unwrap();
    let raw = place.raw().await;
    let drawn = doc! { "$set": { "last": 20_100_i64 } };
    let meta = raw.collection::<Document>("other_meta");
    let updated = meta.update_one(doc! { "_id": "sequence" }, drawn).await;
    assert_eq!(updated.unwrap().matched_count, 1);

    let mut transaction = first.open().await.unwrap();
    for store in [&first, &second] {
        let stored = store.receive_in(&mut transaction, &[in_order("a")]).await;
        assert_eq!(stored.unwrap(), [Receipt::Accepted]);
    }
    // The segment of the second one's message is kept before the commit, and no segment of that number is there in
    // the first one.
    let kept = doc! { "_id": 2_i64, "openUntil": 5_i64, "counts": [] };
    meta.insert_one(kept).await.unwrap();
    place.offset.advance(Duration::from_secs(200));
    first.commit(transaction).await.unwrap();
    for inbox in ["inbox_message", "other_message"] {
        let messages = raw.collection::<Document>(inbox);
        let stored = messages.find_one(doc! {}).await.unwrap().unwrap();
        assert_eq!(stored.get_i32("lane").unwrap(), 1, "{inbox}: {stored}");
    }
    let opened = meta.find_one(doc! { "_id": 2_i64 }).await.unwrap();
    assert!(!opened.unwrap().contains_key("counts"));
}

/// A server may be told to let transactions be open for longer than counts are counted again.
#[tokio::test]
async fn counts_follow_a_transaction_that_was_open_for_long() {
    let Some((place, store)) = place().await else {
        return;
    };
    let _ = store.receive(&["a", "b"].map(message)).await.unwrap();
    let long = Duration::from_secs(3600);
    let claims = store.claim_for(&handler(), 1, long, &worker()).await;
    let lease = claims.unwrap().leased.remove(0).lease;
    let mut transaction = store.open().await.unwrap();
    let settlement = Settlement {
        lease,
        outcome: processed(),
    };
    let settled = store.settle_in(&mut transaction, &[settlement]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    let recorded = store.record_in(&mut transaction, &message("c"), None).await;
    assert_eq!(recorded.unwrap(), Recorded::First);

    let meta = place.raw().await.collection::<Document>("inbox_meta");
    // As if twenty thousand numbers had been drawn since.
    let drawn = doc! { "$set": { "last": 20_100_i64 } };
    let updated = meta.update_one(doc! { "_id": "sequence" }, drawn).await;
    assert_eq!(updated.unwrap().matched_count, 1);
    let counts = || async {
        let statistics = store.statistics().await.unwrap();
        [State::Pending, State::Leased, State::Processed].map(|state| statistics.count(state))
    };
    assert_eq!(counts().await, [1, 1, 0]);
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts().await, [1, 1, 0]);
    let kept = || async { meta.find_one(doc! { "_id": 0_i64 }).await.unwrap().unwrap() };
    assert!(kept().await.contains_key("counts"));
    store.commit(transaction).await.unwrap();
    assert!(!kept().await.contains_key("counts"));
    assert_eq!(counts().await, [1, 0, 2]);
}

/// MongoDB 4.4 can be told so; later servers always have such reads, and do not know the setting.
#[tokio::test]
async fn a_set_without_majority_reads_is_named() {
    let without = ["--enableMajorityReadConcern=false"];
    let Ok(server) = find_own(Kind::Mongodb, &without) else {
        println!("NOT CHECKED: no server here can do without majority reads");
        return;
    };
    let place = TestInbox::at(server.url().to_owned());
    let store = place.connect().await.unwrap();
    let error = store.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.to_string().contains("enableMajorityReadConcern"),
        "{error}"
    );
}

/// The primary is killed, and stopped, while messages come in and are worked on.
#[tokio::test]
async fn nothing_is_lost_when_another_member_takes_over() {
    let set = or_skip(Kind::MongodbSet, find_own(Kind::MongodbSet, &[]));
    let Some(server) = set.unwrap() else {
        return;
    };
    let place = TestInbox::at(common::seeds(&server));
    let store = place.store().await;
    let server = Arc::new(Mutex::new(server));
    let mut handed_out = Vec::new();
    for round in 0..6 {
        let disturbed = Arc::clone(&server);
        let disturbing = tokio::spawn(async move {
            common::act(&disturbed, move |set| {
                if round % 2 == 0 {
                    set.kill_node(0)?;
                    std::thread::sleep(Duration::from_secs(4));
                    set.start_node(0)
                } else {
                    set.pause_node(0)?;
                    std::thread::sleep(Duration::from_secs(4));
                    set.resume_node(0)
                }
            })
            .await
            .unwrap();
        });
        for n in 0..20 {
            let sent = in_order(&format!("{round:02}-{n:02}"));
            while store.receive_one(&sent).await.is_err() {}
            assert_eq!(
                store.receive_one(&sent).await.ok(),
                Some(Receipt::Duplicate { differs: false })
            );
        }
        disturbing.await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut done = 0;
        while done < 20 {
            assert!(Instant::now() < deadline, "{done} of 20 in round {round}");
            let length = Duration::from_secs(5);
            let claims = store.claim_for(&handler(), 5, length, &worker()).await;
            let Ok(claims) = claims else { continue };
            for leased in claims.leased {
                while store.settle_one(&leased.lease, processed()).await.is_err() {}
                handed_out.push(leased.message.id().to_string());
                done += 1;
            }
        }
    }
    let mut expected = handed_out.clone();
    expected.sort();
    expected.dedup();
    assert_eq!(handed_out, expected);
    assert_eq!(handed_out.len(), 120);
    assert!(store.exists().await.unwrap());
}
