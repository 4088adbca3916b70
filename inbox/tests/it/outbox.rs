//! Messages on their way to a broker: sent with the transaction that causes them, published once it has
//! committed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use inbox::{
    CancellationToken, HandlerName, Hooks, Key, MessageId, Operate as _, OrderingKey, Processor,
    ProcessorBuilder, Receipt, Record, Schema as _, State, Transactional as _,
    outbox::Outbox,
    receiver::{Envelope, Publisher, SourceError},
    sqlite::{SqliteOptions, SqliteStore},
};

/// A broker that keeps what it confirms, may be away or slow, and loses every nth confirmation. The first message to the
/// queue "full" finds it full. The queue "jammed" takes nothing.
#[derive(Default)]
struct Broker {
    kept: Mutex<Vec<Envelope>>,
    /// The bytes of each call.
    sizes: Mutex<Vec<usize>>,
    takes: Duration,
    away: AtomicBool,
    is_full_no_more: AtomicBool,
    lose_every: usize,
    calls: AtomicUsize,
}

impl Publisher for Broker {
    async fn publish(&self, messages: &[Envelope]) -> Vec<Result<(), SourceError>> {
        let size = messages.iter().map(|message| message.payload.len()).sum();
        self.sizes.lock().unwrap().push(size);
        tokio::time::sleep(self.takes).await;
        if self.away.load(Ordering::SeqCst) {
            let away = || Err(SourceError::transient("connection refused"));
            return messages.iter().map(|_| away()).collect();
        }
        let keep = |message: &Envelope| {
            if message.address == "nowhere" {
                return Err(SourceError::permanent("no such queue"));
            }
            if message.address == "jammed" {
                return Err(SourceError::transient("the queue is jammed"));
            }
            if message.address == "full" && !self.is_full_no_more.swap(true, Ordering::SeqCst) {
                return Err(SourceError::transient("the queue is full"));
            }
            self.kept.lock().unwrap().push(message.clone());
            let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
            if self.lose_every > 0 && call.is_multiple_of(self.lose_every) {
                return Err(SourceError::transient("no confirmation in time"));
            }
            Ok(())
        };
        messages.iter().map(keep).collect()
    }
}

impl Broker {
    fn ids(&self) -> Vec<String> {
        let kept = self.kept.lock().unwrap();
        kept.iter()
            .filter_map(|message| message.id.clone())
            .collect()
    }
}

#[derive(Clone, Default)]
struct Pauses(Arc<AtomicUsize>);

#[async_trait::async_trait]
impl Hooks for Pauses {
    async fn paused(&self, _: &HandlerName, _: &str, _: Duration) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

async fn store(directory: &tempfile::TempDir) -> SqliteStore {
    let options = SqliteOptions::new(directory.path().join("outbox.db"));
    let store = SqliteStore::connect(options).await.unwrap();
    store.create().await.unwrap();
    store
}

fn id(text: impl AsRef<str>) -> MessageId {
    MessageId::new(text).unwrap()
}

/// Publishes until nothing is left to do.
async fn publish_all(store: &SqliteStore, outbox: &Outbox<SqliteStore>, broker: &Arc<Broker>) {
    let processor =
        Processor::builder(Arc::new(store.clone())).router(outbox.router(broker.clone()));
    run_until(store, processor, |unfinished| unfinished == 0).await;
}

/// Runs it until so many messages are unfinished.
async fn run_until(
    store: &SqliteStore,
    processor: ProcessorBuilder,
    is_over: impl Fn(u64) -> bool,
) {
    let processor = processor.build().unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { processor.run(stop).await }
    });
    for _ in 0..1200 {
        let statistics = store.statistics().await.unwrap();
        if is_over(statistics.count(State::Pending) + statistics.count(State::Leased)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    running.await.unwrap().unwrap();
}

async fn record(store: &SqliteStore, name: &str) -> Record {
    let key = Key::new(HandlerName::new("to-broker").unwrap(), id(name));
    store.get(&key).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_is_published_and_what_is_rolled_back_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let outbox = Outbox::new(store.clone(), "to-broker").unwrap();
    let message = |name: &str| {
        let message = outbox
            .message("orders", id(name), "order.placed", "{}")
            .unwrap();
        message.with_header("tenant", "t-1").unwrap()
    };

    let mut undone = store.open().await.unwrap();
    let sent = outbox
        .send_in(&mut undone, &[message("a"), message("b")])
        .await;
    assert_eq!(sent.unwrap(), [Receipt::Accepted, Receipt::Accepted]);
    store.roll_back(undone).await.unwrap();
    let mut done = store.open().await.unwrap();
    outbox.send_in(&mut done, &[message("b")]).await.unwrap();
    store.commit(done).await.unwrap();
    let again = outbox.send(&[message("b"), message("c")]).await.unwrap();
    assert_eq!(
        again,
        [Receipt::Duplicate { differs: false }, Receipt::Accepted]
    );

    let broker = Arc::new(Broker::default());
    publish_all(&store, &outbox, &broker).await;
    assert_eq!(broker.ids(), ["b", "c"]);
    let kept = broker.kept.lock().unwrap();
    assert_eq!(kept[0].address, "orders");
    assert_eq!(kept[0].kind.as_deref(), Some("order.placed"));
    assert_eq!(kept[0].header("tenant"), Some("t-1"));
    assert_eq!(kept[0].header("destination"), None, "it is the address");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_confirmations_repeat_messages_and_never_reorder_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let outbox = Outbox::new(store.clone(), "to-broker").unwrap();
    let messages: Vec<_> = (0..60)
        .map(|n| {
            let key = OrderingKey::new(format!("k{}", n % 6)).unwrap();
            let message = outbox.message("orders", id(format!("{n:03}")), "placed", "{}");
            message.unwrap().with_ordering_key(key)
        })
        .collect();
    outbox.send(&messages).await.unwrap();

    let broker = Arc::new(Broker {
        lose_every: 7,
        ..Broker::default()
    });
    publish_all(&store, &outbox, &broker).await;
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in &*broker.kept.lock().unwrap() {
        let ids = by_key.entry(message.key.clone().unwrap()).or_default();
        ids.push(message.id.clone().unwrap());
    }
    let repeated: usize = by_key.values().map(Vec::len).sum();
    assert!(repeated > 60, "no confirmation was lost: {repeated}");
    for (key, mut ids) in by_key {
        ids.dedup();
        assert_eq!(ids.len(), 10, "{key}: {ids:?}");
        assert!(ids.is_sorted(), "{key}: {ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_broker_costs_no_attempt_and_a_refusal_is_a_dead_letter() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let outbox = Outbox::new(store.clone(), "to-broker").unwrap();
    let plain = outbox
        .message("orders", id("plain"), "placed", "{}")
        .unwrap();
    let lost = outbox
        .message("nowhere", id("lost"), "placed", "{}")
        .unwrap();
    outbox.send(&[plain, lost]).await.unwrap();

    let broker = Arc::new(Broker::default());
    broker.away.store(true, Ordering::SeqCst);
    let returning = tokio::spawn({
        let broker = broker.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            broker.away.store(false, Ordering::SeqCst);
        }
    });
    publish_all(&store, &outbox, &broker).await;
    returning.await.unwrap();

    assert_eq!(broker.ids(), ["plain"]);
    let plain = record(&store, "plain").await;
    assert_eq!((plain.state, plain.attempts.started), (State::Processed, 1));
    let lost = record(&store, "lost").await;
    assert_eq!(lost.state, State::Dead);
    assert_eq!(lost.last_error.as_deref(), Some("no such queue"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_of_the_processor_is_not_that_of_the_publisher() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let outbox = Outbox::new(store.clone(), "to-broker").unwrap();
    let message = outbox.message("orders", id("slow"), "placed", "{}");
    outbox.send(&[message.unwrap()]).await.unwrap();

    let broker = Arc::new(Broker {
        takes: Duration::from_millis(300),
        ..Broker::default()
    });
    let processor = Processor::builder(Arc::new(store.clone()))
        .handler_timeout(Duration::from_millis(20))
        .router(outbox.router(broker.clone()));
    run_until(&store, processor, |pending| pending == 0).await;

    let slow = record(&store, "slow").await;
    assert_eq!((slow.state, slow.attempts.started), (State::Processed, 1));
    assert_eq!(broker.ids(), ["slow"], "published once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_takes_nothing_does_not_pause_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let outbox = Outbox::new(store.clone(), "to-broker").unwrap();
    let message = |to: &str, name: &str| outbox.message(to, id(name), "placed", "{}").unwrap();
    let sent = [
        message("full", "stuck"),
        message("orders", "a"),
        message("orders", "b"),
    ];
    outbox.send(&sent).await.unwrap();

    let broker = Arc::new(Broker::default());
    let pauses = Pauses::default();
    let processor = Processor::builder(Arc::new(store.clone()))
        .router(outbox.router(broker.clone()))
        .hooks(pauses.clone());
    run_until(&store, processor, |unfinished| unfinished == 0).await;

    assert_eq!(broker.ids(), ["a", "b", "stuck"]);
    assert_eq!(pauses.0.load(Ordering::SeqCst), 0, "all of the outbox");
    let stuck = record(&store, "stuck").await;
    assert_eq!((stuck.state, stuck.attempts.started), (State::Processed, 1));
}

/// Each of these is a call by itself: two do not fit into one.
const LARGE: usize = 9 << 20;

/// Sends messages of these destinations and ids, of the first of them large ones.
async fn send_large(outbox: &Outbox<SqliteStore>, large: &[(&str, &str)], small: &[(&str, &str)]) {
    let of_size = |size: usize, (to, name): (&str, &str)| {
        let payload = vec![b'x'; size];
        outbox.message(to, id(name), "placed", payload).unwrap()
    };
    let large = large.iter().map(|one| of_size(LARGE, *one));
    let small = small.iter().map(|one| of_size(1, *one));
    for message in large.chain(small) {
        outbox.send(&[message]).await.unwrap();
    }
}

/// Defect: nothing behind such a call was ever sent, since the same messages came first each time.
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_elsewhere_is_sent_behind_a_call_of_which_nothing_is_taken() {
    let (jam, behind) = ([("jammed", "j1"), ("jammed", "j2")], [("orders", "last")]);
    for before in [vec![], vec![("orders", "first")]] {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory).await;
        let outbox = Outbox::new(store.clone(), "to-broker").unwrap();
        let large = [before.clone(), jam.to_vec()].concat();
        send_large(&outbox, &large, &behind).await;

        let broker = Arc::new(Broker::default());
        let processor =
            Processor::builder(Arc::new(store.clone())).router(outbox.router(broker.clone()));
        run_until(&store, processor, |unfinished| unfinished == 2).await;

        let all = before.iter().chain(&behind);
        let expected: Vec<&str> = all.map(|(_, name)| *name).collect();
        assert_eq!(broker.ids(), expected);
        let sizes = broker.sizes.lock().unwrap().clone();
        let calls = [vec![LARGE; before.len() + 1], vec![1]].concat();
        assert!(sizes.starts_with(&calls), "{sizes:?}");
        let tried = record(&store, "j1").await;
        assert_eq!(tried.state, State::Pending);
        assert_eq!(tried.last_error.as_deref(), Some("the queue is jammed"));
        let left_out = record(&store, "j2").await;
        assert_eq!(left_out.state, State::Pending);
        let why = left_out.last_error.unwrap();
        assert!(why.starts_with("not sent:"), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_takes_nothing_of_several_calls_is_left_alone_for_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let outbox = Outbox::new(store.clone(), "to-broker").unwrap();
    let large = [("orders", "a"), ("orders", "b"), ("bills", "c")];
    send_large(&outbox, &large, &[]).await;

    let broker = Arc::new(Broker::default());
    broker.away.store(true, Ordering::SeqCst);
    let pauses = Pauses::default();
    let processor = Processor::builder(Arc::new(store.clone()))
        .router(outbox.router(broker.clone()))
        .hooks(pauses.clone());
    run_until(&store, processor, |_| pauses.0.load(Ordering::SeqCst) > 0).await;

    assert!(pauses.0.load(Ordering::SeqCst) > 0, "all of the outbox");
    let calls = broker.sizes.lock().unwrap().len();
    assert_eq!(calls % 2, 0, "one for each destination, and no other");
    for name in ["a", "b", "c"] {
        let waiting = record(&store, name).await;
        assert_eq!(waiting.state, State::Pending, "{name}");
    }
}

/// Defect: callers that look at no receipts were told nothing.
#[tokio::test]
async fn what_is_never_published_is_told() {
    let (log, _guard) = crate::logged::Log::of(tracing::Level::WARN);
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let outbox = Outbox::new(store.clone(), "to-broker").unwrap();
    let message = |kind: &str| outbox.message("orders", id("7"), kind, "{}").unwrap();
    let (placed, cancelled) = (message("order.placed"), message("order.cancelled"));
    let (same, other) = (
        Receipt::Duplicate { differs: false },
        Receipt::Duplicate { differs: true },
    );

    let first = outbox.send(&[placed.clone(), placed.clone()]).await;
    assert_eq!(first.unwrap(), [Receipt::Accepted, same.clone()]);
    assert!(log.lines(&["came again"]).is_empty(), "{}", log.text());
    let mut transaction = store.open().await.unwrap();
    let sent = outbox.send_in(&mut transaction, std::slice::from_ref(&cancelled));
    assert_eq!(sent.await.unwrap(), std::slice::from_ref(&other));
    store.commit(transaction).await.unwrap();
    let again = outbox.send(&[placed, cancelled]).await;
    assert_eq!(again.unwrap(), [same, other]);
    let told = log.lines(&[
        "came again with other content",
        "key=to-broker/7",
        "count=1",
    ]);
    assert_eq!(told.len(), 1, "once a minute: {}", log.text());

    let payload = vec![b'x'; inbox::DEFAULT_PAYLOAD_LIMIT + 1];
    let huge = outbox.message("orders", id("huge"), "order.placed", payload);
    let refused = outbox.send(&[huge.unwrap()]).await.unwrap();
    assert!(matches!(refused[..], [Receipt::Refused(_)]), "{refused:?}");
    let told = log.lines(&["inbox::message", "not published", "key=to-broker/huge"]);
    assert_eq!(told.len(), 1, "{}", log.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_publisher_has_no_more_bytes_than_its_client_can_copy() {
    const MIB: usize = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory).await;
    let outbox = Outbox::new(store.clone(), "to-broker").unwrap();
    for n in 0..5 {
        let payload = vec![b'x'; 7 * MIB];
        let message = outbox.message("orders", id(n.to_string()), "placed", payload);
        outbox.send(&[message.unwrap()]).await.unwrap();
    }

    let broker = Arc::new(Broker::default());
    publish_all(&store, &outbox, &broker).await;
    assert_eq!(broker.ids().len(), 5);
    let sizes = broker.sizes.lock().unwrap();
    assert!(sizes.iter().all(|size| *size <= 16 * MIB), "{sizes:?}");
}
