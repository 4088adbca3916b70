//! The effects of the demo's handler: rows that it writes in the transaction that completes the
//! message. Nothing but that transaction keeps a second one out.

use std::path::Path;

use anyhow::{Context, Result};
use sqlx::{
    Row, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

/// What the effects table says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Effects {
    /// Rows: one per effect.
    pub(super) total: u64,
    /// Messages with more than one effect.
    pub(super) doubled: u64,
    /// Processed messages without an effect.
    pub(super) missing: u64,
    /// Effects of messages that are not processed.
    pub(super) unfounded: u64,
}

/// Sets the table up.
pub(super) async fn create(file: &Path) -> Result<()> {
    let pool = open(file).await?;
    sqlx::raw_sql(include_str!("effects.sql"))
        .execute(&pool)
        .await
        .context("cannot set up the table of effects")?;
    pool.close().await;
    Ok(())
}

/// Writes one effect.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    message_id: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO demo_effect (message_id) VALUES (?)")
        .bind(message_id)
        .execute(connection)
        .await?;
    Ok(())
}

/// Compares effects and messages.
pub(super) async fn count(file: &Path) -> Result<Effects> {
    let pool = open(file).await?;
    let row = sqlx::query(include_str!("count_effects.sql"))
        .fetch_one(&pool)
        .await
        .context("cannot count the effects")?;
    pool.close().await;
    let number =
        |column: &str| -> Result<u64> { Ok(u64::try_from(row.try_get::<i64, _>(column)?)?) };
    Ok(Effects {
        total: number("total")?,
        doubled: number("doubled")?,
        missing: number("missing")?,
        unfounded: number("unfounded")?,
    })
}

async fn open(file: &Path) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .busy_timeout(std::time::Duration::from_secs(30));
    Ok(SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await?)
}
