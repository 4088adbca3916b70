//! Messages that outlive their time to live, on memory and SQLite.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use inbox::{
    AfterDead, Bytes, Clock, Context, Failure, Fallback, InlineConsumer, LeaseTerms, Leased,
    OrderingKey, Processor, RetryPolicy, Router, Schema as _, State, WorkerName, headers,
    inline::{ConsumeError, Consumed, OnBusy},
};
use inbox_sqlite::{SqliteOptions, SqliteStore};

use crate::processor_support::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Each store with a clock that tests move.
async fn stores() -> Vec<(Spy, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let options = SqliteOptions::new(folder.path().join("inbox.db")).clock(clock.clone());
    let store = SqliteStore::connect(options).await.unwrap();
    store.create().await.unwrap();
    let sqlite = Spy::around(Arc::new(store), clock);
    vec![(Spy::new(), None), (sqlite, Some(folder))]
}

fn short_lived(id: &str) -> inbox::Message {
    message(id).with_time_to_live(MINUTE).unwrap()
}

async fn reason(spy: &Spy, id: &str) -> Option<String> {
    let record = spy.record(id).await;
    record.last_error.filter(|_| record.state == State::Dead)
}

/// Counts its runs.
fn counting(runs: &Arc<AtomicU32>) -> Router {
    let runs = runs.clone();
    Router::new(billing()).on("order.placed", move |_: Context| {
        runs.fetch_add(1, SeqCst);
        async { Ok::<_, Failure>(()) }
    })
}

#[tokio::test]
async fn what_is_too_old_is_dead_and_not_run() {
    for (spy, _folder) in stores().await {
        spy.receive_all([short_lived("1"), message("2")]).await;
        spy.clock.advance(MINUTE);
        spy.receive_all([short_lived("3")]).await;
        let (runs, told) = (Arc::new(AtomicU32::new(0)), Told::default());
        let processor = Processor::builder(spy.inner.clone())
            .router(counting(&runs))
            .hooks(told.clone());
        let summary = until_idle(processor).await;
        assert_eq!((summary.processed, summary.dead), (2, 1));
        assert_eq!(runs.load(SeqCst), 2);
        let reason = reason(&spy, "1").await.unwrap();
        assert_eq!(
            reason,
            "expired: older than its 60s to live when an attempt was due"
        );
        assert_eq!(told.all(), [format!("dead 1: {reason}")]);
    }
}

#[tokio::test]
async fn a_retry_that_comes_too_late_has_expired() {
    for (spy, _folder) in stores().await {
        spy.receive_all([short_lived("1")]).await;
        let fails = || {
            Router::new(billing()).on("order.placed", |_: Context| async {
                Err::<(), _>(Failure::retry("the bank does not answer"))
            })
        };
        let processor = || {
            let retry = RetryPolicy::default().with_delays(MINUTE / 2, MINUTE / 2);
            Processor::builder(spy.inner.clone())
                .router(fails())
                .retry(retry)
        };
        assert_eq!(until_idle(processor()).await.retried, 1);
        spy.clock.advance(MINUTE / 2);
        assert_eq!(until_idle(processor()).await.retried, 1);
        spy.clock.advance(MINUTE / 2);
        assert_eq!(until_idle(processor()).await.dead, 1);
        assert!(reason(&spy, "1").await.unwrap().starts_with("expired"));
    }
}

#[tokio::test]
async fn what_has_expired_holds_nobody_up() {
    for (spy, _folder) in stores().await {
        let ordered = |message: inbox::Message| {
            message.with_ordering_key(OrderingKey::new("customer-7").unwrap())
        };
        spy.receive_all([ordered(short_lived("1")), ordered(message("2"))])
            .await;
        spy.clock.advance(MINUTE);
        let runs = Arc::new(AtomicU32::new(0));
        let processor = Processor::builder(spy.inner.clone())
            .router(counting(&runs))
            .after_dead(AfterDead::Block);
        let summary = until_idle(processor).await;
        assert_eq!((summary.dead, summary.processed), (1, 1));
    }
}

#[tokio::test]
async fn a_message_that_is_left_for_others_expires_too() {
    let (spy, _) = stores().await.remove(0);
    spy.receive_all([short_lived("1")]).await;
    let knows_nothing = || {
        let router = Router::new(billing()).fallback(Fallback::Leave);
        Processor::builder(spy.inner.clone()).router(router)
    };
    assert_eq!(until_idle(knows_nothing()).await.deferred, 1);
    spy.clock.advance(MINUTE);
    assert_eq!(until_idle(knows_nothing()).await.dead, 1);
}

#[tokio::test]
async fn a_replay_without_the_header_runs() {
    for (spy, _folder) in stores().await {
        spy.receive_all([short_lived("1")]).await;
        spy.clock.advance(MINUTE);
        let runs = Arc::new(AtomicU32::new(0));
        let processor = || Processor::builder(spy.inner.clone()).router(counting(&runs));
        assert_eq!(until_idle(processor()).await.dead, 1);
        let _ = spy
            .inner
            .replay(&key("1"), &inbox::Edit::default())
            .await
            .unwrap();
        assert_eq!(until_idle(processor()).await.dead, 1);
        let edit = inbox::Edit {
            headers: Some(inbox::Headers::new()),
            ..inbox::Edit::default()
        };
        let _ = spy.inner.replay(&key("1"), &edit).await.unwrap();
        assert_eq!(until_idle(processor()).await.processed, 1);
    }
}

#[tokio::test]
async fn a_header_that_is_no_number_means_nothing() {
    let (spy, _) = stores().await.remove(0);
    let odd = message("1").with_header(headers::TIME_TO_LIVE, "a minute");
    spy.receive_all([odd.unwrap()]).await;
    spy.clock.advance(MINUTE * 60);
    let runs = Arc::new(AtomicU32::new(0));
    let processor = Processor::builder(spy.inner.clone()).router(counting(&runs));
    assert_eq!(until_idle(processor).await.processed, 1);
}

#[tokio::test]
async fn an_inline_consumer_does_not_run_it_either() {
    for (spy, _folder) in stores().await {
        let terms = LeaseTerms::new(MINUTE / 2, WorkerName::new("web").unwrap()).unwrap();
        let consumer = InlineConsumer::new(spy.inner.clone(), terms)
            .on_busy(OnBusy::Error)
            .after_dead(AfterDead::Block);
        let fails = async |_: Leased| Err::<Option<Bytes>, _>("the bank does not answer");
        let first = consumer.consume(&short_lived("1"), fails).await;
        assert!(matches!(first, Err(ConsumeError::Handler(_))), "{first:?}");
        spy.clock.advance(MINUTE);
        let second = consumer.consume(&short_lived("1"), fails).await.unwrap();
        let Consumed::Dead { reason } = second else {
            panic!("{second:?}");
        };
        assert!(reason.starts_with("expired"), "{reason}");
    }
}
