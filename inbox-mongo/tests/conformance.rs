//! The conformance suite, over the MongoDB store.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use common::Place;
use conformance_tests::{
    AnyTransactions, BoxError, BusinessWrites, Corruption, Fixture, Harness, Mishap, Need, Offered,
    Restart, SchemaVariant, Settings, Transactions, Unable, crash::proxy::Proxy,
};
use inbox_api::{Inbox, Key, Schema as _, Store as _};
use inbox_mongo::{
    MongoStore, MongoTransaction,
    mongodb::{
        bson::{Document, doc},
        error::ErrorKind,
    },
};
use test_servers::Server;

/// How long an operation looks for a server that is away.
const AWAY: Duration = Duration::from_secs(2);

struct Database {
    replicates: bool,
}

impl Database {
    fn new() -> Self {
        let asked = std::thread::spawn(|| {
            let url = common::shared_url()?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .ok()?;
            Some(runtime.block_on(common::replicates(&url)))
        });
        Self {
            replicates: asked.join().ok().flatten().unwrap_or(false),
        }
    }
}

#[async_trait]
impl Harness for Database {
    fn name(&self) -> String {
        if self.replicates {
            "mongodb".into()
        } else {
            "mongodb (standalone)".into()
        }
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let tested = Tested::new(settings).await?;
        tested.store.create().await?;
        if self.replicates {
            // Transactions that create collections conflict with each other in a server's catalogue.
            let database = tested.place.raw().await;
            for own in ["effects", "own"] {
                let created = database.create_collection(own).await;
                created.map_err(Unable::failed)?;
            }
        }
        Ok(Box::new(tested))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let tested = Tested::new(&Settings::default()).await?;
        let command = match variant {
            SchemaVariant::Missing => return Ok(Box::new(tested)),
            SchemaVariant::Incomplete => doc! { "dropIndexes": "inbox_message", "index": "claim" },
            SchemaVariant::Newer => doc! {
                "update": "inbox_meta",
                "updates": [{ "q": { "_id": "schema" }, "u": { "$set": { "version": 4711 } } }],
            },
            SchemaVariant::Foreign => doc! {
                "insert": "inbox_message", "documents": [{ "_id": "x", "note": "not an inbox" }],
            },
            // The first version is the only one so far.
            SchemaVariant::Older => return Err(Unable::NotOffered(Need::Schema(variant))),
        };
        if matches!(variant, SchemaVariant::Incomplete | SchemaVariant::Newer) {
            tested.store.create().await?;
        }
        match tested.place.run(command).await {
            // FerretDB's `ok` of an index that was dropped is not a number.
            Err(error) if matches!(error.kind.as_ref(), ErrorKind::InvalidResponse { .. }) => {}
            outcome => drop(outcome.map_err(Unable::failed)?),
        }
        Ok(Box::new(tested))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = vec![
            Need::Schema(SchemaVariant::Older),
            Need::LargePayloads,
            Need::BatchAtomicity,
            Need::Invariants,
        ];
        needs.extend(Need::DISK);
        if !self.replicates {
            needs.extend(Mishap::ALL.map(Need::Mishap));
            needs.extend([
                Need::Transactions,
                Need::BusinessWrites,
                Need::WakeupsAcrossProcesses,
            ]);
        }
        needs
    }
}

struct Tested {
    place: Place,
    store: Arc<MongoStore>,
    /// A server of this case's own, if it is to be harmed.
    server: Option<Arc<Mutex<Server>>>,
    /// Between the store and the server, if connections are to go silent.
    proxy: Option<Proxy>,
}

impl Tested {
    async fn new(settings: &Settings) -> Offered<Self> {
        let missing = || Unable::failed("no MongoDB server");
        let mut proxy = None;
        let (mut place, server) = if settings.operation_timeout.is_some() {
            let url = common::shared_url().ok_or_else(missing)?;
            let (between, url) = common::proxied(&url).await.map_err(Unable::failed)?;
            proxy = Some(between);
            (Place::at(url), None)
        } else if settings.disrupted {
            let server = common::own_server().ok_or_else(missing)?;
            let place = Place::at(server.url().to_owned());
            (place, Some(Arc::new(Mutex::new(server))))
        } else {
            (Place::shared().ok_or_else(missing)?, None)
        };
        place.options = place
            .options
            .drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.operation_timeout {
            place.options = place.options.operation_timeout(limit);
        }
        if let Some(limit) = settings.payload_limit {
            place.options = place.options.payload_limit(limit);
        }
        let store = if settings.disrupted {
            place.connect_within(AWAY).await?
        } else {
            // Nothing is away; a machine may be slow.
            place.connect().await?
        };
        Ok(Self {
            store: Arc::new(store),
            place,
            server,
            proxy,
        })
    }

    fn server(&self, need: Need) -> Offered<&Arc<Mutex<Server>>> {
        self.server.as_ref().ok_or(Unable::NotOffered(need))
    }
}

impl Drop for Tested {
    fn drop(&mut self) {
        let store = Arc::clone(&self.store);
        let (url, database) = (self.place.url.clone(), self.place.database.clone());
        let shared = self.server.is_none() && self.proxy.is_none();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                store.close().await;
                if shared {
                    let client = common::client(&url).await;
                    let _ = client.database(&database).drop().await;
                }
            });
        }
    }
}

#[async_trait]
impl Fixture for Tested {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.store.clone()
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.place.offset.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(self.place.connect().await?))
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let change = match corruption {
            Corruption::Headers => doc! { "headers": "[1]" },
        };
        let command = doc! {
            "update": "inbox_message",
            "updates": [{
                "q": { "handler": key.handler.as_str(), "id": key.id.as_str() },
                "u": { "$set": change },
            }],
        };
        self.place.run(command).await.map_err(Unable::failed)?;
        Ok(())
    }

    async fn begin_outage(&self) -> Offered<()> {
        common::act(self.server(Need::Outage)?, Server::stop).await
    }

    async fn end_outage(&self) -> Offered<()> {
        common::act(self.server(Need::Outage)?, Server::start).await
    }

    async fn silence(&self) -> Offered<()> {
        let proxy = self.proxy.as_ref();
        proxy.ok_or(Unable::NotOffered(Need::Silence))?.silence();
        Ok(())
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        common::restart(self.server(Need::Restart)?, how).await
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let effects = Arc::new(Effects {
            url: self.place.url.clone(),
            database: self.place.database.clone(),
        });
        Ok(Arc::new(
            Transactions::new(self.store.clone()).with_writes(effects),
        ))
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A collection of the handler's own.
struct Effects {
    url: String,
    database: String,
}

#[async_trait]
impl BusinessWrites<MongoTransaction> for Effects {
    async fn write(&self, transaction: &mut MongoTransaction, note: &str) -> Result<(), BoxError> {
        let session = transaction.session()?;
        let effects = session
            .client()
            .database(&self.database)
            .collection::<Document>("effects");
        effects
            .insert_one(doc! { "note": note })
            .session(session)
            .await?;
        Ok(())
    }

    async fn mishap(&self, transaction: &mut MongoTransaction, mishap: Mishap) -> Offered<()> {
        let session = transaction.session().map_err(Unable::failed)?;
        let database = session.client().database(&self.database);
        let own = database.collection::<Document>("own");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mishap {number}");
        let done = match mishap {
            Mishap::FailedStatement => {
                let twice = vec![doc! { "_id": &name }, doc! { "_id": &name }];
                own.insert_many(twice)
                    .session(&mut *session)
                    .await
                    .map(drop)
            }
            // Another has changed the same document since the transaction began.
            Mishap::RolledBackByServer => {
                let others = common::client(&self.url).await.database(&self.database);
                others
                    .collection::<Document>("own")
                    .insert_one(doc! { "_id": &name })
                    .await
                    .map_err(Unable::failed)?;
                let change = own.update_one(doc! { "_id": &name }, doc! { "$set": { "a": 1 } });
                change.upsert(true).session(&mut *session).await.map(drop)
            }
            Mishap::Commit => session.commit_transaction().await,
            Mishap::RollBack => session.abort_transaction().await,
            // It is created by this.
            Mishap::SchemaChange => {
                let new = database.collection::<Document>(&format!("own_{number}"));
                let first = new.insert_one(doc! { "a": 1 });
                first.session(&mut *session).await.map(drop)
            }
        };
        let fails = matches!(mishap, Mishap::FailedStatement | Mishap::RolledBackByServer);
        if done.is_err() != fails {
            return Err(Unable::failed(format!("{mishap:?}: {done:?}")));
        }
        Ok(())
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        let client = common::client(&self.url).await;
        let effects = client
            .database(&self.database)
            .collection::<Document>("effects");
        let mut cursor = effects.find(doc! {}).await?;
        let mut notes = Vec::new();
        while cursor.advance().await? {
            notes.push(cursor.deserialize_current()?.get_str("note")?.to_owned());
        }
        Ok(notes)
    }
}

conformance_tests::conformance!(Database::new());
