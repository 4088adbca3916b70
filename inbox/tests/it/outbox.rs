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
    CancellationToken, HandlerName, Key, MessageId, Operate as _, OrderingKey, Processor, Receipt,
    Schema as _, State, Transactional as _,
    outbox::Outbox,
    receiver::{Envelope, Publisher, SourceError},
    sqlite::{SqliteOptions, SqliteStore},
};

/// A broker that keeps what it confirms, may be away, and loses every nth confirmation.
#[derive(Default)]
struct Broker {
    kept: Mutex<Vec<Envelope>>,
    away: AtomicBool,
    lose_every: usize,
    calls: AtomicUsize,
}

impl Publisher for Broker {
    async fn publish(&self, messages: &[Envelope]) -> Vec<Result<(), SourceError>> {
        if self.away.load(Ordering::SeqCst) {
            let away = || Err(SourceError::transient("connection refused"));
            return messages.iter().map(|_| away()).collect();
        }
        let keep = |message: &Envelope| {
            if message.address == "nowhere" {
                return Err(SourceError::permanent("no such queue"));
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
    let processor = Processor::builder(Arc::new(store.clone()))
        .router(outbox.router(broker.clone()))
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { processor.run(stop).await }
    });
    for _ in 0..1200 {
        let statistics = store.statistics().await.unwrap();
        if statistics.count(State::Pending) + statistics.count(State::Leased) == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    running.await.unwrap().unwrap();
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

    let record = async |name: &str| {
        let key = Key::new(HandlerName::new("to-broker").unwrap(), id(name));
        store.get(&key).await.unwrap().unwrap()
    };
    assert_eq!(broker.ids(), ["plain"]);
    let plain = record("plain").await;
    assert_eq!((plain.state, plain.attempts.started), (State::Processed, 1));
    let lost = record("lost").await;
    assert_eq!(lost.state, State::Dead);
    assert_eq!(lost.last_error.as_deref(), Some("no such queue"));
}
