//! Ordering keys: who is handed out, and who waits.

mod common;

use std::time::Duration;

use common::{DONE, LEASE, dead, fixture, handler, key, keyed, message, retry, terms};
use inbox_api::{
    AfterDead, Begun, Due, Expired, Intervention, Operate, Outcome, Settled, State, Store,
};

#[tokio::test]
async fn one_message_of_a_key_at_a_time_in_order_of_acceptance() {
    let f = fixture();
    f.accept(&[
        keyed("a1", "a"),
        keyed("a2", "a"),
        keyed("b1", "b"),
        message("free"),
        keyed("a3", "a"),
    ])
    .await;
    let first = f.claim(10).await;
    let ids: Vec<_> = first.iter().map(|l| l.message.id().as_str()).collect();
    assert_eq!(ids, ["a1", "b1", "free"]);
    assert!(f.claim(10).await.is_empty());
    assert_eq!(f.settle(&first[0], DONE).await, Settled::Done);
    assert_eq!(f.claim_ids(10).await, ["a2"]);
}

#[tokio::test]
async fn the_same_ordering_key_of_another_handler_is_another_key() {
    let f = fixture();
    f.accept(&[keyed("1", "a"), keyed("2", "a").for_handler(handler("g"))])
        .await;
    assert_eq!(f.claim_ids(10).await, ["1"]);
    assert_eq!(f.claim_of("g", 10).await.len(), 1);
}

#[tokio::test]
async fn a_retry_is_not_overtaken() {
    let f = fixture();
    f.accept(&[keyed("1", "a"), keyed("2", "a")]).await;
    let wait = Duration::from_secs(60);
    let first = f.claim_one().await;
    assert_eq!(f.settle(&first, retry(wait)).await, Settled::Done);
    assert!(f.claim(10).await.is_empty());
    f.clock.advance(wait);
    assert_eq!(f.claim_ids(10).await, ["1"]);
}

#[tokio::test]
async fn neither_is_a_due_time_a_release_or_a_lease_that_ran_out() {
    let f = fixture();
    f.accept(&[keyed("1", "a").with_due(Due::After(LEASE)), keyed("2", "a")])
        .await;
    assert!(f.claim(10).await.is_empty());
    f.clock.advance(LEASE);
    let first = f.claim_one().await;
    assert_eq!(f.settle(&first, Outcome::Release).await, Settled::Done);
    assert_eq!(f.claim_ids(10).await, ["1"]);
    f.clock.advance(LEASE);
    assert_eq!(f.claim_ids(10).await, ["1"]);
}

#[tokio::test]
async fn a_dead_message_lets_the_next_through_or_blocks() {
    let f = fixture();
    f.accept(&[keyed("1", "a"), keyed("2", "a"), keyed("3", "a")])
        .await;
    let first = f.claim_one().await;
    assert_eq!(
        f.settle(&first, dead(AfterDead::Continue)).await,
        Settled::Done
    );
    let second = f.claim_one().await;
    assert_eq!(second.message.id().as_str(), "2");
    assert_eq!(
        f.settle(&second, dead(AfterDead::Block)).await,
        Settled::Done
    );
    assert!(f.record("2").await.blocks_ordering_key);
    assert!(!f.record("1").await.blocks_ordering_key);
    f.clock.advance(LEASE * 100);
    assert!(f.claim(10).await.is_empty());
    let terms = terms();
    assert_eq!(
        f.store.begin(&keyed("3", "a"), &terms).await.unwrap(),
        Begun::Blocked
    );
}

#[tokio::test]
async fn a_blocked_key_moves_on_by_replay_discard_or_purge() {
    for way in ["replay", "discard", "purge"] {
        let f = fixture();
        f.accept(&[keyed("1", "a"), keyed("2", "a")]).await;
        let first = f.claim_one().await;
        assert_eq!(
            f.settle(&first, dead(AfterDead::Block)).await,
            Settled::Done
        );
        assert!(f.claim(10).await.is_empty());
        let next = match way {
            "replay" => {
                let done = f.store.replay(&key("1"), None).await.unwrap();
                assert_eq!(done, Intervention::Done);
                "1"
            }
            "discard" => {
                let done = f.store.discard(&key("1")).await.unwrap();
                assert_eq!(done, Intervention::Done);
                "2"
            }
            _ => {
                let all = Expired::new(State::Dead, Duration::ZERO, 10).unwrap();
                assert_eq!(f.store.purge(&all).await.unwrap(), 1);
                "2"
            }
        };
        assert_eq!(f.claim_ids(10).await, [next], "{way}");
    }
}

#[tokio::test]
async fn blocking_without_an_ordering_key_has_no_effect() {
    let f = fixture();
    f.accept(&[message("1"), message("2")]).await;
    let leased = f.claim_one().await;
    assert_eq!(
        f.settle(&leased, dead(AfterDead::Block)).await,
        Settled::Done
    );
    assert!(!f.record("1").await.blocks_ordering_key);
    assert_eq!(f.claim_ids(10).await, ["2"]);
}

#[tokio::test]
async fn a_replayed_message_takes_its_old_place_but_interrupts_nobody() {
    let f = fixture();
    f.accept(&[keyed("1", "a"), keyed("2", "a"), keyed("3", "a")])
        .await;
    let first = f.claim_one().await;
    assert_eq!(f.settle(&first, DONE).await, Settled::Done);
    let second = f.claim_one().await;
    assert_eq!(
        f.store.replay(&key("1"), None).await.unwrap(),
        Intervention::Done
    );
    // The second is being worked on; also when its lease has run out it stays the head.
    assert!(f.claim(10).await.is_empty());
    f.clock.advance(LEASE);
    let second_again = f.claim_one().await;
    assert_eq!(second_again.message.id(), second.message.id());
    // Once it waits, the earlier one comes first.
    assert_eq!(
        f.settle(&second_again, retry(Duration::ZERO)).await,
        Settled::Done
    );
    let replayed = f.claim_one().await;
    assert_eq!(replayed.message.id().as_str(), "1");
    assert!(replayed.lease.token > first.lease.token);
    assert_eq!(f.settle(&replayed, DONE).await, Settled::Done);
    assert_eq!(f.claim_ids(10).await, ["2"]);
}

#[tokio::test]
async fn discarding_the_head_lets_the_next_through() {
    let f = fixture();
    f.accept(&[keyed("1", "a"), keyed("2", "a"), keyed("3", "a")])
        .await;
    // One that waits behind the head can be discarded as well.
    assert_eq!(
        f.store.discard(&key("2")).await.unwrap(),
        Intervention::Done
    );
    let first = f.claim_one().await;
    assert_eq!(
        f.store.discard(&key("1")).await.unwrap(),
        Intervention::WrongState(State::Leased)
    );
    f.clock.advance(LEASE);
    assert_eq!(
        f.store.discard(&key("1")).await.unwrap(),
        Intervention::Done
    );
    assert_eq!(f.claim_ids(10).await, ["3"]);
    assert_eq!(f.settle(&first, DONE).await, Settled::LeaseLost);
    assert_eq!(f.state("1").await, State::Discarded);
}
