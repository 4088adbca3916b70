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
    BoxError, Offered, Restart, Transactions, Unable,
    crash::{self, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_mysql::{MySqlOptions, MySqlStore, conformance::Effects};
use test_servers::{Kind, Server, require_or_skip};

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

struct Database(Kind);

#[async_trait]
impl Target for Database {
    fn name(&self) -> String {
        self.0.name().into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let kind = self.0;
        let server = tokio::task::spawn_blocking(move || require_or_skip(kind)).await??;
        let server = server.ok_or("no server")?;
        let store = connect(server.url()).await?;
        store.create().await?;
        store.close().await;
        Effects::of(&options(server.url())).create().await?;
        let urls: Vec<String> = server.urls().iter().map(ToString::to_string).collect();
        let place = OneServer {
            address: urls.join(","),
            nodes: urls.len(),
            next: AtomicUsize::new(0),
            server: Arc::new(Mutex::new(server)),
        };
        Ok(Box::new(place))
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        // Each process on the next node.
        let urls: Vec<&str> = address.split(',').collect();
        let url = urls[std::process::id() as usize % urls.len()];
        let store = Arc::new(connect(url).await?);
        let effects = Arc::new(Effects::of(&options(url)));
        Ok(Opened {
            inbox: store.clone(),
            transactions: Some(Arc::new(Transactions::new(store).with_writes(effects))),
        })
    }
}

struct OneServer {
    address: String,
    nodes: usize,
    /// The node to be killed next.
    next: AtomicUsize,
    server: Arc<Mutex<Server>>,
}

#[async_trait]
impl Site for OneServer {
    fn address(&self) -> String {
        self.address.clone()
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        if common::lock(&self.server).is_shared() {
            return Err(Unable::NotOffered(conformance_tests::Need::Restart));
        }
        if self.nodes == 1 {
            return restart(&self.server, how).await;
        }
        let node = self.next.fetch_add(1, Ordering::Relaxed) % self.nodes;
        act(&self.server, move |cluster| {
            cluster.kill_node(node)?;
            cluster.start_node(node)
        })
        .await
    }
}

/// Does something to a server of the test, which may take a while.
async fn act(
    server: &Arc<Mutex<Server>>,
    act: impl FnOnce(&mut Server) -> Result<(), test_servers::Error> + Send + 'static,
) -> Offered<()> {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || act(&mut common::lock(&server)))
        .await
        .map_err(Unable::failed)?
        .map_err(Unable::failed)
}

async fn restart(server: &Arc<Mutex<Server>>, how: Restart) -> Offered<()> {
    act(server, move |server| match how {
        Restart::Orderly => server.restart(),
        Restart::Killed => {
            server.kill()?;
            server.start()
        }
    })
    .await
}

fn options(url: &str) -> MySqlOptions {
    MySqlOptions::new(connect_options(url, None))
}

/// Waits for a server that is just being restarted.
async fn connect(url: &str) -> inbox_api::Result<MySqlStore> {
    let options = options(url).operation_timeout(Duration::from_secs(5));
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
