//! Senders that stop between any two of their steps, for ever or for a while, when a delivery
//! belongs to several shards.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{gate::Gate, options, store, url};
use inbox_api::{
    Begun, ClaimRequest, Expired, Filter, HandlerName, Kind, LeaseTerms, Leased, Message,
    MessageId, Operate, OrderingKey, Outcome, Receipt, Settled, Settlement, State, Store,
    WorkerName,
};
use inbox_redis::{RedisOptions, RedisStore};

const SHARDS: u16 = 7;
const HANDLERS: usize = 6;
/// Drawing numbers and staging at home: from then on a delivery is stored.
const UNTIL_STORED: usize = 2;

fn handler(number: usize) -> HandlerName {
    HandlerName::new(format!("handler-{number}")).unwrap()
}

/// One delivery for several handlers, each with an ordering key of its own.
fn delivery(id: &str) -> Vec<Message> {
    (0..HANDLERS)
        .map(|n| {
            Message::new(
                handler(n),
                MessageId::new(id).unwrap(),
                Kind::new("k").unwrap(),
                "payload",
            )
            .with_ordering_key(OrderingKey::new(format!("key {n} of {id}")).unwrap())
        })
        .collect()
}

fn terms() -> LeaseTerms {
    LeaseTerms::new(Duration::from_secs(60), WorkerName::new("w").unwrap()).unwrap()
}

async fn claim(store: &RedisStore) -> Vec<Leased> {
    let request = ClaimRequest {
        handlers: (0..HANDLERS).map(handler).collect(),
        limit: 100,
        terms: terms(),
    };
    store.claim(&request).await.unwrap().leased
}

async fn process(store: &RedisStore, leased: Vec<Leased>) {
    let settlements: Vec<Settlement> = leased
        .into_iter()
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: Outcome::Processed { result: None },
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert!(settled.iter().all(|one| *one == Settled::Done));
}

/// An inbox, and the same one behind a gate that lets a number of its scripts through.
async fn gated() -> Option<(RedisStore, RedisStore, Gate)> {
    let options: RedisOptions = options(&url(&common::SERVER)?, false, SHARDS);
    let (store, _) = store(options.clone()).await;
    let gate = Gate::before(&url(&common::SERVER)?).await;
    let behind = RedisOptions::from_url(&gate.url())
        .unwrap()
        .inbox_name(options.name().clone())
        .shards(SHARDS)
        .unwrap();
    let behind = RedisStore::connect(behind).await.unwrap();
    // So that the server knows all scripts.
    assert!(behind.receive(&delivery("first")).await.is_ok());
    process(&store, claim(&store).await).await;
    let begun = behind
        .begin(&delivery("second")[0], &terms())
        .await
        .unwrap();
    assert!(matches!(begun, Begun::Run(_)));
    assert_eq!(purge(&store).await, HANDLERS as u64);
    Some((store, behind, gate))
}

async fn purge(store: &RedisStore) -> u64 {
    let all = Expired::new(State::Processed, Duration::ZERO, 1000).unwrap();
    store.purge(&all).await.unwrap()
}

/// Others see all of a delivery or nothing, wherever its sender stopped; and when that one goes on
/// long after the others have finished with the delivery, it stores nothing a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_stops_at_any_step_has_stored_all_or_nothing_and_may_go_on() {
    let Some((store, behind, gate)) = gated().await else {
        return;
    };
    let before = store.count(&Filter::default()).await.unwrap();
    let (mut steps, mut is_over) = (0, false);
    while !is_over {
        for purged in [false, true] {
            let sent = delivery(&format!("{steps} {purged}"));
            gate.let_through(steps);
            let sending = {
                let (behind, sent) = (behind.clone(), sent.clone());
                tokio::spawn(async move { behind.receive(&sent).await })
            };
            is_over = gate.is_reached(&sending).await;
            let is_stored = steps >= UNTIL_STORED;

            let mut found = 0;
            for message in &sent {
                found += usize::from(store.get(message.key()).await.unwrap().is_some());
            }
            let expected = if is_stored { HANDLERS } else { 0 };
            assert_eq!(found, expected, "after {steps} steps");
            let receipt = if is_stored {
                Receipt::Duplicate
            } else {
                Receipt::Accepted
            };
            let copy = store.receive(&sent).await.unwrap();
            assert!(
                copy.iter().all(|one| *one == receipt),
                "after {steps} steps: {copy:?}"
            );
            let leased = claim(&store).await;
            assert_eq!(leased.len(), HANDLERS, "after {steps} steps");
            process(&store, leased).await;
            // A sender that has stored nothing yet would rightly store a delivery that has been
            // forgotten.
            let is_purged = purged && is_stored;
            if is_purged {
                assert_eq!(purge(&store).await, HANDLERS as u64);
            }

            gate.open();
            let receipts = sending.await.unwrap().unwrap();
            let receipt = if is_stored {
                Receipt::Accepted
            } else {
                Receipt::Duplicate
            };
            assert!(
                receipts.iter().all(|one| *one == receipt),
                "{steps}: {receipts:?}"
            );
            tokio::time::sleep(Duration::from_millis(1200)).await;
            assert!(claim(&store).await.is_empty(), "after {steps} steps");
            let left = if is_purged { 0 } else { HANDLERS as u64 };
            let count = store.count(&Filter::default()).await.unwrap();
            assert_eq!(
                count - before,
                left,
                "after {steps} steps, purged: {purged}"
            );
            if is_purged {
                // Nothing is in the way of another delivery under this id.
                let again = store.receive(&sent).await.unwrap();
                assert!(
                    again.iter().all(|one| *one == Receipt::Accepted),
                    "{again:?}"
                );
                process(&store, claim(&store).await).await;
            }
            purge(&store).await;
        }
        steps += 1;
    }
    assert!(steps > UNTIL_STORED + 3, "{steps} steps");
}

/// Without anybody asking for the messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_sender_has_staged_is_placed_by_those_who_claim() {
    let Some((store, behind, gate)) = gated().await else {
        return;
    };
    for steps in UNTIL_STORED..UNTIL_STORED + 4 {
        let sent = delivery(&format!("after {steps}"));
        gate.let_through(steps);
        let sending = {
            let behind = behind.clone();
            tokio::spawn(async move { behind.receive(&sent).await })
        };
        assert!(!gate.is_reached(&sending).await);
        sending.abort();
        // Those that are placed already can be claimed at once.
        let mut leased = claim(&store).await;
        assert!(leased.len() < HANDLERS);
        tokio::time::sleep(Duration::from_millis(1200)).await;
        // One claim places them, the next one may have them.
        for _ in 0..2 {
            leased.extend(claim(&store).await);
        }
        assert_eq!(leased.len(), HANDLERS, "after {steps} steps");
        process(&store, leased).await;
        gate.open();
        // Behind all that was held back.
        behind.statistics().await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(claim(&store).await.is_empty());
}

/// Of two who begin the same message, one runs it, wherever the other stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_begins_and_stops_at_any_step_does_not_run_what_another_has_run() {
    let Some((store, behind, gate)) = gated().await else {
        return;
    };
    let (mut steps, mut is_over) = (0, false);
    while !is_over {
        // Some may belong to their home shard by chance; not all do.
        for message in delivery(&format!("begun after {steps}")) {
            let runs = Arc::new(AtomicUsize::new(0));
            gate.let_through(steps);
            let beginning = {
                let (behind, message, runs) = (behind.clone(), message.clone(), Arc::clone(&runs));
                tokio::spawn(async move {
                    let begun = behind.begin(&message, &terms()).await.unwrap();
                    runs.fetch_add(
                        usize::from(matches!(begun, Begun::Run(_))),
                        Ordering::Relaxed,
                    );
                })
            };
            is_over = gate.is_reached(&beginning).await;
            if let Begun::Run(leased) = store.begin(&message, &terms()).await.unwrap() {
                runs.fetch_add(1, Ordering::Relaxed);
                process(&store, vec![*leased]).await;
            }
            gate.open();
            beginning.await.unwrap();
            assert_eq!(runs.load(Ordering::Relaxed), 1, "after {steps} steps");
        }
        steps += 1;
    }
    assert!(steps > 3, "{steps} steps");
}
