//! What an inline consumer knows of its own work when the store has been away for longer than a
//! lease: it neither repeats what it finished nor runs twice at a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inbox::{
    Bytes, Clock, ErrorKind, Inbox, LeaseTerms, Leased, Operate as _, RetryPolicy, State,
    WorkerName,
    inline::{ConsumeError, Consumed, InlineConsumer, OnBusy, OnDuplicate},
};
use inbox_memory::{MemoryOptions, MemoryStore};

use crate::faulty::{Fault, FaultyStore, message};

const LEASE: Duration = Duration::from_secs(30);

struct Bench {
    inbox: Arc<dyn Inbox>,
    clock: Clock,
    store: Arc<FaultyStore>,
    runs: AtomicU32,
}

type Answer = Result<Consumed, ConsumeError>;

fn bench() -> Bench {
    let clock = Clock::system();
    let options = MemoryOptions::new().clock(clock.clone());
    let inbox: Arc<dyn Inbox> = Arc::new(MemoryStore::with(options));
    Bench {
        store: Arc::new(FaultyStore::new(inbox.clone())),
        inbox,
        clock,
        runs: AtomicU32::new(0),
    }
}

impl Bench {
    fn consumer(&self) -> InlineConsumer {
        let terms = LeaseTerms::new(LEASE, WorkerName::new("test").unwrap()).unwrap();
        InlineConsumer::new(self.store.clone(), terms)
            .on_busy(OnBusy::Error)
            .on_duplicate(OnDuplicate::ReturnResult)
            .retry(RetryPolicy::default().with_max_attempts(2))
    }

    async fn consume(&self, consumer: &InlineConsumer, n: u32) -> Answer {
        let handler = async |_: Leased| {
            let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
            Ok::<_, String>(Some(Bytes::from(format!("run {run}"))))
        };
        consumer.consume(&message(n), handler).await
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// So many settlements fail: six are one call of the consumer's.
    fn outage(&self, settlements: usize) {
        let faults = vec![Fault::Before(ErrorKind::Unavailable); settlements];
        self.store.plan("settle", faults);
    }

    /// Runs message 1 while the store is away, until its lease has run out.
    async fn finish_in_an_outage(&self, consumer: &InlineConsumer) {
        self.outage(6);
        let answer = self.consume(consumer, 1).await;
        assert!(
            matches!(answer, Err(ConsumeError::Unrecorded(Some(_)))),
            "{answer:?}"
        );
        self.clock.advance(LEASE * 2);
    }
}

fn duplicate(result: &'static str) -> Consumed {
    Consumed::Duplicate {
        result: Some(Bytes::from(result)),
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_finished_in_an_outage_is_recorded_and_not_repeated() {
    let bench = bench();
    let consumer = bench.consumer();
    bench.finish_in_an_outage(&consumer).await;
    // A clone is the same consumer.
    let again = bench.consume(&consumer.clone(), 1).await;
    assert_eq!((again.unwrap(), bench.runs()), (duplicate("run 1"), 1));
    let record = bench.inbox.get(message(1).key()).await.unwrap().unwrap();
    assert_eq!(record.state, State::Processed);
    assert_eq!((record.attempts.started, record.attempts.finished), (1, 1));
    // It is done with: nothing more is settled.
    let settled = bench.store.calls("settle");
    let again = bench.consume(&consumer, 1).await;
    assert_eq!((again.unwrap(), bench.runs()), (duplicate("run 1"), 1));
    assert_eq!(bench.store.calls("settle"), settled);
}

#[tokio::test(start_paused = true)]
async fn as_long_as_it_cannot_be_recorded_it_is_not_repeated() {
    let bench = bench();
    let consumer = bench.consumer();
    bench.finish_in_an_outage(&consumer).await;
    bench.outage(6);
    let again = bench.consume(&consumer, 1).await;
    assert!(
        matches!(&again, Err(ConsumeError::Store(error)) if error.is_retryable()),
        "{again:?}"
    );
    assert_eq!(bench.runs(), 1);
    // Another message has nothing to do with it.
    let other = bench.consume(&consumer, 2).await.unwrap();
    assert!(matches!(other, Consumed::Ran { .. }), "{other:?}");
    let again = bench.consume(&consumer, 1).await;
    assert_eq!((again.unwrap(), bench.runs()), (duplicate("run 1"), 2));
}

#[tokio::test(start_paused = true)]
async fn what_another_took_over_meanwhile_is_the_others() {
    let bench = bench();
    let consumer = bench.consumer();
    bench.finish_in_an_outage(&consumer).await;
    let other = bench.consume(&bench.consumer(), 1).await.unwrap();
    assert!(matches!(other, Consumed::Ran { .. }), "{other:?}");
    let again = bench.consume(&consumer, 1).await;
    assert_eq!((again.unwrap(), bench.runs()), (duplicate("run 2"), 2));
}

#[tokio::test(start_paused = true)]
async fn a_handler_does_not_run_twice_at_a_time() {
    let bench = bench();
    let consumer = bench.consumer();
    bench
        .store
        .plan("extend", vec![Fault::Before(ErrorKind::Unavailable); 7]);
    let slow = async |_: Leased| {
        // The renewals fail for longer than the lease, and a redelivery comes.
        tokio::time::sleep(LEASE).await;
        bench.clock.advance(LEASE * 2);
        let second = bench.consume(&consumer, 1).await;
        assert!(
            matches!(second, Err(ConsumeError::Busy { .. })),
            "{second:?}"
        );
        tokio::time::sleep(LEASE).await;
        Ok::<_, &'static str>(Some(Bytes::from("first")))
    };
    let first = consumer.consume(&message(1), slow).await.unwrap();
    let result = Some(Bytes::from("first"));
    assert_eq!((first, bench.runs()), (Consumed::Ran { result }, 0));
    let again = bench.consume(&consumer, 1).await;
    assert_eq!((again.unwrap(), bench.runs()), (duplicate("first"), 0));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_does_not_leave_its_handler_in_memory() {
    let bench = bench();
    let consumer = bench.consumer();
    let first = message(1);
    let never = consumer.consume(&first, async |_: Leased| {
        std::future::pending::<Result<Option<Bytes>, &'static str>>().await
    });
    assert!(tokio::time::timeout(LEASE / 10, never).await.is_err());
    bench.clock.advance(LEASE * 2);
    let again = bench.consume(&consumer, 1).await.unwrap();
    assert!(matches!(again, Consumed::Ran { .. }), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_waits_for_the_first_does_not_repeat_it() {
    let bench = bench();
    let consumer = bench.consumer().on_busy(OnBusy::Wait(LEASE * 4));
    let slow = async |_: Leased| {
        tokio::time::sleep(LEASE / 4).await;
        bench.runs.fetch_add(1, Ordering::SeqCst);
        // The store goes away, for longer than the lease.
        bench.outage(6);
        bench.clock.advance(LEASE * 2);
        Ok::<_, &'static str>(Some(Bytes::from("run 1")))
    };
    let one = message(1);
    let copy = async {
        tokio::time::sleep(LEASE / 8).await;
        bench.consume(&consumer, 1).await
    };
    let (first, second) = tokio::join!(consumer.consume(&one, slow), copy);
    assert!(
        matches!(first, Err(ConsumeError::Unrecorded(Some(_)))),
        "{first:?}"
    );
    assert_eq!((second.unwrap(), bench.runs()), (duplicate("run 1"), 1));
}

/// The store is slow with the first copy, which it lets run when the second has been run and its lease is over.
#[tokio::test(start_paused = true)]
async fn a_copy_whose_begin_is_on_its_way_runs_alone() {
    let bench = bench();
    let consumer = bench.consumer();
    bench.store.plan("begin", [Fault::Later(LEASE * 2)]);
    let second = async {
        tokio::time::sleep(LEASE / 8).await;
        let handler = async |_: Leased| {
            bench.runs.fetch_add(1, Ordering::SeqCst);
            let failing = vec![Fault::Before(ErrorKind::Unavailable); 30];
            bench.store.plan("extend", failing);
            bench.clock.advance(LEASE * 2);
            tokio::time::sleep(LEASE * 3).await;
            Ok::<_, &'static str>(None)
        };
        consumer.consume(&message(1), handler).await
    };
    let (first, second) = tokio::join!(bench.consume(&consumer, 1), second);
    let ran = [&first, &second].map(|one| matches!(one, Ok(Consumed::Ran { .. })));
    assert_eq!(ran, [true, false], "{first:?}, {second:?}");
    assert_eq!(bench.runs(), 1);
}

/// Too large to be kept; that it was done is kept all the same, and so is what others have done.
#[tokio::test(start_paused = true)]
async fn one_large_result_is_no_reason_to_repeat_the_work() {
    let bench = bench();
    let consumer = bench.consumer();
    bench.finish_in_an_outage(&consumer).await;
    bench.outage(6);
    let large = Bytes::from(vec![0; (64 << 20) + 1]);
    let work = async |_: Leased| Ok::<_, &'static str>(Some(large));
    let answer = consumer.consume(&message(2), work).await;
    assert!(
        matches!(answer, Err(ConsumeError::Unrecorded(Some(_)))),
        "{answer:?}"
    );
    bench.clock.advance(LEASE * 2);
    let again = bench.consume(&consumer, 1).await.unwrap();
    assert_eq!(again, duplicate("run 1"));
    let again = bench.consume(&consumer, 2).await.unwrap();
    assert_eq!(again, Consumed::Duplicate { result: None });
    assert_eq!(bench.runs(), 1);
}
