//! Worker processes on one inbox, killed again and again, and their server too: the crash part of
//! the conformance suite. On MariaDB; `INBOX_CRASH_SERVER=mysql` makes it MySQL, and `galera` a
//! cluster over which the workers are spread, and of which one node after the other is killed.
//!
//! `cargo test -p inbox-mysql --test crash -- --kills 200 --operations 100000` is the full run.

use std::{
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    BoxError, Offered, Transactions, Unable,
    crash::{self, Fault, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_mysql::{MySqlOptions, MySqlStore, conformance::Effects};
use test_servers::{HarmedServer, Kind, Server, find_own, find_own_to_harm, or_skip};

#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, of which crash runs need a part"
)]
#[path = "it/common/mod.rs"]
mod common;

use common::connect_options;

/// How long an operation may take, so that connections that have gone silent are noticed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long setting up may take, on a busy machine.
const SET_UP: Duration = Duration::from_secs(60);

struct Database(Kind);

#[async_trait]
impl Target for Database {
    fn name(&self) -> String {
        self.0.name().into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let kind = self.0;
        // What is locked by a transaction whose connection went silent.
        let limit = match kind {
            Kind::Mysql => "--wait-timeout=10",
            _ => "--idle-transaction-timeout=10",
        };
        let found = tokio::task::spawn_blocking(move || match kind {
            Kind::Galera => find_own(kind, &[limit]),
            _ => find_own_to_harm(kind, &[limit]),
        })
        .await?;
        let server = or_skip(kind, found)?.ok_or("no server")?;
        let store = connect(server.url(), SET_UP).await?;
        store.create().await?;
        store.close().await;
        Effects::of(&options(server.url())).create().await?;
        Ok(if server.urls().len() == 1 {
            Box::new(OneServer(HarmedServer::behind_proxy(server).await?))
        } else {
            Box::new(Cluster {
                urls: server.urls().to_vec(),
                next: AtomicUsize::new(0),
                server: Arc::new(Mutex::new(server)),
            })
        })
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        // Each process on the next node.
        let urls: Vec<&str> = address.split(',').collect();
        let url = urls[std::process::id() as usize % urls.len()];
        let store = Arc::new(connect(url, PATIENCE).await?);
        let effects = Arc::new(Effects::of(&options(url)));
        Ok(Opened {
            inbox: store.clone(),
            transactions: Some(Arc::new(Transactions::new(store).with_writes(effects))),
        })
    }
}

struct OneServer(HarmedServer);

#[async_trait]
impl Site for OneServer {
    fn address(&self) -> String {
        self.0.url().to_owned()
    }

    fn faults(&self) -> &[Fault] {
        self.0.faults()
    }

    async fn harm(&self, fault: Fault) -> Offered<()> {
        self.0.harm(fault).await
    }

    async fn move_clock(&self, ahead_micros: i64) -> Offered<()> {
        self.0.move_clock(ahead_micros).await
    }
}

struct Cluster {
    urls: Vec<String>,
    /// The node to be harmed next.
    next: AtomicUsize,
    server: Arc<Mutex<Server>>,
}

#[async_trait]
impl Site for Cluster {
    fn address(&self) -> String {
        self.urls.join(",")
    }

    fn faults(&self) -> &[Fault] {
        &[Fault::Killed]
    }

    async fn harm(&self, _: Fault) -> Offered<()> {
        let node = self.next.fetch_add(1, Ordering::Relaxed) % self.urls.len();
        let server = Arc::clone(&self.server);
        let acting = move || {
            let mut cluster = common::lock(&server);
            cluster.kill_node(node)?;
            cluster.start_node(node)
        };
        tokio::task::spawn_blocking(acting)
            .await
            .map_err(Unable::failed)?
            .map_err(Unable::failed)
    }
}

fn options(url: &str) -> MySqlOptions {
    MySqlOptions::new(connect_options(url, None))
}

/// Waits for a server that is just being restarted.
async fn connect(url: &str, patience: Duration) -> inbox_api::Result<MySqlStore> {
    let options = options(url).operation_timeout(patience);
    let mut tries = 0;
    loop {
        match MySqlStore::connect(options.clone()).await {
            Err(error) if error.is_retryable() && tries < 300 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

fn main() -> ExitCode {
    let kind = match std::env::var("INBOX_CRASH_SERVER").as_deref() {
        Ok("mysql") => Kind::Mysql,
        Ok("galera") => Kind::Galera,
        _ => Kind::Mariadb,
    };
    // A worker of this program must not look for servers itself.
    if std::env::var_os("INBOX_CRASH_WORKER").is_none() && test_servers::locate(kind).is_err() {
        eprintln!("crash: skipped, there is no {kind} server");
        return ExitCode::SUCCESS;
    }
    crash::main(&Database(kind))
}
