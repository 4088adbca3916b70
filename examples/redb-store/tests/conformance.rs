//! The conformance suite, over this store.

mod tables;

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    Corruption, Fixture, Harness, Need, Offered, Restart, SchemaVariant, ServerControl, Settings,
    Unable,
};
use inbox_api::{Clock, Inbox, Key, Schema, Store};
use redb::{
    Database, DatabaseError, ReadableTable, StorageBackend, TableDefinition, backends::FileBackend,
};
use redb_store::{RedbOptions, RedbStore};
use tempfile::TempDir;

// The tables as any other program that opens the file would have to declare them.
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const KEY: TableDefinition<'_, (&str, &str), i64> = TableDefinition::new("key");
const MESSAGE: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("message");
const COUNT: TableDefinition<'_, (&str, u8), u64> = TableDefinition::new("count");
const PAUSED: TableDefinition<'_, &str, ()> = TableDefinition::new("paused");
const INVOICES: TableDefinition<'_, u64, &str> = TableDefinition::new("invoices");

struct Redb;

#[async_trait]
impl Harness for Redb {
    fn name(&self) -> String {
        "redb".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let inbox = TestInbox::new(settings)?;
        inbox.store().create().await?;
        Ok(Box::new(inbox))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let inbox = TestInbox::new(&Settings::default())?;
        if matches!(variant, SchemaVariant::Suitable | SchemaVariant::Kept) {
            return Err(Unable::NotOffered(Need::Schema(variant)));
        }
        if !matches!(variant, SchemaVariant::Missing | SchemaVariant::Foreign) {
            inbox.store().create().await?;
        }
        let spoilt = inbox
            .store()
            .with_database(|database| spoil(database, variant))?;
        spoilt.map_err(Unable::failed)?;
        // Opened again, because a store that has once seen its tables does not look again.
        inbox.store().close().await;
        inbox.open_again()?;
        Ok(Box::new(inbox))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        vec![
            // redb locks the file, so there is one process and one store at a time.
            Need::SecondConnection,
            Need::Runs,
            // No build works with any version but its own.
            Need::Schema(SchemaVariant::Suitable),
            // Its test of migrations makes what an earlier build would have kept.
            Need::Schema(SchemaVariant::Kept),
            Need::WakeupsAcrossProcesses,
            Need::Transactions,
            Need::Silence,
        ]
    }
}

fn spoil(database: &Database, variant: SchemaVariant) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    match variant {
        SchemaVariant::Missing | SchemaVariant::Suitable | SchemaVariant::Kept => {}
        SchemaVariant::Incomplete => {
            transaction.delete_table(PAUSED)?;
        }
        SchemaVariant::Older => {
            transaction.delete_table(COUNT)?;
            transaction.open_table(META)?.insert("version", "1")?;
        }
        SchemaVariant::Newer => {
            transaction.open_table(META)?.insert("version", "3")?;
        }
        SchemaVariant::Foreign => {
            transaction
                .open_table(INVOICES)?
                .insert(7, "not an inbox")?;
        }
    }
    transaction.commit()?;
    Ok(())
}

fn spoil_headers(database: &Database, key: &Key) -> Result<(), redb::Error> {
    let garbage: &[u8] = br#"{"content_type": null, "headers": 7}"#;
    let transaction = database.begin_write()?;
    let found = transaction
        .open_table(KEY)?
        .get((key.handler.as_str(), key.id.as_str()))?
        .map(|seq| seq.value());
    if let Some(seq) = found {
        transaction.open_table(MESSAGE)?.insert(seq, garbage)?;
    }
    transaction.commit()?;
    Ok(())
}

/// One inbox in its own directory, which goes with it.
struct TestInbox {
    directory: TempDir,
    path: PathBuf,
    clock: Clock,
    options: RedbOptions,
    store: Mutex<RedbStore>,
}

impl TestInbox {
    fn new(settings: &Settings) -> Offered<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("inbox.redb");
        let clock = Clock::system();
        let mut options = RedbOptions::new(&path)
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock(clock.clone())
            .open_with(open_on_disk);
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        let store = RedbStore::open(options.clone())?;
        Ok(Self {
            directory,
            path,
            clock,
            options,
            store: Mutex::new(store),
        })
    }

    fn store(&self) -> RedbStore {
        let store = self.store.lock();
        store.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn outage(&self) -> PathBuf {
        outage_file(&self.path)
    }

    /// Opens the inbox as it is in `file` now, while the store has it open: redb has done nothing there
    /// of what it does when it closes.
    async fn open_as_in(&self, file: &Path) -> Offered<()> {
        let left_behind = self.directory.path().join("left-behind.redb");
        fs::copy(file, &left_behind)?;
        self.store().close().await;
        fs::rename(&left_behind, &self.path)?;
        self.open_again()
    }

    fn open_again(&self) -> Offered<()> {
        let opened = RedbStore::open(self.options.clone())?;
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        Ok(())
    }
}

#[async_trait]
impl Fixture for TestInbox {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.store())
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        // A case may have closed the store, and nobody else can open the file.
        if self.store().with_database(|_| ()).is_err() {
            self.open_again()?;
        }
        let checked = self
            .store()
            .with_database(|database| tables::check(database).map_err(|e| e.to_string()))?;
        checked.map_err(Unable::failed)
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let Corruption::Headers = corruption;
        let spoilt = self
            .store()
            .with_database(|database| spoil_headers(database, key))?;
        spoilt.map_err(Unable::failed)
    }

    fn server(&self) -> &dyn ServerControl {
        self
    }
}

#[async_trait]
impl ServerControl for TestInbox {
    async fn begin_outage(&self) -> Offered<()> {
        self.begin_outage_after(0).await
    }

    async fn end_outage(&self) -> Offered<()> {
        Ok(fs::remove_file(self.outage())?)
    }

    async fn begin_outage_after(&self, writes: u32) -> Offered<()> {
        Ok(fs::write(self.outage(), writes.to_string())?)
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        match how {
            Restart::Orderly => {
                self.store().close().await;
                self.open_again()
            }
            Restart::Killed => self.open_as_in(&self.path).await,
        }
    }

    async fn lose_power(&self) -> Offered<()> {
        self.open_as_in(&durable_file(&self.path)).await
    }
}

/// A disk that fails as long as there is a certain file next to the inbox's, which says how many
/// writes it lets through first. In another one it keeps what is durable: what was written before the
/// last time that it was told to make it so.
#[derive(Debug)]
struct Disk {
    file: FileBackend,
    outage: PathBuf,
    durable: FileBackend,
    /// What is only written.
    written: Mutex<Vec<Write>>,
}

#[derive(Debug)]
enum Write {
    Length(u64),
    At(u64, Vec<u8>),
}

fn outage_file(path: &Path) -> PathBuf {
    path.with_extension("outage")
}

fn durable_file(path: &Path) -> PathBuf {
    path.with_extension("durable")
}

fn open_file(path: &Path) -> Result<FileBackend, DatabaseError> {
    let mut how = OpenOptions::new();
    let file = how.read(true).write(true).create(true).truncate(false);
    FileBackend::new(file.open(path)?)
}

fn open_on_disk(path: &Path) -> Result<Database, DatabaseError> {
    if path.exists() {
        fs::copy(path, durable_file(path))?;
    }
    let disk = Disk {
        file: open_file(path)?,
        outage: outage_file(path),
        durable: open_file(&durable_file(path))?,
        written: Mutex::default(),
    };
    Database::builder().create_with_backend(disk)
}

impl Disk {
    /// How many more writes succeed; `None` is no outage.
    fn left(&self) -> Option<u32> {
        let left = fs::read_to_string(&self.outage).ok()?;
        Some(left.parse().unwrap_or(0))
    }

    fn check(&self) -> io::Result<&FileBackend> {
        if self.left() == Some(0) {
            return Err(io::Error::from(io::ErrorKind::NotConnected));
        }
        Ok(&self.file)
    }

    fn check_write(&self, write: Write) -> io::Result<&FileBackend> {
        let file = self.check()?;
        if let Some(left) = self.left() {
            fs::write(&self.outage, left.saturating_sub(1).to_string())?;
        }
        let written = self.written.lock();
        written.unwrap_or_else(PoisonError::into_inner).push(write);
        Ok(file)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.check()?.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check()?.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_write(Write::Length(len))?.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?.sync_data()?;
        let written = self.written.lock();
        for write in written.unwrap_or_else(PoisonError::into_inner).drain(..) {
            match write {
                Write::Length(len) => self.durable.set_len(len)?,
                Write::At(offset, data) => self.durable.write(offset, &data)?,
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let write = Write::At(offset, data.to_vec());
        self.check_write(write)?.write(offset, data)
    }
}

conformance_tests::conformance!(Redb);
