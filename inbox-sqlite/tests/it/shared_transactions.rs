//! Operations that are called at the same time and share a transaction.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use inbox_api::{
    Begun, Effect, ErrorKind, Filter, Operate, Receipt, Settled, Settlement, State, Store, StoreExt,
};
use sqlx::{Connection, Executor, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::time::sleep;

use crate::common::{self, *};

fn done(lease: &inbox_api::Lease) -> Settlement {
    Settlement {
        lease: lease.clone(),
        outcome: processed(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_at_once_are_all_served() {
    let inbox = test_inbox_with(|options| options.operation_timeout(Duration::from_secs(20))).await;
    let store = &inbox.store;
    let work = async |n: usize| {
        let message = message(&format!("{n}"));
        let Begun::Run(leased) = store.begin(&message, &terms()).await.unwrap() else {
            panic!("{n} does not run");
        };
        assert_eq!(leased.message, message);
        assert_eq!(leased.attempts.started, 1);
        let other = common::message(&format!("{n} too"));
        assert_eq!(store.receive_one(&other).await.unwrap(), Receipt::Accepted);
        assert_eq!(
            store.receive_one(&other).await.unwrap(),
            Receipt::Duplicate { differs: false }
        );
        let settled = store.settle(&[done(&leased.lease)]).await.unwrap();
        assert_eq!(settled, [Settled::Done]);
        // A repetition, whose reply was lost.
        let settled = store.settle(&[done(&leased.lease)]).await.unwrap();
        assert_eq!(settled, [Settled::Done]);
        let begun = store.begin(&message, &terms()).await.unwrap();
        assert_eq!(begun, Begun::Processed { result: None });
    };
    join_all((0..1000).map(work)).await;
    let statistics = store.statistics().await.unwrap();
    let count = |state| async move {
        let states = vec![state];
        let filter = Filter {
            states,
            ..Filter::default()
        };
        store.count(&filter).await.unwrap()
    };
    assert_eq!(count(State::Processed).await, 1000);
    assert_eq!(count(State::Pending).await, 1000);
    assert_eq!(statistics.handlers.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_begin_one_message_one_runs() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    for id in 0..20 {
        let sent = message(&format!("{id}"));
        let terms = terms();
        let begun = join_all((0..16).map(async |n| match n % 4 {
            0 => store.receive_one(&sent).await.map(|_| None).unwrap(),
            _ => Some(store.begin(&sent, &terms).await.unwrap()),
        }))
        .await;
        let runs = begun
            .iter()
            .flatten()
            .filter(|begun| matches!(begun, Begun::Run(_)));
        assert_eq!(runs.count(), 1, "{begun:?}");
        let busy = begun
            .iter()
            .flatten()
            .filter(|begun| matches!(begun, Begun::Busy { .. }));
        assert_eq!(busy.count(), 11, "{begun:?}");
    }
}

/// New messages of one ordering key, of which the first runs, and what is not due yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_answered_as_if_it_were_alone() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let held = lock(&inbox).await;
    let first = ordered("1", "k");
    let (second, third) = (ordered("2", "k"), message("3"));
    let late = message("4").with_due(inbox_api::Due::After(LEASE));
    let terms = terms();
    let begin = |message| store.begin(message, &terms);
    let all = async {
        // The first is under way; what follows shares the next transaction.
        tokio::join!(
            begin(&first),
            async {
                sleep(Duration::from_millis(50)).await;
                let others = tokio::join!(begin(&second), begin(&third), begin(&late));
                others
            },
            async {
                sleep(Duration::from_millis(200)).await;
                unlock(held).await;
            }
        )
    };
    let (first, (second, third, late), ()) = all.await;
    assert!(matches!(first.unwrap(), Begun::Run(_)));
    assert_eq!(second.unwrap(), Begun::Blocked);
    assert!(matches!(third.unwrap(), Begun::Run(_)));
    assert!(matches!(late.unwrap(), Begun::Busy { .. }));
    assert_eq!(get(store, "2").await.state, State::Pending);
    assert_eq!(get(store, "4").await.attempts.started, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_fails_for_anothers_sake() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let options = SqliteConnectOptions::new().filename(inbox.path());
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON inbox_message WHEN NEW.id LIKE 'bad%'
        BEGIN SELECT RAISE(ABORT, 'refused'); END";
    connection.execute(refuse).await.unwrap();
    let terms = terms();
    let outcomes = join_all((0..60).map(async |n| {
        let id = if n % 20 == 7 {
            format!("bad {n}")
        } else {
            format!("{n}")
        };
        (id.clone(), store.begin(&message(&id), &terms).await)
    }))
    .await;
    let failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err());
    assert_eq!(failed.count(), 3);
    for (id, outcome) in outcomes {
        match outcome {
            Ok(begun) => {
                assert!(matches!(begun, Begun::Run(_)), "{id}: {begun:?}");
                assert_eq!(get(store, &id).await.attempts.started, 1);
            }
            Err(error) => {
                assert!(id.starts_with("bad"), "{id}: {error}");
                assert_eq!(error.effect(), Effect::None, "{id}: {error}");
                assert_eq!(error.operation(), Some("begin"));
                assert_eq!(store.get(&key(&id)).await.unwrap(), None);
            }
        }
    }
    connection.execute("DROP TRIGGER refuse").await.unwrap();
    connection.close().await.unwrap();
}

/// While another process has the file: each waits for its own time, whatever it shares with others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_has_its_own_time_and_a_dropped_one_is_left_out() {
    const LIMIT: Duration = Duration::from_millis(4500);
    let inbox = test_inbox_with(|options| options.operation_timeout(LIMIT)).await;
    let store = &inbox.store;
    let held = lock(&inbox).await;
    let terms = terms();
    let begin = async |id: &str, after: u64| {
        sleep(Duration::from_millis(after)).await;
        let (message, begun) = (message(id), Instant::now());
        let outcome = store.begin(&message, &terms).await;
        (outcome, begun.elapsed())
    };
    let ((under_way, early), late, dropped) = tokio::join!(
        async {
            let answers = tokio::join!(begin("under way", 0), begin("early", 450));
            unlock(held).await;
            answers
        },
        begin("late", 3600),
        tokio::time::timeout(Duration::from_millis(1200), begin("dropped", 300)),
    );
    for (outcome, took) in [under_way, early] {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(took > LIMIT * 9 / 10, "{took:?}");
    }
    assert!(matches!(late.0.unwrap(), Begun::Run(_)));
    assert!(dropped.is_err());
    for id in ["under way", "early", "dropped"] {
        assert_eq!(store.get(&key(id)).await.unwrap(), None, "{id}");
    }
}

/// It would take the lease that the next try of the same caller wants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_is_dropped_while_it_waits_for_the_file_leaves_nothing() {
    let inbox = test_inbox().await;
    let (store, terms, sent) = (&inbox.store, terms(), message("1"));
    let held = lock(&inbox).await;
    let begin = store.begin(&sent, &terms);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), begin)
            .await
            .is_err()
    );
    let again = async {
        sleep(Duration::from_millis(50)).await;
        unlock(held).await;
    };
    let (begun, ()) = tokio::join!(store.begin(&sent, &terms), again);
    assert!(matches!(begun.unwrap(), Begun::Run(_)));
}

/// The lease has run out, and nobody has taken it yet: its settlement stands, whatever is begun with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_goes_before_a_begin_of_its_message() {
    let inbox = test_inbox().await;
    let (store, terms, sent) = (&inbox.store, terms(), message("1"));
    let Begun::Run(leased) = store.begin(&sent, &terms).await.unwrap() else {
        panic!("it does not run");
    };
    inbox.clock.advance(LEASE * 2);
    let held = lock(&inbox).await;
    let settlement = [done(&leased.lease)];
    // The first is under way; the others share the next transaction.
    let (_, settled, begun, ()) = tokio::join!(
        store.receive_one(&sent),
        async {
            sleep(Duration::from_millis(100)).await;
            store.settle(&settlement).await
        },
        async {
            sleep(Duration::from_millis(50)).await;
            store.begin(&sent, &terms).await
        },
        async {
            sleep(Duration::from_millis(200)).await;
            unlock(held).await;
        }
    );
    assert_eq!(settled.unwrap(), [Settled::Done]);
    assert_eq!(begun.unwrap(), Begun::Processed { result: None });
}

#[test]
fn another_runtime_serves_what_follows_the_end_of_one() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let inbox = first.block_on(test_inbox());
    let (store, held) = (inbox.store.clone(), first.block_on(lock(&inbox)));
    let second = runtime();
    let waiting = store.clone();
    second.spawn(async move { waiting.receive_one(&message("1")).await });
    std::thread::sleep(Duration::from_millis(100));
    second.shutdown_timeout(Duration::from_secs(5));
    first.block_on(unlock(held));
    let received = first.block_on(async {
        tokio::time::timeout(Duration::from_secs(10), store.receive_one(&message("2"))).await
    });
    assert_eq!(received.unwrap().unwrap(), Receipt::Accepted);
}

#[tokio::test]
async fn what_waits_when_the_store_is_closed_is_told_so() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let transaction = inbox_api::Transactional::open(store).await.unwrap();
    let terms = terms();
    let (first, second) = (message("1"), message("2"));
    let (begun, received, ()) = tokio::join!(
        store.begin(&first, &terms),
        store.receive_one(&second),
        async {
            sleep(Duration::from_millis(50)).await;
            let close = store.close();
            let roll_back = async {
                sleep(Duration::from_millis(50)).await;
                inbox_api::Transactional::roll_back(store, transaction)
                    .await
                    .unwrap();
            };
            tokio::join!(close, roll_back);
        }
    );
    for error in [
        begun.map(drop).unwrap_err(),
        received.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.effect(), Effect::None, "{error}");
    }
}
