//! Deployments under load. One worker process after the other takes over: the next one starts, the
//! old one gets SIGTERM, and SIGKILL if it has not ended in time. That costs no message anything:
//! no attempt, no dead letter, and what a handler writes in its transaction is there once.
//!
//! `INBOX_DEPLOYMENTS=100 cargo test -p inbox --all-features --test it deployments -- --nocapture` makes
//! a hundred of them on each store, and prints what it saw.

use std::{
    collections::HashMap,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use inbox::{
    CancellationToken, Context, Failure, Filter, Inbox, Message, Page, Processor, RetryPolicy,
    Router, State, Store, Summary, in_transaction_fn,
    postgres::{PostgresOptions, PostgresStore},
    sqlite::{SqliteOptions, SqliteStore, Synchronous},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sqlx::AssertSqlSafe;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    signal::unix::{SignalKind, signal},
};

use crate::{
    postgres_support::Place,
    processor_support::{billing, message_of},
};

/// How long handlers may take to finish once the worker is told to stop: a small part of the 20
/// seconds that are the default.
const DRAIN_LIMIT: Duration = Duration::from_millis(250);
/// After the drain limit, the worker has what it has by default until Kubernetes kills it.
const GRACE: Duration = Duration::from_secs(10);
/// Longer than a worker has for it, so that the stop cuts such a handler short.
const LONG: Duration = Duration::from_secs(1);
/// Messages in the store while it is under load.
const LOAD: u64 = 100;
/// For what ends by itself.
const FOR_EVER: Duration = Duration::from_secs(240);

/// For the worker: the store's URL, the table of effects.
const URL: &str = "INBOX_DEPLOYMENT_URL";
const TABLE: &str = "INBOX_DEPLOYMENT_TABLE";

async fn sqlite(url: &str) -> SqliteStore {
    let path = url.strip_prefix("sqlite://").unwrap();
    let options = SqliteOptions::new(path).synchronous(Synchronous::Normal);
    SqliteStore::connect(options).await.unwrap()
}

async fn postgres(url: &str) -> PostgresStore {
    let options = PostgresOptions::from_url(url).unwrap();
    PostgresStore::connect(options).await.unwrap()
}

/// A handler that books in its transaction, and one that does not; now and then they take long.
macro_rules! router {
    ($store:expr, $table:expr, $long:expr) => {{
        let (sql, long) = (format!("INSERT INTO {} (id) VALUES ($1)", $table), $long);
        let book = in_transaction_fn(
            ($store).clone(),
            move |mut transaction, context: Context| {
                let insert = sqlx::query(AssertSqlSafe(sql.clone()));
                let insert = insert.bind(context.message().id().to_string());
                async move {
                    insert.execute(&mut **transaction).await?;
                    work(long).await;
                    Ok::<_, sqlx::Error>(())
                }
            },
        );
        Router::new(billing())
            .on("book", book)
            .on("mail", move |_: Context| async move {
                work(long).await;
                Ok::<_, Failure>(())
            })
    }};
}

async fn work(long: bool) {
    let length = match fastrand::u32(..50) {
        0 if long => LONG,
        n => Duration::from_millis(u64::from(n % 10)),
    };
    tokio::time::sleep(length).await;
}

fn processor(store: Arc<impl Store>, router: Router) -> Processor {
    Processor::builder(store)
        .router(router)
        .concurrency(6)
        .look_ahead(12)
        .drain_limit(DRAIN_LIMIT)
        // A stop that counted would soon make dead letters.
        .retry(RetryPolicy::default().with_max_attempts(2))
        .build()
        .unwrap()
}

/// What a worker process does. It is this program, started again for the test below with the variables.
async fn run_worker(url: String, table: String) {
    let processor = if url.starts_with("sqlite") {
        let store = sqlite(&url).await;
        processor(Arc::new(store.clone()), router!(store, table, true))
    } else {
        let store = postgres(&url).await;
        processor(Arc::new(store.clone()), router!(store, table, true))
    };
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        stop.cancel();
    });
    println!("\n{READY}");
    let summary = processor.run(shutdown).await.unwrap();
    let Summary {
        processed,
        released,
        retried,
        dead,
        lease_lost,
        abandoned,
        ..
    } = summary;
    println!("\n{DONE} {processed} {released} {retried} {dead} {lease_lost} {abandoned}");
}

/// The test that is a worker when it is told a store.
const WORKS: &str = "deployments::deployments_cost_nothing_on_sqlite";
const READY: &str = "worker is ready";
const DONE: &str = "worker has ended:";

struct Worker {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    async fn start(url: &str, table: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([WORKS, "--exact", "--nocapture"])
            .env(URL, url)
            .env(TABLE, table)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdout = process.stdout.take().unwrap();
        let mut worker = Self {
            process,
            lines: BufReader::new(stdout).lines(),
        };
        worker.line(READY).await.unwrap();
        worker
    }

    /// What follows on the line that begins like this.
    async fn line(&mut self, start: &str) -> Option<String> {
        while let Some(line) = self.lines.next_line().await.unwrap() {
            if let Some(rest) = line.strip_prefix(start) {
                return Some(rest.to_owned());
            }
        }
        None
    }

    async fn deploy_away(mut self, seen: &mut Seen) {
        let begun = Instant::now();
        let id = Pid::from_raw(i32::try_from(self.process.id().unwrap()).unwrap());
        kill(id, Signal::SIGTERM).unwrap();
        let ended = tokio::time::timeout(DRAIN_LIMIT + GRACE, self.line(DONE)).await;
        seen.longest = seen.longest.max(begun.elapsed());
        let Ok(summary) = ended else {
            self.process.kill().await.unwrap();
            seen.killed += 1;
            return;
        };
        // Told by every worker that was not killed.
        let summary = summary.unwrap();
        let numbers = summary
            .split_whitespace()
            .map(|n| n.parse::<u64>().unwrap());
        for (sum, number) in seen.sums.iter_mut().zip(numbers) {
            *sum += number;
        }
        assert!(self.process.wait().await.unwrap().success());
    }
}

#[derive(Debug, Default)]
struct Seen {
    killed: u64,
    /// The longest time from SIGTERM to the end.
    longest: Duration,
    /// Processed, released, retried, dead, leases lost, abandoned.
    sums: [u64; 6],
}

/// Keeps messages coming. Returns those that are stored.
async fn feed(store: &impl Inbox, until: &CancellationToken) -> Vec<Message> {
    let mut stored: Vec<Message> = Vec::new();
    while !until.is_cancelled() {
        let statistics = store.statistics().await.unwrap();
        if statistics.handlers.iter().any(|h| h.backlog() >= LOAD) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        let batch = (0..20).map(|n| {
            let n = stored.len() + n;
            let message = message_of(["book", "book", "mail"][n % 3], n, "{}");
            match n % 5 {
                0 => message
                    .with_ordering_key(inbox::OrderingKey::new(format!("{}", n % 7)).unwrap()),
                _ => message,
            }
        });
        let batch: Vec<_> = batch.collect();
        let _ = store.receive(&batch).await.unwrap();
        stored.extend(batch);
    }
    stored
}

async fn deployments(rounds: u32, url: &str, table: &str) -> Seen {
    let mut seen = Seen::default();
    let mut old = Worker::start(url, table).await;
    for _ in 0..rounds {
        let new = Worker::start(url, table).await;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(50..400))).await;
        old.deploy_away(&mut seen).await;
        old = new;
    }
    old.deploy_away(&mut seen).await;
    seen
}

/// A few, or as many as are asked for.
fn rounds() -> u32 {
    std::env::var("INBOX_DEPLOYMENTS").map_or(3, |rounds| rounds.parse().unwrap())
}

async fn under_load(store: &impl Inbox, url: &str, table: &str) -> (Seen, Vec<Message>) {
    let (rounds, full) = (rounds(), CancellationToken::new());
    let deploy = async {
        let seen = deployments(rounds, url, table).await;
        full.cancel();
        seen
    };
    tokio::join!(deploy, feed(store, &full))
}

/// Works the rest off, and checks that no deployment has cost any message anything.
async fn judge(
    name: &str,
    store: Arc<impl Inbox>,
    rest: Processor,
    (seen, messages): (Seen, Vec<Message>),
    booked: impl AsyncFnOnce() -> Vec<String>,
) {
    let left = store.statistics().await.unwrap().handlers[0].backlog();
    let run = rest.run_until_drained(store.clone(), CancellationToken::new());
    tokio::time::timeout(FOR_EVER, run).await.unwrap().unwrap();
    let rounds = rounds();
    println!(
        "{name}: {rounds} deployments, {} messages, {left} of them left for the end; {seen:?}",
        messages.len(),
    );

    let mut bookings: HashMap<String, u32> = HashMap::new();
    for id in booked().await {
        *bookings.entry(id).or_default() += 1;
    }
    let mut after = None;
    let mut records = Vec::new();
    loop {
        let page = Page {
            after,
            ..Page::first(1000)
        };
        let listing = store.list(&Filter::default(), &page).await.unwrap();
        records.extend(listing.records);
        after = listing.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(records.len(), messages.len());
    let mut extra = 0;
    for record in &records {
        assert_eq!(record.state, State::Processed, "{record:?}");
        assert_eq!(record.attempts.finished, 1, "{record:?}");
        extra += u64::from(record.attempts.started) - 1;
        let times = bookings.remove(record.key.id.as_str()).unwrap_or(0);
        let expected = u32::from(record.kind.as_str() == "book");
        assert_eq!(times, expected, "effects of {:?}", record.key);
    }
    assert!(bookings.is_empty(), "{bookings:?}");

    let [processed, released, retried, dead, lease_lost, abandoned] = seen.sums;
    assert_eq!(seen.killed, 0, "killed");
    assert_eq!((retried, dead, lease_lost), (0, 0, 0));
    assert!(processed > 0 && released > 0, "{seen:?}");
    // Only where the store kept a worker waiting for five seconds at its end, which SQLite may on a
    // machine that is busy with other things.
    assert!(extra <= abandoned, "{extra} attempts cost: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_cost_nothing_on_sqlite() {
    if let (Ok(url), Ok(table)) = (std::env::var(URL), std::env::var(TABLE)) {
        return run_worker(url, table).await;
    }
    let directory = TempDir::new().unwrap();
    let url = format!("sqlite://{}", directory.path().join("inbox.db").display());
    let store = sqlite(&url).await;
    inbox::Schema::create(&store).await.unwrap();
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let create = sqlx::query("CREATE TABLE effects (id TEXT NOT NULL)");
    create.execute(&pool).await.unwrap();
    let history = under_load(&store, &url, "effects").await;
    let store = Arc::new(store);
    let rest = processor(store.clone(), router!(*store, "effects", false));
    judge("SQLite", store, rest, history, async || {
        let ids = sqlx::query_scalar("SELECT id FROM effects");
        ids.fetch_all(&pool).await.unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_cost_nothing_on_postgres() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let separator = if place.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}schema={}", place.url, place.schema);
    let table = format!("{}.effects", place.schema);
    let history = under_load(&place.store, &url, &table).await;
    let store = Arc::new(place.store.clone());
    let rest = processor(store.clone(), router!(*store, table, false));
    judge("PostgreSQL", store, rest, history, async || {
        let pool = sqlx::PgPool::connect(&place.url).await.unwrap();
        let ids = sqlx::query_scalar(AssertSqlSafe(format!("SELECT id FROM {table}")));
        ids.fetch_all(&pool).await.unwrap()
    })
    .await;
}
