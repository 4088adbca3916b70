//! Schemas of our own in a PostgreSQL database, for commands that must not touch what is there.

use inbox::InboxName;
use inbox_postgres::{PostgresOptions, PostgresStore, SchemaName};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection,
    postgres::PgConnectOptions,
};

/// A database in which such schemas are made and dropped. Not `Debug`: it holds the password.
#[derive(Clone)]
pub(crate) struct Scratch {
    connection: PgConnectOptions,
    options: PostgresOptions,
}

impl Scratch {
    /// In the database that `url` names, with the URL's settings except inbox and schema.
    pub(crate) fn at(url: &str) -> inbox::Result<Self> {
        let (connection, options) = PostgresOptions::from_url(url)?;
        Ok(Self {
            connection: connection.disable_statement_logging(),
            options: options.inbox_name(InboxName::default()),
        })
    }

    /// A name that no other run takes.
    pub(crate) fn schema(purpose: &str) -> inbox::Result<SchemaName> {
        let (process, random) = (std::process::id(), fastrand::u32(..));
        SchemaName::new(format!("inbox_{purpose}_{process}_{random:08x}"))
            .map_err(|invalid| invalid.in_operation("connect"))
    }

    /// The options of an inbox in `schema`.
    pub(crate) fn options(&self, schema: &SchemaName) -> PostgresOptions {
        self.options.clone().schema(schema.clone())
    }

    pub(crate) async fn connect(&self, options: PostgresOptions) -> inbox::Result<PostgresStore> {
        PostgresStore::connect(self.connection.clone(), options).await
    }

    /// Runs SQL that does not come from outside.
    pub(crate) async fn execute(&self, sql: String) -> sqlx::Result<()> {
        let mut connection = PgConnection::connect_with(&self.connection).await?;
        connection.execute(AssertSqlSafe(sql)).await?;
        connection.close().await
    }

    /// Drops a schema with all that is in it. Does not wait for ever for those that still use it.
    pub(crate) async fn drop_schema(&self, schema: &SchemaName) -> sqlx::Result<()> {
        self.execute(format!(
            "SET LOCAL lock_timeout = '5s'; DROP SCHEMA IF EXISTS \"{schema}\" CASCADE"
        ))
        .await
    }
}
