//! How long scripts keep the server from doing anything else.

use std::time::Duration;

use inbox_api::{
    AfterDead, Due, Extended, Filter, HandlerName, HandlerStatistics, Lease, Leased, Message,
    Operate as _, Outcome, Page, PurgeRequest, Receipt, Settled, Settlement, Slice, State,
    Store as _,
};
use inbox_redis::RedisStore;
use test_servers::{Kind as ServerKind, Server, find_own, or_skip};

use crate::common::{
    Raw,
    messages::{LENGTH, claim, claim_runs, handler, message, ordered, processed},
    options, store,
};

/// The most that a script may take of the processor, on average of an operation's scripts. Twice of
/// what is meant, since others use the machine's caches too.
const MOST: Duration = Duration::from_millis(100);

async fn own() -> Option<Server> {
    let found =
        tokio::task::spawn_blocking(|| find_own(ServerKind::Redis, &["--appendfsync", "no"]));
    or_skip(ServerKind::Redis, found.await.unwrap()).unwrap()
}

/// What the server has done so far: scripts, and seconds of its main thread.
async fn used(raw: &mut Raw) -> (u64, f64) {
    let mut info = redis::cmd("INFO");
    let info: String = raw.run(info.arg("cpu").arg("commandstats")).await.unwrap();
    let value = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.map_or("0", |line| line.split(',').next().unwrap())
            .trim()
            .to_owned()
    };
    let seconds = |name: &str| value(name).parse::<f64>().unwrap();
    let busy = seconds("used_cpu_user_main_thread:") + seconds("used_cpu_sys_main_thread:");
    (value("cmdstat_evalsha:calls=").parse().unwrap(), busy)
}

/// The processor's time that a script took on average since `before`.
async fn each(what: &str, raw: &mut Raw, before: (u64, f64)) {
    let now = used(raw).await;
    let scripts = now.0 - before.0;
    let each = Duration::from_secs_f64((now.1 - before.1) / scripts.max(1) as f64);
    println!("{what}: {each:?} for each of {scripts} scripts");
    assert!(scripts > 0, "{what}");
    assert!(each < MOST, "{what}: {each:?}");
}

fn settlements(leased: &[Leased], outcome: &Outcome) -> Vec<Settlement> {
    leased
        .iter()
        .map(|leased| Settlement {
            lease: leased.lease.clone(),
            outcome: outcome.clone(),
        })
        .collect()
}

async fn settle(store: &RedisStore, leased: &[Leased], outcome: Outcome) {
    let settled = store.settle(&settlements(leased, &outcome)).await.unwrap();
    assert!(settled.iter().all(|one| *one == Settled::Done));
}

type Make = fn(usize) -> Message;

/// Messages that become runs, and those that do not, in calls of several scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_keeps_the_server_for_long() {
    let Some(server) = own().await else { return };
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let plain: Make = |n| message(&n.to_string());
    let keyed: Make = |n| ordered(&n.to_string(), &format!("key {n}"));
    let late: Make = |n| message(&n.to_string()).with_due(Due::After(Duration::from_millis(1)));
    for (shards, count, make) in [
        (1, 25_000, plain),
        (1, 4_000, keyed),
        (1, 4_000, late),
        (3, 4_000, plain),
        (3, 4_000, keyed),
    ] {
        let options = options(server.url(), false, shards).operation_timeout(LENGTH * 2);
        let (store, _) = store(options).await;
        let sent: Vec<Message> = (0..count).map(make).collect();
        let what = |operation: &str| format!("{operation} of {count} in {shards} shards");
        let before = used(&mut raw).await;
        let receipts = store.receive(&sent).await.unwrap();
        assert!(receipts.iter().all(|one| *one == Receipt::Accepted));
        each(&what("receive"), &mut raw, before).await;

        let limit = u32::try_from(count).unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let before = used(&mut raw).await;
        let leased = claim(&store, limit).await.unwrap();
        assert_eq!(leased.len(), count);
        each(&what("claim"), &mut raw, before).await;

        let held = Filter {
            states: vec![State::Leased],
            handler: Some(handler()),
            ..Filter::default()
        };
        let before = used(&mut raw).await;
        let listed = store.list(&held, &Page::first(1_000)).await.unwrap();
        assert_eq!(listed.records.len(), 1_000);
        each(&what("list"), &mut raw, before).await;

        let leases: Vec<Lease> = leased.iter().map(|one| one.lease.clone()).collect();
        let before = used(&mut raw).await;
        let extended = store.extend(&leases, LENGTH * 10).await.unwrap();
        assert!(extended.iter().all(|one| *one != Extended::LeaseLost));
        each(&what("extend"), &mut raw, before).await;

        let died = Outcome::Dead {
            reason: "x".into(),
            after: AfterDead::Continue,
        };
        let before = used(&mut raw).await;
        settle(&store, &leased, died).await;
        each(&what("settle"), &mut raw, before).await;

        let filter = Filter::default();
        let slice = Slice { after: None, limit };
        let before = used(&mut raw).await;
        let replayed = store.replay_slice(&filter, &slice).await.unwrap();
        assert_eq!(replayed.changed, count as u64);
        each(&what("replay"), &mut raw, before).await;

        let leased = claim(&store, limit).await.unwrap();
        settle(&store, &leased, processed()).await;
        let gone = PurgeRequest::new(State::Processed, Duration::ZERO, limit).unwrap();
        let before = used(&mut raw).await;
        assert_eq!(store.purge(&gone).await.unwrap(), count as u64);
        each(&what("purge"), &mut raw, before).await;
    }
}

/// What shares an id stays together, and one ordering key keeps the order of the batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_larger_than_a_script_is_stored_in_several() {
    let Some(server) = own().await else { return };
    for shards in [1, 3] {
        let (store, _) = store(options(server.url(), false, shards)).await;
        let sent: Vec<Message> = (0..1_001)
            .map(|n| ordered(&n.to_string(), &format!("key {}", n % 900)))
            .collect();
        let other = HandlerName::new("other").unwrap();
        let copies = sent
            .iter()
            .map(|one| one.clone().for_handler(other.clone()));
        let plain = (0..10_001).map(|n| message(&format!("plain {n}")));
        let all: Vec<Message> = sent.iter().cloned().chain(copies).chain(plain).collect();
        let receipts = store.receive(&all).await.unwrap();
        assert!(receipts.iter().all(|one| *one == Receipt::Accepted));
        let receipts = store.receive(&all).await.unwrap();
        assert!(
            receipts
                .iter()
                .all(|one| *one == Receipt::Duplicate { differs: false })
        );
        let statistics = store.statistics().await.unwrap();
        let backlogs: Vec<_> = statistics
            .handlers
            .iter()
            .map(HandlerStatistics::backlog)
            .collect();
        assert_eq!(backlogs, [11_002, 1_001]);
        assert_eq!(statistics.handlers[0].handler, handler());

        let leased = claim(&store, 20_000).await.unwrap();
        assert_eq!(
            leased.len(),
            10_901,
            "the second of a key waits for the first"
        );
        let of_a_key = leased
            .iter()
            .filter(|one| one.message.ordering_key().is_some());
        let mut numbers: Vec<u32> = of_a_key
            .map(|one| one.message.id().as_str().parse().unwrap())
            .collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..900));
    }
}

/// Several keys fill a claim with runs: each script takes what it may of one, and the next goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_runs_take_several_scripts() {
    let Some(server) = own().await else { return };
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    for shards in [1, 3] {
        let (store, _) = store(options(server.url(), false, shards)).await;
        let sent: Vec<Message> = (0..1_200)
            .map(|n| ordered(&n.to_string(), &format!("key {}", n % 2)))
            .collect();
        store.receive(&sent).await.unwrap();
        let before = used(&mut raw).await;
        let leased = claim_runs(&store, 1_200).await.unwrap();
        each("claim of runs", &mut raw, before).await;
        let numbers: Vec<u32> = leased
            .iter()
            .map(|one| one.message.id().as_str().parse().unwrap())
            .collect();
        for key in 0..2 {
            let of_key = numbers.iter().filter(|n| **n % 2 == key);
            let of_key: Vec<u32> = of_key.copied().collect();
            assert_eq!(of_key.len(), 500, "key {key}");
            assert!(of_key.is_sorted());
        }

        let leases: Vec<Lease> = leased.iter().map(|one| one.lease.clone()).collect();
        let before = used(&mut raw).await;
        let extended = store.extend(&leases, LENGTH * 10).await.unwrap();
        assert!(extended.iter().all(|one| *one != Extended::LeaseLost));
        each("extend runs", &mut raw, before).await;

        // One by one, too: each time the next of the key is the first.
        let (single, together) = leased.split_at(250);
        for one in single {
            settle(&store, std::slice::from_ref(one), processed()).await;
        }
        let before = used(&mut raw).await;
        settle(&store, together, processed()).await;
        each("settle runs", &mut raw, before).await;
        assert_eq!(claim_runs(&store, 1_200).await.unwrap().len(), 200);
    }
}
