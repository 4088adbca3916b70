//! What a router writes about failed attempts is there if and only if their outcome is.

use inbox::{Batches, FailedAttempt, Fallback, LentTransaction, Outcome, Remedy, one_by_one};

use tokio::sync::Notify;

use super::*;

use crate::postgres_support;

#[derive(Debug, thiserror::Error)]
#[error("declined")]
struct Declined;

type Lent = LentTransaction<Fragile>;

async fn write(lent: &mut Lent, attempt: &FailedAttempt) -> Result<(), sqlx::Error> {
    let outcome = match &attempt.outcome {
        Outcome::Retry { .. } => "retry",
        Outcome::Dead { .. } => "dead",
        other => panic!("{other:?} is no failed attempt"),
    };
    let (id, started) = (
        attempt.context.message().id(),
        attempt.context.attempts().started,
    );
    sqlx::query("INSERT INTO effects (id) VALUES (?)")
        .bind(format!("{id} {started} {outcome}: {}", attempt.failure))
        .execute(&mut *lent.inner)
        .await
        .map(drop)
}

/// A router that writes about each failed attempt, in transactions whose commits go so.
fn writing(place: &Place, commits: &[Commit]) -> Router {
    let commits = Arc::new(Mutex::new(commits.iter().copied().collect::<VecDeque<_>>()));
    let on_failure = move |mut lent: Lent, attempt: FailedAttempt| {
        let commits = commits.clone();
        async move {
            write(&mut lent, &attempt).await?;
            if let Some(commit) = commits.lock().unwrap().pop_front() {
                lent.commit = commit;
            }
            Ok::<_, sqlx::Error>(())
        }
    };
    Router::new(billing()).on_failure_in_transaction(place.store.clone(), on_failure)
}

async fn refuses(_: Context) -> std::result::Result<(), &'static str> {
    Err("no funds")
}

fn running(place: &Place, router: Router) -> ProcessorBuilder {
    Processor::builder(Arc::new(place.store.clone()))
        .router(router)
        .poll_intervals(Duration::from_millis(2), Duration::from_millis(10))
        .retry(at_once(2))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_failed_attempt_is_written_about_once() {
    let ids = ["error", "panic", "slow", "own", "declined", "later"];
    let place = Place::new(ids.map(message)).await;
    let own = in_transaction(place.store.clone(), Ledger);
    let work = |context: Context| async move {
        match context.message().id().as_str() {
            "panic" => panic!("on purpose"),
            "slow" => std::future::pending().await,
            "declined" => Err(Failure::from(Declined)),
            "later" => Err(Failure::defer(Duration::from_secs(3600), "not now")),
            _ => Err::<(), _>(Failure::retry("no funds")),
        }
    };
    let _ = place
        .store
        .receive(&[message_of("ledger", "dead-1", "x")])
        .await
        .unwrap();
    let router = writing(&place, &[])
        .on("order.placed", work)
        .on("ledger", own)
        .timeout(Duration::from_secs(5))
        .classify(|_: &Declined| Remedy::Dead);
    let told = Told::default();
    let summary = until_idle(running(&place, router).hooks(told.clone())).await;
    assert_eq!(
        (summary.retried, summary.dead, summary.deferred),
        (4, 6, 1),
        "{summary:?}"
    );
    let declined = format!("declined 1 dead: {}::Declined: declined", module_path!());
    let expected = [
        // What its own transaction had written is not there.
        "dead-1 1 dead: after writing",
        &declined,
        "error 1 retry: no funds",
        "error 2 dead: no funds",
        "own 1 retry: no funds",
        "own 2 dead: no funds",
        "panic 1 retry: panicked: on purpose",
        "panic 2 dead: panicked: on purpose",
        "slow 1 retry: timed out",
        "slow 2 dead: timed out",
    ];
    assert_eq!(place.effects().await, expected);
    for id in ["error", "panic", "slow", "own", "declined", "dead-1"] {
        assert_eq!(place.record(id).await.state, State::Dead, "{id}");
    }
    assert_eq!(place.record("later").await.state, State::Pending);
    let dead = told.all().iter().filter(|t| t.starts_with("dead")).count();
    assert_eq!(dead, 6, "{:?}", told.all());
}

/// Without its being run: its worker crashed in all of its attempts.
#[tokio::test]
async fn a_death_by_crashes_is_written_about() {
    let place = Place::new([message("1")]).await;
    let worker = WorkerName::new("crashes").unwrap();
    for _ in 0..2 {
        let length = Duration::from_secs(60);
        let claims = place.store.claim_for(&billing(), 1, length, &worker).await;
        assert_eq!(claims.unwrap().leased.len(), 1);
        place.store.clock.advance(length);
    }
    let router = writing(&place, &[]).on("order.placed", refuses);
    let summary = until_idle(running(&place, router)).await;
    assert_eq!((summary.dead, summary.retried), (1, 0));
    let effects = place.effects().await;
    assert_eq!(effects.len(), 1);
    assert!(effects[0].starts_with("1 3 dead: "), "{effects:?}");
}

/// A conflict runs it again; what is not committed is settled by itself; a lost reply changes nothing.
#[tokio::test]
async fn a_commit_that_goes_wrong_neither_doubles_nor_loses_the_outcome() {
    for (commits, written) in [
        (&[Commit::Conflicts, Commit::Conflicts][..], 1),
        (&[Commit::Fails], 0),
        (&[Commit::LosesReply], 1),
        (&[Commit::Hangs], 1),
    ] {
        let place = Place::new([message("1")]).await;
        let router = writing(&place, commits).on("order.placed", |_: Context| async {
            Err::<(), _>(Failure::dead("no funds"))
        });
        let limit = match commits {
            [Commit::Hangs] => Duration::from_secs(5),
            _ => Duration::from_secs(60),
        };
        let builder = running(&place, router).store_timeout(limit);
        let summary = until_idle(builder).await;
        assert_eq!((summary.dead, summary.lease_lost), (1, 0), "{summary:?}");
        assert_eq!(place.effects().await.len(), written);
        let record = place.record("1").await;
        assert_eq!((record.state, record.attempts.started), (State::Dead, 1));
        assert_eq!(record.attempts.finished, 1);
        assert_eq!(record.last_error.as_deref(), Some("no funds"));
    }
}

/// Defect: its retry was claimed before the commit was answered, and put off for a sixth of the lease as if its handler
/// still ran.
#[tokio::test]
async fn a_retry_that_is_claimed_before_its_commit_is_answered_runs_at_once() {
    let place = Place::new([message("1")]).await;
    let router = writing(&place, &[Commit::AnswersLate]).on("order.placed", refuses);
    let summary = until_idle(running(&place, router)).await;
    let expected = (2, 1, 0, 1, 0);
    assert_eq!(
        (
            summary.claimed,
            summary.retried,
            summary.deferred,
            summary.dead,
            summary.lease_lost
        ),
        expected,
        "{summary:?}"
    );
    let effects = place.effects().await;
    assert_eq!(effects, ["1 1 retry: no funds", "1 2 dead: no funds"]);
}

/// Defect: with the attempt in doubt, the first conflict was the end of what is written about it.
#[tokio::test]
async fn a_conflict_runs_it_again_also_when_the_attempt_is_in_doubt() {
    let place = Place::new([message("1")]).await;
    let hangs = place.store.hangs.clone();
    let handler = move |mut lent: Lent, _: Context| {
        let hangs = hangs.clone();
        async move {
            lent.commit = Commit::Vanishes;
            // So that this is not found out.
            *hangs.lock().unwrap() = Some("open");
            Ok::<_, Failure>(())
        }
    };
    let handler = in_transaction_fn(place.store.clone(), handler);
    let router = writing(&place, &[Commit::Conflicts]).on("order.placed", handler);
    let builder = running(&place, router)
        .retry(at_once(1))
        .store_timeout(Duration::from_secs(1));
    let summary = until_idle(builder).await;
    assert_eq!((summary.claimed, summary.dead), (1, 1), "{summary:?}");
    let effects = place.effects().await;
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert!(effects[0].starts_with("1 1 dead: "), "{effects:?}");
}

#[tokio::test]
async fn what_cannot_be_written_keeps_no_message_alive() {
    let (log, _guard) = Log::of(tracing::Level::ERROR);
    let place = Place::new(["error", "panic", "slow"].map(message)).await;
    let on_failure = |mut lent: Lent, attempt: FailedAttempt| async move {
        write(&mut lent, &attempt).await?;
        match attempt.context.message().id().as_str() {
            "error" => Err(Failure::dead("the table is full")),
            "panic" => panic!("on purpose"),
            _ => std::future::pending().await,
        }
    };
    let router = Router::new(billing())
        .on("order.placed", refuses)
        .timeout(Duration::from_millis(200))
        .on_failure_in_transaction(place.store.clone(), on_failure);
    let summary = until_idle(running(&place, router)).await;
    assert_eq!((summary.retried, summary.dead), (3, 3));
    assert!(place.effects().await.is_empty());
    let lines = log.lines(&["what is written about a failed attempt may be missing"]);
    assert_eq!(lines.len(), 6, "{lines:?}");
}

#[tokio::test]
async fn an_outage_is_waited_for() {
    let place = Place::new([message("1")]).await;
    place.store.outage.store(4, SeqCst);
    let router = writing(&place, &[]).on("order.placed", refuses);
    let summary = until_idle(running(&place, router)).await;
    assert_eq!((summary.retried, summary.dead), (1, 1));
    assert_eq!(place.effects().await.len(), 2);
}

/// Defects: the time limit counted the opening of the transaction, also where that waited for others, and the commit.
#[tokio::test]
async fn the_time_limit_is_for_the_writing_alone() {
    let limit = Duration::from_secs(1);
    let outage = Place::new([message("1")]).await;
    outage.store.outage.store(7, SeqCst);
    let crowd = Place::new((0..20).map(message)).await;
    for (place, count) in [(&outage, 1), (&crowd, 20)] {
        let slowly = |mut lent: Lent, attempt: FailedAttempt| async move {
            tokio::time::sleep(Duration::from_millis(60)).await;
            write(&mut lent, &attempt).await
        };
        let router = Router::new(billing())
            .on("order.placed", refuses)
            .timeout(limit)
            .on_failure_in_transaction(place.store.clone(), slowly);
        let summary = until_idle(running(place, router).retry(at_once(1))).await;
        assert_eq!(summary.dead, count);
        assert_eq!(place.effects().await.len() as u64, count);
    }
}

/// Defect: between two of them nothing ran, and a shutdown left the rest after five seconds.
#[tokio::test]
async fn a_shutdown_waits_for_all_that_is_to_be_written() {
    const COUNT: usize = 9;
    let place = Place::new((0..COUNT).map(message)).await;
    let begun = Arc::new(Notify::new());
    let seen = begun.clone();
    let slowly = move |mut lent: Lent, attempt: FailedAttempt| {
        seen.notify_one();
        async move {
            tokio::time::sleep(Duration::from_millis(800)).await;
            write(&mut lent, &attempt).await
        }
    };
    let refuses_all = |_: Batch| async { Err::<(), _>(Failure::dead("no funds")) };
    let router = Router::new(billing())
        .on_batch("order.placed", refuses_all)
        .batches(Batches::up_to(COUNT).at_once(1))
        .on_failure_in_transaction(place.store.clone(), slowly);
    let processor = running(&place, router).build().unwrap();
    let shutdown = CancellationToken::new();
    let stop = async {
        begun.notified().await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), stop);
    let summary = summary.unwrap();
    assert_eq!((summary.dead, summary.abandoned), (COUNT as u64, 0));
    assert_eq!(place.effects().await.len(), COUNT);
}

/// Defect: it was settled before what the claim had brought behind it was even looked at, and would come after that if
/// the process died then.
#[tokio::test]
async fn what_has_no_handler_waits_for_what_came_with_it() {
    let behind = message_of("known", "2", "x").with_ordering_key("k".parse().unwrap());
    let first = message("1").with_ordering_key("k".parse().unwrap());
    let place = Place::new([first, behind]).await;
    let known = one_by_one(|_: Context| async { Ok::<_, Failure>(()) });
    let router = writing(&place, &[])
        .on_batch("known", known)
        .batches(Batches::up_to(10).runs(10))
        .fallback(Fallback::Retry);
    *place.store.hangs.lock().unwrap() = Some("settle");
    let processor = running(&place, router).build().unwrap();
    let running = processor.run(CancellationToken::new());
    let _ = tokio::time::timeout(Duration::from_millis(500), running).await;
    // It was not handed back, so nothing is written about the first one.
    assert!(place.effects().await.is_empty());
    assert_eq!(place.record("1").await.attempts.finished, 0);
}

#[tokio::test]
async fn nothing_is_written_under_a_lease_that_was_lost() {
    let place = Place::new([message("1")]).await;
    place.store.steal.store(true, SeqCst);
    let router = writing(&place, &[]).on("order.placed", refuses);
    let told = Told::default();
    let summary = until_idle(running(&place, router).hooks(told.clone())).await;
    assert_eq!(
        (summary.lease_lost, summary.retried, summary.dead),
        (1, 0, 0)
    );
    assert_eq!(told.all(), ["lost 1"]);
    assert!(place.effects().await.is_empty());
    let worker = place.record("1").await.worker.unwrap();
    assert_eq!(worker.as_str(), "thief");
}

/// The error handler belongs to the attempt: a shutdown waits for it.
#[tokio::test]
async fn a_shutdown_waits_for_what_is_being_written() {
    let place = Place::new([message("1")]).await;
    let stop = CancellationToken::new();
    let on_failure = {
        let stop = stop.clone();
        move |mut lent: Lent, attempt: FailedAttempt| {
            let stop = stop.clone();
            async move {
                stop.cancel();
                tokio::time::sleep(Duration::from_millis(100)).await;
                write(&mut lent, &attempt).await
            }
        }
    };
    let router = Router::new(billing())
        .on("order.placed", |_: Context| async {
            Err::<(), _>(Failure::dead("no funds"))
        })
        .on_failure_in_transaction(place.store.clone(), on_failure);
    let processor = running(&place, router).build().unwrap();
    let summary = processor.run(stop).await.unwrap();
    assert_eq!((summary.dead, summary.released), (1, 0));
    assert_eq!(place.effects().await, ["1 1 dead: no funds"]);
}

/// Where transactions do not wait for each other.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_every_failed_attempt_is_written_about_once() {
    let Some(place) = postgres_support::Place::shared().await else {
        return;
    };
    let messages: Vec<_> = (0..20).map(message).collect();
    let _ = place.store.receive(&messages).await.unwrap();
    let sql = format!("INSERT INTO \"{}\".effects VALUES ($1)", place.schema);
    let on_failure = move |mut lent: LentTransaction<Transaction<'static, sqlx::Postgres>>,
                           attempt: FailedAttempt| {
        let insert = sqlx::query(sqlx::AssertSqlSafe(sql.clone()));
        async move {
            let context = &attempt.context;
            let number = context.attempts().started;
            insert
                .bind(format!("{} {number}", context.message().id()))
                .execute(&mut **lent)
                .await
                .map(drop)
        }
    };
    let router = Router::new(billing())
        .on("order.placed", refuses)
        .on_failure_in_transaction(place.store.clone(), on_failure);
    let builder = Processor::builder(Arc::new(place.store.clone()))
        .router(router)
        .concurrency(8)
        .retry(at_once(3));
    let summary = until_idle(builder).await;
    assert_eq!((summary.retried, summary.dead), (40, 20), "{summary:?}");
    let mut effects = place.effects().await;
    assert_eq!(effects.len(), 60);
    effects.dedup();
    assert_eq!(effects.len(), 60);
    assert_eq!(place.statistics().await.count(State::Dead), 20);
}
