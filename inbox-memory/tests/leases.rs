//! Claiming, settling, extending, beginning: who holds what, and what a stale token can do.

mod common;

use std::time::Duration;

use common::{
    DONE, LEASE, dead, fixture, handler, key, keyed, message, retry, terms, with, worker,
};
use inbox_api::{
    AfterDead, Begun, Bytes, ClaimRequest, Due, ErrorKind, Extended, Intervention, Invalid,
    LeaseTerms, Operate, Outcome, Settled, Settlement, State, Store, StoreExt,
};
use inbox_memory::MemoryOptions;

#[tokio::test]
async fn a_leased_message_is_nobody_elses_until_the_lease_runs_out() {
    let f = fixture();
    f.accept(&[message("1")]).await;
    let first = f.claim_one().await;
    assert_eq!(first.attempts.started, 1);
    assert!(f.claim(10).await.is_empty());
    assert_eq!(f.record("1").await.lease_until, Some(first.lease.until));
    f.clock.advance(LEASE);
    let shown = f.record("1").await;
    assert_eq!((shown.state, shown.lease_until), (State::Pending, None));
    assert_eq!(shown.worker, Some(worker()));
    let second = f.claim_one().await;
    assert_eq!((second.attempts.started, second.attempts.finished), (2, 0));
    assert!(second.lease.token > first.lease.token);
    for outcome in [DONE, Outcome::Release, retry(LEASE), dead(AfterDead::Block)] {
        assert_eq!(f.settle(&first, outcome).await, Settled::LeaseLost);
    }
    assert_eq!(
        f.store.extend_one(&first.lease, LEASE).await.unwrap(),
        Extended::LeaseLost
    );
    assert_eq!(f.settle(&second, DONE).await, Settled::Done);
    assert_eq!(f.state("1").await, State::Processed);
}

#[tokio::test]
async fn settling_twice_is_done_and_changes_nothing() {
    let f = fixture();
    for (id, outcome) in [
        ("processed", DONE),
        ("retried", retry(LEASE)),
        ("released", Outcome::Release),
        ("dead", dead(AfterDead::Continue)),
    ] {
        f.accept(&[message(id)]).await;
        let leased = f.claim_one().await;
        assert_eq!(f.settle(&leased, outcome).await, Settled::Done);
        let settled = f.record(id).await;
        f.clock.advance(Duration::from_secs(1));
        assert_eq!(f.settle(&leased, DONE).await, Settled::Done);
        assert_eq!(f.record(id).await, settled);
        // Out of the way of the next one.
        let _ = f.store.discard(&key(id)).await.unwrap();
    }
}

#[tokio::test]
async fn each_settlement_of_a_batch_is_answered_in_its_place() {
    let f = with(MemoryOptions {
        payload_limit: 20,
        ..MemoryOptions::default()
    });
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
    assert_eq!(retried.last_error.as_deref(), Some("try again"));
}

#[tokio::test]
async fn a_retry_waits_and_a_release_does_not() {
    let f = fixture();
    f.accept(&[message("1"), message("2")]).await;
    let leased = f.claim(2).await;
    let wait = Duration::from_secs(10);
    assert_eq!(f.settle(&leased[0], retry(wait)).await, Settled::Done);
    assert_eq!(f.settle(&leased[1], Outcome::Release).await, Settled::Done);
    let again = f.claim(10).await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].message.id(), leased[1].message.id());
    assert_eq!(again[0].attempts.started, 1);
    f.clock.advance(wait);
    let retried = f.claim_one().await;
    assert_eq!(
        (retried.attempts.started, retried.attempts.finished),
        (2, 1)
    );
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
async fn an_extension_counts_from_now_and_revives() {
    let f = fixture();
    f.accept(&[message("1")]).await;
    let leased = f.claim_one().await;
    f.clock.advance(LEASE * 2);
    assert_eq!(f.state("1").await, State::Pending);
    let extended = f.store.extend_one(&leased.lease, LEASE).await.unwrap();
    assert!(matches!(extended, Extended::Until(until) if until >= leased.lease.until + LEASE * 2));
    assert!(f.claim(1).await.is_empty());
    // It shortens too.
    let short = Duration::from_secs(1);
    assert!(matches!(
        f.store.extend_one(&leased.lease, short).await.unwrap(),
        Extended::Until(_)
    ));
    f.clock.advance(short);
    assert_eq!(f.claim_ids(1).await, ["1"]);
    for length in [Duration::ZERO, LeaseTerms::MAX + short] {
        let error = f.store.extend_one(&leased.lease, length).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn begin_answers_for_every_state() {
    let f = fixture();
    let begin = async |id: &str| f.store.begin(&message(id), &terms()).await.unwrap();

    let Begun::Run(leased) = begin("new").await else {
        panic!("a new message runs");
    };
    assert_eq!(leased.attempts.started, 1);
    assert_eq!(
        begin("new").await,
        Begun::Busy {
            until: leased.lease.until
        }
    );
    f.clock.advance(LEASE);
    let Begun::Run(again) = begin("new").await else {
        panic!("a lease that ran out is taken anew");
    };
    assert!(again.lease.token > leased.lease.token);
    let result = Some(Bytes::from_static(b"r"));
    let outcome = Outcome::Processed {
        result: result.clone(),
    };
    assert_eq!(f.settle(&again, outcome).await, Settled::Done);
    assert_eq!(begin("new").await, Begun::Processed { result });

    f.finished(&message("dead"), dead(AfterDead::Block)).await;
    assert_eq!(
        begin("dead").await,
        Begun::Dead {
            reason: "poison".into()
        }
    );

    f.finished(&message("retried"), retry(LEASE)).await;
    let due_at = f.record("retried").await.due_at;
    assert_eq!(begin("retried").await, Begun::Busy { until: due_at });

    f.accept(&[message("discarded")]).await;
    assert_eq!(
        f.store.discard(&key("discarded")).await.unwrap(),
        Intervention::Done
    );
    assert_eq!(begin("discarded").await, Begun::Discarded);

    let later = message("later").with_due(Due::After(LEASE));
    let begun = f.store.begin(&later, &terms()).await.unwrap();
    let due_at = f.record("later").await.due_at;
    assert_eq!(begun, Begun::Busy { until: due_at });

    f.accept(&[keyed("first", "o")]).await;
    let second = keyed("second", "o");
    assert_eq!(
        f.store.begin(&second, &terms()).await.unwrap(),
        Begun::Blocked
    );
    assert_eq!(f.state("second").await, State::Pending);
    let third = keyed("third", "o").with_due(Due::After(LEASE));
    let begun = f.store.begin(&third, &terms()).await.unwrap();
    assert!(matches!(begun, Begun::Busy { .. }));
}

#[tokio::test]
async fn begin_runs_the_message_as_it_is_stored() {
    let f = fixture();
    f.finished(&message("1"), dead(AfterDead::Continue)).await;
    let edited = Bytes::from_static(b"edited");
    assert_eq!(
        f.store
            .replay(&key("1"), Some(edited.clone()))
            .await
            .unwrap(),
        Intervention::Done
    );
    let Begun::Run(leased) = f.store.begin(&message("1"), &terms()).await.unwrap() else {
        panic!("a replayed message runs");
    };
    assert_eq!(leased.message.payload(), &edited);
}

#[tokio::test]
async fn begin_refuses_what_breaks_a_rule() {
    let f = with(MemoryOptions {
        payload_limit: 3,
        ..MemoryOptions::default()
    });
    let error = f.store.begin(&message("1"), &terms()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(f.store.get(&key("1")).await.unwrap(), None);
}
