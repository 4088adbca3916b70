//! Primaries that are lost while a replica takes over: of a cluster, or behind one address.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use test_servers::{Error, Kind, Server, find_own};
use tokio::sync::Mutex;

use super::{
    Raw,
    address::{Address, follow},
};

/// A replica has what it has confirmed in memory only, and may take over, which the test servers
/// otherwise prevent.
const MAY_FAIL_OVER: [&str; 4] = ["--cluster-replica-no-failover", "no", "--appendfsync", "no"];
/// Primaries of a cluster; each has a replica.
const PRIMARIES: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);

pub enum Primaries {
    Cluster {
        cluster: Arc<Mutex<Server>>,
        losses: AtomicUsize,
    },
    Pair {
        servers: [Arc<Mutex<Server>>; 2],
        urls: [String; 2],
        address: Address,
        losses: AtomicUsize,
    },
}

/// How a primary is lost.
enum Loss {
    /// It is killed, and comes back with what it had.
    Killed,
    /// It is silent until the other has taken over, and goes on where it was.
    Silent,
}

impl Loss {
    fn of(number: usize) -> Self {
        if number.is_multiple_of(2) {
            Self::Killed
        } else {
            Self::Silent
        }
    }
}

type Act = fn(&mut Server, usize) -> Result<(), Error>;

async fn own(kind: Kind, pair: bool) -> Server {
    let arguments = &MAY_FAIL_OVER[if pair { 2 } else { 0 }..];
    let found = tokio::task::spawn_blocking(move || find_own(kind, arguments));
    found.await.unwrap().unwrap()
}

async fn act(server: &Arc<Mutex<Server>>, node: usize, act: Act) {
    let mut server = Arc::clone(server).lock_owned().await;
    let done = tokio::task::spawn_blocking(move || act(&mut server, node));
    done.await.unwrap().unwrap();
}

impl Primaries {
    /// Two servers of this kind, one the replica of the other, or a cluster of it.
    pub async fn start(kind: Kind, pair: bool) -> Self {
        let first = own(kind, pair).await;
        if !pair {
            return Self::Cluster {
                cluster: Arc::new(Mutex::new(first)),
                losses: AtomicUsize::new(0),
            };
        }
        let second = own(kind, pair).await;
        let urls = [&first, &second].map(|server| server.url().to_owned());
        follow(&urls[1], Some(&urls[0])).await;
        Self::Pair {
            address: Address::of(&urls[0]).await,
            servers: [first, second].map(|server| Arc::new(Mutex::new(server))),
            urls,
            losses: AtomicUsize::new(0),
        }
    }

    /// Where a store finds them.
    pub async fn url(&self) -> String {
        match self {
            Self::Cluster { cluster, .. } => {
                let cluster = cluster.lock().await;
                let nodes: Vec<&str> = cluster
                    .urls()
                    .iter()
                    .map(|url| url.trim_start_matches("redis://").trim_end_matches('/'))
                    .collect();
                format!("redis+cluster://{}", nodes.join(","))
            }
            Self::Pair { address, .. } => address.url(),
        }
    }

    /// A primary is lost, its replica takes over, and it comes back as the other's replica.
    pub async fn fail_over(&self) {
        match self {
            Self::Cluster { cluster, losses } => {
                let number = losses.fetch_add(1, Ordering::Relaxed);
                let urls = cluster.lock().await.urls().to_vec();
                let primaries = roles(&urls).await.primaries;
                let node = primaries[number % primaries.len()];
                let (lose, find): (Act, Act) = match Loss::of(number) {
                    Loss::Killed => (Server::kill_node, Server::start_node),
                    Loss::Silent => (Server::pause_node, Server::resume_node),
                };
                act(cluster, node, lose).await;
                let mut others = urls.clone();
                others.remove(node);
                wait("a replica to take over", &others, 0).await;
                act(cluster, node, find).await;
                wait("a replica for each primary", &urls, PRIMARIES).await;
            }
            Self::Pair {
                servers,
                urls,
                address,
                losses,
            } => {
                let number = losses.fetch_add(1, Ordering::Relaxed);
                let (lost, heir) = (number % 2, (number + 1) % 2);
                // Each server in both ways.
                let (lose, find): (Act, Act) = match Loss::of(number / 2) {
                    Loss::Killed => (|s, _| s.kill(), |s, _| s.start()),
                    Loss::Silent => (|s, _| s.pause(), |s, _| s.resume()),
                };
                act(&servers[lost], 0, lose).await;
                follow(&urls[heir], None).await;
                address.means(&urls[heir]);
                tokio::time::sleep(Duration::from_millis(200)).await;
                act(&servers[lost], 0, find).await;
                follow(&urls[lost], Some(&urls[heir])).await;
            }
        }
    }
}

#[derive(Default)]
struct Roles {
    primaries: Vec<usize>,
    /// Replicas that have all that their primaries have.
    in_step: usize,
}

async fn roles(urls: &[String]) -> Roles {
    let mut roles = Roles::default();
    for (node, url) in urls.iter().enumerate() {
        let info = async {
            let mut raw = Raw::connect(url, false).await?;
            raw.run::<String>(redis::cmd("INFO").arg("replication"))
                .await
        };
        match tokio::time::timeout(Duration::from_secs(1), info).await {
            Ok(Ok(info)) if info.contains("role:master") => roles.primaries.push(node),
            Ok(Ok(info)) if info.contains("master_link_status:up") => roles.in_step += 1,
            _ => {}
        }
    }
    roles
}

/// Waits until all primaries are among these, and so many replicas in step.
async fn wait(what: &str, urls: &[String], replicas: usize) {
    let since = Instant::now();
    loop {
        let roles = roles(urls).await;
        if roles.primaries.len() == PRIMARIES && roles.in_step >= replicas {
            return;
        }
        assert!(since.elapsed() < LIMIT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
