//! Closures as transactional handlers: what becomes of the transaction that they are lent.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox::{
    CancellationToken, Context, Handler, LentTransaction, Operate as _, Processor, Record, Router,
    Schema as _, State, Store as _, Summary, in_transaction_fn,
};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{Sqlite, SqlitePool, Transaction};

use crate::processor_support::{billing, eventually, key, message};

type Lent = LentTransaction<Transaction<'static, Sqlite>>;

/// A file with one message.
struct Place {
    store: SqliteStore,
    pool: SqlitePool,
    _folder: tempfile::TempDir,
}

impl Place {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inbox.db");
        let store = SqliteStore::connect(SqliteOptions::new(&path))
            .await
            .unwrap();
        store.create().await.unwrap();
        let url = format!("sqlite://{}", path.display());
        let pool = SqlitePool::connect(&url).await.unwrap();
        let create = sqlx::query("CREATE TABLE effects (id TEXT NOT NULL)");
        create.execute(&pool).await.unwrap();
        let _ = store.receive(&[message("1")]).await.unwrap();
        Self {
            store,
            pool,
            _folder: folder,
        }
    }

    fn processor(&self, handler: impl Handler) -> Processor {
        Processor::builder(Arc::new(self.store.clone()))
            .router(Router::new(billing()).on("order.placed", handler))
            .drain_limit(Duration::ZERO)
            .build()
            .unwrap()
    }

    async fn record(&self) -> Record {
        self.store.get(&key("1")).await.unwrap().unwrap()
    }

    async fn effects(&self) -> Vec<String> {
        let select = sqlx::query_scalar("SELECT id FROM effects");
        select.fetch_all(&self.pool).await.unwrap()
    }
}

async fn write(transaction: &mut Lent, context: &Context) -> Result<(), sqlx::Error> {
    let insert = sqlx::query("INSERT INTO effects (id) VALUES (?)");
    let insert = insert.bind(context.message().id().to_string());
    insert.execute(&mut ***transaction).await.map(drop)
}

async fn until_idle(processor: Processor) -> Summary {
    let run = processor.run_until_idle(CancellationToken::new());
    run.await.unwrap()
}

#[tokio::test]
async fn a_closure_will_do() {
    let place = Place::new().await;
    let book = |mut transaction: Lent, context: Context| async move {
        write(&mut transaction, &context).await
    };
    let handler = in_transaction_fn(place.store.clone(), book);
    assert_eq!(until_idle(place.processor(handler)).await.processed, 1);
    assert_eq!(place.effects().await, ["1"]);
}

/// One that does not give its transaction back has failed, and nothing of it is there.
#[tokio::test]
async fn a_closure_cannot_keep_its_transaction() {
    let place = Place::new().await;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    let book = move |mut transaction: Lent, context: Context| {
        let keep = keep.clone();
        async move {
            write(&mut transaction, &context).await?;
            keep.lock().unwrap().push(transaction);
            Ok::<_, sqlx::Error>(())
        }
    };
    let processor = place.processor(in_transaction_fn(place.store.clone(), book));
    let run = tokio::spawn(until_idle(processor));
    eventually("it has run", async || !kept.lock().unwrap().is_empty()).await;
    kept.lock().unwrap().clear();
    let summary = run.await.unwrap();
    assert_eq!((summary.processed, summary.retried), (0, 1));
    let error = place.record().await.last_error.unwrap();
    assert!(error.contains("kept its transaction"), "{error}");
    assert_eq!(place.effects().await, [""; 0]);
}

/// One that is told to stop loses nothing but its transaction.
#[tokio::test]
async fn a_closure_that_is_cut_short_is_rolled_back() {
    let place = Place::new().await;
    let written = CancellationToken::new();
    let tell = written.clone();
    let book = move |mut transaction: Lent, context: Context| {
        let tell = tell.clone();
        async move {
            write(&mut transaction, &context).await?;
            tell.cancel();
            std::future::pending::<()>().await;
            Ok::<_, sqlx::Error>(())
        }
    };
    let processor = place.processor(in_transaction_fn(place.store.clone(), book));
    let shutdown = written.clone();
    let summary = processor.run(shutdown).await.unwrap();
    assert_eq!((summary.released, summary.processed), (1, 0));
    let record = place.record().await;
    assert_eq!((record.state, record.attempts.started), (State::Pending, 0));
    assert_eq!(place.effects().await, [""; 0]);
}
