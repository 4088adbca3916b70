//! Transactional handlers on SQLite: effects exactly once, whatever goes wrong.

mod commits;
mod failed_attempts;
mod fickle;
mod one_by_one;
mod time_limits;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Batch, BatchHandler, Batches, CancellationToken, Clock, Completion, Context, ErrorKind,
    Failure, Handler, LentTransaction, Message, Operate as _, Processor, ProcessorBuilder, Receipt,
    Record, Result, Router, Schema as _, State, Store, StoreExt as _, Summary, Transactional,
    TransactionalHandler, WorkerName, batch_in_transaction_fn, in_transaction, in_transaction_fn,
    one_by_one_in_transaction, one_by_one_in_transaction_fn,
};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use sqlx::Transaction;

use self::fickle::{Commit, Fickle, Fragile};
use crate::{logged::Log, processor_support::*};

struct Place {
    store: Fickle,
    _directory: tempfile::TempDir,
}

impl Place {
    async fn new(messages: impl IntoIterator<Item = Message>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        let options = SqliteOptions::new(directory.path().join("inbox.db"))
            .payload_limit(1000)
            .clock(clock.clone());
        let inner = SqliteStore::connect(options).await.unwrap();
        inner.create().await.unwrap();
        let mut transaction = inner.open().await.unwrap();
        sqlx::query("CREATE TABLE effects (id TEXT NOT NULL)")
            .execute(&mut *transaction)
            .await
            .unwrap();
        inner.commit(transaction).await.unwrap();
        let messages: Vec<_> = messages.into_iter().collect();
        let receipts = inner.receive(&messages).await.unwrap();
        assert!(receipts.iter().all(|receipt| *receipt == Receipt::Accepted));
        let store = Fickle {
            inner,
            clock,
            steal: Arc::default(),
            outage: Arc::default(),
            hangs: Arc::default(),
            committed: Arc::default(),
            claimed: Arc::default(),
            opened: Arc::default(),
        };
        Self {
            store,
            _directory: directory,
        }
    }

    /// The ids of all effects that are visible, in order.
    async fn effects(&self) -> Vec<String> {
        let mut transaction = self.store.inner.open().await.unwrap();
        let ids = sqlx::query_scalar("SELECT id FROM effects ORDER BY id")
            .fetch_all(&mut *transaction)
            .await
            .unwrap();
        self.store.inner.roll_back(transaction).await.unwrap();
        ids
    }

    async fn record(&self, id: &str) -> Record {
        self.store.inner.get(&key(id)).await.unwrap().unwrap()
    }

    fn processor(&self, handler: impl TransactionalHandler<Fragile>) -> ProcessorBuilder {
        let handler = in_transaction(self.store.clone(), handler);
        self.processor_of(Router::new(billing()).on("order.placed", handler))
    }

    fn processor_of(&self, router: Router) -> ProcessorBuilder {
        Processor::builder(Arc::new(self.store.clone()))
            .router(router)
            .poll_intervals(Duration::from_millis(2), Duration::from_millis(10))
            .concurrency(8)
            .retry(at_once(5))
    }
}

/// The time limit of handlers whose commit outlasts it.
const LIMIT: Duration = Duration::from_secs(5);

/// The lease of handlers that outlive it.
const LEASE: Duration = Duration::from_secs(1);

/// Writes, and then does what the message's id asks for on its first attempts.
struct Ledger;

#[async_trait]
impl TransactionalHandler<Fragile> for Ledger {
    async fn handle(
        &self,
        transaction: &mut Fragile,
        context: &Context,
    ) -> Result<Completion, Failure> {
        transaction.write(context).await?;
        let fate = context
            .message()
            .id()
            .as_str()
            .split('-')
            .next()
            .unwrap_or_default();
        if fate == "dead" {
            return Err(Failure::dead("after writing"));
        }
        if fate == "large" {
            return Ok(Completion::with_result(vec![b'x'; 1001]));
        }
        if context.attempts().started > 2 {
            return Ok(Completion::with_result("done"));
        }
        match fate {
            "error" => return Err(Failure::retry("after writing")),
            "panic" => panic!("after writing"),
            "slow" => std::future::pending().await,
            // So many tenths of a lease.
            "tenths" => {
                let tenths = context.message().id().as_str().split('-').next_back();
                let tenths: u32 = tenths.unwrap_or_default().parse()?;
                tokio::time::sleep(LEASE * tenths / 10).await;
            }
            "settled" => return Ok(Completion::already_settled()),
            "commit" => transaction.commit = Commit::Fails,
            "reply" => transaction.commit = Commit::LosesReply,
            "hang" => transaction.commit = Commit::Hangs,
            "late" => transaction.commit = Commit::Outlasts,
            _ => {}
        }
        Ok(Completion::with_result("done"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_happen_exactly_once() {
    let router = |store| Router::new(billing()).on("order.placed", in_transaction(store, Ledger));
    let repeated = ["error", "panic", "slow", "commit"];
    effects_of_each_fate_happen_exactly_once(4, &repeated, router).await;
}

/// With so many messages of each fate. Those of these fates take several attempts.
async fn effects_of_each_fate_happen_exactly_once(
    count: u32,
    repeated: &[&str],
    router: impl Fn(Fickle) -> Router,
) {
    let fates = ["fine", "error", "panic", "slow", "commit", "reply", "hang"];
    let never = ["dead-1", "settled-1"].map(String::from);
    let ids: Vec<_> = fates
        .iter()
        .flat_map(|fate| (0..count).map(move |n| format!("{fate}-{n}")))
        .collect();
    // Its result is not kept, its effect is.
    let large = String::from("large-1");
    let place = Place::new(ids.iter().chain(&never).chain([&large]).map(message)).await;
    // The time-out covers the wait for SQLite's only write lock, so any attempt can fail.
    let builder = place
        .processor_of(router(place.store.clone()))
        .handler_timeout(Duration::from_millis(500))
        // That of a commit that hangs.
        .store_timeout(Duration::from_secs(5));
    until_idle(builder.retry(at_once(10_000))).await;
    let mut expected = ids.clone();
    expected.push(large.clone());
    expected.sort();
    assert_eq!(place.effects().await, expected);
    for id in &ids {
        let record = place.record(id).await;
        assert_eq!(
            record.state,
            State::Processed,
            "{id}: {:?}",
            record.last_error
        );
        assert_eq!(record.result.as_deref(), Some(b"done".as_slice()), "{id}");
        let is_repeated = repeated.iter().any(|fate| id.starts_with(fate));
        assert!(
            record.attempts.started >= if is_repeated { 3 } else { 1 },
            "{id}"
        );
    }
    let record = place.record(&large).await;
    assert_eq!((record.state, record.result), (State::Processed, None));
    for id in &never {
        assert_eq!(place.record(id).await.state, State::Dead, "{id}");
    }
}

/// Gives way to another transaction: the first time by itself, then at the commit.
struct Contended(AtomicUsize);

#[async_trait]
impl TransactionalHandler<Fragile> for Contended {
    async fn handle(
        &self,
        transaction: &mut Fragile,
        context: &Context,
    ) -> Result<Completion, Failure> {
        transaction.write(context).await?;
        match self.0.fetch_add(1, SeqCst) {
            0 => return Err(Failure::conflict("write conflict")),
            1..4 => transaction.commit = Commit::Conflicts,
            _ => {}
        }
        Ok(Completion::default())
    }
}

#[tokio::test]
async fn a_conflict_between_transactions_costs_no_attempt() {
    let place = Place::new([message("1")]).await;
    let summary = until_idle(place.processor(Contended(AtomicUsize::new(0)))).await;
    assert_eq!((summary.processed, summary.retried), (1, 0));
    assert_eq!(place.effects().await, ["1"]);
    let record = place.record("1").await;
    assert_eq!(
        (record.state, record.attempts.started),
        (State::Processed, 1)
    );
}

/// One that never stops uses up its attempts like any other failure.
#[tokio::test]
async fn conflicts_without_end_are_failures() {
    let place = Place::new([message("1")]).await;
    let handler = in_transaction_fn(place.store.clone(), |_, _| async {
        Err::<(), _>(Failure::conflict("write conflict"))
    });
    let builder = Processor::builder(Arc::new(place.store.clone()))
        .router(Router::new(billing()).on("order.placed", handler))
        .retry(at_once(2));
    until_idle(builder).await;
    let record = place.record("1").await;
    assert_eq!((record.state, record.attempts.started), (State::Dead, 2));
}

#[tokio::test]
async fn a_transaction_whose_lease_was_lost_is_rolled_back() {
    let place = Place::new([message("1")]).await;
    place.store.steal.store(true, SeqCst);
    let told = Told::default();
    let summary = until_idle(place.processor(Ledger).hooks(told.clone())).await;
    assert_eq!(
        (summary.lease_lost, summary.processed, summary.retried),
        (1, 0, 0)
    );
    assert_eq!(told.all(), ["lost 1"]);
    assert!(place.effects().await.is_empty());
    let record = place.record("1").await;
    assert_eq!(
        (record.state, record.worker.unwrap().as_str()),
        (State::Leased, "thief")
    );
}

#[tokio::test]
async fn an_outage_costs_no_attempt() {
    let place = Place::new([message("fine-1"), message("fine-2")]).await;
    place.store.outage.store(4, SeqCst);
    let summary = until_idle(place.processor(Ledger)).await;
    assert_eq!((summary.claimed, summary.processed), (2, 2));
    assert_eq!(place.store.outage.load(SeqCst), 0);
    assert_eq!(place.effects().await, ["fine-1", "fine-2"]);
}

/// No call may take longer than it is told, also those that only transactions make.
#[tokio::test]
async fn a_call_that_never_answers_is_given_up_in_time() {
    for operation in ["open", "settle", "commit", "roll back"] {
        let id = if operation == "roll back" {
            "error-1"
        } else {
            "fine-1"
        };
        let place = Place::new([message(id)]).await;
        *place.store.hangs.lock().unwrap() = Some(operation);
        let builder = place
            .processor(Ledger)
            .store_timeout(Duration::from_secs(1));
        let began = std::time::Instant::now();
        let summary = until_idle(builder).await;
        assert_eq!((summary.processed, summary.dead), (1, 0), "{operation}");
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(1), "{operation}: {took:?}");
        assert!(took < Duration::from_secs(30), "{operation}: {took:?}");
        assert_eq!(place.effects().await, [id], "{operation}");
    }
}

#[tokio::test]
async fn inline_use_in_a_transaction_answers_in_time() {
    use inbox::inline::{ConsumeError, OnDuplicate, consume_in_transaction_within};

    for operation in ["open", "commit", "roll back"] {
        let place = Place::new([]).await;
        *place.store.hangs.lock().unwrap() = Some(operation);
        let work = async |_: &mut Fragile| match operation {
            "roll back" => Err("no funds"),
            _ => Ok(()),
        };
        let (message, limit) = (message("1"), Duration::from_millis(200));
        let policy = OnDuplicate::Skip;
        let consuming = consume_in_transaction_within(&place.store, &message, policy, limit, work);
        let answer = tokio::time::timeout(Duration::from_secs(30), consuming).await;
        match (operation, answer.unwrap().unwrap_err()) {
            ("open", ConsumeError::Store(error))
            | ("commit", ConsumeError::Unrecorded(Some(error))) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
            }
            ("roll back", ConsumeError::Handler(error)) => assert_eq!(error, "no funds"),
            (_, error) => panic!("{operation}: {error:?}"),
        }
    }
}

#[tokio::test]
async fn a_transaction_that_keeps_all_others_waiting_may_outlive_its_lease() {
    let (log, _guard) = Log::of(tracing::Level::WARN);
    let ids = ["tenths-2", "tenths-5", "tenths-15", "tenths-30"];
    let place = Place::new(ids.map(message)).await;
    let summary = until_idle(place.processor(Ledger).lease(LEASE)).await;
    assert_eq!(
        (summary.processed, summary.retried, summary.dead),
        (4, 0, 0)
    );
    assert_eq!(place.effects().await.len(), 4);
    for id in ids {
        let record = place.record(id).await;
        assert_eq!(
            (record.state, record.attempts.started),
            (State::Processed, 1)
        );
    }
    let cancelled = log.lines(&["before it could be renewed"]);
    assert!(cancelled.is_empty(), "{cancelled:?}");
}

/// Defect: a renewal that had waited for the transaction found those of its batch out of time, and they paid for it.
#[tokio::test]
async fn a_batch_that_outlives_its_lease_and_fails_runs_again_in_halves() {
    let messages = (0..4).map(message);
    let place = Place::new(messages.chain([message_of("plain", "plain", "x")])).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let fails_late = {
        let calls = calls.clone();
        move |mut lent: LentTransaction<Fragile>, batch: Batch| {
            let is_first = calls.fetch_add(1, SeqCst) == 0;
            async move {
                if is_first {
                    tokio::time::sleep(LEASE * 13 / 10).await;
                    return Err(Failure::retry("late"));
                }
                for context in &*batch {
                    lent.write(context).await?;
                }
                Ok(())
            }
        }
    };
    let waits = |_: Context| async {
        tokio::time::sleep(LEASE * 2).await;
        Ok::<_, Failure>(())
    };
    let router = Router::new(billing()).on("plain", waits).on_batch(
        "order.placed",
        batch_in_transaction_fn(place.store.clone(), fails_late),
    );
    let summary = until_idle(place.processor_of(router).lease(LEASE)).await;
    assert_eq!((summary.processed, summary.retried), (5, 0));
    assert_eq!(place.effects().await.len(), 4);
}

/// Defect: it was told of as an outage.
#[tokio::test]
async fn waiting_in_the_queue_for_the_one_transaction_is_no_outage() {
    let (log, _guard) = Log::of(tracing::Level::INFO);
    let place = Place::new((0..16).map(message)).await;
    let slowly = |mut lent: LentTransaction<Fragile>, context: Context| async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        lent.write(&context).await
    };
    let handler = in_transaction_fn(place.store.clone(), slowly);
    let router = Router::new(billing()).on("order.placed", handler);
    // A call is told of when it has taken two seconds; the last one waits for three.
    let builder = place.processor_of(router).concurrency(16);
    let builder = builder.store_timeout(Duration::from_secs(12));
    let summary = until_idle(builder).await;
    assert_eq!(summary.processed, 16);
    let told = log.lines(&["takes long"]);
    assert!(told.is_empty(), "{told:?}");
}

/// Defect: what was written for those behind a failure was committed, and their answers did not count.
#[tokio::test]
async fn what_a_batch_does_behind_a_failure_of_the_ordering_key_is_rolled_back() {
    let (log, _guard) = Log::of(tracing::Level::ERROR);
    let ids = ["a", "b", "c", "d"];
    let of_key = ids.map(|id| message(id).with_ordering_key("k".parse().unwrap()));
    let place = Place::new(of_key).await;
    let careless = |mut lent: LentTransaction<Fragile>, batch: Batch| async move {
        let mut answers = Vec::new();
        for context in &*batch {
            let fails = context.message().id().as_str() == "b" && context.attempts().started == 1;
            answers.push(match fails {
                true => Err(Failure::retry("not yet")),
                false => lent.write(context).await.map_err(Failure::retry),
            });
        }
        Ok::<_, Failure>(answers)
    };
    let router = Router::new(billing())
        .on_batch(
            "order.placed",
            batch_in_transaction_fn(place.store.clone(), careless),
        )
        .batches(Batches::of_one_key(10));
    let summary = until_idle(place.processor_of(router)).await;
    assert_eq!((summary.processed, summary.retried), (4, 1));
    assert_eq!(place.effects().await, ids);
    assert!(!log.lines(&["went on behind a failure"]).is_empty());
}

/// Its renewals wait for the transaction, and so does everybody who would take the message.
#[tokio::test]
async fn a_long_transaction_stops_no_other_handler() {
    let place = Place::new([message("tenths-100"), message_of("plain", "plain", "x")]).await;
    let ledger = in_transaction(place.store.clone(), Ledger);
    let plain = |context: Context| async move {
        tokio::select! {
            () = context.cancellation().cancelled() => Err(Failure::retry("told to stop")),
            () = tokio::time::sleep(LEASE * 110 / 10) => Ok(()),
        }
    };
    let router = Router::new(billing())
        .on("order.placed", ledger)
        .on("plain", plain);
    // The transaction takes twice as long.
    let builder = Processor::builder(Arc::new(place.store.clone()))
        .router(router)
        .lease(LEASE * 5);
    let summary = until_idle(builder).await;
    assert_eq!(
        (summary.processed, summary.retried, summary.released),
        (2, 0, 0)
    );
    assert_eq!(summary.lease_lost, 0);
}

#[tokio::test]
async fn a_transaction_that_is_stopped_on_purpose_is_rolled_back_and_costs_no_attempt() {
    let place = Place::new([message("slow-1")]).await;
    let builder = place
        .processor(Ledger)
        .drain_limit(Duration::from_millis(300));
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let processor = builder.build().unwrap();
    let task = tokio::spawn(async move { processor.run(stop).await });
    eventually("claimed", async || {
        place.record("slow-1").await.state == State::Leased
    })
    .await;
    shutdown.cancel();
    let summary = task.await.unwrap().unwrap();
    assert_eq!((summary.released, summary.abandoned), (1, 0));
    let record = place.record("slow-1").await;
    assert_eq!((record.state, record.attempts.started), (State::Pending, 0));
    assert_eq!(record.last_error, None);
    assert!(place.effects().await.is_empty());
}

#[tokio::test]
async fn a_processor_that_is_dropped_leaves_no_transaction_open() {
    let place = Place::new([message("slow-1"), message("fine-1")]).await;
    let processor = place.processor(Ledger).build().unwrap();
    let task = tokio::spawn(async move { processor.run(CancellationToken::new()).await });
    eventually("claimed", async || {
        place.record("slow-1").await.state == State::Leased
    })
    .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    // Opening takes the write lock, so this would fail during an open transaction.
    let effects = place.effects().await;
    assert!(effects.iter().all(|id| id == "fine-1"), "{effects:?}");
}

/// A handler around a transactional one that goes on for five leases after the commit, and ends
/// then as its message's id says.
fn with_a_tail(store: &Fickle, cancelled: Arc<AtomicBool>) -> impl Handler {
    let ledger = Arc::new(in_transaction(store.clone(), Ledger));
    move |context: Context| {
        let (ledger, cancelled) = (ledger.clone(), cancelled.clone());
        async move {
            let completion = ledger.handle(&context).await?;
            tokio::select! {
                () = tokio::time::sleep(LEASE * 5) => {}
                () = context.cancellation().cancelled() => cancelled.store(true, SeqCst),
            }
            match context.message().id().as_str() {
                "fails" => Err(Failure::retry("in the tail")),
                "dies" => Err(Failure::dead("in the tail")),
                "panics" => panic!("in the tail"),
                "completes" => Ok(Completion::default()),
                _ => Ok(completion),
            }
        }
    }
}

/// The lease ends with the commit, so there is none to lose.
#[tokio::test]
async fn a_handler_that_goes_on_after_its_commit_is_let_finish() {
    let (log, _guard) = Log::of(tracing::Level::WARN);
    let ids = ["fine", "fails", "dies", "panics", "completes"];
    let place = Place::new(ids.map(message)).await;
    let cancelled = Arc::new(AtomicBool::new(false));
    let told = Told::default();
    let router =
        Router::new(billing()).on("order.placed", with_a_tail(&place.store, cancelled.clone()));
    let builder = Processor::builder(Arc::new(place.store.clone()))
        .router(router)
        .hooks(told.clone())
        .lease(LEASE);
    let summary = until_idle(builder).await;
    assert!(!cancelled.load(SeqCst), "told to stop");
    assert_eq!((summary.claimed, summary.processed), (5, 5));
    assert_eq!((summary.lease_lost, summary.retried), (0, 0));
    assert!(told.all().is_empty(), "{:?}", told.all());
    assert!(told.failures.lock().unwrap().is_empty());
    for id in ids {
        assert_eq!(place.record(id).await.state, State::Processed, "{id}");
    }
    for words in ["lease lost", "lease ran out"] {
        let lost = log.lines(&[words]);
        assert!(lost.is_empty(), "{lost:?}");
    }
}

/// Nothing else waits for it: its transaction is over.
#[tokio::test]
async fn what_comes_after_a_commit_keeps_no_other_message_waiting() {
    let place = Place::new([message("first")]).await;
    let over = Arc::new(AtomicBool::new(false));
    let (ledger, is_over) = (in_transaction(place.store.clone(), Ledger), over.clone());
    let ledger = Arc::new(ledger);
    let handler = move |context: Context| {
        let (ledger, over) = (ledger.clone(), is_over.clone());
        async move {
            let completion = ledger.handle(&context).await?;
            while context.message().id().as_str() == "first" && !over.load(SeqCst) {
                tokio::time::sleep(LEASE / 10).await;
            }
            Ok::<_, Failure>(completion)
        }
    };
    let processor = Processor::builder(Arc::new(place.store.clone()))
        .router(Router::new(billing()).on("order.placed", handler))
        .lease(LEASE)
        .build()
        .unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { processor.run(stop).await });
    eventually("committed", async || {
        place.record("first").await.state == State::Processed
    })
    .await;
    tokio::time::sleep(LEASE * 2).await;
    let receipts = place.store.receive(&[message("second")]).await.unwrap();
    assert_eq!(receipts, [Receipt::Accepted]);
    let next = eventually("the second is processed", async || {
        place.record("second").await.state == State::Processed
    });
    let waited = tokio::time::timeout(Duration::from_secs(20), next).await;
    over.store(true, SeqCst);
    shutdown.cancel();
    let summary = running.await.unwrap().unwrap();
    assert!(waited.is_ok(), "the first keeps the second waiting");
    assert_eq!((summary.processed, summary.lease_lost), (2, 0));
}
