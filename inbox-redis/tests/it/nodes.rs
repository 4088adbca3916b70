//! Clusters whose nodes forget, or have clocks that are far apart.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use conformance_tests::{CaseReport, Verdict, run};
use inbox_api::{
    Begun, ClaimRequest, Filter, HandlerName, Kind, LeaseTerms, Leased, Message, MessageId,
    Operate, OrderingKey, Outcome, Page, PurgeRequest, Receipt, Settled, Settlement, State, Store,
    WorkerName,
};
use inbox_redis::{Confirmations, RedisStore};
use test_servers::{Kind as ServerKind, Server, find_own, or_skip};

use crate::common::{self, Raw, harness, options, store, url};

const SHARDS: u16 = 6;
const LENGTH: Duration = Duration::from_secs(60);

fn handler() -> HandlerName {
    HandlerName::new("billing").unwrap()
}

fn message(id: &str, okey: Option<&str>) -> Message {
    let message = Message::new(
        handler(),
        MessageId::new(id).unwrap(),
        Kind::new("k").unwrap(),
        format!("payload of {id}"),
    );
    match okey {
        Some(okey) => message.with_ordering_key(OrderingKey::new(okey).unwrap()),
        None => message,
    }
}

fn terms() -> LeaseTerms {
    LeaseTerms::new(LENGTH, WorkerName::new("w").unwrap()).unwrap()
}

async fn claim(store: &RedisStore, limit: u32) -> Vec<Leased> {
    let request = ClaimRequest {
        handlers: vec![handler()],
        limit,
        terms: terms(),
        run_limit: 1,
    };
    let claims = store.claim(&request).await.unwrap();
    assert!(claims.corrupt.is_empty(), "{:?}", claims.corrupt);
    claims.leased
}

async fn process(store: &RedisStore, leased: &[Leased]) {
    let settlements: Vec<Settlement> = leased
        .iter()
        .map(|leased| Settlement {
            lease: leased.lease.clone(),
            outcome: Outcome::Processed { result: None },
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert!(settled.iter().all(|one| *one == Settled::Done));
}

/// Processes all there is; answers the ids of each ordering key in the order in which they were
/// handed out.
async fn drain(store: &RedisStore) -> BTreeMap<String, Vec<String>> {
    let mut order: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        let leased = claim(store, 20).await;
        if leased.is_empty() {
            return order;
        }
        for one in &leased {
            let okey = one.message.ordering_key().map(ToString::to_string);
            let ids = order.entry(okey.unwrap_or_default()).or_default();
            ids.push(one.message.id().to_string());
        }
        process(store, &leased).await;
    }
}

async fn receive_all(store: &RedisStore, messages: &[Message], expected: Receipt) {
    let receipts = store.receive(messages).await.unwrap();
    assert!(receipts.iter().all(|one| *one == expected), "{receipts:?}");
}

/// The number of the node that has the inbox's first shard.
async fn node_of_first_shard(store: &RedisStore, server: &Server) -> usize {
    let ddl = inbox_api::Schema::ddl(store);
    let meta = ddl
        .lines()
        .filter_map(|line| line.strip_prefix("HSET ")?.split(' ').next())
        .find(|key| key.contains(":0}"))
        .unwrap()
        .to_owned();
    for (number, url) in server.urls().iter().enumerate() {
        let mut node = Raw::connect(url, false).await.unwrap();
        let mut get = redis::cmd("HGET");
        if let Ok(Some(_)) = node
            .run::<Option<String>>(get.arg(&meta).arg("version"))
            .await
        {
            return number;
        }
    }
    panic!("no node has {meta}");
}

/// The numbers of messages come from one shard. When its server forgets the last of them and others
/// do not, nothing gets a number twice, and nothing overtakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_a_server_has_forgotten_do_not_come_again() {
    // Only what it is told to save survives a node.
    let arguments = &["--appendonly", "no"];
    let found = tokio::task::spawn_blocking(|| find_own(ServerKind::RedisCluster, arguments));
    let Some(mut server) = or_skip(ServerKind::RedisCluster, found.await.unwrap()).unwrap() else {
        return;
    };
    let (store, _) = store(options(server.url(), true, SHARDS)).await;
    let okeys: Vec<String> = (0..24).map(|n| format!("key {n}")).collect();
    let sequence = |name: &str, n: usize| -> Vec<Message> {
        okeys
            .iter()
            .map(|okey| message(&format!("{okey} {name}-{n}"), Some(okey)))
            .collect()
    };
    receive_all(&store, &sequence("saved", 0), Receipt::Accepted).await;
    let first = node_of_first_shard(&store, &server).await;
    let mut node = Raw::connect(&server.urls()[first], false).await.unwrap();
    let _: String = node.run(&redis::cmd("SAVE")).await.unwrap();
    for n in 0..5 {
        receive_all(&store, &sequence("before", n), Receipt::Accepted).await;
    }
    let server = tokio::task::spawn_blocking(move || {
        server.kill_node(first).unwrap();
        server.start_node(first).unwrap();
        server
    })
    .await
    .unwrap();
    for n in 0..5 {
        receive_after_restart(&store, &sequence("after", n)).await;
    }
    let listed = store
        .list(&Filter::default(), &Page::first(1000))
        .await
        .unwrap();
    assert!(listed.corrupt.is_empty(), "{:?}", listed.corrupt);
    let order = drain(&store).await;
    let mut survived = 0;
    for okey in &okeys {
        let of =
            |name: &str| -> Vec<String> { (0..5).map(|n| format!("{okey} {name}-{n}")).collect() };
        let saved = vec![format!("{okey} saved-0")];
        let forgotten = [saved.clone(), of("after")].concat();
        let kept = [saved, of("before"), of("after")].concat();
        let seen = &order[okey];
        assert!(*seen == kept || *seen == forgotten, "{seen:?}");
        survived += usize::from(*seen == kept);
    }
    // Some keys are in other shards than the first, on nodes that have forgotten nothing.
    assert!(survived > 0 && survived < okeys.len(), "{survived}");
    let all: usize = order.values().map(Vec::len).sum();
    let gone = PurgeRequest::new(State::Processed, Duration::ZERO, 10_000).unwrap();
    assert_eq!(store.purge(&gone).await.unwrap(), all as u64);
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 0);
    drop(server);
}

/// The cluster may still be noticing that the node is back.
async fn receive_after_restart(store: &RedisStore, messages: &[Message]) {
    for _ in 0..100 {
        match store.receive(messages).await {
            Ok(_) => return,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the node did not come back");
}

/// The numbers of the nodes, by what keys of their shards begin with.
async fn nodes_of_shards(store: &RedisStore, server: &Server) -> BTreeMap<String, usize> {
    let ddl = inbox_api::Schema::ddl(store);
    let metas = ddl
        .lines()
        .filter_map(|line| line.strip_prefix("HSET ")?.split(' ').next());
    let mut nodes = BTreeMap::new();
    for (number, url) in server.urls().iter().enumerate() {
        let mut node = Raw::connect(url, false).await.unwrap();
        for meta in metas.clone() {
            let mut get = redis::cmd("HGET");
            get.arg(meta).arg("version");
            if let Ok(Some(_)) = node.run::<Option<String>>(&get).await {
                nodes.insert(meta.trim_end_matches(":meta").to_owned(), number);
            }
        }
    }
    nodes
}

/// With retention by settlements, those of one shard remove notes of others' messages. A node that does not answer
/// keeps no settlement of other nodes waiting for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_keeps_no_settlement_of_others_waiting() {
    const MANY: u16 = 24;
    let arguments = &["--cluster-require-full-coverage", "no"];
    let found = tokio::task::spawn_blocking(|| find_own(ServerKind::RedisCluster, arguments));
    let Some(mut server) = or_skip(ServerKind::RedisCluster, found.await.unwrap()).unwrap() else {
        return;
    };
    // Longer than the test waits for a settlement.
    let options = options(server.url(), true, MANY)
        .operation_timeout(common::PATIENCE * 10)
        .keep_processed(Some(LENGTH));
    let (store, clock) = store(options).await;
    let batch = |name: &str| -> Vec<Message> {
        (0..120)
            .map(|n| message(&format!("{name} {n}"), Some(&format!("key {n}"))))
            .collect()
    };
    receive_all(&store, &batch("old"), Receipt::Accepted).await;
    process(&store, &claim(&store, 120).await).await;
    clock.advance(LENGTH * 2);
    receive_all(&store, &batch("new"), Receipt::Accepted).await;
    let leased = claim(&store, 120).await;
    assert_eq!(leased.len(), 120);

    let nodes = nodes_of_shards(&store, &server).await;
    let node_of = |one: &Leased| nodes[&store.hash_tag(&one.lease).unwrap()];
    let silent = node_of(&leased[0]);
    let settlements: Vec<Settlement> = leased
        .iter()
        .filter(|one| node_of(one) != silent)
        .map(|one| Settlement {
            lease: one.lease.clone(),
            outcome: Outcome::Processed { result: None },
        })
        .collect();
    assert!(!settlements.is_empty());
    let server = tokio::task::spawn_blocking(move || {
        server.pause_node(silent).unwrap();
        server
    });
    let mut server = server.await.unwrap();
    let settled = tokio::time::timeout(common::PATIENCE, store.settle(&settlements)).await;
    let settled = settled.expect("a settlement waits for a node that is none of its own");
    assert!(settled.unwrap().iter().all(|one| *one == Settled::Done));
    let resumed = tokio::task::spawn_blocking(move || server.resume_node(silent).unwrap());
    resumed.await.unwrap();
}

/// Whatever is accepted is counted and handed out, in order, when the clock of one node is ten minutes
/// ahead, and that of another ten minutes behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_are_far_apart_change_nothing() {
    let Some(url) = url(&common::CLOCKS_APART) else {
        return;
    };
    let options = options(&url, true, SHARDS);
    let (store, clock) = store(options.clone()).await;
    let other = RedisStore::connect(options.clock_offset(clock.clone()))
        .await
        .unwrap();
    let mut sent = Vec::new();
    for n in 0..10 {
        let batch: Vec<Message> = (0..30)
            .map(|key| {
                let okey = format!("key {key}");
                message(&format!("{key} {n:02}"), (key % 3 > 0).then_some(&okey))
            })
            .collect();
        let sender = if n % 2 == 0 { &store } else { &other };
        receive_all(sender, &batch, Receipt::Accepted).await;
        let copier = if n % 2 == 0 { &other } else { &store };
        receive_all(copier, &batch, Receipt::Duplicate { differs: false }).await;
        sent.extend(batch);
    }
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 300);
    let statistics = store.statistics().await.unwrap();
    assert_eq!(statistics.count(State::Pending), 300);
    for one in &statistics.handlers {
        let lag = one.lag.unwrap();
        assert!(lag < Duration::from_secs(60), "{lag:?}");
    }
    // In the order of acceptance, whatever the clocks of the shards.
    let listed = store
        .list(&Filter::default(), &Page::first(1000))
        .await
        .unwrap();
    let ids = |messages: Vec<String>| messages.join(",");
    assert_eq!(
        ids(listed
            .records
            .iter()
            .map(|r| r.key.id.to_string())
            .collect()),
        ids(sent.iter().map(|m| m.id().to_string()).collect())
    );
    // Those that came first are taken first, from all shards.
    let leased = claim(&store, 30).await;
    assert_eq!(leased.len(), 30);
    assert!(
        leased
            .iter()
            .all(|one| one.message.id().as_str().ends_with(" 00"))
    );
    assert!(
        claim(&other, 1)
            .await
            .iter()
            .all(|one| one.message.ordering_key().is_none())
    );
    // A lease lasts as long as it was asked for, wherever the message is.
    clock.advance(LENGTH / 2);
    for one in &leased {
        let begun = other.begin(&one.message, &terms()).await.unwrap();
        assert!(matches!(begun, Begun::Busy { .. }), "{begun:?}");
    }
    process(&other, &leased).await;
    let order = drain(&other).await;
    clock.advance(LENGTH * 2);
    let late = drain(&other).await;
    let handed_out: usize = order.values().chain(late.values()).map(Vec::len).sum();
    assert_eq!(handed_out, 270);
    for (okey, ids) in order.iter().filter(|(okey, _)| !okey.is_empty()) {
        assert!(ids.is_sorted(), "{okey}: {ids:?}");
        assert_eq!(ids.len(), 9, "{okey}");
    }
    let statistics = store.statistics().await.unwrap();
    assert_eq!(statistics.count(State::Processed), 300);
    let gone = PurgeRequest::new(State::Processed, Duration::ZERO, 1000).unwrap();
    assert_eq!(store.purge(&gone).await.unwrap(), 300);
}

/// What may depend on clocks; but for `time`, which looks at one clock.
const PARTS: &[&str] = &[
    "duplicates::",
    "concurrency::",
    "fencing::",
    "leases::",
    "retry::",
    "ordering::",
    "replay::",
    "retention::",
    "look::",
    "statistics::",
    "begin::",
    "cancellation::",
];

/// Whether a case has compared the times of messages that are in shards of different clocks.
fn is_of_one_clock(case: &CaseReport) -> bool {
    matches!(&case.verdict, Verdict::Failed { seen }
        if seen.contains("expected about ") && seen.contains("Z, which is "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_with_clocks_that_are_far_apart() {
    if url(&common::CLOCKS_APART).is_none() {
        return;
    }
    for part in PARTS {
        let cluster = (ServerKind::RedisCluster, &common::CLOCKS_APART);
        let harness = harness(cluster, SHARDS, Confirmations::default());
        let report = run(Arc::new(harness), part).await;
        assert!(report.failures().all(is_of_one_clock), "{report}");
        assert!(report.passed > 0, "{report}");
    }
}
