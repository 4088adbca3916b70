//! Retention, on a real store in memory.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use inbox::{
    AfterDead, Begun, CancellationToken, Due, Edit, ErrorKind, HandlerName, Intervention, Janitor,
    Lease, LeaseTerms, Outcome, Receipt, Retention, RetryPolicy, Settled, Slice, State, Store,
    StoreExt as _, SweepError, WorkerName,
};

mod archiving;
mod rests;

use self::archiving::Shelf;
use crate::{
    faulty::{Fault, FaultyStore},
    processor_support::*,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Ten messages each that are processed, dead, discarded, leased and pending.
async fn filled() -> Spy {
    let spy = Spy::new();
    spy.receive_all((0..40).map(|n| message(format!("{n:02}"))))
        .await;
    let worker = WorkerName::new("w").unwrap();
    let leased = spy
        .inner
        .claim_for(&billing(), 40, DAY, &worker)
        .await
        .unwrap()
        .leased;
    for (n, leased) in leased.iter().enumerate() {
        let outcome = match n / 10 {
            0 => Outcome::Processed { result: None },
            1 => Outcome::Dead {
                reason: "no".into(),
                after: AfterDead::Continue,
            },
            2 => Outcome::Release,
            _ => continue,
        };
        let _ = spy.inner.settle_one(&leased.lease, outcome).await.unwrap();
        if n / 10 == 2 {
            let done = spy.inner.discard(&leased.lease.key).await.unwrap();
            assert_eq!(done, Intervention::Done);
        }
    }
    spy.receive_all((40..50).map(message)).await;
    spy
}

fn keeping(spy: &Spy, processed: Duration, dead: Duration) -> inbox::JanitorBuilder {
    Janitor::builder(spy.inner.clone())
        .keep_processed(processed)
        .keep_dead(dead)
}

#[tokio::test]
async fn only_final_messages_of_the_given_states_and_ages_go() {
    let spy = filled().await;
    let janitor = keeping(&spy, DAY, 3 * DAY).slice(3).build().unwrap();
    assert_eq!(janitor.sweep().await.unwrap().purged(), 0);
    spy.clock.advance(2 * DAY);
    let sweep = janitor.sweep().await.unwrap();
    assert_eq!((sweep.processed, sweep.dead, sweep.discarded), (10, 0, 0));
    spy.clock.advance(2 * DAY);
    let sweep = janitor.sweep().await.unwrap();
    assert_eq!((sweep.processed, sweep.dead, sweep.discarded), (0, 10, 0));
    // The leased ones show as pending by now.
    assert_eq!(spy.count(State::Discarded).await, 10);
    assert_eq!(spy.count(State::Pending).await, 20);
    let all = keeping(&spy, DAY, DAY).keep_discarded(DAY).build().unwrap();
    assert_eq!(all.sweep().await.unwrap().discarded, 10);
    // Protection ends with the key.
    assert_eq!(
        spy.inner.receive_one(&message("00")).await.unwrap(),
        Receipt::Accepted
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn janitors_of_several_replicas_share_the_work() {
    let spy = Arc::new(filled().await);
    spy.clock.advance(2 * DAY);
    let sweep = |archives: bool| {
        let mut builder = keeping(&spy, DAY, DAY).slice(2);
        if archives {
            builder = builder.archiver(Shelf::default());
        }
        let janitor = builder.build().unwrap();
        tokio::spawn(async move { janitor.sweep().await.unwrap().purged() })
    };
    let (one, two, three) = tokio::join!(sweep(false), sweep(true), sweep(true));
    assert_eq!(one.unwrap() + two.unwrap() + three.unwrap(), 20);
}

#[tokio::test]
async fn it_sweeps_again_and_again_until_shutdown() {
    let spy = filled().await;
    let janitor = keeping(&spy, DAY, DAY)
        .interval(Duration::from_millis(5))
        .build()
        .unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let task = tokio::spawn(async move { janitor.run(stop).await });
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(spy.count(State::Dead).await, 10);
    spy.clock.advance(2 * DAY);
    eventually("swept", async || spy.count(State::Dead).await == 0).await;
    shutdown.cancel();
    task.await.unwrap();
}

#[test]
fn a_retention_shorter_than_the_retry_window_is_warned_of() {
    let spy = Spy::new();
    let policy = RetryPolicy::default()
        .with_max_attempts(3)
        .with_delays(Duration::from_secs(100), Duration::from_secs(150));
    let short = Duration::from_secs(249);
    let janitor = keeping(&spy, short, Duration::from_secs(250))
        .retry(policy.clone())
        .build()
        .unwrap();
    let [warning] = janitor.warnings() else {
        panic!("{:?}", janitor.warnings());
    };
    assert_eq!(
        (warning.state, warning.retention),
        (State::Processed, short)
    );
    assert_eq!(warning.window, policy.longest_window());
    assert!(warning.to_string().contains("249s"));
    assert!(
        keeping(&spy, DAY, DAY)
            .retry(policy)
            .build()
            .unwrap()
            .warnings()
            .is_empty()
    );
}

#[test]
fn bad_settings_are_refused() {
    let spy = Spy::new();
    assert!(keeping(&spy, DAY, DAY).slice(0).build().is_err());
    assert!(
        keeping(&spy, DAY, DAY)
            .interval(Duration::ZERO)
            .build()
            .is_err()
    );
}

#[tokio::test]
async fn what_no_caller_comes_back_for_is_dead_in_the_end() {
    let spy = Arc::new(Spy::new());
    let worker = inbox::WorkerName::new("web").unwrap();
    let terms = inbox::LeaseTerms::new(Duration::from_secs(30), worker).unwrap();
    let hour = Duration::from_secs(3600);
    let told = Told::default();
    let janitor = Janitor::builder(spy.inner.clone())
        .give_up_after(spy.clone(), [billing()], hour, inbox::AfterDead::Continue)
        .hooks(told.clone())
        .build()
        .unwrap();
    let fail = async |id: &str, after: Duration| {
        let begun = spy.inner.begin(&message(id), &terms).await.unwrap();
        let inbox::Begun::Run(leased) = begun else {
            panic!("{begun:?}");
        };
        let error = "no funds".to_owned();
        let outcome = inbox::Outcome::Retry { after, error };
        let _ = spy.inner.settle_one(&leased.lease, outcome).await.unwrap();
    };
    fail("gone", Duration::from_secs(5)).await;
    fail("waiting", hour * 4).await;
    spy.clock.advance(hour / 2);
    assert_eq!(janitor.sweep().await.unwrap().abandoned, 0);
    spy.clock.advance(hour);
    // Replayed by an operator: it gets its time again.
    let _ = spy.inner.begin(&message("replayed"), &terms).await.unwrap();
    spy.clock.advance(hour * 2);
    let _ = spy.inner.discard(&key("replayed")).await.unwrap();
    let _ = spy
        .inner
        .replay(&key("replayed"), &Edit::default())
        .await
        .unwrap();
    let other = message("other").for_handler(inbox::HandlerName::new("other").unwrap());
    spy.receive_all([other]).await;
    spy.clock.advance(hour / 2);
    assert_eq!(janitor.sweep().await.unwrap().abandoned, 1);
    assert_eq!(spy.record("gone").await.state, State::Dead);
    let waiting = spy.record("waiting").await;
    assert_eq!(
        (waiting.state, waiting.attempts.started),
        (State::Pending, 1)
    );
    let replayed = spy.record("replayed").await;
    assert_eq!(
        (replayed.state, replayed.attempts.started),
        (State::Pending, 0)
    );
    assert_eq!(told.all().len(), 1);
    assert!(told.all()[0].starts_with("dead gone: abandoned"));
}

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Takes a lease as an inline consumer does.
async fn begin(spy: &Spy, id: &str) -> Lease {
    let terms = LeaseTerms::new(Duration::from_secs(30), WorkerName::new("web").unwrap());
    let begun = spy.inner.begin(&message(id), &terms.unwrap()).await;
    match begun.unwrap() {
        Begun::Run(leased) => leased.lease,
        other => panic!("{other:?}"),
    }
}

fn giving_up(spy: &Arc<Spy>) -> inbox::JanitorBuilder {
    let store: Arc<Spy> = spy.clone();
    Janitor::builder(spy.inner.clone()).give_up_after(store, [billing()], HOUR, AfterDead::Continue)
}

/// How many messages a new janitor gives up, as after a restart.
async fn given_up(spy: &Arc<Spy>) -> u64 {
    let janitor = giving_up(spy).build().unwrap();
    janitor.sweep().await.unwrap().abandoned
}

/// An attempt at the message `long` that goes on for 90 minutes.
async fn long_attempt(spy: &Spy) -> Lease {
    let lease = begin(spy, "long").await;
    for _ in 0..540 {
        spy.clock.advance(Duration::from_secs(10));
        let length = Duration::from_secs(30);
        let _ = spy.inner.extend_one(&lease, length).await.unwrap();
    }
    lease
}

/// The same, whose process shuts down then.
async fn handed_back_a_moment_ago(spy: &Spy) {
    let lease = long_attempt(spy).await;
    let settled = spy.inner.settle_one(&lease, Outcome::Release).await;
    assert_eq!(settled.unwrap(), Settled::Done);
}

#[tokio::test]
async fn what_was_worked_on_until_a_moment_ago_is_not_given_up() {
    let spy = Arc::new(Spy::new());
    let _crashed = long_attempt(&spy).await;
    spy.clock.advance(Duration::from_secs(60));
    assert_eq!(given_up(&spy).await, 0);
    spy.clock.advance(HOUR / 2);
    assert_eq!(given_up(&spy).await, 0);
    let record = spy.record("long").await;
    assert_eq!((record.state, record.attempts.started), (State::Pending, 1));
    // Another attempt, which crashes too.
    let _crashed = begin(&spy, "long").await;
    spy.clock.advance(HOUR * 3 / 4);
    assert_eq!(given_up(&spy).await, 0);
    spy.clock.advance(HOUR * 3 / 4);
    assert_eq!(given_up(&spy).await, 0);
    spy.clock.advance(HOUR / 4);
    assert_eq!(given_up(&spy).await, 1);
    let record = spy.record("long").await;
    assert_eq!((record.state, record.attempts.started), (State::Dead, 3));
}

/// Defect: a janitor that had handed it back, and not yet written since when, took the time before the attempt.
#[tokio::test]
async fn a_look_that_is_cut_short_gives_nothing_up() {
    let spy = Arc::new(Spy::new());
    handed_back_a_moment_ago(&spy).await;
    let store = Arc::new(FaultyStore::new(spy.inner.clone()));
    store.plan("begin", [Fault::Pass, Fault::Before(ErrorKind::Denied)]);
    let janitor = giving_up_by(&store);
    assert!(janitor.sweep().await.is_err());
    assert_eq!(store.calls("begin"), 2);
    assert_eq!(given_up(&spy).await, 0);
    assert_eq!(spy.record("long").await.state, State::Pending);
    spy.clock.advance(HOUR * 3 / 2);
    assert_eq!(given_up(&spy).await, 1);
}

/// Defect: it counted from when the message was due, before the attempt.
#[tokio::test]
async fn what_was_handed_back_a_moment_ago_is_not_given_up() {
    let spy = Arc::new(Spy::new());
    handed_back_a_moment_ago(&spy).await;
    assert_eq!(given_up(&spy).await, 0);
    spy.clock.advance(HOUR * 3 / 4);
    assert_eq!(given_up(&spy).await, 0);
    spy.clock.advance(HOUR / 2);
    assert_eq!(given_up(&spy).await, 1);
    let record = spy.record("long").await;
    assert_eq!((record.state, record.attempts.started), (State::Dead, 1));
}

/// Defect: the moment of a look was kept although others had had the message since.
#[tokio::test(start_paused = true)]
async fn what_others_had_during_a_slow_look_is_not_given_up() {
    let spy = Arc::new(Spy::new());
    let _crashed = begin(&spy, "long").await;
    spy.clock.advance(HOUR * 2);
    let store = Arc::new(FaultyStore::new(spy.inner.clone()));
    store.plan("settle", [Fault::Later(Duration::from_secs(20))]);
    let janitor = giving_up_by(&store);
    let sweeping = tokio::spawn(async move { janitor.sweep().await.unwrap().abandoned });
    tokio::time::sleep(Duration::from_secs(10)).await;
    // The janitor's lease runs out, and another attempt crashes.
    spy.clock.advance(HOUR * 3 / 4);
    let _crashed = begin(&spy, "long").await;
    spy.clock.advance(Duration::from_secs(60));
    assert_eq!(sweeping.await.unwrap(), 0);
    spy.clock.advance(HOUR / 2);
    assert_eq!(given_up(&spy).await, 0);
}

/// Defect: so it was when that happened before the moment was written down.
#[tokio::test(start_paused = true)]
async fn what_others_had_before_a_look_is_noted_is_not_given_up() {
    for is_handed_back in [false, true] {
        let spy = Arc::new(Spy::new());
        let _crashed = begin(&spy, "long").await;
        spy.clock.advance(HOUR * 2);
        let store = Arc::new(FaultyStore::new(spy.inner.clone()));
        let late = Fault::Later(Duration::from_secs(20));
        store.plan("begin", [Fault::Pass, late]);
        let janitor = giving_up_by(&store);
        let sweeping = tokio::spawn(async move { janitor.sweep().await.unwrap().abandoned });
        tokio::time::sleep(Duration::from_secs(10)).await;
        // The janitor has handed it back, and another attempt goes on for long.
        let lease = long_attempt(&spy).await;
        if is_handed_back {
            let _ = spy.inner.settle_one(&lease, Outcome::Release).await;
        } else {
            spy.clock.advance(Duration::from_secs(60));
        }
        assert_eq!(sweeping.await.unwrap(), 0);
        assert_eq!(given_up(&spy).await, 0, "{is_handed_back}");
        spy.clock.advance(HOUR / 2);
        assert_eq!(given_up(&spy).await, 0, "{is_handed_back}");
        spy.clock.advance(HOUR * 3 / 4);
        assert_eq!(given_up(&spy).await, 1, "{is_handed_back}");
    }
}

/// Defect: the second call took the place of the first.
#[tokio::test]
async fn handlers_may_be_given_up_after_times_of_their_own() {
    let spy = Arc::new(Spy::new());
    let mail = HandlerName::new("mail").unwrap();
    spy.receive_all([message("1"), message("1").for_handler(mail.clone())])
        .await;
    let (also, never) = ([mail], [billing()]);
    let janitor = giving_up(&spy)
        .give_up_after(spy.clone(), also, 3 * HOUR, AfterDead::Continue)
        .give_up_after(spy.clone(), never, 1000 * HOUR, AfterDead::Continue)
        .build()
        .unwrap();
    spy.clock.advance(2 * HOUR);
    assert_eq!(janitor.sweep().await.unwrap().abandoned, 1);
    assert_eq!(spy.record("1").await.state, State::Dead);
    spy.clock.advance(2 * HOUR);
    assert_eq!(janitor.sweep().await.unwrap().abandoned, 1);
    assert_eq!(spy.count(State::Dead).await, 2);
}

/// A janitor whose calls can be delayed and counted.
fn giving_up_by(store: &Arc<FaultyStore>) -> Janitor {
    Janitor::builder(store.clone())
        .give_up_after(store.clone(), [billing()], HOUR, AfterDead::Continue)
        .build()
        .unwrap()
}

/// Defect: the look at a message stored it again, and it was dead at once.
#[tokio::test(start_paused = true)]
async fn what_is_cleared_while_it_is_looked_at_is_not_given_up() {
    let spy = Arc::new(Spy::new());
    spy.receive_all([message("gone")]).await;
    spy.clock.advance(2 * HOUR);
    let store = Arc::new(FaultyStore::new(spy.inner.clone()));
    store.plan("get", [Fault::Slow(Duration::from_secs(2))]);
    let janitor = giving_up_by(&store);
    let sweeping = tokio::spawn(async move { janitor.sweep().await.unwrap().abandoned });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let slice = Slice {
        after: None,
        limit: 10,
    };
    let cleared = spy.inner.clear_slice(&billing(), &slice).await.unwrap();
    assert_eq!(cleared.changed, 1);
    assert_eq!(sweeping.await.unwrap(), 0);
    let record = spy.record("gone").await;
    let started = record.attempts.started;
    assert_eq!((record.state, started), (State::Pending, 0));
}

/// Defect: each sweep read those one by one.
#[tokio::test]
async fn what_waits_for_its_time_is_not_read() {
    let spy = Arc::new(Spy::new());
    let later = message("later").with_due(Due::After(10 * HOUR));
    spy.receive_all([later]).await;
    spy.clock.advance(2 * HOUR);
    let store = Arc::new(FaultyStore::new(spy.inner.clone()));
    let sweep = giving_up_by(&store).sweep().await.unwrap();
    assert_eq!((sweep.abandoned, store.calls("get")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_given_up_keeps_nothing_else() {
    use ErrorKind::{Conflict, Corrupt, Invalid, Unavailable};

    let passing = [
        ("list", Unavailable),
        ("get", Conflict),
        ("begin", Unavailable),
        ("settle", Conflict),
    ];
    let lasting = [("get", Corrupt), ("begin", Corrupt), ("begin", Invalid)];
    for (operation, kind) in passing.into_iter().chain(lasting) {
        let spy = Arc::new(filled().await);
        let all = Arc::new(FaultyStore::new(spy.inner.clone()));
        spy.clock.advance(2 * DAY);
        all.plan(operation, [Fault::Before(kind)]);
        let janitor = Janitor::builder(all.clone())
            .keep_processed(DAY)
            .keep_dead(DAY)
            .give_up_after(all.clone(), [billing()], HOUR, AfterDead::Continue)
            .build()
            .unwrap();
        let sweep = janitor.sweep().await.unwrap();
        assert_eq!(
            (sweep.processed, sweep.dead),
            (10, 10),
            "{operation}: {kind:?}"
        );
        // Ten are pending; the other ten were leased until two days ago, for all that is known.
        let stays = u64::from(matches!(kind, Corrupt | Invalid));
        let seen = spy.count(State::Dead).await;
        assert_eq!(sweep.abandoned, seen, "{operation}: {kind:?}");
        assert!(seen + stays >= 10, "{operation}: {kind:?}: {seen}");
        assert_eq!(sweep.corrupt, stays, "{operation}: {kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_one_part_of_a_sweep_gets_the_other() {
    for (operation, expected) in [("list", (10, 0)), ("purge", (0, 10))] {
        let spy = Arc::new(filled().await);
        let all = Arc::new(FaultyStore::new(spy.inner.clone()));
        spy.clock.advance(2 * DAY);
        all.plan(operation, vec![Fault::Before(ErrorKind::Denied); 10]);
        let janitor = Janitor::builder(all.clone())
            .keep_processed(DAY)
            .give_up_after(all.clone(), [billing()], HOUR, AfterDead::Continue)
            .build()
            .unwrap();
        let error = janitor.sweep().await.unwrap_err();
        assert!(matches!(error, SweepError::Store(_)), "{error:?}");
        let processed = 10 - spy.count(State::Processed).await;
        let dead = spy.count(State::Dead).await - 10;
        assert_eq!((processed, dead), expected, "{operation}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_leaves_no_message_in_the_janitors_hands() {
    let spy = Arc::new(Spy::new());
    spy.receive_all([message("gone"), message("gone, too")])
        .await;
    spy.clock.advance(HOUR * 2);
    spy.disturb("settle", Trouble::Hold);
    let janitor = giving_up(&spy).build().unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { janitor.run(stop).await });
    eventually("held", async || spy.count(State::Leased).await == 1).await;
    shutdown.cancel();
    tokio::time::sleep(Duration::from_secs(1)).await;
    spy.calm("settle");
    running.await.unwrap();
    assert_eq!(spy.count(State::Leased).await, 0);
    assert_eq!(spy.count(State::Dead).await, 1);
    assert_eq!(spy.count(State::Pending).await, 1);
}

/// Also when the sweep does not come to its end.
#[tokio::test]
async fn what_was_deleted_before_a_failure_is_counted() {
    let spy = filled().await;
    spy.clock.advance(2 * DAY);
    let shelf = Shelf {
        fails_at: Some(2),
        ..Shelf::default()
    };
    let janitor = keeping(&spy, DAY, DAY).slice(4).archiver(shelf);
    let janitor = janitor.build().unwrap();
    let mut sweep = inbox::Sweep::default();
    let never = CancellationToken::new();
    let error = janitor.sweep_into(&mut sweep, &never).await.unwrap_err();
    assert!(matches!(error, SweepError::Archiver(_)), "{error:?}");
    assert_eq!((sweep.processed, sweep.dead), (8, 0));
    assert_eq!(spy.count(State::Processed).await, 2);
}

/// It is not left under the janitor's lease, nor does it pay for being looked at.
#[tokio::test]
async fn a_death_that_is_refused_is_told_and_the_message_handed_back() {
    for always in [false, true] {
        let spy = Arc::new(Spy::new());
        spy.receive_all([message("odd")]).await;
        spy.clock.advance(2 * DAY);
        spy.disturb("settle", Trouble::RefuseDead { always });
        let told = Told::default();
        let janitor = giving_up(&spy).hooks(told.clone()).build().unwrap();
        for _ in 0..3 {
            janitor.sweep().await.unwrap();
        }
        let record = spy.record("odd").await;
        let attempts = (record.attempts.started, record.attempts.finished);
        if always {
            assert_eq!((record.state, attempts), (State::Pending, (0, 0)));
            assert_eq!(told.all().len(), 3, "{:?}", told.all());
            assert!(told.all()[0].starts_with("refused odd"));
        } else {
            // Without its text it goes through.
            assert_eq!(record.state, State::Dead);
            assert_eq!(told.all().len(), 1, "{:?}", told.all());
        }
    }
}

/// Messages of two handlers, all processed.
async fn processed() -> Spy {
    let spy = Spy::new();
    let mail = inbox::HandlerName::new("mail").unwrap();
    spy.receive_all((0..4).flat_map(|n| [message(n), message(n).for_handler(mail.clone())]))
        .await;
    let worker = WorkerName::new("w").unwrap();
    for handler in [billing(), mail] {
        let claims = spy
            .inner
            .claim_for(&handler, 10, DAY, &worker)
            .await
            .unwrap();
        for leased in claims.leased {
            let result = Some("result".into());
            let outcome = Outcome::Processed { result };
            let _ = spy.inner.settle_one(&leased.lease, outcome).await.unwrap();
        }
    }
    spy
}

#[tokio::test]
async fn a_handler_may_have_a_retention_of_its_own() {
    let spy = processed().await;
    let mail = inbox::HandlerName::new("mail").unwrap();
    let janitor = Janitor::builder(spy.inner.clone())
        .keep_processed(DAY)
        .handler(mail.clone(), Retention::new().keep_processed(10 * DAY))
        .slice(3)
        .build()
        .unwrap();
    spy.clock.advance(2 * DAY);
    assert_eq!(janitor.sweep().await.unwrap().processed, 4);
    let left = spy.records().await;
    assert!(left.iter().all(|record| record.key.handler == mail));
    assert_eq!(left.len(), 4);
    spy.clock.advance(10 * DAY);
    assert_eq!(janitor.sweep().await.unwrap().processed, 4);
    // One that has none keeps all, whatever the others do.
    let spy = processed().await;
    let janitor = Janitor::builder(spy.inner.clone())
        .keep_processed(DAY)
        .handler(mail, Retention::new())
        .build()
        .unwrap();
    spy.clock.advance(1000 * DAY);
    assert_eq!(janitor.sweep().await.unwrap().processed, 4);
    assert_eq!(spy.records().await.len(), 4);
}

#[tokio::test]
async fn payloads_go_before_their_keys() {
    let spy = processed().await;
    let janitor = Janitor::builder(spy.inner.clone())
        .keep_processed(30 * DAY)
        .keep_payloads(7 * DAY)
        .slice(3)
        .build()
        .unwrap();
    assert_eq!(janitor.sweep().await.unwrap().payloads, 0);
    spy.clock.advance(7 * DAY);
    let sweep = janitor.sweep().await.unwrap();
    assert_eq!((sweep.payloads, sweep.purged()), (8, 0));
    let record = spy.record("1").await;
    assert_eq!((record.payload, record.result), (None, None));
    assert_eq!(
        spy.inner.receive_one(&message("1")).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
    assert_eq!(janitor.sweep().await.unwrap().payloads, 0);
    spy.clock.advance(23 * DAY);
    assert_eq!(janitor.sweep().await.unwrap().processed, 8);
}

#[tokio::test(start_paused = true)]
async fn it_sweeps_only_when_it_is_the_time() {
    let hours = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
        / 3600;
    let hour = |later: u64| u8::try_from((hours + later) % 24).unwrap();
    // By this machine's clock, which does not go on with the paused one: it stays open, or closed.
    for (from, to, swept) in [(hour(23), hour(2), 8), (hour(2), hour(23), 0)] {
        let spy = processed().await;
        spy.clock.advance(2 * DAY);
        let janitor = Janitor::builder(spy.inner.clone())
            .keep_processed(DAY)
            .between(from, to)
            .build()
            .unwrap();
        let shutdown = CancellationToken::new();
        let (sweep, ()) = tokio::join!(janitor.run(shutdown.clone()), async {
            tokio::time::sleep(DAY).await;
            shutdown.cancel();
        });
        assert_eq!(sweep.processed, swept, "from {from} to {to}");
    }
    let never = Janitor::builder(Spy::new().inner).between(3, 3);
    assert!(never.build().is_err());
}
