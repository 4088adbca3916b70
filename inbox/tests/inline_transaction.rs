//! The transactional form of the inline consumer, on SQLite.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{convert::Infallible, time::Duration};

use inbox::{
    Effect, HandlerName, Kind, LeaseTerms, Message, MessageId, Operate as _, Schema as _, State,
    Store as _, Transactional, WorkerName,
    inline::{ConsumeError, Consumed, OnDuplicate, consume_in_transaction},
};
use inbox_sqlite::{SqliteOptions, SqliteStore};

type Transaction = <SqliteStore as Transactional>::Transaction;

struct Bench {
    store: SqliteStore,
    _directory: tempfile::TempDir,
}

async fn bench() -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("inbox.db").display());
    let options = SqliteOptions::from_url(&url).unwrap();
    let store = SqliteStore::connect(options).await.unwrap();
    store.create().await.unwrap();
    let mut transaction = store.open().await.unwrap();
    sqlx::query("CREATE TABLE charges (amount INTEGER NOT NULL)")
        .execute(&mut *transaction)
        .await
        .unwrap();
    store.commit(transaction).await.unwrap();
    Bench {
        store,
        _directory: directory,
    }
}

async fn charge(transaction: &mut Transaction) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO charges VALUES (7)")
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

impl Bench {
    async fn charges(&self) -> i64 {
        let mut transaction = self.store.open().await.unwrap();
        let count = sqlx::query_scalar("SELECT count(*) FROM charges")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        self.store.roll_back(transaction).await.unwrap();
        count
    }
}

fn message(id: &str) -> Message {
    Message::new(
        HandlerName::new("billing").unwrap(),
        MessageId::new(id).unwrap(),
        Kind::new("order.placed").unwrap(),
        "payload",
    )
}

#[tokio::test]
async fn record_and_work_commit_together_once() {
    let bench = bench().await;
    let consume =
        async |policy| consume_in_transaction(&bench.store, &message("1"), policy, charge).await;
    let first = consume(OnDuplicate::Error).await.unwrap();
    assert_eq!(first, Consumed::Ran { result: None });
    let second = consume(OnDuplicate::Skip).await.unwrap();
    assert_eq!(second, Consumed::Duplicate { result: None });
    let third = consume(OnDuplicate::Error).await;
    assert!(matches!(third, Err(ConsumeError::Duplicate)), "{third:?}");
    assert_eq!(bench.charges().await, 1);
    let record = bench.store.get(message("1").key()).await.unwrap().unwrap();
    assert_eq!(record.state, State::Processed);
}

#[tokio::test]
async fn a_failing_or_dropped_handler_leaves_nothing() {
    let bench = bench().await;
    let failing = async |transaction: &mut Transaction| {
        charge(transaction).await.unwrap();
        Err("no funds")
    };
    let failed =
        consume_in_transaction(&bench.store, &message("1"), OnDuplicate::Skip, failing).await;
    assert!(
        matches!(failed, Err(ConsumeError::Handler("no funds"))),
        "{failed:?}"
    );
    let stuck = async |transaction: &mut Transaction| -> Result<(), Infallible> {
        charge(transaction).await.unwrap();
        std::future::pending().await
    };
    let message_1 = message("1");
    let consuming = consume_in_transaction(&bench.store, &message_1, OnDuplicate::Skip, stuck);
    let dropped = tokio::time::timeout(Duration::from_millis(50), consuming).await;
    assert!(dropped.is_err());
    assert_eq!(bench.charges().await, 0);
    assert!(bench.store.get(message("1").key()).await.unwrap().is_none());
    // The next delivery does it.
    let done = consume_in_transaction(&bench.store, &message("1"), OnDuplicate::Skip, charge).await;
    assert_eq!(done.unwrap(), Consumed::Ran { result: None });
    assert_eq!(bench.charges().await, 1);
}

#[tokio::test]
async fn a_message_that_a_worker_holds_is_busy() {
    let bench = bench().await;
    let worker = WorkerName::new("other").unwrap();
    let terms = LeaseTerms::new(Duration::from_secs(60), worker).unwrap();
    let _ = bench.store.begin(&message("1"), &terms).await.unwrap();
    let busy = consume_in_transaction(&bench.store, &message("1"), OnDuplicate::Skip, charge).await;
    assert!(matches!(busy, Err(ConsumeError::Busy { .. })), "{busy:?}");
    assert_eq!(bench.charges().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_tasks_at_once_one_runs() {
    let bench = bench().await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = bench.store.clone();
            tokio::spawn(async move {
                loop {
                    let message = message("1");
                    let policy = OnDuplicate::Skip;
                    match consume_in_transaction(&store, &message, policy, charge).await {
                        Ok(consumed) => return consumed,
                        // As a broker would: deliver again.
                        Err(ConsumeError::Store(error)) if error.is_retryable() => {
                            assert_eq!(error.effect(), Effect::None);
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        })
        .collect();
    let mut ran = 0;
    for task in tasks {
        ran += u32::from(task.await.unwrap() == Consumed::Ran { result: None });
    }
    assert_eq!((ran, bench.charges().await), (1, 1));
}
