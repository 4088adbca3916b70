//! What others' locks may cost: another connection of the file holds the write lock meanwhile.

use std::{
    future::Future,
    time::{Duration, Instant, SystemTime},
};

use inbox_api::{
    Begun, Due, Edit, ErrorKind, Extended, Filter, Operate, Outcome, PurgeRequest, Receipt, Schema,
    Settled, Settlement, Slice, State, Store, StoreExt, Subscription, Transactional, from_micros,
};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{Connection, Executor, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::common::*;

/// Starts `operation` while another connection has the write lock, lets an hour pass by the
/// store's clock, and gives the lock back.
async fn an_hour_late<F, T>(inbox: &TestInbox, operation: impl FnOnce(SqliteStore) -> F) -> T
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let held = lock(inbox).await;
    let running = tokio::spawn(operation(inbox.store.clone()));
    // Until it waits for the lock. On a machine that is too slow for this the operation simply
    // begins later.
    tokio::time::sleep(Duration::from_millis(300)).await;
    inbox.clock.advance(Duration::from_secs(3600));
    // Until it has found the lock taken once more: an attempt may have read the time just before.
    tokio::time::sleep(Duration::from_millis(300)).await;
    unlock(held).await;
    running.await.unwrap()
}

fn now(inbox: &TestInbox) -> SystemTime {
    from_micros(inbox.clock.now_micros())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_measured_from_when_they_are_handed_out() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    store.receive(&[message("1"), message("2")]).await.unwrap();

    let claims = an_hour_late(&inbox, async |store: SqliteStore| {
        store.claim(&request(1)).await.unwrap()
    })
    .await;
    let lease = claims.leased[0].lease.clone();
    assert!(lease.until > now(&inbox), "claim");

    let held = lease.clone();
    let extended = an_hour_late(&inbox, async move |store: SqliteStore| {
        store.extend(&[held], LEASE).await.unwrap()
    })
    .await;
    let Extended::Until(until) = extended[0] else {
        panic!("the lease was lost");
    };
    assert!(until > now(&inbox), "extend");
    assert_eq!(get(store, "1").await.state, State::Leased);

    let begun = an_hour_late(&inbox, async |store: SqliteStore| {
        store.begin(&message("2"), &terms()).await.unwrap()
    })
    .await;
    let Begun::Run(leased) = begun else {
        panic!("not run but {begun:?}");
    };
    assert!(leased.lease.until > now(&inbox), "begin");
    assert_eq!(get(store, "2").await.state, State::Leased);
    // The other one ran out during that hour.
    assert_eq!(get(store, "1").await.state, State::Pending);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_are_measured_from_when_they_are_stored() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    store.receive(&[message("1")]).await.unwrap();
    let lease = claim_one(store).await;
    let settled = an_hour_late(&inbox, async move |store: SqliteStore| {
        store.settle_one(&lease, retry(LEASE)).await.unwrap()
    })
    .await;
    assert_eq!(settled, Settled::Done);
    assert!(get(store, "1").await.due_at > now(&inbox), "retry");

    let _ = an_hour_late(&inbox, async move |store: SqliteStore| {
        let later = message("2").with_due(Due::After(LEASE));
        store.receive(&[later]).await.unwrap()
    })
    .await;
    let record = get(store, "2").await;
    assert!(record.due_at > now(&inbox), "due");
    assert!(record.accepted_at + Duration::from_secs(1800) > now(&inbox));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ran_out_during_the_wait_is_free() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let first = begin(store, &message("1")).await;
    let begun = an_hour_late(&inbox, async |store: SqliteStore| {
        store.begin(&message("1"), &terms()).await.unwrap()
    })
    .await;
    let Begun::Run(second) = begun else {
        panic!("not run but {begun:?}");
    };
    assert!(second.lease.token > first.lease.token);
    let settled = store.settle_one(&first.lease, processed()).await.unwrap();
    assert_eq!(settled, Settled::LeaseLost);
}

#[tokio::test]
async fn a_claim_that_finds_nothing_needs_no_write_lock() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let later = message("later").with_due(Due::After(LEASE));
    store.receive(&[later, message("held")]).await.unwrap();
    assert_eq!(ids(&claim(store, 10).await), ["held"]);
    // The first one that is empty shows that work has run out.
    assert!(claim(store, 10).await.is_empty());
    let held = lock(&inbox).await;
    for _ in 0..3 {
        assert!(claim(store, 10).await.is_empty());
    }
    unlock(held).await;
    inbox.clock.advance(LEASE);
    assert_eq!(claim(store, 10).await.len(), 2);
}

/// Takes what wake-ups are still on their way.
async fn settle_down(subscription: &mut Box<dyn Subscription>) {
    while tokio::time::timeout(Duration::from_millis(500), subscription.woken())
        .await
        .is_ok()
    {}
}

#[tokio::test]
async fn commits_that_make_nothing_due_wake_nobody() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let other = inbox.other().await;
    let all: Vec<_> = (0..6).map(|n| message(&n.to_string())).collect();
    store.receive(&all).await.unwrap();
    let leased = claim(store, 10).await;
    let lease = |n: usize| leased[n].lease.clone();
    let mut subscription = store.subscribe(&[handler("h")]).await.unwrap();
    settle_down(&mut subscription).await;
    for (n, writer) in [store, &other].into_iter().enumerate() {
        let _ = writer.extend(&[lease(n)], LEASE).await.unwrap();
        settle(writer, &lease(n), processed()).await;
        settle(writer, &lease(n + 2), retry(LEASE)).await;
        settle(writer, &lease(n + 4), dead(inbox_api::AfterDead::Continue)).await;
        let later = message(&format!("later {n}")).with_due(Due::After(LEASE));
        writer.receive(&[later]).await.unwrap();
        let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 1).unwrap();
        assert_eq!(writer.purge(&expired).await.unwrap(), 1);
        let woken = tokio::time::timeout(Duration::from_millis(500), subscription.woken()).await;
        assert!(woken.is_err(), "{n}");
    }
    // Those that do are still noticed.
    for (n, writer) in [store, &other].into_iter().enumerate() {
        settle_down(&mut subscription).await;
        writer
            .receive(&[message(&format!("due {n}"))])
            .await
            .unwrap();
        tokio::time::timeout(Duration::from_secs(60), subscription.woken())
            .await
            .unwrap();
        for lease in claim(store, 10).await {
            settle(store, &lease.lease, processed()).await;
        }
    }
    let lease = begin(&other, &message("released")).await.lease;
    settle_down(&mut subscription).await;
    settle(&other, &lease, Outcome::Release).await;
    tokio::time::timeout(Duration::from_secs(60), subscription.woken())
        .await
        .unwrap();
}

#[tokio::test]
async fn every_operation_ends_while_another_process_keeps_the_lock() {
    let inbox = test_inbox().await;
    let patient = &inbox.store;
    let options = inbox
        .options()
        .operation_timeout(Duration::from_millis(300));
    let started = Instant::now();
    let store = loop {
        match SqliteStore::connect(options.clone()).await {
            Ok(store) => break store,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(60), "{error}"),
        }
    };
    patient
        .receive(&[message("1"), message("2")])
        .await
        .unwrap();
    let lease = claim_one(patient).await;
    // One that found nothing would only look.
    let held = lock(&inbox).await;
    let all = Filter {
        states: State::ALL.to_vec(),
        ..Default::default()
    };
    let slice = Slice {
        after: None,
        limit: 5,
    };
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 5).unwrap();
    let settlement = Settlement {
        lease: lease.clone(),
        outcome: processed(),
    };
    for _ in 0..2 {
        let errors = [
            store.receive(&[message("3")]).await.map(drop),
            store.claim(&request(1)).await.map(drop),
            store
                .settle(std::slice::from_ref(&settlement))
                .await
                .map(drop),
            store
                .extend(std::slice::from_ref(&lease), LEASE)
                .await
                .map(drop),
            store.begin(&message("3"), &terms()).await.map(drop),
            store.open().await.map(drop),
            store.replay(&key("1"), &Edit::default()).await.map(drop),
            store.discard(&key("2")).await.map(drop),
            store.replay_slice(&all, &slice).await.map(drop),
            store.discard_slice(&all, &slice).await.map(drop),
            store.purge(&expired).await.map(drop),
            store.purge_archived(&expired, &[key("1")]).await.map(drop),
            store.migrate().await.map(drop),
        ]
        .map(Result::unwrap_err);
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
    // Who only looks needs no lock.
    assert_eq!(patient.count(&all).await.unwrap(), 2);
    assert!(patient.get(&key("1")).await.unwrap().is_some());
    patient.statistics().await.unwrap();
    patient.create().await.unwrap();
    unlock(held).await;
    settle(patient, &lease, processed()).await;
    assert_eq!(ids(&claim(patient, 5).await), ["2"]);
    let started = Instant::now();
    while let Err(error) = store.receive(&[message("3")]).await {
        assert!(started.elapsed() < Duration::from_secs(60), "{error}");
    }
}

#[tokio::test]
async fn connecting_ends_while_another_process_keeps_the_file() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("inbox.db");
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(true)
        .pragma("locking_mode", "EXCLUSIVE");
    let mut alone = SqliteConnection::connect_with(&options).await.unwrap();
    alone.execute("CREATE TABLE t (a)").await.unwrap();
    let options = SqliteOptions::new(&path);
    let impatient = options
        .clone()
        .operation_timeout(Duration::from_millis(300));
    let error = SqliteStore::connect(impatient).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    alone.close().await.unwrap();
    SqliteStore::connect(options).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_was_idle_claims_among_other_writers() {
    let inbox = test_inbox().await;
    let stores = [inbox.store.clone(), inbox.other().await];
    let mut claimed = 0;
    for round in 0..50 {
        // Both are idle, and find work at the same time.
        for store in &stores {
            assert!(claim(store, 1).await.is_empty());
        }
        let batch = [0, 1].map(|n| message(&format!("{round} {n}")));
        inbox.store.receive(&batch).await.unwrap();
        let [one, other] = &stores;
        let (one, other, received) = tokio::join!(
            claim(one, 1),
            claim(other, 1),
            inbox.store.receive_one(&batch[0]),
        );
        assert_eq!(received.unwrap(), Receipt::Duplicate { differs: false });
        let mut ids = [ids(&one), ids(&other)].concat();
        ids.sort_unstable();
        assert_eq!(ids.len(), 2, "{ids:?}");
        assert_ne!(ids[0], ids[1]);
        for leased in one.iter().chain(&other) {
            settle(&stores[0], &leased.lease, processed()).await;
            claimed += 1;
        }
    }
    assert_eq!(claimed, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_caller_without_a_pause_leaves_the_file_to_other_processes() {
    let inbox = test_inbox().await;
    let other = inbox.other().await;
    let busy = inbox.store.clone();
    let at_work = tokio::spawn(async move {
        for n in 0.. {
            let Begun::Run(leased) = busy
                .begin(&message(&format!("{n}")), &terms())
                .await
                .unwrap()
            else {
                panic!("{n} does not run");
            };
            settle(&busy, &leased.lease, processed()).await;
        }
    });
    for n in 0..50 {
        let received = other.receive_one(&message(&format!("other {n}"))).await;
        assert_eq!(received.unwrap(), Receipt::Accepted);
        assert!(!at_work.is_finished());
    }
    at_work.abort();
}
