//! Many tasks at once, and wake-ups.

mod common;

use std::{collections::HashSet, time::Duration};

use common::{DONE, LEASE, dead, fixture, handler, key, keyed, message, retry, terms, worker};
use inbox_api::{
    AfterDead, Begun, Due, Intervention, Message, Operate, Outcome, Receipt, Settled, State, Store,
    StoreExt, Subscription,
};
use inbox_memory::MemoryStore;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_begins_of_one_key_one_runs() {
    let store = MemoryStore::new();
    let terms = terms();
    let begun = in_parallel(|_| {
        let (store, terms) = (store.clone(), terms.clone());
        async move { store.begin(&message("1"), &terms).await.unwrap() }
    })
    .await;
    let running = begun.iter().filter(|b| matches!(b, Begun::Run(_))).count();
    let busy = begun
        .iter()
        .filter(|b| matches!(b, Begun::Busy { .. }))
        .count();
    assert_eq!((running, busy), (1, TASKS - 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_workers_take_each_message_once() {
    let f = fixture();
    let sent: Vec<Message> = (0..2_000).map(|id| message(&id.to_string())).collect();
    f.accept(&sent).await;
    let taken = in_parallel(|_| {
        let store = f.store.clone();
        async move {
            let mut taken = Vec::new();
            loop {
                let claims = store
                    .claim_for(&handler("h"), 7, LEASE, &worker())
                    .await
                    .unwrap();
                if claims.leased.is_empty() {
                    return taken;
                }
                for leased in claims.leased {
                    assert_eq!(
                        store.settle_one(&leased.lease, DONE).await.unwrap(),
                        Settled::Done
                    );
                    taken.push(leased.message.id().clone());
                }
            }
        }
    })
    .await;
    let distinct: HashSet<_> = taken.iter().flatten().collect();
    assert_eq!(
        (distinct.len(), taken.iter().flatten().count()),
        (2_000, 2_000)
    );
    assert_eq!(
        f.store.statistics().await.unwrap().count(State::Processed),
        2_000
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_workers_on_one_ordering_key_keep_its_order() {
    let f = fixture();
    let sent: Vec<Message> = (0..300).map(|id| keyed(&id.to_string(), "o")).collect();
    f.accept(&sent).await;
    let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    in_parallel(|_| {
        let (store, log) = (f.store.clone(), log.clone());
        async move {
            while log.lock().unwrap().len() < 300 {
                let claims = store
                    .claim_for(&handler("h"), 5, LEASE, &worker())
                    .await
                    .unwrap();
                assert!(claims.leased.len() <= 1);
                let Some(leased) = claims.leased.first() else {
                    tokio::task::yield_now().await;
                    continue;
                };
                // Every first attempt fails; the retry must not be overtaken.
                let outcome = if leased.attempts.started == 1 {
                    retry(Duration::ZERO)
                } else {
                    log.lock().unwrap().push(leased.message.id().to_string());
                    DONE
                };
                assert_eq!(
                    store.settle_one(&leased.lease, outcome).await.unwrap(),
                    Settled::Done
                );
            }
        }
    })
    .await;
    let expected: Vec<String> = (0..300).map(|id| id.to_string()).collect();
    assert_eq!(*log.lock().unwrap(), expected);
}

async fn is_woken(subscription: &mut Box<dyn Subscription>) -> bool {
    timeout(Duration::from_millis(50), subscription.woken())
        .await
        .is_ok()
}

#[tokio::test]
async fn whatever_makes_work_claimable_wakes() {
    let f = fixture();
    let mut woken = f
        .store
        .subscribe(&[handler("g"), handler("h")])
        .await
        .unwrap();
    assert!(!is_woken(&mut woken).await);

    f.accept(&[message("later").with_due(Due::After(LEASE * 1_000))])
        .await;
    f.accept(&[message("foreign").for_handler(handler("other"))])
        .await;
    assert!(!is_woken(&mut woken).await, "nothing of its own is due");

    f.accept(&[message("1").for_handler(handler("g"))]).await;
    assert!(is_woken(&mut woken).await, "receive");

    f.accept(&[keyed("a", "o"), keyed("b", "o")]).await;
    assert!(is_woken(&mut woken).await);
    assert!(!is_woken(&mut woken).await, "one signal for one cause");

    for (outcome, is_due) in [
        (Outcome::Release, true),
        (retry(Duration::ZERO), true),
        (retry(LEASE), false),
    ] {
        let leased = f.claim_one().await;
        let shown = format!("{outcome:?}");
        assert_eq!(f.settle(&leased, outcome).await, Settled::Done);
        assert_eq!(is_woken(&mut woken).await, is_due, "{shown}");
    }
    f.clock.advance(LEASE);
    let leased = f.claim_one().await;
    assert_eq!(
        f.settle(&leased, dead(AfterDead::Block)).await,
        Settled::Done
    );
    assert!(!is_woken(&mut woken).await, "the key is blocked");
    assert_eq!(
        f.store.discard(&key("a")).await.unwrap(),
        Intervention::Done
    );
    assert!(is_woken(&mut woken).await, "discard");
    let leased = f.claim_one().await;
    assert_eq!(f.settle(&leased, DONE).await, Settled::Done);
    assert!(!is_woken(&mut woken).await, "nothing is left of the key");
    assert_eq!(
        f.store.replay(&key("b"), None).await.unwrap(),
        Intervention::Done
    );
    assert!(is_woken(&mut woken).await, "replay");
    f.accept(&[keyed("c", "o")]).await;
    assert!(f.store.begin(&keyed("b", "o"), &terms()).await.is_ok());
    assert!(is_woken(&mut woken).await);
    f.store.close().await;
    assert!(is_woken(&mut woken).await, "close");
}

#[tokio::test]
async fn processed_wakes_for_the_next_of_the_key() {
    let f = fixture();
    f.accept(&[keyed("a", "o"), keyed("b", "o"), keyed("c", "o")])
        .await;
    let mut woken = f.store.subscribe(&[handler("h")]).await.unwrap();
    assert!(!is_woken(&mut woken).await, "it is from now on");
    for outcome in [DONE, dead(AfterDead::Continue)] {
        let leased = f.claim_one().await;
        assert!(!is_woken(&mut woken).await);
        assert_eq!(f.settle(&leased, outcome).await, Settled::Done);
        assert!(is_woken(&mut woken).await);
    }
}

#[tokio::test]
async fn a_dropped_wait_loses_no_signal() {
    let f = fixture();
    let mut woken = f.store.subscribe(&[handler("h")]).await.unwrap();
    {
        // Signalled while it waits, and dropped before it is polled again.
        let mut wait = std::pin::pin!(woken.woken());
        assert!(timeout(Duration::from_millis(1), &mut wait).await.is_err());
        f.accept(&[message("1")]).await;
    }
    assert!(is_woken(&mut woken).await);
}

#[tokio::test]
async fn every_subscription_is_woken_and_dropped_ones_do_no_harm() {
    let f = fixture();
    let handlers = [handler("h")];
    drop(f.store.subscribe(&handlers).await.unwrap());
    let mut first = f.store.subscribe(&handlers).await.unwrap();
    let mut second = f.store.clone().subscribe(&handlers).await.unwrap();
    let store = f.store.clone();
    let sender = tokio::spawn(async move {
        sleep(Duration::from_millis(10)).await;
        store.receive_one(&message("1")).await.unwrap()
    });
    timeout(Duration::from_secs(5), async {
        tokio::join!(first.woken(), second.woken())
    })
    .await
    .expect("both are woken");
    assert_eq!(sender.await.unwrap(), Receipt::Accepted);
}
