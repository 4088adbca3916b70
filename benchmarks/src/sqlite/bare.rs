//! Hand-written statements of the same work: no ordering keys, no due times, no counts, no checks.

use anyhow::{Result, ensure};
use inbox::Message;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Executor as _, QueryBuilder, Row as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteRow},
};

const HANDLER: &str = "bench";
const LEASE_MICROS: i64 = 3_600_000_000;
/// The time of all that is received; claims come later.
const RECEIVED: i64 = 1;
const NOW: i64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One table, updated in place.
    OneTable,
    /// Content apart from narrow rows with the state, as the store has them.
    Own,
}

impl Layout {
    pub(super) const ALL: [Self; 2] = [Self::OneTable, Self::Own];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OneTable => "one-table",
            Self::Own => "message+state",
        }
    }

    /// Where the content is, and where the state is.
    fn tables(self) -> (&'static str, &'static str) {
        match self {
            Self::OneTable => ("bare", "bare"),
            Self::Own => ("message", "state"),
        }
    }
}

/// The one writer.
pub(super) struct Bare {
    connection: SqliteConnection,
    layout: Layout,
    batch: u32,
}

impl Bare {
    /// In a new file.
    pub(super) async fn set_up(
        options: &SqliteConnectOptions,
        layout: Layout,
        batch: u32,
    ) -> Result<Self> {
        let mut connection = options.connect().await?;
        let tables = match layout {
            Layout::OneTable => include_str!("sql/one_table.sql"),
            Layout::Own => include_str!("sql/own_layout.sql"),
        };
        connection.execute(sqlx::raw_sql(tables)).await?;
        Ok(Self {
            connection,
            layout,
            batch,
        })
    }

    pub(super) async fn receive(&mut self, messages: &[Message]) -> Result<()> {
        let number = messages.len() as u64;
        let (content, _) = self.layout.tables();
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

    /// Claims and settles until nothing is left; answers how many that were.
    pub(super) async fn drain(&mut self) -> Result<u64> {
        let mut settled = 0;
        loop {
            let claimed = self.claim().await?;
            if claimed == "[]" {
                return Ok(settled);
            }
            settled += self.settle(&claimed).await?;
        }
    }

    /// Answers the numbers of what was claimed, as a JSON array.
    async fn claim(&mut self) -> Result<String> {
        let (_, state) = self.layout.tables();
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
        let (_, state) = self.layout.tables();
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

/// What a handler would be given.
fn read(row: &SqliteRow) -> Result<()> {
    let _: (&str, &str, &[u8]) = (row.try_get(2)?, row.try_get(3)?, row.try_get(5)?);
    Ok(())
}
