//! What is the memory store's own, and what the suite leaves to it as the model of the others.

use std::time::Duration;

use inbox_api::{
    Bytes, Capabilities, ClaimRequest, Cursor, Due, Edit, ErrorKind, Filter, Intervention, Invalid,
    Message, Operate, OrderingKey, Outcome, Page, Receipt, ReceiveAtomicity, Record, Schema,
    Settled, Settlement, Slice, State, Store, StoreExt, Wakeups,
};
use inbox_memory::{MemoryOptions, MemoryStore};
use tokio::task::JoinSet;

use crate::common::{
    DONE, LEASE, fixture, handler, ids, key, message, one_of_each, retry, terms, with, worker,
};

const TASKS: usize = 16;

async fn in_parallel<T, F>(task: impl Fn(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        tasks.spawn(task(number));
    }
    tasks.join_all().await
}

#[tokio::test]
async fn capabilities_and_schema_say_what_memory_is() {
    let store = MemoryStore::new();
    let mut expected = Capabilities::minimal(
        "nothing: gone when the process ends",
        inbox_api::DEFAULT_PAYLOAD_LIMIT,
    );
    expected.ordering = true;
    expected.runs = true;
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

#[tokio::test]
async fn each_settlement_of_a_batch_is_answered_in_its_place() {
    let f = with(MemoryOptions::new().payload_limit(20));
    f.accept(&[message("1"), message("2"), message("3")]).await;
    let leased = f.claim(10).await;
    let settle = |place: usize, outcome| Settlement {
        lease: leased[place].lease.clone(),
        outcome,
    };
    let mut unknown = settle(0, DONE);
    unknown.lease.key.handler = handler("unknown");
    let mut foreign = settle(0, DONE);
    foreign.lease.key = key("2");
    let result = |bytes| Outcome::Processed {
        result: Some(Bytes::from(vec![1; bytes])),
    };
    let batch = [
        settle(2, result(20)),
        settle(1, result(21)),
        unknown,
        foreign,
        settle(0, retry(LEASE)),
        settle(0, DONE),
    ];
    assert_eq!(
        f.store.settle(&batch).await.unwrap(),
        [
            Settled::Done,
            Settled::Refused(Invalid::TooLarge {
                what: "result",
                bytes: 21,
                limit: 20
            }),
            Settled::LeaseLost,
            Settled::LeaseLost,
            Settled::Done,
            Settled::Done,
        ]
    );
    assert_eq!(f.record("3").await.result, Some(Bytes::from(vec![1; 20])));
    assert_eq!(f.state("2").await, State::Leased);
    let retried = f.record("1").await;
    assert_eq!(retried.state, State::Pending);
    assert_eq!(retried.last_error.as_deref(), Some("failed"));
}

#[tokio::test]
async fn claims_are_by_time_then_by_acceptance() {
    let f = fixture();
    let secs = Duration::from_secs;
    f.accept(&[
        message("c").with_due(Due::After(secs(5))),
        message("a"),
        message("b").with_due(Due::After(secs(2))),
    ])
    .await;
    f.accept(&[message("other")
        .for_handler(handler("g"))
        .with_due(Due::After(secs(3)))])
        .await;
    f.clock.advance(secs(10));
    let request = |limit| ClaimRequest {
        // Naming a handler twice, or one without messages, does no harm.
        handlers: vec![handler("h"), handler("g"), handler("h"), handler("none")],
        limit,
        terms: terms(),
        run_limit: 1,
    };
    let ids = |claims: inbox_api::Claims| -> Vec<String> {
        let leased = claims.leased.into_iter();
        leased.map(|l| l.message.id().to_string()).collect()
    };
    assert_eq!(
        ids(f.store.claim(&request(3)).await.unwrap()),
        ["a", "b", "other"]
    );
    assert_eq!(ids(f.store.claim(&request(3)).await.unwrap()), ["c"]);
    let none = ClaimRequest {
        handlers: vec![],
        ..request(3)
    };
    f.clock.advance(LEASE);
    assert!(f.store.claim(&none).await.unwrap().leased.is_empty());
    assert_eq!(
        ids(f.store.claim(&request(9)).await.unwrap()),
        ["a", "b", "other", "c"]
    );
}

#[tokio::test]
async fn page_limits_and_cursors_are_checked() {
    let f = fixture();
    f.accept(&[message("1"), message("2")]).await;
    let nothing = (vec![], None);
    assert_eq!(ids(&f, &Filter::default(), &Page::first(0)).await, nothing);
    let (full, next) = ids(&f, &Filter::default(), &Page::first(2)).await;
    assert_eq!((full.len(), next), (2, None));
    for place in [i64::MAX, i64::MIN, 0] {
        let page = Page {
            after: Some(Cursor::from(place)),
            ..Page::first(u32::MAX)
        };
        let expected = if place == i64::MAX { 0 } else { 2 };
        assert_eq!(ids(&f, &Filter::default(), &page).await.0.len(), expected);
    }
    let after = Some(Cursor::new("x'; --"));
    let page = Page {
        after: after.clone(),
        ..Page::first(1)
    };
    let slice = Slice { after, limit: 1 };
    let filter = Filter::default();
    for error in [
        f.store.list(&filter, &page).await.unwrap_err(),
        f.store.replay_slice(&filter, &slice).await.unwrap_err(),
        f.store.discard_slice(&filter, &slice).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn replay_answers_for_every_state() {
    let f = one_of_each().await;
    for (id, expected) in [
        ("unknown", Intervention::NotFound),
        ("pending", Intervention::WrongState(State::Pending)),
        ("ran-out", Intervention::WrongState(State::Pending)),
        ("leased", Intervention::WrongState(State::Leased)),
        ("processed", Intervention::Done),
        ("dead", Intervention::Done),
        ("discarded", Intervention::Done),
    ] {
        assert_eq!(
            f.store.replay(&key(id), &Edit::default()).await.unwrap(),
            expected,
            "{id}"
        );
    }
    let record = f.record("dead").await;
    assert_eq!(record.state, State::Pending);
    assert_eq!((record.attempts, record.replays), (Default::default(), 1));
    assert_eq!((record.last_error, record.finished_at), (None, None));
    assert_eq!(
        f.claim_ids(10).await,
        ["ran-out", "processed", "dead", "discarded"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_receives_of_one_key_one_is_accepted() {
    let store = MemoryStore::new();
    // Handlers in changing order, and as many as there are locks to be taken in the wrong one.
    let receipts = in_parallel(|task| {
        let store = store.clone();
        async move {
            let mut accepted = 0;
            for id in 0..200 {
                let mut batch: Vec<Message> = ["a", "b", "c", "d"]
                    .map(|name| message(&id.to_string()).for_handler(handler(name)))
                    .into();
                batch.rotate_left(task % 4);
                let receipts = store.receive(&batch).await.unwrap();
                // The fan-out of one message is stored together or not at all.
                assert!(receipts.iter().all(|r| *r == receipts[0]), "{receipts:?}");
                accepted += receipts.iter().filter(|r| **r == Receipt::Accepted).count();
            }
            accepted
        }
    })
    .await;
    assert_eq!(receipts.iter().sum::<usize>(), 800);
    assert_eq!(
        store.count(&inbox_api::Filter::default()).await.unwrap(),
        800
    );
}

#[tokio::test]
async fn a_fork_has_what_was_there_and_changes_apart() {
    let f = fixture();
    f.accept(&[message("1"), message("2")]).await;
    let leased = f.claim_one().await;
    let fork = f.store.fork();
    let settled = fork.settle_one(&leased.lease, DONE).await.unwrap();
    assert_eq!(settled, Settled::Done);
    let state = |record: Option<Record>| record.map(|record| record.state);
    assert_eq!(
        state(fork.get(&key("1")).await.unwrap()),
        Some(State::Processed)
    );
    assert_eq!(f.state("1").await, State::Leased);
    f.accept(&[message("3")]).await;
    assert_eq!(state(fork.get(&key("3")).await.unwrap()), None);
    // By one clock.
    f.clock.advance(LEASE);
    assert_eq!(f.state("1").await, State::Pending);
    f.store.close().await;
    assert!(fork.receive(&[message("4")]).await.is_ok());
}
