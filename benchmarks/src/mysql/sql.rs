//! The same work in hand-written statements: one table, all values bound, prepared once, and no
//! more than receive, claim and settle need.

use anyhow::{Result, ensure};
use inbox::Message;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Executor as _, MySqlConnection, Row as _,
    mysql::MySqlConnectOptions,
};

pub(crate) struct Bare {
    connection: MySqlConnection,
    batch: usize,
}

impl Bare {
    pub(crate) async fn connect(options: &MySqlConnectOptions, batch: u32) -> Result<Self> {
        let mut connection = options.connect().await?;
        connection
            .execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            .await?;
        Ok(Self {
            connection,
            batch: batch as usize,
        })
    }

    pub(crate) async fn set_up(&mut self) -> Result<()> {
        self.connection
            .execute(include_str!("sql/table.sql"))
            .await?;
        Ok(())
    }

    pub(crate) async fn receive(&mut self, messages: &[Message]) -> Result<()> {
        let rows = vec!["(?, ?, ?, ?, ?, UTC_TIMESTAMP(6))"; messages.len()].join(", ");
        let sql = format!(
            "INSERT IGNORE INTO bare (handler, id, kind, headers, payload, visible_at) VALUES {rows}"
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for message in messages {
            query = query
                .bind(message.handler().as_str())
                .bind(message.id().as_str())
                .bind(message.kind().as_str())
                .bind(message.headers().to_json())
                .bind(message.payload().as_ref());
        }
        let done = query.execute(&mut self.connection).await?;
        ensure!(done.rows_affected() == messages.len() as u64);
        Ok(())
    }

    /// Claims and settles until nothing is left.
    pub(crate) async fn drain(&mut self) -> Result<u64> {
        let mut settled = 0;
        loop {
            let claimed = self.claim().await?;
            if claimed.is_empty() {
                return Ok(settled);
            }
            self.settle(&claimed).await?;
            settled += claimed.len() as u64;
        }
    }

    async fn claim(&mut self) -> Result<Vec<i64>> {
        self.connection.execute(sqlx::raw_sql("BEGIN")).await?;
        let sql = format!(
            "SELECT seq, handler, id, kind, headers, payload, attempts, token FROM bare \
             WHERE handler = ? AND state = 0 AND visible_at <= UTC_TIMESTAMP(6) \
             ORDER BY visible_at, seq LIMIT {} FOR UPDATE SKIP LOCKED",
            self.batch
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind("bench")
            .fetch_all(&mut self.connection)
            .await?;
        let mut seqs = Vec::with_capacity(rows.len());
        for row in &rows {
            seqs.push(row.try_get(0)?);
            // What a handler would be given.
            let _: (&[u8], &[u8], &[u8]) = (row.try_get(2)?, row.try_get(3)?, row.try_get(5)?);
        }
        if !seqs.is_empty() {
            let sql = format!(
                "UPDATE bare SET state = 1, attempts = attempts + 1, token = token + 1, \
                 visible_at = UTC_TIMESTAMP(6) + INTERVAL 3600 SECOND WHERE seq IN ({})",
                marks(&seqs)
            );
            self.change(sql, &seqs).await?;
        }
        self.connection.execute(sqlx::raw_sql("COMMIT")).await?;
        Ok(seqs)
    }

    async fn settle(&mut self, seqs: &[i64]) -> Result<()> {
        let sql = format!(
            "UPDATE bare SET state = 2 WHERE seq IN ({}) AND state = 1 AND token = 1",
            marks(seqs)
        );
        self.change(sql, seqs).await
    }

    async fn change(&mut self, sql: String, seqs: &[i64]) -> Result<()> {
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for seq in seqs {
            query = query.bind(seq);
        }
        let done = query.execute(&mut self.connection).await?;
        ensure!(done.rows_affected() == seqs.len() as u64);
        Ok(())
    }
}

fn marks(seqs: &[i64]) -> String {
    vec!["?"; seqs.len()].join(",")
}
