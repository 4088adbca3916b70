//! A server that is killed amid requests, whose clients ask again until they have an answer.
//!
//! `INBOX_HTTP_CRASH_REQUESTS` is how many requests, 300 unless set, and `INBOX_HTTP_CRASH_CLIENTS` how many of
//! them at a time, 20 unless set. A server is killed after every fiftieth answer, or twentieth part of all of them.

use std::{
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, http::StatusCode, routing::post};
use http::Method;
use inbox::{
    Store,
    postgres::{PostgresOptions, PostgresStore, SchemaName},
    sqlite::{SqliteOptions, SqliteStore},
};
use inbox_http::{IdempotencyLayer, idempotency::Tx};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::watch,
};

use crate::{
    places::{Place, Postgres, Sqlite},
    server::{Answer, client, send},
};

/// Tells this binary that it is a server: which one, and where its inbox is.
const SERVES: &str = "INBOX_HTTP_CRASH_SERVER";
/// The test that is a server then.
const SERVER: &str = "crash::each_effect_is_there_once_on_sqlite";
const LISTENS: &str = "listening on ";

/// At least.
const REQUESTS_PER_KILL: usize = 50;
/// At most.
const KILLS: usize = 20;
/// For a key whose server was killed.
const LEASE: Duration = Duration::from_secs(1);

#[test]
fn each_effect_is_there_once_on_sqlite() {
    if let Ok(told) = std::env::var(SERVES) {
        return block_on(serve(&told));
    }
    block_on(async {
        let place = Sqlite::make().await.unwrap();
        let told = format!("sqlite|{}", place.path().display());
        let answers = kill_amid_requests(&told).await;
        check_effects(&place, answers).await;
    });
}

#[test]
fn each_effect_is_there_once_on_postgres() {
    block_on(async {
        let Some(place) = Postgres::make().await else {
            return;
        };
        let told = format!("postgres|{}|{}", place.url(), place.schema());
        let answers = kill_amid_requests(&told).await;
        check_effects(&place, answers).await;
    });
}

/// Without a transaction what a killed server did may be done again. What a client was answered stays.
#[test]
fn no_answer_is_contradicted_without_a_transaction_on_sqlite() {
    block_on(async {
        let place = Sqlite::make().await.unwrap();
        let told = format!("sqlite-plain|{}", place.path().display());
        kill_amid_requests(&told).await;
    });
}

#[test]
fn no_answer_is_contradicted_without_a_transaction_on_postgres() {
    block_on(async {
        let Some(place) = Postgres::make().await else {
            return;
        };
        let told = format!("postgres-plain|{}|{}", place.url(), place.schema());
        kill_amid_requests(&told).await;
    });
}

/// Every client's last word is the only effect of its key.
async fn check_effects<P: Place>(place: &P, mut answers: Vec<String>) {
    answers.sort();
    let mut effects = place.effects().await;
    effects.sort();
    assert_eq!(effects, answers);
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// Returns what each client was answered, and checks that it was never answered otherwise.
async fn kill_amid_requests(told: &str) -> Vec<String> {
    let requests = setting("INBOX_HTTP_CRASH_REQUESTS", 300);
    let at_a_time = setting("INBOX_HTTP_CRASH_CLIENTS", 20);
    let per_kill = REQUESTS_PER_KILL.max(requests / KILLS);
    let began = Instant::now();
    let (mut server, port) = start(told).await;
    let (ports, killed) = (watch::Sender::new(port), watch::Sender::new(0_usize));
    let next = Arc::new(AtomicUsize::new(0));
    let answers = Arc::new(Mutex::new(Vec::new()));
    // Each request that is under way has a connection to itself.
    let client = client();
    let clients: Vec<_> = (0..at_a_time)
        .map(|_| {
            let (next, answers, port) = (next.clone(), answers.clone(), ports.subscribe());
            let (client, mut killed) = (client.clone(), killed.subscribe());
            tokio::spawn(async move {
                loop {
                    // No further ahead of the next kill than half the way to the one behind it.
                    let answered = answers.lock().unwrap().len();
                    let is_near = |kills: &usize| answered < kills * per_kill + per_kill * 3 / 2;
                    killed.wait_for(is_near).await.unwrap();
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= requests {
                        return;
                    }
                    let key = format!("key-{number}");
                    let answer = insist(&client, &port, &key).await;
                    assert!(answer.text().starts_with(&format!("{key} ")), "{answer:?}");
                    answers.lock().unwrap().push(answer.text().to_owned());
                }
            })
        })
        .collect();
    let mut kills = 0;
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        let due = (kills + 1) * per_kill;
        if answers.lock().unwrap().len() < due {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        server.kill().await.unwrap();
        kills += 1;
        let port;
        (server, port) = start(told).await;
        ports.send_replace(port);
        killed.send_replace(kills);
    }
    for client in clients {
        client.await.unwrap();
    }
    assert!(kills >= requests / per_kill - 1, "{kills} kills");
    let kind = told.split('|').next().unwrap_or_default();
    let seconds = began.elapsed().as_secs();
    eprintln!("{kind}: {requests} requests, {at_a_time} at a time, {kills} kills, {seconds} s");
    let answers = std::mem::take(&mut *answers.lock().unwrap());
    assert_eq!(answers.len(), requests);
    for answer in &answers {
        let (key, _) = answer.split_once(' ').unwrap();
        let again = insist(&client, &ports.subscribe(), key).await;
        assert_eq!(again.text(), answer);
        assert!(again.is_replay());
    }
    server.kill().await.unwrap();
    answers
}

fn setting(name: &str, usual: usize) -> usize {
    let set = std::env::var(name);
    set.map_or(usual, |set| set.parse().unwrap())
}

/// Asks until there is an answer of the handler's, as a careful client does.
async fn insist(client: &reqwest::Client, port: &watch::Receiver<u16>, key: &str) -> Answer {
    loop {
        let url = format!("http://127.0.0.1:{}/", *port.borrow());
        let headers = [("idempotency-key", key)];
        let answer = send(client, Method::POST, &url, &headers, key.to_owned()).await;
        match answer {
            Ok(answer) if answer.status == StatusCode::CREATED => return answer,
            Ok(answer) => {
                let code = answer.problem();
                assert!(
                    ["in-progress", "store-unavailable"].contains(&code.as_str()),
                    "{code}"
                );
            }
            Err(_) => {} // killed
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn start(told: &str) -> (Child, u16) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([SERVER, "--exact", "--nocapture"])
        .env(SERVES, told)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if let Some((_, port)) = line.split_once(LISTENS) {
            let port = port.parse().unwrap();
            // What the test harness says later would end the server if no one read it.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return (process, port);
        }
    }
    panic!("the server did not begin to listen");
}

async fn serve(told: &str) {
    let parts: Vec<&str> = told.split('|').collect();
    let app = match parts[..] {
        ["sqlite", path] => transactional::<Sqlite>(on_sqlite(path).await, "main".into()),
        ["postgres", url, schema] => {
            transactional::<Postgres>(on_postgres(url, schema).await, schema.into())
        }
        ["sqlite-plain", path] => plain(Arc::new(on_sqlite(path).await)),
        ["postgres-plain", url, schema] => plain(Arc::new(on_postgres(url, schema).await)),
        _ => panic!("told {told}"),
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{LISTENS}{}", listener.local_addr().unwrap().port());
    axum::serve(listener, app).await.unwrap();
}

async fn on_sqlite(path: &str) -> SqliteStore {
    let store = SqliteStore::connect(SqliteOptions::new(path));
    store.await.unwrap()
}

async fn on_postgres(url: &str, schema: &str) -> PostgresStore {
    let name = SchemaName::new(schema).unwrap();
    let options = PostgresOptions::from_url(url).unwrap().schema(name);
    PostgresStore::connect(options).await.unwrap()
}

fn plain(store: Arc<dyn Store>) -> Router {
    let layer = IdempotencyLayer::new(store, "payments").unwrap();
    let handler = |key: String| async move { (StatusCode::CREATED, effect(&key)) };
    Router::new()
        .route("/", post(handler))
        .layer(layer.lease(LEASE).unwrap())
}

fn transactional<P: Place>(store: P::Store, schema: String) -> Router {
    let layer = IdempotencyLayer::in_transaction(store, "payments").unwrap();
    let handler = move |mut tx: Tx<P::Store>, key: String| async move {
        let effect = effect(&key);
        P::write(&mut tx, &format!("{schema}/{effect}"))
            .await
            .unwrap();
        (StatusCode::CREATED, effect)
    };
    Router::new()
        .route("/", post(handler))
        .layer(layer.lease(LEASE).unwrap())
}

/// Unlike any other run's.
fn effect(key: &str) -> String {
    static RUN: AtomicU32 = AtomicU32::new(0);
    let run = RUN.fetch_add(1, Ordering::Relaxed);
    format!("{key} {}-{run}", std::process::id())
}
