//! Worker processes on one server, killed again and again together with the server: the crash
//! part of the conformance suite. The server persists every write before it answers.
//!
//! `cargo test -p inbox-redis --test crash -- --kills 200 --operations 100000` is the full run.

use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    BoxError, Offered, Restart, Unable,
    crash::{self, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_redis::{RedisOptions, RedisStore};
use test_servers::{Kind, Server, find_own, locate, or_skip};

/// Every worker process has this many shards' keys to deal with in the second run.
const SHARDS: &str = "INBOX_CRASH_SHARDS";

struct Redis;

#[async_trait]
impl Target for Redis {
    fn name(&self) -> String {
        "redis".into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let found = tokio::task::spawn_blocking(|| find_own(Kind::Redis, &[])).await?;
        let server = or_skip(Kind::Redis, found)?.ok_or("there is no server here")?;
        let shards = std::env::var(SHARDS).unwrap_or_else(|_| "1".into());
        let url = format!("{}?shards={shards}&operation_timeout_ms=2000", server.url());
        let place = Place {
            url,
            server: Arc::new(Mutex::new(server)),
        };
        let store = connect(&place.url).await?;
        store.create().await?;
        store.close().await;
        Ok(Box::new(place))
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        // A worker may be started while the server is down.
        let mut tries = 0;
        let store = loop {
            match connect(address).await {
                Err(error) if error.is_retryable() && tries < 200 => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                outcome => break outcome?,
            }
        };
        Ok(Opened {
            inbox: Arc::new(store),
            transactions: None,
        })
    }
}

struct Place {
    url: String,
    server: Arc<Mutex<Server>>,
}

#[async_trait]
impl Site for Place {
    fn address(&self) -> String {
        self.url.clone()
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        let server = Arc::clone(&self.server);
        tokio::task::spawn_blocking(move || {
            let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
            match how {
                Restart::Orderly => server.stop(),
                Restart::Killed => server.kill(),
            }?;
            server.start()
        })
        .await
        .map_err(Unable::failed)?
        .map_err(Unable::failed)
    }
}

async fn connect(url: &str) -> inbox_api::Result<RedisStore> {
    RedisStore::connect(RedisOptions::from_url(url)?).await
}

fn main() -> ExitCode {
    // Where there is no server the run is skipped, unless it is required.
    let Err(missing) = locate(Kind::Redis) else {
        return crash::main(&Redis);
    };
    match or_skip(Kind::Redis, Err(missing.into())) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crash: {error}");
            ExitCode::FAILURE
        }
    }
}
