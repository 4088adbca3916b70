//! The inline consumer on a real store: one run per key, whatever fails.

mod failures;

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox::{
    AfterDead, Begun, Bytes, Clock, Edit, Effect, ErrorKind, Failure, Inbox, Intervention, Lease,
    LeaseTerms, Leased, Message, OrderingKey, Outcome, Remedy, RetryPolicy, State, StoreExt as _,
    WorkerName,
    inline::{ConsumeError, Consumed, InlineConsumer, OnBusy, OnDuplicate},
};
use inbox_memory::{MemoryOptions, MemoryStore};

use crate::faulty::{Fault, FaultyStore, handler, message};

fn policy(attempts: u32) -> RetryPolicy {
    RetryPolicy::default().with_max_attempts(attempts)
}

/// A real inbox, its clock, a wrapper that fails on command, and a consumer on the wrapper.
struct Bench {
    inbox: Arc<dyn Inbox>,
    clock: Clock,
    store: Arc<FaultyStore>,
    consumer: InlineConsumer,
    runs: AtomicU32,
}

fn terms(length: Duration) -> LeaseTerms {
    LeaseTerms::new(length, WorkerName::new("test").unwrap()).unwrap()
}

fn bench() -> Bench {
    bench_with(Duration::from_secs(30))
}

fn bench_with(lease: Duration) -> Bench {
    let clock = Clock::system();
    let options = MemoryOptions::new()
        .payload_limit(1000)
        .clock(clock.clone());
    let inbox: Arc<dyn Inbox> = Arc::new(MemoryStore::with(options));
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    let consumer = InlineConsumer::new(store.clone(), terms(lease))
        .on_busy(OnBusy::Error)
        .retry(policy(3));
    Bench {
        inbox,
        clock,
        store,
        consumer,
        runs: AtomicU32::new(0),
    }
}

impl Bench {
    /// Consumes with a handler that counts its runs and ends as told.
    async fn consume(
        &self,
        message: &Message,
        ending: Result<Option<&'static str>, &'static str>,
    ) -> Result<Consumed, ConsumeError> {
        self.consumer
            .consume(message, async |_| {
                self.runs.fetch_add(1, Ordering::SeqCst);
                ending.map(|result| result.map(Bytes::from))
            })
            .await
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    async fn record(&self, message: &Message) -> inbox::Record {
        self.inbox.get(message.key()).await.unwrap().unwrap()
    }

    /// Takes a lease as another worker would.
    async fn hold(&self, message: &Message, length: Duration) -> Lease {
        match self.inbox.begin(message, &terms(length)).await.unwrap() {
            Begun::Run(leased) => leased.lease,
            other => panic!("{other:?}"),
        }
    }
}

fn ran(result: Option<&'static str>) -> Consumed {
    Consumed::Ran {
        result: result.map(Bytes::from),
    }
}

fn duplicate(result: Option<&'static str>) -> Consumed {
    Consumed::Duplicate {
        result: result.map(Bytes::from),
    }
}

fn is<T: Debug, E: Debug>(answer: &Result<T, ConsumeError<E>>, shown: &str) {
    let text = match answer {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{error:?}"),
    };
    assert!(text.starts_with(shown), "{text} is not {shown}");
}

#[tokio::test]
async fn the_handler_runs_once_and_duplicates_are_treated_as_configured() {
    let mut bench = bench();
    let first = bench.consume(&message(1), Ok(Some("receipt"))).await;
    assert_eq!(first.unwrap(), ran(Some("receipt")));
    for (policy, expected) in [
        (OnDuplicate::Skip, duplicate(None)),
        (OnDuplicate::Warn, duplicate(None)),
        (OnDuplicate::ReturnResult, duplicate(Some("receipt"))),
    ] {
        bench.consumer = bench.consumer.clone().on_duplicate(policy);
        let again = bench.consume(&message(1), Ok(None)).await;
        assert_eq!(again.unwrap(), expected);
    }
    bench.consumer = bench.consumer.clone().on_duplicate(OnDuplicate::Error);
    let refused = bench.consume(&message(1), Ok(None)).await;
    is(&refused, "Duplicate");
    assert!(refused.unwrap_err().is_final());
    assert_eq!(bench.runs(), 1);
    let record = bench.record(&message(1)).await;
    assert_eq!(record.state, State::Processed);
    assert_eq!(record.attempts.started, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_at_once_exactly_one_runs_and_the_others_wait_for_its_result() {
    let bench = Arc::new(Bench {
        consumer: bench()
            .consumer
            .on_duplicate(OnDuplicate::ReturnResult)
            .on_busy(OnBusy::Wait(Duration::from_secs(20))),
        ..bench()
    });
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let bench = bench.clone();
            tokio::spawn(async move {
                let work = async |_: Leased| {
                    bench.runs.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Ok::<_, String>(Some(Bytes::from("receipt")))
                };
                bench.consumer.consume(&message(1), work).await.unwrap()
            })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    assert_eq!(bench.runs(), 1);
    let first = answers.iter().filter(|a| **a == ran(Some("receipt")));
    assert_eq!(first.count(), 1);
    let others = answers.iter().filter(|a| **a == duplicate(Some("receipt")));
    assert_eq!(others.count(), 15);
}

#[tokio::test]
async fn a_busy_message_is_answered_as_configured() {
    let mut bench = bench();
    let lease = bench.hold(&message(1), Duration::from_secs(60)).await;
    is(&bench.consume(&message(1), Ok(None)).await, "Busy");
    bench.consumer = bench.consumer.clone().on_busy(OnBusy::Skip);
    let skipped = bench.consume(&message(1), Ok(None)).await.unwrap();
    assert_eq!(skipped, Consumed::Busy { until: lease.until });
    let limit = Duration::from_millis(80);
    bench.consumer = bench.consumer.clone().on_busy(OnBusy::Wait(limit));
    let began = std::time::Instant::now();
    is(&bench.consume(&message(1), Ok(None)).await, "Busy");
    assert!(began.elapsed() >= limit);
    assert!(bench.store.calls("begin") < 20, "pauses do not grow");
    assert_eq!(bench.runs(), 0);
    // When the other worker vanishes, the wait ends with a run.
    let patience = OnBusy::Wait(Duration::from_secs(20));
    bench.consumer = bench.consumer.clone().on_busy(patience);
    let waited_for = message(1);
    let (answer, ()) = tokio::join!(bench.consume(&waited_for, Ok(None)), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        bench.clock.advance(Duration::from_secs(61));
    });
    assert_eq!(answer.unwrap(), ran(None));
}

#[tokio::test(start_paused = true)]
async fn a_busy_message_is_waited_for_for_ever_if_told_so() {
    let mut bench = bench();
    bench.consumer = bench
        .consumer
        .clone()
        .on_busy(OnBusy::Wait(Duration::MAX))
        .store_timeout(Duration::MAX);
    let _held = bench.hold(&message(1), Duration::from_secs(60 * 60)).await;
    let waited_for = message(1);
    let mut consuming = std::pin::pin!(bench.consume(&waited_for, Ok(None)));
    let hours = Duration::from_secs(3 * 60 * 60);
    assert!(tokio::time::timeout(hours, &mut consuming).await.is_err());
    assert_eq!(bench.runs(), 0);
    bench.clock.advance(Duration::from_secs(60 * 60 + 1));
    assert_eq!(consuming.await.unwrap(), ran(None));
}

#[tokio::test]
async fn a_message_behind_an_unfinished_one_of_its_ordering_key_is_blocked() {
    let mut bench = bench();
    let key = OrderingKey::new("customer-1").unwrap();
    let (first, second) = (
        message(1).with_ordering_key(key.clone()),
        message(2).with_ordering_key(key),
    );
    let lease = bench.hold(&first, Duration::from_secs(60)).await;
    is(&bench.consume(&second, Ok(None)).await, "Blocked");
    bench.consumer = bench.consumer.clone().on_busy(OnBusy::Skip);
    let skipped = bench.consume(&second, Ok(None)).await.unwrap();
    assert_eq!(skipped, Consumed::Blocked);
    let dead = Outcome::Dead {
        reason: "broken".into(),
        after: AfterDead::Continue,
    };
    let _ = bench.inbox.settle_one(&lease, dead).await.unwrap();
    assert_eq!(bench.consume(&second, Ok(None)).await.unwrap(), ran(None));
    let answer = bench.consume(&first, Ok(None)).await.unwrap();
    assert_eq!(
        answer,
        Consumed::Dead {
            reason: "broken".into()
        }
    );
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn a_discarded_message_does_not_run() {
    let bench = bench();
    let _ = bench.inbox.receive(&[message(1)]).await.unwrap();
    let _ = bench.inbox.discard(message(1).key()).await.unwrap();
    let answer = bench.consume(&message(1), Ok(None)).await.unwrap();
    assert_eq!(answer, Consumed::Discarded);
    assert_eq!(bench.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_while_the_handler_runs() {
    let bench = bench_with(Duration::from_secs(60));
    let slow = async |_: Leased| {
        // Longer than the lease; one renewal fails on the way.
        bench
            .store
            .plan("extend", [Fault::Before(ErrorKind::Unavailable)]);
        for _ in 0..6 {
            let a_while = Duration::from_secs(18);
            tokio::time::sleep(a_while).await;
            bench.clock.advance(a_while);
            let other = bench
                .inbox
                .begin(&message(1), &terms(Duration::from_secs(1)))
                .await
                .unwrap();
            assert!(matches!(other, Begun::Busy { .. }), "{other:?}");
        }
        Ok::<_, String>(None)
    };
    let answer = bench.consumer.consume(&message(1), slow).await;
    assert_eq!(answer.unwrap(), ran(None));
    assert!(bench.store.calls("extend") >= 3);
}

/// A begin that is answered when its lease has run out, and what happens meanwhile.
async fn begun_late(
    bench: &Bench,
    meanwhile: impl AsyncFnOnce(),
) -> Result<Consumed, ConsumeError> {
    let late = Duration::from_secs(31);
    bench.store.plan("begin", [Fault::Slow(late)]);
    let answer = tokio::spawn({
        let (consumer, first) = (bench.consumer.clone(), message(1));
        async move {
            consumer
                .consume(&first, async |_| Ok::<_, String>(None))
                .await
        }
    });
    tokio::time::sleep(late / 2).await;
    bench.clock.advance(late);
    meanwhile().await;
    answer.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_others_have_done_before_the_answer_came_is_not_run() {
    let bench = bench();
    let answer = begun_late(&bench, async || {
        let lease = bench.hold(&message(1), Duration::from_secs(60)).await;
        let outcome = Outcome::Processed { result: None };
        let settled = bench.inbox.settle_one(&lease, outcome).await.unwrap();
        assert_eq!(settled, inbox::Settled::Done);
    });
    is(&answer.await, "Busy");
    assert_eq!(bench.record(&message(1)).await.attempts.finished, 1);
    assert_eq!(
        bench.consume(&message(1), Ok(None)).await.unwrap(),
        duplicate(None)
    );
    assert_eq!(bench.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ran_out_before_the_answer_came_is_renewed() {
    let bench = bench();
    assert_eq!(begun_late(&bench, async || {}).await.unwrap(), ran(None));
    assert_eq!(bench.store.calls("extend"), 1);
    assert_eq!(bench.record(&message(1)).await.attempts.started, 1);
}

#[tokio::test(start_paused = true)]
async fn what_may_be_of_others_by_now_is_not_run() {
    let bench = bench();
    bench.store.plan("extend", [Fault::Hang]);
    is(&begun_late(&bench, async || {}).await, "Store");
    assert_eq!(bench.record(&message(1)).await.attempts.finished, 0);
}

/// The lease began when the store was asked, not when it answered.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_in_time_after_a_slow_answer() {
    let bench = bench();
    let slow = Duration::from_secs(25);
    bench.store.plan("begin", [Fault::Slow(slow)]);
    let asked = tokio::time::Instant::now();
    let handler = async |_: Leased| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok::<_, String>(None)
    };
    let answer = bench.consumer.consume(&message(1), handler).await;
    assert_eq!(answer.unwrap(), ran(None));
    assert_eq!(asked.elapsed(), slow + Duration::from_secs(1));
    assert_eq!(bench.store.calls("extend"), 1);
}

#[tokio::test]
async fn a_handler_whose_lease_is_taken_over_is_dropped() {
    let bench = bench_with(Duration::from_millis(90));
    let forever = async |_: Leased| {
        bench.clock.advance(Duration::from_secs(1));
        bench.hold(&message(1), Duration::from_secs(60)).await;
        std::future::pending::<()>().await;
        Ok::<_, String>(None)
    };
    let answer = bench.consumer.consume(&message(1), forever).await;
    is(&answer, "LeaseLost");
    assert_eq!(bench.record(&message(1)).await.state, State::Leased);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_the_completion_is_repeated() {
    let bench = bench();
    bench.store.plan(
        "settle",
        [
            Fault::After(ErrorKind::Unavailable),
            Fault::Before(ErrorKind::Conflict),
        ],
    );
    let answer = bench.consume(&message(1), Ok(None)).await;
    assert_eq!(answer.unwrap(), ran(None));
    assert_eq!(bench.store.calls("settle"), 3);
    let record = bench.record(&message(1)).await;
    assert_eq!(
        (record.state, record.attempts.finished),
        (State::Processed, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_cannot_be_recorded_says_that_the_handler_ran() {
    let bench = bench();
    let outage = vec![Fault::Before(ErrorKind::Unavailable); 6];
    bench.store.plan("settle", outage);
    let answer = bench.consume(&message(1), Ok(None)).await;
    let Err(ConsumeError::Unrecorded(Some(error))) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!((bench.runs(), bench.store.calls("settle")), (1, 6));
    // A handler's error is not hidden by the store's.
    bench
        .store
        .plan("settle", [Fault::Before(ErrorKind::Denied)]);
    is(
        &bench.consume(&message(2), Err("no funds")).await,
        "Handler",
    );
}

#[tokio::test]
async fn a_completion_after_a_take_over_says_that_the_handler_ran() {
    let bench = bench();
    let overtaken = async |_: Leased| {
        bench.clock.advance(Duration::from_secs(31));
        bench.hold(&message(1), Duration::from_secs(60)).await;
        Ok::<_, String>(None)
    };
    let answer = bench.consumer.consume(&message(1), overtaken).await;
    is(&answer, "Unrecorded(None)");
}

#[tokio::test]
async fn a_result_over_the_limit_is_returned_but_not_kept() {
    let mut bench = bench();
    bench.consumer = bench.consumer.on_duplicate(OnDuplicate::ReturnResult);
    let large = Bytes::from(vec![0; 1001]);
    let work = async |_: Leased| Ok::<_, String>(Some(large.clone()));
    let first = bench.consumer.consume(&message(1), work).await.unwrap();
    assert_eq!(
        first,
        Consumed::Ran {
            result: Some(large.clone())
        }
    );
    let second = bench.consumer.consume(&message(1), work).await.unwrap();
    assert_eq!(second, duplicate(None));
}

#[tokio::test(start_paused = true)]
async fn begin_is_repeated_only_when_it_certainly_did_nothing() {
    let bench = bench();
    bench
        .store
        .plan("begin", vec![Fault::Before(ErrorKind::Conflict); 3]);
    assert_eq!(
        bench.consume(&message(1), Ok(None)).await.unwrap(),
        ran(None)
    );
    bench
        .store
        .plan("begin", [Fault::After(ErrorKind::Unavailable)]);
    let answer = bench.consume(&message(2), Ok(None)).await;
    let Err(ConsumeError::Store(error)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(error.effect(), Effect::Unknown);
    assert_eq!(bench.store.calls("begin"), 5);
    // The lost lease runs out like any other.
    bench.clock.advance(Duration::from_secs(31));
    assert_eq!(
        bench.consume(&message(2), Ok(None)).await.unwrap(),
        ran(None)
    );
}

#[tokio::test]
async fn an_invalid_message_is_refused_without_a_run() {
    let bench = bench();
    let small = message(1);
    let large = Message::new(
        small.handler().clone(),
        small.id().clone(),
        small.kind().clone(),
        vec![0; 1001],
    );
    let answer = bench.consume(&large, Ok(None)).await;
    assert!(
        matches!(&answer, Err(ConsumeError::Store(e)) if e.kind() == ErrorKind::Invalid),
        "{answer:?}"
    );
    assert_eq!(bench.runs(), 0);
}

#[tokio::test]
async fn a_dropped_caller_leaves_a_lease_that_runs_out() {
    let bench = bench();
    let forever = async |_: Leased| {
        bench.runs.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<Option<Bytes>, String>>().await
    };
    let message_1 = message(1);
    let consuming = bench.consumer.consume(&message_1, forever);
    let given_up = tokio::time::timeout(Duration::from_millis(20), consuming);
    assert!(given_up.await.is_err());
    is(&bench.consume(&message(1), Ok(None)).await, "Busy");
    bench.clock.advance(Duration::from_secs(31));
    assert_eq!(
        bench.consume(&message(1), Ok(None)).await.unwrap(),
        ran(None)
    );
    let record = bench.record(&message(1)).await;
    assert_eq!((record.attempts.started, record.attempts.finished), (2, 1));
    assert_eq!(bench.runs(), 2);
}

#[tokio::test]
async fn the_handler_gets_the_stored_message() {
    let bench = bench();
    let _ = bench.inbox.receive(&[message(1)]).await.unwrap();
    let _ = bench.inbox.discard(message(1).key()).await.unwrap();
    let edit = Edit {
        payload: Some(Bytes::from("edited")),
        ..Edit::default()
    };
    let replayed = bench.inbox.replay(message(1).key(), &edit).await;
    assert_eq!(replayed.unwrap(), Intervention::Done);
    let echo = async |leased: Leased| Ok::<_, String>(Some(leased.message.payload().clone()));
    let answer = bench.consumer.consume(&message(1), echo).await;
    assert_eq!(answer.unwrap(), ran(Some("edited")));
}

#[tokio::test]
async fn two_handlers_of_one_event_are_independent() {
    let bench = bench();
    let mail = message(1).for_handler(handler("mail"));
    assert_eq!(
        bench.consume(&message(1), Ok(None)).await.unwrap(),
        ran(None)
    );
    assert_eq!(bench.consume(&mail, Ok(None)).await.unwrap(), ran(None));
}

#[test]
fn nothing_shows_result_bytes() {
    let shown = format!("{:?} {:?}", ran(Some("secret")), duplicate(Some("secret")));
    assert_eq!(
        shown,
        "Ran { result_bytes: Some(6) } Duplicate { result_bytes: Some(6) }"
    );
}

#[test]
fn errors_can_cross_threads_and_be_boxed() {
    fn boxed(error: ConsumeError<std::io::Error>) -> Box<dyn std::error::Error + Send + Sync> {
        error.into()
    }
    assert!(boxed(ConsumeError::LeaseLost).to_string().contains("lease"));
}
#[tokio::test]
async fn a_handler_that_settles_is_not_settled_once_more() {
    let bench = bench();
    let result = Some(Bytes::from_static(b"receipt 99"));
    let settle = async |leased: Leased| {
        let outcome = Outcome::Processed {
            result: result.clone(),
        };
        let settled = bench
            .inbox
            .settle_one(&leased.lease, outcome)
            .await
            .unwrap();
        assert_eq!(settled, inbox::Settled::Done);
        Ok::<_, Failure>(result.clone())
    };
    let consumer = bench
        .consumer
        .clone()
        .on_duplicate(OnDuplicate::ReturnResult);
    let consume = async || {
        consumer
            .consume_settling(&message("1"), settle, Failure::clone)
            .await
            .unwrap()
    };
    let ran = Consumed::Ran {
        result: result.clone(),
    };
    assert_eq!(consume().await, ran);
    assert_eq!(bench.store.calls("settle"), 0);
    let result = result.clone();
    assert_eq!(consume().await, Consumed::Duplicate { result });
    // One that fails is settled as a retry, as ever.
    let failing = async |_| Err(Failure::from("not now"));
    let failed = bench
        .consumer
        .consume_settling(&message("2"), failing, Failure::clone)
        .await;
    assert!(
        matches!(failed, Err(ConsumeError::Handler(_))),
        "{failed:?}"
    );
    assert_eq!(bench.store.calls("settle"), 1);
}

/// Defect: the next renewal took its own settlement for another worker's, and dropped it.
#[tokio::test(start_paused = true)]
async fn a_handler_that_has_settled_comes_to_its_end() {
    let bench = bench();
    let settle = async |leased: Leased| {
        let outcome = Outcome::Processed { result: None };
        let settled = bench.inbox.settle_one(&leased.lease, outcome).await;
        assert_eq!(settled.unwrap(), inbox::Settled::Done);
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok::<_, Failure>(None)
    };
    let consumer = &bench.consumer;
    let answer = consumer
        .consume_settling(&message(1), settle, Failure::clone)
        .await;
    assert_eq!(answer.unwrap(), ran(None));
    assert_eq!(bench.store.calls("extend"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_settles_is_fenced_when_its_lease_is_taken_over() {
    let bench = bench();
    let settle = async |leased: Leased| {
        bench.clock.advance(Duration::from_secs(31));
        bench.hold(&message(1), Duration::from_secs(600)).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let outcome = Outcome::Processed { result: None };
        let settled = bench.inbox.settle_one(&leased.lease, outcome).await;
        assert_eq!(settled.unwrap(), inbox::Settled::LeaseLost);
        Err(Failure::from("not settled"))
    };
    let consumer = &bench.consumer;
    let answer = consumer
        .consume_settling(&message(1), settle, Failure::clone)
        .await;
    is(&answer, "LeaseLost");
    assert_eq!(bench.record(&message(1)).await.state, State::Leased);
}
