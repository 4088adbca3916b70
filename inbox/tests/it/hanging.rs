//! A store that never answers holds nobody up for ever, and nobody in silence.

use std::{convert::Infallible, sync::Arc, time::Duration};

use inbox::{
    CancellationToken, Context, ErrorKind, Failure, InlineConsumer, Janitor, LeaseTerms,
    Operate as _, Processor, Receipt, Receiver, Router, State, Store as _, StoreExt as _,
    WorkerName,
    inline::{ConsumeError, Consumed},
    receiver::StreamSource,
};

use crate::{
    faulty::{self, Fault, FaultyStore, memory, message},
    logged::Log,
};

const LIMIT: Duration = Duration::from_secs(20);

async fn faulty() -> Arc<FaultyStore> {
    Arc::new(FaultyStore::new(memory().await))
}

/// Defect: a warning with each look, for as long as the store was away.
#[tokio::test(start_paused = true)]
async fn a_monitor_tells_once_that_the_store_is_away_and_that_it_is_back() {
    let (log, _guard) = Log::of(tracing::Level::INFO);
    let store = faulty().await;
    store.plan("statistics", vec![Fault::Before(ErrorKind::Unavailable); 5]);
    let second = Duration::from_secs(1);
    let monitor = inbox::StoreMonitor::new(store).interval(second);
    let running = monitor.run(CancellationToken::new());
    let _ = tokio::time::timeout(second * 20, running).await;
    let away = log.lines(&["WARN", "inbox::outage", "statistics are not known"]);
    assert_eq!(away.len(), 1, "{}", log.text());
    let back = log.lines(&["INFO", "inbox::outage", "statistics are known again"]);
    assert_eq!(back.len(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_processor_goes_on_after_claims_settlements_and_renewals_that_hang() {
    let (log, _guard) = Log::of(tracing::Level::WARN);
    let store = faulty().await;
    store.receive(&[message(1), message(2)]).await.unwrap();
    store.plan("claim", [Fault::Never]);
    store.plan("settle", [Fault::Never]);
    store.plan("extend", [Fault::Never]);
    let router = Router::new(faulty::handler("billing")).on("order.placed", async |_: Context| {
        tokio::time::sleep(Duration::from_secs(100)).await;
        Ok::<_, Failure>(())
    });
    let processor = Processor::builder(store.clone())
        .router(router)
        .store_timeout(LIMIT)
        .build()
        .unwrap();
    let run = processor.run_until_idle(CancellationToken::new());
    let summary = tokio::time::timeout(Duration::from_secs(600), run).await;
    assert_eq!(summary.unwrap().unwrap().processed, 2);
    for operation in ["claim", "settle", "extend"] {
        let slow = log.lines(&["takes long", operation]);
        assert_eq!(slow.len(), 1, "{operation}: {}", log.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_receiver_stores_again_what_hung() {
    let store = faulty().await;
    store.plan("receive", [Fault::Hang]);
    let receiver = Receiver::builder(store.clone())
        .store_timeout(LIMIT)
        .build();
    let mut source = StreamSource::new(futures_util::stream::iter([Ok(message(1))]));
    let run = receiver.run(&mut source, CancellationToken::new());
    let summary = tokio::time::timeout(Duration::from_secs(600), run).await;
    assert_eq!(summary.unwrap().unwrap().duplicates, 1);
}

#[tokio::test(start_paused = true)]
async fn an_inline_consumer_answers() {
    let store = faulty().await;
    let terms = LeaseTerms::new(Duration::from_secs(60), WorkerName::new("w").unwrap()).unwrap();
    let consumer = InlineConsumer::new(store.clone(), terms).store_timeout(LIMIT);
    let run = async |_| Ok::<_, Infallible>(None);

    store.plan("begin", [Fault::Hang]);
    let answer = tokio::time::timeout(LIMIT * 2, consumer.consume(&message(1), run)).await;
    let Err(ConsumeError::Store(error)) = answer.unwrap() else {
        unreachable!("the store never answered");
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.effect(), inbox::Effect::Unknown);

    store.plan("settle", [Fault::Hang]);
    let answer = tokio::time::timeout(LIMIT * 2, consumer.consume(&message(2), run)).await;
    assert_eq!(answer.unwrap().unwrap(), Consumed::Ran { result: None });

    // A renewal that hangs is repeated while the lease lasts.
    store.plan("extend", [Fault::Never]);
    let long = async |_| {
        tokio::time::sleep(Duration::from_secs(300)).await;
        Ok::<_, Infallible>(None)
    };
    let answer = consumer.consume(&message(3), long).await;
    assert_eq!(answer.unwrap(), Consumed::Ran { result: None });
    assert!(store.calls("extend") > 3);
}

#[tokio::test(start_paused = true)]
async fn a_janitor_sweeps_again() {
    let store = faulty().await;
    assert_eq!(
        store.receive_one(&message(1)).await.unwrap(),
        Receipt::Accepted
    );
    let _ = store.inner.discard(message(1).key()).await.unwrap();
    store.plan("purge", [Fault::Never]);
    let janitor = Janitor::builder(store.clone())
        .keep_discarded(Duration::ZERO)
        .store_timeout(LIMIT)
        .build()
        .unwrap();
    let sweep = tokio::time::timeout(LIMIT * 2, janitor.sweep()).await;
    assert_eq!(sweep.unwrap().unwrap().discarded, 1);
    let left = inbox::Filter {
        states: vec![State::Discarded],
        ..Default::default()
    };
    assert_eq!(store.inner.count(&left).await.unwrap(), 0);
}

/// Neither a store without an answer nor one that fails again and again, nor an archiver that does
/// not come back.
#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_told_to_end_does_so_in_time() {
    struct Stuck;

    #[async_trait::async_trait]
    impl inbox::Archiver for Stuck {
        async fn archive(
            &self,
            _: &[inbox::Record],
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            std::future::pending().await
        }
    }

    let unavailable = || std::iter::repeat_n(Fault::Before(ErrorKind::Unavailable), 100);
    for (number, archives, faults) in [
        (1, false, vec![Fault::Never; 10]),
        (2, false, unavailable().collect()),
        (3, true, vec![]),
    ] {
        let store = faulty().await;
        let _ = store.receive_one(&message(1)).await.unwrap();
        let _ = store.inner.discard(message(1).key()).await.unwrap();
        store.plan("purge", faults);
        let mut janitor = Janitor::builder(store.clone()).keep_discarded(Duration::ZERO);
        if archives {
            janitor = janitor.archiver(Stuck);
        }
        let janitor = janitor.build().unwrap();
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            stop.cancel();
        });
        let sweep = janitor.sweep_until(&shutdown);
        let sweep = tokio::time::timeout(Duration::from_secs(6), sweep).await;
        let error = sweep.expect("it goes on").unwrap_err();
        match error {
            inbox::SweepError::Store(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "case {number}");
            }
            _ => assert!(archives, "case {number}: {error}"),
        }
    }
}

/// However many calls meet it.
#[tokio::test(start_paused = true)]
async fn an_outage_is_told_of_where_it_begins_and_where_it_ends() {
    let (log, _guard) = Log::of(tracing::Level::INFO);
    let store = faulty().await;
    let _ = store.receive_one(&message(1)).await.unwrap();
    let router = Router::new(faulty::handler("billing")).on("order.placed", async |_: Context| {
        tokio::time::sleep(Duration::from_secs(100)).await;
        Ok::<_, Failure>(())
    });
    store.plan("claim", vec![Fault::Pass]);
    store.plan("claim", vec![Fault::Never; 5]);
    store.plan("extend", vec![Fault::Never; 5]);
    let processor = Processor::builder(store.clone())
        .router(router)
        .store_timeout(LIMIT)
        .build()
        .unwrap();
    let run = processor.run_until_idle(CancellationToken::new());
    let summary = tokio::time::timeout(Duration::from_secs(600), run).await;
    assert_eq!(summary.unwrap().unwrap().processed, 1);
    let calls = store.calls("claim") + store.calls("extend");
    assert!(calls > 10, "{calls}");
    assert_eq!(log.lines(&["takes long"]).len(), 1, "{}", log.text());
    let ends = log.lines(&["the store answers again", "calls="]);
    assert_eq!(ends.len(), 1, "{}", log.text());
}
