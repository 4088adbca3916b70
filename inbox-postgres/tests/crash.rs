//! Worker processes on one server, killed again and again, and the server with them: the crash
//! part of the conformance suite. On PostgreSQL 15; `INBOX_CRASH_SERVER=postgres-18` makes it 18.
//!
//! `cargo test -p inbox-postgres --test crash -- --kills 200 --operations 100000` is the full run.

use std::{process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use conformance_tests::{
    BoxError, Offered, Transactions,
    crash::{self, Fault, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_postgres::{
    PostgresOptions, PostgresStore,
    conformance::{Effects, TestSchema},
};
use test_servers::{HarmedServer, Kind, find_own};

/// How long an operation may take, so that connections that have gone silent are noticed.
const PATIENCE: Duration = Duration::from_secs(5);

struct Database(Kind);

#[async_trait]
impl Target for Database {
    fn name(&self) -> String {
        self.0.name().into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let kind = self.0;
        // What is locked by a transaction whose connection went silent.
        let limit = ["-c", "idle_in_transaction_session_timeout=10s"];
        let server = tokio::task::spawn_blocking(move || find_own(kind, &limit)).await??;
        let server = HarmedServer::behind_proxy(server).await?;
        let address = format!("{}?schema=crash", server.url());
        let options = PostgresOptions::from_url(&address)?;
        let store = PostgresStore::connect(options.clone()).await?;
        store.create().await?;
        store.close().await;
        Effects::of(Arc::new(TestSchema::of(&options)))
            .create()
            .await?;
        Ok(Box::new(Harmed { address, server }))
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
        &Fault::ALL
    }

    async fn harm(&self, fault: Fault) -> Offered<()> {
        self.server.harm(fault).await
    }
}

fn main() -> ExitCode {
    let kind = match std::env::var("INBOX_CRASH_SERVER").as_deref() {
        Ok("postgres-18") => Kind::Postgres18,
        _ => Kind::Postgres,
    };
    crash::main(&Database(kind))
}
