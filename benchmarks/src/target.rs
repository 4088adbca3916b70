//! The stores that can be measured, and where each of them is kept.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use inbox::{
    HandlerName,
    memory::MemoryStore,
    postgres::{PostgresOptions, PostgresStore},
    sqlite::{SqliteOptions, SqliteStore, Synchronous},
};
use sqlx::{
    ConnectOptions as _,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use tempfile::TempDir;
use test_servers::Kind;

use crate::{
    servers::{mongodb, mysql, postgres, redis},
    stores::AnyStore,
};

/// Connections of a store that many tasks share: as many as stores open by default.
pub(crate) const CONNECTIONS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    Memory,
    /// WAL with `synchronous=NORMAL`.
    Sqlite,
    /// WAL with `synchronous=FULL`, the default for applications.
    SqliteFull,
    Postgres,
    Mariadb,
    Mysql,
    /// With `appendfsync always`.
    Redis,
    /// `mongod` if there is one, else FerretDB.
    Mongodb,
}

/// Where the inboxes of one target are: a server, a folder. It goes when this is dropped.
pub(crate) struct Site {
    pub(crate) target: Target,
    place: Place,
}

enum Place {
    Memory,
    Folder(TempDir),
    Postgres(Box<postgres::Server>),
    MySql(Box<mysql::Server>),
    Redis(redis::Server),
    Mongo(mongodb::Server),
}

/// Which of the two inboxes that a site can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    First,
    Second,
}

impl Slot {
    pub(crate) const ALL: [Self; 2] = [Self::First, Self::Second];

    pub(crate) fn database(self) -> &'static str {
        match self {
            Self::First => "bench_first",
            Self::Second => "bench_second",
        }
    }
}

impl Target {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::SqliteFull => "sqlite-full",
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
            Self::Redis => "redis",
            Self::Mongodb => "mongodb",
        }
    }

    /// Starts what it needs, unless `url` names an idle server. There, the databases
    /// `bench_first` and `bench_second` are made and dropped, or the numbers 0 and 1 of Redis,
    /// which must be empty.
    pub(crate) async fn start(self, url: Option<&str>) -> Result<Site> {
        let place = match self {
            Self::Memory => Place::Memory,
            Self::Sqlite | Self::SqliteFull => Place::Folder(tempfile::tempdir()?),
            Self::Postgres => Place::Postgres(Box::new(postgres::Server::start(url).await?)),
            Self::Mariadb => mysql(Kind::Mariadb, url).await?,
            Self::Mysql => mysql(Kind::Mysql, url).await?,
            Self::Redis => {
                let server = redis::Server::start(url, &[]).await?;
                for slot in Slot::ALL {
                    server.check_empty(slot as u8).await?;
                }
                Place::Redis(server)
            }
            Self::Mongodb => Place::Mongo(mongodb::Server::start(url).await?),
        };
        let is_server = !matches!(place, Place::Memory | Place::Folder(_));
        ensure!(is_server || url.is_none(), "{} has no server", self.name());
        Ok(Site {
            target: self,
            place,
        })
    }
}

async fn mysql(kind: Kind, url: Option<&str>) -> Result<Place> {
    let server = mysql::Server::start(kind, url).await?;
    Ok(Place::MySql(Box::new(server)))
}

impl Site {
    /// Name, version and what matters of the settings.
    pub(crate) async fn about(&mut self) -> Result<String> {
        match &mut self.place {
            Place::Memory => Ok("in this process".to_owned()),
            Place::Folder(_) => {
                let mut connection = SqliteConnectOptions::new().connect().await?;
                let version: String = sqlx::query_scalar("SELECT sqlite_version()")
                    .fetch_one(&mut connection)
                    .await?;
                let synchronous = match self.target {
                    Target::SqliteFull => "full",
                    _ => "normal",
                };
                Ok(format!(
                    "SQLite {version} journal_mode=wal synchronous={synchronous}"
                ))
            }
            Place::Postgres(server) => server.about().await,
            Place::MySql(server) => server.about().await,
            Place::Redis(server) => server.about().await,
            Place::Mongo(server) => server.about().await,
        }
    }

    /// An empty inbox, in the place of what was there.
    pub(crate) async fn fresh(&mut self, slot: Slot) -> Result<AnyStore> {
        self.empty(slot).await?;
        let store = self.connect(slot).await?;
        store.inbox().create().await?;
        Ok(store)
    }

    /// A place with nothing in it.
    pub(crate) async fn empty(&mut self, slot: Slot) -> Result<()> {
        match &mut self.place {
            Place::Postgres(server) => server.create(slot.database()).await,
            Place::MySql(server) => server.create(slot.database()).await,
            Place::Memory | Place::Folder(_) | Place::Redis(_) | Place::Mongo(_) => {
                self.clear(slot).await
            }
        }
    }

    /// The inbox of a store once more: with its own connections, as another process has them.
    /// In memory there is nothing but the store itself.
    pub(crate) async fn again(&self, store: &AnyStore, slot: Slot) -> Result<AnyStore> {
        match store {
            AnyStore::Memory(_) => Ok(store.clone()),
            _ => self.connect(slot).await,
        }
    }

    async fn connect(&self, slot: Slot) -> Result<AnyStore> {
        let database = slot.database();
        Ok(match &self.place {
            Place::Memory => AnyStore::Memory(MemoryStore::new()),
            Place::Folder(_) => {
                let path = self.file(slot).context("no folder")?;
                let synchronous = match self.target {
                    Target::SqliteFull => Synchronous::Full,
                    _ => Synchronous::Normal,
                };
                let options = SqliteOptions::new(path).synchronous(synchronous);
                AnyStore::Sqlite(SqliteStore::connect(options).await?)
            }
            Place::Postgres(server) => {
                let options = PostgresOptions::new().max_connections(CONNECTIONS);
                let connection = server.options(database);
                AnyStore::Postgres(PostgresStore::connect(options.connect_with(connection)).await?)
            }
            Place::MySql(server) => AnyStore::MySql(server.connect(database, CONNECTIONS).await?),
            Place::Redis(server) => AnyStore::Redis(server.connect(slot as u8).await?),
            Place::Mongo(server) => AnyStore::Mongo(server.connect(database).await?),
        })
    }

    /// Lets a server finish what earlier work left behind, so that what follows does not pay.
    pub(crate) async fn rest(&mut self) -> Result<()> {
        match &mut self.place {
            Place::Postgres(server) => server.checkpoint().await,
            Place::Redis(server) => server.rest().await,
            Place::Memory | Place::Folder(_) | Place::MySql(_) | Place::Mongo(_) => Ok(()),
        }
    }

    /// Removes the inbox.
    async fn clear(&mut self, slot: Slot) -> Result<()> {
        match &mut self.place {
            Place::Memory => {}
            Place::Folder(folder) => {
                for entry in std::fs::read_dir(folder.path())? {
                    let path = entry?.path();
                    let name = path.file_name().and_then(|name| name.to_str());
                    if name.is_some_and(|name| name.starts_with(slot.database())) {
                        std::fs::remove_file(path)?;
                    }
                }
            }
            Place::Postgres(server) => server.as_mut().drop(slot.database()).await?,
            Place::MySql(server) => server.as_ref().drop(slot.database()).await?,
            Place::Redis(server) => server.clear(slot as u8).await?,
            Place::Mongo(server) => server.drop(slot.database()).await?,
        }
        Ok(())
    }

    /// Leaves nothing on a server that is not ours.
    pub(crate) async fn clear_all(&mut self) -> Result<()> {
        for slot in Slot::ALL {
            self.clear(slot).await?;
        }
        Ok(())
    }

    /// How to connect to SQLite's file with the driver itself.
    pub(crate) fn sqlite(&self, slot: Slot) -> Option<SqliteConnectOptions> {
        let synchronous = match self.target {
            Target::SqliteFull => SqliteSynchronous::Full,
            _ => SqliteSynchronous::Normal,
        };
        let options = SqliteConnectOptions::new()
            .filename(self.file(slot)?)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous);
        Some(options)
    }

    fn file(&self, slot: Slot) -> Option<PathBuf> {
        match &self.place {
            Place::Folder(folder) => Some(folder.path().join(format!("{}.db", slot.database()))),
            _ => None,
        }
    }

    /// The same for PostgreSQL's database.
    pub(crate) fn postgres(&self, slot: Slot) -> Option<sqlx::postgres::PgConnectOptions> {
        match &self.place {
            Place::Postgres(server) => Some(server.options(slot.database())),
            _ => None,
        }
    }

    /// The same for MySQL's or MariaDB's.
    pub(crate) fn mysql(&self, slot: Slot) -> Option<sqlx::mysql::MySqlConnectOptions> {
        match &self.place {
            Place::MySql(server) => Some(server.options(slot.database())),
            _ => None,
        }
    }

    /// The server, where it is Redis.
    pub(crate) fn redis(&self) -> Option<&redis::Server> {
        match &self.place {
            Place::Redis(server) => Some(server),
            _ => None,
        }
    }

    /// The driver's client, where it is MongoDB.
    pub(crate) fn mongodb(&self) -> Option<&inbox::mongo::mongodb::Client> {
        match &self.place {
            Place::Mongo(server) => Some(&server.client),
            _ => None,
        }
    }

    /// The processor time that the server has used, if it tells.
    pub(crate) async fn processor_time(&self) -> Result<Option<Duration>> {
        match self.redis() {
            Some(server) => Ok(Some(server.processor_time().await?)),
            None => Ok(None),
        }
    }

    /// Bytes that an inbox takes on the disk, or in the server's memory; `None` where that
    /// is not known.
    pub(crate) async fn stored(&mut self, slot: Slot) -> Result<Option<u64>> {
        let database = slot.database();
        Ok(Some(match &mut self.place {
            Place::Memory | Place::Mongo(_) => return Ok(None),
            Place::Folder(folder) => {
                let mut bytes = 0;
                for entry in std::fs::read_dir(folder.path())? {
                    bytes += entry?.metadata()?.len();
                }
                bytes
            }
            Place::Postgres(server) => server.stored(database).await?,
            Place::MySql(server) => server.stored(database).await?,
            Place::Redis(server) => server.memory().await?,
        }))
    }

    /// Bytes of memory that the server keeps its data in, if it does.
    pub(crate) async fn memory(&self) -> Result<Option<u64>> {
        match self.redis() {
            Some(server) => Ok(Some(server.memory().await?)),
            None => Ok(None),
        }
    }
}

/// The beginning of an error about a server that was asked for.
pub(crate) fn cannot_connect(host: &str, port: u16) -> String {
    format!("cannot connect to {host}:{port}")
}

/// The handler of all benchmark messages.
pub(crate) fn handler() -> Result<HandlerName> {
    Ok(HandlerName::new("bench")?)
}
