//! Shards move between a cluster's nodes while messages are received and processed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use inbox_api::{
    ClaimRequest, HandlerName, LeaseTerms, Operate as _, Outcome, Schema as _, Settled, Settlement,
    State, Store as _, WorkerName,
};
use inbox_redis::RedisStore;
use redis::{RedisResult, aio::MultiplexedConnection};
use test_servers::{Kind as ServerKind, find_own, or_skip};

use crate::common::{
    load::{message, send},
    options, store,
};

const SHARDS: u16 = 9;
/// No lease runs out while the test runs.
const LENGTH: Duration = Duration::from_secs(300);

/// What the workers have done: how often each message was handed out, and how often it was settled.
#[derive(Default)]
struct Done {
    runs: Mutex<BTreeMap<u64, (u32, u32)>>,
    errors: AtomicU64,
}

/// Processes until told to stop and until nothing is left.
async fn work(store: RedisStore, handler: HandlerName, done: Arc<Done>, stop: Arc<AtomicBool>) {
    let request = ClaimRequest {
        handlers: vec![handler],
        limit: 20,
        terms: LeaseTerms::new(LENGTH, WorkerName::new("w").unwrap()).unwrap(),
        run_limit: 1,
    };
    loop {
        let is_last = stop.load(Ordering::Relaxed);
        let claims = match store.claim(&request).await {
            Ok(claims) => claims,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                done.errors.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        };
        if claims.leased.is_empty() && is_last {
            return;
        }
        let number = |id: &str| -> u64 { id.parse().unwrap() };
        let mut settlements = Vec::new();
        for leased in claims.leased {
            let mut runs = done.runs.lock().unwrap();
            runs.entry(number(leased.message.id().as_str()))
                .or_default()
                .0 += 1;
            settlements.push(Settlement {
                lease: leased.lease,
                outcome: Outcome::Processed { result: None },
            });
        }
        let answers = loop {
            match store.settle(&settlements).await {
                Ok(answers) => break answers,
                Err(error) => {
                    assert!(error.is_retryable(), "{error:?}");
                    done.errors.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        for (settlement, answer) in settlements.iter().zip(answers) {
            assert_eq!(answer, Settled::Done, "{}", settlement.lease.key.id);
            let mut runs = done.runs.lock().unwrap();
            runs.entry(number(settlement.lease.key.id.as_str()))
                .or_default()
                .1 += 1;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A primary of the cluster.
struct Node {
    id: String,
    port: u16,
    connection: MultiplexedConnection,
}

impl Node {
    async fn at(url: &str) -> RedisResult<Self> {
        let client = redis::Client::open(url)?;
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(crate::common::PATIENCE))
            .set_response_timeout(Some(crate::common::PATIENCE));
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await?;
        let mut ask = redis::cmd("CLUSTER");
        let id = ask.arg("MYID").query_async(&mut connection).await?;
        Ok(Self {
            id,
            port: url
                .rsplit_once(':')
                .unwrap()
                .1
                .trim_end_matches('/')
                .parse()
                .unwrap(),
            connection,
        })
    }

    async fn run<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.connection).await
    }

    async fn is_primary(&mut self) -> bool {
        let role: Vec<redis::Value> = self.run(&["ROLE"]).await.unwrap();
        let role: String = redis::from_redis_value(role[0].clone()).unwrap();
        role == "master"
    }

    /// Which of these slots are this node's.
    async fn has(&mut self, slot: u16) -> bool {
        let counted = self.run::<Vec<Vec<redis::Value>>>(&["CLUSTER", "SLOTS"]);
        counted.await.unwrap().into_iter().any(|range| {
            let number = |n: usize| -> u16 { redis::from_redis_value(range[n].clone()).unwrap() };
            let redis::Value::Array(node) = &range[2] else {
                panic!("no node in {range:?}");
            };
            let port: u16 = redis::from_redis_value(node[1].clone()).unwrap();
            (number(0)..=number(1)).contains(&slot) && port == self.port
        })
    }
}

/// Moves a slot as `redis-cli --cluster reshard` does, and stays half-way for a while.
async fn move_slot(nodes: &mut [Node], slot: u16, from: usize, to: usize, stay: Duration) {
    let slot = slot.to_string();
    let (source, target) = (nodes[from].id.clone(), nodes[to].id.clone());
    let port = nodes[to].port.to_string();
    let set = |state: &'static str, id: String| {
        let slot = slot.clone();
        move |node: &mut Node| {
            let words = [
                "CLUSTER".to_owned(),
                "SETSLOT".into(),
                slot,
                state.into(),
                id,
            ];
            let mut connection = node.connection.clone();
            async move {
                let mut command = redis::cmd(&words[0]);
                command.arg(&words[1..]);
                command.query_async::<()>(&mut connection).await.unwrap();
            }
        }
    };
    set("IMPORTING", source)(&mut nodes[to]).await;
    set("MIGRATING", target.clone())(&mut nodes[from]).await;
    let mut is_first = true;
    loop {
        let keys: Vec<String> = nodes[from]
            .run(&["CLUSTER", "GETKEYSINSLOT", &slot, "3"])
            .await
            .unwrap();
        if keys.is_empty() {
            break;
        }
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        words.extend(keys.iter().map(String::as_str));
        nodes[from].run::<()>(&words).await.unwrap();
        if is_first {
            tokio::time::sleep(stay).await;
            is_first = false;
        }
    }
    // The new owner first, as the manual says.
    set("NODE", target.clone())(&mut nodes[to]).await;
    for place in (0..nodes.len()).filter(|place| *place != to) {
        set("NODE", target.clone())(&mut nodes[place]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_that_move_lose_nothing_and_do_nothing_twice() {
    let found = tokio::task::spawn_blocking(|| {
        find_own(ServerKind::RedisCluster, &["--appendfsync", "no"])
    });
    let Some(cluster) = or_skip(ServerKind::RedisCluster, found.await.unwrap()).unwrap() else {
        return;
    };
    let (store, clock) = store(options(cluster.url(), true, SHARDS)).await;
    let mut nodes = Vec::new();
    for url in cluster.urls() {
        let mut node = Node::at(url).await.unwrap();
        if node.is_primary().await {
            nodes.push(node);
        }
    }
    let handler = HandlerName::new("billing").unwrap();
    let (stop_sending, stop) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let done = Arc::new(Done::default());
    let senders: Vec<_> = (0..3)
        .map(|n| {
            let stop = Arc::clone(&stop_sending);
            let (store, handler) = (store.clone(), handler.clone());
            tokio::spawn(send(store, handler, n * 1_000_000, stop, Arc::default()))
        })
        .collect();
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
            tokio::spawn(work(store.clone(), handler.clone(), done, stop))
        })
        .collect();

    tokio::time::sleep(Duration::from_millis(500)).await;
    let ddl = store.ddl();
    let tags = ddl
        .lines()
        .filter_map(|line| line.strip_prefix("HSET ")?.split(' ').next());
    for (number, tag) in tags.enumerate() {
        let slot: u16 = nodes[0].run(&["CLUSTER", "KEYSLOT", tag]).await.unwrap();
        let mut from = 0;
        while !nodes[from].has(slot).await {
            from += 1;
        }
        let to = (from + 1 + number % 2) % nodes.len();
        let stay = Duration::from_millis(if number % 3 == 0 { 400 } else { 0 });
        move_slot(&mut nodes, slot, from, to, stay).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop_sending.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for sender in senders {
        acknowledged.extend(sender.await.unwrap());
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    // What a sender has left staged is old enough for others, and what a claim took whose answer was
    // lost becomes free.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    clock.advance(LENGTH * 2);
    work(store.clone(), handler.clone(), Arc::clone(&done), stop).await;

    assert!(acknowledged.len() > 500, "{}", acknowledged.len());
    let runs = done.runs.lock().unwrap().clone();
    for id in &acknowledged {
        assert_eq!(
            runs.get(id),
            Some(&(1, 1)),
            "message {id}: runs and settlements"
        );
    }
    assert!(runs.values().all(|times| *times == (1, 1)));
    let statistics = store.statistics().await.unwrap();
    assert_eq!(statistics.count(State::Processed), runs.len() as u64);
    let left = statistics.count(State::Pending) + statistics.count(State::Leased);
    assert_eq!(left, 0);
    for id in acknowledged.iter().step_by(29) {
        let record = store.get(message(&handler, *id).key()).await.unwrap();
        assert_eq!(record.unwrap().state, State::Processed, "message {id}");
    }
    // Moving was ridden out: what reached the callers at all can be counted on one hand.
    let errors = done.errors.load(Ordering::Relaxed);
    assert!(errors <= 5, "{errors} errors");
}
