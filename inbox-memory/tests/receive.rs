//! Accepting messages: duplicates, refusals, round trips.

mod common;

use std::time::Duration;

use common::{
    DONE, LEASE, dead, fixture, handler, key, keyed, message, retry, terms, with, worker,
};
use inbox_api::{
    AfterDead, Bytes, Capabilities, ContentType, Due, ErrorKind, Expired, Intervention, Invalid,
    Operate, OrderingKey, Receipt, ReceiveAtomicity, Schema, State, Store, StoreExt, Wakeups,
};
use inbox_memory::{MemoryOptions, MemoryStore};

#[tokio::test]
async fn a_message_comes_back_as_it_was() {
    let f = fixture();
    let sent = keyed("1", "customer")
        .with_content_type(ContentType::new("application/json").unwrap())
        .with_header("source", "topic\n\t ü")
        .unwrap();
    f.accept(std::slice::from_ref(&sent)).await;
    let record = f.record("1").await;
    assert_eq!(record.message(), Some(sent.clone()));
    assert_eq!(record.payload_bytes, Some(12));
    assert_eq!(record.due_at, record.accepted_at);
    let leased = f.claim_one().await;
    assert_eq!(leased.message, sent);
    assert_eq!(leased.accepted_at, record.accepted_at);
}

#[tokio::test]
async fn an_empty_payload_is_legal() {
    let f = fixture();
    let mut sent = message("1");
    sent = inbox_api::Message::new(
        sent.handler().clone(),
        sent.id().clone(),
        sent.kind().clone(),
        "",
    );
    f.accept(&[sent]).await;
    assert_eq!(f.record("1").await.payload, Some(Bytes::new()));
}

#[tokio::test]
async fn a_redelivery_is_a_duplicate_in_every_state() {
    let f = fixture();
    f.accept(&[message("pending").with_due(Due::After(LEASE))])
        .await;
    f.finished(&message("processed"), DONE).await;
    f.finished(&message("dead"), dead(AfterDead::Continue))
        .await;
    f.finished(&message("retried"), retry(LEASE)).await;
    f.accept(&[message("discarded")]).await;
    assert_eq!(
        f.store.discard(&key("discarded")).await.unwrap(),
        Intervention::Done
    );
    f.accept(&[message("leased")]).await;
    let _held = f.claim_one().await;

    let states = [
        ("pending", State::Pending),
        ("processed", State::Processed),
        ("dead", State::Dead),
        ("retried", State::Pending),
        ("discarded", State::Discarded),
        ("leased", State::Leased),
    ];
    for (id, state) in states {
        let before = f.record(id).await;
        assert_eq!(before.state, state);
        // Not even a copy with another ordering key is taken for something new.
        for copy in [message(id), keyed(id, "other")] {
            assert_eq!(
                f.store.receive_one(&copy).await.unwrap(),
                Receipt::Duplicate
            );
        }
        assert_eq!(f.record(id).await, before);
    }
}

#[tokio::test]
async fn a_duplicate_stays_one_after_its_payload_is_dropped() {
    let f = with(MemoryOptions {
        drop_processed_payloads: true,
        ..MemoryOptions::default()
    });
    f.finished(&message("1"), DONE).await;
    assert_eq!(f.record("1").await.payload, None);
    assert_eq!(
        f.store.receive_one(&message("1")).await.unwrap(),
        Receipt::Duplicate
    );
}

#[tokio::test]
async fn a_purged_key_is_new_again_and_its_tokens_go_on_growing() {
    let f = fixture();
    f.accept(&[message("1")]).await;
    let first = f.claim_one().await;
    assert_eq!(f.settle(&first, DONE).await, inbox_api::Settled::Done);
    let all = Expired::new(State::Processed, Duration::ZERO, 10).unwrap();
    assert_eq!(f.store.purge(&all).await.unwrap(), 1);
    assert_eq!(f.store.get(&key("1")).await.unwrap(), None);
    f.accept(&[message("1")]).await;
    let second = f.claim_one().await;
    assert!(second.lease.token > first.lease.token);
    assert_eq!(f.settle(&first, DONE).await, inbox_api::Settled::LeaseLost);
    assert_eq!(f.state("1").await, State::Leased);
}

#[tokio::test]
async fn the_first_copy_of_a_batch_wins_and_answers_keep_their_order() {
    let f = with(MemoryOptions {
        payload_limit: 12,
        ..MemoryOptions::default()
    });
    let too_large = message("a").for_handler(handler("g"));
    let too_large = inbox_api::Message::new(
        too_large.handler().clone(),
        too_large.id().clone(),
        too_large.kind().clone(),
        "thirteen byte",
    );
    let small = message("a").for_handler(handler("g"));
    let batch = [
        message("1"),
        message("1").with_due(Due::After(LEASE)),
        too_large.clone(),
        small,
        too_large,
        message("2"),
    ];
    let refused = Receipt::Refused(Invalid::TooLarge {
        what: "payload",
        bytes: 13,
        limit: 12,
    });
    assert_eq!(
        f.store.receive(&batch).await.unwrap(),
        [
            Receipt::Accepted,
            Receipt::Duplicate,
            refused.clone(),
            Receipt::Accepted,
            refused,
            Receipt::Accepted
        ]
    );
    assert_eq!(f.claim_ids(10).await, ["1", "2"]);
}

#[tokio::test]
async fn handlers_are_independent_and_keys_compare_byte_for_byte() {
    let f = fixture();
    let ids = ["a", "A", "a ", "á", "a\u{301}", "01", "1"];
    for name in ["h", "H", "h "] {
        let batch: Vec<_> = ids
            .iter()
            .map(|id| message(id).for_handler(handler(name)))
            .collect();
        f.accept(&batch).await;
    }
    assert_eq!(f.claim_ids(100).await.len(), ids.len());
}

#[tokio::test]
async fn a_message_waits_for_its_due_time() {
    let f = fixture();
    let soon = Duration::from_secs(60);
    f.accept(&[message("later").with_due(Due::After(soon)), message("now")])
        .await;
    assert_eq!(f.claim_ids(10).await, ["now"]);
    f.clock.advance(soon);
    let due = f.claim(10).await;
    // The lease on the other has run out too, but earlier.
    let ids: Vec<_> = due.iter().map(|l| l.message.id().as_str()).collect();
    assert_eq!(ids, ["now", "later"]);
    assert!(due.iter().all(|l| l.message.due() == Due::Now));
}

#[tokio::test]
async fn empty_inputs_are_answered() {
    let f = fixture();
    assert_eq!(f.store.receive(&[]).await.unwrap(), []);
    assert_eq!(f.store.settle(&[]).await.unwrap(), []);
    assert_eq!(f.store.extend(&[], LEASE).await.unwrap(), []);
    f.accept(&[message("1")]).await;
    assert_eq!(f.claim_ids(0).await, [""; 0]);
}

#[tokio::test]
async fn capabilities_and_schema_say_what_memory_is() {
    let store = MemoryStore::new();
    let mut expected = Capabilities::minimal(
        "nothing: gone when the process ends",
        inbox_api::DEFAULT_PAYLOAD_LIMIT,
    );
    expected.ordering = true;
    expected.wakeups = Wakeups::SameProcess;
    expected.receive_atomicity = ReceiveAtomicity::Batch;
    assert_eq!(store.capabilities(), expected);
    assert_eq!(store.ddl().trim().lines().count(), 1);
    store.create().await.unwrap();
    assert!(store.exists().await.unwrap());
    assert_eq!(
        store.version().await.unwrap(),
        Some(store.expected_version())
    );
    let migration = store.migrate().await.unwrap();
    assert_eq!((migration.from, migration.to), (Some(1), 1));
}

#[tokio::test]
async fn a_closed_store_is_unavailable_for_all_clones() {
    let f = fixture();
    let clone = f.store.clone();
    f.accept(&[message("1")]).await;
    assert!(clone.get(&key("1")).await.unwrap().is_some());
    f.store.close().await;
    f.store.close().await;
    let terms = terms();
    let errors = [
        clone.receive_one(&message("2")).await.unwrap_err(),
        clone
            .claim_for(&handler("h"), 1, LEASE, &worker())
            .await
            .unwrap_err(),
        clone.settle(&[]).await.unwrap_err(),
        clone.extend(&[], LEASE).await.unwrap_err(),
        clone.begin(&message("2"), &terms).await.unwrap_err(),
        clone.subscribe(&[]).await.err().expect("refused"),
        clone.get(&key("1")).await.unwrap_err(),
        clone.statistics().await.unwrap_err(),
        clone.exists().await.unwrap_err(),
    ];
    assert!(errors.iter().all(|e| e.kind() == ErrorKind::Unavailable));
}

#[tokio::test]
async fn nothing_shows_payloads() {
    let f = fixture();
    f.accept(&[message("1").with_ordering_key(OrderingKey::new("o").unwrap())])
        .await;
    let shown = format!("{:?} {:?}", f.store, f.record("1").await);
    assert!(!shown.contains("payload of"), "{shown}");
}
