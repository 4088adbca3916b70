//! What is counted and measured.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tokio::sync::Semaphore;

use super::*;
use crate::faulty::{FaultyStore, memory};
use inbox::receiver::{Receiver, Source, SourceError, StreamSource};

/// Keeps counters as they are, and of histograms how many values there were.
#[derive(Default)]
struct Book(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

struct Values(Arc<AtomicU64>);

impl HistogramFn for Values {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Book {
    fn entry(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<_> = key.labels().map(metrics::Label::value).collect();
        let name = format!("{} {}", key.name(), labels.join(","));
        self.0.lock().unwrap().entry(name).or_default().clone()
    }

    fn set(&self, name: &str, value: f64) {
        let book = self.0.lock().unwrap();
        book[name].store(value.to_bits(), SeqCst);
    }

    fn value(&self, name: &str) -> Option<u64> {
        let book = self.0.lock().unwrap();
        let value = book.get(name)?;
        Some(value.load(SeqCst))
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.entry(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.entry(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Values(self.entry(key))))
    }
}

/// A recorder is of one thread.
fn runtime(is_paused: bool) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(is_paused);
    builder.build().unwrap()
}

#[test]
fn each_outcome_is_counted() {
    let book = Book::default();
    let runtime = runtime(false);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let (spy, router) = eventful().await;
            let interval = Duration::from_millis(1);
            let builder = processor(&spy, router).retry(at_once(2)).backlog_monitor(
                spy.inner.clone(),
                Duration::from_secs(60),
                interval,
            );
            let processor = builder.build().unwrap();
            let shutdown = inbox::CancellationToken::new();
            let stop = async {
                eventually("all is done", async || {
                    let is_final = |record: &inbox::Record| record.state.is_final();
                    spy.records().await.iter().all(is_final)
                })
                .await;
                eventually("and known", async || {
                    book.value("inbox_backlog billing") == Some(0)
                })
                .await;
                shutdown.cancel();
            };
            let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), stop);
            assert_eq!(summary.unwrap().claimed, 7);
        });
    });
    let value = |name: &str| book.value(name);
    assert_eq!(value("inbox_claimed_total billing"), Some(7));
    assert_eq!(value("inbox_processed_total billing"), Some(1));
    assert_eq!(value("inbox_retried_total billing"), Some(2));
    assert_eq!(value("inbox_dead_total billing"), Some(4));
    assert_eq!(value("inbox_lease_lost_total billing"), Some(0));
    // One had no handler.
    assert_eq!(value("inbox_handler_seconds billing"), Some(6));
    assert!(value("inbox_claim_seconds ") >= Some(2));
    assert!(value("inbox_settle_seconds ") >= Some(2));
    // Gauges: zero as a floating-point number is zero here too.
    assert_eq!(value("inbox_backlog billing"), Some(0));
    assert_eq!(value("inbox_lag_seconds billing"), Some(0));
}

/// A source that knows what its broker still has.
struct Lagging<S>(S, Arc<AtomicU64>);

impl<S: Source> Source for Lagging<S> {
    type Delivery = S::Delivery;

    async fn next(&mut self) -> Result<Option<S::Delivery>, SourceError> {
        self.0.next().await
    }

    fn lag(&self) -> Option<u64> {
        Some(self.1.load(SeqCst))
    }
}

#[test]
fn a_source_is_told_of_while_nothing_is_taken_from_it() {
    let book = Book::default();
    let runtime = runtime(true);
    let gauge = |name: &str| book.value(name).map(f64::from_bits);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let mut store = FaultyStore::new(memory().await);
            let gate = Arc::new(Semaphore::new(0));
            store.gate = Some(gate.clone());
            let receiver = Receiver::builder(Arc::new(store)).max_unacknowledged(1);
            let receiver = receiver.build();
            let lag = Arc::new(AtomicU64::new(7));
            let deliveries = futures_util::stream::iter([Ok(message(1))]);
            let mut source = Lagging(StreamSource::new(deliveries), lag.clone());
            let check = async {
                tokio::time::sleep(Duration::from_secs(12)).await;
                assert_eq!(gauge("inbox_source_lag source"), Some(7.0));
                assert_eq!(gauge("inbox_unacknowledged source"), Some(1.0));
                lag.store(9, SeqCst);
                tokio::time::sleep(Duration::from_secs(12)).await;
                assert_eq!(gauge("inbox_source_lag source"), Some(9.0));
                gate.add_permits(1);
            };
            let running = receiver.run(&mut source, inbox::CancellationToken::new());
            let (summary, ()) = tokio::join!(running, check);
            assert_eq!(summary.unwrap().accepted, 1);
        });
    });
}

/// A dead message that holds up its ordering key.
async fn block_a_key(store: &dyn inbox::Inbox) {
    use inbox::StoreExt as _;

    let key = inbox::OrderingKey::new("k").unwrap();
    let poison = message(4).with_ordering_key(key);
    let worker = inbox::WorkerName::new("w").unwrap();
    let terms = inbox::LeaseTerms::new(Duration::from_secs(9), worker).unwrap();
    let inbox::Begun::Run(leased) = store.begin(&poison, &terms).await.unwrap() else {
        panic!("it is new");
    };
    let outcome = inbox::Outcome::Dead {
        reason: "poison".into(),
        after: inbox::AfterDead::Block,
    };
    let settled = store.settle_one(&leased.lease, outcome).await.unwrap();
    assert_eq!(settled, inbox::Settled::Done);
}

#[test]
fn gauges_of_handlers_that_vanish_go_to_zero_and_unserved_ones_have_their_own() {
    let book = Book::default();
    let runtime = runtime(true);
    let gauge = |name: &str| book.value(name).map(f64::from_bits);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let spy = Arc::new(Spy::new());
            spy.disturb("claim", Trouble::Refuse(ErrorKind::Unavailable));
            let other = inbox::HandlerName::new("other").unwrap();
            let all = [message(1), message(2), message(3).for_handler(other)];
            block_a_key(&*spy.inner).await;
            spy.receive_all(all.clone()).await;
            let router =
                Router::new(billing()).on("x", |_: Context| async { Ok::<_, Failure>(()) });
            let every = Duration::from_secs(1);
            let processor = processor(&spy, router)
                .backlog_monitor(spy.inner.clone(), every * 60, every)
                .build()
                .unwrap();
            let shutdown = inbox::CancellationToken::new();
            let check = async {
                tokio::time::sleep(every * 3).await;
                assert_eq!(gauge("inbox_backlog billing"), Some(2.0));
                assert_eq!(gauge("inbox_blocking_dead billing"), Some(1.0));
                assert_eq!(gauge("inbox_unserved_backlog other"), Some(1.0));
                for message in &all {
                    let _ = spy.inner.discard(message.key()).await.unwrap();
                }
                for state in [inbox::State::Discarded, inbox::State::Dead] {
                    let expired = inbox::PurgeRequest::new(state, Duration::ZERO, 100);
                    spy.inner.purge(&expired.unwrap()).await.unwrap();
                }
                let statistics = spy.inner.statistics().await.unwrap();
                assert!(statistics.handlers.is_empty());
                tokio::time::sleep(every * 3).await;
                assert_eq!(gauge("inbox_backlog billing"), Some(0.0));
                assert_eq!(gauge("inbox_blocking_dead billing"), Some(0.0));
                assert_eq!(gauge("inbox_unserved_backlog other"), Some(0.0));
                // Defect: all that had ever been there were set to zero at each look.
                book.set("inbox_unserved_backlog other", 7.0);
                book.set("inbox_messages other,pending", 7.0);
                tokio::time::sleep(every * 3).await;
                assert_eq!(gauge("inbox_unserved_backlog other"), Some(7.0));
                assert_eq!(gauge("inbox_messages other,pending"), Some(7.0));
                shutdown.cancel();
            };
            let monitor = inbox::StoreMonitor::new(spy.inner.clone()).interval(every);
            let running = processor.run(shutdown.clone());
            let (summary, (), ()) = tokio::join!(running, monitor.run(shutdown.clone()), check);
            summary.unwrap();
        });
    });
}

#[test]
fn what_the_store_knows_and_what_is_held_are_gauges() {
    let book = Book::default();
    let runtime = runtime(true);
    let gauge = |name: &str| book.value(name).map(f64::from_bits);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let spy = Arc::new(Spy::new());
            let other = inbox::HandlerName::new("other").unwrap();
            let left = message(3).for_handler(other.clone());
            spy.receive_all([message(1), message(2), left.clone()])
                .await;
            block_a_key(&*spy.inner).await;
            spy.inner.pause(&other).await.unwrap();
            let go = Arc::new(tokio::sync::Semaphore::new(0));
            let gate = Arc::clone(&go);
            let router = Router::new(billing()).on("order.placed", move |_: Context| {
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await.unwrap().forget();
                    Err::<(), _>(Failure::retry("downstream is away"))
                }
            });
            let breaker = inbox::CircuitBreaker::new().least_attempts(2);
            let processor = processor(&spy, router.circuit_breaker(breaker));
            let processor = processor.build().unwrap();
            let monitor = inbox::StoreMonitor::new(spy.inner.clone());
            let second = Duration::from_secs(1);
            let monitor = monitor.interval(second);
            let shutdown = inbox::CancellationToken::new();
            let check = async {
                tokio::time::sleep(second * 3).await;
                assert_eq!(gauge("inbox_in_flight billing"), Some(2.0));
                assert!(processor.health().is_live);
                assert!(processor.health().degraded.is_empty());
                assert!(gauge("inbox_last_claim_timestamp_seconds billing") > Some(1.7e9));
                assert!(gauge("inbox_statistics_timestamp_seconds ") > Some(1.7e9));
                assert_eq!(gauge("inbox_messages billing,leased"), Some(2.0));
                assert_eq!(gauge("inbox_messages billing,dead"), Some(1.0));
                assert_eq!(gauge("inbox_blocking_dead billing"), Some(1.0));
                assert_eq!(gauge("inbox_messages other,pending"), Some(1.0));
                assert_eq!(gauge("inbox_handler_paused other"), Some(1.0));
                let _ = spy.inner.discard(left.key()).await.unwrap();
                let expired =
                    inbox::PurgeRequest::new(inbox::State::Discarded, Duration::ZERO, 100);
                spy.inner.purge(&expired.unwrap()).await.unwrap();
                spy.disturb("claim", Trouble::Refuse(ErrorKind::Unavailable));
                go.add_permits(2);
                tokio::time::sleep(second * 3).await;
                assert_eq!(gauge("inbox_in_flight billing"), Some(0.0));
                assert_eq!(gauge("inbox_circuit_open billing"), Some(1.0));
                assert!(!processor.health().degraded.is_empty());
                assert_eq!(gauge("inbox_messages other,pending"), Some(0.0));
                tokio::time::sleep(second * 60).await;
                assert!(book.value("inbox_store_errors_total claim,unavailable") >= Some(1));
                shutdown.cancel();
            };
            let running = processor.run(shutdown.clone());
            let (summary, (), ()) = tokio::join!(running, monitor.run(shutdown.clone()), check);
            summary.unwrap();
            assert_eq!(gauge("inbox_circuit_open billing"), Some(0.0));
            assert_eq!(processor.health().stage, inbox::service::Stage::Waiting);
        });
    });
}

#[test]
fn failures_and_deaths_in_inline_use_and_corrupt_rows_are_counted() {
    use inbox::{LeaseTerms, WorkerName, inline::InlineConsumer};

    let book = Book::default();
    let runtime = runtime(false);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let spy = Arc::new(Spy::new());
            let worker = WorkerName::new("inline").unwrap();
            let terms = LeaseTerms::new(Duration::from_secs(60), worker).unwrap();
            let consumer = InlineConsumer::new(spy.clone(), terms).retry(at_once(2));
            for _ in 0..2 {
                let fail = async |_| Err::<Option<inbox::Bytes>, _>("no");
                assert!(consumer.consume(&message(1), fail).await.is_err());
            }
            spy.corrupt.lock().unwrap().push(inbox::CorruptRow {
                place: "row 7".into(),
                reason: "no such state".into(),
            });
            let router = Router::new(billing())
                .on("x", |_: Context| async { Ok::<_, Failure>(()) })
                .on("odd", |_: Context| async {
                    Err::<(), _>(Failure::dead("odd"))
                });
            spy.receive_all([message_of("odd", 2, "x")]).await;
            spy.disturb("settle", Trouble::RefuseOutcome { always: true });
            until_idle(processor(&spy, router)).await;
            let run = async |_| Ok::<_, String>(None);
            assert!(consumer.consume(&message(3), run).await.is_err());
        });
    });
    let value = |name: &str| book.value(name);
    assert_eq!(value("inbox_refused_total billing"), Some(2));
    assert_eq!(value("inbox_retried_total billing"), Some(1));
    assert_eq!(value("inbox_dead_total billing"), Some(1));
    assert_eq!(value("inbox_inline_total billing,failed"), Some(1));
    assert_eq!(value("inbox_inline_total billing,dead"), Some(1));
    assert_eq!(value("inbox_corrupt_total "), Some(1));
}

/// Defect: a failed attempt or a dead letter of an inline consumer made it look as if its handler had been claimed
/// last in 1970; so did a processor whose store is away when it begins.
#[test]
fn a_claim_that_was_never_answered_has_no_time() {
    use inbox::{LeaseTerms, WorkerName, inline::InlineConsumer};

    let book = Book::default();
    let runtime = runtime(true);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let spy = Arc::new(Spy::new());
            let worker = WorkerName::new("inline").unwrap();
            let terms = LeaseTerms::new(Duration::from_secs(60), worker).unwrap();
            let consumer = InlineConsumer::new(spy.clone(), terms);
            let fail = async |_| Err::<Option<inbox::Bytes>, _>("no");
            assert!(consumer.consume(&message(1), fail).await.is_err());
            assert_eq!(book.value("inbox_retried_total billing"), Some(1));
            assert_eq!(book.value("inbox_dead_total billing"), Some(0));
            // More than half of nothing would have failed.
            for name in ["inbox_claimed_total", "inbox_in_flight"] {
                assert_eq!(book.value(&format!("{name} billing")), None);
            }

            spy.disturb("claim", Trouble::Refuse(ErrorKind::Unavailable));
            let router =
                Router::new(billing()).on("x", |_: Context| async { Ok::<_, Failure>(()) });
            let processor = processor(&spy, router).build().unwrap();
            let shutdown = inbox::CancellationToken::new();
            let check = async {
                tokio::time::sleep(Duration::from_secs(9)).await;
                let claimed = || book.value("inbox_last_claim_timestamp_seconds billing");
                assert_eq!(claimed(), None);
                spy.calm("claim");
                tokio::time::sleep(Duration::from_secs(30)).await;
                assert!(claimed().map(f64::from_bits) > Some(1.7e9));
                shutdown.cancel();
            };
            let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), check);
            summary.unwrap();
        });
    });
}

/// Defect: they stayed as they were, for as long as the process went on.
#[test]
fn a_run_that_is_dropped_leaves_no_pause_and_nothing_unacknowledged() {
    let book = Book::default();
    let runtime = runtime(true);
    let gauge = |name: &str| book.value(name).map(f64::from_bits);
    let minute = Duration::from_secs(60);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let spy = Arc::new(Spy::new());
            spy.receive_all([message(1)]).await;
            let router = Router::new(billing())
                .on("order.placed", move |_: Context| async move {
                    Err::<(), _>(Failure::pause(minute * 60, "away"))
                })
                .circuit_breaker(inbox::CircuitBreaker::new());
            let processor = processor(&spy, router).build().unwrap();
            let never = inbox::CancellationToken::new();
            let running = tokio::time::timeout(minute, processor.run(never.clone()));
            let check = async {
                tokio::time::sleep(minute / 2).await;
                assert_eq!(gauge("inbox_paused billing"), Some(1.0));
            };
            let (ended, ()) = tokio::join!(running, check);
            assert!(ended.is_err());
            // Its task is dropped when the runtime gets to it.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(gauge("inbox_paused billing"), Some(0.0));

            let mut store = FaultyStore::new(memory().await);
            store.gate = Some(Arc::new(Semaphore::new(0)));
            let receiver = Receiver::builder(Arc::new(store)).max_unacknowledged(1);
            let receiver = receiver.drain_limit(minute).build();
            for is_dropped in [true, false] {
                let deliveries = futures_util::stream::iter([Ok(message(1)), Ok(message(2))]);
                let mut source = StreamSource::new(deliveries);
                let shutdown = inbox::CancellationToken::new();
                let running = receiver.run(&mut source, shutdown.clone());
                let limit = if is_dropped { minute } else { minute * 9 };
                let running = tokio::time::timeout(limit, running);
                let check = async {
                    tokio::time::sleep(minute / 2).await;
                    assert_eq!(gauge("inbox_unacknowledged source"), Some(1.0));
                    shutdown.cancel();
                };
                let (ended, ()) = tokio::join!(running, check);
                assert_eq!(ended.is_err(), is_dropped);
                assert_eq!(gauge("inbox_unacknowledged source"), Some(0.0));
            }
        });
    });
}

#[test]
fn inline_use_in_a_transaction_is_counted() {
    use inbox::{
        Schema as _,
        inline::{OnDuplicate, consume_in_transaction},
    };
    use inbox_sqlite::{SqliteOptions, SqliteStore};

    let book = Book::default();
    let runtime = runtime(false);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let options = SqliteOptions::new(directory.path().join("inbox.db"));
            let store = SqliteStore::connect(options).await.unwrap();
            store.create().await.unwrap();
            for result in [Err("no funds"), Ok(()), Ok(())] {
                let work = async |_: &mut _| result;
                let message = message(1);
                let policy = OnDuplicate::Skip;
                let answer = consume_in_transaction(&store, &message, policy, work).await;
                assert_eq!(answer.is_ok(), result.is_ok());
            }
        });
    });
    for outcome in ["failed", "ran", "duplicate"] {
        let name = format!("inbox_inline_total billing,{outcome}");
        assert_eq!(book.value(&name), Some(1), "{outcome}");
    }
}

/// An archive with room for one slice.
struct OnePlace(AtomicBool);

#[async_trait::async_trait]
impl inbox::Archiver for OnePlace {
    async fn archive(
        &self,
        _: &[inbox::Record],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.0.swap(true, SeqCst) {
            false => Ok(()),
            true => Err("full".into()),
        }
    }
}

#[test]
fn what_an_outbox_refuses_as_differing_is_counted() {
    let book = Book::default();
    let runtime = runtime(false);
    let differing = || book.value("inbox_differing_total to-broker");
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let store = inbox_memory::MemoryStore::new();
            let outbox = inbox::outbox::Outbox::new(store, "to-broker").unwrap();
            assert_eq!(differing(), Some(0));
            let id = || inbox::MessageId::new("7").unwrap();
            let message = |kind: &str| outbox.message("orders", id(), kind, "{}").unwrap();
            let sent = [message("order.placed"), message("order.cancelled")];
            outbox.send(&sent).await.unwrap();
            outbox.send(&sent).await.unwrap();
            assert_eq!(differing(), Some(2));
        });
    });
}

/// Defect: the first rejections were no increase, and so no alert.
#[test]
fn outcomes_of_a_receiver_are_there_before_its_first_batch() {
    let book = Book::default();
    let runtime = runtime(false);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let none: [Result<inbox::Message, SourceError>; 0] = [];
            let mut source = StreamSource::new(futures_util::stream::iter(none));
            let receiver = Receiver::builder(memory().await).build();
            let shutdown = inbox::CancellationToken::new();
            receiver.run(&mut source, shutdown).await.unwrap();
        });
    });
    for outcome in ["accepted", "duplicate", "rejected", "kept"] {
        let name = format!("inbox_received_total source,{outcome}");
        assert_eq!(book.value(&name), Some(0), "{outcome}");
    }
    assert_eq!(book.value("inbox_differing_total source"), Some(0));
    assert_eq!(book.value("inbox_receive_seconds source"), None);
}

#[test]
fn receiving_inline_use_and_purging_are_counted() {
    use inbox::{
        Janitor, LeaseTerms, WorkerName,
        inline::InlineConsumer,
        receiver::{Receiver, StreamSource},
    };

    let book = Book::default();
    let runtime = runtime(false);
    metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            let store = Arc::new(inbox_memory::MemoryStore::new());
            let other = message_of("order.placed", 2, "other");
            let deliveries = [message(1), message(2), message(1), other].map(Ok);
            let mut source = StreamSource::new(futures_util::stream::iter(deliveries));
            let receiver = Receiver::builder(store.clone()).build();
            let shutdown = inbox::CancellationToken::new();
            receiver.run(&mut source, shutdown).await.unwrap();

            let worker = WorkerName::new("inline").unwrap();
            let terms = LeaseTerms::new(Duration::from_secs(60), worker).unwrap();
            let consumer = InlineConsumer::new(store.clone(), terms);
            for n in [1, 1, 2] {
                let handler = async |_| Ok::<_, String>(None);
                consumer.consume(&message(n), handler).await.unwrap();
            }

            // What is deleted counts also when the rest fails.
            let janitor = Janitor::builder(store).keep_processed(Duration::ZERO);
            let janitor = janitor.slice(1).archiver(OnePlace(AtomicBool::new(false)));
            janitor.build().unwrap().sweep().await.unwrap_err();
        });
    });
    let value = |name: &str| book.value(name);
    assert_eq!(value("inbox_received_total source,accepted"), Some(2));
    assert_eq!(value("inbox_received_total source,duplicate"), Some(2));
    assert_eq!(value("inbox_differing_total source"), Some(1));
    assert_eq!(value("inbox_received_total source,rejected"), Some(0));
    assert_eq!(value("inbox_receive_seconds source"), Some(1));
    assert_eq!(value("inbox_inline_total billing,ran"), Some(2));
    assert_eq!(value("inbox_inline_total billing,duplicate"), Some(1));
    assert_eq!(value("inbox_purged_total processed"), Some(1));
}
