//! The least that once-only handling takes in SQL: a row is inserted before the work and updated
//! after it, in two statements that each commit by themselves, or in the transaction of the work. No
//! fencing, no retries, no claim.

use std::sync::Arc;

use anyhow::{Result, ensure};
use inbox::Message;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Database, Executor, IntoArguments,
    MySqlConnection, PgConnection, SqliteConnection, query::Query,
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
        let changed = match self {
            Self::Postgres(connection) => {
                let inserted = postgres::insert(message).execute(&mut *connection).await?;
                let updated = postgres::update(message).execute(connection).await?;
                inserted.rows_affected() + updated.rows_affected()
            }
            Self::MySql(connection) => {
                let inserted = mysql::insert(message).execute(&mut *connection).await?;
                let updated = mysql::update(message).execute(connection).await?;
                inserted.rows_affected() + updated.rows_affected()
            }
            Self::Sqlite(connection) => {
                let insert = sqlite::insert(message);
                let inserted = insert.execute(&mut *connection.lock().await).await?;
                let update = sqlite::update(message);
                let updated = update.execute(&mut *connection.lock().await).await?;
                inserted.rows_affected() + updated.rows_affected()
            }
        };
        ensure!(changed == 2, "changed {changed} rows");
        Ok(())
    }

    /// Inserts all messages as begun, in one transaction.
    pub(super) async fn fill(&mut self, messages: &[Message]) -> Result<()> {
        let all = messages.iter();
        match self {
            Self::Postgres(connection) => {
                together(connection, all.map(postgres::insert)).await?;
            }
            Self::MySql(connection) => {
                together(connection, all.map(mysql::insert)).await?;
            }
            Self::Sqlite(connection) => {
                together(&mut *connection.lock().await, all.map(sqlite::insert)).await?;
            }
        }
        Ok(())
    }

    /// Inserts the handler's row and updates the message as finished, in one transaction.
    pub(super) async fn effect_and_update(&mut self, message: &Message) -> Result<()> {
        let id = message.id().as_str();
        let changed = match self {
            Self::Postgres(connection) => {
                let effect = sqlx::query(postgres::EFFECT).bind(id);
                let both = [effect, postgres::update(message)];
                together(connection, both).await?.rows_affected()
            }
            Self::MySql(connection) => {
                let effect = sqlx::query(mysql::EFFECT).bind(id);
                let both = [effect, mysql::update(message)];
                together(connection, both).await?.rows_affected()
            }
            Self::Sqlite(connection) => {
                let effect = sqlx::query(sqlite::EFFECT).bind(id);
                let both = [effect, sqlite::update(message)];
                let mut connection = connection.lock().await;
                together(&mut *connection, both).await?.rows_affected()
            }
        };
        ensure!(changed == 2, "changed {changed} rows");
        Ok(())
    }
}

/// Runs statements in one transaction. Answers with what all of them changed.
async fn together<'q, DB>(
    connection: &mut DB::Connection,
    statements: impl IntoIterator<Item = Query<'q, DB, DB::Arguments>>,
) -> Result<DB::QueryResult>
where
    DB: Database,
    DB::Arguments: IntoArguments<DB>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let mut transaction = connection.begin().await?;
    let mut changed = DB::QueryResult::default();
    for statement in statements {
        changed.extend([statement.execute(&mut *transaction).await?]);
    }
    transaction.commit().await?;
    Ok(changed)
}

pub(super) mod postgres {
    use inbox::Message;
    use sqlx::{Postgres, postgres::PgArguments, query::Query};

    pub(in crate::scenarios) const EFFECT: &str = "INSERT INTO effect (id) VALUES ($1)";

    pub(super) fn insert(message: &Message) -> Query<'_, Postgres, PgArguments> {
        sqlx::query(
            "INSERT INTO bare (handler, id, kind, headers, payload, state, lease_until)
             VALUES ($1, $2, $3, $4, $5, 1, now() + interval '30 seconds')
             ON CONFLICT DO NOTHING",
        )
        .bind(message.handler().as_str())
        .bind(message.id().as_str())
        .bind(message.kind().as_str())
        .bind(message.headers().to_json())
        .bind(message.payload().as_ref())
    }

    pub(super) fn update(message: &Message) -> Query<'_, Postgres, PgArguments> {
        sqlx::query(
            "UPDATE bare SET state = 2, finished_at = now()
             WHERE handler = $1 AND id = $2 AND state = 1",
        )
        .bind(message.handler().as_str())
        .bind(message.id().as_str())
    }
}

pub(super) mod mysql {
    use inbox::Message;
    use sqlx::{MySql, mysql::MySqlArguments, query::Query};

    pub(in crate::scenarios) const EFFECT: &str = "INSERT INTO effect (id) VALUES (?)";

    pub(super) fn insert(message: &Message) -> Query<'_, MySql, MySqlArguments> {
        sqlx::query(
            "INSERT IGNORE INTO bare (handler, id, kind, headers, payload, state, lease_until)
             VALUES (?, ?, ?, ?, ?, 1, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)",
        )
        .bind(message.handler().as_str())
        .bind(message.id().as_str())
        .bind(message.kind().as_str())
        .bind(message.headers().to_json())
        .bind(message.payload().as_ref())
    }

    pub(super) fn update(message: &Message) -> Query<'_, MySql, MySqlArguments> {
        sqlx::query(
            "UPDATE bare SET state = 2, finished_at = UTC_TIMESTAMP(6)
             WHERE handler = ? AND id = ? AND state = 1",
        )
        .bind(message.handler().as_str())
        .bind(message.id().as_str())
    }
}

pub(super) mod sqlite {
    use inbox::Message;
    use sqlx::{Sqlite, query::Query, sqlite::SqliteArguments};

    pub(in crate::scenarios) const EFFECT: &str = "INSERT INTO effect (id) VALUES (?)";

    pub(super) fn insert(message: &Message) -> Query<'_, Sqlite, SqliteArguments> {
        sqlx::query(
            "INSERT INTO bare (handler, id, kind, headers, payload, state, lease_until)
             VALUES (?, ?, ?, ?, ?, 1, unixepoch('subsec') + 30) ON CONFLICT DO NOTHING",
        )
        .bind(message.handler().as_str())
        .bind(message.id().as_str())
        .bind(message.kind().as_str())
        .bind(message.headers().to_json())
        .bind(message.payload().as_ref())
    }

    pub(super) fn update(message: &Message) -> Query<'_, Sqlite, SqliteArguments> {
        sqlx::query(
            "UPDATE bare SET state = 2, finished_at = unixepoch('subsec')
             WHERE handler = ? AND id = ? AND state = 1",
        )
        .bind(message.handler().as_str())
        .bind(message.id().as_str())
    }
}
