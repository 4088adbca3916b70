//! Worker processes on one server, killed again and again, and the server with them: the crash
//! part of the conformance suite.
//!
//! `cargo test -p inbox-mongo --test crash -- --kills 200 --operations 100000` is the full run.

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
use inbox_mongo::{
    MongoOptions, MongoStore, MongoTransaction,
    mongodb::bson::{Document, doc},
};
use test_servers::Server;

/// The database of the one inbox on each server.
const DATABASE: &str = "inbox";

struct Database;

#[async_trait]
impl Target for Database {
    fn name(&self) -> String {
        "mongodb".into()
    }

    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError> {
        let server = tokio::task::spawn_blocking(common::own_server)
            .await?
            .ok_or("no MongoDB server to harm")?;
        let mut place = Place::at(server.url().to_owned());
        place.options = place.options.database(DATABASE);
        let store = place.connect().await?;
        store.create().await?;
        store.close().await;
        Ok(Box::new(Harmed {
            address: place.url,
            server: Arc::new(Mutex::new(server)),
        }))
    }

    async fn open(&self, address: &str) -> Result<Opened, BoxError> {
        let separator = if address.contains('?') { '&' } else { '?' };
        let url = format!("{address}{separator}serverSelectionTimeoutMS=2000");
        let options = MongoOptions::new().database(DATABASE);
        // The server may just be restarting.
        let mut tries = 0;
        let store = loop {
            let (connection, _) = MongoOptions::from_url(&url)?;
            match MongoStore::connect(connection, options.clone()).await {
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
    crash::main(&Database)
}
