//! A server of PostgreSQL that is killed, and one that no longer answers.

use std::{sync::Arc, time::Duration};

use axum::{Router, http::StatusCode, routing::post};
use inbox::postgres::PostgresStore;
use inbox_http::{IdempotencyLayer, idempotency::Tx};
use test_servers::Server;
use tokio::sync::watch;

use super::Runs;
use crate::{
    places::{Place as _, Postgres},
    server::{Answer, Site, until},
};

/// How long the store may take: for a server that does not answer.
const LIMIT: Duration = Duration::from_secs(2);

/// For a key whose holder is gone, or never was: the answer to its beginning was lost.
const LEASE: Duration = Duration::from_secs(1);

type Harm = fn(&mut Server) -> Result<(), test_servers::Error>;

/// How a server goes away, and how it comes back.
const OUTAGES: [(Harm, Harm); 2] = [
    (Server::kill, Server::start),
    (Server::pause, Server::resume),
];

async fn act(server: Server, harm: Harm) -> Server {
    let acting = tokio::task::spawn_blocking(move || {
        let mut server = server;
        harm(&mut server).unwrap();
        server
    });
    acting.await.unwrap()
}

#[track_caller]
fn assert_away(answer: &Answer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.problem(), "store-unavailable");
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
}

/// Answers with the number of its run, once it may.
struct Gated {
    runs: Runs,
    /// Those that have written their effect.
    written: Runs,
    /// Whether it is open.
    gate: watch::Sender<bool>,
    site: Site,
}

impl Gated {
    /// `/` answers at once, `/gated` when the gate is open.
    async fn plain(store: &PostgresStore) -> Self {
        let (runs, gate) = (Runs::default(), watch::Sender::new(false));
        let layer = IdempotencyLayer::new(Arc::new(store.clone()), "payments").unwrap();
        let layer = layer.lease(LEASE).unwrap();
        let (counting, counting_gated, opening) = (runs.clone(), runs.clone(), gate.clone());
        let app = Router::new()
            .route("/", post(async move || format!("run {}", counting.count())))
            .route(
                "/gated",
                post(async move || {
                    let number = counting_gated.count();
                    is_open(&opening).await;
                    format!("run {number}")
                }),
            )
            .layer(layer);
        Self {
            runs,
            written: Runs::default(),
            gate,
            site: Site::serve(app).await,
        }
    }

    /// The same, with an effect in the transaction.
    async fn transactional(place: &Postgres, store: &PostgresStore) -> Self {
        let (runs, written) = (Runs::default(), Runs::default());
        let gate = watch::Sender::new(false);
        let layer = IdempotencyLayer::in_transaction(store.clone(), "bookings").unwrap();
        let layer = layer.lease(LEASE).unwrap();
        let (counting, writing) = (runs.clone(), written.clone());
        let (opening, schema) = (gate.clone(), place.schema());
        let handler = async move |mut tx: Tx<PostgresStore>| {
            let number = counting.count();
            let effect = format!("{schema}/{number}");
            if Postgres::write(&mut tx, &effect).await.is_err() {
                return (StatusCode::INTERNAL_SERVER_ERROR, String::new());
            }
            writing.count();
            is_open(&opening).await;
            (StatusCode::CREATED, format!("run {number}"))
        };
        let app = Router::new().route("/gated", post(handler)).layer(layer);
        Self {
            runs,
            written,
            gate,
            site: Site::serve(app).await,
        }
    }

    async fn send(&self, path: &str, key: &str) -> Answer {
        self.site.with_key(path, key, "").await
    }
}

async fn is_open(gate: &watch::Sender<bool>) {
    gate.subscribe().wait_for(|open| *open).await.unwrap();
}

/// Nothing is let through while the server is away, known keys neither; what ran before is replayed after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_postgresql_is_away_nothing_runs() {
    let Some((place, mut server)) = Postgres::with_own_server(LIMIT).await else {
        return;
    };
    let gated = Gated::plain(&place.store()).await;
    for (number, (go, come_back)) in OUTAGES.into_iter().enumerate() {
        let (known, under_way, new) = (
            format!("known-{number}"),
            format!("under-way-{number}"),
            format!("new-{number}"),
        );
        let first = gated.send("/", &known).await;
        assert_eq!((first.status.as_u16(), first.is_replay()), (200, false));
        let before = gated.runs.so_far();
        gated.gate.send_replace(false);
        let outage = async {
            until(async || gated.runs.so_far() == before + 1).await;
            server = act(server, go).await;
            // Several at a time, as clients are.
            let keys = [&known, &new, &known, &new];
            let answers = keys.map(|key| gated.send("/", key));
            for answer in futures_util::future::join_all(answers).await {
                assert_away(&answer);
            }
            assert_eq!(gated.runs.so_far(), before + 1);
            gated.gate.send_replace(true);
            server
        };
        // What runs is answered, since asking its client to come again would bring a second run about.
        let (answered, back) = tokio::join!(gated.send("/gated", &under_way), outage);
        server = act(back, come_back).await;
        assert_eq!(answered.status, 200, "{answered:?}");
        until(async || gated.send("/gated", &under_way).await.is_replay()).await;
        assert_eq!(gated.send("/gated", &under_way).await.body, answered.body);
        let replayed = gated.send("/", &known).await;
        assert!(replayed.is_replay(), "{replayed:?}");
        assert_eq!(replayed.body, first.body);
        assert_eq!(gated.runs.so_far(), before + 1);
        until(async || gated.send("/", &new).await.status == StatusCode::OK).await;
        let answer = gated.send("/", &new).await;
        assert_eq!(answer.text(), format!("run {}", before + 2));
        assert!(answer.is_replay());
    }
}

/// The transaction of a request that runs is gone with the server: its client is told to come again, and the copy's
/// effect is the only one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postgresql_did_not_commit_runs_again() {
    let Some((place, mut server)) = Postgres::with_own_server(LIMIT).await else {
        return;
    };
    let gated = Gated::transactional(&place, &place.store()).await;
    let mut effects = Vec::new();
    for (number, (go, come_back)) in OUTAGES.into_iter().enumerate() {
        let key = format!("k-{number}");
        let before = gated.written.so_far();
        gated.gate.send_replace(false);
        let outage = async {
            until(async || gated.written.so_far() == before + 1).await;
            server = act(server, go).await;
            // The next ones wait for no gate.
            gated.gate.send_replace(true);
            server
        };
        let (answered, back) = tokio::join!(gated.send("/gated", &key), outage);
        assert_away(&answered);
        assert_away(&gated.send("/gated", &key).await);
        server = act(back, come_back).await;
        let mut last = None;
        until(async || {
            let answer = gated.send("/gated", &key).await;
            let is_done = answer.status == StatusCode::CREATED;
            last = Some(answer);
            is_done
        })
        .await;
        let last = last.unwrap();
        assert!(gated.send("/gated", &key).await.is_replay());
        let ran = last.text().strip_prefix("run ").unwrap().to_owned();
        effects.push(ran);
        assert_eq!(place.effects().await, effects);
    }
}
