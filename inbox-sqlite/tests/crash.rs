//! Worker processes on one file, killed again and again: the crash part of the conformance suite.
//!
//! `cargo test -p inbox-sqlite --test crash -- --kills 200 --operations 100000` is the full run.

use std::{process::ExitCode, sync::Arc};

use async_trait::async_trait;
use conformance_tests::{
    BoxError, Transactions,
    crash::{self, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_sqlite::{SqliteOptions, SqliteStore, Synchronous, conformance::Effects};
use tempfile::TempDir;

struct File;

#[async_trait]
impl Target for File {
    fn name(&self) -> String {
        "sqlite".into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let inbox = TestInbox(tempfile::tempdir()?);
        let store = connect(&inbox.address()).await?;
        store.create().await?;
        store.close().await;
        Effects::create(inbox.address()).await?;
        Ok(Box::new(inbox))
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        let store = Arc::new(connect(address).await?);
        let effects = Arc::new(Effects::at(address));
        Ok(Opened {
            inbox: store.clone(),
            transactions: Some(Arc::new(Transactions::new(store).with_writes(effects))),
        })
    }
}

struct TestInbox(TempDir);

impl Site for TestInbox {
    fn address(&self) -> String {
        self.0.path().join("inbox.db").display().to_string()
    }
}

async fn connect(path: &str) -> inbox_api::Result<SqliteStore> {
    // A killed process loses nothing that it has written to the file, whether or not the disk has
    // it; waiting for the disk would only make the run slower.
    SqliteStore::connect(SqliteOptions::new(path).synchronous(Synchronous::Normal)).await
}

fn main() -> ExitCode {
    crash::main(&File)
}
