//! The server, its databases and what it says about itself.

use std::str::FromStr as _;

use anyhow::{Context as _, Result};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _,
    postgres::PgConnectOptions,
};
use test_servers::Kind;

use super::{Layout, Shape, client::Client, figure};
use crate::target::cannot_connect;

/// Statements are planned once, perhaps while the tables are still empty: these keep to the
/// indexes whatever the tables look like, so that layouts are compared and not plans.
const SESSION: [(&str, &str); 7] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_mergejoin", "off"),
    ("enable_hashjoin", "off"),
    ("enable_material", "off"),
    ("jit", "off"),
];

/// The test server's own are as small as can be.
const SIZES: [&str; 4] = ["-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB"];

/// What matters to the figures.
const SHOWN: [&str; 10] = [
    "shared_buffers",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_compression",
    "wal_level",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
    "autovacuum_naptime",
];

pub(crate) fn session_settings() -> String {
    SESSION
        .map(|(name, value)| format!("{name}={value}"))
        .join(" ")
}

pub(crate) struct Server {
    options: PgConnectOptions,
    /// Without the session's settings.
    plain: PgConnectOptions,
    pub(crate) admin: PgConnection,
    /// It ends when this is dropped.
    own: Option<test_servers::Server>,
}

/// What a stretch of work wrote to the write-ahead log, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wal {
    /// Without images.
    pub(crate) records: f64,
    /// Whole pages, written at their first change after a checkpoint.
    pub(crate) images: f64,
}

impl Server {
    pub(crate) async fn start(url: Option<&str>) -> Result<Self> {
        let own = match url {
            Some(_) => None,
            None => Some(
                tokio::task::spawn_blocking(|| test_servers::find_own(Kind::Postgres, &SIZES))
                    .await??,
            ),
        };
        let url = url.or(own.as_ref().map(test_servers::Server::url));
        let plain =
            PgConnectOptions::from_str(url.context("no server")?)?.disable_statement_logging();
        let options = plain.clone().options(SESSION);
        let mut admin = PgConnection::connect_with(&options)
            .await
            .with_context(|| cannot_connect(options.get_host(), options.get_port()))?;
        sqlx::query("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
            .execute(&mut admin)
            .await
            .context("needs PostgreSQL 15 or newer with its contributed extensions")?;
        Ok(Self {
            options,
            plain,
            admin,
            own: own.filter(|server| !server.is_shared()),
        })
    }

    /// How an application connects to a database.
    pub(crate) fn plain_options(&self, database: &str) -> PgConnectOptions {
        self.plain.clone().database(database)
    }

    /// Whether its settings may be changed.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    pub(crate) async fn about(&mut self) -> Result<String> {
        let version: String = sqlx::query_scalar("SHOW server_version")
            .fetch_one(&mut self.admin)
            .await?;
        let mut about = vec![format!("PostgreSQL {version}")];
        for name in SHOWN {
            let value: String = sqlx::query_scalar("SELECT current_setting($1)")
                .bind(name)
                .fetch_one(&mut self.admin)
                .await?;
            about.push(format!("{name}={value}"));
        }
        Ok(about.join(" "))
    }

    /// Runs statements that cannot be prepared, or are not worth it.
    pub(crate) async fn run(&mut self, sql: String) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.admin)
            .await?;
        Ok(())
    }

    /// Makes the database anew, with the layout's tables but not its indexes.
    pub(crate) async fn create(
        &mut self,
        database: &str,
        layout: &'static Layout,
        shape: Shape,
    ) -> Result<Client> {
        self.drop(database).await?;
        self.run(format!("CREATE DATABASE {database}")).await?;
        let mut client = self.connect(database, layout, shape).await?;
        sqlx::raw_sql(layout.tables)
            .execute(&mut client.connection)
            .await?;
        Ok(client)
    }

    pub(crate) async fn drop(&mut self, database: &str) -> Result<()> {
        self.run(format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"))
            .await
    }

    pub(crate) async fn connect(
        &self,
        database: &str,
        layout: &'static Layout,
        shape: Shape,
    ) -> Result<Client> {
        let options = self.options.clone().database(database);
        let connection = PgConnection::connect_with(&options).await?;
        Ok(Client::new(connection, layout, shape))
    }

    /// Several connections for [`cycle`](super::client::cycle).
    pub(crate) async fn clients(
        &self,
        number: usize,
        database: &str,
        layout: &'static Layout,
        shape: Shape,
    ) -> Result<Vec<Client>> {
        let mut clients = Vec::with_capacity(number);
        for _ in 0..number {
            clients.push(self.connect(database, layout, shape).await?);
        }
        Ok(clients)
    }

    /// Writes a checkpoint and returns the place in the write-ahead log behind it.
    pub(crate) async fn checkpoint(&mut self) -> Result<String> {
        self.run("CHECKPOINT".to_owned()).await?;
        self.wal_end().await
    }

    pub(crate) async fn wal_end(&mut self) -> Result<String> {
        Ok(
            sqlx::query_scalar("SELECT pg_current_wal_flush_lsn()::text")
                .fetch_one(&mut self.admin)
                .await?,
        )
    }

    /// What the server wrote since then, read from the log itself.
    pub(crate) async fn wal_since(&mut self, start: &str) -> Result<Wal> {
        let row = sqlx::query(
            "SELECT sum(record_size)::float8, sum(fpi_size)::float8
             FROM pg_get_wal_stats($1::pg_lsn, pg_current_wal_flush_lsn())",
        )
        .bind(start)
        .fetch_one(&mut self.admin)
        .await
        .context("the log is gone: use fewer messages or a greater max_wal_size")?;
        Ok(Wal {
            records: row.try_get(0)?,
            images: row.try_get(1)?,
        })
    }

    /// The bytes written since then, page headers and all.
    pub(crate) async fn wal_bytes_since(&mut self, start: &str) -> Result<f64> {
        Ok(
            sqlx::query_scalar("SELECT (pg_current_wal_flush_lsn() - $1::pg_lsn)::float8")
                .bind(start)
                .fetch_one(&mut self.admin)
                .await?,
        )
    }
}

/// A table as the server's statistics see it.
pub(crate) struct Table {
    pub(crate) name: String,
    /// Bytes of rows and of what was moved out of them.
    pub(crate) rows: f64,
    pub(crate) indexes: f64,
    pub(crate) dead: f64,
    pub(crate) vacuums: f64,
}

pub(crate) async fn tables(connection: &mut PgConnection) -> Result<Vec<Table>> {
    let rows = sqlx::query(
        "SELECT relname::text, pg_table_size(relid), pg_indexes_size(relid), n_dead_tup,
             autovacuum_count
         FROM pg_stat_user_tables ORDER BY relname",
    )
    .fetch_all(connection)
    .await?;
    let number = |n: i64| figure(u64::try_from(n).unwrap_or_default());
    let tables = rows.iter().map(|row| {
        Ok(Table {
            name: row.try_get(0)?,
            rows: number(row.try_get(1)?),
            indexes: number(row.try_get(2)?),
            dead: number(row.try_get(3)?),
            vacuums: number(row.try_get(4)?),
        })
    });
    tables.collect()
}
