//! Cases on SQLite.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, Fixture, Harness, Need, Offered, SchemaVariant, Settings, Transactions, Unable,
};
use inbox::{Clock, Inbox, Schema as _};
use inbox_sqlite::{SqliteOptions, SqliteStore};

use super::{Rig, needs_raw_access};

/// Every case gets its own file in the folder of the one that the URL names, which is not touched.
pub(super) struct Sqlite {
    url: String,
    next: AtomicU32,
}

impl Sqlite {
    pub(super) fn new(url: &str) -> inbox::Result<Self> {
        // Fail now rather than in every case.
        SqliteOptions::from_url(url)?;
        Ok(Self {
            url: url.to_owned(),
            next: AtomicU32::new(0),
        })
    }

    async fn place(&self, settings: &Settings) -> Offered<OneFile> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (path, query) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let url = format!("{path}.conformance-{}-{number}?{query}", std::process::id());
        let clock = Clock::system();
        let mut options = SqliteOptions::from_url(&url)?
            .operation_timeout(Duration::from_secs(1))
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock(clock.clone());
        if let Some(limit) = settings.operation_timeout {
            options = options.operation_timeout(limit);
        }
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        let store = Arc::new(SqliteStore::connect(options.clone()).await?);
        Ok(OneFile {
            store,
            options,
            clock,
        })
    }
}

impl Rig for Sqlite {}

#[async_trait]
impl Harness for Sqlite {
    fn name(&self) -> String {
        "sqlite".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let place = self.place(settings).await?;
        place.store.create().await?;
        Ok(Box::new(place))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        match variant {
            SchemaVariant::Missing => Ok(Box::new(self.place(&Settings::default()).await?)),
            _ => Err(Unable::NotOffered(Need::Schema(variant))),
        }
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = needs_raw_access();
        needs.push(Need::SharedWrites);
        needs
    }
}

struct OneFile {
    store: Arc<SqliteStore>,
    options: SqliteOptions,
    clock: Clock,
}

#[async_trait]
impl Fixture for OneFile {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::<SqliteStore>::clone(&self.store)
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(SqliteStore::connect(self.options.clone()).await?))
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        Ok(Arc::new(Transactions::new(Arc::clone(&self.store))))
    }
}

impl Drop for OneFile {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let mut name = self.options.path().as_os_str().to_owned();
            name.push(end);
            // What cannot be removed stays behind for its owner to see.
            let _ = std::fs::remove_file(PathBuf::from(name));
        }
    }
}
