//! Runs the built command in its own folder.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, PipeWriter, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use test_servers::{Error, Kind, Server, find, require_or_skip};

/// The servers that an inbox in MySQL may be on.
pub(crate) const MYSQL_KINDS: [Kind; 2] = [Kind::Mariadb, Kind::Mysql];

/// The servers that an inbox in Redis may be on.
pub(crate) const REDIS_KINDS: [Kind; 2] = [Kind::Redis, Kind::RedisCluster];

pub(crate) const WEBHOOKS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/data/github-webhooks.ndjson");

static POSTGRES: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::Postgres));

/// MongoDB itself where there is one, FerretDB otherwise.
static MONGODB: LazyLock<Result<Option<Server>, Error>> = LazyLock::new(|| {
    find(Kind::Mongodb).map_or_else(
        |_| require_or_skip(Kind::Ferretdb),
        |server| Ok(Some(server)),
    )
});

static MARIADB: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::Mariadb));
static MYSQL: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::Mysql));

static REDIS: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::Redis));
static REDIS_CLUSTER: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::RedisCluster));

/// A folder in which the command runs, and an inbox.
pub(crate) struct Place {
    folder: TempDir,
    /// The inbox when it is not the default one, a file in the folder.
    store: Option<String>,
    /// Whether that is on a server that outlives the tests, so that it has to be removed.
    is_shared: bool,
}

/// Runs a test on each kind of store that is in this build and can be found here. Standard error says
/// on which.
pub(crate) fn on_every_store(test: impl Fn(&Place)) {
    eprintln!("on SQLite");
    test(&Place::new());
    if cfg!(feature = "postgres")
        && let Some(place) = Place::on_postgres()
    {
        eprintln!("on PostgreSQL");
        test(&place);
    }
    if cfg!(feature = "mysql") {
        for kind in MYSQL_KINDS {
            if let Some(place) = Place::on_mysql(kind) {
                eprintln!("on {kind}");
                test(&place);
            }
        }
    }
    if cfg!(feature = "mongo")
        && let Some(place) = Place::on_mongodb()
    {
        eprintln!("on MongoDB, or what speaks its protocol");
        test(&place);
    }
    if cfg!(feature = "redis") {
        for kind in REDIS_KINDS {
            if let Some(place) = Place::on_redis(kind) {
                eprintln!("on {kind}");
                test(&place);
            }
        }
    }
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Asserts that standard output contains `text`.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.stdout.contains(text), "no {text:?} in {self:#?}");
        self
    }

    /// Asserts that standard error contains `text`.
    #[track_caller]
    pub(crate) fn complains(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "no {text:?} in {self:#?}");
        self
    }

    /// Standard output as JSON lines.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            store: None,
            is_shared: false,
        }
    }

    /// With the inbox in its own schema on a server that the tests of a program share;
    /// `None` when there is none, which has been reported.
    pub(crate) fn on_postgres() -> Option<Self> {
        let server = POSTGRES.as_ref().unwrap_or_else(|error| panic!("{error}"));
        let server = server.as_ref()?;
        let mut place = Self::at(server.url());
        place.is_shared = server.is_shared();
        Some(place)
    }

    /// With its own inbox in the database of such a server, or `None`, as above.
    pub(crate) fn on_mysql(kind: Kind) -> Option<Self> {
        let server = match kind {
            Kind::Mysql => &MYSQL,
            _ => &MARIADB,
        };
        let server = server.as_ref().unwrap_or_else(|error| panic!("{error}"));
        let server = server.as_ref()?;
        Some(Self {
            folder: tempfile::tempdir().unwrap(),
            store: Some(format!("{}?inbox=test_{}", server.url(), unique())),
            is_shared: server.is_shared(),
        })
    }

    /// With the inbox in its own database on such a server, or `None`, as above.
    pub(crate) fn on_mongodb() -> Option<Self> {
        let server = MONGODB.as_ref().unwrap_or_else(|error| panic!("{error}"));
        let server = server.as_ref()?;
        let (address, settings) = server.url().split_once('?').unwrap_or((server.url(), ""));
        let address = address.trim_end_matches('/');
        let database = format!("test_command_{}", unique());
        Some(Self {
            folder: tempfile::tempdir().unwrap(),
            store: Some(format!("{address}/{database}?inbox=test&{settings}")),
            is_shared: server.is_shared(),
        })
    }

    /// With its own inbox on such a server or cluster, or `None`, as above.
    pub(crate) fn on_redis(kind: Kind) -> Option<Self> {
        let server = match kind {
            Kind::RedisCluster => &REDIS_CLUSTER,
            _ => &REDIS,
        };
        let server = server.as_ref().unwrap_or_else(|error| panic!("{error}"));
        let server = server.as_ref()?;
        let url = match kind {
            Kind::RedisCluster => server.url().replacen("redis:", "redis+cluster:", 1),
            _ => server.url().to_owned(),
        };
        Some(Self {
            folder: tempfile::tempdir().unwrap(),
            store: Some(format!("{url}?inbox=test_{}", unique())),
            is_shared: server.is_shared(),
        })
    }

    /// With the inbox in its own schema in the database that `url` names.
    pub(crate) fn at(url: &str) -> Self {
        let schema = format!("test_command_{}", unique());
        Self {
            folder: tempfile::tempdir().unwrap(),
            store: Some(format!("{url}?schema={schema}")),
            is_shared: false,
        }
    }

    /// With further settings in its URL.
    pub(crate) fn with(mut self, settings: &str) -> Self {
        self.store = Some(format!("{}&{settings}", self.store()));
        self
    }

    /// The kind of store, as URLs begin.
    #[allow(dead_code, reason = "of two test programs one needs it")]
    pub(crate) fn kind(&self) -> &str {
        let store = self.store.as_deref();
        store.map_or("sqlite", |url| url.split(':').next().unwrap())
    }

    /// Where the inbox is, with all settings.
    pub(crate) fn store(&self) -> &str {
        self.store.as_deref().unwrap()
    }

    /// The URL of the server, without schema or inbox.
    pub(crate) fn server(&self) -> String {
        self.store().split_once('?').unwrap().0.to_owned()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The command, in this folder.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inbox"));
        command
            .args(args)
            .current_dir(self.folder.path())
            .env_remove("INBOX_STORE")
            .env_remove("INBOX_LOG")
            .stdin(Stdio::null());
        if let Some(store) = &self.store {
            command.env("INBOX_STORE", store);
        }
        command
    }

    /// Runs the command to its end.
    pub(crate) fn inbox(&self, args: &[&str]) -> Output {
        finish(self.command(args).output().unwrap())
    }

    /// Runs the command with `input` on its standard input.
    pub(crate) fn inbox_with(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that refuses its arguments closes the pipe early.
        let _ = child.stdin.take().unwrap().write_all(input);
        finish(child.wait_with_output().unwrap())
    }

    /// Starts the command without waiting for it.
    pub(crate) fn start(&self, args: &[&str]) -> Child {
        self.command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Starts `inbox dashboard` at a free port, and returns it, what it says from then on, and its address.
    pub(crate) fn dashboard(&self, arguments: &[&str]) -> (Child, BufReader<ChildStderr>, String) {
        let all = [&["dashboard", "--listen", "127.0.0.1:0"], arguments].concat();
        let mut child = self.command(&all).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("the dashboard is at ");
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        (child, said, address)
    }

    /// The commands of `schema`, from nothing to an inbox that is empty. The definition that they
    /// print contains `ddl`.
    #[track_caller]
    pub(crate) fn sets_up_the_inbox(&self, ddl: &str) {
        self.inbox(&["schema", "ddl"]).exits(0).says(ddl);
        self.inbox(&["schema", "exists"]).exits(4).says("no");
        self.inbox(&["schema", "version"]).exits(4).says("none");
        for command in [&["stats"][..], &["list"], &["process", "--", "true"]] {
            self.inbox(command)
                .exits(1)
                .complains("set one up with `inbox schema create`");
        }
        self.inbox(&["schema", "create"]).exits(0);
        self.inbox(&["schema", "create"]).exits(0);
        self.inbox(&["schema", "exists"]).exits(0).says("yes");
        self.inbox(&["schema", "migrate"])
            .exits(0)
            .says("already at version");
        self.inbox(&["schema", "version"]).exits(0);
        self.inbox(&["stats"]).exits(0).says("the inbox is empty");
    }

    /// Each URL is refused in one line, for its reason and without its credentials.
    #[track_caller]
    pub(crate) fn refuses<const N: usize>(&self, urls: [(String, &str); N]) {
        for (url, reason) in urls {
            for command in [&["stats"][..], &["process", "--drain", "--", "true"]] {
                let output = self.inbox(&[&["--store", &url], command].concat());
                // A URL that no store understands is a wrong command line.
                let is_usage = output.stderr.contains("the store's URL");
                let output = output.exits(if is_usage { 2 } else { 1 }).complains(reason);
                assert_eq!(complaints(&output.stderr).len(), 1, "{output:?}");
                assert!(!output.stderr.contains("hunter"), "{output:?}");
            }
        }
    }

    /// Nothing is lost or doubled in a demo with kills, and one that is interrupted leaves nothing.
    #[track_caller]
    pub(crate) fn keeps_the_promise_of_the_demo(&self, is_there: impl Fn() -> bool) {
        let output = self
            .inbox(&["demo", "--workers", "2", "--kills", "3", "--json"])
            .exits(0);
        let result = &output.json()[0];
        assert_eq!(result["exactly_once"], true, "{output:?}");
        assert_eq!(result["crashes"], 3, "{output:?}");
        assert_eq!(result["effects"], result["processed"], "{output:?}");
        assert!(result["dead"].as_u64().unwrap() > 0, "{output:?}");
        self.inbox(&["demo", "--keep", "x"]).exits(2);
        self.leaves_nothing_of(&["demo"], is_there);
    }

    /// A command that is interrupted as soon as its tables are there leaves none of them.
    #[track_caller]
    pub(crate) fn leaves_nothing_of(&self, command: &[&str], is_there: impl Fn() -> bool) {
        let child = self.start(command);
        wait_for("its tables", &is_there);
        signal(&child, Signal::SIGINT);
        finish(child.wait_with_output().unwrap()).exits(130);
        assert!(!is_there());
    }

    /// The counts of handler `default`.
    pub(crate) fn stats(&self) -> Counts {
        let output = self.inbox(&["stats", "--json"]).exits(0);
        let Some(line) = output.json().into_iter().next() else {
            return Counts::default();
        };
        let number = |name: &str| line[name].as_u64().unwrap();
        Counts {
            pending: number("pending"),
            leased: number("leased"),
            processed: number("processed"),
            dead: number("dead"),
            discarded: number("discarded"),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_shared && self.store.is_some() {
            remove(self);
        }
    }
}

/// Removes the inbox from a server that outlives the tests.
fn remove(place: &Place) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        match place.store().split(':').next().unwrap() {
            #[cfg(feature = "mongo")]
            "mongodb" => {
                use inbox_mongo::mongodb::Client;

                // Without the settings, some of which are the store's.
                let server = place.store().split('?').next().unwrap();
                let client = Client::with_uri_str(server).await.unwrap();
                client.default_database().unwrap().drop().await.unwrap();
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => {
                use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection};

                let ddl = place.inbox(&["schema", "ddl"]).stdout;
                let mut connection = MySqlConnection::connect(&place.server()).await.unwrap();
                for table in ddl.split("CREATE TABLE IF NOT EXISTS ").skip(1) {
                    let name = table.split(" (").next().unwrap();
                    let sql = format!("DROP TABLE IF EXISTS {name}");
                    connection.execute(AssertSqlSafe(sql)).await.unwrap();
                }
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

                let (url, schema) = place.store().split_once("?schema=").unwrap();
                let sql = format!("DROP SCHEMA IF EXISTS \"{schema}\" CASCADE");
                let mut connection = PgConnection::connect(url).await.unwrap();
                connection.execute(AssertSqlSafe(sql)).await.unwrap();
            }
            #[cfg(feature = "redis")]
            "redis" | "redis+cluster" => {
                use inbox::Schema as _;
                use inbox_redis::{RedisOptions, RedisStore};

                let options = RedisOptions::from_url(place.store()).unwrap();
                let store = RedisStore::connect(options).await.unwrap();
                store.remove().await.unwrap();
            }
            other => panic!("nothing removes an inbox of {other}"),
        }
    });
}

/// A part of a name that no other place has.
fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}_{number}", std::process::id())
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) pending: u64,
    pub(crate) leased: u64,
    pub(crate) processed: u64,
    pub(crate) dead: u64,
    pub(crate) discarded: u64,
}

pub(crate) fn finish(output: std::process::Output) -> Output {
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The lines of standard error, but for what a busy machine adds.
pub(crate) fn complaints(stderr: &str) -> Vec<&str> {
    let lines = stderr.lines();
    let lines = lines.filter(|line| !line.contains("waiting for the store at "));
    lines.collect()
}

/// A CloudEvent line.
pub(crate) fn event(id: &str, kind: &str, data: &str) -> String {
    format!(
        "{{\"specversion\":\"1.0\",\"id\":\"{id}\",\"source\":\"/test\",\"type\":\"{kind}\",\"data\":{data}}}\n"
    )
}

/// `number` events with ids e0, e1, …
pub(crate) fn events(number: usize) -> String {
    (0..number)
        .map(|n| event(&format!("e{n}"), "t", "{}"))
        .collect()
}

/// Waits until `condition` holds; fails loudly rather than for ever.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waited in vain for {what}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

/// The end of a pipe that nobody reads any more.
pub(crate) fn closed_pipe() -> PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

/// A device on which everything that is written fails, as on a full disk.
pub(crate) fn full_disk() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// The lines of a file.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .lines()
        .map(ToOwned::to_owned)
        .collect()
}
