//! The transactional form of the inline consumer, on SQLite.

use std::{convert::Infallible, time::Duration};

use inbox::{
    Completion, Effect, HandlerName, Kind, LeaseTerms, Message, MessageId, Operate as _,
    Schema as _, State, Store as _, Transactional, WorkerName,
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
        Err::<(), _>("no funds")
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

#[tokio::test]
async fn a_result_is_kept_with_the_work_and_given_to_duplicates() {
    let bench = bench().await;
    let number = async |transaction: &mut Transaction| {
        charge(transaction).await?;
        Ok::<_, sqlx::Error>(Completion::with_result("receipt 99"))
    };
    let consume = async |id| {
        let message = message(id);
        consume_in_transaction(&bench.store, &message, OnDuplicate::ReturnResult, number).await
    };
    let result = Some("receipt 99".into());
    let first = consume("1").await.unwrap();
    assert_eq!(
        first,
        Consumed::Ran {
            result: result.clone()
        }
    );
    let second = consume("1").await.unwrap();
    assert_eq!(second, Consumed::Duplicate { result });
    assert_eq!(bench.charges().await, 1);
    // Also of a message that was received before, and of no other.
    let _ = bench
        .store
        .receive(&[message("2"), message("3")])
        .await
        .unwrap();
    let received = consume("2").await.unwrap();
    assert!(matches!(received, Consumed::Ran { result: Some(_) }));
    let kept = async |id| {
        bench
            .store
            .get(message(id).key())
            .await
            .unwrap()
            .unwrap()
            .result
    };
    assert_eq!(kept("2").await.as_deref(), Some(&b"receipt 99"[..]));
    assert_eq!(kept("3").await, None);
}

#[tokio::test]
async fn a_result_that_cannot_be_kept_does_not_undo_the_work() {
    let bench = bench().await;
    let large = vec![0; bench.store.capabilities().payload_limit + 1];
    let work = async |transaction: &mut Transaction| {
        charge(transaction).await?;
        Ok::<_, sqlx::Error>(Completion::with_result(large))
    };
    let policy = OnDuplicate::ReturnResult;
    let first = consume_in_transaction(&bench.store, &message("1"), policy, work).await;
    assert!(matches!(first, Ok(Consumed::Ran { result: Some(_) })));
    let second = consume_in_transaction(&bench.store, &message("1"), policy, charge).await;
    assert_eq!(second.unwrap(), Consumed::Duplicate { result: None });
    assert_eq!(bench.charges().await, 1);
}

#[tokio::test]
async fn a_result_is_only_kept_of_what_is_processed() {
    let bench = bench().await;
    let _ = bench.store.receive(&[message("1")]).await.unwrap();
    let mut transaction = bench.store.open().await.unwrap();
    let kept = bench
        .store
        .keep_result_in(&mut transaction, message("1").key(), "x".into())
        .await;
    assert_eq!(kept.unwrap_err().operation(), Some("keep_result_in"));
    // Which keeps the transaction from being committed.
    assert!(bench.store.commit(transaction).await.is_err());
}
