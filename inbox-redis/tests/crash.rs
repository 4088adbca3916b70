//! Worker processes on one server, killed again and again together with the server: the crash
//! part of the conformance suite. The server persists every write before it answers.
//!
//! `INBOX_CRASH_SERVER=redis-8` or `valkey` makes it another server; `redis-cluster` and the like a
//! cluster, and `redis-pair` and the like a server and its replica behind one address. Of these a
//! replica takes over each time, and what it has confirmed is what counts.
//!
//! `cargo test -p inbox-redis --test crash -- --kills 200 --operations 100000` is the full run,
//! `--faults 100` makes it a hundred fail-overs.

#[allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, of which crash runs need a part"
)]
#[path = "it/common/mod.rs"]
mod common;

use std::{process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use common::primaries::Primaries;
use conformance_tests::{
    BoxError, Offered,
    crash::{self, Fault, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_redis::{RedisOptions, RedisStore};
use test_servers::{HarmedServer, Kind, find_own_to_harm, locate, or_skip};

/// Every worker process has this many shards' keys to deal with in the second run.
const SHARDS: &str = "INBOX_CRASH_SHARDS";

struct Redis {
    kind: Kind,
    /// A server and its replica.
    is_pair: bool,
}

impl Redis {
    fn of(name: &str) -> Result<Self, BoxError> {
        let (kind, is_pair) = match name.strip_suffix("-pair") {
            Some(kind) => (kind, true),
            None => (name, false),
        };
        let kind = kind.parse()?;
        Ok(Self { kind, is_pair })
    }

    fn fails_over(&self) -> bool {
        let is_cluster = matches!(
            self.kind,
            Kind::RedisCluster | Kind::Redis8Cluster | Kind::ValkeyCluster
        );
        self.is_pair || is_cluster
    }
}

#[async_trait]
impl Target for Redis {
    fn name(&self) -> String {
        let pair = if self.is_pair { "-pair" } else { "" };
        format!("{}{pair}", self.kind)
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let shards = std::env::var(SHARDS).unwrap_or_else(|_| "1".into());
        let options = format!("shards={shards}&operation_timeout_ms=2000");
        let site: Box<dyn Site> = if self.fails_over() {
            let primaries = Primaries::start(self.kind, self.is_pair).await;
            let url = primaries.url().await;
            let confirmed = "wait_replicas=1&wait_ms=500&start_checks=warn";
            let url = format!("{url}?{options}&{confirmed}");
            Box::new(Several { url, primaries })
        } else {
            let kind = self.kind;
            let found = tokio::task::spawn_blocking(move || find_own_to_harm(kind, &[])).await?;
            let server = or_skip(kind, found)?.ok_or("there is no server here")?;
            let server = HarmedServer::behind_proxy(server).await?;
            Box::new(Place {
                url: format!("{}?{options}", server.url()),
                server,
            })
        };
        let store = connect(&site.address()).await?;
        store.create().await?;
        store.close().await;
        Ok(site)
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
    server: HarmedServer,
}

#[async_trait]
impl Site for Place {
    fn address(&self) -> String {
        self.url.clone()
    }

    fn faults(&self) -> &[Fault] {
        self.server.faults()
    }

    async fn harm(&self, fault: Fault) -> Offered<()> {
        self.server.harm(fault).await
    }

    async fn move_clock(&self, ahead_micros: i64) -> Offered<()> {
        self.server.move_clock(ahead_micros).await
    }
}

/// Servers of which another takes over.
struct Several {
    url: String,
    primaries: Primaries,
}

#[async_trait]
impl Site for Several {
    fn address(&self) -> String {
        self.url.clone()
    }

    fn faults(&self) -> &[Fault] {
        &[Fault::Killed]
    }

    async fn harm(&self, _: Fault) -> Offered<()> {
        self.primaries.fail_over().await;
        Ok(())
    }
}

async fn connect(url: &str) -> inbox_api::Result<RedisStore> {
    RedisStore::connect(RedisOptions::from_url(url)?).await
}

fn main() -> ExitCode {
    let name = std::env::var("INBOX_CRASH_SERVER").unwrap_or_else(|_| "redis".into());
    let target = match Redis::of(&name) {
        Ok(target) => target,
        Err(error) => {
            eprintln!("crash: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Where there is no server the run is skipped, unless it is required.
    let Err(missing) = locate(target.kind) else {
        return crash::main(&target);
    };
    match or_skip(target.kind, Err(missing.into())) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crash: {error}");
            ExitCode::FAILURE
        }
    }
}
