//! Worker processes on one file, killed again and again, and the disk filled now and then: the crash part of
//! the conformance suite.
//!
//! `cargo test -p inbox-sqlite --test crash -- --kills 200 --operations 100000` is the full run.

use std::{process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use conformance_tests::{
    BoxError, Need, Offered, Transactions, Unable,
    crash::{self, Fault, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_sqlite::{SqliteOptions, SqliteStore, Synchronous, conformance::Effects};
use tempfile::TempDir;
use test_servers::SmallDisk;

struct File;

#[async_trait]
impl Target for File {
    fn name(&self) -> String {
        "sqlite".into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let inbox = TestInbox::create()?;
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

/// For how long a disk is full: longer than the leases of a crash run.
const A_WHILE: Duration = Duration::from_secs(2);

enum TestInbox {
    /// On a disk that can be filled.
    Small(SmallDisk),
    Usual(TempDir),
}

impl TestInbox {
    fn create() -> std::io::Result<Self> {
        match SmallDisk::create() {
            Ok(disk) => Ok(Self::Small(disk)),
            Err(_) => Ok(Self::Usual(tempfile::tempdir()?)),
        }
    }
}

#[async_trait]
impl Site for TestInbox {
    fn address(&self) -> String {
        let directory = match self {
            Self::Small(disk) => disk.directory(),
            Self::Usual(directory) => directory.path(),
        };
        directory.join("inbox.db").display().to_string()
    }

    fn faults(&self) -> &[Fault] {
        match self {
            Self::Small(_) => &[Fault::Filled],
            Self::Usual(_) => &[],
        }
    }

    async fn harm(&self, _: Fault) -> Offered<()> {
        let Self::Small(disk) = self else {
            return Err(Unable::NotOffered(Need::Restart));
        };
        disk.fill().map_err(Unable::failed)?;
        tokio::time::sleep(A_WHILE).await;
        disk.clear().map_err(Unable::failed)
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
