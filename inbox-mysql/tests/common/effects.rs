//! What a handler does in its transaction: writes of its own, and mishaps.

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use conformance_tests::{BoxError, BusinessWrites, Mishap, Offered, Unable};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, MySql, MySqlConnection,
    mysql::MySqlConnectOptions,
};

type Transaction = sqlx::Transaction<'static, MySql>;

const DUPLICATE_KEY: u16 = 1062;
const DEADLOCK: u16 = 1213;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Tables of the handler's own.
pub struct Effects(pub MySqlConnectOptions);

impl Effects {
    pub const TABLES: &str = "\
        CREATE TABLE effects (n INT AUTO_INCREMENT PRIMARY KEY, note TEXT NOT NULL);\
        CREATE TABLE stock (n INT PRIMARY KEY, changes INT NOT NULL);\
        INSERT INTO stock VALUES (1, 0), (2, 0);\
        CREATE TABLE movement (n INT AUTO_INCREMENT PRIMARY KEY, note TEXT NOT NULL)";

    /// Makes the server roll `transaction` back to end a deadlock: the other one has changed more
    /// rows.
    pub async fn deadlock(&self, transaction: &mut Transaction) -> Result<(), BoxError> {
        let mut other = self.0.connect().await?;
        let rows = vec!["('row')"; 2000].join(", ");
        let heavy = format!(
            "START TRANSACTION; INSERT INTO movement (note) VALUES {rows}; \
             UPDATE stock SET changes = changes + 1 WHERE n = 1"
        );
        run(&mut other, heavy).await?;
        run(
            transaction,
            "UPDATE stock SET changes = changes + 1 WHERE n = 2",
        )
        .await?;
        let waiting = tokio::spawn(async move {
            let second = "UPDATE stock SET changes = changes + 1 WHERE n = 2";
            let outcome = run(&mut other, second).await;
            other.close().await?;
            outcome
        });
        let second = "UPDATE stock SET changes = changes + 1 WHERE n = 1";
        fails_with(DEADLOCK, run(transaction, second).await)?;
        Ok(waiting.await??)
    }
}

async fn run(connection: &mut MySqlConnection, sql: impl Into<String>) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql.into()))
        .execute(connection)
        .await?;
    Ok(())
}

fn fails_with(number: u16, outcome: sqlx::Result<()>) -> Result<(), BoxError> {
    let error = outcome.err().ok_or("the statement did not fail")?;
    let found = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>())
        .map(sqlx::mysql::MySqlDatabaseError::number);
    if found == Some(number) {
        Ok(())
    } else {
        Err(error.into())
    }
}

#[async_trait]
impl BusinessWrites<Transaction> for Effects {
    async fn write(&self, transaction: &mut Transaction, note: &str) -> Result<(), BoxError> {
        sqlx::query("INSERT INTO effects (note) VALUES (?)")
            .bind(note)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn mishap(&self, transaction: &mut Transaction, mishap: Mishap) -> Offered<()> {
        let done: Result<(), BoxError> = async {
            match mishap {
                Mishap::FailedStatement => {
                    let outcome = run(transaction, "INSERT INTO stock VALUES (1, 0)").await;
                    fails_with(DUPLICATE_KEY, outcome)
                }
                Mishap::RolledBackByServer => self.deadlock(transaction).await,
                Mishap::Commit => Ok(run(transaction, "COMMIT").await?),
                Mishap::RollBack => Ok(run(transaction, "ROLLBACK").await?),
                Mishap::SchemaChange => {
                    let n = NEXT.fetch_add(1, Ordering::Relaxed);
                    Ok(run(transaction, format!("CREATE TABLE own_{n} (n INT)")).await?)
                }
            }
        }
        .await;
        done.map_err(Unable::Failed)
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        let mut connection = self.0.connect().await?;
        let notes = sqlx::query_scalar("SELECT note FROM effects")
            .fetch_all(&mut connection)
            .await?;
        connection.close().await?;
        Ok(notes)
    }
}
