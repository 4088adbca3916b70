//! A node of a cluster dies under load, and its replica takes over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use inbox_api::{
    ClaimRequest, HandlerName, LeaseTerms, Message, Operate, Outcome, Receipt, Schema, Settled,
    Settlement, State, Store, WorkerName,
};
use inbox_redis::{Confirmations, RedisStore};
use test_servers::{Kind as ServerKind, find_own, or_skip};

use crate::common::{
    load::{message, send},
    options,
};

/// With this a replica may take over, which the test servers otherwise prevent. What counts here is
/// what replicas have confirmed, not what is on a disk.
const MAY_FAIL_OVER: &[&str] = &["--cluster-replica-no-failover", "no", "--appendfsync", "no"];

/// Processes until told to stop; counts and answers the ids whose settlement was acknowledged.
async fn work(
    store: RedisStore,
    handler: HandlerName,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) -> Vec<u64> {
    let request = ClaimRequest {
        handlers: vec![handler],
        limit: 20,
        terms: LeaseTerms::new(Duration::from_secs(2), WorkerName::new("w").unwrap()).unwrap(),
        run_limit: 1,
    };
    let mut settled = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let claims = match store.claim(&request).await {
            Ok(claims) => claims,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                continue;
            }
        };
        let settlements: Vec<Settlement> = claims
            .leased
            .into_iter()
            .map(|leased| Settlement {
                lease: leased.lease,
                outcome: Outcome::Processed { result: None },
            })
            .collect();
        match store.settle(&settlements).await {
            Ok(answers) => {
                for (settlement, answer) in settlements.iter().zip(answers) {
                    if answer == Settled::Done {
                        count.fetch_add(1, Ordering::Relaxed);
                        settled.push(settlement.lease.key.id.as_str().parse().unwrap());
                    }
                }
            }
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    settled
}

/// Waits until so many more are acknowledged, of what each counter counts.
async fn more(counters: &[Arc<AtomicUsize>; 2], count: usize) {
    let least = counters
        .each_ref()
        .map(|counter| counter.load(Ordering::Relaxed) + count);
    let since = Instant::now();
    while counters
        .iter()
        .zip(least)
        .any(|(counter, least)| counter.load(Ordering::Relaxed) < least)
    {
        assert!(
            since.elapsed() < Duration::from_secs(120),
            "{counters:?}, not {least:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Repeats a call that fails for a while, as it may after a fail-over.
async fn answered<T, F: Future<Output = inbox_api::Result<T>>>(call: impl Fn() -> F) -> T {
    let since = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                assert!(since.elapsed() < Duration::from_secs(60), "{error:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_replica_has_confirmed_survives_its_primary() {
    let found = tokio::task::spawn_blocking(|| find_own(ServerKind::RedisCluster, MAY_FAIL_OVER));
    let Some(mut cluster) = or_skip(ServerKind::RedisCluster, found.await.unwrap()).unwrap() else {
        return;
    };
    let wanted = Confirmations {
        replicas: 1,
        timeout: Duration::from_millis(500),
        ..Confirmations::default()
    };
    // Known by a node that survives.
    let url = cluster.urls().last().unwrap().clone();
    let options = options(&url, true, 12)
        .operation_timeout(Duration::from_secs(3))
        .confirmations(wanted);
    let plain = options.clone().confirmations(Confirmations::default());
    let first = RedisStore::connect(plain.clone()).await.unwrap();
    first.create().await.unwrap();
    let store = RedisStore::connect(options).await.unwrap();
    let handler = HandlerName::new("billing").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let counters: [Arc<AtomicUsize>; 2] = Default::default();
    let senders: Vec<_> = (0..3)
        .map(|n| {
            tokio::spawn(send(
                store.clone(),
                handler.clone(),
                n * 1_000_000,
                stop.clone(),
                counters[0].clone(),
            ))
        })
        .collect();
    let workers: Vec<_> = (0..2)
        .map(|_| {
            tokio::spawn(work(
                store.clone(),
                handler.clone(),
                stop.clone(),
                counters[1].clone(),
            ))
        })
        .collect();

    more(&counters, 251).await;
    let mut cluster = tokio::task::spawn_blocking(move || {
        cluster.kill_node(0).unwrap();
        cluster
    })
    .await
    .unwrap();
    // Until the replica has taken over.
    let since = Instant::now();
    loop {
        assert!(
            since.elapsed() < Duration::from_secs(120),
            "nobody took over"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
        if let Ok(look) = RedisStore::connect(plain.clone()).await
            && look.statistics().await.is_ok()
        {
            break;
        }
    }
    // Its shards cannot confirm anything before they have a replica again.
    let _cluster = tokio::task::spawn_blocking(move || {
        cluster.start_node(0).unwrap();
        cluster
    })
    .await
    .unwrap();
    more(&counters, 251).await;
    stop.store(true, Ordering::Relaxed);
    let (mut acknowledged, mut settled) = (Vec::new(), Vec::new());
    for sender in senders {
        acknowledged.extend(sender.await.unwrap());
    }
    for worker in workers {
        settled.extend(worker.await.unwrap());
    }
    assert!(acknowledged.len() > 500, "{}", acknowledged.len());
    assert!(settled.len() > 500, "{}", settled.len());

    // What was acknowledged is known, and what was settled stays settled. Nothing is written for
    // that, so that nobody has to confirm it.
    let store = RedisStore::connect(plain).await.unwrap();
    for ids in acknowledged.chunks(100) {
        let batch: Vec<Message> = ids.iter().map(|id| message(&handler, *id)).collect();
        // A repetition would find what a failed call has stored.
        let found = answered(|| try_join_all(batch.iter().map(|one| store.get(one.key())))).await;
        for (id, record) in ids.iter().zip(found) {
            assert!(record.is_some(), "message {id} is lost");
        }
        let receipts = answered(|| store.receive(&batch)).await;
        for (id, receipt) in ids.iter().zip(receipts) {
            assert_eq!(
                receipt,
                Receipt::Duplicate { differs: false },
                "message {id} is lost"
            );
        }
    }
    for id in settled.iter().step_by(7) {
        let one = message(&handler, *id);
        let record = answered(|| store.get(one.key())).await;
        assert_eq!(record.unwrap().state, State::Processed, "message {id}");
    }
}
