//! Recording, receiving and settling inside the caller's transaction.

use std::{
    future::poll_fn,
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

use inbox_api::{
    AfterDead, Attempts, Begun, Bytes, Due, ErrorKind, Operate, Receipt, Recorded, Settled,
    Settlement, State, Store, StoreExt, Transactional,
};
use inbox_sqlite::SqliteStore;
use sqlx::{Sqlite, SqlitePool, Transaction, sqlite::SqliteConnectOptions};

use crate::common::*;

async fn write(transaction: &mut Transaction<'static, Sqlite>, order: i64) {
    sqlx::query("INSERT INTO orders (id) VALUES (?1)")
        .bind(order)
        .execute(&mut **transaction)
        .await
        .unwrap();
}

async fn own_pool(inbox: &TestInbox) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(inbox.path())
        .busy_timeout(Duration::from_millis(200));
    let pool = SqlitePool::connect_with(options).await.unwrap();
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
        .execute(&pool)
        .await
        .unwrap();
    pool
}

async fn orders(pool: &SqlitePool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn all_commits_or_nothing_does() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let pool = own_pool(&inbox).await;
    let result = Some(Bytes::from_static(b"done"));

    let mut transaction = store.open().await.unwrap();
    let recorded = store
        .record_in(&mut transaction, &message("1"), result.clone())
        .await
        .unwrap();
    assert_eq!(recorded, Recorded::First);
    write(&mut transaction, 1).await;
    assert_eq!(store.get(&key("1")).await.unwrap(), None, "not yet visible");
    store.roll_back(transaction).await.unwrap();
    assert_eq!(store.get(&key("1")).await.unwrap(), None);

    for expected in [
        Recorded::First,
        Recorded::Processed {
            result: result.clone(),
        },
    ] {
        let mut transaction = store.open().await.unwrap();
        let recorded = store
            .record_in(&mut transaction, &message("1"), result.clone())
            .await;
        assert_eq!(recorded.unwrap(), expected);
        if expected == Recorded::First {
            write(&mut transaction, 1).await;
        } else {
            // A duplicate leaves the transaction usable.
            write(&mut transaction, 2).await;
        }
        store.commit(transaction).await.unwrap();
    }
    assert_eq!(orders(&pool).await, 2);
    let record = get(store, "1").await;
    assert_eq!(record.state, State::Processed);
    assert_eq!(
        record.attempts,
        Attempts {
            started: 1,
            finished: 1
        }
    );
    let begun = store.begin(&message("1"), &terms()).await.unwrap();
    assert_eq!(begun, Begun::Processed { result });
    check_consistent(store).await;
}

#[tokio::test]
async fn a_transaction_of_the_callers_own_pool_does_as_well() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let pool = own_pool(&inbox).await;
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let receipts = store
        .receive_in(
            &mut transaction,
            &[message("1"), message("2"), message("1")],
        )
        .await
        .unwrap();
    use Receipt::{Accepted, Duplicate};
    assert_eq!(receipts, [Accepted, Accepted, Duplicate { differs: false }]);
    let recorded = store
        .record_in(&mut transaction, &message("2"), None)
        .await
        .unwrap();
    assert_eq!(recorded, Recorded::First);
    write(&mut transaction, 1).await;
    transaction.commit().await.unwrap();
    assert_eq!(orders(&pool).await, 1);

    let leased = claim(store, 10).await;
    assert_eq!(ids(&leased), ["1"]);
    let settlement = Settlement {
        lease: leased[0].lease.clone(),
        outcome: processed(),
    };
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let settled = store
        .settle_in(&mut transaction, std::slice::from_ref(&settlement))
        .await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    drop(transaction);
    assert_eq!(get(store, "1").await.state, State::Leased, "rolled back");
    let mut transaction = store.open().await.unwrap();
    let settled = store
        .settle_in(&mut transaction, std::slice::from_ref(&settlement))
        .await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    store.commit(transaction).await.unwrap();
    assert_eq!(get(store, "1").await.state, State::Processed);
    check_consistent(store).await;
}

#[tokio::test]
async fn record_answers_in_every_state() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let record = async |message: &inbox_api::Message| {
        let mut transaction = store.open().await.unwrap();
        let recorded = store
            .record_in(&mut transaction, message, None)
            .await
            .unwrap();
        store.commit(transaction).await.unwrap();
        recorded
    };
    let lease = begin(store, &message("held")).await.lease;
    assert_eq!(
        record(&message("held")).await,
        Recorded::Busy { until: lease.until }
    );
    let later = message("later").with_due(Due::After(LEASE));
    assert!(matches!(record(&later).await, Recorded::Busy { .. }));
    store
        .receive(&[message("pending"), ordered("a1", "a"), ordered("a2", "a")])
        .await
        .unwrap();
    assert_eq!(record(&message("pending")).await, Recorded::First);
    assert_eq!(record(&ordered("a2", "a")).await, Recorded::Blocked);
    assert_eq!(record(&ordered("a1", "a")).await, Recorded::First);
    assert_eq!(record(&ordered("a2", "a")).await, Recorded::First);
    inbox.clock.advance(LEASE);
    assert_eq!(
        record(&message("held")).await,
        Recorded::First,
        "the lease had run out"
    );
    let settled = store.settle_one(&lease, processed()).await.unwrap();
    assert_eq!(settled, Settled::LeaseLost);
    let lease = begin(store, &message("dead")).await.lease;
    settle(store, &lease, dead(AfterDead::Continue)).await;
    let reason = "poison".to_owned();
    assert_eq!(record(&message("dead")).await, Recorded::Dead { reason });
    let _ = store.discard(&key("dead")).await.unwrap();
    assert_eq!(record(&message("dead")).await, Recorded::Discarded);
    check_consistent(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_racing_transactions_exactly_one_wins() {
    let inbox = test_inbox().await;
    // They wait for each other, on a busy machine for long.
    let options = SqliteConnectOptions::new()
        .filename(inbox.path())
        .busy_timeout(Duration::from_secs(30));
    let pool = SqlitePool::connect_with(options).await.unwrap();
    for round in 0..20 {
        let id = round.to_string();
        let tasks: Vec<_> = (0..4)
            .map(|n| {
                let (store, pool, id) = (inbox.store.clone(), pool.clone(), id.clone());
                tokio::spawn(async move {
                    // Half of them on the store's connection, half on the caller's own.
                    let mut transaction = if n % 2 == 0 {
                        store.open().await.unwrap()
                    } else {
                        pool.begin_with("BEGIN IMMEDIATE").await.unwrap()
                    };
                    let recorded = store
                        .record_in(&mut transaction, &message(&id), None)
                        .await
                        .unwrap();
                    store.commit(transaction).await.unwrap();
                    recorded == Recorded::First
                })
            })
            .collect();
        let mut winners = 0;
        for task in tasks {
            winners += i32::from(task.await.unwrap());
        }
        assert_eq!(winners, 1);
    }
}

#[tokio::test]
async fn a_transaction_that_read_first_conflicts_rather_than_misses_a_duplicate() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let pool = own_pool(&inbox).await;
    let mut transaction = pool.begin().await.unwrap();
    let _: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    store.receive(&[message("1")]).await.unwrap();
    let error = store
        .record_in(&mut transaction, &message("1"), None)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    drop(transaction);
    // One that writes first only waits.
    let mut transaction = pool.begin().await.unwrap();
    let recorded = store
        .record_in(&mut transaction, &message("1"), None)
        .await
        .unwrap();
    assert_eq!(recorded, Recorded::First);
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn an_open_transaction_makes_other_writers_wait_and_then_fail() {
    let inbox = test_inbox_with(|options| options.operation_timeout(Duration::from_secs(1))).await;
    let store = &inbox.store;
    let other = SqliteStore::connect(inbox.options().operation_timeout(Duration::from_secs(1)))
        .await
        .unwrap();
    let held = store.open().await.unwrap();
    for waiting in [store, &other] {
        let started = Instant::now();
        let error = waiting.receive(&[message("1")]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(started.elapsed() >= Duration::from_millis(900));
        assert!(started.elapsed() < Duration::from_secs(30));
        assert_eq!(
            waiting.get(&key("1")).await.unwrap(),
            None,
            "readers do not wait"
        );
    }
    store.roll_back(held).await.unwrap();
    for (waiting, expected) in [
        (store, Receipt::Accepted),
        (&other, Receipt::Duplicate { differs: false }),
    ] {
        assert_eq!(waiting.receive_one(&message("1")).await.unwrap(), expected);
    }
    // Closing does not wait for ever for a transaction that is held.
    let held = store.open().await.unwrap();
    let started = Instant::now();
    store.close().await;
    assert!(started.elapsed() < Duration::from_secs(30));
    drop(held);
}

#[tokio::test]
async fn what_a_store_refuses_leaves_the_transaction_usable() {
    let inbox =
        test_inbox_with(|options| options.payload_limit(20).drop_processed_payloads(true)).await;
    let store = &inbox.store;
    let mut transaction = store.open().await.unwrap();
    let large = Some(Bytes::from(vec![0; 21]));
    let error = store
        .record_in(&mut transaction, &message("1"), large)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let recorded = store
        .record_in(&mut transaction, &message("1"), None)
        .await
        .unwrap();
    assert_eq!(recorded, Recorded::First);
    store.commit(transaction).await.unwrap();
    assert_eq!(get(store, "1").await.payload_bytes, None, "dropped");
}

/// Polls `future` up to `polls` times and drops it.
async fn drop_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        let answer = future.as_mut().poll(cx);
        left = left.saturating_sub(1);
        match answer {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// More than one statement takes.
const SEVERAL: usize = 1500;

#[tokio::test]
async fn of_a_batch_in_several_statements_all_or_nothing_is_committed() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let (mut stopped, mut completed) = (0, false);
    for polls in (1..8).chain((3..20).map(|doubled| 1 << doubled)) {
        let messages: Vec<_> = (0..SEVERAL)
            .map(|n| message(&format!("{polls}-{n}")))
            .collect();
        let mut transaction = store.open().await.unwrap();
        let received = drop_after(polls, store.receive_in(&mut transaction, &messages)).await;
        let committed = store.commit(transaction).await;
        if let Err(error) = &committed {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            assert!(received.is_none(), "it had come to its end");
            stopped += 1;
        }
        let receipts = store.receive(&messages).await.unwrap();
        let there = receipts
            .iter()
            .filter(|r| **r == Receipt::Duplicate { differs: false });
        let there = there.count();
        assert!(
            there == 0 || there == SEVERAL,
            "dropped after {polls} polls: {there} are there"
        );
        assert!(there == 0 || committed.is_ok(), "{polls} polls");
        if received.is_some() {
            assert_eq!(there, SEVERAL);
            completed = true;
            break;
        }
    }
    assert!(completed, "receive did not complete");
    assert!(stopped > 0, "no drop stopped it half-way");
}
