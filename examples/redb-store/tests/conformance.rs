//! The conformance suite, over this store.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    Corruption, Fixture, Harness, Need, Offered, Restart, SchemaVariant, Settings, Unable,
};
use inbox_api::{Inbox, Key, Schema, Store};
use redb::{
    Database, DatabaseError, ReadableTable, StorageBackend, TableDefinition, backends::FileBackend,
};
use redb_store::{RedbOptions, RedbStore};
use tempfile::TempDir;

// The tables as anybody else would have to declare them who opens the file.
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const KEY: TableDefinition<'_, (&str, &str), i64> = TableDefinition::new("key");
const MESSAGE: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("message");
const COUNT: TableDefinition<'_, (&str, u8), u64> = TableDefinition::new("count");
const FINISHED: TableDefinition<'_, (u8, i64, i64), ()> = TableDefinition::new("finished");
const INVOICES: TableDefinition<'_, u64, &str> = TableDefinition::new("invoices");

struct Redb;

#[async_trait]
impl Harness for Redb {
    fn name(&self) -> String {
        "redb".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let place = Place::new(settings)?;
        place.store().create().await?;
        Ok(Box::new(place))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let place = Place::new(&Settings::default())?;
        if !matches!(variant, SchemaVariant::Missing | SchemaVariant::Foreign) {
            place.store().create().await?;
        }
        let spoilt = place
            .store()
            .with_database(|database| spoil(database, variant))?;
        spoilt.map_err(Unable::failed)?;
        // Opened anew, because a store that has once seen its tables does not look again.
        place.store().close().await;
        place.open_again()?;
        Ok(Box::new(place))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        vec![
            // redb locks the file, so there is one process and one store at a time.
            Need::SecondConnection,
            Need::WakeupsAcrossProcesses,
            Need::Transactions,
            Need::Silence,
        ]
    }
}

fn spoil(database: &Database, variant: SchemaVariant) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    match variant {
        SchemaVariant::Missing => {}
        SchemaVariant::Incomplete => {
            transaction.delete_table(FINISHED)?;
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

/// One inbox in a directory of its own, which goes with it.
struct Place {
    directory: TempDir,
    options: RedbOptions,
    store: Mutex<RedbStore>,
}

impl Place {
    fn new(settings: &Settings) -> Offered<Self> {
        let directory = tempfile::tempdir()?;
        let mut options = RedbOptions::new(directory.path().join("inbox.redb"));
        options.payload_limit = settings.payload_limit.unwrap_or(options.payload_limit);
        options.drop_processed_payloads = settings.drop_processed_payloads;
        options.open = open_on_disk;
        let store = RedbStore::open(options.clone())?;
        Ok(Self {
            directory,
            options,
            store: Mutex::new(store),
        })
    }

    fn store(&self) -> RedbStore {
        let store = self.store.lock();
        store.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn outage(&self) -> PathBuf {
        outage_beside(&self.options.path)
    }

    fn open_again(&self) -> Offered<()> {
        let opened = RedbStore::open(self.options.clone())?;
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        Ok(())
    }
}

#[async_trait]
impl Fixture for Place {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.store())
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.options.clock.advance(by);
        Ok(())
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let Corruption::Headers = corruption;
        let spoilt = self
            .store()
            .with_database(|database| spoil_headers(database, key))?;
        spoilt.map_err(Unable::failed)
    }

    async fn begin_outage(&self) -> Offered<()> {
        Ok(fs::write(self.outage(), "")?)
    }

    async fn end_outage(&self) -> Offered<()> {
        Ok(fs::remove_file(self.outage())?)
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        let path = &self.options.path;
        // What a kill leaves behind is the file as it is while the store has it open, on which redb
        // has done nothing of what it does when it closes.
        let left_behind = self.directory.path().join("left-behind.redb");
        fs::copy(path, &left_behind)?;
        self.store().close().await;
        if how == Restart::Killed {
            fs::rename(&left_behind, path)?;
        }
        self.open_again()
    }
}

/// A disk that fails as long as there is a certain file beside the inbox's.
#[derive(Debug)]
struct Disk {
    file: FileBackend,
    outage: PathBuf,
}

fn outage_beside(path: &Path) -> PathBuf {
    path.with_extension("outage")
}

fn open_on_disk(path: &Path) -> Result<Database, DatabaseError> {
    let mut how = OpenOptions::new();
    let file = how.read(true).write(true).create(true).truncate(false);
    let disk = Disk {
        file: FileBackend::new(file.open(path)?)?,
        outage: outage_beside(path),
    };
    Database::builder().create_with_backend(disk)
}

impl Disk {
    fn check(&self) -> io::Result<&FileBackend> {
        if self.outage.exists() {
            return Err(io::Error::from(io::ErrorKind::NotConnected));
        }
        Ok(&self.file)
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
        self.check()?.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?.write(offset, data)
    }
}

conformance_tests::conformance!(Redb);
