//! What a commit answers when a statement has ended the transaction before.

use inbox_api::{
    Bytes, Effect, ErrorKind, Operate, Receipt, Recorded, Settled, Settlement, State, Store as _,
    Transactional,
};
use inbox_sqlite::SqliteStore;
use sqlx::{AssertSqlSafe, Sqlite, SqlitePool, Transaction, sqlite::SqliteConnectOptions};

use crate::common::*;

type Tx = Transaction<'static, Sqlite>;

/// Whose connection the transaction is on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum On {
    Store,
    CallersPool,
}

struct Desk {
    inbox: TestInbox,
    pool: SqlitePool,
}

impl Desk {
    async fn new() -> Self {
        let inbox = test_inbox().await;
        let options = SqliteConnectOptions::new().filename(inbox.path());
        let pool = SqlitePool::connect_with(options).await.unwrap();
        let tables = "CREATE TABLE orders (id INTEGER PRIMARY KEY);
            CREATE TABLE strict_orders (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK);
            CREATE TABLE refused (id INTEGER);
            CREATE TRIGGER refuse BEFORE INSERT ON refused
            BEGIN SELECT RAISE(ROLLBACK, 'refused'); END;
            INSERT INTO strict_orders VALUES (1); INSERT INTO orders VALUES (1);";
        sqlx::raw_sql(tables).execute(&pool).await.unwrap();
        Self { inbox, pool }
    }

    fn store(&self) -> &SqliteStore {
        &self.inbox.store
    }

    async fn open(&self, on: On) -> Tx {
        match on {
            On::Store => self.store().open().await.unwrap(),
            On::CallersPool => self.pool.begin_with("BEGIN IMMEDIATE").await.unwrap(),
        }
    }

    async fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

/// As a handler that does not look at what its statements say.
async fn try_all(transaction: &mut Tx, statements: &[&'static str]) {
    for statement in statements {
        let _ = sqlx::raw_sql(*statement).execute(&mut **transaction).await;
    }
}

const ENDING: &[&[&str]] = &[
    &["ROLLBACK"],
    &["COMMIT"],
    &["ROLLBACK", "BEGIN"],
    &["COMMIT", "BEGIN"],
    &["END", "BEGIN IMMEDIATE"],
    &["ROLLBACK", "SAVEPOINT mine"],
    &["INSERT OR ROLLBACK INTO orders VALUES (1)"],
    &["INSERT OR ROLLBACK INTO orders VALUES (1)", "BEGIN"],
    &["INSERT INTO strict_orders VALUES (1)", "BEGIN IMMEDIATE"],
    &["INSERT INTO refused VALUES (1)", "BEGIN EXCLUSIVE"],
];

#[tokio::test]
async fn a_transaction_that_a_statement_has_ended_does_not_commit() {
    for on in [On::Store, On::CallersPool] {
        for ending in ENDING {
            let desk = Desk::new().await;
            let store = desk.store();
            let mut transaction = desk.open(on).await;
            let recorded = store.record_in(&mut transaction, &message("1"), None).await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            try_all(&mut transaction, ending).await;
            try_all(&mut transaction, &["INSERT INTO orders VALUES (2)"]).await;
            let error = match store.commit(transaction).await {
                Ok(()) => panic!("{on:?}, {ending:?}: committed"),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::Other, "{ending:?}: {error}");
            assert_eq!(error.effect(), Effect::Unknown, "{ending:?}: {error}");
            assert!(error.context().contains("transaction"), "{error}");

            // Nothing is left of it that the next one trips over.
            let mut next = desk.open(on).await;
            let recorded = store.record_in(&mut next, &message("2"), None).await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            store.commit(next).await.unwrap();
            check_consistent(store).await;
        }
    }
}

#[tokio::test]
async fn a_transaction_that_goes_on_commits_whole() {
    let harmless: &[&[&str]] = &[
        &["INSERT INTO orders VALUES (1)"],
        &["INSERT OR FAIL INTO orders VALUES (1)"],
        &["SELECT * FROM nowhere", "this is not SQL"],
        &["CREATE TABLE more (id INTEGER)", "DROP TABLE refused"],
        &["SAVEPOINT mine", "ROLLBACK TO mine", "RELEASE mine"],
        &["SAVEPOINT mine", "INSERT INTO orders VALUES (3)"],
        &["BEGIN"],
        &["RELEASE nothing"],
    ];
    for on in [On::Store, On::CallersPool] {
        for statements in harmless {
            let desk = Desk::new().await;
            let store = desk.store();
            let mut transaction = desk.open(on).await;
            let recorded = store.record_in(&mut transaction, &message("1"), None).await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            try_all(&mut transaction, statements).await;
            try_all(&mut transaction, &["INSERT INTO orders VALUES (2)"]).await;
            let recorded = store.record_in(&mut transaction, &message("2"), None).await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            store.commit(transaction).await.unwrap();
            assert!(desk.count("orders").await >= 2, "{statements:?}");
            for id in ["1", "2"] {
                let record = store.get(&key(id)).await.unwrap();
                assert!(record.is_some(), "{on:?}, {statements:?}");
            }
        }
    }
}

/// What comes behind the end is not durable either, or the message would be settled without the
/// writes of its handler.
#[tokio::test]
async fn what_the_store_does_behind_the_end_is_undone() {
    for on in [On::Store, On::CallersPool] {
        for ending in ENDING {
            let desk = Desk::new().await;
            let store = desk.store();
            store.receive_held().await;
            let lease = claim_one(store).await;
            let mut transaction = desk.open(on).await;
            // Marks it if it is the caller's.
            let receipts = store.receive_in(&mut transaction, &[]).await.unwrap();
            assert_eq!(receipts, []);
            try_all(&mut transaction, &["INSERT INTO orders VALUES (2)"]).await;
            try_all(&mut transaction, ending).await;
            let settlement = Settlement {
                lease: lease.clone(),
                outcome: processed(),
            };
            let settled = store.settle_in(&mut transaction, &[settlement]).await;
            let begun_again = ending
                .last()
                .is_some_and(|last| last.starts_with("BEGIN") || last.starts_with("SAVEPOINT"));
            let mut errors = vec![settled.map(drop).err()];
            if on == On::CallersPool {
                // One that was begun again in place of the first is not told from that.
                assert_eq!(errors[0].is_none(), begun_again, "{ending:?}");
                store.roll_back(transaction).await.unwrap();
            } else {
                let recorded = store.record_in(&mut transaction, &message("2"), None).await;
                let received = store.receive_in(&mut transaction, &[message("3")]).await;
                let error = store.commit(transaction).await.unwrap_err();
                errors.extend([
                    recorded.map(drop).err(),
                    received.map(drop).err(),
                    Some(error),
                ]);
            }
            for error in errors.into_iter().flatten() {
                assert_eq!(error.kind(), ErrorKind::Other, "{ending:?}: {error}");
                assert_eq!(error.effect(), Effect::Unknown, "{ending:?}: {error}");
            }
            assert_eq!(get(store, "held").await.state, State::Leased, "{ending:?}");
            assert_eq!(store.get(&key("2")).await.unwrap(), None, "{ending:?}");
            assert_eq!(store.get(&key("3")).await.unwrap(), None, "{ending:?}");
            settle(store, &lease, processed()).await;
        }
    }
}

trait Held {
    async fn receive_held(&self);
}

impl Held for SqliteStore {
    async fn receive_held(&self) {
        use inbox_api::Store as _;
        self.receive(&[message("held")]).await.unwrap();
    }
}

#[tokio::test]
async fn a_full_disk_inside_a_transaction_is_never_committed_in_part() {
    for on in [On::Store, On::CallersPool] {
        for room in 0..12 {
            let desk = Desk::new().await;
            let store = desk.store();
            let mut transaction = desk.open(on).await;
            let recorded = store.record_in(&mut transaction, &message("1"), None).await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
                .fetch_one(&mut *transaction)
                .await
                .unwrap();
            let limit = format!("PRAGMA max_page_count = {}", pages + room);
            let _ = sqlx::raw_sql(AssertSqlSafe(limit))
                .execute(&mut *transaction)
                .await
                .unwrap();
            try_all(
                &mut transaction,
                &[
                    "CREATE TABLE large (a)",
                    "INSERT INTO large VALUES (zeroblob(100000))",
                    "PRAGMA max_page_count = 1000000",
                    "INSERT INTO orders VALUES (2)",
                ],
            )
            .await;
            let committed = store.commit(transaction).await;
            let recorded = store.get(&key("1")).await.unwrap().is_some();
            let written = desk.count("orders").await == 2;
            if committed.is_ok() {
                assert!(recorded && written, "{on:?}, {room}");
            } else {
                assert!(!recorded, "{on:?}, {room}");
            }
        }
    }
}

#[tokio::test]
async fn empty_batches_and_settlements_mark_a_callers_transaction_too() {
    let desk = Desk::new().await;
    let store = desk.store();
    store.receive_held().await;
    let lease = claim_one(store).await;
    for empty in [true, false] {
        let mut transaction = desk.open(On::CallersPool).await;
        if empty {
            let receipts = store.receive_in(&mut transaction, &[]).await.unwrap();
            assert_eq!(receipts, []);
        } else {
            let settlement = Settlement {
                lease: lease.clone(),
                outcome: processed(),
            };
            let settled = store.settle_in(&mut transaction, &[settlement]).await;
            assert_eq!(settled.unwrap(), [Settled::Done]);
        }
        try_all(&mut transaction, &["INSERT INTO orders (id) VALUES (NULL)"]).await;
        store.commit(transaction).await.unwrap();
    }
    assert_eq!(desk.count("orders").await, 3);
}

#[tokio::test]
async fn a_deferred_constraint_that_fails_at_the_commit_fails_it() {
    let desk = Desk::new().await;
    let store = desk.store();
    let tables = "CREATE TABLE parents (id INTEGER PRIMARY KEY);
        CREATE TABLE children (id INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED);";
    sqlx::raw_sql(tables).execute(&desk.pool).await.unwrap();
    for on in [On::Store, On::CallersPool] {
        let mut transaction = desk.open(on).await;
        let recorded = store.record_in(&mut transaction, &message("1"), None).await;
        assert_eq!(recorded.unwrap(), Recorded::First);
        try_all(&mut transaction, &["INSERT INTO children VALUES (7)"]).await;
        let error = store.commit(transaction).await.unwrap_err();
        assert_eq!(error.effect(), Effect::None, "{error}");
        assert_eq!(store.get(&key("1")).await.unwrap(), None);
        assert_eq!(desk.count("children").await, 0);
    }
}

/// A transaction that has not written yet finds the file locked, and later does not.
#[tokio::test]
async fn a_step_that_failed_by_itself_is_not_left_out() {
    let desk = Desk::new().await;
    let store = desk.store();
    let options = SqliteConnectOptions::new()
        .filename(desk.inbox.path())
        .busy_timeout(std::time::Duration::from_millis(50));
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let receipts = store.receive(&[message("leased")]).await.unwrap();
    assert_eq!(receipts, [Receipt::Accepted]);
    let lease = claim_one(store).await;
    for step in ["receive", "record", "settle"] {
        let mut transaction = pool.begin().await.unwrap();
        let writer = desk.open(On::CallersPool).await;
        let new = message(step);
        let failed = match step {
            "receive" => store.receive_in(&mut transaction, &[new]).await.map(drop),
            "record" => store
                .record_in(&mut transaction, &new, None)
                .await
                .map(drop),
            _ => {
                let settlement = Settlement {
                    lease: lease.clone(),
                    outcome: processed(),
                };
                let settled = store.settle_in(&mut transaction, &[settlement]).await;
                settled.map(drop)
            }
        };
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable, "{step}");
        writer.rollback().await.unwrap();
        let mine = "INSERT INTO orders VALUES (2)";
        let written = sqlx::raw_sql(mine).execute(&mut *transaction).await;
        assert_eq!(written.unwrap().rows_affected(), 1);
        let error = store.commit(transaction).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{step}: {error}");
        assert_eq!(error.effect(), Effect::None, "{step}: {error}");
        assert_eq!(desk.count("orders").await, 1, "{step}");
        // The session's next transaction is not concerned.
        let mut next = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let other = message(&format!("next {step}"));
        let recorded = store.record_in(&mut next, &other, None).await;
        assert_eq!(recorded.unwrap(), Recorded::First);
        store.commit(next).await.unwrap();
    }
}

/// Whether a step is unfinished is told by the connection, whichever store it was a step of.
#[tokio::test]
async fn a_settlement_with_the_commit_minds_every_failed_step() {
    let desk = Desk::new().await;
    let store = desk.store();
    let other = desk.inbox.other().await;
    store.receive_held().await;
    let settlements = [Settlement {
        lease: claim_one(store).await,
        outcome: processed(),
    }];
    let result = Bytes::from_static(b"result");
    for (failing, sets_limit) in [
        (store, false),
        (&other, false),
        (store, true),
        (&other, true),
    ] {
        let mut transaction = desk.open(On::Store).await;
        if sets_limit {
            try_all(&mut transaction, &["PRAGMA analysis_limit = 400"]).await;
        }
        let failed = failing
            .keep_result_in(&mut transaction, &key("unknown"), result.clone())
            .await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Other);
        // Behind it, another one comes to its end.
        let new = message("new");
        let recorded = failing.record_in(&mut transaction, &new, None).await;
        assert_eq!(recorded.unwrap(), Recorded::First);
        try_all(&mut transaction, &["INSERT INTO orders VALUES (2)"]).await;
        let ended = store.settle_and_commit(transaction, &settlements).await;
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert_eq!(error.effect(), Effect::None, "{error}");
        assert_eq!(desk.count("orders").await, 1);
        assert_eq!(store.get(&key("new")).await.unwrap(), None);
    }
    // The next transaction has no step in it.
    let mut transaction = desk.open(On::Store).await;
    try_all(&mut transaction, &["INSERT INTO orders VALUES (2)"]).await;
    let ended = store.settle_and_commit(transaction, &settlements).await;
    assert_eq!(ended.unwrap(), [Settled::Done]);
    assert_eq!(desk.count("orders").await, 2);
}
