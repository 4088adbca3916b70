//! `inbox conformance`: the public conformance suite on a built-in store.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, CASES, Fixture, Harness, Need, Offered, SchemaVariant, Settings, Transactions,
    Unable,
};
use inbox::{Clock, Inbox, Schema as _};
use inbox_memory::{MemoryOptions, MemoryStore};
use inbox_sqlite::{SqliteOptions, SqliteStore};

use crate::{
    args::{ConformanceArgs, Global},
    exit::Exit,
    interrupt, output, progress,
};

pub(crate) async fn run(global: &Global, args: ConformanceArgs) -> Result<Exit> {
    let token = interrupt::token()?;
    let harness = harness(&global.store)?;
    let cases = CASES.iter().filter(|case| case.id().contains(&args.filter));
    let bar = progress::bar(global, "cases", cases.count() as u64);
    let report = tokio::select! {
        report = conformance_tests::run_watched(harness, &args.filter, |_| bar.inc(1)) => report,
        () = token.cancelled() => return Ok(Exit::Interrupted),
    };
    bar.finish_and_clear();
    if global.json {
        output::json(&report)?;
    } else {
        output::line(report.to_string())?;
    }
    Ok(if report.is_conformant() {
        Exit::Ok
    } else {
        Exit::No
    })
}

fn harness(url: &str) -> Result<Arc<dyn Harness>> {
    match url.split_once("://").map_or(url, |(scheme, _)| scheme) {
        "memory" => Ok(Arc::new(Memory)),
        "sqlite" => {
            // Fail now rather than in every case.
            SqliteOptions::from_url(url)?;
            Ok(Arc::new(Sqlite {
                url: url.to_owned(),
                next: AtomicU32::new(0),
            }))
        }
        _ => bail!(
            "no store of this build is at {}; it has {}",
            crate::store::shown(url),
            inbox::schemes().join(", ")
        ),
    }
}

/// What a run from outside, with a store's public interface alone, cannot do to any store. The
/// stores' own tests check these too.
fn needs_raw_access() -> Vec<Need> {
    vec![
        Need::CorruptRows,
        Need::Outage,
        Need::Restart,
        Need::BusinessWrites,
        Need::Schema(SchemaVariant::Incomplete),
        Need::Schema(SchemaVariant::Older),
        Need::Schema(SchemaVariant::Newer),
        Need::Schema(SchemaVariant::Foreign),
    ]
}

struct Memory;

#[async_trait]
impl Harness for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let defaults = MemoryOptions::default();
        let clock = Clock::system();
        let store = MemoryStore::with(MemoryOptions {
            payload_limit: settings.payload_limit.unwrap_or(defaults.payload_limit),
            drop_processed_payloads: settings.drop_processed_payloads,
            clock: clock.clone(),
        });
        Ok(Box::new(InMemory { store, clock }))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = needs_raw_access();
        needs.extend([
            Need::SecondConnection,
            Need::WakeupsAcrossProcesses,
            Need::Transactions,
            Need::Schema(SchemaVariant::Missing),
        ]);
        needs
    }
}

struct InMemory {
    store: MemoryStore,
    clock: Clock,
}

#[async_trait]
impl Fixture for InMemory {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.store.clone())
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }
}

/// Every case gets a file of its own beside the one that the URL names, which is not touched.
struct Sqlite {
    url: String,
    next: AtomicU32,
}

impl Sqlite {
    async fn place(&self, settings: &Settings) -> Offered<OneFile> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (path, query) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let url = format!("{path}.conformance-{}-{number}?{query}", std::process::id());
        let clock = Clock::system();
        let mut options = SqliteOptions::from_url(&url)?
            .busy_timeout(Duration::from_secs(1))
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock(clock.clone());
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
        needs_raw_access()
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
