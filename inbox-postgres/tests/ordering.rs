//! Ordering keys: one at a time, in the order of acceptance.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::*;
use inbox_api::{
    AfterDead, Begun, Due, Expired, Intervention, Operate, Outcome, Settled, State, Store, StoreExt,
};

#[tokio::test]
async fn one_at_a_time_in_the_order_of_acceptance() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    let batch = [
        ordered("a1", "a"),
        ordered("a2", "a"),
        ordered("b1", "b"),
        message("free"),
    ];
    store.receive(&batch).await.unwrap();
    store.receive(&[ordered("a3", "a")]).await.unwrap();
    let first = claim(store, 10).await;
    assert_eq!(ids(&first), ["a1", "b1", "free"]);
    let begun = store.begin(&ordered("a2", "a"), &terms()).await.unwrap();
    assert_eq!(begun, Begun::Blocked);
    settle(store, &first[0].lease, processed()).await;
    let second = claim(store, 10).await;
    assert_eq!(ids(&second), ["a2"]);
    // Neither a retry nor a lease that ran out is overtaken.
    settle(store, &second[0].lease, retry(Duration::from_secs(5))).await;
    assert_eq!(claim(store, 10).await, []);
    ready.place.advance(Duration::from_secs(5)).await;
    assert_eq!(ids(&claim(store, 10).await), ["a2"]);
    ready.place.advance(LENGTH).await;
    let again = claim(store, 10).await;
    assert!(ids(&again).contains(&"a2") && !ids(&again).contains(&"a3"));
    let a2 = again
        .iter()
        .find(|l| l.message.id().as_str() == "a2")
        .unwrap();
    settle(store, &a2.lease, Outcome::Release).await;
    assert_eq!(ids(&claim(store, 10).await), ["a2"]);
    check::check_consistent(&ready).await;
}

#[tokio::test]
async fn a_first_message_that_is_not_due_holds_the_others() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    let later = ordered("a1", "a").with_due(Due::After(LENGTH));
    store.receive(&[later, ordered("a2", "a")]).await.unwrap();
    assert_eq!(claim(store, 10).await, []);
    let begun = store.begin(&ordered("a2", "a"), &terms()).await.unwrap();
    assert_eq!(begun, Begun::Blocked);
    let begun = store
        .begin(&ordered("a3", "a").with_due(Due::After(LENGTH)), &terms())
        .await
        .unwrap();
    assert!(matches!(begun, Begun::Busy { .. }));
    ready.place.advance(LENGTH).await;
    assert_eq!(ids(&claim(store, 10).await), ["a1"]);
}

#[tokio::test]
async fn a_dead_message_lets_the_next_through_or_blocks() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    let batch = ["a1", "a2", "a3", "a4"].map(|id| ordered(id, "a"));
    store.receive(&batch).await.unwrap();
    let lease = claim_one(store).await;
    settle(store, &lease, dead(AfterDead::Continue)).await;
    let lease = claim_one(store).await;
    settle(store, &lease, dead(AfterDead::Block)).await;
    assert!(get(store, "a2").await.blocks_ordering_key);
    assert_eq!(claim(store, 10).await, []);
    // A new message does not slip in, and the dead one before the blocker changes nothing.
    store.receive(&[ordered("a5", "a")]).await.unwrap();
    assert_eq!(store.discard(&key("a1")).await.unwrap(), Intervention::Done);
    assert_eq!(claim(store, 10).await, []);
    assert_eq!(store.discard(&key("a2")).await.unwrap(), Intervention::Done);
    assert!(!get(store, "a2").await.blocks_ordering_key);
    let next = claim(store, 10).await;
    assert_eq!(ids(&next), ["a3"]);

    settle(store, &next[0].lease, dead(AfterDead::Block)).await;
    let expired = Expired::new(State::Dead, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    assert_eq!(
        ids(&claim(store, 10).await),
        ["a4"],
        "the blocker was purged"
    );
    check::check_consistent(&ready).await;
}

#[tokio::test]
async fn a_replayed_message_gets_its_old_place() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    let batch = ["a1", "a2", "a3"].map(|id| ordered(id, "a"));
    store.receive(&batch).await.unwrap();
    for _ in 0..2 {
        let lease = claim_one(store).await;
        settle(store, &lease, dead(AfterDead::Continue)).await;
    }
    // Before a later one that waits …
    assert_eq!(
        store.replay(&key("a2"), None).await.unwrap(),
        Intervention::Done
    );
    let held = claim(store, 10).await;
    assert_eq!(ids(&held), ["a2"]);
    // … but not while a later one is held, and then before it.
    assert_eq!(
        store.replay(&key("a1"), None).await.unwrap(),
        Intervention::Done
    );
    assert_eq!(claim(store, 10).await, []);
    let begun = store.begin(&ordered("a1", "a"), &terms()).await.unwrap();
    assert_eq!(begun, Begun::Blocked);
    let settled = store
        .settle_one(&held[0].lease, retry(Duration::ZERO))
        .await
        .unwrap();
    assert_eq!(settled, Settled::Done);
    for id in ["a1", "a2", "a3"] {
        let next = claim(store, 10).await;
        assert_eq!(ids(&next), [id]);
        settle(store, &next[0].lease, processed()).await;
    }
    check::check_consistent(&ready).await;
}

#[tokio::test]
async fn a_batch_of_replays_and_discards_keeps_one_head_per_key() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    let batch: Vec<_> = (0..20)
        .map(|n| ordered(&format!("{n:02}"), if n % 2 == 0 { "even" } else { "odd" }))
        .collect();
    store.receive(&batch).await.unwrap();
    for _ in 0..5 {
        for leased in claim(store, 10).await {
            settle(store, &leased.lease, dead(AfterDead::Block)).await;
        }
        let slice = inbox_api::Slice {
            after: None,
            limit: 10,
        };
        let all = inbox_api::Filter::default();
        assert_eq!(store.discard_slice(&all, &slice).await.unwrap().changed, 2);
    }
    let discarded = inbox_api::Filter {
        states: vec![State::Discarded],
        ..Default::default()
    };
    let slice = inbox_api::Slice {
        after: None,
        limit: 100,
    };
    assert_eq!(
        store
            .replay_slice(&discarded, &slice)
            .await
            .unwrap()
            .changed,
        10
    );
    let mut seen = Vec::new();
    loop {
        let leased = claim(store, 10).await;
        if leased.is_empty() {
            break;
        }
        assert!(leased.len() <= 2);
        for leased in leased {
            seen.push(leased.message.id().as_str().to_owned());
            settle(store, &leased.lease, processed()).await;
        }
    }
    assert_eq!(seen.len(), 20);
    assert!(seen.is_sorted(), "{seen:?}");
}

#[tokio::test]
async fn a_lost_lease_that_is_discarded_fences_its_holder() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    store
        .receive(&[ordered("a1", "a"), ordered("a2", "a")])
        .await
        .unwrap();
    let lost = claim_one(store).await;
    let answer = store.discard(&key("a1")).await.unwrap();
    assert_eq!(answer, Intervention::WrongState(State::Leased));
    ready.place.advance(LENGTH).await;
    assert_eq!(store.discard(&key("a1")).await.unwrap(), Intervention::Done);
    let settled = store.settle_one(&lost, processed()).await.unwrap();
    assert_eq!(settled, Settled::LeaseLost);
    assert_eq!(ids(&claim(store, 10).await), ["a2"]);
}
