//! Where connections begin transactions at a stricter level than read committed unless told to, and
//! where texts are sorted by a language's rules.

use std::time::Duration;

use inbox_api::{
    AfterDead, ErrorKind, Filter, Operate as _, PurgeRequest, Receipt, Schema as _, Settled,
    Settlement, Slice, State, Store as _, StoreExt as _, Transactional as _,
};
use inbox_postgres::{Partitions, PostgresStore};
use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction, postgres::PgPoolOptions};

use crate::common::*;

const STRICTER: [&str; 2] = ["repeatable read", "serializable"];

/// A database of the test's own whose default is `level`.
async fn database(level: &str, more: &str) -> Option<TestInbox> {
    let url = shared_url()?;
    let name = fresh_name();
    let sql = format!("CREATE DATABASE {name} TEMPLATE template0 {more}");
    execute(&url, &sql).await.unwrap();
    let sql = format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'");
    execute(&url, &sql).await.unwrap();
    let (server, _) = url.rsplit_once('/')?;
    Some(TestInbox::at(format!("{server}/{name}")))
}

async fn stores(place: &TestInbox, count: usize) -> Vec<PostgresStore> {
    let mut stores = Vec::new();
    for _ in 0..count {
        stores.push(place.other().await);
    }
    stores
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_processes_set_up_at_once() {
    for level in STRICTER {
        let Some(place) = database(level, "").await else {
            return;
        };
        let stores = stores(&place, 8).await;
        let tasks: Vec<_> = stores
            .into_iter()
            .map(|store| tokio::spawn(async move { store.create().await }))
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    }
}

/// Workers, a replaying operator and a purge, on few ordering keys: no conflict, and nothing is
/// overtaken.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn operations_are_the_same_at_every_default() {
    for level in STRICTER {
        let Some(place) = database(level, "").await else {
            return;
        };
        let store = place.store().await;
        let messages: Vec<_> = (0..120)
            .map(|n| ordered(&format!("{n:03}"), &(n % 3).to_string()))
            .collect();
        let _ = store.receive(&messages).await.unwrap();
        let workers: Vec<_> = stores(&place, 4)
            .await
            .into_iter()
            .map(|store| {
                tokio::spawn(async move {
                    for _ in 0..30 {
                        for leased in claim(&store, 2).await {
                            let outcome = match leased.attempts.started {
                                1 => dead(AfterDead::Continue),
                                _ => processed(),
                            };
                            settle(&store, &leased.lease, outcome).await;
                        }
                    }
                })
            })
            .collect();
        for _ in 0..15 {
            let slice = Slice {
                after: None,
                limit: 5,
            };
            store
                .replay_slice(&Filter::default(), &slice)
                .await
                .unwrap();
            assert_eq!(place.broken_rules().await, [""; 0], "{level}");
        }
        for worker in workers {
            worker.await.unwrap();
        }
        let ready = Ready { place, store };
        check_consistent(&ready).await;
    }
}

#[tokio::test]
async fn partitions_are_purged_at_every_default() {
    for level in STRICTER {
        let Some(mut place) = database(level, "").await else {
            return;
        };
        let partitions = Partitions::every(Duration::ZERO).patience(Duration::ZERO);
        place.options = place.options.partitions(Some(partitions));
        let store = place.store().await;
        let all: Vec<_> = (0..50).map(|n| message(&n.to_string())).collect();
        let _ = store.receive(&all).await.unwrap();
        for leased in claim(&store, 50).await {
            settle(&store, &leased.lease, processed()).await;
        }
        let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 1000).unwrap();
        assert_eq!(store.purge(&expired).await.unwrap(), 50, "{level}");
        assert_eq!(store.purge(&expired).await.unwrap(), 0, "{level}");
    }
}

/// A pool of the application's, whose connections are not the store's to change.
#[tokio::test]
async fn a_default_that_changes_later_is_noticed() {
    let Some(ready) = ready().await else { return };
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(connection_options(&ready.place.url))
        .await
        .unwrap();
    let store = PostgresStore::with_pool(pool.clone(), ready.place.options.clone());
    let receipt = store.receive_one(&message("1")).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted);
    let sql = "SET default_transaction_isolation = 'serializable'";
    sqlx::raw_sql(sql).execute(&pool).await.unwrap();
    let error = store.claim(&request(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(claim(&store, 1).await.len(), 1);
    let row = sqlx::query_scalar("SHOW default_transaction_isolation");
    let kept: String = row.fetch_one(&pool).await.unwrap();
    assert_eq!(kept, "serializable", "the connection is as it was");
}

/// A transaction of the caller's that has seen the database before anything happens.
async fn early(pool: &PgPool, level: &str) -> Transaction<'static, Postgres> {
    let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
    let mut transaction = pool.begin_with(begin).await.unwrap();
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_class")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert!(seen > 0);
    transaction
}

#[tokio::test]
async fn a_callers_old_snapshot_conflicts_rather_than_answers_wrongly() {
    for level in STRICTER {
        let Some(ready) = ready().await else { return };
        let (place, store) = (&ready.place, &ready.store);
        let pool = PgPool::connect_with(connection_options(&place.url))
            .await
            .unwrap();

        // A lease that was handed out after the transaction first looked.
        for message in [message("1"), ordered("2", "k")] {
            let mut transaction = early(&pool, level).await;
            let _ = store.receive_one(&message).await.unwrap();
            let lease = claim_one(store).await;
            let settlement = [Settlement {
                lease: lease.clone(),
                outcome: processed(),
            }];
            let error = store
                .settle_in(&mut transaction, &settlement)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{level}: {error}");
            drop(transaction);
            let mut again = early(&pool, level).await;
            let settled = store.settle_in(&mut again, &settlement).await.unwrap();
            assert_eq!(settled, [Settled::Done]);
            store.commit(again).await.unwrap();
            // Lost for good is no conflict.
            let mut again = early(&pool, level).await;
            let settled = store.settle_in(&mut again, &settlement).await.unwrap();
            assert_eq!(settled, [Settled::LeaseLost]);
        }

        // A key that has become free since: the second of the two messages must not wait for one
        // that is gone.
        let _ = store.receive_one(&ordered("gone", "free")).await.unwrap();
        let mut transaction = early(&pool, level).await;
        let lease = claim_one(store).await;
        settle(store, &lease, processed()).await;
        let mut committed = true;
        for id in ["new 1", "new 2"] {
            let sent = [ordered(id, "free")];
            if let Err(error) = store.receive_in(&mut transaction, &sent).await {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{level}: {error}");
                committed = false;
                break;
            }
        }
        if committed {
            store.commit(transaction).await.unwrap();
        } else {
            drop(transaction);
        }
        check_consistent(&ready).await;
        let _ = store
            .receive(&[ordered("new 1", "free"), ordered("new 2", "free")])
            .await
            .unwrap();
        for id in ["new 1", "new 2"] {
            let leased = claim(store, 10).await;
            assert_eq!(ids(&leased), [id], "{level}");
            settle(store, &leased[0].lease, processed()).await;
        }
        check_consistent(&ready).await;
    }
}

/// Two keys that a language's rules sort in another order than their bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_locked_in_one_order_whatever_the_collation() {
    let icu = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";
    let Some(place) = database("read committed", icu).await else {
        return;
    };
    let sorted: bool = place.value("SELECT 'a' < 'B'").await;
    assert!(sorted, "not a language's order");
    let store = place.store().await;
    let _ = store
        .receive(&[ordered("1", "B"), ordered("2", "a")])
        .await
        .unwrap();
    // The holder of the first by bytes keeps others from locking the second.
    let mut holding = store.open().await.unwrap();
    let _ = store
        .receive_in(&mut holding, &[ordered("3", "B")])
        .await
        .unwrap();
    let receiving = {
        let store = store.clone();
        tokio::spawn(async move {
            let _ = store
                .receive(&[ordered("4", "a"), ordered("5", "B")])
                .await
                .unwrap();
        })
    };
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
         AND query LIKE '%{}%'",
        place.schema.name
    );
    while place.value::<i64>(&waiting).await == 0 {
        assert!(!receiving.is_finished());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let free: i64 = place
        .value(
            "SELECT count(*) FROM (
                 SELECT FROM {schema}.inbox_ordering WHERE ordering_key = 'a'
                 FOR UPDATE SKIP LOCKED
             ) AS free",
        )
        .await;
    assert_eq!(free, 1, "locked against the order of every other operation");
    store.commit(holding).await.unwrap();
    receiving.await.unwrap();
    check_consistent(&Ready { place, store }).await;
}
