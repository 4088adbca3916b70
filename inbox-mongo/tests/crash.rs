//! Worker processes on one server, killed again and again, and the server with them: the crash
//! part of the conformance suite. `INBOX_CRASH_SERVER=mongodb-set` makes it a replica set of three
//! members, of which the primary is killed, whichever it is.
//!
//! `cargo test -p inbox-mongo --test crash -- --kills 200 --operations 100000` is the full run.

#[allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, of which crash runs need a part"
)]
#[path = "it/common.rs"]
mod common;

use std::{
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use common::TestInbox;
use conformance_tests::{
    BoxError, BusinessWrites, Offered, Transactions,
    crash::{self, Fault, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_mongo::{
    MongoOptions, MongoStore, MongoTransaction,
    mongodb::bson::{Document, doc},
};
use test_servers::{HarmedServer, Kind, Server, find_own, find_own_to_harm, or_skip};

/// The database of the one inbox on each server.
const DATABASE: &str = "inbox";

/// On a replica set of three members, or else on one server.
struct Database {
    set: bool,
}

/// How long a transaction may be open, in seconds: so long keep those of killed workers their messages,
/// while the run waits for them.
const LIFETIME: u64 = 5;

/// How long an operation may take, so that connections that have gone silent are noticed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The faults that need no proxy.
const OF_SERVERS: [Fault; 5] = [
    Fault::Killed,
    Fault::Stopped,
    Fault::Paused,
    Fault::Filled,
    Fault::ClockMoved,
];

/// The server to harm, if there is one.
fn server(set: bool) -> Result<Option<Server>, test_servers::Error> {
    let lifetime = format!("transactionLifetimeLimitSeconds={LIFETIME}");
    let arguments = ["--setParameter", lifetime.as_str()];
    if set {
        return or_skip(Kind::MongodbSet, find_own(Kind::MongodbSet, &arguments));
    }
    if let Ok(server) = find_own_to_harm(Kind::Mongodb, &arguments) {
        return Ok(Some(server));
    }
    let arguments = ["-c", "max_wal_size=128MB"];
    let found = find_own_to_harm(Kind::Ferretdb, &arguments);
    or_skip(Kind::Ferretdb, found)
}

#[async_trait]
impl Target for Database {
    fn name(&self) -> String {
        "mongodb".into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let set = self.set;
        let server = tokio::task::spawn_blocking(move || server(set))
            .await??
            .ok_or("no MongoDB server to harm")?;
        let mut place = TestInbox::at(common::seeds(&server));
        place.options = place.options.database(DATABASE);
        let store = place.connect().await?;
        store.create().await?;
        store.close().await;
        if set {
            return Ok(Box::new(Set {
                address: place.url,
                server: Arc::new(Mutex::new(server)),
            }));
        }
        let server = HarmedServer::behind_proxy(server).await?;
        // The member of a set tells clients where it is, past the proxy.
        let passes_by = place.url.contains("replicaSet=");
        let (address, faults) = if passes_by {
            let mut faults = server.faults().to_vec();
            faults.retain(|fault| OF_SERVERS.contains(fault));
            (place.url, faults)
        } else {
            (server.url().to_owned(), server.faults().to_vec())
        };
        Ok(Box::new(OneServer {
            address,
            faults,
            server,
        }))
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        let separator = if address.contains('?') { '&' } else { '?' };
        let url = format!("{address}{separator}serverSelectionTimeoutMS=2000");
        let options = MongoOptions::from_url(&url)?
            .database(DATABASE)
            .operation_timeout(PATIENCE)
            .transaction_lifetime(Duration::from_secs(LIFETIME));
        // The server may just be restarting.
        let mut tries = 0;
        let store = loop {
            match MongoStore::connect(options.clone()).await {
                Err(error) if error.is_retryable() && tries < 60 => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                connected => break Arc::new(connected?),
            }
        };
        let transactions = store.capabilities().transactions.then(|| {
            let effects = Arc::new(Effects(address.to_owned()));
            Arc::new(Transactions::new(store.clone()).with_writes(effects)) as Arc<_>
        });
        Ok(Opened {
            inbox: store,
            transactions,
        })
    }
}

struct OneServer {
    address: String,
    faults: Vec<Fault>,
    server: HarmedServer,
}

#[async_trait]
impl Site for OneServer {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn faults(&self) -> &[Fault] {
        &self.faults
    }

    async fn harm(&self, fault: Fault) -> Offered<()> {
        self.server.harm(fault).await
    }

    async fn move_clock(&self, ahead_micros: i64) -> Offered<()> {
        self.server.move_clock(ahead_micros).await
    }
}

/// A replica set, whose primary is killed.
struct Set {
    address: String,
    server: Arc<Mutex<Server>>,
}

#[async_trait]
impl Site for Set {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn faults(&self) -> &[Fault] {
        &[Fault::Killed]
    }

    async fn harm(&self, _: Fault) -> Offered<()> {
        let primary = common::primary(&self.address).await;
        common::act(&self.server, move |set| {
            let port = primary.rsplit(':').next().unwrap_or_default();
            let is_primary = |url: &String| url.contains(&format!(":{port}/"));
            let urls = set.urls();
            let node = urls.iter().position(is_primary).unwrap_or_default();
            set.kill_node(node)?;
            // Until another one has taken over.
            std::thread::sleep(Duration::from_secs(4));
            set.start_node(node)
        })
        .await
    }
}

/// A collection of the handler's own.
struct Effects(String);

#[async_trait]
impl BusinessWrites<MongoTransaction> for Effects {
    async fn write(&self, transaction: &mut MongoTransaction, note: &str) -> Result<(), BoxError> {
        let session = transaction.session()?;
        let effects = session
            .client()
            .database(DATABASE)
            .collection::<Document>("effects");
        effects
            .insert_one(doc! { "note": note })
            .session(session)
            .await?;
        Ok(())
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        let client = common::client(&self.0).await;
        let effects = client.database(DATABASE).collection::<Document>("effects");
        let mut cursor = effects.find(doc! {}).await?;
        let mut notes = Vec::new();
        while cursor.advance().await? {
            notes.push(cursor.deserialize_current()?.get_str("note")?.to_owned());
        }
        Ok(notes)
    }
}

fn main() -> ExitCode {
    let set = std::env::var("INBOX_CRASH_SERVER").is_ok_and(|name| name == "mongodb-set");
    // A worker of this program must not look for its own servers.
    let worker = std::env::var_os("INBOX_CRASH_WORKER").is_some();
    if set && !worker && test_servers::locate(Kind::MongodbSet).is_err() {
        eprintln!("crash: skipped, there is no mongod on PATH");
        return ExitCode::SUCCESS;
    }
    crash::main(&Database { set })
}
