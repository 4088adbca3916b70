//! Hand-written statements for SQLite.

use anyhow::{Result, ensure};
use inbox::Message;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Executor as _, QueryBuilder, Row as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteRow},
};

use super::{HANDLER, Layout};

const LEASE_MICROS: i64 = 3_600_000_000;
/// The time of all that is received; claims come later.
const RECEIVED: i64 = 1;
const NOW: i64 = 2;

/// Where the content is, and where the state is.
fn tables(layout: Layout) -> (&'static str, &'static str) {
    match layout {
        Layout::OneTable => ("bare", "bare"),
        Layout::Own => ("message", "state"),
    }
}

/// The one writer.
pub(crate) struct Caller {
    connection: SqliteConnection,
    layout: Layout,
    batch: u32,
}

impl Caller {
    /// In a new file.
    pub(super) async fn set_up(
        options: SqliteConnectOptions,
        layout: Layout,
        batch: u32,
    ) -> Result<Self> {
        let mut connection = as_the_store_does(options).connect().await?;
        let tables = match layout {
            Layout::OneTable => include_str!("sql/sqlite_one_table.sql"),
            Layout::Own => include_str!("sql/sqlite_own_layout.sql"),
        };
        connection.execute(sqlx::raw_sql(tables)).await?;
        Ok(Self {
            connection,
            layout,
            batch,
        })
    }

    /// Answers the numbers of what was claimed, as a JSON array.
    async fn claim(&mut self) -> Result<String> {
        let (_, state) = tables(self.layout);
        let content = "seq, handler, id, kind, headers, payload";
        let returning = match self.layout {
            Layout::OneTable => content,
            Layout::Own => "seq",
        };
        let sql = format!(
            "UPDATE {state} SET state = 1, attempts = attempts + 1, token = token + 1,
                 visible_at = ?2 + ?3
             WHERE seq IN (
                 SELECT seq FROM {state}
                 WHERE handler = ?1 AND state = 0 AND visible_at <= ?2
                 ORDER BY visible_at, seq LIMIT ?4
             )
             RETURNING {returning}"
        );
        if self.layout == Layout::Own {
            self.begin().await?;
        }
        let mut rows = sqlx::query(AssertSqlSafe(sql))
            .bind(HANDLER)
            .bind(NOW)
            .bind(LEASE_MICROS)
            .bind(self.batch)
            .fetch_all(&mut self.connection)
            .await?;
        let seqs = rows
            .iter()
            .map(|row| row.try_get(0))
            .collect::<sqlx::Result<Vec<i64>>>()?;
        let seqs = serde_json::to_string(&seqs)?;
        if self.layout == Layout::Own {
            let sql = format!(
                "SELECT {content} FROM message WHERE seq IN (SELECT value FROM json_each(?))"
            );
            rows = sqlx::query(AssertSqlSafe(sql))
                .bind(&seqs)
                .fetch_all(&mut self.connection)
                .await?;
            self.commit().await?;
        }
        rows.iter().try_for_each(read)?;
        Ok(seqs)
    }

    async fn settle(&mut self, seqs: &str) -> Result<u64> {
        let (_, state) = tables(self.layout);
        let sql = format!(
            "UPDATE {state} SET state = 2, finished_at = ?2
             WHERE seq IN (SELECT value FROM json_each(?1)) AND state = 1 AND token = 1"
        );
        let done = sqlx::query(AssertSqlSafe(sql))
            .bind(seqs)
            .bind(NOW)
            .execute(&mut self.connection)
            .await?;
        Ok(done.rows_affected())
    }

    async fn begin(&mut self) -> Result<()> {
        self.connection
            .execute(sqlx::raw_sql("BEGIN IMMEDIATE"))
            .await?;
        Ok(())
    }

    async fn commit(&mut self) -> Result<()> {
        self.connection.execute(sqlx::raw_sql("COMMIT")).await?;
        Ok(())
    }
}

impl super::Caller for Caller {
    async fn receive(&mut self, messages: &[Message]) -> Result<()> {
        let number = messages.len() as u64;
        let (content, _) = tables(self.layout);
        let columns = "handler, id, kind, headers, payload, visible_at";
        let mut insert = QueryBuilder::new(format!("INSERT INTO {content} ({columns}) "));
        insert.push_values(messages, |mut row, message| {
            row.push_bind(message.handler().as_str())
                .push_bind(message.id().as_str())
                .push_bind(message.kind().as_str())
                .push_bind(message.headers().to_json())
                .push_bind(message.payload().as_ref())
                .push_bind(RECEIVED);
        });
        insert.push(" ON CONFLICT (handler, id) DO NOTHING");
        let insert = insert.build();
        if self.layout == Layout::OneTable {
            let done = insert.execute(&mut self.connection).await?;
            ensure!(done.rows_affected() == number);
            return Ok(());
        }
        self.begin().await?;
        let done = insert.execute(&mut self.connection).await?;
        ensure!(done.rows_affected() == number);
        let queued = sqlx::query(
            "INSERT INTO state (seq, handler, visible_at)
             SELECT seq, handler, visible_at FROM message
             WHERE seq > (SELECT coalesce(max(seq), 0) FROM state)",
        )
        .execute(&mut self.connection)
        .await?;
        ensure!(queued.rows_affected() == number);
        self.commit().await
    }

    async fn drain(&mut self) -> Result<u64> {
        let mut settled = 0;
        loop {
            let claimed = self.claim().await?;
            if claimed == "[]" {
                return Ok(settled);
            }
            settled += self.settle(&claimed).await?;
        }
    }
}

/// How the store's writing connection is set, without what it takes to share the file.
fn as_the_store_does(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options
        .row_buffer_size(1024)
        .pragma("cache_size", "-16384")
        .pragma("temp_store", "MEMORY")
        .pragma("wal_autocheckpoint", "4000")
        .disable_statement_logging()
}

/// What a handler would be given.
fn read(row: &SqliteRow) -> Result<()> {
    let _: (&str, &str, &[u8]) = (row.try_get(2)?, row.try_get(3)?, row.try_get(5)?);
    Ok(())
}
