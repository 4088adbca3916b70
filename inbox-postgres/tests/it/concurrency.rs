//! Everything at once on one inbox: nothing but retries, no deadlock, nothing held twice.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use inbox_api::{
    AfterDead, ClaimRequest, Due, Extended, Filter, LeaseTerms, Message, Operate as _, Outcome,
    PurgeRequest, Receipt, Settled, Settlement, Slice, State, Store as _,
};
use inbox_postgres::PostgresStore;

use crate::common::*;

const MESSAGES: usize = 1200;

/// Who holds what right now, as the workers know it.
#[derive(Default)]
struct Held {
    keys: HashSet<String>,
    /// By which claim, and how many.
    ordering_keys: HashMap<String, ((usize, usize), usize)>,
    /// In which order each ordering key's messages were processed.
    processed: HashMap<String, Vec<usize>>,
    ids: HashMap<String, Vec<String>>,
}

/// What all tasks share.
struct Scene {
    held: Mutex<Held>,
    processed: AtomicUsize,
    over: AtomicBool,
}

impl Scene {
    fn take(&self, message: &Message, claim: (usize, usize)) {
        let mut held = lock(&self.held);
        let id = message.id().to_string();
        assert!(held.keys.insert(id.clone()), "{id} is held twice");
        if let Some(key) = message.ordering_key() {
            let of_key = held.ordering_keys.entry(key.to_string());
            let (holder, count) = of_key.or_insert((claim, 0));
            assert_eq!(*holder, claim, "{key} is held by two claims");
            *count += 1;
        }
    }

    fn give_back(&self, message: &Message) {
        let mut held = lock(&self.held);
        held.keys.remove(message.id().as_str());
        if let Some(key) = message.ordering_key() {
            let key = key.to_string();
            if let Some((_, count)) = held.ordering_keys.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    held.ordering_keys.remove(&key);
                }
            }
        }
    }
}

fn sent(n: usize) -> Message {
    if n.is_multiple_of(2) {
        message(&n.to_string())
    } else {
        ordered(&n.to_string(), &format!("key {}", n % 20))
    }
}

/// Receives all messages, as every receiver does, in its own order.
async fn receive(store: PostgresStore, receiver: usize) -> usize {
    let mut accepted = 0;
    for start in (0..MESSAGES).step_by(40) {
        let mut batch: Vec<Message> = (start..start + 40).map(sent).collect();
        match receiver % 3 {
            0 => {}
            1 => batch.reverse(),
            _ => batch.rotate_left(17),
        }
        let receipts = store.receive(&batch).await.unwrap();
        accepted += receipts.iter().filter(|r| **r == Receipt::Accepted).count();
    }
    accepted
}

async fn work(store: PostgresStore, worker: usize, scene: Arc<Scene>) {
    let mut round = worker;
    while !scene.over.load(Ordering::Relaxed) {
        round += 1;
        // Every other worker takes one at a time.
        let run_limit = if worker.is_multiple_of(2) { 6 } else { 1 };
        let leased = claim_runs(&store, 25, run_limit).await;
        if leased.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        for leased in &leased {
            scene.take(&leased.message, (worker, round));
        }
        if round.is_multiple_of(3) {
            let mut leases: Vec<_> = leased.iter().map(|l| l.lease.clone()).collect();
            leases.reverse();
            for answer in store.extend(&leases, LEASE).await.unwrap() {
                assert!(matches!(answer, Extended::Until(_)));
            }
        }
        let mut cut = HashSet::new();
        let mut settlements: Vec<(Message, Settlement)> = leased
            .into_iter()
            .enumerate()
            .map(|(n, leased)| {
                let key = leased.message.ordering_key().cloned();
                // What was replayed once is not played with again, so that this ends.
                let outcome = match (n + round) % 8 {
                    _ if key.is_some() && cut.contains(&key) => Outcome::Release,
                    0 => Outcome::Release,
                    1 if leased.attempts.started < 3 => retry(Duration::ZERO),
                    2 if leased.attempts.started == 1 => dead(AfterDead::Block),
                    3 if leased.attempts.started == 1 => dead(AfterDead::Continue),
                    4 => defer(Duration::ZERO),
                    _ => processed(),
                };
                if !matches!(
                    outcome,
                    Outcome::Processed { .. }
                        | Outcome::Dead {
                            after: AfterDead::Continue,
                            ..
                        }
                ) {
                    cut.insert(key);
                }
                let settlement = Settlement {
                    lease: leased.lease,
                    outcome,
                };
                (leased.message, settlement)
            })
            .collect();
        if round.is_multiple_of(2) {
            settlements.reverse();
        }
        // Before the settlement, after which another may hold them.
        for (message, settlement) in &settlements {
            if matches!(settlement.outcome, Outcome::Processed { .. }) {
                scene.processed.fetch_add(1, Ordering::Relaxed);
                lock(&scene.held)
                    .ids
                    .entry(message.id().to_string())
                    .or_default()
                    .push(format!("{worker}/{round} {settlement:?}"));
                if let Some(key) = message.ordering_key() {
                    let n = message.id().as_str().parse().unwrap();
                    lock(&scene.held)
                        .processed
                        .entry(key.to_string())
                        .or_default()
                        .push(n);
                }
            }
            scene.give_back(message);
        }
        let settlements: Vec<_> = settlements.into_iter().map(|(_, s)| s).collect();
        for settled in store.settle(&settlements).await.unwrap() {
            assert_eq!(settled, Settled::Done);
        }
    }
}

/// Replays the dead, again and again.
async fn replay(store: PostgresStore, scene: Arc<Scene>) {
    let slice = Slice {
        after: None,
        limit: 20,
    };
    while !scene.over.load(Ordering::Relaxed) {
        store
            .replay_slice(&Filter::default(), &slice)
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Reschedules what is pending, drops payloads and pauses, again and again.
async fn operate(store: PostgresStore, scene: Arc<Scene>) {
    let mut slice = Slice {
        after: None,
        limit: 20,
    };
    let processed = PurgeRequest::new(State::Processed, Duration::ZERO, 20).unwrap();
    while !scene.over.load(Ordering::Relaxed) {
        let due = Due::After(Duration::from_millis(1));
        let progress = store
            .reschedule_slice(&Filter::default(), &slice, due)
            .await;
        slice.after = progress.unwrap().next;
        store.drop_payloads(&processed).await.unwrap();
        store.pause(&handler("h")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        store.resume(&handler("h")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Purges processed messages that are a while old, which does not make a key new before its
/// receivers are through.
async fn purge(
    store: PostgresStore,
    received: Arc<AtomicUsize>,
    receivers: usize,
    scene: Arc<Scene>,
) {
    let expired = PurgeRequest::new(State::Processed, Duration::from_millis(20), 50).unwrap();
    while !scene.over.load(Ordering::Relaxed) {
        if received.load(Ordering::Relaxed) == receivers {
            store.purge(&expired).await.unwrap();
            let keys: Vec<_> = store
                .expired(&expired)
                .await
                .unwrap()
                .records
                .into_iter()
                .map(|record| record.key)
                .collect();
            store.purge_archived(&expired, &keys).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_at_once_ends_in_order_and_without_a_deadlock() {
    let Some(mut place) = TestInbox::shared() else {
        return;
    };
    // Of this test only: its deadlocks are counted.
    let database = fresh_name();
    execute(&place.url, &format!("CREATE DATABASE {database}"))
        .await
        .unwrap();
    place.url = place.url.rsplit_once('/').unwrap().0.to_owned() + "/" + &database;
    place.schema.connection = connection_options(&place.url);
    let store = place.store().await;
    let scene = Arc::new(Scene {
        held: Mutex::default(),
        processed: AtomicUsize::new(0),
        over: AtomicBool::new(false),
    });
    let received = Arc::new(AtomicUsize::new(0));
    let mut receivers = Vec::new();
    for n in 0..4 {
        let (store, received) = (place.other().await, Arc::clone(&received));
        receivers.push(tokio::spawn(async move {
            let accepted = receive(store.clone(), n).await;
            received.fetch_add(1, Ordering::Relaxed);
            store.close().await;
            accepted
        }));
    }
    let mut others = Vec::new();
    for n in 0..8 {
        // Four processes of two workers each.
        let store = if n % 2 == 0 {
            place.other().await
        } else {
            store.clone()
        };
        others.push(tokio::spawn(work(store, n, Arc::clone(&scene))));
    }
    for _ in 0..2 {
        others.push(tokio::spawn(replay(store.clone(), Arc::clone(&scene))));
        others.push(tokio::spawn(operate(store.clone(), Arc::clone(&scene))));
        let (received, scene) = (Arc::clone(&received), Arc::clone(&scene));
        others.push(tokio::spawn(purge(store.clone(), received, 4, scene)));
    }
    let mut accepted = 0;
    for receiver in receivers {
        accepted += receiver.await.unwrap();
    }
    assert_eq!(accepted, MESSAGES);
    let started = std::time::Instant::now();
    while scene.processed.load(Ordering::Relaxed) < MESSAGES {
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "only {} were processed; {:?}",
            scene.processed.load(Ordering::Relaxed),
            store.statistics().await
        );
        for other in &others {
            assert!(!other.is_finished(), "a task failed");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    scene.over.store(true, Ordering::Relaxed);
    for other in others {
        other.await.unwrap();
    }
    for (id, times) in &lock(&scene.held).ids {
        assert!(times.len() == 1, "{id}: {times:#?}");
    }
    assert_eq!(
        scene.processed.load(Ordering::Relaxed),
        MESSAGES,
        "each once"
    );
    let ready = Ready { place, store };
    let statistics = ready.store.statistics().await.unwrap();
    for state in [State::Pending, State::Leased, State::Dead, State::Discarded] {
        assert_eq!(statistics.count(state), 0, "{state}");
    }
    check_consistent(&ready).await;
    let deadlocks: i64 = ready
        .place
        .value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        .await;
    assert_eq!(deadlocks, 0);
}

/// Eight workers, each in its own process, and ordering keys only: each key in order, whether workers
/// take one of a key at a time or several.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_keep_every_ordering_key_in_order() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    let batch: Vec<Message> = (0..600)
        .map(|n| ordered(&n.to_string(), &format!("key {}", n % 12)))
        .collect();
    let scene = Arc::new(Scene {
        held: Mutex::default(),
        processed: AtomicUsize::new(0),
        over: AtomicBool::new(false),
    });
    let mut tasks = Vec::new();
    for n in 0..8 {
        let (store, scene) = (place.other().await, Arc::clone(&scene));
        tasks.push(tokio::spawn(async move {
            while scene.processed.load(Ordering::Relaxed) < 600 {
                for leased in claim_runs(&store, 4, [1, 3][n % 2]).await {
                    scene.take(&leased.message, (n, 0));
                    let n: usize = leased.message.id().as_str().parse().unwrap();
                    let key = leased.message.ordering_key().unwrap().to_string();
                    lock(&scene.held).processed.entry(key).or_default().push(n);
                    scene.give_back(&leased.message);
                    settle(&store, &leased.lease, processed()).await;
                    scene.processed.fetch_add(1, Ordering::Relaxed);
                }
            }
            store.close().await;
        }));
    }
    for some in batch.chunks(50) {
        store.receive(some).await.unwrap();
    }
    for task in tasks {
        task.await.unwrap();
    }
    let processed = std::mem::take(&mut lock(&scene.held).processed);
    assert_eq!(processed.len(), 12);
    for (key, order) in processed {
        assert_eq!(order.len(), 50, "{key}");
        assert!(order.is_sorted(), "{key}: {order:?}");
    }
    check_consistent(&Ready { place, store }).await;
}

/// Workers that die with a run, are slow, or settle in whatever order.
async fn work_badly(store: PostgresStore, over: Arc<AtomicBool>) {
    let length = Duration::from_millis(20);
    while !over.load(Ordering::Relaxed) {
        let request = ClaimRequest {
            terms: LeaseTerms::new(length, worker()).unwrap(),
            run_limit: fastrand::u32(1..8),
            ..request(fastrand::u32(1..20))
        };
        let mut leased = store.claim(&request).await.unwrap().leased;
        let is_slow = fastrand::u8(..) < 60;
        if is_slow {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..40))).await;
        }
        if fastrand::bool() {
            let leases: Vec<_> = leased.iter().map(|l| l.lease.clone()).collect();
            let some = fastrand::usize(..=leases.len());
            let _ = store.extend(&leases[some..], length).await.unwrap();
        }
        fastrand::shuffle(&mut leased);
        leased.truncate(fastrand::usize(..=leased.len()));
        let settlements: Vec<_> = leased
            .into_iter()
            .map(|leased| Settlement {
                lease: leased.lease,
                outcome: match fastrand::u8(..8) {
                    0 => Outcome::Release,
                    1 => retry(Duration::from_millis(1)),
                    2 => dead(AfterDead::Block),
                    3 => defer(Duration::ZERO),
                    _ => processed(),
                },
            })
            .collect();
        for some in settlements.chunks(fastrand::usize(1..5)) {
            let _ = store.settle(some).await.unwrap();
        }
        tokio::task::yield_now().await;
    }
}

/// Leases run out in front of and behind others, and whatever is left comes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_that_die_with_their_runs_leave_no_key_stuck() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    const SENT: usize = 300;
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let store = place.other().await;
        tasks.push(tokio::spawn(work_badly(store, Arc::clone(&over))));
    }
    let batch: Vec<Message> = (0..SENT)
        .map(|n| ordered(&n.to_string(), &format!("key {}", n % 7)))
        .collect();
    for some in batch.chunks(30) {
        store.receive(some).await.unwrap();
    }
    let started = std::time::Instant::now();
    let all = Filter::default();
    let slice = Slice {
        after: None,
        limit: 50,
    };
    loop {
        store.replay_slice(&all, &slice).await.unwrap();
        let statistics = store.statistics().await.unwrap();
        assert_eq!(place.broken_rules().await, [""; 0]);
        if statistics.count(State::Processed) == SENT as u64 {
            break;
        }
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "{statistics:?}"
        );
        for task in &tasks {
            assert!(!task.is_finished(), "a task failed");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    check_consistent(&Ready { place, store }).await;
}
