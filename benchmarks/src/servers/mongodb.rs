//! The server that is measured: one that is there, or one of our own.

use anyhow::{Context as _, Result};
use inbox::{
    Store as _,
    mongo::{
        MongoOptions, MongoStore,
        mongodb::{Client, bson::doc},
    },
};
use test_servers::{Kind, find, find_own};

pub(crate) struct Server {
    url: String,
    pub(crate) client: Client,
    /// It ends when this is dropped.
    _own: Option<test_servers::Server>,
}

impl Server {
    /// The server at `url`; without one, our own `mongod` if there is one, else FerretDB.
    pub(crate) async fn start(url: Option<&str>) -> Result<Self> {
        let own = match url {
            Some(_) => None,
            None => Some(tokio::task::spawn_blocking(own).await??),
        };
        let url = url.or(own.as_ref().map(test_servers::Server::url));
        let url = url.context("no server")?.to_owned();
        // The store says sooner than the driver, and better, why a server cannot be used.
        let options = MongoOptions::from_url(&url)?;
        MongoStore::connect(options).await?.close().await;
        Ok(Self {
            client: Client::with_uri_str(&url).await?,
            url,
            _own: own,
        })
    }

    pub(crate) async fn drop(&self, database: &str) -> Result<()> {
        Ok(self.client.database(database).drop().await?)
    }

    pub(crate) async fn connect(&self, database: &str) -> Result<MongoStore> {
        let options = MongoOptions::from_url(&self.url)?.database(database);
        Ok(MongoStore::connect(options).await?)
    }

    /// Name, version and how durable a write is when it is acknowledged.
    pub(crate) async fn about(&self) -> Result<String> {
        let admin = self.client.database("admin");
        let build = admin.run_command(doc! { "buildInfo": 1 }).await?;
        let speaks = build.get_str("version").unwrap_or("of unknown version");
        let server = match build.get_document("ferretdb") {
            Ok(ferretdb) => format!(
                "FerretDB {}, speaking as MongoDB {speaks}",
                ferretdb.get_str("version").unwrap_or("of unknown version")
            ),
            Err(_) => format!("MongoDB {speaks}"),
        };
        Ok(format!("{server} w=majority j=true"))
    }
}

/// What the PostgreSQL server behind FerretDB is started with: memory as in the measurements of
/// PostgreSQL, and index entries of what is gone marked when they are met, as PostgreSQL's own
/// indexes do and DocumentDB's do only where this is set.
const BEHIND_FERRETDB: [&str; 6] = [
    "-c",
    "shared_buffers=512MB",
    "-c",
    "max_wal_size=4GB",
    "-c",
    "documentdb_rum.enable_support_dead_index_items=on",
];

fn own() -> Result<test_servers::Server> {
    if find(Kind::Mongodb).is_ok() {
        return Ok(find_own(Kind::Mongodb, &[])?);
    }
    Ok(find_own(Kind::Ferretdb, &BEHIND_FERRETDB)?)
}
