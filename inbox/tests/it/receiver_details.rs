//! Smaller promises of the receiver: quiet logs, cumulative commits, fairness.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use inbox::{
    ErrorKind, Message,
    receiver::{Delivery, Receiver, Rejection, SourceError, StreamSource},
};
use tokio_util::sync::CancellationToken;
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::{
    broker::{Broker, Step},
    faulty::{Fault, FaultyStore, memory, message},
    logged,
};

fn never() -> CancellationToken {
    CancellationToken::new()
}

/// Counts warnings and notices.
#[derive(Clone, Default)]
struct Counts(Arc<[AtomicU64; 2]>);

impl Counts {
    fn get(&self) -> (u64, u64) {
        let [warnings, notices] = &*self.0;
        (
            warnings.load(Ordering::SeqCst),
            notices.load(Ordering::SeqCst),
        )
    }
}

impl Subscriber for Counts {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("inbox")
    }

    fn event(&self, event: &Event<'_>) {
        let [warnings, notices] = &*self.0;
        match *event.metadata().level() {
            Level::WARN => warnings.fetch_add(1, Ordering::SeqCst),
            Level::INFO => notices.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_once_when_it_begins_and_once_when_it_ends() {
    let counts = Counts::default();
    let _guard = logged::subscribe(counts.clone());
    let inbox = memory().await;
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    let broker = Broker::new(inbox);
    let receiver = Receiver::builder(store.clone()).build();
    for outage in 1..=3 {
        broker.queue(message(outage));
        store.plan("receive", vec![Fault::Before(ErrorKind::Unavailable); 20]);
        receiver.run(&mut broker.source(), never()).await.unwrap();
        assert_eq!(counts.get(), (outage, outage));
    }
    // The same for the source.
    for _ in 0..20 {
        broker.step(Step::Fail(SourceError::transient("connection reset")));
    }
    receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!(counts.get(), (4, 4));
}

/// Defect: the end was noticed with the next message only, and so the next outage not told.
#[tokio::test(start_paused = true)]
async fn an_outage_is_over_when_the_source_waits_for_messages_again() {
    const HOUR: Duration = Duration::from_secs(3600);

    let counts = Counts::default();
    let _guard = logged::subscribe(counts.clone());
    let inbox = memory().await;
    let broker = Broker::new(inbox.clone());
    for _ in 0..2 {
        broker.step(Step::Fail(SourceError::transient("connection reset")));
        broker.step(Step::Wait(HOUR));
    }
    broker.queue(message(1));
    let receiver = Receiver::builder(inbox).build();
    let seen = receiver.clone();
    let mut source = broker.source();
    let running = receiver.run(&mut source, never());
    let looking = async {
        for outage in 1..=2 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert_eq!(seen.health().degraded, ["source: connection reset"]);
            assert_eq!(counts.get(), (outage, outage - 1));
            tokio::time::sleep(HOUR / 2).await;
            assert_eq!(seen.health().degraded, Vec::<String>::new());
            assert_eq!(counts.get(), (outage, outage));
            tokio::time::sleep(HOUR / 2 - Duration::from_secs(15)).await;
        }
    };
    let (ran, ()) = tokio::join!(running, looking);
    assert_eq!(ran.unwrap().accepted, 1);
    assert_eq!(counts.get(), (2, 2));
}

/// Commits offsets as Kafka does: up to and including the one given.
struct Offset {
    offset: usize,
    committed: Arc<Mutex<Vec<usize>>>,
}

impl Delivery for Offset {
    fn message(&self) -> Result<Message, Rejection> {
        match self.offset {
            25 => Err(Rejection::new("not an event")),
            offset => Ok(message(offset)),
        }
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        Self::acknowledge_all(vec![self])
            .await
            .pop()
            .map_or(Ok(()), Err)
    }

    async fn acknowledge_all(run: Vec<Self>) -> Vec<SourceError> {
        let last = run.last().unwrap();
        last.committed.lock().unwrap().push(last.offset);
        Vec::new()
    }

    async fn reject(self, _: Rejection) -> Result<(), SourceError> {
        self.acknowledge().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_of_deliveries_can_be_acknowledged_at_once() {
    let inbox = memory().await;
    let committed = Arc::new(Mutex::new(Vec::new()));
    let offsets: Vec<_> = (0..40)
        .map(|offset| {
            let committed = committed.clone();
            Ok(Offset { offset, committed })
        })
        .collect();
    let receiver = Receiver::builder(inbox)
        .batch_size(10)
        .linger(Duration::from_secs(1))
        .build();
    let mut source = StreamSource::new(futures_util::stream::iter(offsets));
    let summary = receiver.run(&mut source, never()).await.unwrap();
    assert_eq!((summary.accepted, summary.rejected), (39, 1));
    assert_eq!(*committed.lock().unwrap(), [9, 19, 24, 25, 29, 39]);
}

#[tokio::test]
async fn a_source_and_a_store_that_never_wait_leave_the_thread_to_others() {
    let inbox = memory().await;
    let endless = futures_util::stream::iter((0..).map(|n: u32| Ok(message(n % 100))));
    let shutdown = never();
    let stop = shutdown.clone();
    // On this runtime's only thread: runs only if the receiver gives way.
    tokio::spawn(async move { stop.cancel() });
    let receiver = Receiver::builder(inbox).build();
    let mut source = StreamSource::new(endless);
    let running = receiver.run(&mut source, shutdown);
    let summary = tokio::time::timeout(Duration::from_secs(20), running)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(summary.abandoned(), 0);
}

/// A delivery that never gets through to its broker.
struct Stuck(Arc<AtomicUsize>);

impl Delivery for Stuck {
    fn message(&self) -> Result<Message, Rejection> {
        Ok(message("stuck"))
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }

    async fn reject(self, _: Rejection) -> Result<(), SourceError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_hangs_does_not_outlast_the_drain_limit() {
    let inbox = memory().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let stuck = Ok(Stuck(asked.clone()));
    let mut source = StreamSource::new(futures_util::stream::iter([stuck]));
    let shutdown = never();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        stop.cancel();
    });
    let receiver = Receiver::builder(inbox).build();
    let began = tokio::time::Instant::now();
    let summary = receiver.run(&mut source, shutdown).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 70);
    assert_eq!((summary.accepted, asked.load(Ordering::SeqCst)), (1, 1));
}
