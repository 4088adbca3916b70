//! MongoDB, for the scenarios that run on every store.

use anyhow::{Context as _, Result};
use inbox::mongodb::{
    MongoOptions, MongoStore,
    mongodb::{Client, bson::doc},
};
use test_servers::{Kind, find_own};

pub(crate) struct Server {
    url: String,
    client: Client,
    /// It ends when this is dropped.
    _own: Option<test_servers::Server>,
}

impl Server {
    /// The server at `url`, or one of our own.
    pub(crate) async fn start(url: Option<&str>) -> Result<Self> {
        let own = match url {
            Some(_) => None,
            None => {
                let start = || find_own(Kind::Mongodb, &[]);
                Some(tokio::task::spawn_blocking(start).await??)
            }
        };
        let url = url.or(own.as_ref().map(test_servers::Server::url));
        let url = url.context("no server")?.to_owned();
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
        let (connection, options) = MongoOptions::from_url(&self.url)?;
        Ok(MongoStore::connect(connection, options.database(database)).await?)
    }

    pub(crate) async fn about(&self) -> Result<String> {
        let admin = self.client.database("admin");
        let build = admin.run_command(doc! { "buildInfo": 1 }).await?;
        let version = build.get_str("version")?;
        Ok(format!("MongoDB {version} w=majority j=true"))
    }
}
