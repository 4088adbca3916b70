//! Messages that are claimed before there is room for their handlers.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use inbox::{
    CancellationToken, Context, Failure, Handler, HandlerName, Invalid, OrderingKey, Processor,
    ProcessorBuilder, Record, Router, State, StoreExt as _, WorkerName,
};
use tokio::{sync::Semaphore, time::sleep};

use crate::processor_support::*;

fn spy() -> Arc<Spy> {
    let spy = Spy::new();
    spy.follow_the_runtime();
    Arc::new(spy)
}

/// One handler at a time.
fn one_at_a_time(spy: &Arc<Spy>, handler: impl Handler) -> ProcessorBuilder {
    processor(spy, Router::new(billing()).on("order.placed", handler)).concurrency(1)
}

/// A handler that takes a millisecond, but waits for `go` at the message of this id.
fn stops_at(id: &'static str, go: &CancellationToken, runs: &Arc<AtomicUsize>) -> impl Handler {
    let (go, runs) = (go.clone(), runs.clone());
    move |context: Context| {
        let (go, runs) = (go.clone(), runs.clone());
        async move {
            runs.fetch_add(1, SeqCst);
            sleep(Duration::from_millis(1)).await;
            if context.message().id().as_str() == id {
                go.cancelled().await;
            }
            Ok::<_, Failure>(())
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_handler_at_a_time_does_not_pay_for_a_claim_each() {
    let (spy, running) = (spy(), Arc::new(AtomicUsize::new(0)));
    spy.receive_all((0..400).map(message)).await;
    let handler = move |_: Context| {
        let running = running.clone();
        async move {
            assert_eq!(running.fetch_add(1, SeqCst), 0);
            sleep(Duration::from_millis(1)).await;
            running.fetch_sub(1, SeqCst);
            Ok::<_, Failure>(())
        }
    };
    let summary = until_idle(one_at_a_time(&spy, handler).look_ahead(20)).await;
    assert_eq!((summary.processed, summary.claimed), (400, 400));
    let limits = spy.claim_limits.lock().unwrap().clone();
    // Nothing is known of the handler yet.
    assert_eq!(limits[0], 1);
    assert!(limits.iter().all(|limit| *limit <= 21), "{limits:?}");
    assert!(limits.len() < 60, "{limits:?}");
    assert!(spy.settle_sizes.lock().unwrap().len() < 300);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_ahead_for_slow_handlers_or_where_it_is_turned_off() {
    for (look_ahead, attempts, millis) in [(0, 10, 1), (32, 1, 1), (32, 10, 300)] {
        let spy = spy();
        spy.receive_all((0..20).map(message)).await;
        let handler = move |_: Context| async move {
            sleep(Duration::from_millis(millis)).await;
            Ok::<_, Failure>(())
        };
        let builder = one_at_a_time(&spy, handler).retry(at_once(attempts));
        let summary = until_idle(builder.look_ahead(look_ahead)).await;
        assert_eq!(summary.processed, 20);
        let limits = spy.claim_limits.lock().unwrap().clone();
        assert!(limits.iter().all(|limit| *limit == 1), "{limits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_behind_a_slow_handler_is_handed_back_untouched() {
    let (spy, go) = (spy(), CancellationToken::new());
    let runs = Arc::new(AtomicUsize::new(0));
    spy.receive_all((100..200).map(message)).await;
    let builder = one_at_a_time(&spy, stops_at("150", &go, &runs)).look_ahead(20);
    let (processor, stop) = (builder.build().unwrap(), CancellationToken::new());
    let shutdown = stop.clone();
    let running = tokio::spawn(async move { processor.run(shutdown).await });
    eventually("stopped", async || runs.load(SeqCst) == 51).await;
    sleep(Duration::from_millis(500)).await;
    assert!(spy.count(State::Leased).await > 10);
    sleep(Duration::from_millis(700)).await;
    assert_eq!(spy.count(State::Leased).await, 1);
    // Nothing more is taken while it runs.
    sleep(Duration::from_secs(600)).await;
    assert_eq!(spy.count(State::Leased).await, 1);
    assert_eq!(runs.load(SeqCst), 51);
    for record in spy.records().await {
        if record.state == State::Pending {
            assert_eq!(record.attempts.started, 0);
        }
    }
    go.cancel();
    eventually("done", async || spy.count(State::Processed).await == 100).await;
    assert_eq!(runs.load(SeqCst), 100);
    stop.cancel();
    let summary = running.await.unwrap().unwrap();
    assert!(summary.released > 10);
    assert_eq!((summary.processed, summary.lease_lost), (100, 0));
}

/// The worker's machine stands still for longer than the lease.
#[tokio::test(start_paused = true)]
async fn no_handler_starts_on_a_lease_that_has_run_out_while_its_message_waited() {
    let (spy, go) = (spy(), CancellationToken::new());
    let runs = Arc::new(AtomicUsize::new(0));
    spy.receive_all((100..130).map(message)).await;
    let builder = one_at_a_time(&spy, stops_at("105", &go, &runs)).look_ahead(20);
    let (processor, stop) = (builder.build().unwrap(), CancellationToken::new());
    let shutdown = stop.clone();
    let running = tokio::spawn(async move { processor.run(shutdown).await });
    eventually("stopped", async || runs.load(SeqCst) == 6).await;
    let held = spy.count(State::Leased).await;
    assert!(held > 5);
    // All others are taken by another worker at the same moment.
    spy.disturb("claim", Trouble::Hold);
    go.cancel();
    tokio::time::advance(Duration::from_secs(100)).await;
    spy.follow();
    let worker = WorkerName::new("other").unwrap();
    let length = Duration::from_secs(3600);
    let taken = spy.inner.claim_for(&billing(), 100, length, &worker).await;
    let taken = taken.unwrap().leased.len();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(runs.load(SeqCst), 6, "{taken} were taken");
    stop.cancel();
    spy.calm("claim");
    let summary = running.await.unwrap().unwrap();
    assert!(summary.released + summary.lease_lost >= held - 1);
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_handed_back_at_a_shutdown() {
    let (spy, go) = (spy(), CancellationToken::new());
    let runs = Arc::new(AtomicUsize::new(0));
    spy.receive_all((100..150).map(message)).await;
    let builder = one_at_a_time(&spy, stops_at("110", &go, &runs)).look_ahead(20);
    let (processor, stop) = (builder.build().unwrap(), CancellationToken::new());
    let shutdown = stop.clone();
    let running = tokio::spawn(async move { processor.run(shutdown).await });
    eventually("stopped", async || runs.load(SeqCst) == 11).await;
    stop.cancel();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(spy.count(State::Leased).await, 1);
    go.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.processed, summary.abandoned), (11, 0));
    assert!(summary.released > 0);
    for record in spy.records().await {
        let is_processed = record.state == State::Processed;
        assert_eq!(record.attempts.started, u32::from(is_processed));
    }
}

/// If its process were killed, it would be dead without having been run.
#[tokio::test(start_paused = true)]
async fn a_message_on_its_last_attempt_does_not_wait() {
    let spy = spy();
    spy.receive_all((0..60).map(message)).await;
    let (store, looks) = (spy.clone(), Arc::new(AtomicUsize::new(0)));
    let count = looks.clone();
    let handler = move |context: Context| {
        let (store, count) = (store.clone(), count.clone());
        async move {
            if context.attempts().started < 2 {
                sleep(Duration::from_millis(1)).await;
                return Err(Failure::retry("not yet"));
            }
            // What was handed back for it has been stored by then.
            sleep(Duration::from_millis(4)).await;
            let records = store.records().await;
            let is_held =
                |record: &&Record| record.state == State::Leased && record.attempts.started == 2;
            assert_eq!(records.iter().filter(is_held).count(), 1);
            count.fetch_add(1, SeqCst);
            Ok(())
        }
    };
    let builder = one_at_a_time(&spy, handler).retry(at_once(2));
    let summary = until_idle(builder.look_ahead(20)).await;
    assert_eq!((summary.processed, looks.load(SeqCst)), (60, 60));
    // Of what comes back on its last attempt, not each claim brings all.
    assert!(summary.released < 60, "{summary:?}");
    let limits = spy.claim_limits.lock().unwrap().clone();
    assert!(limits.iter().any(|limit| *limit > 10), "{limits:?}");
}

/// A suspect, whose attempt is the last, least of all; and it needs none of what others occupy.
#[tokio::test(start_paused = true)]
async fn a_suspect_waits_for_no_other_router() {
    let (answers, go) = (Arc::new(Semaphore::new(0)), CancellationToken::new());
    let mut spy = Spy::new();
    spy.follow_the_runtime();
    spy.claim_gate = Some(answers.clone());
    let spy = Arc::new(spy);
    let other = HandlerName::new("other").unwrap();
    let suspect = message("suspect").for_handler(other.clone());
    let key = suspect.key().clone();
    spy.receive_all([suspect]).await;
    let worker = WorkerName::new("crasher").unwrap();
    let length = Duration::from_secs(1);
    let claimed = spy.inner.claim_for(&other, 1, length, &worker).await;
    assert_eq!(claimed.unwrap().leased.len(), 1);
    spy.receive_all((100..180).map(message)).await;
    // What runs when the suspect is claimed takes long.
    let (watch, gate, watched) = (spy.clone(), go.clone(), key.clone());
    let handler = move |_: Context| {
        let (watch, gate, key) = (watch.clone(), gate.clone(), watched.clone());
        async move {
            for _ in 0..100 {
                sleep(Duration::from_micros(200)).await;
                let suspect = watch.inner.get(&key).await.unwrap().unwrap();
                if suspect.attempts.started == 2 {
                    gate.cancelled().await;
                }
            }
            Ok::<_, Failure>(())
        }
    };
    let served = Router::new(other).on("order.placed", async |_: Context| Ok::<_, Failure>(()));
    let builder = one_at_a_time(&spy, handler).router(served);
    let builder = builder.retry(at_once(2)).look_ahead(20);
    let (processor, stop) = (builder.build().unwrap(), CancellationToken::new());
    let shutdown = stop.clone();
    let running = tokio::spawn(async move { processor.run(shutdown).await });
    let answering = tokio::spawn(async move {
        loop {
            sleep(Duration::from_millis(1)).await;
            answers.add_permits(1 - answers.available_permits());
        }
    });
    sleep(Duration::from_secs(10)).await;
    let record = spy.inner.get(&key).await.unwrap().unwrap();
    let state = (record.state, record.attempts.started);
    assert_eq!(state, (State::Processed, 2));
    assert_eq!(spy.count(State::Leased).await, 1);
    go.cancel();
    eventually("done", async || spy.count(State::Processed).await == 81).await;
    stop.cancel();
    assert_eq!(running.await.unwrap().unwrap().lease_lost, 0);
    answering.abort();
}

/// It would come with a good part of its lease behind it, and go back at once.
#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_ahead_of_a_store_that_answers_slowly() {
    let spy = spy();
    spy.receive_all((0..20).map(message)).await;
    let handler = |_: Context| async {
        sleep(Duration::from_millis(1)).await;
        Ok::<_, Failure>(())
    };
    let slow = spy.clone();
    let slowness = tokio::spawn(async move {
        loop {
            slow.disturb("claim", Trouble::HoldAnswer);
            sleep(Duration::from_millis(1500)).await;
            slow.calm("claim");
            sleep(Duration::from_micros(10)).await;
        }
    });
    let summary = until_idle(one_at_a_time(&spy, handler).look_ahead(20)).await;
    slowness.abort();
    assert_eq!(summary.processed, 20);
    assert!(summary.released < 3, "{summary:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_of_an_ordering_key_run_in_order_also_when_they_are_claimed_ahead() {
    let spy = spy();
    let keyed = |n: usize| {
        let key = OrderingKey::new(format!("customer-{}", n % 5)).unwrap();
        message(format!("{n:03}")).with_ordering_key(key)
    };
    spy.receive_all((0..100).map(keyed)).await;
    let done = Arc::new(Mutex::new(Vec::new()));
    let log = done.clone();
    let handler = move |context: Context| {
        let log = log.clone();
        async move {
            let message = context.message();
            if message.id().as_str().ends_with('3') && context.attempts().started < 3 {
                return Err(Failure::retry("not yet"));
            }
            let key = message.ordering_key().cloned();
            log.lock().unwrap().push((key, message.id().to_string()));
            Ok(())
        }
    };
    let builder = one_at_a_time(&spy, handler)
        .retry(at_once(5))
        .look_ahead(20);
    assert_eq!(until_idle(builder).await.processed, 100);
    let mut done = done.lock().unwrap().clone();
    // Stable: the order within each key stays.
    done.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(done.is_sorted());
}

#[tokio::test]
async fn the_look_ahead_has_a_bound() {
    let spy = spy();
    let handler = |_: Context| async { Ok::<_, Failure>(()) };
    let router = Router::new(billing()).on("order.placed", handler);
    let builder = Processor::builder(spy).router(router);
    let refusal = builder.look_ahead(65_537).build().unwrap_err();
    assert!(matches!(refusal, Invalid::OutOfRange { .. }));
}
