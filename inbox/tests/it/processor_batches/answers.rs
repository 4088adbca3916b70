//! What becomes of messages by the answers of their batch, or without any.

use std::time::Duration;

use inbox::{
    Batch, Batches, CircuitBreaker, Completion, Failure, Invalid, Outcome, Processor, Rate, Remedy,
    State,
};
use tokio::time::Instant;

use super::*;

/// An error that a handler passes on.
#[derive(Debug, thiserror::Error)]
#[error("no such order")]
struct NoSuchOrder;

#[tokio::test(start_paused = true)]
async fn a_batch_is_what_a_claim_brings_up_to_its_size() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..250).map(message)).await;
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        seen.add(&batch);
        async { Ok::<_, Failure>(()) }
    };
    let summary = until_idle_by_a_paused_clock(processor(&spy, router(handler)).batch(7)).await;
    assert_eq!((summary.claimed, summary.processed), (250, 250));
    assert_eq!(runs.sizes(), [100, 100, 50]);
    assert!(
        spy.claim_limits
            .lock()
            .unwrap()
            .iter()
            .all(|limit| *limit == 100)
    );
    let in_order: Vec<_> = (0..250).map(|n| n.to_string()).collect();
    assert_eq!(runs.all().concat(), in_order);
}

#[tokio::test(start_paused = true)]
async fn each_message_ends_by_its_own_answer() {
    let spy = spy();
    spy.receive_all(["done", "result", "retry", "dead", "defer", "passed"].map(message))
        .await;
    let handler = |batch: Batch| async move {
        let answers = batch
            .iter()
            .map(|context| match context.message().id().as_str() {
                "result" => Ok(Completion::with_result("kept")),
                "retry" => Err(Failure::retry_after(Duration::from_secs(600), "later")),
                "dead" => Err(Failure::dead("never")),
                "defer" => Err(Failure::defer(Duration::from_secs(600), "not now")),
                "passed" => Err(NoSuchOrder.into()),
                _ => Ok(Completion::default()),
            });
        Ok::<_, Failure>(answers.collect::<Vec<_>>())
    };
    let told = Told::default();
    let router = router(handler).classify(|_: &NoSuchOrder| Remedy::Dead);
    let summary = until_idle_by_a_paused_clock(processor(&spy, router).hooks(told.clone())).await;
    assert_eq!((summary.processed, summary.retried), (2, 1));
    assert_eq!((summary.dead, summary.deferred), (2, 1));
    assert_eq!(spy.record("result").await.result.unwrap(), "kept");
    let ends = [
        ("done", State::Processed, 1),
        ("retry", State::Pending, 1),
        ("dead", State::Dead, 1),
        ("defer", State::Pending, 0),
        ("passed", State::Dead, 1),
    ];
    for (id, state, attempts) in ends {
        let record = spy.record(id).await;
        assert_eq!(
            (record.state, record.attempts.started),
            (state, attempts),
            "{id}"
        );
    }
    assert!(
        told.all()
            .iter()
            .any(|text| text.starts_with("dead passed: "))
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_spoils_its_batch_is_found_within_the_attempt() {
    for how in ["panic", "error", "dead", "few", "slow"] {
        let (spy, runs) = (spy(), Runs::default());
        spy.receive_all(with_one("bad", 99)).await;
        let seen = runs.clone();
        let handler = move |batch: Batch| {
            seen.add(&batch);
            async move {
                let is_bad = has(&batch, "bad");
                match how {
                    "panic" if is_bad => panic!("bad"),
                    "error" if is_bad => return Err(NoSuchOrder.into()),
                    "dead" if is_bad => return Err(Failure::dead("bad")),
                    "slow" if is_bad => std::future::pending().await,
                    _ => {}
                }
                let missing = usize::from(is_bad && how == "few");
                Ok(vec![Ok::<_, Failure>(()); batch.len() - missing])
            }
        };
        let policy = at_once(1).with_max_attempts(1);
        let router = router(handler)
            .timeout(Duration::from_secs(3))
            .retry(policy);
        let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
        assert_eq!((summary.processed, summary.dead), (99, 1), "{how}");
        let bad = spy.record("bad").await;
        assert_eq!((bad.state, bad.attempts.started), (State::Dead, 1), "{how}");
        let reason = bad.last_error.unwrap();
        let expected = match how {
            "panic" => "panicked: bad",
            "error" => "no such order",
            "dead" => "bad",
            "few" => "the batch handler gave 0 answers for 1 messages",
            _ => "timed out",
        };
        assert!(reason.ends_with(expected), "{how}: {reason}");
        // Two for each halving of a hundred, and the first.
        assert!(runs.len() <= 15, "{how}: {:?}", runs.sizes());
        assert_eq!(runs.sizes()[0], 100, "{how}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_not_searched_for_in_each_message() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..100).map(message)).await;
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        seen.add(&batch);
        async { Err::<(), _>(Failure::retry("the bank is closed")) }
    };
    let later = Duration::from_secs(600);
    let policy = at_once(3).with_delays(later, later);
    let summary =
        until_idle_by_a_paused_clock(processor(&spy, router(handler).retry(policy))).await;
    assert_eq!((summary.retried, summary.processed), (100, 0));
    assert!(runs.len() < 30, "{:?}", runs.sizes());
    assert_eq!(runs.sizes().iter().filter(|size| **size == 1).count(), 8);
    for record in spy.records().await {
        assert_eq!(
            (record.state, record.attempts.finished),
            (State::Pending, 1)
        );
        assert!(record.last_error.unwrap().ends_with("the bank is closed"));
    }
}

#[tokio::test(start_paused = true)]
async fn on_its_last_attempt_each_message_is_run_by_itself_before_it_dies() {
    let (spy, runs) = (spy(), Runs::default());
    // The good one is behind more bad ones than are tried in a row.
    let bad = (0..20).map(|n| format!("bad-{n}"));
    let all = bad.chain([String::from("good")]);
    spy.receive_all(all.map(message)).await;
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        seen.add(&batch);
        async move {
            match ids(&batch).iter().any(|id| id.starts_with("bad")) {
                true => Err(Failure::retry("bad")),
                false => Ok(()),
            }
        }
    };
    let summary =
        until_idle_by_a_paused_clock(processor(&spy, router(handler).retry(at_once(2)))).await;
    assert_eq!((summary.processed, summary.dead), (1, 20));
    assert_eq!(spy.record("good").await.attempts.started, 2);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_put_off_is_not_run_in_halves() {
    for is_pause in [false, true] {
        let (spy, runs) = (spy(), Runs::default());
        spy.receive_all((0..10).map(message)).await;
        let seen = runs.clone();
        let handler = move |batch: Batch| {
            seen.add(&batch);
            let is_first = seen.len() == 1;
            async move {
                let later = Duration::from_secs(20);
                match is_pause {
                    _ if !is_first => Ok(()),
                    true => Err(Failure::pause(later, "closed")),
                    false => Err(Failure::defer(later, "closed")),
                }
            }
        };
        let builder = processor(&spy, router(handler)).build().unwrap();
        let operate = spy.inner.clone();
        let summary = builder
            .run_until_drained(operate, CancellationToken::new())
            .await
            .unwrap();
        assert_eq!((summary.deferred, summary.processed), (10, 10));
        assert_eq!(runs.sizes(), [10, 10]);
        let attempts = |record: &inbox::Record| record.attempts.started;
        assert!(
            spy.records()
                .await
                .iter()
                .map(attempts)
                .all(|started| started == 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_tried_again_is_not_put_together_with_what_is_new() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..3).map(|n| message(format!("old-{n}"))))
        .await;
    let (seen, store) = (runs.clone(), spy.clone());
    let handler = move |batch: Batch| {
        seen.add(&batch);
        let (is_first, store) = (seen.len() == 1, store.clone());
        async move {
            if is_first {
                store
                    .receive_all((0..3).map(|n| message(format!("new-{n}"))))
                    .await;
            }
            let answer = |_| {
                if is_first {
                    Err(Failure::retry("once"))
                } else {
                    Ok(())
                }
            };
            Ok::<_, Failure>((0..batch.len()).map(answer).collect::<Vec<_>>())
        }
    };
    let router = router(handler).batches(Batches::up_to(100).at_once(1));
    until_idle_by_a_paused_clock(processor(&spy, router.retry(at_once(3)))).await;
    let mut batches = runs.all();
    assert_eq!(batches.remove(0), ["old-0", "old-1", "old-2"]);
    for batch in &batches {
        let old = batch.iter().filter(|id| id.starts_with("old")).count();
        assert!(old == 0 || old == batch.len(), "{batch:?}");
    }
    assert_eq!(batches.concat().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn what_has_crashed_a_worker_is_alone_in_its_batch() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..10).map(message)).await;
    assert_eq!(spy.crash(10).await.len(), 10);
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        seen.add(&batch);
        async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok::<_, Failure>(())
        }
    };
    let summary = until_idle_by_a_paused_clock(processor(&spy, router(handler))).await;
    assert_eq!(summary.processed, 10);
    assert_eq!(runs.sizes(), [1; 10]);
    // After the first look, no more are claimed than can run.
    assert!(summary.released <= 8, "{summary:?}");
    spy.receive_all((10..30).map(message)).await;
    until_idle_by_a_paused_clock(processor(
        &spy,
        router(|_: Batch| async { Ok::<_, Failure>(()) }),
    ))
    .await;
    assert_eq!(spy.count(State::Processed).await, 30);
}

#[tokio::test(start_paused = true)]
async fn a_batch_takes_as_much_of_a_rate_as_it_has_messages() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..30).map(message)).await;
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        seen.add(&batch);
        async { Ok::<_, Failure>(()) }
    };
    let began = Instant::now();
    let rate = Rate::new(10, Duration::from_secs(1)).burst(5);
    until_idle_by_a_paused_clock(processor(&spy, router(handler).rate(rate))).await;
    assert!(
        runs.sizes().iter().all(|size| *size <= 5),
        "{:?}",
        runs.sizes()
    );
    let elapsed = began.elapsed();
    assert!(elapsed >= Duration::from_millis(2400), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_circuit_opens_by_the_messages_of_a_batch_and_tries_few() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..50).map(message)).await;
    let (seen, began) = (runs.clone(), Instant::now());
    let handler = move |batch: Batch| {
        seen.add(&batch);
        async move {
            match began.elapsed() < Duration::from_secs(60) {
                true => Err(Failure::retry("closed")),
                false => Ok(()),
            }
        }
    };
    let breaker = CircuitBreaker::new().probes(3);
    let router = router(handler).circuit_breaker(breaker).retry(at_once(2));
    let processor = processor(&spy, router).build().unwrap();
    let summary = processor
        .run_until_drained(spy.inner.clone(), CancellationToken::new())
        .await
        .unwrap();
    // More attempts than two fail, but those behind the open circuit do not count.
    assert_eq!((summary.processed, summary.dead), (50, 0), "{summary:?}");
    assert!(summary.deferred >= 50 - 10);
    let tried: Vec<_> = runs
        .sizes()
        .into_iter()
        .skip_while(|size| *size > 3)
        .collect();
    assert!(tried.len() > 3, "{:?}", runs.sizes());
}

#[tokio::test]
async fn a_rehearsal_runs_batches_too() {
    let handler = |batch: Batch| async move {
        match has(&batch, "bad") {
            true => Err(Failure::dead("bad")),
            false => Ok(vec![
                Ok::<_, Failure>(Completion::with_result("r"));
                batch.len()
            ]),
        }
    };
    let processor = Processor::builder(spy())
        .router(router(handler))
        .build()
        .unwrap();
    let done = Outcome::Processed {
        result: Some("r".into()),
    };
    assert_eq!(processor.rehearse(&message("good"), 1).await, done);
    let mut messages = with_one("bad", 6);
    messages.push(message_of("unknown", "unknown", ""));
    let outcomes = processor.rehearse_batch(&messages, 1).await;
    assert_eq!(outcomes.len(), 8);
    for (message, outcome) in messages.iter().zip(&outcomes) {
        match message.id().as_str() {
            "bad" => assert!(matches!(outcome, Outcome::Dead { .. })),
            "unknown" => assert!(matches!(outcome, Outcome::Defer { .. })),
            _ => assert_eq!(*outcome, done),
        }
    }
}

#[test]
fn batches_without_sense_are_refused() {
    for batches in [
        Batches::up_to(0),
        Batches::up_to(65_537),
        Batches::up_to(1).at_once(0),
        Batches::up_to(1).linger(Duration::MAX),
    ] {
        let router = router(|_: Batch| async { Ok::<_, Failure>(()) }).batches(batches);
        let refused = Processor::builder(spy())
            .router(router)
            .build()
            .unwrap_err();
        assert!(matches!(
            refused,
            Invalid::OutOfRange {
                what: "batches",
                ..
            }
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn what_nothing_is_before_cannot_be_handed_back_for_ever() {
    for whole in [false, true] {
        let spy = spy();
        spy.receive_all((0..3).map(message)).await;
        let handler = move |batch: Batch| async move {
            match whole {
                true => Err(Failure::not_reached()),
                false => Ok(vec![Err::<(), _>(Failure::not_reached()); batch.len()]),
            }
        };
        let router = router(handler).retry(at_once(3));
        let running = until_idle_by_a_paused_clock(processor(&spy, router));
        let summary = tokio::time::timeout(Duration::from_secs(60), running).await;
        let summary = summary.expect("they come again and again");
        assert_eq!((summary.released, summary.dead), (0, 3));
    }
}

/// A mistake in a rule is the failure of what it looks at, and of nothing else.
#[tokio::test(start_paused = true)]
async fn a_rule_that_panics_fails_one_message() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(with_one("odd", 20)).await;
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        seen.add(&batch);
        async move {
            match has(&batch, "odd") {
                true => Err(std::io::Error::other("cannot be read")),
                false => Ok(()),
            }
        }
    };
    let router = router(handler)
        .retry(at_once(3))
        .classify(|_: &std::io::Error| -> Remedy { panic!("a mistake in the rule") });
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.dead), (20, 1));
    let record = spy.record("odd").await;
    assert_eq!(record.state, State::Dead);
    let error = record.last_error.unwrap();
    assert!(
        error.ends_with("panicked: a mistake in the rule"),
        "{error}"
    );
}
