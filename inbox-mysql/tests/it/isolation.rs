//! The caller's transactions at each isolation level, while others are open that are not committed.

use std::time::Duration;

use inbox_api::{
    Begun, ErrorKind, Operate as _, Outcome, Receipt, Recorded, Settled, Settlement, State,
    Store as _, StoreExt as _, Transactional as _,
};
use inbox_mysql::MySqlStore;
use sqlx::{MySql, MySqlPool, SqlSafeStr as _, Transaction, mysql::MySqlPoolOptions};

use crate::common::{
    self, TestInbox, accept, claim, claim_one, connect_options, key, message, on_each, ordered,
    processed, waiting, waits,
};

const LEVELS: [&str; 4] = [
    "READ UNCOMMITTED",
    "READ COMMITTED",
    "REPEATABLE READ",
    "SERIALIZABLE",
];

async fn pool(inbox: &TestInbox, session: String) -> MySqlPool {
    MySqlPoolOptions::new()
        .max_connections(3)
        .after_connect(move |connection, _| {
            let session = sqlx::raw_sql(sqlx::AssertSqlSafe(session.clone()));
            Box::pin(async move { session.execute(connection).await.map(drop) })
        })
        .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
        .await
        .unwrap()
}

/// A level for one transaction alone, which cannot be asked for.
async fn begin(pool: &MySqlPool, level: &str) -> Transaction<'static, MySql> {
    let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}; START TRANSACTION");
    let begin = sqlx::AssertSqlSafe(begin).into_sql_str();
    pool.begin_with(begin).await.unwrap()
}

async fn end(store: &MySqlStore, transaction: Transaction<'static, MySql>, commits: bool) {
    if commits {
        store.commit(transaction).await.unwrap();
    } else {
        store.roll_back(transaction).await.unwrap();
    }
}

fn done(lease: &inbox_api::Lease) -> [Settlement; 1] {
    [Settlement {
        lease: lease.clone(),
        outcome: processed(),
    }]
}

/// An answer that rests on another transaction's write is as durable as one's own.
#[test]
fn what_another_transaction_may_undo_is_no_duplicate() {
    on_each(async |inbox, kind| {
        let store = inbox.store().await;
        let pool = pool(&inbox, "DO 0".to_owned()).await;
        for level in LEVELS {
            for commits in [false, true] {
                let what = format!("{level} {commits}");
                eprintln!("{kind}, {what}");
                let batch = [
                    message(&format!("received {what}")),
                    message(&format!("z {what}")),
                ];
                let mut other = store.open().await.unwrap();
                let first = store.receive_in(&mut other, &batch[..1]).await.unwrap();
                assert_eq!(first, [Receipt::Accepted]);
                let mut transaction = begin(&pool, level).await;
                let receive = async {
                    let receipts = store.receive_in(&mut transaction, &batch).await;
                    (receipts, transaction)
                };
                let ending = async {
                    waits(&inbox).await;
                    end(&store, other, commits).await;
                };
                let ((receipts, transaction), ()) = tokio::join!(receive, ending);
                let expected = if commits {
                    Receipt::Duplicate { differs: false }
                } else {
                    Receipt::Accepted
                };
                assert_eq!(receipts.unwrap(), [expected, Receipt::Accepted], "{what}");
                store.commit(transaction).await.unwrap();
                let leased = claim(&store, 10).await;
                assert_eq!(leased.len(), 2, "{what}");
                for leased in leased {
                    common::settle(&store, &leased.lease, processed()).await;
                }
            }
        }
        pool.close().await;
    });
}

#[test]
fn what_another_transaction_may_undo_is_neither_processed_nor_settled() {
    on_each(async |inbox, kind| {
        let store = inbox.store().await;
        let pool = pool(&inbox, "DO 0".to_owned()).await;
        for level in LEVELS {
            for commits in [false, true] {
                let what = format!("{level} {commits}");
                eprintln!("{kind}, {what}");
                let sent = message(&format!("recorded {what}"));
                let mut other = store.open().await.unwrap();
                let recorded = store.record_in(&mut other, &sent, None).await;
                assert_eq!(recorded.unwrap(), Recorded::First);
                let mut transaction = begin(&pool, level).await;
                let record = async {
                    let recorded = store.record_in(&mut transaction, &sent, None).await;
                    (recorded, transaction)
                };
                let ending = async {
                    waits(&inbox).await;
                    end(&store, other, commits).await;
                };
                let ((recorded, transaction), ()) = tokio::join!(record, ending);
                match recorded {
                    Ok(Recorded::First) if !commits => store.commit(transaction).await.unwrap(),
                    Ok(Recorded::Processed { .. }) if commits => {
                        store.commit(transaction).await.unwrap();
                    }
                    // It saw a row that is gone now.
                    Err(error) if error.kind() == ErrorKind::Conflict && !commits => {
                        drop(transaction);
                        let mut again = begin(&pool, level).await;
                        let recorded = store.record_in(&mut again, &sent, None).await;
                        assert_eq!(recorded.unwrap(), Recorded::First, "{what}");
                        store.commit(again).await.unwrap();
                    }
                    other => panic!("{what}: {other:?}"),
                }
                let record = store.get(sent.key()).await.unwrap().unwrap();
                assert_eq!(record.state, State::Processed, "{what}");

                let settled = ordered(&format!("settled {what}"), &what);
                accept(&store, std::slice::from_ref(&settled)).await;
                let lease = claim_one(&store).await;
                let mut other = store.open().await.unwrap();
                let settled = store.settle_in(&mut other, &done(&lease)).await;
                assert_eq!(settled.unwrap(), [Settled::Done]);
                let mut transaction = begin(&pool, level).await;
                let settle = async {
                    let settled = store.settle_in(&mut transaction, &done(&lease)).await;
                    (settled, transaction)
                };
                let ending = async {
                    waits(&inbox).await;
                    end(&store, other, commits).await;
                };
                let ((settled, transaction), ()) = tokio::join!(settle, ending);
                let expected = if commits {
                    Settled::LeaseLost
                } else {
                    Settled::Done
                };
                assert_eq!(settled.unwrap(), [expected], "{what}");
                store.commit(transaction).await.unwrap();
                let record = store.get(&lease.key).await.unwrap().unwrap();
                assert_eq!(record.state, State::Processed, "{what}");
            }
        }
        pool.close().await;
    });
}

/// The store's own transactions, in sessions of every default.
#[test]
fn the_sessions_default_level_changes_nothing() {
    on_each(async |inbox, kind| {
        let store = inbox.store().await;
        for level in LEVELS {
            eprintln!("{kind}, {level}");
            let session = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
            let pool = pool(&inbox, session).await;
            let over = MySqlStore::with_pool(pool.clone(), inbox.options.clone());
            let over = over.await.unwrap();
            for inline in [false, true] {
                let sent = message(&format!("{level} {inline}"));
                let mut other = store.open().await.unwrap();
                let first = store
                    .receive_in(&mut other, std::slice::from_ref(&sent))
                    .await;
                assert_eq!(first.unwrap(), [Receipt::Accepted]);
                let receive = async {
                    if inline {
                        let begun = over.begin(&sent, &common::terms()).await.unwrap();
                        matches!(begun, Begun::Run(_))
                    } else {
                        over.receive_one(&sent).await.unwrap() == Receipt::Accepted
                    }
                };
                let ending = async {
                    waits(&inbox).await;
                    store.roll_back(other).await.unwrap();
                };
                let (new, ()) = tokio::join!(receive, ending);
                assert!(new, "{level}: what was rolled back is known");
                assert!(store.get(sent.key()).await.unwrap().is_some(), "{level}");
            }
            let mut transaction = over.open().await.unwrap();
            let known = [
                message(&format!("{level} false")),
                message(&format!("new {level}")),
            ];
            let receipts = over.receive_in(&mut transaction, &known).await.unwrap();
            assert_eq!(
                receipts,
                [Receipt::Duplicate { differs: false }, Receipt::Accepted],
                "{level}"
            );
            over.commit(transaction).await.unwrap();
            assert_eq!(claim(&over, 10).await.len(), 2, "{level}");
            pool.close().await;
        }
    });
}

/// What has waited in vain does not go on waiting at the server, where it would hold what it has locked.
#[test]
fn a_wait_ends_at_the_server_before_the_operation_does() {
    on_each(async |mut inbox, _| {
        let patient = inbox.store().await;
        let default = inbox.options.clone();
        inbox.options = default.clone().operation_timeout(Duration::from_secs(3));
        let store = inbox.other().await;
        let pool = pool(
            &inbox,
            "SET SESSION innodb_lock_wait_timeout = 40".to_owned(),
        )
        .await;
        let over = async |options| MySqlStore::with_pool(pool.clone(), options).await.unwrap();
        let patient_over = over(default).await;
        let over = over(inbox.options.clone()).await;
        let stores = [(store, patient), (over, patient_over)];
        for (n, (store, patient)) in stores.iter().enumerate() {
            let (held, next) = (message(&format!("5 {n}")), message(&format!("6 {n}")));
            // At this level, others cannot store what comes before or after the new message.
            let mut holder = begin(&pool, "SERIALIZABLE").await;
            let recorded = patient.record_in(&mut holder, &held, None).await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            for _ in 0..2 {
                let error = store.receive_one(&held).await.unwrap_err();
                let kinds = [ErrorKind::Conflict, ErrorKind::Unavailable];
                assert!(kinds.contains(&error.kind()), "{error}");
            }
            assert_eq!(waiting(&inbox).await, 0);
            drop(holder);
            let receipt = patient.receive_one(&next).await.unwrap();
            assert_eq!(receipt, Receipt::Accepted);
            for leased in claim(patient, 10).await {
                let outcome = Outcome::Processed { result: None };
                common::settle(patient, &leased.lease, outcome).await;
            }
        }
        // The pool's sessions are as they were.
        let mut connections = Vec::new();
        for _ in 0..3 {
            connections.push(pool.acquire().await.unwrap());
        }
        for connection in &mut connections {
            let limit: (u64,) = sqlx::query_as("SELECT @@SESSION.innodb_lock_wait_timeout")
                .fetch_one(&mut **connection)
                .await
                .unwrap();
            assert_eq!(limit.0, 40);
        }
        assert_eq!(inbox.number("SELECT COUNT(*) FROM inbox_work").await, 0);
        drop(connections);
        pool.close().await;
    });
}

/// Keys of another case, to be told from those of a level.
#[test]
fn a_batch_of_known_and_new_keys_is_told_apart_at_every_level() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        let pool = pool(&inbox, "DO 0".to_owned()).await;
        for level in LEVELS {
            let id = |n: usize| format!("{level} {n:04}");
            let known: Vec<_> = (0..1200).step_by(2).map(|n| message(&id(n))).collect();
            accept(&store, &known).await;
            let mut transaction = begin(&pool, level).await;
            let batch: Vec<_> = (0..1200).map(|n| message(&id(n))).collect();
            let receipts = store.receive_in(&mut transaction, &batch).await.unwrap();
            for (n, receipt) in receipts.iter().enumerate() {
                let new = n % 2 == 1;
                assert_eq!(*receipt == Receipt::Accepted, new, "{}", id(n));
            }
            // All known, and nothing left to be done.
            let receipts = store.receive_in(&mut transaction, &known).await.unwrap();
            assert!(
                receipts
                    .iter()
                    .all(|receipt| *receipt == Receipt::Duplicate { differs: false })
            );
            store.commit(transaction).await.unwrap();
            assert!(store.get(&key(&id(1))).await.unwrap().is_some());
        }
        assert_eq!(claim(&store, 10_000).await.len(), 4800);
        pool.close().await;
    });
}
