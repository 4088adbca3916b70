//! The harness of the [conformance suite](conformance_tests) for this store.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, BoxError, BusinessWrites, Corruption, Fixture, Harness, Mishap, Need, Offered,
    OwnServer, SchemaVariant, ServerControl, Settings, StartServer, Transactions, Unable,
    crash::proxy::Proxy,
};
use inbox_api::{
    ClockOffset, Error, ErrorKind, Inbox, InboxName, Key, Result, Schema as _, Store as _,
};
use mongodb::{
    Database,
    bson::{Bson, Document, doc},
    error::ErrorKind as Driver,
    options::{ConnectionString, DatabaseOptions, HostInfo, ReadConcern, ServerAddress, Tls},
};

use crate::{
    connection::connect,
    error::before,
    layout::{create_indexes, create_messages, messages, meta},
    options::{DEFAULT_DATABASE, MongoOptions},
    rows::identifier,
    sessions::{write_concern, write_concern_document},
    store::MongoStore,
    transactional::MongoTransaction,
};

/// Numbers the databases of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// What an inbox of this version has kept: the commands that make it, one in a line.
const KEPT: &str = include_str!("../fixtures/1/inbox.jsonl");
const KEPT_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/1/inbox.jsonl");

/// How long an operation looks for a server that a case has taken away.
const AWAY: Duration = Duration::from_secs(2);

/// How long setting up may take in a case with a short limit.
const PATIENCE: Duration = Duration::from_secs(30);

/// Every case gets its own database on the server of the options, which are those of a URL. Nothing
/// else there is touched.
#[derive(Debug)]
pub struct MongoHarness {
    options: MongoOptions,
    replicates: bool,
    servers: Option<StartServer>,
    left: Arc<Left>,
}

/// The databases that are yet to be dropped, by name.
#[derive(Debug, Default)]
struct Left(Mutex<BTreeMap<String, MongoOptions>>);

impl Left {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, MongoOptions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn drop_database(&self, name: &str, options: &MongoOptions) -> Result<()> {
        let database = raw_database(options).await?;
        database.drop().await.map_err(before)?;
        database.client().clone().shutdown().immediate(true).await;
        self.lock().remove(name);
        Ok(())
    }
}

/// The database of these options, past the store, by another client. Writes are confirmed by a
/// majority, and reads see what a majority has.
async fn raw_database(options: &MongoOptions) -> Result<Database> {
    let client = connect(options).await?;
    let concerns = DatabaseOptions::builder()
        .read_concern(ReadConcern::majority())
        .write_concern(write_concern())
        .build();
    let name = options.database.as_deref().unwrap_or(DEFAULT_DATABASE);
    Ok(client.database_with_options(name, concerns))
}

/// What the connected server is: the address of its primary, if it names one, and whether it has
/// transactions and change streams.
async fn ask(options: &MongoOptions) -> Result<(Option<String>, bool)> {
    let admin = raw_database(options).await?.client().database("admin");
    // `hello` came with 4.4.2.
    let hello = admin.run_command(doc! { "isMaster": 1 }).await;
    let hello = hello.map_err(before)?;
    let replicates = hello.contains_key("setName") || hello.get_str("msg").is_ok();
    Ok((hello.get_str("primary").ok().map(str::to_owned), replicates))
}

impl MongoHarness {
    /// Cases on the server of this URL, with its settings, but for the database and the inbox's name.
    ///
    /// # Errors
    /// What a URL or connecting is refused for.
    pub async fn new(url: &str) -> Result<Self> {
        let options = MongoOptions::from_url(url)?;
        // Says what is wrong with the settings of the connection, if anything.
        let store = MongoStore::connect(options.clone()).await?;
        let replicates = store.capabilities().transactions;
        store.close().await;
        Ok(Self {
            options: options.inbox_name(InboxName::default()),
            replicates,
            servers: None,
            left: Arc::default(),
        })
    }

    /// As [`new`](Self::new), for a server that nothing is known of yet.
    ///
    /// # Errors
    /// As those of `new`, and what setting up is refused for: one inbox is made, and dropped again.
    pub async fn at(url: &str) -> Result<Self> {
        let harness = Self::new(url).await?;
        let inbox = harness.make(&Settings::default(), None).await?;
        let created = inbox.store.create().await;
        let dropped = harness
            .left
            .drop_database(inbox.name(), &inbox.direct)
            .await;
        created.and(dropped)?;
        Ok(harness)
    }

    /// With servers for the cases that harm theirs.
    #[must_use]
    pub fn servers(mut self, servers: StartServer) -> Self {
        self.servers = Some(servers);
        self
    }

    async fn make(&self, settings: &Settings, own: Option<OwnServer>) -> Result<TestInbox> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (process, random) = (std::process::id(), fastrand::u32(..));
        let name = format!("inbox_conformance_{process}_{random:08x}_{number}");
        let mut direct = self.options.clone().database(&name);
        if let Some(own) = &own {
            direct.connection = MongoOptions::from_url(&own.url)?.connection;
            if let Some(connection) = &mut direct.connection {
                connection.server_selection_timeout = Some(AWAY);
                connection.connect_timeout = Some(AWAY);
            }
        } else {
            self.left.lock().insert(name, direct.clone());
        }
        let offset = ClockOffset::default();
        let mut options = direct
            .clone()
            .clock_offset(offset.clone())
            .drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        let mut proxy = None;
        if let Some(limit) = settings.operation_timeout {
            options = options.operation_timeout(limit);
            if self.can_be_silenced() {
                proxy = Some(put_proxy_before(&mut options).await?);
            }
        }
        Ok(TestInbox {
            store: Arc::new(MongoStore::connect(options.clone()).await?),
            options,
            direct,
            offset,
            own,
            proxy,
            left: Arc::clone(&self.left),
        })
    }

    /// TLS asks who is there.
    fn can_be_silenced(&self) -> bool {
        let connection = self.options.connection.as_ref();
        !connection.is_some_and(|connection| matches!(connection.tls, Some(Tls::Enabled(_))))
    }
}

/// Makes the options lead to the primary through a proxy, and to no other member.
async fn put_proxy_before(options: &mut MongoOptions) -> Result<Proxy> {
    let unable = |error| {
        Error::new(
            ErrorKind::Unavailable,
            "no proxy can be put before the server",
        )
        .with_source(error)
    };
    let nowhere = || Error::new(ErrorKind::Invalid, "the server has no network address");
    let (primary, _) = ask(options).await?;
    let connection: &mut ConnectionString = options.connection.as_mut().ok_or_else(nowhere)?;
    let named = match &connection.host_info {
        HostInfo::HostIdentifiers(hosts) => hosts.first().map(ToString::to_string),
        _ => None,
    };
    let host = primary.or(named).ok_or_else(nowhere)?;
    let mut addresses = tokio::net::lookup_host(host).await.map_err(unable)?;
    let address = addresses.next().ok_or_else(nowhere)?;
    let proxy = Proxy::start(address).await.map_err(unable)?;
    let address = ServerAddress::parse(proxy.address().to_string()).map_err(before)?;
    connection.host_info = HostInfo::HostIdentifiers(vec![address]);
    connection.direct_connection = Some(true);
    connection.replica_set = None;
    Ok(proxy)
}

#[async_trait]
impl Harness for MongoHarness {
    fn name(&self) -> String {
        // Otherwise the report does not say why transactions were not checked.
        if self.replicates {
            "mongodb".into()
        } else {
            "mongodb (a standalone server: no transactions)".into()
        }
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let own = match &self.servers {
            Some(servers) if settings.disrupted => Some(servers.start().await?),
            _ => None,
        };
        let inbox = self.make(settings, own).await?;
        if settings.operation_timeout.is_some() {
            let options = inbox.options.clone().operation_timeout(PATIENCE);
            let patient = MongoStore::connect(options).await?;
            let created = patient.create().await;
            patient.close().await;
            created?;
        } else {
            inbox.store.create().await?;
        }
        if self.replicates {
            // Transactions that create collections conflict with each other in a server's catalogue.
            let database = raw_database(&inbox.direct).await?;
            for own in ["effects", "own"] {
                let created = database.create_collection(own).await;
                created.map_err(Unable::failed)?;
            }
        }
        Ok(Box::new(inbox))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let mark = |change: Document| {
            doc! {
                "update": "inbox_meta",
                "updates": [{ "q": { "_id": "schema" }, "u": { "$set": change } }],
                "writeConcern": { "w": "majority" },
            }
        };
        let command = match variant {
            SchemaVariant::Missing | SchemaVariant::Kept => None,
            SchemaVariant::Incomplete => {
                Some(doc! { "dropIndexes": "inbox_message", "index": "claim" })
            }
            SchemaVariant::Newer => Some(mark(doc! { "version": 4711, "worksFrom": 4711 })),
            SchemaVariant::Suitable => Some(mark(doc! { "version": 4711 })),
            SchemaVariant::Foreign => Some(doc! {
                "insert": "inbox_message", "documents": [{ "_id": "x", "note": "not an inbox" }],
                "writeConcern": { "w": "majority" },
            }),
            // The first version is the only one so far.
            SchemaVariant::Older => return Err(Unable::NotOffered(Need::Schema(variant))),
        };
        let inbox = self.make(&Settings::default(), None).await?;
        if variant == SchemaVariant::Kept {
            inbox.load(KEPT).await.map_err(Unable::failed)?;
        }
        use SchemaVariant::{Foreign, Kept, Missing};
        if !matches!(variant, Missing | Foreign | Kept) {
            inbox.store.create().await?;
        }
        if let Some(command) = command {
            match raw_database(&inbox.direct)
                .await?
                .run_command(command)
                .await
            {
                // FerretDB's `ok` of an index that was dropped is not a number.
                Err(error) if matches!(error.kind.as_ref(), Driver::InvalidResponse { .. }) => {}
                outcome => drop(outcome.map_err(Unable::failed)?),
            }
        }
        Ok(Box::new(inbox))
    }

    async fn clean_up(&self) -> Offered<()> {
        let all = self.left.lock().clone();
        let mut left = Vec::new();
        for (name, options) in all {
            if let Err(error) = self.left.drop_database(&name, &options).await {
                left.push(format!("{name} ({error})"));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let left = left.join(", ");
        Err(Unable::failed(format!("databases are left behind: {left}")))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = vec![
            Need::Runs,
            Need::Schema(SchemaVariant::Older),
            Need::LargePayloads,
            Need::BatchAtomicity,
            Need::Invariants,
        ];
        needs.extend(Need::DISK);
        if self.servers.is_none() {
            needs.extend([Need::Outage, Need::Restart]);
        }
        if !self.can_be_silenced() {
            needs.push(Need::Silence);
        }
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

struct TestInbox {
    store: Arc<MongoStore>,
    options: MongoOptions,
    /// To the server itself, past a proxy.
    direct: MongoOptions,
    offset: ClockOffset,
    own: Option<OwnServer>,
    /// Between the store and the server, if connections are to go silent.
    proxy: Option<Proxy>,
    left: Arc<Left>,
}

impl TestInbox {
    fn name(&self) -> &str {
        self.direct.database.as_deref().unwrap_or(DEFAULT_DATABASE)
    }

    /// All of the inbox as commands, one in a line.
    async fn dump(&self) -> Result<String, BoxError> {
        let database = raw_database(&self.direct).await?;
        let inbox = InboxName::default();
        let mut commands = vec![create_messages(&inbox), create_indexes(&inbox)];
        for name in [messages(&inbox), meta(&inbox)] {
            let mut documents = database.collection::<Document>(&name).find(doc! {}).await?;
            while documents.advance().await? {
                let document = documents.deserialize_current()?;
                commands.push(doc! { "insert": &name, "documents": [document] });
            }
        }
        let lines = commands.into_iter().map(|command| {
            let command = with_types(Bson::from(command));
            serde_json::to_string(&command).map(|line| line + "\n")
        });
        Ok(lines.collect::<serde_json::Result<_>>()?)
    }

    async fn load(&self, commands: &str) -> Result<(), BoxError> {
        let database = raw_database(&self.direct).await?;
        for line in commands.lines() {
            let mut command: Document = serde_json::from_str(line)?;
            command.insert("writeConcern", write_concern_document());
            database.run_command(command).await?;
        }
        Ok(())
    }
}

/// Numbers and bytes as documents that name their types, which JSON does not tell apart.
fn with_types(value: Bson) -> Bson {
    match value {
        Bson::Int64(number) => doc! { "$numberLong": number.to_string() }.into(),
        // Shown as `Binary(0x0, BASE64)`.
        Bson::Binary(bytes) => {
            let shown = bytes.to_string();
            let base64 = shown.rsplit(' ').next().unwrap_or_default();
            let base64 = base64.trim_end_matches(')');
            doc! { "$binary": { "base64": base64, "subType": "00" } }.into()
        }
        Bson::Int32(number) => doc! { "$numberInt": number.to_string() }.into(),
        Bson::Array(values) => values
            .into_iter()
            .map(with_types)
            .collect::<Vec<_>>()
            .into(),
        Bson::Document(document) => {
            let typed = |(name, value)| (name, with_types(value));
            Bson::Document(document.into_iter().map(typed).collect())
        }
        other => other,
    }
}

impl Drop for TestInbox {
    fn drop(&mut self) {
        let (store, left) = (Arc::clone(&self.store), Arc::clone(&self.left));
        let (name, options) = (self.name().to_owned(), self.direct.clone());
        let is_own = self.own.is_some();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                store.close().await;
                if !is_own {
                    // What it does not drop is left for `clean_up`.
                    let _ = left.drop_database(&name, &options).await;
                }
            });
        }
    }
}

#[async_trait]
impl Fixture for TestInbox {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::<MongoStore>::clone(&self.store)
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.offset.advance(by);
        Ok(())
    }

    async fn keep(&self) -> Offered<()> {
        let text = self.dump().await.map_err(Unable::Failed)?;
        std::fs::write(KEPT_FILE, text)?;
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(MongoStore::connect(self.options.clone()).await?))
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let change = match corruption {
            Corruption::Headers => doc! { "$set": { "headers": "[1]" } },
        };
        let database = raw_database(&self.direct).await?;
        let messages = database.collection::<Document>("inbox_message");
        let changed = messages.update_one(doc! { "_id": identifier(key) }, change);
        changed.await.map(drop).map_err(Unable::failed)
    }

    async fn silence(&self) -> Offered<()> {
        let proxy = self.proxy.as_ref();
        proxy.ok_or(Unable::NotOffered(Need::Silence))?.silence();
        Ok(())
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let effects = Arc::new(Effects(self.direct.clone()));
        let transactions = Transactions::new(Arc::clone(&self.store)).with_writes(effects);
        Ok(Arc::new(transactions))
    }

    fn server(&self) -> &dyn ServerControl {
        self.own.as_ref().map_or(&(), |own| &*own.control)
    }
}

/// Collections of the handler's own, in the database of these options.
struct Effects(MongoOptions);

impl Effects {
    fn name(&self) -> &str {
        self.0.database.as_deref().unwrap_or(DEFAULT_DATABASE)
    }
}

#[async_trait]
impl BusinessWrites<MongoTransaction> for Effects {
    async fn write(&self, transaction: &mut MongoTransaction, note: &str) -> Result<(), BoxError> {
        let session = transaction.session()?;
        let effects = session
            .client()
            .database(self.name())
            .collection::<Document>("effects");
        effects
            .insert_one(doc! { "note": note })
            .session(session)
            .await?;
        Ok(())
    }

    async fn mishap(&self, transaction: &mut MongoTransaction, mishap: Mishap) -> Offered<()> {
        let session = transaction.session().map_err(Unable::failed)?;
        let database = session.client().database(self.name());
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
                let others = raw_database(&self.0).await.map_err(Unable::failed)?;
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
        let database = raw_database(&self.0).await?;
        let effects = database.collection::<Document>("effects");
        let mut cursor = effects.find(doc! {}).await?;
        let mut notes = Vec::new();
        while cursor.advance().await? {
            notes.push(cursor.deserialize_current()?.get_str("note")?.to_owned());
        }
        Ok(notes)
    }
}
