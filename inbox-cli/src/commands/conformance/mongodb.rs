//! Cases on MongoDB.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, Ordering},
};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, Fixture, Harness, Need, Offered, SchemaVariant, Settings, Transactions, Unable,
};
use inbox::{ClockOffset, Inbox, InboxName, Schema as _, Store as _};
use inbox_mongo::{
    MongoOptions, MongoStore,
    mongodb::{Client, options::ClientOptions},
};

use super::{Rig, needs_raw_access};

/// For how long a server is looked for, unless the URL says otherwise.
const AWAY: Duration = Duration::from_secs(5);

/// Every case gets its own database on the server that the URL names.
pub(super) struct Mongo {
    settings: ClientOptions,
    client: Client,
    options: MongoOptions,
    prefix: String,
    next: AtomicU32,
    databases: Arc<Databases>,
    transactions: bool,
}

/// The databases of a run. A fixture cannot wait for the server when it is dropped, so it only
/// says that it has done with its own, and the next case drops it.
#[derive(Default)]
struct Databases {
    all: Mutex<Vec<String>>,
    done_with: Mutex<Vec<String>>,
}

fn lock(names: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mongo {
    /// Tries everything that each case needs, so that what is missing is said once.
    pub(super) async fn new(url: &str) -> inbox::Result<Self> {
        let (connection, options) = MongoOptions::from_url(url)?;
        // It says what is wrong with the settings of the connection, if anything.
        let tried = MongoStore::connect(connection.clone(), options.clone()).await?;
        tried.close().await;
        let unusable = |_| {
            inbox::Error::new(
                inbox::ErrorKind::Unavailable,
                "connect",
                "the connection cannot be made from this URL",
            )
        };
        let mut settings = ClientOptions::parse(connection).await.map_err(unusable)?;
        settings.server_selection_timeout.get_or_insert(AWAY);
        settings.connect_timeout.get_or_insert(AWAY);
        let client = Client::with_options(settings.clone()).map_err(unusable)?;
        let (process, random) = (std::process::id(), fastrand::u32(..));
        let mut mongo = Self {
            settings,
            client,
            options: options.inbox_name(InboxName::default()),
            prefix: format!("inbox_conformance_{process}_{random:08x}"),
            next: AtomicU32::new(0),
            databases: Arc::default(),
            transactions: false,
        };
        let options = mongo.fresh_options().1;
        let store = MongoStore::with_client(mongo.client.clone(), options).await?;
        let created = store.create().await;
        mongo.transactions = store.capabilities().transactions;
        mongo.clean_up().await;
        created?;
        Ok(mongo)
    }

    fn fresh_options(&self) -> (String, MongoOptions) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}_{number}", self.prefix);
        lock(&self.databases.all).push(name.clone());
        let options = self.options.clone().database(&name);
        (name, options)
    }

    async fn place(&self, settings: &Settings) -> Offered<OneDatabase> {
        let done_with = std::mem::take(&mut *lock(&self.databases.done_with));
        for name in done_with {
            if self.client.database(&name).drop().await.is_ok() {
                lock(&self.databases.all).retain(|other| *other != name);
            }
        }
        let (name, options) = self.fresh_options();
        let offset = ClockOffset::default();
        let mut options = options
            .clock_offset(offset.clone())
            .drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        let store = MongoStore::with_client(self.client.clone(), options.clone()).await?;
        Ok(OneDatabase {
            store: Arc::new(store),
            client: self.client.clone(),
            options,
            offset,
            name,
            databases: Arc::clone(&self.databases),
        })
    }
}

#[async_trait]
impl Rig for Mongo {
    async fn clean_up(&self) {
        let all = std::mem::take(&mut *lock(&self.databases.all));
        // The cases' connections may have ended with their runtime.
        let client = Client::with_options(self.settings.clone());
        for name in all {
            let dropped = match &client {
                Ok(client) => client.database(&name).drop().await.is_ok(),
                Err(_) => false,
            };
            if !dropped {
                crate::output::note(format_args!(
                    "the database {name} is left behind: it could not be dropped"
                ));
            }
        }
    }
}

#[async_trait]
impl Harness for Mongo {
    fn name(&self) -> String {
        // Otherwise the report does not say why transactions were not checked.
        if self.transactions {
            "mongodb".into()
        } else {
            "mongodb (a standalone server: no transactions)".into()
        }
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let place = self.place(settings).await?;
        place.store.create().await?;
        Ok(Box::new(place))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        match variant {
            SchemaVariant::Missing => Ok(Box::new(self.place(&Settings::default()).await?)),
            _ => Err(Unable::NotOffered(Need::Schema(variant))),
        }
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = needs_raw_access();
        needs.extend([Need::LargePayloads, Need::BatchAtomicity]);
        if !self.transactions {
            needs.extend([Need::Transactions, Need::WakeupsAcrossProcesses]);
        }
        needs
    }
}

struct OneDatabase {
    store: Arc<MongoStore>,
    client: Client,
    options: MongoOptions,
    offset: ClockOffset,
    name: String,
    databases: Arc<Databases>,
}

#[async_trait]
impl Fixture for OneDatabase {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::<MongoStore>::clone(&self.store)
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.offset.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        let store = MongoStore::with_client(self.client.clone(), self.options.clone()).await?;
        Ok(Arc::new(store))
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        Ok(Arc::new(Transactions::new(Arc::clone(&self.store))))
    }
}

impl Drop for OneDatabase {
    fn drop(&mut self) {
        lock(&self.databases.done_with).push(self.name.clone());
    }
}
