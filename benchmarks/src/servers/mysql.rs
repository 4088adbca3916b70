//! The server and its databases.

use anyhow::{Context as _, Result};
use inbox::mysql::{MySqlOptions, MySqlStore};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, mysql::MySqlConnectOptions};
use test_servers::Kind;

use crate::target::cannot_connect;

/// The test server's own are as small as can be. MySQL has another name for the size of its log,
/// and a loose setting is left out by a server that does not know it.
const SIZES: [&str; 3] = [
    "--innodb-buffer-pool-size=1G",
    "--loose-innodb-log-file-size=1G",
    "--loose-innodb-redo-log-capacity=1G",
];

/// What matters to the figures.
const SHOWN: [&str; 9] = [
    "version",
    "innodb_buffer_pool_size",
    "innodb_log_file_size",
    "innodb_redo_log_capacity",
    "innodb_flush_log_at_trx_commit",
    "innodb_doublewrite",
    "innodb_purge_threads",
    "log_bin",
    "transaction_isolation",
];

/// MySQL keeps its estimates of sizes for a day unless it is told to look.
const LOOK: &str = "SET @look = 1 /*!80000 , information_schema_stats_expiry = 0 */";
const STORED: &str = "SELECT CAST(COALESCE(SUM(data_length + index_length), 0) AS UNSIGNED) \
                      FROM information_schema.tables WHERE table_schema = ?";

pub(crate) struct Server {
    options: MySqlConnectOptions,
    /// It ends when this is dropped.
    _own: Option<test_servers::Server>,
}

impl Server {
    /// The server at `url`, or one of our own.
    pub(crate) async fn start(kind: Kind, url: Option<&str>) -> Result<Self> {
        let own = match url {
            Some(_) => None,
            None => {
                let start = move || test_servers::find_own(kind, &SIZES);
                Some(tokio::task::spawn_blocking(start).await??)
            }
        };
        let url = url.or(own.as_ref().map(test_servers::Server::url));
        let options: MySqlConnectOptions = url.context("no server")?.parse()?;
        let connection = options.connect().await;
        connection
            .with_context(|| cannot_connect(options.get_host(), options.get_port()))?
            .close()
            .await?;
        Ok(Self {
            options: options.disable_statement_logging(),
            _own: own,
        })
    }

    pub(crate) fn options(&self, database: &str) -> MySqlConnectOptions {
        self.options.clone().database(database)
    }

    pub(crate) async fn about(&self) -> Result<String> {
        let mut connection = self.options.connect().await?;
        let mut about = Vec::new();
        for name in SHOWN {
            let sql = format!("SHOW GLOBAL VARIABLES LIKE '{name}'");
            let row: Option<(String, String)> = sqlx::query_as(AssertSqlSafe(sql))
                .fetch_optional(&mut connection)
                .await?;
            if let Some((name, value)) = row {
                about.push(format!("{name}={value}"));
            }
        }
        connection.close().await?;
        Ok(about.join(" "))
    }

    /// Runs statements that do not come from outside.
    async fn run(&self, sql: impl Into<String>) -> Result<()> {
        let mut connection = self.options.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(sql.into()))
            .execute(&mut connection)
            .await?;
        connection.close().await?;
        Ok(())
    }

    /// Makes a new database, in the place of the one that was there.
    pub(crate) async fn create(&self, name: &str) -> Result<()> {
        self.run(format!(
            "DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}"
        ))
        .await
    }

    pub(crate) async fn drop(&self, name: &str) -> Result<()> {
        self.run(format!("DROP DATABASE IF EXISTS {name}")).await
    }

    /// Bytes of the database's tables and indexes, as the server estimates them.
    pub(crate) async fn stored(&self, database: &str) -> Result<u64> {
        let mut connection = self.options.connect().await?;
        sqlx::raw_sql(LOOK).execute(&mut connection).await?;
        let bytes = sqlx::query_scalar(STORED)
            .bind(database)
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(bytes)
    }

    pub(crate) async fn connect(&self, database: &str, connections: u32) -> Result<MySqlStore> {
        let options = MySqlOptions::new(self.options(database)).max_connections(connections);
        Ok(MySqlStore::connect(options).await?)
    }
}
