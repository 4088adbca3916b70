//! What users of other inboxes do, done here: scenarios of CAP, Brighter, pg-transactional-outbox and
//! Wolverine.

mod wolverine;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox::{
    Begun, CancellationToken, Context, Due, ErrorKind, FailedAttempt, Failure, Filter, Headers,
    Inbox, Janitor, Key, KindOptions, LentTransaction, Message, MessageId, OrderingKey, Processor,
    Receiver, Router, Schema as _, State, Store as _, StoreExt as _, Transactional as _,
    in_transaction_fn,
    receiver::{Delivery, Raw, Rejection, Source, SourceError, Summary},
};
use inbox_memory::{MemoryOptions, MemoryStore};
use inbox_sqlite::{SqliteOptions, SqliteStore};

use crate::{
    faulty::{self, Fault, FaultyStore, handler},
    processor_support::*,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What a topic delivers: bytes, which are a message if they have an id before a colon.
#[derive(Clone)]
struct Bare {
    bytes: &'static str,
    fates: Arc<Mutex<Vec<String>>>,
    has_raw: bool,
}

impl Bare {
    fn note(&self, fate: &str) {
        let fate = format!("{} {fate}", self.bytes);
        self.fates.lock().unwrap().push(fate);
    }
}

impl Delivery for Bare {
    fn message(&self) -> Result<Message, Rejection> {
        match self.bytes.split_once(':') {
            Some((id, payload)) => Ok(message_of("order.placed", id, payload)),
            None => Err(Rejection::new("there is no id")),
        }
    }

    fn raw(&self) -> Option<Raw> {
        let mut headers = Headers::new();
        headers.insert("topic", "orders").unwrap();
        self.has_raw
            .then(|| Raw::new(self.bytes).with_headers(headers))
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        self.note("acknowledged");
        Ok(())
    }

    async fn reject(self, rejection: Rejection) -> Result<(), SourceError> {
        self.note(&format!("rejected: {rejection}"));
        Ok(())
    }
}

/// A topic, and what became of its deliveries.
#[derive(Clone, Default)]
struct Topic {
    left: Vec<&'static str>,
    fates: Arc<Mutex<Vec<String>>>,
    has_no_raw: bool,
}

impl Topic {
    fn of(deliveries: &[&'static str]) -> Self {
        Self {
            left: deliveries.iter().rev().copied().collect(),
            ..Self::default()
        }
    }

    fn fates(&self) -> Vec<String> {
        self.fates.lock().unwrap().clone()
    }
}

impl Source for Topic {
    type Delivery = Bare;

    async fn next(&mut self) -> Result<Option<Bare>, SourceError> {
        Ok(self.left.pop().map(|bytes| Bare {
            bytes,
            fates: self.fates.clone(),
            has_raw: !self.has_no_raw,
        }))
    }
}

fn keeping(store: Arc<dyn inbox::Store>) -> Receiver {
    Receiver::builder(store)
        .keep_rejected(handler("rejected"))
        .build()
}

async fn receive(receiver: &Receiver, topic: &mut Topic) -> Summary {
    receiver.run(topic, CancellationToken::new()).await.unwrap()
}

async fn dead_letters(inbox: &Arc<dyn Inbox>) -> Vec<inbox::Record> {
    let filter = Filter {
        handler: Some(handler("rejected")),
        ..Filter::default()
    };
    let mut page = inbox::Page::first(100);
    page.with_payload = true;
    inbox.list(&filter, &page).await.unwrap().records
}

/// CAP stores what it cannot read, with the exception, for its dashboard.
#[tokio::test]
async fn cap_stores_a_received_message_that_it_cannot_read() {
    let inbox = faulty::memory().await;
    let mut topic = Topic::of(&["1:good", "nonsense", "2:good", "nonsense"]);
    let receiver = keeping(inbox.clone());
    let summary = receive(&receiver, &mut topic).await;
    assert_eq!(
        (summary.accepted, summary.kept, summary.rejected),
        (2, 2, 0)
    );
    assert_eq!(summary.abandoned(), 0);
    assert_eq!(
        topic.fates(),
        [
            "1:good acknowledged",
            "nonsense acknowledged",
            "2:good acknowledged",
            "nonsense acknowledged"
        ]
    );
    let kept = dead_letters(&inbox).await;
    assert_eq!(kept.len(), 1, "a redelivery is a duplicate");
    let letter = &kept[0];
    assert_eq!(letter.state, State::Dead);
    assert_eq!(letter.payload.as_deref(), Some(&b"nonsense"[..]));
    assert_eq!(letter.last_error.as_deref(), Some("there is no id"));
    assert_eq!(letter.kind.as_str(), "inbox.rejected");
    assert_eq!(letter.headers.get("topic"), Some("orders"));
    // Nothing of it runs as a message.
    let processor = Processor::builder(inbox.clone())
        .router(
            Router::new("billing").on("order.placed", |_: Context| async { Ok::<_, Failure>(()) }),
        )
        .build()
        .unwrap();
    let run = processor.run_until_idle(CancellationToken::new());
    assert_eq!(run.await.unwrap().processed, 2);
    assert_eq!(dead_letters(&inbox).await[0].state, State::Dead);
}

#[tokio::test]
async fn what_the_store_refuses_is_kept_too_and_what_has_no_bytes_is_rejected() {
    let options = MemoryOptions::new().payload_limit(6);
    let inbox: Arc<dyn Inbox> = Arc::new(MemoryStore::with(options));
    let mut topic = Topic::of(&["1:far too long"]);
    let summary = receive(&keeping(inbox.clone()), &mut topic).await;
    assert_eq!((summary.kept, summary.rejected), (1, 0));
    let letter = &dead_letters(&inbox).await[0];
    assert_eq!(letter.payload.as_deref(), Some(&b"1:far "[..]));
    assert_eq!(letter.headers.get("raw-bytes"), Some("14"));
    assert!(letter.last_error.as_ref().unwrap().contains("limit"));

    let mut topic = Topic::of(&["nonsense"]);
    topic.has_no_raw = true;
    let summary = receive(&keeping(inbox.clone()), &mut topic).await;
    assert_eq!((summary.kept, summary.rejected), (0, 1));
    assert_eq!(topic.fates(), ["nonsense rejected: there is no id"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_before_its_dead_letter_is_dead() {
    for (operation, fault) in [
        ("begin", Fault::Before(ErrorKind::Unavailable)),
        ("settle", Fault::Before(ErrorKind::Unavailable)),
        ("settle", Fault::After(ErrorKind::Unavailable)),
    ] {
        let inbox = faulty::memory().await;
        let store = Arc::new(FaultyStore::new(inbox.clone()));
        store.plan(operation, [fault.clone(), fault]);
        let mut topic = Topic::of(&["nonsense"]);
        let summary = receive(&keeping(store.clone()), &mut topic).await;
        assert_eq!(summary.kept, 1);
        assert_eq!(store.calls(operation), 3);
        assert_eq!(dead_letters(&inbox).await[0].state, State::Dead);
    }
}

/// The receiver is killed between storing the dead letter and making it dead.
#[tokio::test]
async fn a_dead_letter_that_was_left_half_made_does_not_run_and_is_finished_by_the_redelivery() {
    let spy = Spy::new();
    let store = Arc::new(FaultyStore::new(spy.inner.clone()));
    store.plan("settle", [Fault::Never]);
    let receiver = keeping(store.clone());
    let mut topic = Topic::of(&["nonsense"]);
    tokio::select! {
        _ = receive(&receiver, &mut topic) => panic!("acknowledged"),
        () = eventually("begun", async || store.calls("settle") == 1) => {}
    }
    assert_eq!(topic.fates(), Vec::<String>::new());
    let left = &dead_letters(&spy.inner).await[0];
    assert_eq!(left.state, State::Leased);
    spy.clock.advance(Duration::from_secs(6));
    // The workers of all other handlers find nothing.
    let anything =
        Router::new(billing()).fallback_handler(|_: Context| async { Ok::<_, Failure>(()) });
    let processor = Processor::builder(spy.inner.clone()).router(anything);
    assert_eq!(until_idle(processor).await.claimed, 0);
    let summary = receive(&receiver, &mut Topic::of(&["nonsense"])).await;
    assert_eq!(summary.kept, 1);
    let letter = &dead_letters(&spy.inner).await[0];
    assert_eq!(letter.state, State::Dead);
}

/// Brighter's inbox can record commands without refusing any, and so can this: what came is there for
/// an audit, and nothing works on it.
#[tokio::test]
async fn brighter_records_only() {
    let spy = Spy::new();
    let recorder = Receiver::builder(spy.inner.clone()).record_only().build();
    let mut topic = Topic::of(&["1:a", "2:b", "1:a", "nonsense"]);
    let summary = receive(&recorder, &mut topic).await;
    assert_eq!(
        (summary.accepted, summary.duplicates, summary.rejected),
        (2, 1, 1)
    );
    assert_eq!(spy.count(State::Processed).await, 2);
    let record = spy.record("1").await;
    assert_eq!(record.payload.as_deref(), Some(&b"a"[..]));
    assert_eq!(record.attempts.started, 1);
    // There is no work.
    let router = Router::new(billing()).fallback_handler(|_: Context| async {
        panic!("nothing is to be done");
        #[allow(unreachable_code, reason = "it gives the type")]
        Ok::<_, Failure>(())
    });
    let processor = Processor::builder(spy.inner.clone()).router(router);
    assert_eq!(until_idle(processor).await.claimed, 0);
    // The record goes with its retention, and with it the knowledge of duplicates.
    spy.clock.advance(DAY);
    let janitor = Janitor::builder(spy.inner.clone()).keep_processed(DAY);
    assert_eq!(janitor.build().unwrap().sweep().await.unwrap().processed, 2);
    let summary = receive(&recorder, &mut Topic::of(&["1:a"])).await;
    assert_eq!(summary.accepted, 1);
}

#[tokio::test]
async fn recording_waits_for_no_time_and_no_order() {
    let inbox = faulty::memory().await;
    let recorder = Receiver::builder(inbox.clone())
        .record_only()
        .fan_out([handler("audit"), handler("billing")])
        .build();
    let key = OrderingKey::new("customer-7").unwrap();
    let ordered = |id: &str| message(id).with_ordering_key(key.clone());
    let later = message("3").with_due(Due::After(DAY));
    let (sender, channel) = tokio::sync::mpsc::channel(10);
    for message in [ordered("1"), ordered("2"), later] {
        sender.send(message).await.unwrap();
    }
    drop(sender);
    let mut source = inbox::receiver::ChannelSource::new(channel);
    let summary = recorder.run(&mut source, CancellationToken::new()).await;
    assert_eq!(summary.unwrap().accepted, 3);
    let statistics = inbox.statistics().await.unwrap();
    assert_eq!(statistics.count(State::Processed), 6);
}

#[tokio::test(start_paused = true)]
async fn recording_leaves_what_others_work_on() {
    let inbox = faulty::memory().await;
    let terms = inbox::LeaseTerms::new(DAY, inbox::WorkerName::new("w").unwrap()).unwrap();
    let Begun::Run(held) = inbox.begin(&message("1"), &terms).await.unwrap() else {
        panic!("not new");
    };
    let _ = inbox
        .receive_one(&message("2").with_due(Due::After(DAY)))
        .await
        .unwrap();
    let recorder = Receiver::builder(inbox.clone()).record_only().build();
    let summary = receive(&recorder, &mut Topic::of(&["1:a", "2:b"])).await;
    assert_eq!((summary.accepted, summary.duplicates), (0, 2));
    let settled = inbox
        .settle_one(&held.lease, inbox::Outcome::Processed { result: None })
        .await;
    assert_eq!(settled.unwrap(), inbox::Settled::Done);
    let second = Key::new(billing(), MessageId::new("2").unwrap());
    let record = inbox.get(&second).await.unwrap().unwrap();
    assert_eq!(record.state, State::Pending);
}

/// pg-transactional-outbox asks strategies about each message: how often to try it, and for how long.
#[tokio::test(start_paused = true)]
async fn pg_transactional_outbox_has_strategies_for_each_message() {
    let spy = Arc::new(Spy::new());
    let of = |id: &str, tier: &str| message(id).with_header("tier", tier).unwrap();
    spy.receive_all([
        of("1", "gold"),
        of("2", "tin"),
        of("3", "slow"),
        message("4"),
    ])
    .await;
    let work = |context: Context| async move {
        match context.message().headers().get("tier") {
            Some("slow") => std::future::pending().await,
            _ => Err::<(), _>("no funds"),
        }
    };
    let strategy = |message: &Message| match message.headers().get("tier")? {
        "gold" => Some(KindOptions::new().retry(at_once(5))),
        "slow" => Some(KindOptions::new().timeout(Duration::from_secs(1))),
        other => panic!("no strategy for {other}"),
    };
    let router = Router::new(billing())
        .on("order.placed", work)
        .kind_options("order.placed", KindOptions::new().retry(at_once(2)))
        .message_options(strategy);
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.dead, summary.retried), (4, 4 + 1 + 1 + 1));
    let attempts = async |id: &str| spy.record(id).await.attempts.started;
    assert_eq!(attempts("1").await, 5);
    // A strategy that panics, or says nothing of it, leaves what the kind has.
    assert_eq!((attempts("2").await, attempts("4").await), (2, 2));
    assert_eq!(attempts("3").await, 2);
    let slow = spy.record("3").await.last_error;
    assert_eq!(slow.as_deref(), Some("timed out"));
}

type Lent = LentTransaction<sqlx::Transaction<'static, sqlx::Sqlite>>;

/// pg-transactional-outbox calls `handleError` in the transaction that counts the attempt or gives the message
/// up: what it writes is there exactly with that, and the handler's own writes are not.
#[tokio::test]
async fn pg_transactional_outbox_handles_errors_in_the_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::connect(SqliteOptions::new(folder.path().join("inbox.db")));
    let store = store.await.unwrap();
    store.create().await.unwrap();
    let mut setup = store.open().await.unwrap();
    let tables =
        "CREATE TABLE booking (id TEXT); CREATE TABLE refusal (attempt INTEGER, is_last INTEGER)";
    sqlx::raw_sql(tables).execute(&mut *setup).await.unwrap();
    store.commit(setup).await.unwrap();
    let _ = store.receive_one(&message("1")).await.unwrap();
    let book = in_transaction_fn(store.clone(), |mut lent: Lent, _| async move {
        let insert = sqlx::query("INSERT INTO booking VALUES ('half')");
        insert.execute(&mut **lent).await?;
        Err::<(), _>(Failure::retry("no funds"))
    });
    let handle_error = |mut lent: Lent, attempt: FailedAttempt| async move {
        let is_last = matches!(attempt.outcome, inbox::Outcome::Dead { .. });
        let insert = sqlx::query("INSERT INTO refusal VALUES (?, ?)")
            .bind(attempt.context.attempts().started)
            .bind(is_last);
        insert.execute(&mut **lent).await.map(drop)
    };
    let router = Router::new(billing())
        .on("order.placed", book)
        .on_failure_in_transaction(store.clone(), handle_error);
    let processor = Processor::builder(Arc::new(store.clone()))
        .router(router)
        .retry(at_once(3));
    let summary = until_idle(processor).await;
    assert_eq!((summary.retried, summary.dead), (2, 1));
    let mut look = store.open().await.unwrap();
    let bookings: i64 = sqlx::query_scalar("SELECT count(*) FROM booking")
        .fetch_one(&mut *look)
        .await
        .unwrap();
    assert_eq!(bookings, 0);
    let refusals: Vec<(i64, bool)> = sqlx::query_as("SELECT * FROM refusal ORDER BY attempt")
        .fetch_all(&mut *look)
        .await
        .unwrap();
    assert_eq!(refusals, [(1, false), (2, false), (3, true)]);
}
