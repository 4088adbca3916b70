//! Failed attempts: what is returned, kept, counted and told.

use super::*;

use crate::logged;

#[tokio::test]
async fn errors_are_returned_retried_and_fatal_at_the_limit() {
    let bench = bench();
    for attempt in 1..=3 {
        let answer = bench.consume(&message(1), Err("no funds")).await;
        // The last one is told apart: there is nothing left to deliver again for.
        is(
            &answer,
            if attempt < 3 {
                "Handler"
            } else {
                "Dead(Failed"
            },
        );
        assert_eq!(answer.unwrap_err().is_final(), attempt == 3);
        let record = bench.record(&message(1)).await;
        assert_eq!(record.attempts.finished, attempt);
        assert_eq!(record.last_error.as_deref(), Some("no funds"));
        if attempt < 3 {
            assert_eq!(record.state, State::Pending);
            // Not before the policy's delay.
            is(&bench.consume(&message(1), Ok(None)).await, "Busy");
            bench.clock.advance(Duration::from_secs(24 * 3600));
        } else {
            assert_eq!(record.state, State::Dead);
        }
    }
    is(&bench.consume(&message(1), Ok(None)).await, "Dead");
    assert_eq!(bench.runs(), 3);
}

#[tokio::test]
async fn deaths_and_failures_are_told() {
    let (log, _guard) = logged::Log::of(tracing::Level::WARN);
    let bench = bench();
    let told = Told::default();
    let consumer = bench.consumer.clone().hooks(told.clone()).retry(policy(2));
    for _ in 0..2 {
        let fail = async |_| Err::<Option<Bytes>, _>("no funds");
        assert!(consumer.consume(&message(1), fail).await.is_err());
        bench.clock.advance(Duration::from_secs(24 * 3600));
    }
    for _ in 0..2 {
        let _vanished = bench.hold(&message(2), Duration::from_secs(1)).await;
        bench.clock.advance(Duration::from_secs(2));
    }
    let run = async |_| Ok::<_, String>(None);
    is(&consumer.consume(&message(2), run).await, "Dead");
    let expected = ["failed 1: no funds", "dead 1: no funds", "dead 2"];
    while told.0.lock().unwrap().len() < 3 {
        tokio::task::yield_now().await;
    }
    let told = told.0.lock().unwrap().clone();
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told}");
    }
    assert_eq!(log.lines(&["giving up"]).len(), 2, "{}", log.text());
}

#[derive(Clone, Default)]
struct Told(Arc<std::sync::Mutex<Vec<String>>>);

#[async_trait::async_trait]
impl inbox::Hooks for Told {
    async fn attempt_failed(&self, message: &Leased, error: &str, _: Duration) {
        let text = format!("failed {}: {error}", message.message.id());
        self.0.lock().unwrap().push(text);
    }

    async fn dead_lettered(&self, message: &Leased, reason: &str) {
        let text = format!("dead {}: {reason}", message.message.id());
        self.0.lock().unwrap().push(text);
    }
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_can_go_on() {
    let bench = bench();
    let answer = bench
        .consumer
        .consume(&message(1), async |_| -> Result<Option<Bytes>, String> {
            let index = std::hint::black_box(7);
            panic!("index {index}")
        })
        .await;
    let Err(ConsumeError::Panicked(panic)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(panic.to_string(), "the handler panicked: index 7");
    let record = bench.record(&message(1)).await;
    assert_eq!(
        (record.state, record.attempts.finished),
        (State::Pending, 1)
    );
    let gone_on = std::panic::catch_unwind(|| panic.resume()).unwrap_err();
    assert_eq!(gone_on.downcast_ref::<String>().unwrap(), "index 7");
    // A panic before the first await is contained as well.
    let sync = |_: Leased| -> std::future::Ready<Result<Option<Bytes>, String>> { panic!("early") };
    is(&bench.consumer.consume(&message(2), sync).await, "Panicked");
}

#[tokio::test]
async fn a_message_that_crashed_its_workers_too_often_is_dead_instead_of_run() {
    let bench = bench();
    for _ in 0..3 {
        let _vanished = bench.hold(&message(1), Duration::from_secs(1)).await;
        bench.clock.advance(Duration::from_secs(2));
    }
    is(&bench.consume(&message(1), Ok(None)).await, "Dead");
    assert_eq!(bench.runs(), 0);
    let record = bench.record(&message(1)).await;
    assert_eq!(record.state, State::Dead);
    assert!(record.last_error.unwrap().contains('3'));
}

#[tokio::test]
async fn attempts_that_are_used_up_because_fewer_are_allowed_now_did_not_crash() {
    let mut bench = bench();
    for _ in 0..2 {
        is(
            &bench.consume(&message(1), Err("no funds")).await,
            "Handler",
        );
        bench.clock.advance(Duration::from_secs(3600));
    }
    bench.consumer = bench.consumer.clone().retry(policy(2));
    is(&bench.consume(&message(1), Ok(None)).await, "Dead");
    assert_eq!(bench.runs(), 2);
    let reason = bench.record(&message(1)).await.last_error.unwrap();
    assert_eq!(
        reason,
        "attempts used up: 2 have failed, and 2 are allowed now"
    );
}

#[derive(Debug, thiserror::Error)]
enum Charge {
    #[error("the bank does not answer")]
    Bank(#[from] std::io::Error),
    #[error("the card was declined")]
    Declined,
}

fn bank() -> Charge {
    Charge::Bank(std::io::Error::other("connection reset"))
}

#[tokio::test]
async fn an_error_of_any_type_is_kept_with_its_type_and_sources() {
    let bench = bench();
    let fail = async |_: Leased| Err::<Option<Bytes>, _>(bank());
    let answer = bench.consumer.consume(&message(1), fail).await;
    let Err(ConsumeError::Handler(failure)) = answer else {
        panic!("{answer:?}");
    };
    // The caller has the error itself.
    assert!(matches!(failure.find::<Charge>(), Some(Charge::Bank(_))));
    let kept = bench.record(&message(1)).await.last_error.unwrap();
    let place = module_path!();
    assert_eq!(
        kept,
        format!("{place}::Charge: the bank does not answer: connection reset")
    );
}

#[tokio::test]
async fn errors_are_classified_as_those_of_a_processor() {
    let bench = bench();
    let consumer = bench
        .consumer
        .clone()
        .classify(|_: &std::io::Error| Remedy::Defer(Duration::from_secs(60)))
        .classify(|error: &Charge| match error {
            Charge::Declined => Remedy::Dead,
            Charge::Bank(_) => Remedy::Retry,
        });
    let answer = consumer
        .consume(&message(1), async |_| Err::<Option<Bytes>, _>(bank()))
        .await;
    is(&answer, "Handler");
    let deferred = bench.record(&message(1)).await;
    assert_eq!(deferred.state, State::Pending);
    // It costs no attempt.
    assert_eq!(deferred.attempts.started, 0);
    let answer = consumer
        .consume(&message(2), async |_| {
            Err::<Option<Bytes>, _>(Charge::Declined)
        })
        .await;
    is(&answer, "Dead(Failed");
    assert!(answer.unwrap_err().is_final());
    assert_eq!(bench.record(&message(2)).await.state, State::Dead);
}

#[tokio::test]
async fn an_error_may_have_a_retry_policy_of_its_own() {
    let bench = bench();
    let once = RetryPolicy::default().with_max_attempts(1);
    let consumer = bench.consumer.clone().retry_on::<std::io::Error>(once);
    let answer = consumer
        .consume(&message(1), async |_| Err::<Option<Bytes>, _>(bank()))
        .await;
    is(&answer, "Dead(Failed");
    let answer = consumer
        .consume(&message(2), async |_| {
            Err::<Option<Bytes>, _>(Charge::Declined)
        })
        .await;
    is(&answer, "Handler");
}

#[tokio::test]
async fn what_a_handler_decides_itself_stands() {
    let bench = bench();
    let consumer = bench.consumer.clone().classify(|_: &Charge| Remedy::Retry);
    for (id, failure, state, started) in [
        (1, Failure::dead(Charge::Declined), State::Dead, 1),
        (
            2,
            Failure::defer(Duration::from_secs(60), "later"),
            State::Pending,
            0,
        ),
        (
            3,
            Failure::pause(Duration::from_secs(60), "closed"),
            State::Pending,
            0,
        ),
        (
            4,
            Failure::retry_after(Duration::from_secs(60), "limit"),
            State::Pending,
            1,
        ),
    ] {
        let fail = async |_: Leased| Err::<Option<Bytes>, _>(failure);
        assert!(consumer.consume(&message(id), fail).await.is_err());
        let record = bench.record(&message(id)).await;
        assert_eq!((record.state, record.attempts.started), (state, started));
        assert_eq!(
            state == State::Pending,
            record.due_at >= record.accepted_at + Duration::from_secs(60)
        );
    }
    // Nothing is to be settled of a lease that is another's.
    let lost = async |_: Leased| Err::<Option<Bytes>, _>(Failure::lease_lost());
    is(&consumer.consume(&message(5), lost).await, "LeaseLost");
    assert_eq!(bench.record(&message(5)).await.state, State::Leased);
}

/// Defect: when the answer to its commit was lost, the last attempt was told as dead, and the message was processed.
#[tokio::test]
async fn a_handler_that_has_settled_without_knowing_it_is_no_dead_letter() {
    let bench = bench();
    let told = Told::default();
    let consumer = bench.consumer.clone().retry(policy(1));
    let consumer = consumer
        .hooks(told.clone())
        .on_duplicate(OnDuplicate::ReturnResult);
    let settle = async |leased: &Leased| {
        let result = Some(Bytes::from("receipt"));
        let outcome = Outcome::Processed { result };
        let settled = bench.inbox.settle_one(&leased.lease, outcome).await;
        assert_eq!(settled.unwrap(), inbox::Settled::Done);
    };
    let fails = async |leased: Leased| {
        settle(&leased).await;
        Err::<Option<Bytes>, _>(Failure::from("no answer to the commit"))
    };
    let panics = async |leased: Leased| -> Result<Option<Bytes>, Failure> {
        settle(&leased).await;
        panic!("no answer to the commit")
    };
    let answer = consumer
        .consume_settling(&message(1), fails, Failure::clone)
        .await;
    assert_eq!(answer.unwrap(), duplicate(Some("receipt")));
    let answer = consumer
        .consume_settling(&message(2), panics, Failure::clone)
        .await;
    assert_eq!(answer.unwrap(), duplicate(Some("receipt")));
    // One that has not settled is dead.
    let fails = async |_| Err::<Option<Bytes>, _>(Failure::from("no funds"));
    let answer = consumer
        .consume_settling(&message(3), fails, Failure::clone)
        .await;
    is(&answer, "Dead(Failed");
    assert_eq!(bench.record(&message(3)).await.state, State::Dead);
    assert!(consumer.drain(Duration::from_secs(60)).await);
    assert_eq!(*told.0.lock().unwrap(), ["dead 3: no funds"]);
}

#[tokio::test]
async fn what_was_replayed_behind_a_last_attempt_is_left_to_its_next_delivery() {
    let bench = bench();
    let consumer = bench.consumer.clone().retry(policy(1));
    let fails = async |leased: Leased| {
        let dead = Outcome::Dead {
            reason: "set aside".into(),
            after: AfterDead::Continue,
        };
        let settled = bench.inbox.settle_one(&leased.lease, dead).await;
        assert_eq!(settled.unwrap(), inbox::Settled::Done);
        let as_it_is = Edit::default();
        let replayed = bench.inbox.replay(&leased.lease.key, &as_it_is);
        assert_eq!(replayed.await.unwrap(), Intervention::Done);
        Err::<Option<Bytes>, _>(Failure::from("no funds"))
    };
    let answer = consumer
        .consume_settling(&message(1), fails, Failure::clone)
        .await;
    is(&answer, "Handler");
    let record = bench.record(&message(1)).await;
    let started = record.attempts.started;
    assert_eq!((record.state, started), (State::Pending, 0));
}

/// Defect: before the last attempt it was told as a failure, and its caller told to come again.
#[tokio::test]
async fn a_settlement_whose_answer_is_lost_is_no_failed_attempt() {
    let bench = bench();
    let told = Told::default();
    let consumer = bench.consumer.clone().hooks(told.clone());
    let consumer = consumer.on_duplicate(OnDuplicate::ReturnResult);
    let settle = async |leased: &Leased| {
        let result = Some(Bytes::from("receipt"));
        let outcome = Outcome::Processed { result };
        let settled = bench.inbox.settle_one(&leased.lease, outcome).await;
        assert_eq!(settled.unwrap(), inbox::Settled::Done);
    };
    let later = Duration::from_secs(60);
    for (id, failure) in [
        (1, Failure::from(lost())),
        (2, Failure::defer(later, lost())),
    ] {
        let fails = async |leased: Leased| {
            settle(&leased).await;
            Err::<Option<Bytes>, _>(failure)
        };
        let answer = consumer
            .consume_settling(&message(id), fails, Failure::clone)
            .await;
        assert_eq!(answer.unwrap(), duplicate(Some("receipt")));
    }
    let panics = async |leased: Leased| -> Result<Option<Bytes>, Failure> {
        settle(&leased).await;
        panic!("no answer to the commit")
    };
    let answer = consumer
        .consume_settling(&message(3), panics, Failure::clone)
        .await;
    assert_eq!(answer.unwrap(), duplicate(Some("receipt")));
    assert!(consumer.drain(Duration::from_secs(60)).await);
    assert_eq!(*told.0.lock().unwrap(), [""; 0]);
}

fn lost() -> inbox::Error {
    let error = inbox::Error::new(ErrorKind::Unavailable, "no answer to the commit");
    error.with_effect(Effect::Unknown)
}

#[tokio::test]
async fn a_settlement_that_has_not_taken_place_is_a_failed_attempt() {
    let bench = bench();
    let told = Told::default();
    let consumer = bench.consumer.clone().hooks(told.clone());
    let at_once = policy(3).with_delays(Duration::ZERO, Duration::ZERO);
    for (id, consumer) in [(1, consumer.clone()), (2, consumer.clone().retry(at_once))] {
        let fails = async |_| Err::<Option<Bytes>, _>(Failure::from(lost()));
        let answer = consumer
            .consume_settling(&message(id), fails, Failure::clone)
            .await;
        is(&answer, "Handler");
        let record = bench.record(&message(id)).await;
        assert_eq!((record.state, record.attempts.started), (State::Pending, 1));
    }
    // Where there is no doubt, the store is not asked once more.
    let begins = bench.store.calls("begin");
    let fails = async |_| Err::<Option<Bytes>, _>(Failure::from("no funds"));
    let answer = consumer
        .consume_settling(&message(3), fails, Failure::clone)
        .await;
    is(&answer, "Handler");
    assert_eq!(bench.store.calls("begin"), begins + 1);
    assert!(consumer.drain(Duration::from_secs(60)).await);
    let told = told.0.lock().unwrap().clone();
    assert_eq!(told.len(), 3, "{told:?}");
    for id in 1..=3 {
        let start = format!("failed {id}: ");
        assert!(told.iter().any(|one| one.starts_with(&start)), "{told:?}");
    }
}

/// Defect: that a copy runs here, for which no store is asked, counted as the store's return.
#[tokio::test(start_paused = true)]
async fn a_copy_of_what_runs_does_not_end_an_outage() {
    let (log, _guard) = logged::Log::of(tracing::Level::INFO);
    let bench = bench_with(Duration::from_secs(3600));
    let run = async |id: u32, length: u64| {
        let handler = async |_: Leased| {
            tokio::time::sleep(Duration::from_secs(length)).await;
            Ok::<_, String>(None)
        };
        bench.consumer.consume(&message(id), handler).await
    };
    let lose = || {
        bench
            .store
            .plan("begin", [Fault::After(ErrorKind::Unavailable)]);
    };
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        lose();
        is(&run(2, 0).await, "Store");
        for _ in 0..2 {
            is(&run(1, 0).await, "Busy");
            tokio::time::sleep(Duration::from_secs(11)).await;
        }
        lose();
        is(&run(3, 0).await, "Store");
    };
    let (first, ()) = tokio::join!(run(1, 60), meanwhile);
    assert!(first.is_ok(), "{first:?}");
    assert_eq!(log.lines(&["store unavailable"]).len(), 1, "{}", log.text());
    assert!(log.lines(&["available again"]).is_empty(), "{}", log.text());
}

/// Defect: an outbox in another database that was away was told as an outage of this store.
#[tokio::test]
async fn what_a_settling_handler_sends_elsewhere_is_no_outage_of_this_store() {
    let (log, _guard) = logged::Log::of(tracing::Level::WARN);
    let bench = bench();
    let away = || inbox::Error::new(ErrorKind::Unavailable, "connection refused");
    let fails = async |error: inbox::Error| {
        let fails = async |_: Leased| Err::<Option<Bytes>, _>(Failure::from(error));
        let consumer = &bench.consumer;
        let message = message(1);
        let answer = consumer.consume_settling(&message, fails, Failure::clone);
        is(&answer.await, "Handler");
        bench.clock.advance(Duration::from_secs(24 * 3600));
    };
    fails(away().in_operation("receive")).await;
    let told = || log.lines(&["store unavailable"]).len();
    assert_eq!(told(), 0, "{}", log.text());
    fails(away().in_operation("commit")).await;
    assert_eq!(told(), 1, "{}", log.text());
}

/// Defect: each renewal of each lease was a warning, and so was each message.
#[tokio::test(start_paused = true)]
async fn an_outage_is_told_once_however_many_messages_meet_it() {
    let (log, _guard) = logged::Log::of(tracing::Level::WARN);
    let bench = bench();
    let run = async |id: u32, length: u64| {
        let handler = async |_: Leased| {
            tokio::time::sleep(Duration::from_secs(length)).await;
            Ok::<_, String>(None)
        };
        bench.consumer.consume(&message(id), handler).await
    };
    let away = Fault::Before(ErrorKind::Unavailable);
    bench.store.plan("extend", vec![away; 6]);
    let (first, second) = tokio::join!(run(1, 20), run(2, 20));
    assert!(first.is_ok() && second.is_ok());
    let lose = || {
        bench
            .store
            .plan("begin", [Fault::After(ErrorKind::Unavailable)]);
    };
    lose();
    is(&run(3, 0).await, "Store");
    let warnings = || log.lines(&["WARN"]);
    assert_eq!(warnings().len(), 1, "{:?}", warnings());
    assert!(warnings()[0].contains("inbox::outage"), "{:?}", warnings());
    // The next one is told again, once this one is over for good.
    for id in [4, 5] {
        assert!(run(id, 11).await.is_ok());
    }
    lose();
    is(&run(6, 0).await, "Store");
    assert_eq!(warnings().len(), 2, "{:?}", warnings());
}
