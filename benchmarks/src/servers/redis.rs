//! The server, and what it says about itself.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use inbox::redis::{
    RedisOptions, RedisStore, StartChecks,
    redis::{self, AsyncConnectionConfig, FromRedisValue, aio::MultiplexedConnection},
};
use test_servers::{Kind, find_own};
use url::Url;

use crate::target::cannot_connect;

pub(crate) struct Server {
    url: Url,
    /// It ends when this is dropped.
    _own: Option<test_servers::Server>,
}

impl Server {
    /// The server at `url`, of which the databases that are used must be empty, or one of our own
    /// that is started with `arguments`.
    pub(crate) async fn start(
        url: Option<&str>,
        arguments: &'static [&'static str],
    ) -> Result<Self> {
        let own = match url {
            Some(_) => None,
            None => {
                let start = move || find_own(Kind::Redis, arguments);
                Some(tokio::task::spawn_blocking(start).await??)
            }
        };
        let url = url.or(own.as_ref().map(test_servers::Server::url));
        Ok(Self {
            url: url.context("no server")?.parse()?,
            _own: own,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.url.port().unwrap_or(6379)
    }

    /// The URL of one of its databases.
    pub(crate) fn url(&self, database: u8) -> String {
        let mut url = self.url.clone();
        url.set_path(&format!("/{database}"));
        url.into()
    }

    /// A connection that waits as long as a busy machine takes.
    pub(crate) async fn connection(&self, database: u8) -> Result<MultiplexedConnection> {
        let patience = Some(Duration::from_secs(60));
        let config = AsyncConnectionConfig::new().set_response_timeout(patience);
        let client = redis::Client::open(self.url(database))?;
        Ok(client
            .get_multiplexed_async_connection_with_config(&config)
            .await?)
    }

    pub(crate) async fn command<T: FromRedisValue>(
        &self,
        database: u8,
        words: &[&str],
    ) -> Result<T> {
        let mut connection = self.connection(database).await.with_context(|| {
            let port = self.url.port().unwrap_or(6379);
            let host = self.url.host_str().unwrap_or_default();
            cannot_connect(host, port)
        })?;
        let (name, arguments) = words.split_first().context("no command")?;
        let mut command = redis::cmd(name);
        command.arg(arguments);
        Ok(command.query_async(&mut connection).await?)
    }

    /// Fails unless there is nothing in the database.
    pub(crate) async fn check_empty(&self, database: u8) -> Result<()> {
        let keys: u64 = self.command(database, &["DBSIZE"]).await?;
        ensure!(keys == 0, "database {database} of the server is not empty");
        Ok(())
    }

    pub(crate) async fn clear(&self, database: u8) -> Result<()> {
        self.command(database, &["FLUSHDB", "SYNC"]).await
    }

    pub(crate) fn options(&self, database: u8) -> Result<RedisOptions> {
        let options = RedisOptions::from_url(&self.url(database))?;
        Ok(options.start_checks(StartChecks::Warn))
    }

    pub(crate) async fn connect(&self, database: u8) -> Result<RedisStore> {
        Ok(RedisStore::connect(self.options(database)?).await?)
    }

    /// The processor time that the server's main thread has used. Other than rates, it is about the
    /// same on a busy machine.
    pub(crate) async fn processor_time(&self) -> Result<Duration> {
        let mut all = Duration::ZERO;
        for name in ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"] {
            all += Duration::from_secs_f64(self.info("cpu", name).await?.parse()?);
        }
        Ok(all)
    }

    /// Bytes of what is stored.
    pub(crate) async fn memory(&self) -> Result<u64> {
        let memory = self.info("memory", "used_memory_dataset").await?;
        Ok(memory.parse()?)
    }

    pub(crate) async fn about(&self) -> Result<String> {
        let version = self.info("server", "redis_version").await?;
        let mut about = vec![format!("Redis {version}")];
        for name in ["appendonly", "appendfsync", "io-threads"] {
            let words = ["CONFIG", "GET", name];
            let (name, value): (String, String) = self.command(0, &words).await?;
            about.push(format!("{name}={value}"));
        }
        Ok(about.join(" "))
    }

    /// Waits until the server does nothing in the background that earlier work caused.
    pub(crate) async fn rest(&self) -> Result<()> {
        for (section, name) in [
            ("persistence", "aof_rewrite_scheduled"),
            ("persistence", "aof_rewrite_in_progress"),
            ("persistence", "rdb_bgsave_in_progress"),
            ("memory", "lazyfree_pending_objects"),
        ] {
            while self.info(section, name).await? != "0" {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// A line of what the server tells about itself.
    pub(crate) async fn info(&self, section: &str, name: &str) -> Result<String> {
        let info: String = self.command(0, &["INFO", section]).await?;
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let line = line.with_context(|| format!("the server does not tell its {name}"))?;
        Ok(line.trim().to_owned())
    }
}
