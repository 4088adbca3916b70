//! What a commit answers when the transaction is not whole any more.

use std::{
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use inbox_api::{
    Effect, ErrorKind, Operate as _, Recorded, Settled, Settlement, State, Store as _,
    Transactional as _,
};
use inbox_postgres::PostgresStore;
use sqlx::{Executor as _, PgPool, Postgres, Transaction, postgres::PgPoolOptions};

use crate::common::*;

/// The caller's own pool.
async fn own_pool(place: &TestInbox) -> PgPool {
    PgPoolOptions::new()
        .max_connections(1)
        .connect_with(connection_options(&place.url))
        .await
        .unwrap()
}

async fn record(store: &PostgresStore, transaction: &mut Transaction<'static, Postgres>, id: &str) {
    let recorded = store.record_in(transaction, &message(id), None).await;
    assert_eq!(recorded.unwrap(), Recorded::First);
}

/// A transaction of the store's and one of the caller's own pool.
async fn both(
    store: &PostgresStore,
    pool: &PgPool,
) -> [(&'static str, Transaction<'static, Postgres>); 2] {
    [
        ("opened", store.open().await.unwrap()),
        ("begun", pool.begin().await.unwrap()),
    ]
}

#[tokio::test]
async fn a_failed_statement_that_nobody_minds_is_a_conflict() {
    let Some(ready) = ready().await else { return };
    let store = &ready.store;
    let pool = own_pool(&ready.place).await;
    for (id, mut transaction) in both(store, &pool).await {
        record(store, &mut transaction, id).await;
        assert!(transaction.execute("SELECT 1 / 0").await.is_err());
        let error = store.commit(transaction).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert_eq!(error.effect(), Effect::None);
        assert_eq!(store.get(&key(id)).await.unwrap(), None);
    }
    check_consistent(&ready).await;
}

#[tokio::test]
async fn a_transaction_that_the_handler_has_ended_is_not_committed() {
    let Some(ready) = ready().await else { return };
    let store = &ready.store;
    let pool = own_pool(&ready.place).await;
    for ending in [
        "COMMIT",
        "ROLLBACK",
        "COMMIT; BEGIN",
        "ROLLBACK; BEGIN",
        "COMMIT AND CHAIN",
    ] {
        for (which, mut transaction) in both(store, &pool).await {
            let id = format!("{which} {ending}");
            record(store, &mut transaction, &id).await;
            sqlx::raw_sql(ending)
                .execute(&mut *transaction)
                .await
                .unwrap();
            let error = store.commit(transaction).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Other, "{id}: {error}");
            assert_eq!(error.effect(), Effect::Unknown, "{id}");
            assert!(error.context().contains("ended that by itself"), "{error}");
            let found = store.get(&key(&id)).await.unwrap();
            assert_eq!(found.is_some(), ending.starts_with("COMMIT"), "{id}");
        }
    }
    check_consistent(&ready).await;
}

#[tokio::test]
async fn every_operation_marks_the_callers_transaction() {
    let Some(ready) = ready().await else { return };
    let store = &ready.store;
    let pool = own_pool(&ready.place).await;
    let mut transaction = pool.begin().await.unwrap();
    let _ = store
        .receive_in(&mut transaction, &[message("received")])
        .await
        .unwrap();
    store.commit(transaction).await.unwrap();
    let lease = claim_one(store).await;
    let mut transaction = pool.begin().await.unwrap();
    let settlement = Settlement {
        lease,
        outcome: processed(),
    };
    let settled = store.settle_in(&mut transaction, &[settlement]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    // A savepoint of the handler's, and what is in it.
    for sql in [
        "SAVEPOINT own",
        "SELECT 1 / 0",
        "ROLLBACK TO own",
        "CREATE TABLE own_table ()",
        "DROP TABLE own_table",
    ] {
        let done = sqlx::raw_sql(sql).execute(&mut *transaction).await;
        assert_eq!(done.is_err(), sql.contains('/'), "{sql}");
    }
    store.commit(transaction).await.unwrap();
    assert_eq!(get(store, "received").await.state, State::Processed);
    // Nobody has asked this store anything in it, so it might be another than the caller thinks.
    let error = store.commit(pool.begin().await.unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Other);
    store.commit(store.open().await.unwrap()).await.unwrap();
}

/// What was marked within a savepoint of the handler's is not marked behind its roll-back. It is
/// refused rather than taken for another transaction, unless the store is used in it once more.
#[tokio::test]
async fn a_mark_that_was_rolled_back_is_missed() {
    let Some(ready) = ready().await else { return };
    let store = &ready.store;
    let pool = own_pool(&ready.place).await;
    for again in [false, true] {
        let mut transaction = pool.begin().await.unwrap();
        transaction.execute("SAVEPOINT own").await.unwrap();
        record(store, &mut transaction, "undone").await;
        transaction.execute("ROLLBACK TO own").await.unwrap();
        if again {
            record(store, &mut transaction, "again").await;
            store.commit(transaction).await.unwrap();
            continue;
        }
        let error = store.commit(transaction).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
    }
    assert_eq!(get(store, "again").await.state, State::Processed);
    assert_eq!(store.get(&key("undone")).await.unwrap(), None);
}

/// A deferred constraint, which only the commit finds broken.
#[tokio::test]
async fn what_fails_in_the_commit_itself_is_said() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    place
        .run(
            "CREATE TABLE {schema}.node (
                 id int PRIMARY KEY,
                 above int REFERENCES {schema}.node DEFERRABLE INITIALLY DEFERRED
             )",
        )
        .await
        .unwrap();
    let mut transaction = store.open().await.unwrap();
    record(store, &mut transaction, "1").await;
    let sql = place.sql("INSERT INTO {schema}.node VALUES (1, 2)");
    transaction.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    let error = store.commit(transaction).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Other, "{error}");
    assert!(error.context().contains("23503"), "{error}");
    assert_eq!(error.effect(), Effect::None);
    assert_eq!(store.get(&key("1")).await.unwrap(), None);
}

/// A pool of one connection, which goes on whether commits succeed, fail or are dropped half-way.
#[tokio::test]
async fn no_connection_goes_back_within_a_transaction() {
    let Some(ready) = ready_with(|options| options.max_connections(1)).await else {
        return;
    };
    let (place, store) = (&ready.place, &ready.store);
    let open = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'
         AND query LIKE '%{}%'",
        place.schema.name
    );
    for polls in 0..4 {
        for fails in [false, true] {
            let id = format!("{polls} {fails}");
            let mut transaction = store.open().await.unwrap();
            record(store, &mut transaction, &id).await;
            if fails {
                assert!(transaction.execute("SELECT 1 / 0").await.is_err());
            }
            let mut committing = pin!(store.commit(transaction));
            let mut ended = false;
            for _ in 0..polls {
                if !ended {
                    let mut context = Context::from_waker(Waker::noop());
                    ended = committing.as_mut().poll(&mut context).is_ready();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
        // Waits for the connection, and finds it outside of any transaction.
        let first = format!("{polls} after");
        let _ = store.receive(&[message(&first)]).await.unwrap();
        let seen: i64 = place
            .value(&place.sql("SELECT count(*) FROM {schema}.inbox_message WHERE id LIKE '%after'"))
            .await;
        assert_eq!(seen, polls + 1, "committed by itself");
        assert_eq!(place.value::<i64>(&open).await, 0);
    }
    check_consistent(&ready).await;
}
