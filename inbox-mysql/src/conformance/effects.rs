//! What a handler does in its transaction: its writes, and mishaps.

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use conformance_tests::{BoxError, BusinessWrites, Mishap, Offered, Unable};
use sqlx::{AssertSqlSafe, Connection as _, MySql, MySqlConnection};

use super::connect;
use crate::{MySqlOptions, error::number};

type Transaction = sqlx::Transaction<'static, MySql>;

const DUPLICATE_KEY: u16 = 1062;
const DEADLOCK: u16 = 1213;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A handler's tables, next to those of an inbox: `effects`, `stock` and `movement`.
#[derive(Debug)]
pub struct Effects {
    options: MySqlOptions,
}

impl Effects {
    /// Next to the inbox that these options name.
    #[must_use]
    pub fn of(options: &MySqlOptions) -> Self {
        Self {
            options: options.clone(),
        }
    }

    /// Makes the tables.
    ///
    /// # Errors
    /// What the driver fails with.
    pub async fn create(&self) -> sqlx::Result<()> {
        let [effects, stock, movement] = self.tables();
        let mut connection = connect(&self.options).await?;
        let tables = format!(
            "CREATE TABLE {effects} (n INT AUTO_INCREMENT PRIMARY KEY, note TEXT NOT NULL);\
             CREATE TABLE {stock} (n INT PRIMARY KEY, changes INT NOT NULL);\
             INSERT INTO {stock} VALUES (1, 0), (2, 0);\
             CREATE TABLE {movement} (n INT AUTO_INCREMENT PRIMARY KEY, note TEXT NOT NULL)"
        );
        run(&mut connection, tables).await?;
        connection.close().await
    }

    fn tables(&self) -> [String; 3] {
        ["effects", "stock", "movement"].map(|table| self.options.table(table))
    }

    /// Makes the server roll `transaction` back to end a deadlock: the other one has changed more
    /// rows.
    ///
    /// # Errors
    /// What the driver fails with, and when there is no deadlock.
    pub async fn deadlock(&self, transaction: &mut Transaction) -> Result<(), BoxError> {
        let [_, stock, movement] = self.tables();
        let change = |n: u32| format!("UPDATE {stock} SET changes = changes + 1 WHERE n = {n}");
        let mut other = connect(&self.options).await?;
        let rows = vec!["('row')"; 2000].join(", ");
        let heavy = format!(
            "START TRANSACTION; INSERT INTO {movement} (note) VALUES {rows}; {}",
            change(1)
        );
        run(&mut other, heavy).await?;
        run(transaction, change(2)).await?;
        let second = change(2);
        let waiting = tokio::spawn(async move {
            let outcome = run(&mut other, second).await;
            other.close().await?;
            outcome
        });
        fails_with(DEADLOCK, run(transaction, change(1)).await)?;
        Ok(waiting.await??)
    }
}

async fn run(connection: &mut MySqlConnection, sql: impl Into<String>) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql.into()))
        .execute(connection)
        .await?;
    Ok(())
}

fn fails_with(expected: u16, outcome: sqlx::Result<()>) -> Result<(), BoxError> {
    let error = outcome.err().ok_or("the statement did not fail")?;
    if number(&error) == Some(expected) {
        Ok(())
    } else {
        Err(error.into())
    }
}

#[async_trait]
impl BusinessWrites<Transaction> for Effects {
    async fn write(&self, transaction: &mut Transaction, note: &str) -> Result<(), BoxError> {
        let [effects, ..] = self.tables();
        let sql = format!("INSERT INTO {effects} (note) VALUES (?)");
        sqlx::query(AssertSqlSafe(sql))
            .bind(note)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn mishap(&self, transaction: &mut Transaction, mishap: Mishap) -> Offered<()> {
        let done: Result<(), BoxError> = async {
            match mishap {
                Mishap::FailedStatement => {
                    let [_, stock, _] = self.tables();
                    let again = format!("INSERT INTO {stock} VALUES (1, 0)");
                    fails_with(DUPLICATE_KEY, run(transaction, again).await)
                }
                Mishap::RolledBackByServer => self.deadlock(transaction).await,
                Mishap::Commit => Ok(run(transaction, "COMMIT").await?),
                Mishap::RollBack => Ok(run(transaction, "ROLLBACK").await?),
                Mishap::SchemaChange => {
                    let n = NEXT.fetch_add(1, Ordering::Relaxed);
                    let table = self.options.table(&format!("own_{n}"));
                    Ok(run(transaction, format!("CREATE TABLE {table} (n INT)")).await?)
                }
            }
        }
        .await;
        done.map_err(Unable::Failed)
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        let [effects, ..] = self.tables();
        let mut connection = connect(&self.options).await?;
        let notes = sqlx::query_scalar(AssertSqlSafe(format!("SELECT note FROM {effects}")))
            .fetch_all(&mut connection)
            .await?;
        connection.close().await?;
        Ok(notes)
    }
}
