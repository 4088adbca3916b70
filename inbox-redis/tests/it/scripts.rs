//! How long scripts keep the server from doing anything else.

use std::{collections::BTreeSet, time::Duration};

use inbox_api::{
    AfterDead, ClaimRequest, Due, Extended, Filter, HandlerName, HandlerStatistics, Lease, Leased,
    Message, MessageId, Operate as _, Outcome, Page, PurgeRequest, Receipt, Settled, Settlement,
    Slice, State, Store as _,
};
use inbox_redis::{RedisStore, conformance::contradictions};
use test_servers::{Kind as ServerKind, Server, find_own, or_skip};

use crate::common::{
    Raw,
    messages::{LENGTH, claim, claim_runs, handler, message, ordered, processed, terms},
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

/// Receives runs of a hundred messages each.
async fn receive_runs(store: &RedisStore, runs: usize) {
    for run in 0..runs {
        let sent: Vec<Message> = (0..100).map(|n| message(&format!("{run} {n}"))).collect();
        let receipts = store.receive(&sent).await.unwrap();
        assert!(receipts.iter().all(|one| *one == Receipt::Accepted));
    }
}

/// One message of each run.
fn one_of_each(runs: usize) -> Filter {
    let ids = (0..runs).map(|run| message(&format!("{run} 50")).id().clone());
    Filter {
        handler: Some(handler()),
        ids: ids.collect(),
        states: vec![State::Pending],
        ..Filter::default()
    }
}

const WHOLE: Slice = Slice {
    after: None,
    limit: 1_000,
};

/// Each of these messages takes a hundred others out of their run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_one_message_of_each_run_takes_several_scripts() {
    const RUNS: usize = 200;
    let Some(server) = own().await else { return };
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let filter = one_of_each(RUNS);

    let (store, _) = store(options(server.url(), false, 1)).await;
    receive_runs(&store, RUNS).await;
    let before = used(&mut raw).await;
    let later = Due::After(LENGTH * 60);
    let rescheduled = store
        .reschedule_slice(&filter, &WHOLE, later)
        .await
        .unwrap();
    let scripts = used(&mut raw).await.0 - before.0;
    assert!(scripts >= 10, "{scripts} to reschedule");
    assert_eq!(rescheduled.changed, RUNS as u64);
    assert_eq!(rescheduled.next, None);
    each("reschedule one of each run", &mut raw, before).await;
    let listed = store.list(&filter, &Page::first(1_000)).await.unwrap();
    let dues: BTreeSet<_> = listed.records.iter().map(|one| one.due_at).collect();
    assert_eq!((listed.records.len(), dues.len()), (RUNS, 1));
    assert_eq!(contradictions(&store).await.unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discarding_one_message_of_each_run_takes_several_scripts() {
    const RUNS: usize = 200;
    let Some(server) = own().await else { return };
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let (store, _) = store(options(server.url(), false, 1)).await;
    receive_runs(&store, RUNS).await;
    let before = used(&mut raw).await;
    let some = Slice {
        limit: 150,
        ..WHOLE
    };
    let first = store
        .discard_slice(&one_of_each(RUNS), &some)
        .await
        .unwrap();
    assert_eq!(first.changed, 150);
    let rest = Slice {
        after: first.next,
        ..WHOLE
    };
    let second = store
        .discard_slice(&one_of_each(RUNS), &rest)
        .await
        .unwrap();
    assert_eq!((second.changed, second.next), (50, None));
    let scripts = used(&mut raw).await.0 - before.0;
    assert!(scripts >= 12, "{scripts} to discard");
    each("discard one of each run", &mut raw, before).await;
    assert_eq!(contradictions(&store).await.unwrap(), [""; 0]);
}

/// For each of these messages an entry of the log with a hundred is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_message_of_each_entry_is_listed_and_purged_in_several_scripts() {
    const RUNS: usize = 200;
    let Some(server) = own().await else { return };
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let (store, _) = store(options(server.url(), false, 1)).await;
    let died = Outcome::Dead {
        reason: "x".into(),
        after: AfterDead::Continue,
    };
    for run in 0..RUNS {
        let sent: Vec<Message> = (0..100).map(|n| message(&format!("{run} {n}"))).collect();
        let _ = store.receive(&sent).await.unwrap();
        let leased = claim(&store, 100).await.unwrap();
        let (first, others) = leased.split_at(1);
        settle(&store, first, died.clone()).await;
        settle(&store, others, processed()).await;
    }
    let dead = Filter {
        states: vec![State::Dead],
        ..Filter::default()
    };
    for newest_first in [false, true] {
        let page = Page {
            newest_first,
            ..Page::first(1_000)
        };
        let before = used(&mut raw).await;
        let listed = store.list(&dead, &page).await.unwrap();
        let scripts = used(&mut raw).await.0 - before.0;
        assert!(scripts >= 2, "{scripts} to list");
        let mut numbers: Vec<usize> = listed
            .records
            .iter()
            .map(|one| one.key.id.as_str().split(' ').next().unwrap())
            .map(|run| run.parse().unwrap())
            .collect();
        if newest_first {
            numbers.reverse();
        }
        assert!(numbers.into_iter().eq(0..RUNS));
    }

    let gone = PurgeRequest::new(State::Dead, Duration::ZERO, 1_000).unwrap();
    let before = used(&mut raw).await;
    assert_eq!(store.purge(&gone).await.unwrap(), RUNS as u64);
    let scripts = used(&mut raw).await.0 - before.0;
    assert!(scripts >= 5, "{scripts} to purge");
    each("purge one of each entry", &mut raw, before).await;
    assert_eq!(contradictions(&store).await.unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_payloads_are_loaded_in_several_scripts() {
    const BYTES: usize = 8 * 1024 * 1024;
    let Some(server) = own().await else { return };
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let (store, _) = store(options(server.url(), false, 1)).await;
    for n in 0..6 {
        let kind = message("0").kind().clone();
        let id = MessageId::new(n.to_string()).unwrap();
        let large = Message::new(handler(), id, kind, vec![7; BYTES]);
        let _ = store.receive(&[large]).await.unwrap();
    }
    let page = Page {
        with_payload: true,
        ..Page::first(10)
    };
    let before = used(&mut raw).await;
    let listed = store.list(&Filter::default(), &page).await.unwrap();
    let scripts = used(&mut raw).await.0 - before.0;
    assert!(scripts >= 4, "{scripts} to list");
    assert_eq!(listed.records.len(), 6);
    for record in listed.records {
        assert_eq!(record.payload.map(|payload| payload.len()), Some(BYTES));
    }
}

/// The longest-finished of all handlers first, however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_handlers_keep_a_purge_no_longer() {
    const HANDLERS: usize = 2_000;
    const ROUNDS: usize = 4;
    let Some(server) = own().await else { return };
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let options = options(server.url(), false, 1).operation_timeout(LENGTH * 2);
    let (store, _) = store(options).await;
    let handlers: Vec<HandlerName> = (0..HANDLERS)
        .map(|n| HandlerName::new(format!("handler {n}")).unwrap())
        .collect();
    for round in 0..ROUNDS {
        let sent: Vec<Message> = handlers
            .iter()
            .map(|handler| message(&round.to_string()).for_handler(handler.clone()))
            .collect();
        let _ = store.receive(&sent).await.unwrap();
        let request = ClaimRequest {
            handlers: handlers.clone(),
            limit: u32::try_from(HANDLERS).unwrap(),
            terms: terms(),
            run_limit: 1,
        };
        let leased = store.claim(&request).await.unwrap().leased;
        assert_eq!(leased.len(), HANDLERS);
        settle(&store, &leased, processed()).await;
    }
    let some = PurgeRequest::new(State::Processed, Duration::ZERO, 500).unwrap();
    for round in 0..ROUNDS {
        let expired = store.expired(&some).await.unwrap().records;
        let ids: BTreeSet<&str> = expired.iter().map(|one| one.key.id.as_str()).collect();
        assert!(ids.into_iter().eq([round.to_string().as_str()]));
        let before = used(&mut raw).await;
        for _ in 0..HANDLERS / 500 {
            assert_eq!(store.purge(&some).await.unwrap(), 500);
        }
        each("purge of many handlers", &mut raw, before).await;
    }
    assert_eq!(store.purge(&some).await.unwrap(), 0);
}

/// Defect: the first entry of each handler's history, which stays, was looked at again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_of_large_batches_of_many_handlers_ends() {
    const HANDLERS: usize = 200;
    let Some(server) = own().await else { return };
    let options = options(server.url(), false, 1);
    let (store, _) = store(options).await;
    let mut second = Vec::new();
    for n in 0..HANDLERS {
        let handler = HandlerName::new(format!("handler {n}")).unwrap();
        let sent: Vec<Message> = (0..100)
            .map(|id| message(&id.to_string()).for_handler(handler.clone()))
            .collect();
        let _ = store.receive(&sent).await.unwrap();
        let request = ClaimRequest {
            handlers: vec![handler],
            limit: 2,
            terms: terms(),
            run_limit: 1,
        };
        let mut leased = store.claim(&request).await.unwrap().leased;
        second.extend(leased.pop());
        settle(&store, &leased, processed()).await;
    }
    settle(&store, &second, processed()).await;
    let first = u32::try_from(HANDLERS).unwrap();
    let first = PurgeRequest::new(State::Processed, Duration::ZERO, first).unwrap();
    for _ in 0..2 {
        let purged = tokio::time::timeout(LENGTH, store.purge(&first)).await;
        assert_eq!(purged.expect("it ends").unwrap(), HANDLERS as u64);
    }
    assert_eq!(store.purge(&first).await.unwrap(), 0);
}
