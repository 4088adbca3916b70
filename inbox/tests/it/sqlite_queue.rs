//! Transactional handlers of two processes that queue for SQLite's one writer for longer than their
//! leases last.

use std::{path::Path, sync::Arc, time::Duration};

use inbox::{
    CancellationToken, Filter, Operate as _, Page, Processor, Router, Schema as _, State,
    Store as _, Summary, in_transaction_fn,
    sqlite::{SqliteOptions, SqliteStore, Synchronous},
};

use crate::processor_support::{at_once, billing, message};

const LEASE: Duration = Duration::from_secs(6);
/// A queue of 32 of them takes more than nine seconds.
const EACH: Duration = Duration::from_millis(300);
const MESSAGES: usize = 75;

/// With its own connections, as another process has it.
async fn connect(path: &Path) -> SqliteStore {
    let options = SqliteOptions::new(path)
        .synchronous(Synchronous::Normal)
        // The last of a queue wait for all others.
        .operation_timeout(Duration::from_secs(60));
    SqliteStore::connect(options).await.unwrap()
}

async fn work(store: SqliteStore) -> Summary {
    let handler = in_transaction_fn(store.clone(), |mut transaction, context| async move {
        sqlx::query("INSERT INTO effects (id) VALUES (?)")
            .bind(context.message().id().to_string())
            .execute(&mut **transaction)
            .await?;
        tokio::time::sleep(EACH).await;
        Ok::<_, sqlx::Error>(())
    });
    let processor = Processor::builder(Arc::new(store.clone()))
        .router(Router::new(billing()).on("order.placed", handler))
        .concurrency(32)
        .lease(LEASE)
        .retry(at_once(3))
        .build()
        .unwrap();
    let run = processor.run_until_drained(Arc::new(store), CancellationToken::new());
    run.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_for_the_writer_costs_no_lease_and_starves_no_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("inbox.db");
    let (one, other) = (connect(&path).await, connect(&path).await);
    one.create().await.unwrap();
    let url = format!("sqlite://{}", path.display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let create = sqlx::query("CREATE TABLE effects (id TEXT NOT NULL)");
    create.execute(&pool).await.unwrap();
    let messages: Vec<_> = (0..MESSAGES).map(message).collect();
    let _ = one.receive(&messages).await.unwrap();

    let (first, second) = tokio::join!(work(one.clone()), work(other));
    let records = one
        .list(&Filter::default(), &Page::first(1000))
        .await
        .unwrap()
        .records;
    assert_eq!(records.len(), MESSAGES);
    for record in &records {
        let attempts = (record.attempts.started, record.attempts.finished);
        assert_eq!(
            (record.state, attempts),
            (State::Processed, (1, 1)),
            "{record:?}"
        );
    }
    let effects = sqlx::query_scalar("SELECT count(DISTINCT id) FROM effects");
    let effects: i64 = effects.fetch_one(&pool).await.unwrap();
    assert_eq!(usize::try_from(effects).unwrap(), MESSAGES);
    // Each had its share, as far as it can be told from so few.
    for summary in [&first, &second] {
        assert_eq!(
            (summary.lease_lost, summary.dead),
            (0, 0),
            "{first:?}\n{second:?}"
        );
        assert!(summary.processed >= 10, "{first:?}\n{second:?}");
    }
}
