//! The least that once-only handling takes in SQL: a row is inserted before the work and updated
//! after it, in two statements that each commit by themselves. No fencing, no retries, no claim.

use std::sync::Arc;

use anyhow::{Result, ensure};
use inbox::Message;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Executor as _, MySqlConnection, PgConnection,
    SqliteConnection,
};
use tokio::sync::Mutex;

use crate::target::{Site, Slot};

const STATE: &str = "state SMALLINT NOT NULL";

/// A caller's connection.
pub(super) enum Bare {
    Postgres(PgConnection),
    MySql(MySqlConnection),
    /// One for all callers: SQLite has one writer at a time, and waiting here is cheaper.
    Sqlite(Arc<Mutex<SqliteConnection>>),
}

/// That many callers, with a new table in the database of the slot. `None` without SQL.
pub(super) async fn callers(site: &Site, slot: Slot, number: u32) -> Result<Option<Vec<Bare>>> {
    let mut callers = Vec::new();
    if let Some(options) = site.postgres(slot) {
        let options = options.disable_statement_logging();
        let table = format!(
            "CREATE TABLE bare (handler text, id text, kind text NOT NULL, headers text NOT NULL,
             payload bytea NOT NULL, {STATE}, lease_until timestamptz NOT NULL,
             finished_at timestamptz, PRIMARY KEY (handler, id))"
        );
        options
            .connect()
            .await?
            .execute(AssertSqlSafe(table))
            .await?;
        for _ in 0..number {
            callers.push(Bare::Postgres(options.connect().await?));
        }
    } else if let Some(options) = site.mysql(slot) {
        let options = options.disable_statement_logging();
        let table = format!(
            "CREATE TABLE bare (handler VARBINARY(255), id VARBINARY(255),
             kind VARBINARY(255) NOT NULL, headers LONGBLOB NOT NULL, payload LONGBLOB NOT NULL,
             {STATE}, lease_until DATETIME(6) NOT NULL, finished_at DATETIME(6),
             PRIMARY KEY (handler, id))"
        );
        options
            .connect()
            .await?
            .execute(AssertSqlSafe(table))
            .await?;
        for _ in 0..number {
            callers.push(Bare::MySql(options.connect().await?));
        }
    } else if let Some(options) = site.sqlite(slot) {
        let table = format!(
            "CREATE TABLE bare (handler TEXT, id TEXT, kind TEXT NOT NULL, headers TEXT NOT NULL,
             payload BLOB NOT NULL, {STATE}, lease_until INTEGER NOT NULL, finished_at INTEGER,
             PRIMARY KEY (handler, id))"
        );
        let mut connection = options.disable_statement_logging().connect().await?;
        connection.execute(AssertSqlSafe(table)).await?;
        let connection = Arc::new(Mutex::new(connection));
        for _ in 0..number {
            callers.push(Bare::Sqlite(Arc::clone(&connection)));
        }
    } else {
        return Ok(None);
    }
    Ok(Some(callers))
}

impl Bare {
    /// Inserts the message as begun, and updates it as finished.
    pub(super) async fn insert_and_update(&mut self, message: &Message) -> Result<()> {
        let (handler, id) = (message.handler().as_str(), message.id().as_str());
        let (kind, headers) = (message.kind().as_str(), message.headers().to_json());
        let payload = message.payload().as_ref();
        let changed = match self {
            Self::Postgres(connection) => {
                let inserted = sqlx::query(
                    "INSERT INTO bare (handler, id, kind, headers, payload, state, lease_until)
                     VALUES ($1, $2, $3, $4, $5, 1, now() + interval '30 seconds')
                     ON CONFLICT DO NOTHING",
                )
                .bind(handler)
                .bind(id)
                .bind(kind)
                .bind(headers)
                .bind(payload)
                .execute(&mut *connection)
                .await?
                .rows_affected();
                let updated = sqlx::query(
                    "UPDATE bare SET state = 2, finished_at = now()
                     WHERE handler = $1 AND id = $2 AND state = 1",
                )
                .bind(handler)
                .bind(id)
                .execute(connection)
                .await?
                .rows_affected();
                inserted + updated
            }
            Self::MySql(connection) => {
                let inserted = sqlx::query(
                    "INSERT IGNORE INTO bare
                     (handler, id, kind, headers, payload, state, lease_until)
                     VALUES (?, ?, ?, ?, ?, 1, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)",
                )
                .bind(handler)
                .bind(id)
                .bind(kind)
                .bind(headers)
                .bind(payload)
                .execute(&mut *connection)
                .await?
                .rows_affected();
                let updated = sqlx::query(
                    "UPDATE bare SET state = 2, finished_at = UTC_TIMESTAMP(6)
                     WHERE handler = ? AND id = ? AND state = 1",
                )
                .bind(handler)
                .bind(id)
                .execute(connection)
                .await?
                .rows_affected();
                inserted + updated
            }
            Self::Sqlite(connection) => {
                let inserted = sqlx::query(
                    "INSERT INTO bare (handler, id, kind, headers, payload, state, lease_until)
                     VALUES (?, ?, ?, ?, ?, 1, unixepoch('subsec') + 30) ON CONFLICT DO NOTHING",
                )
                .bind(handler)
                .bind(id)
                .bind(kind)
                .bind(headers)
                .bind(payload)
                .execute(&mut *connection.lock().await)
                .await?
                .rows_affected();
                let updated = sqlx::query(
                    "UPDATE bare SET state = 2, finished_at = unixepoch('subsec')
                     WHERE handler = ? AND id = ? AND state = 1",
                )
                .bind(handler)
                .bind(id)
                .execute(&mut *connection.lock().await)
                .await?
                .rows_affected();
                inserted + updated
            }
        };
        ensure!(changed == 2, "changed {changed} rows");
        Ok(())
    }
}
