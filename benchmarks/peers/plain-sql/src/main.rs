//! Measures the SQL of the pattern as articles on it give it: an insert that ignores conflicts, and
//! workers that lock a batch, skipping what others locked, and mark it as processed in one update
//! at the end of the same transaction. Handlers run while the transaction is open.

use anyhow::{Result, bail};
use peer_common::{Handled, Message, Run, until};
use sqlx::{PgPool, Row as _, postgres::PgPoolOptions};

const TABLE: &str = "
    CREATE TABLE inbox_messages (
        id text PRIMARY KEY,
        payload text NOT NULL,
        received_at timestamptz NOT NULL DEFAULT now(),
        processed_at timestamptz,
        error text
    );
    CREATE INDEX unprocessed ON inbox_messages (received_at, id) WHERE processed_at IS NULL";

const RECEIVE: &str = "
    INSERT INTO inbox_messages (id, payload)
    SELECT * FROM unnest($1::text[], $2::text[])
    ON CONFLICT (id) DO NOTHING";

const LOCK: &str = "
    SELECT id, payload FROM inbox_messages
    WHERE processed_at IS NULL
    ORDER BY received_at, id
    LIMIT $1
    FOR UPDATE SKIP LOCKED";

const FINISH: &str = "
    UPDATE inbox_messages AS message
    SET processed_at = clock_timestamp(), error = done.error
    FROM unnest($1::text[], $2::text[]) AS done (id, error)
    WHERE message.id = done.id";

/// Messages that a worker locks at a time.
const BATCH: i64 = 1000;

#[tokio::main]
async fn main() -> Result<()> {
    let run = Run::new("plain-sql", "sqlx", include_str!("../Cargo.lock"))?;
    let workers = match run.settings() {
        "1 worker, batches of 1000" => 1,
        "2 workers, batches of 1000" => 2,
        other => bail!("unknown settings {other}"),
    };
    let pool = PgPoolOptions::new()
        .max_connections(3)
        .connect(run.url())
        .await?;
    sqlx::raw_sql(TABLE).execute(&pool).await?;

    run.receive({
        let pool = pool.clone();
        move |messages| receive(pool.clone(), messages)
    })
    .await?;

    let handled = run.handled();
    run.drain(async {
        let workers: Vec<_> = (0..workers)
            .map(|_| tokio::spawn(work(pool.clone(), handled.clone())))
            .collect();
        for worker in workers {
            worker.await??;
        }
        handled.all(run.messages()).await?;
        until(run.messages(), || async {
            let sql = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL";
            let number: i64 = sqlx::query_scalar(sql).fetch_one(&pool).await?;
            Ok(u64::try_from(number)?)
        })
        .await
    })
    .await
}

async fn receive(pool: PgPool, messages: Vec<Message>) -> Result<()> {
    let (ids, payloads): (Vec<_>, Vec<_>) = messages
        .into_iter()
        .map(|message| (message.id, message.payload))
        .unzip();
    sqlx::query(RECEIVE)
        .bind(ids)
        .bind(payloads)
        .execute(&pool)
        .await?;
    Ok(())
}

/// Processes batch after batch, until there is nothing left that others do not hold.
async fn work(pool: PgPool, handled: Handled) -> Result<()> {
    loop {
        let mut transaction = pool.begin().await?;
        let rows = sqlx::query(LOCK)
            .bind(BATCH)
            .fetch_all(&mut *transaction)
            .await?;
        if rows.is_empty() {
            return Ok(());
        }
        let mut ids = Vec::with_capacity(rows.len());
        for row in &rows {
            let _payload: &str = row.try_get(1)?;
            ids.push(row.try_get::<&str, _>(0)?);
        }
        handled.wait().await;
        sqlx::query(FINISH)
            .bind(&ids)
            .bind(vec![None::<&str>; ids.len()])
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        handled.add(u64::try_from(ids.len())?);
    }
}
