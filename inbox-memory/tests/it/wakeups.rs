//! Wake-ups: each cause gives one signal, and what is no cause gives none.

use std::time::Duration;

use inbox_api::{
    AfterDead, Due, Edit, Extended, Intervention, Operate, Outcome, Receipt, Settled, Store,
    StoreExt, Subscription,
};
use tokio::time::{sleep, timeout};

use crate::common::{
    DONE, LEASE, dead, defer, fixture, handler, key, message, ordered, retry, terms,
};

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
    assert!(
        !is_woken(&mut woken).await,
        "nothing that it waits for is due"
    );

    f.accept(&[message("1").for_handler(handler("g"))]).await;
    assert!(is_woken(&mut woken).await, "receive");

    f.accept(&[ordered("a", "o"), ordered("b", "o")]).await;
    assert!(is_woken(&mut woken).await);
    assert!(!is_woken(&mut woken).await, "one signal for one cause");

    for (outcome, is_due) in [
        (Outcome::Release, true),
        (retry(Duration::ZERO), true),
        (retry(LEASE), false),
        (defer(Duration::ZERO), true),
        (defer(LEASE), false),
    ] {
        let leased = f.claim_one().await;
        let shown = format!("{outcome:?}");
        assert_eq!(f.settle(&leased, outcome).await, Settled::Done);
        assert_eq!(is_woken(&mut woken).await, is_due, "{shown}");
        f.clock.advance(LEASE);
    }
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
        f.store.replay(&key("b"), &Edit::default()).await.unwrap(),
        Intervention::Done
    );
    assert!(is_woken(&mut woken).await, "replay");
    f.accept(&[ordered("c", "o")]).await;
    assert!(f.store.begin(&ordered("b", "o"), &terms()).await.is_ok());
    assert!(is_woken(&mut woken).await);
    f.store.close().await;
    assert!(is_woken(&mut woken).await, "close");
}

#[tokio::test]
async fn processed_wakes_for_the_next_of_the_key() {
    let f = fixture();
    f.accept(&[ordered("a", "o"), ordered("b", "o"), ordered("c", "o")])
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

/// Defect: it woke, and a worker that renews what it has handed back before each claim claimed without end.
#[tokio::test]
async fn what_comes_too_late_wakes_nobody() {
    let f = fixture();
    f.accept(&[message("1")]).await;
    let leased = f.claim_one().await;
    assert_eq!(f.settle(&leased, Outcome::Release).await, Settled::Done);
    let mut woken = f.store.subscribe(&[handler("h")]).await.unwrap();
    let lease = std::slice::from_ref(&leased.lease);
    let extended = f.store.extend(lease, LEASE).await.unwrap();
    assert_eq!(extended, [Extended::LeaseLost]);
    assert_eq!(f.settle(&leased, Outcome::Release).await, Settled::Done);
    assert!(!is_woken(&mut woken).await);
}
