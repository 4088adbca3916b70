//! Worker processes on one server, killed again and again, and the server with them: the crash
//! part of the conformance suite. On PostgreSQL 15; `INBOX_CRASH_SERVER=postgres-18` makes it 18.
//!
//! `cargo test -p inbox-postgres --test crash -- --kills 200 --operations 100000` is the full run.

mod common;

use std::{
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use common::Place;
use conformance_tests::{
    BoxError, BusinessWrites, Offered, Restart, Transactions,
    crash::{self, Opened, Site, Target},
};
use inbox_api::{Schema as _, Store as _};
use inbox_postgres::{PostgresOptions, PostgresStore};
use sqlx::{AssertSqlSafe, Connection as _, Postgres};
use test_servers::{Kind, Server, require_or_skip};

struct Database(Kind);

#[async_trait]
impl Target for Database {
    fn name(&self) -> String {
        self.0.name().into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let kind = self.0;
        let server = tokio::task::spawn_blocking(move || require_or_skip(kind)).await??;
        let server = server
            .filter(|server| !server.is_shared())
            .ok_or("no PostgreSQL server to harm")?;
        let place = Place::at(server.url().to_owned());
        let store = place.connect().await?;
        store.create().await?;
        store.close().await;
        place
            .run("CREATE TABLE {schema}.effects (note text NOT NULL)")
            .await?;
        Ok(Box::new(Harmed {
            address: format!("{}?schema={}", place.url, place.schema),
            server: Arc::new(Mutex::new(server)),
        }))
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        let (connection, options) = PostgresOptions::from_url(address)?;
        let effects = Arc::new(Effects(address.to_owned()));
        // The server may just be restarting.
        let mut tries = 0;
        let store = loop {
            match PostgresStore::connect(connection.clone(), options.clone()).await {
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
    server: Arc<Mutex<Server>>,
}

#[async_trait]
impl Site for Harmed {
    fn address(&self) -> String {
        self.address.clone()
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        common::restart(&self.server, how).await
    }
}

/// A table of the handler's own.
struct Effects(String);

impl Effects {
    fn table(&self) -> String {
        let schema = self.0.rsplit_once("schema=").unwrap_or_default().1;
        format!("\"{schema}\".effects")
    }
}

#[async_trait]
impl BusinessWrites<sqlx::Transaction<'static, Postgres>> for Effects {
    async fn write(
        &self,
        transaction: &mut sqlx::Transaction<'static, Postgres>,
        note: &str,
    ) -> Result<(), BoxError> {
        let sql = format!("INSERT INTO {} (note) VALUES ($1)", self.table());
        sqlx::query(AssertSqlSafe(sql))
            .bind(note)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        let (url, _) = self.0.split_once('?').unwrap_or((&self.0, ""));
        let mut connection = common::connection(url).await?;
        let sql = format!("SELECT note FROM {}", self.table());
        let notes = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(&mut connection)
            .await?;
        connection.close().await?;
        Ok(notes)
    }
}

fn main() -> ExitCode {
    let kind = match std::env::var("INBOX_CRASH_SERVER").as_deref() {
        Ok("postgres-18") => Kind::Postgres18,
        _ => Kind::Postgres,
    };
    crash::main(&Database(kind))
}
