//! Schemas that are made for a test.

use std::{
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Decode, PgConnection, Postgres, Row as _,
    Type, postgres::PgConnectOptions,
};

use crate::{names::SchemaName, options::PostgresOptions};

/// A schema for one inbox, which is called `inbox` there, and SQL past the store.
pub struct TestSchema {
    /// How the database is reached.
    pub connection: PgConnectOptions,
    /// The schema's name.
    pub name: SchemaName,
    /// By how much the inbox's clock is ahead, in microseconds.
    ahead: AtomicI64,
    /// The connection of the last call, for the next one: a case makes several, and each connection is a process of the
    /// server.
    idle: Mutex<Option<PgConnection>>,
}

/// Without the connection's password.
impl fmt::Debug for TestSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestSchema")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl TestSchema {
    /// One that is not there yet, by a name that nothing else takes.
    #[must_use]
    pub fn fresh(connection: PgConnectOptions) -> Self {
        let (process, random) = (std::process::id(), fastrand::u32(..));
        let name = format!("inbox_conformance_{process}_{random:08x}");
        Self {
            connection,
            name: SchemaName::of_plain_text(&name),
            ahead: AtomicI64::new(0),
            idle: Mutex::default(),
        }
    }

    /// The one that the options name.
    #[must_use]
    pub fn of(options: &PostgresOptions) -> Self {
        Self {
            connection: options.connection().disable_statement_logging(),
            name: options.schema.clone(),
            ahead: AtomicI64::new(0),
            idle: Mutex::default(),
        }
    }

    /// `options` for an inbox in this schema.
    #[must_use]
    pub fn inbox_options(&self, options: &PostgresOptions) -> PostgresOptions {
        options.clone().schema(self.name.clone())
    }

    /// `sql` with the schema's quoted name for `{schema}`.
    #[must_use]
    pub fn sql(&self, sql: &str) -> String {
        sql.replace("{schema}", &format!("\"{}\"", self.name))
    }

    /// The one that is kept, if it is idle and still there, or a new one.
    async fn connect(&self) -> sqlx::Result<PgConnection> {
        let kept = self.swap_idle(None);
        if let Some(mut connection) = kept
            && connection.ping().await.is_ok()
        {
            return Ok(connection);
        }
        PgConnection::connect_with(&self.connection).await
    }

    fn swap_idle(&self, connection: Option<PgConnection>) -> Option<PgConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *idle, connection)
    }

    /// Keeps no connection any longer: the runtime that it belongs to may end.
    pub(super) fn let_go(&self) {
        self.swap_idle(None);
    }

    /// Runs statements with `{schema}` in them.
    ///
    /// # Errors
    /// The driver's.
    pub async fn run(&self, sql: &str) -> sqlx::Result<()> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(self.sql(sql)))
            .execute(&mut connection)
            .await?;
        self.swap_idle(Some(connection));
        Ok(())
    }

    /// Runs one statement with arguments.
    ///
    /// # Errors
    /// The driver's.
    pub async fn run_with(&self, sql: &str, arguments: &[&str]) -> sqlx::Result<()> {
        let mut connection = self.connect().await?;
        // A pooler keeps to one server's connection within a transaction only.
        let mut transaction = connection.begin().await?;
        let mut query = sqlx::query(AssertSqlSafe(self.sql(sql))).persistent(false);
        for argument in arguments {
            query = query.bind(*argument);
        }
        query.execute(&mut *transaction).await?;
        transaction.commit().await?;
        self.swap_idle(Some(connection));
        Ok(())
    }

    /// The first column of all rows of the statements, which go out as one message: a pooler
    /// passes it on whole.
    ///
    /// # Errors
    /// The driver's.
    pub async fn column<T>(&self, sql: &str) -> sqlx::Result<Vec<T>>
    where
        T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
    {
        let mut connection = self.connect().await?;
        let rows = sqlx::raw_sql(AssertSqlSafe(self.sql(sql)))
            .fetch_all(&mut connection)
            .await?;
        self.swap_idle(Some(connection));
        rows.iter().map(|row| row.try_get(0)).collect()
    }

    /// Moves the inbox's clock forward, by replacing the function that every other one asks.
    ///
    /// # Errors
    /// The driver's.
    pub async fn advance(&self, by: Duration) -> sqlx::Result<()> {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        let ahead = self
            .ahead
            .fetch_add(by, Ordering::Relaxed)
            .saturating_add(by);
        self.run(&format!(
            "CREATE OR REPLACE FUNCTION {{schema}}.inbox_now() RETURNS timestamptz
             LANGUAGE sql VOLATILE PARALLEL SAFE
             AS $$ SELECT pg_catalog.clock_timestamp() + {ahead} * interval '1 microsecond' $$"
        ))
        .await
    }

    /// The rules that do not hold in the inbox's tables, by SQL that knows their layout and nothing
    /// of the store's own statements.
    ///
    /// # Errors
    /// The driver's.
    pub async fn find_broken_rules(&self) -> sqlx::Result<Vec<String>> {
        self.column(include_str!("invariants.sql")).await
    }

    /// Drops the schema with all that is in it. Does not wait for ever for those that still use it.
    ///
    /// # Errors
    /// The driver's.
    pub async fn remove(&self) -> sqlx::Result<()> {
        self.remove_over(self).await
    }

    /// The same over the connection of another schema of the database.
    pub(super) async fn remove_over(&self, other: &Self) -> sqlx::Result<()> {
        let sql = "SET LOCAL lock_timeout = '5s'; DROP SCHEMA IF EXISTS {schema} CASCADE";
        other.run(&self.sql(sql)).await
    }
}
