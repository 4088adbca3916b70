//! The table of a consumer that is written by hand.

use anyhow::{Context as _, Result};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection,
    SqliteConnection,
};

use super::Taken;
use crate::target::{Site, Slot};

const POSTGRES: &str = "INSERT INTO received (id, payload)
    SELECT * FROM unnest($1::text[], $2::bytea[]) ON CONFLICT DO NOTHING";
const SQLITE: &str = "INSERT INTO received (id, payload) VALUES (?, ?) ON CONFLICT DO NOTHING";

pub(super) enum Table {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Table {
    /// Whether there can be one on this store.
    pub(super) fn fits(site: &Site) -> bool {
        site.postgres(Slot::Second).is_some() || site.sqlite(Slot::Second).is_some()
    }

    async fn connect(site: &Site, slot: Slot) -> Result<Self> {
        if let Some(options) = site.postgres(slot) {
            let options = options.disable_statement_logging();
            return Ok(Self::Postgres(options.connect().await?));
        }
        let options = site.sqlite(slot).context("not on this store")?;
        let options = options.disable_statement_logging();
        Ok(Self::Sqlite(options.connect().await?))
    }

    pub(super) async fn create(site: &Site, slot: Slot) -> Result<Self> {
        let mut table = Self::connect(site, slot).await?;
        let create = |payload: &str, now: &str| {
            AssertSqlSafe(format!(
                "CREATE TABLE received (id text PRIMARY KEY, payload {payload} NOT NULL,
                 received_at {now})"
            ))
        };
        match &mut table {
            Self::Postgres(connection) => {
                let now = "timestamptz NOT NULL DEFAULT now()";
                connection.execute(create("bytea", now)).await?;
            }
            Self::Sqlite(connection) => {
                let now = "REAL NOT NULL DEFAULT (unixepoch('subsec'))";
                connection.execute(create("blob", now)).await?;
            }
        }
        Ok(table)
    }

    /// In one transaction.
    pub(super) async fn insert(&mut self, taken: &[Taken]) -> Result<()> {
        match self {
            Self::Postgres(connection) => {
                let (ids, payloads): (Vec<&str>, Vec<&[u8]>) = taken
                    .iter()
                    .map(|(id, payload)| (id.as_str(), payload.as_slice()))
                    .unzip();
                let insert = sqlx::query(POSTGRES).bind(ids).bind(payloads);
                insert.execute(connection).await?;
            }
            Self::Sqlite(connection) => {
                let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
                for (id, payload) in taken {
                    let insert = sqlx::query(SQLITE).bind(id).bind(payload);
                    insert.execute(&mut *transaction).await?;
                }
                transaction.commit().await?;
            }
        }
        Ok(())
    }

    pub(super) async fn count(&mut self) -> Result<u64> {
        const COUNT: &str = "SELECT count(*) FROM received";
        let count: i64 = match self {
            Self::Postgres(connection) => sqlx::query_scalar(COUNT).fetch_one(connection).await?,
            Self::Sqlite(connection) => sqlx::query_scalar(COUNT).fetch_one(connection).await?,
        };
        Ok(u64::try_from(count)?)
    }
}
