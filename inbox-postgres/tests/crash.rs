//! Worker processes on one server, killed again and again, and the server with them: the crash
//! part of the conformance suite. On PostgreSQL 15; `INBOX_CRASH_SERVER=postgres-18` makes it 18, and
//! `postgres-pair` or `postgres-18-pair` a primary and its synchronous standby behind one address, of which
//! the standby takes over each time.
//!
//! `cargo test -p inbox-postgres --test crash -- --kills 200 --operations 100000` is the full run.

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    BoxError, Offered, Transactions, Unable,
    crash::{self, Fault, Opened, Site, Target, proxy::Proxy},
};
use inbox_api::{Schema as _, Store as _};
use inbox_postgres::{
    PostgresOptions, PostgresStore,
    conformance::{Effects, TestSchema},
};
use test_servers::{HarmedServer, Kind, Server, find_own, find_own_to_harm};

/// How long an operation may take, so that connections that have gone silent are noticed.
const PATIENCE: Duration = Duration::from_secs(5);

struct Database {
    kind: Kind,
    /// A primary and its standby.
    is_pair: bool,
}

impl Database {
    fn of(name: &str) -> Result<Self, BoxError> {
        let (kind, is_pair) = match name.strip_suffix("-pair") {
            Some(kind) => (kind, true),
            None => (name, false),
        };
        let kind = kind.parse()?;
        Ok(Self { kind, is_pair })
    }
}

#[async_trait]
impl Target for Database {
    fn name(&self) -> String {
        let pair = if self.is_pair { "-pair" } else { "" };
        format!("{}{pair}", self.kind)
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let kind = self.kind;
        // What is locked by a transaction whose connection went silent.
        let limits = [
            "-c",
            "idle_in_transaction_session_timeout=10s",
            // The disk is small.
            "-c",
            "max_wal_size=128MB",
        ];
        let site: Box<dyn Site> = if self.is_pair {
            Box::new(Pair::start(kind, limits).await?)
        } else {
            let find = move || find_own_to_harm(kind, &limits);
            let server = tokio::task::spawn_blocking(find).await??;
            let server = HarmedServer::behind_proxy(server).await?;
            Box::new(Harmed {
                address: format!("{}?schema=crash", server.url()),
                server,
            })
        };
        let address = site.address();
        let options = PostgresOptions::from_url(&address)?;
        let store = PostgresStore::connect(options.clone()).await?;
        store.create().await?;
        store.close().await;
        Effects::of(Arc::new(TestSchema::of(&options)))
            .create()
            .await?;
        Ok(site)
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        let options = PostgresOptions::from_url(address)?.operation_timeout(PATIENCE);
        let effects = Arc::new(Effects::of(Arc::new(TestSchema::of(&options))));
        // The server may just be restarting.
        let mut tries = 0;
        let store = loop {
            match PostgresStore::connect(options.clone()).await {
                Err(error) if error.is_retryable() && tries < 300 => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                connected => break Arc::new(connected?),
            }
        };
        Ok(Opened {
            inbox: store.clone(),
            transactions: Some(Arc::new(Transactions::new(store).with_writes(effects))),
        })
    }
}

struct Harmed {
    address: String,
    server: HarmedServer,
}

#[async_trait]
impl Site for Harmed {
    fn address(&self) -> String {
        self.address.clone()
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

/// A primary and a synchronous standby behind one address. What is answered both have.
struct Pair {
    address: String,
    proxy: Proxy,
    fail_overs: AtomicUsize,
    servers: Mutex<Option<Servers>>,
}

struct Servers {
    primary: Server,
    standby: Server,
}

impl Servers {
    /// The standby takes over from a primary that is lost, and gets a standby of its own.
    fn fail_over(self, proxy: &Proxy, is_silent: bool) -> Result<Self, BoxError> {
        let Self {
            mut primary,
            mut standby,
        } = self;
        if is_silent {
            primary.pause()?;
        } else {
            primary.kill()?;
        }
        standby.promote()?;
        proxy.redirect(address_of(&standby)?);
        let next = standby.standby()?;
        // Connections to a silent one end here at the latest.
        drop(primary);
        Ok(Self {
            primary: standby,
            standby: next,
        })
    }
}

fn address_of(server: &Server) -> Result<SocketAddr, BoxError> {
    let (_, rest) = server.url().split_once('@').ok_or("no host in the URL")?;
    let (address, _) = rest.split_once('/').ok_or("no database in the URL")?;
    Ok(address.parse()?)
}

impl Pair {
    async fn start(kind: Kind, limits: [&'static str; 4]) -> Result<Self, BoxError> {
        let start = move || -> Result<Servers, BoxError> {
            // Nothing commits before there is a standby.
            let both = ["-c", "synchronous_standby_names=*"];
            let primary = find_own(kind, &[&limits[..], &both].concat())?;
            let standby = primary.standby()?;
            Ok(Servers { primary, standby })
        };
        let servers = tokio::task::spawn_blocking(start).await??;
        let proxy = Proxy::start(address_of(&servers.primary)?).await?;
        let address = proxy.address();
        Ok(Self {
            address: format!("postgres://postgres@{address}/postgres?schema=crash"),
            proxy,
            fail_overs: AtomicUsize::new(0),
            servers: Mutex::new(Some(servers)),
        })
    }
}

#[async_trait]
impl Site for Pair {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn faults(&self) -> &[Fault] {
        &[Fault::Killed]
    }

    async fn harm(&self, _: Fault) -> Offered<()> {
        let is_silent = self.fail_overs.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        let failing_over = || {
            let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
            let pair = servers.take().ok_or("an earlier fail-over failed")?;
            *servers = Some(pair.fail_over(&self.proxy, is_silent)?);
            Ok::<_, BoxError>(())
        };
        tokio::task::block_in_place(failing_over).map_err(Unable::failed)
    }
}

fn main() -> ExitCode {
    let name = std::env::var("INBOX_CRASH_SERVER").unwrap_or_else(|_| "postgres".into());
    match Database::of(&name) {
        Ok(database) => crash::main(&database),
        Err(error) => {
            eprintln!("crash: {error}");
            ExitCode::FAILURE
        }
    }
}
