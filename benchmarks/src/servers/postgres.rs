//! The server, its databases and what it says about itself.

use std::str::FromStr as _;

use anyhow::{Context as _, Result};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions,
};
use test_servers::Kind;

use crate::target::cannot_connect;

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

pub(crate) struct Server {
    options: PgConnectOptions,
    admin: PgConnection,
    /// It ends when this is dropped.
    _own: Option<test_servers::Server>,
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
        let options =
            PgConnectOptions::from_str(url.context("no server")?)?.disable_statement_logging();
        let admin = PgConnection::connect_with(&options)
            .await
            .with_context(|| cannot_connect(options.get_host(), options.get_port()))?;
        Ok(Self {
            options,
            admin,
            _own: own,
        })
    }

    pub(crate) fn options(&self, database: &str) -> PgConnectOptions {
        self.options.clone().database(database)
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
    async fn run(&mut self, sql: String) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.admin)
            .await?;
        Ok(())
    }

    /// Makes a new database, in the place of the one that was there.
    pub(crate) async fn create(&mut self, database: &str) -> Result<()> {
        self.drop(database).await?;
        self.run(format!("CREATE DATABASE {database}")).await
    }

    pub(crate) async fn drop(&mut self, database: &str) -> Result<()> {
        self.run(format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"))
            .await
    }

    /// Bytes of the database's files.
    pub(crate) async fn stored(&mut self, database: &str) -> Result<u64> {
        let bytes: i64 = sqlx::query_scalar("SELECT pg_database_size($1)")
            .bind(database)
            .fetch_one(&mut self.admin)
            .await?;
        Ok(bytes.try_into()?)
    }

    pub(crate) async fn checkpoint(&mut self) -> Result<()> {
        self.run("CHECKPOINT".to_owned()).await
    }
}
