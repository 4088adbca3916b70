//! What a careful author writes: a row for each key, inserted before the work and updated with the response
//! after it.

use anyhow::{Result, ensure};
use sqlx::{AssertSqlSafe, PgPool, SqlitePool, postgres::PgPoolOptions, sqlite::SqlitePoolOptions};

use crate::{
    scenarios::pair,
    target::{CONNECTIONS, Site, Slot},
};

const INSERT: [&str; 2] = [
    "INSERT INTO request (key, fingerprint, started_at) VALUES ($1, $2, now()) ON CONFLICT DO NOTHING",
    "INSERT INTO request (key, fingerprint, started_at) VALUES (?, ?, unixepoch('subsec')) ON CONFLICT DO NOTHING",
];
const UPDATE: [&str; 2] = [
    "UPDATE request SET response = $2 WHERE key = $1",
    "UPDATE request SET response = ?2 WHERE key = ?1",
];
const EVENT: [&str; 2] = [
    "INSERT INTO event (id, payload) VALUES ($1, $2) ON CONFLICT DO NOTHING",
    "INSERT INTO event (id, payload) VALUES (?, ?) ON CONFLICT DO NOTHING",
];

/// Connections to the database of the inbox, with tables for requests and for events.
#[derive(Clone)]
pub(super) enum Tables {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// The same on either, with the statement of its dialect.
macro_rules! execute {
    ($connection:expr, $statement:expr $(, $value:expr)*) => {{
        let executing = sqlx::query($statement)$(.bind($value))*;
        executing.execute($connection).await?.rows_affected()
    }};
}

impl Tables {
    /// `None` on other stores.
    pub(super) fn connect(site: &Site, slot: Slot) -> Option<Self> {
        if let Some(options) = site.postgres(slot) {
            let pool = PgPoolOptions::new().max_connections(CONNECTIONS);
            return Some(Self::Postgres(pool.connect_lazy_with(options)));
        }
        if let Some(options) = site.sqlite(slot) {
            // It has one writer at a time, and waiting here is cheaper.
            let pool = SqlitePoolOptions::new().max_connections(1);
            return Some(Self::Sqlite(pool.connect_lazy_with(options)));
        }
        None
    }

    /// With new tables.
    pub(super) async fn create(site: &Site, slot: Slot) -> Result<Option<Self>> {
        let Some(tables) = Self::connect(site, slot) else {
            return Ok(None);
        };
        let (bytes, time) = match &tables {
            Self::Postgres(_) => ("bytea", "timestamptz"),
            Self::Sqlite(_) => ("BLOB", "REAL"),
        };
        for table in [
            format!(
                "CREATE TABLE request (key VARCHAR(255) NOT NULL PRIMARY KEY, fingerprint {bytes} NOT NULL,
                 started_at {time} NOT NULL, response {bytes})"
            ),
            format!("CREATE TABLE event (id VARCHAR(255) NOT NULL PRIMARY KEY, payload {bytes} NOT NULL)"),
        ] {
            let table = AssertSqlSafe(table);
            match &tables {
                Self::Postgres(pool) => execute!(pool, table),
                Self::Sqlite(pool) => execute!(pool, table),
            };
        }
        Ok(Some(tables))
    }

    /// The handler's own work, which is the same in all services.
    pub(super) async fn effect(&self, key: &str) -> Result<()> {
        let changed = match self {
            Self::Postgres(pool) => execute!(pool, pair::postgres::EFFECT, key),
            Self::Sqlite(pool) => execute!(pool, pair::sqlite::EFFECT, key),
        };
        ensure!(changed == 1, "changed {changed} rows");
        Ok(())
    }

    /// Whether the key is new.
    pub(super) async fn insert(&self, key: &str, fingerprint: &[u8]) -> Result<bool> {
        let changed = match self {
            Self::Postgres(pool) => execute!(pool, INSERT[0], key, fingerprint),
            Self::Sqlite(pool) => execute!(pool, INSERT[1], key, fingerprint),
        };
        Ok(changed == 1)
    }

    pub(super) async fn update(&self, key: &str, response: &[u8]) -> Result<()> {
        let changed = match self {
            Self::Postgres(pool) => execute!(pool, UPDATE[0], key, response),
            Self::Sqlite(pool) => execute!(pool, UPDATE[1], key, response),
        };
        ensure!(changed == 1, "changed {changed} rows");
        Ok(())
    }

    /// The work and the update in one transaction.
    pub(super) async fn effect_and_update(&self, key: &str, response: &[u8]) -> Result<()> {
        let changed = match self {
            Self::Postgres(pool) => {
                let mut transaction = pool.begin().await?;
                let changed = execute!(&mut *transaction, pair::postgres::EFFECT, key)
                    + execute!(&mut *transaction, UPDATE[0], key, response);
                transaction.commit().await?;
                changed
            }
            Self::Sqlite(pool) => {
                let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
                let changed = execute!(&mut *transaction, pair::sqlite::EFFECT, key)
                    + execute!(&mut *transaction, UPDATE[1], key, response);
                transaction.commit().await?;
                changed
            }
        };
        ensure!(changed == 2, "changed {changed} rows");
        Ok(())
    }

    /// Whether the event is new.
    pub(super) async fn event(&self, id: &str, payload: &[u8]) -> Result<bool> {
        let changed = match self {
            Self::Postgres(pool) => execute!(pool, EVENT[0], id, payload),
            Self::Sqlite(pool) => execute!(pool, EVENT[1], id, payload),
        };
        Ok(changed == 1)
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite(pool) => pool.close().await,
        }
    }
}
