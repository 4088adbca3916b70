//! Servers for the tests of this crate, and inboxes on them: a `mongod` where there is one, and
//! FerretDB otherwise.

use std::{
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use conformance_tests::{Offered, Unable, crash::proxy::Proxy};
use inbox_api::{ClockOffset, HandlerName, Kind, Message, MessageId, Schema as _, WorkerName};
use inbox_mongo::{
    MongoOptions, MongoStore,
    mongodb::{
        Client, Database,
        bson::{Document, doc},
        options::{Acknowledgment, ClientOptions, ReadConcern, WriteConcern},
    },
};
use test_servers::{Kind as ServerKind, Server, find, require_or_skip};

static SERVER: LazyLock<Result<Option<Mutex<Server>>, test_servers::Error>> =
    LazyLock::new(|| Ok(any_server()?.map(Mutex::new)));

static NEXT: AtomicU32 = AtomicU32::new(0);

/// MongoDB itself if it can be had, FerretDB otherwise.
fn any_server() -> Result<Option<Server>, test_servers::Error> {
    match find(ServerKind::Mongodb) {
        Ok(server) => Ok(Some(server)),
        Err(_) => require_or_skip(ServerKind::Ferretdb),
    }
}

/// The kind of the server that all tests of a program share.
pub fn kind() -> ServerKind {
    let server = SERVER.as_ref().unwrap_or_else(|error| panic!("{error}"));
    server
        .as_ref()
        .map_or(ServerKind::Ferretdb, |server| lock(server).kind())
}

/// The URL of the server that all tests of a program share; `None` when there is none, which has
/// been reported.
pub fn shared_url() -> Option<String> {
    let server = SERVER.as_ref().unwrap_or_else(|error| panic!("{error}"));
    let server = server.as_ref()?;
    Some(lock(server).url().to_owned())
}

/// A server of the test's own, to be harmed.
pub fn own_server() -> Option<Server> {
    let server = any_server().unwrap_or_else(|error| panic!("{error}"));
    server.filter(|server| !server.is_shared())
}

/// A URL that names every member of a replica set, so that no one of them has to be there.
pub fn seeds(set: &Server) -> String {
    let host = |url: &String| {
        let rest = url.split("://").nth(1).unwrap_or_default();
        rest.split('/').next().unwrap_or_default().to_owned()
    };
    let hosts: Vec<String> = set.urls().iter().map(host).collect();
    let settings = set.url().rsplit('/').next().unwrap_or_default();
    format!("mongodb://{}/{settings}", hosts.join(","))
}

/// Does something to a server of the test's own, which may take a while.
pub async fn act(
    server: &Arc<Mutex<Server>>,
    act: impl FnOnce(&mut Server) -> Result<(), test_servers::Error> + Send + 'static,
) -> Offered<()> {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || act(&mut lock(&server)))
        .await
        .map_err(Unable::failed)?
        .map_err(Unable::failed)
}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether transactions and change streams can be tested there.
pub async fn replicates(url: &str) -> bool {
    let client = client(url).await;
    // `hello` came with 4.4.2.
    let hello = client
        .database("admin")
        .run_command(doc! { "isMaster": 1 })
        .await
        .unwrap();
    hello.contains_key("setName") || hello.get_str("msg").is_ok()
}

/// A URL with settings more.
pub fn with(url: &str, settings: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{settings}")
}

/// The host and port of the primary of the server that `url` names, or of that server where there are no
/// replica sets.
pub async fn primary(url: &str) -> String {
    let answer = client(url)
        .await
        .database("admin")
        .run_command(doc! { "isMaster": 1 })
        .await
        .unwrap();
    let named = url.split("://").nth(1).unwrap_or_default();
    let named = named.split(['/', '?']).next().unwrap_or_default();
    answer.get_str("primary").unwrap_or(named).to_owned()
}

/// A proxy in front of the primary of the server that `url` names, and a URL that goes through it.
pub async fn proxied(url: &str) -> std::io::Result<(Proxy, String)> {
    let host = primary(url).await;
    let mut servers = tokio::net::lookup_host(host).await?;
    let nowhere = || std::io::Error::other("a host without an address");
    let proxy = Proxy::start(servers.next().ok_or_else(nowhere)?).await?;
    // A client that looks for the other members would find the way around the proxy.
    let url = format!("mongodb://{}/?directConnection=true", proxy.address());
    Ok((proxy, url))
}

pub async fn client(url: &str) -> Client {
    let mut options = ClientOptions::parse(url).await.unwrap();
    options.server_selection_timeout = Some(Duration::from_secs(10));
    // The store reads what a majority has, and so do the tests.
    options.write_concern = Some(WriteConcern::builder().w(Acknowledgment::Majority).build());
    options.read_concern = Some(ReadConcern::majority());
    Client::with_options(options).unwrap()
}

/// An inbox in its own database.
pub struct TestInbox {
    pub url: String,
    pub database: String,
    pub options: MongoOptions,
    pub offset: ClockOffset,
}

impl TestInbox {
    pub fn at(url: String) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Of one process, and of one run: a server may be shared by several programs.
        let database = format!("test_{}_{number}", std::process::id());
        let offset = ClockOffset::default();
        // A machine may be slow.
        let times = "serverSelectionTimeoutMS=30000&connectTimeoutMS=30000";
        Self {
            options: MongoOptions::from_url(&with(&url, times))
                .unwrap()
                .database(&database)
                .clock_offset(offset.clone()),
            url,
            database,
            offset,
        }
    }

    /// On the shared server.
    pub fn shared() -> Option<Self> {
        shared_url().map(Self::at)
    }

    pub async fn connect(&self) -> inbox_api::Result<MongoStore> {
        MongoStore::connect(self.options.clone()).await
    }

    /// Set up.
    pub async fn store(&self) -> Arc<MongoStore> {
        let store = self.connect().await.unwrap();
        store.create().await.unwrap();
        Arc::new(store)
    }

    pub async fn raw(&self) -> Database {
        client(&self.url).await.database(&self.database)
    }

    /// A command; one that writes is to be confirmed by a majority.
    pub async fn run(&self, command: Document) -> inbox_mongo::mongodb::error::Result<Document> {
        let mut command = command;
        let name = command.keys().next().cloned().unwrap_or_default();
        if ["insert", "update", "delete"].contains(&name.as_str()) {
            command.insert("writeConcern", doc! { "w": "majority" });
        }
        self.raw().await.run_command(command).await
    }
}

/// The roles that the documentation shows, as in a database of this name.
pub fn documented_roles(database: &str) -> Vec<Document> {
    include_str!("../../SETUP.md")
        .replace("\"shop\"", &format!("\"{database}\""))
        .split("db.createRole(")
        .skip(1)
        .map(|role| {
            let (role, _) = role.split_once(");").unwrap();
            serde_json::from_str(role).unwrap()
        })
        .collect()
}

pub fn handler() -> HandlerName {
    HandlerName::new("orders").unwrap()
}

pub fn worker() -> WorkerName {
    WorkerName::new("worker").unwrap()
}

pub fn message(id: &str) -> Message {
    Message::new(
        handler(),
        MessageId::new(id).unwrap(),
        Kind::new("order.placed").unwrap(),
        "payload",
    )
}
