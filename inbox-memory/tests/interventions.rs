//! Replaying, discarding, purging.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::Duration;

use common::{
    DONE, Fixture, LEASE, all, dead, fixture, handler, key, message, one_of_each, states, with,
};
use inbox_api::{
    AfterDead, Bytes, Due, ErrorKind, Expired, Filter, Intervention, Key, MessageId, Operate,
    Progress, Receipt, Settled, Slice, State, StoreExt,
};
use inbox_memory::MemoryOptions;

const SECOND: Duration = Duration::from_secs(1);

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
            f.store.replay(&key(id), None).await.unwrap(),
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

#[tokio::test]
async fn a_dropped_payload_has_to_be_brought() {
    let f = with(MemoryOptions {
        drop_processed_payloads: true,
        payload_limit: 20,
        ..MemoryOptions::default()
    });
    f.finished(&message("1"), DONE).await;
    assert_eq!(
        f.store.replay(&key("1"), None).await.unwrap(),
        Intervention::PayloadDropped
    );
    let processed = states(&[State::Processed]);
    let slice = Slice {
        after: None,
        limit: 1,
    };
    let passed_over = Progress {
        changed: 0,
        next: None,
    };
    assert_eq!(
        f.store.replay_slice(&processed, &slice).await.unwrap(),
        passed_over
    );
    let error = f
        .store
        .replay(&key("1"), Some(vec![0; 21].into()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(f.state("1").await, State::Processed);
    assert_eq!(
        f.store
            .replay(&key("1"), Some(vec![7; 20].into()))
            .await
            .unwrap(),
        Intervention::Done
    );
    assert_eq!(
        f.claim_one().await.message.payload(),
        &Bytes::from(vec![7; 20])
    );
}

#[tokio::test]
async fn discard_answers_for_every_state() {
    let f = one_of_each().await;
    for (id, expected) in [
        ("unknown", Intervention::NotFound),
        ("leased", Intervention::WrongState(State::Leased)),
        ("processed", Intervention::WrongState(State::Processed)),
        ("discarded", Intervention::WrongState(State::Discarded)),
        ("pending", Intervention::Done),
        ("ran-out", Intervention::Done),
        ("dead", Intervention::Done),
    ] {
        assert_eq!(f.store.discard(&key(id)).await.unwrap(), expected, "{id}");
    }
    assert_eq!(f.record("dead").await.last_error.as_deref(), Some("poison"));
    f.clock.advance(LEASE);
    assert_eq!(f.claim_ids(10).await, ["leased"]);
    assert_eq!(
        f.store.receive_one(&message("pending")).await.unwrap(),
        Receipt::Duplicate
    );
}

#[tokio::test]
async fn slices_walk_forward_and_end() {
    let f = fixture();
    for id in 0..5 {
        let name = if id % 2 == 0 { "h" } else { "g" };
        let sent = message(&id.to_string()).for_handler(handler(name));
        f.accept(&[sent]).await;
        let leased = f.claim_of(name, 1).await.remove(0);
        assert_eq!(
            f.settle(&leased, dead(AfterDead::Continue)).await,
            Settled::Done
        );
    }
    f.accept(&[message("pending").with_due(Due::After(LEASE))])
        .await;
    let mut slice = Slice {
        after: None,
        limit: 2,
    };
    let mut changed = Vec::new();
    loop {
        let progress = f
            .store
            .replay_slice(&Filter::default(), &slice)
            .await
            .unwrap();
        changed.push(progress.changed);
        // Those that die again behind the cursor are not met twice.
        for leased in f.claim(10).await {
            assert_eq!(
                f.settle(&leased, dead(AfterDead::Continue)).await,
                Settled::Done
            );
        }
        let Some(next) = progress.next else { break };
        slice.after = Some(next);
    }
    assert_eq!(changed, [2, 2, 1]);

    let nothing = Progress {
        changed: 0,
        next: None,
    };
    let none = Slice {
        after: None,
        limit: 0,
    };
    assert_eq!(
        f.store
            .replay_slice(&states(&[State::Dead]), &none)
            .await
            .unwrap(),
        nothing
    );
}

#[tokio::test]
async fn slices_change_only_eligible_states() {
    let slice = Slice {
        after: None,
        limit: 100,
    };
    let changed = |changed| Progress {
        changed,
        next: None,
    };
    let f = one_of_each().await;
    let open = states(&[State::Pending, State::Leased]);
    assert_eq!(
        f.store.replay_slice(&open, &slice).await.unwrap(),
        changed(0)
    );
    assert_eq!(
        f.store
            .replay_slice(&Filter::default(), &slice)
            .await
            .unwrap(),
        changed(1)
    );
    assert_eq!(
        f.store
            .replay_slice(&states(&State::ALL), &slice)
            .await
            .unwrap(),
        changed(2)
    );
    assert_eq!(f.state("leased").await, State::Leased);

    let f = one_of_each().await;
    let not_eligible = states(&[State::Processed, State::Leased, State::Discarded]);
    assert_eq!(
        f.store.discard_slice(&not_eligible, &slice).await.unwrap(),
        changed(0)
    );
    assert_eq!(
        f.store
            .discard_slice(&Filter::default(), &slice)
            .await
            .unwrap(),
        changed(1)
    );
    assert_eq!(f.state("pending").await, State::Pending);
    assert_eq!(
        f.store
            .discard_slice(&states(&State::ALL), &slice)
            .await
            .unwrap(),
        changed(2)
    );
    assert_eq!(f.state("ran-out").await, State::Discarded);
}

/// Processed in the order 2, 1, 3, a minute apart, and one of each other state.
async fn finished_at_different_times() -> Fixture {
    let f = one_of_each().await;
    let minute = SECOND * 60;
    f.clock.advance(minute);
    f.accept(&[
        message("1").for_handler(handler("a")),
        message("2").for_handler(handler("b")),
        message("3").for_handler(handler("a")),
    ])
    .await;
    for name in ["b", "a", "a"] {
        assert_eq!(
            f.settle(&f.claim_of(name, 1).await[0], DONE).await,
            Settled::Done
        );
        f.clock.advance(minute);
    }
    f
}

async fn expired_ids(f: &Fixture, expired: &Expired) -> Vec<String> {
    let listing = f.store.expired(expired).await.unwrap();
    assert!(listing.records.iter().all(|r| r.payload.is_some()));
    let ids = listing.records.iter().map(|r| r.key.id.to_string());
    ids.collect()
}

#[tokio::test]
async fn purge_takes_the_longest_finished_first_and_nothing_else() {
    let f = finished_at_different_times().await;
    let minute = SECOND * 60;
    let processed = |older_than, limit| Expired::new(State::Processed, older_than, limit).unwrap();
    assert_eq!(f.store.purge(&processed(minute * 10, 10)).await.unwrap(), 0);
    assert_eq!(f.store.purge(&processed(minute, 0)).await.unwrap(), 0);
    assert_eq!(
        expired_ids(&f, &processed(minute, 2)).await,
        ["processed", "2"]
    );
    assert_eq!(f.store.purge(&processed(minute, 2)).await.unwrap(), 2);
    assert_eq!(expired_ids(&f, &processed(minute * 2, 9)).await, ["1"]);
    assert_eq!(f.store.purge(&processed(minute * 2, 9)).await.unwrap(), 1);
    assert_eq!(
        all(&f, &Filter::default()).await,
        ["ran-out", "dead", "discarded", "leased", "pending", "3"]
    );
    for state in [State::Dead, State::Discarded] {
        let expired = Expired::new(state, Duration::ZERO, 9).unwrap();
        assert_eq!(f.store.purge(&expired).await.unwrap(), 1);
    }
    assert_eq!(
        all(&f, &Filter::default()).await,
        ["ran-out", "leased", "pending", "3"]
    );
}

#[tokio::test]
async fn only_what_was_archived_and_is_still_expired_goes() {
    let f = finished_at_different_times().await;
    let expired = Expired::new(State::Processed, SECOND * 60, 1).unwrap();
    let keys = [
        Key::new(handler("a"), MessageId::new("1").unwrap()),
        key("processed"),
        key("processed"),
        key("dead"),
        key("pending"),
        key("unknown"),
        Key::new(handler("unknown"), MessageId::new("1").unwrap()),
    ];
    assert_eq!(
        f.store.replay(&keys[0], None).await.unwrap(),
        Intervention::Done
    );
    assert_eq!(f.store.purge_archived(&expired, &keys).await.unwrap(), 1);
    assert_eq!(f.store.get(&key("processed")).await.unwrap(), None);
    assert!(f.store.get(&keys[0]).await.unwrap().is_some());
    assert_eq!(f.state("dead").await, State::Dead);
}
