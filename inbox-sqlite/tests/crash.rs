//! Worker processes on one file, killed again and again: the crash part of the conformance suite.
//!
//! `cargo test -p inbox-sqlite --test crash -- --kills 200 --operations 100000` is the full run.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use async_trait::async_trait;
use conformance_tests::{
    BoxError, BusinessWrites, Transactions,
    crash::{self, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use sqlx::{Connection as _, Executor as _, Sqlite, SqliteConnection};
use tempfile::TempDir;

struct File;

#[async_trait]
impl Target for File {
    fn name(&self) -> String {
        "sqlite".into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let place = Place(tempfile::tempdir()?);
        let store = connect(&place.address()).await?;
        store.create().await?;
        store.close().await;
        let mut connection = connection(&place.address()).await?;
        connection
            .execute("CREATE TABLE effects (note TEXT NOT NULL)")
            .await?;
        connection.close().await?;
        Ok(Box::new(place))
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        let store = Arc::new(connect(address).await?);
        let effects = Arc::new(Effects(address.into()));
        Ok(Opened {
            inbox: store.clone(),
            transactions: Some(Arc::new(Transactions::new(store).with_writes(effects))),
        })
    }
}

struct Place(TempDir);

impl Site for Place {
    fn address(&self) -> String {
        self.0.path().join("inbox.db").display().to_string()
    }
}

async fn connect(path: &str) -> inbox_api::Result<SqliteStore> {
    // A killed process loses nothing that it has written to the file, whether or not the disk has
    // it; waiting for the disk would only make the run slower.
    SqliteStore::connect(SqliteOptions::new(path).synchronous(Synchronous::Normal)).await
}

async fn connection(path: &str) -> sqlx::Result<SqliteConnection> {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    SqliteConnection::connect_with(&options).await
}

/// A table of the handler's own.
struct Effects(PathBuf);

#[async_trait]
impl BusinessWrites<sqlx::Transaction<'static, Sqlite>> for Effects {
    async fn write(
        &self,
        transaction: &mut sqlx::Transaction<'static, Sqlite>,
        note: &str,
    ) -> Result<(), BoxError> {
        sqlx::query("INSERT INTO effects (note) VALUES (?1)")
            .bind(note)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        let mut connection = connection(&self.0.display().to_string()).await?;
        let notes = sqlx::query_scalar("SELECT note FROM effects")
            .fetch_all(&mut connection)
            .await?;
        connection.close().await?;
        Ok(notes)
    }
}

fn main() -> ExitCode {
    crash::main(&File)
}
