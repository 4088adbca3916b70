//! Hand-written statements for MySQL and MariaDB: all values bound, prepared once, and no more than
//! receive, claim and settle need.

use anyhow::{Result, ensure};
use inbox::Message;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Executor as _, MySqlConnection, Row as _,
    mysql::MySqlConnectOptions,
};

use super::{HANDLER, Layout};

pub(crate) struct Caller {
    connection: MySqlConnection,
    layout: Layout,
    batch: u32,
}

/// That many connections, and new tables.
pub(super) async fn set_up(
    options: MySqlConnectOptions,
    layout: Layout,
    number: u32,
    batch: u32,
) -> Result<Vec<Caller>> {
    let mut callers = Vec::new();
    for n in 0..number {
        let mut connection = options.connect().await?;
        connection
            .execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            .await?;
        if n == 0 {
            let tables = match layout {
                Layout::OneTable => include_str!("sql/mysql_one_table.sql"),
                Layout::Own => include_str!("sql/mysql_own_layout.sql"),
            };
            connection.execute(sqlx::raw_sql(tables)).await?;
        }
        callers.push(Caller {
            connection,
            layout,
            batch,
        });
    }
    Ok(callers)
}

impl Caller {
    async fn claim(&mut self) -> Result<Vec<i64>> {
        self.begin().await?;
        let (table, columns) = match self.layout {
            Layout::OneTable => ("bare", "seq, handler, id, kind, headers, payload"),
            Layout::Own => ("work", "seq"),
        };
        let sql = format!(
            "SELECT {columns}, attempts, token FROM {table} \
             WHERE handler = ? AND state = 0 AND visible_at <= UTC_TIMESTAMP(6) \
             ORDER BY visible_at, seq LIMIT {} FOR UPDATE SKIP LOCKED",
            self.batch
        );
        let mut rows = sqlx::query(AssertSqlSafe(sql))
            .bind(HANDLER)
            .fetch_all(&mut self.connection)
            .await?;
        let seqs: Vec<i64> = rows
            .iter()
            .map(|row| row.try_get(0))
            .collect::<sqlx::Result<_>>()?;
        if !seqs.is_empty() {
            let sql = format!(
                "UPDATE {table} SET state = 1, attempts = attempts + 1, token = token + 1, \
                 visible_at = UTC_TIMESTAMP(6) + INTERVAL 3600 SECOND WHERE seq IN ({})",
                marks(&seqs)
            );
            self.change(sql, &seqs).await?;
        }
        if self.layout == Layout::Own && !seqs.is_empty() {
            let sql = format!(
                "SELECT seq, handler, id, kind, headers, payload FROM message WHERE seq IN ({})",
                marks(&seqs)
            );
            let mut query = sqlx::query(AssertSqlSafe(sql));
            for seq in &seqs {
                query = query.bind(seq);
            }
            rows = query.fetch_all(&mut self.connection).await?;
        }
        for row in &rows {
            // What a handler would be given.
            let _: (&[u8], &[u8], &[u8]) = (row.try_get(2)?, row.try_get(3)?, row.try_get(5)?);
        }
        self.commit().await?;
        Ok(seqs)
    }

    async fn settle(&mut self, seqs: &[i64]) -> Result<()> {
        let marks = marks(seqs);
        match self.layout {
            Layout::OneTable => {
                let sql = format!(
                    "UPDATE bare SET state = 2 WHERE seq IN ({marks}) AND state = 1 AND token = 1"
                );
                self.change(sql, seqs).await
            }
            Layout::Own => {
                self.begin().await?;
                let sql = format!(
                    "INSERT INTO done (seq, handler, attempts, token, finished_at) \
                     SELECT seq, handler, attempts, token, UTC_TIMESTAMP(6) FROM work \
                     WHERE seq IN ({marks}) AND state = 1 AND token = 1 FOR UPDATE"
                );
                self.change(sql, seqs).await?;
                let sql = format!("DELETE FROM work WHERE seq IN ({marks})");
                self.change(sql, seqs).await?;
                self.commit().await
            }
        }
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

    async fn begin(&mut self) -> Result<()> {
        self.connection.execute(sqlx::raw_sql("BEGIN")).await?;
        Ok(())
    }

    async fn commit(&mut self) -> Result<()> {
        self.connection.execute(sqlx::raw_sql("COMMIT")).await?;
        Ok(())
    }
}

impl super::Caller for Caller {
    async fn receive(&mut self, messages: &[Message]) -> Result<()> {
        let rows = vec!["(?, ?, ?, ?, ?, UTC_TIMESTAMP(6))"; messages.len()].join(", ");
        let (table, time) = match self.layout {
            Layout::OneTable => ("bare", "visible_at"),
            Layout::Own => ("message", "accepted_at"),
        };
        let sql = format!(
            "INSERT IGNORE INTO {table} (handler, id, kind, headers, payload, {time}) VALUES {rows}"
        );
        if self.layout == Layout::Own {
            self.begin().await?;
        }
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
        if self.layout == Layout::Own {
            // The numbers of one statement follow each other.
            let queued = sqlx::query(
                "INSERT INTO work (seq, handler, state, visible_at, attempts, token)
                 SELECT seq, handler, 0, accepted_at, 0, 0 FROM message
                 WHERE seq >= ? AND seq < ?",
            )
            .bind(done.last_insert_id())
            .bind(done.last_insert_id() + messages.len() as u64)
            .execute(&mut self.connection)
            .await?;
            ensure!(queued.rows_affected() == messages.len() as u64);
            self.commit().await?;
        }
        Ok(())
    }

    async fn drain(&mut self) -> Result<u64> {
        let mut settled = 0;
        loop {
            // Also hand-written statements can get into each other's way; the server has undone
            // all of the transaction then.
            let claimed = loop {
                match self.claim().await {
                    Err(error) if is_deadlock(&error) => {}
                    claimed => break claimed?,
                }
            };
            if claimed.is_empty() {
                return Ok(settled);
            }
            while let Err(error) = self.settle(&claimed).await {
                ensure!(is_deadlock(&error), error);
            }
            settled += claimed.len() as u64;
        }
    }
}

fn is_deadlock(error: &anyhow::Error) -> bool {
    let error = error
        .downcast_ref()
        .and_then(sqlx::Error::as_database_error);
    error.and_then(sqlx::error::DatabaseError::code).as_deref() == Some("40001")
}

fn marks(seqs: &[i64]) -> String {
    vec!["?"; seqs.len()].join(",")
}
