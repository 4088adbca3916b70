//! Where a demo plays: an inbox with transactions, and the handler's own table, to
//! which it adds a row in the transaction that completes the message. Nothing but that
//! transaction keeps a second row out.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod sqlite;

use std::ffi::OsString;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use inbox::{Inbox, Transactional};
use sqlx::{ColumnIndex, Database, Decode, Row, Type};

#[cfg(feature = "mysql")]
pub(super) use self::mysql::OnMysql;
#[cfg(feature = "postgres")]
pub(super) use self::postgres::OnPostgres;
pub(super) use self::sqlite::OnSqlite;

/// The transactions of a stage's store.
pub(super) type Transaction<S> = <<S as Stage>::Store as Transactional>::Transaction;

#[async_trait]
pub(super) trait Stage: Clone + Send + Sync + 'static {
    type Store: Inbox + Transactional + Clone + 'static;

    fn store(&self) -> &Self::Store;

    /// How a worker process is told where the stage is.
    fn directions(&self) -> Directions;

    /// Sets the inbox up, and the table of effects.
    async fn set_up(&self) -> Result<()>;

    /// Writes one effect.
    async fn write(
        &self,
        transaction: &mut Transaction<Self>,
        message_id: &str,
    ) -> sqlx::Result<()>;

    /// Compares effects and messages.
    async fn count(&self) -> Result<Effects>;
}

/// Arguments of `inbox demo-worker`, and the store, which may contain a password and so goes
/// through the environment.
pub(super) struct Directions {
    pub(super) arguments: [OsString; 2],
    pub(super) store: Option<String>,
}

/// What the table of effects says.
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

impl Effects {
    fn from_row<'r, R>(row: &'r R) -> Result<Self>
    where
        R: Row,
        &'static str: ColumnIndex<R>,
        i64: Decode<'r, R::Database> + Type<R::Database>,
        R::Database: Database,
    {
        let number = |column: &'static str| -> Result<u64> {
            let number: i64 = row.try_get(column).context("cannot read the effects")?;
            Ok(u64::try_from(number)?)
        };
        Ok(Self {
            total: number("total")?,
            doubled: number("doubled")?,
            missing: number("missing")?,
            unfounded: number("unfounded")?,
        })
    }
}
