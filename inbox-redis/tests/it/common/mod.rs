//! What the tests share: their own servers, and fixtures on them.

pub mod address;
pub mod load;
pub mod messages;
pub mod primaries;

use std::{
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use conformance_tests::run;
use inbox_api::{ClockOffset, InboxName};
use inbox_redis::{
    Confirmations, RedisOptions, RedisStore, StartChecks, conformance::RedisHarness,
};
use redis::aio::ConnectionLike as _;
use test_servers::{
    Error, Kind, NoServer, Server,
    control::{Outage, own},
    find_own_with_clocks, require_or_skip,
};

/// Numbers the inboxes of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

pub fn fresh_name() -> InboxName {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    InboxName::new(format!("t{}_{number}", std::process::id())).unwrap()
}

pub type Shared = LazyLock<Result<Option<Mutex<Server>>, Error>>;

fn found(kind: Kind) -> Result<Option<Mutex<Server>>, Error> {
    Ok(require_or_skip(kind)?.map(Mutex::new))
}

pub static SERVER: Shared = LazyLock::new(|| found(Kind::Redis));
pub static CLUSTER: Shared = LazyLock::new(|| found(Kind::RedisCluster));
pub static REDIS_8: Shared = LazyLock::new(|| found(Kind::Redis8));
pub static REDIS_8_CLUSTER: Shared = LazyLock::new(|| found(Kind::Redis8Cluster));
pub static VALKEY: Shared = LazyLock::new(|| found(Kind::Valkey));
pub static VALKEY_CLUSTER: Shared = LazyLock::new(|| found(Kind::ValkeyCluster));

/// A cluster with the clock of one node ten minutes ahead, and that of another ten minutes behind, where
/// clocks can be changed.
pub static CLOCKS_APART: Shared = LazyLock::new(|| {
    // Replicas have the clocks of their primaries.
    match find_own_with_clocks(Kind::RedisCluster, &[], &[0, 600, -600]) {
        Ok(server) => Ok(Some(Mutex::new(server))),
        Err(NoServer::Skipped(skipped)) => {
            eprintln!("a cluster with clocks apart: skipped: {skipped}");
            Ok(None)
        }
        Err(NoServer::Failed(error)) => Err(error),
    }
});

/// A shared server, if there is one. Looking for it blocks, so it has its own thread.
pub fn started(server: &'static Shared) -> Result<Option<&'static Mutex<Server>>, String> {
    let found = std::thread::spawn(|| match &**server {
        Ok(server) => Ok(server.as_ref()),
        Err(error) => Err(error.to_string()),
    });
    found.join().unwrap()
}

/// The URL of a shared server, if there is one.
pub fn url(server: &'static Shared) -> Option<String> {
    let server = started(server).unwrap()?;
    Some(server.lock().unwrap().url().to_owned())
}

/// Of the suite, what depends most on the server: scripts, its clock and wake-ups.
const PARTS: &[&str] = &[
    "duplicates::",
    "fencing::",
    "ordering::",
    "retention::",
    "wakeups::",
];

/// Runs the suite on a server, if it is there, or that part of it.
pub async fn conforms(server: &'static Shared, harness: impl Fn() -> RedisHarness, is_whole: bool) {
    if url(server).is_none() {
        return;
    }
    let parts = if is_whole { &[""][..] } else { PARTS };
    for part in parts {
        let report = run(Arc::new(harness()), part).await;
        assert!(report.is_clean() && report.passed > 0, "{report}");
    }
}

/// Options for a fresh inbox on a server of this kind.
pub fn options(url: &str, cluster: bool, shards: u16) -> RedisOptions {
    let url = if cluster {
        url.replacen("redis://", "redis+cluster://", 1)
    } else {
        url.to_owned()
    };
    RedisOptions::from_url(&url)
        .unwrap()
        .inbox_name(fresh_name())
        .shards(shards)
        .unwrap()
        .start_checks(StartChecks::Warn)
        .operation_timeout(Duration::from_secs(5))
}

/// The suite's harness on a shared server, over so many shards, with confirmations that are less than
/// the tests' operations may take. Cases that harm their servers have their own.
pub fn harness(
    (kind, server): (Kind, &'static Shared),
    shards: u16,
    confirmations: Confirmations,
) -> RedisHarness {
    let cluster = matches!(
        kind,
        Kind::RedisCluster | Kind::Redis8Cluster | Kind::ValkeyCluster
    );
    let url = url(server).unwrap_or_else(|| panic!("there is no {kind} here"));
    let options = options(&url, cluster, shards).confirmations(confirmations);
    let over = if shards > 1 { " over shards" } else { "" };
    RedisHarness::new(options)
        .named(format!("redis, on {kind}{over}"))
        .servers(own(kind, &[], Outage::Paused))
}

/// What a replica has in memory. One of a slow machine needs the time for 80 MiB.
pub fn by_a_replica() -> Confirmations {
    Confirmations {
        replicas: 1,
        timeout: Duration::from_secs(4),
        ..Confirmations::default()
    }
}

/// What is on the primary's disk.
pub fn by_the_disk() -> Confirmations {
    Confirmations {
        local_aof: true,
        ..Confirmations::default()
    }
}

/// A fresh inbox whose time can be moved.
pub async fn store(options: RedisOptions) -> (RedisStore, ClockOffset) {
    let offset = ClockOffset::default();
    let store = RedisStore::connect(options.clock_offset(offset.clone()))
        .await
        .unwrap();
    inbox_api::Schema::create(&store).await.unwrap();
    (store, offset)
}

/// What a test says itself may come while the server is busy with another's.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A connection past the store, for whatever the tests do behind its back.
#[derive(Clone)]
pub enum Raw {
    Single(redis::aio::MultiplexedConnection),
    Cluster(redis::cluster_async::ClusterConnection),
}

impl Raw {
    pub async fn connect(url: &str, cluster: bool) -> redis::RedisResult<Self> {
        if cluster {
            let client = redis::cluster::ClusterClient::builder([url])
                .connection_timeout(PATIENCE)
                .response_timeout(PATIENCE)
                .build()?;
            return Ok(Self::Cluster(client.get_async_connection().await?));
        }
        let client = redis::Client::open(url)?;
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        Ok(Self::Single(
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await?,
        ))
    }

    pub async fn run<T: redis::FromRedisValue>(
        &mut self,
        command: &redis::Cmd,
    ) -> redis::RedisResult<T> {
        let value = match self {
            Self::Single(connection) => connection.req_packed_command(command).await,
            Self::Cluster(connection) => connection.req_packed_command(command).await,
        }?;
        Ok(redis::from_redis_value(value)?)
    }
}
