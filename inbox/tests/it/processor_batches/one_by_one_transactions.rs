//! Handlers of single messages that share a transaction, on each SQL database: effects exactly once, and a message
//! fails by itself.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use inbox::{
    Completion, Context, Failure, LentTransaction, Operate as _, ProcessorBuilder, State,
    one_by_one_in_transaction_fn,
};
use tokio::{sync::Notify, time::sleep};

use super::{sites::*, *};

on_each_database! {
    a_bad_message_fails_by_itself,
    messages_end_as_they_would_by_themselves,
    a_panic_behind_the_write_undoes_that_one_only,
    without_the_message_whose_lease_is_lost_the_rest_is_committed,
    a_shutdown_undoes_what_is_not_committed_and_costs_no_attempt,
    a_run_takes_effect_in_order_up_to_one_that_fails,
    results_are_kept_and_too_large_ones_left_out,
    a_transaction_that_is_kept_fails_by_itself,
}

/// The ids that were run, in order.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<String>>>);

impl Ran {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn times(&self) -> HashMap<String, usize> {
        let mut times = HashMap::new();
        for id in self.all() {
            *times.entry(id).or_default() += 1;
        }
        times
    }
}

/// A processor whose handler writes the effect of a message, and then goes on with `then`.
fn processor<S: Site, F, Fut, C>(site: &S, ran: &Ran, then: F) -> ProcessorBuilder
where
    F: Fn(LentTransaction<Tx<S>>, Context, sqlx::Result<()>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, Failure>> + Send + 'static,
    C: Into<Completion> + 'static,
{
    let (ran, sql, then) = (ran.clone(), site.sql(), Arc::new(then));
    let handler = move |mut transaction: LentTransaction<Tx<S>>, context: Context| {
        let (ran, sql, then) = (ran.clone(), sql.clone(), then.clone());
        async move {
            let id = context.message().id().to_string();
            ran.0.lock().unwrap().push(id.clone());
            let written = S::write(&mut transaction, &sql, &id).await;
            then(transaction, context, written).await
        }
    };
    let router = router(one_by_one_in_transaction_fn(site.store(), handler));
    processor_of(site, router)
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{n:03}")).collect()
}

async fn a_bad_message_fails_by_itself<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &with_one("bad", 60)).await;
    let ran = Ran::default();
    let builder = processor(site, &ran, |_, _, written| async move { Ok(written?) });
    let summary = until_idle(builder).await;
    assert_eq!(
        (summary.processed, summary.retried, summary.dead),
        (60, 2, 1)
    );
    assert_eq!(site.effects().await, numbers(60));
    let store = site.store();
    for id in numbers(60) {
        let record = store.get(&key(id)).await.unwrap().unwrap();
        assert_eq!(
            (record.state, record.attempts.started),
            (State::Processed, 1)
        );
    }
    let bad = store.get(&key("bad")).await.unwrap().unwrap();
    assert_eq!((bad.state, bad.attempts.finished), (State::Dead, 3));
    // The first time in a transaction of others.
    let times = ran.times();
    assert!((3..=4).contains(&times["bad"]), "{times:?}");
    assert!(
        numbers(60).iter().all(|id| (1..=2).contains(&times[id])),
        "{times:?}"
    );
    assert!(
        numbers(60)[30..].iter().all(|id| times[id] == 1),
        "{times:?}"
    );
}

async fn messages_end_as_they_would_by_themselves<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &["1", "dead", "2", "later", "3", "odd"].map(message)).await;
    let ran = Ran::default();
    let end = |_, context: Context, written: sqlx::Result<()>| async move {
        written?;
        match context.message().id().as_str() {
            "dead" => Err(Failure::dead("no such order")),
            "later" => Err(Failure::defer(Duration::from_secs(600), "closed")),
            // Nothing that is before it in its ordering key.
            "odd" => Err(Failure::not_reached()),
            _ => Ok(()),
        }
    };
    let summary = until_idle(processor(site, &ran, end)).await;
    assert_eq!(
        (summary.processed, summary.dead, summary.deferred),
        (3, 2, 1)
    );
    assert_eq!(site.effects().await, ["1", "2", "3"]);
    let later = site.store().get(&key("later")).await.unwrap().unwrap();
    assert_eq!((later.state, later.attempts.started), (State::Pending, 0));
    let odd = site.store().get(&key("odd")).await.unwrap().unwrap();
    assert_eq!((odd.state, odd.attempts.finished), (State::Dead, 3));
}

async fn a_panic_behind_the_write_undoes_that_one_only<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &with_one("explosive", 20)).await;
    let ran = Ran::default();
    let end = |_, context: Context, written: sqlx::Result<()>| async move {
        written?;
        assert!(
            context.message().id().as_str() != "explosive",
            "it went off"
        );
        Ok(())
    };
    let summary = until_idle(processor(site, &ran, end)).await;
    assert_eq!((summary.processed, summary.dead), (20, 1));
    assert_eq!(site.effects().await, numbers(20));
    let record = site.store().get(&key("explosive")).await.unwrap().unwrap();
    assert_eq!(record.last_error.unwrap(), "panicked: it went off");
}

async fn without_the_message_whose_lease_is_lost_the_rest_is_committed<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &with_one("lost", 10)).await;
    let (ran, told) = (Ran::default(), Told::default());
    let builder = processor(site, &ran, |_, _, written| async move { Ok(written?) });
    let summary = until_idle(
        builder
            .middleware(steals_the_lost(site))
            .hooks(told.clone()),
    )
    .await;
    assert_eq!(
        (summary.processed, summary.lease_lost),
        (10, 1),
        "{summary:?}"
    );
    assert_eq!((summary.retried, summary.dead), (0, 0));
    assert_eq!(site.effects().await, numbers(10));
    assert_eq!(told.all(), ["lost lost"]);
}

async fn a_shutdown_undoes_what_is_not_committed_and_costs_no_attempt<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &(0..10).map(message).collect::<Vec<_>>()).await;
    let ran = Ran::default();
    let (written, is_first) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(true)));
    let signal = written.clone();
    let hang =
        move |transaction: LentTransaction<Tx<S>>, context: Context, written: sqlx::Result<()>| {
            let (signal, is_first) = (signal.clone(), is_first.clone());
            async move {
                written?;
                if context.message().id().as_str() == "6" && is_first.swap(false, SeqCst) {
                    signal.notify_one();
                    std::future::pending::<()>().await;
                }
                drop(transaction);
                Ok(())
            }
        };
    let hang = Arc::new(hang);
    let first = hang.clone();
    let builder = processor(site, &ran, move |t, context, written| {
        first(t, context, written)
    });
    let processor_1 = builder.drain_limit(Duration::ZERO).build().unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let run = tokio::spawn(async move { processor_1.run(stop).await.unwrap() });
    written.notified().await;
    shutdown.cancel();
    let summary = run.await.unwrap();
    // On a slow machine, some have been committed.
    assert_eq!(
        summary.processed + summary.released,
        summary.claimed,
        "{summary:?}"
    );
    assert!(summary.processed < 7 && summary.retried == 0, "{summary:?}");
    assert_eq!(site.effects().await.len() as u64, summary.processed);
    for id in [6, 9] {
        let record = site.store().get(&key(id)).await.unwrap().unwrap();
        assert_eq!((record.state, record.attempts.started), (State::Pending, 0));
    }

    let builder = processor(site, &ran, move |t, context, written| {
        hang(t, context, written)
    });
    let left = 10 - summary.processed;
    assert_eq!(until_idle(builder).await.processed, left);
    assert_eq!(site.effects().await.len(), 10);
}

async fn a_run_takes_effect_in_order_up_to_one_that_fails<S: Site + Send + Sync + 'static>(
    site: &S,
) {
    let messages = (0..40).map(|n| in_order(format!("{n:03}"), n % 4));
    filled(site, &messages.collect::<Vec<_>>()).await;
    let (ran, fails) = (Ran::default(), Arc::new(AtomicBool::new(true)));
    let handler = {
        let (ran, sql, fails) = (ran.clone(), site.sql(), fails.clone());
        move |mut transaction: LentTransaction<Tx<S>>, context: Context| {
            let (ran, sql, fails) = (ran.clone(), sql.clone(), fails.clone());
            async move {
                let id = context.message().id().to_string();
                S::write(&mut transaction, &sql, &id).await?;
                // Fails in each transaction, until its attempt is counted.
                if id == "013" && context.attempts().started == 1 {
                    fails.store(false, SeqCst);
                    return Err(Failure::retry("not yet"));
                }
                ran.0.lock().unwrap().push(id);
                Ok(())
            }
        }
    };
    let router = router(one_by_one_in_transaction_fn(site.store(), handler));
    let builder = processor_of(site, router.batches(Batches::up_to(40).runs(40)));
    let summary = until_idle(builder).await;
    assert!(!fails.load(SeqCst));
    assert_eq!(
        (summary.processed, summary.retried, summary.dead),
        (40, 1, 0)
    );
    assert_eq!(site.effects().await, numbers(40));
    // The last run of each is the one that counts.
    let ran = ran.all();
    for ordering_key in 0..4 {
        let of_key = (0..40).filter(|n| n % 4 == ordering_key);
        let last = of_key.map(|n| ran.iter().rposition(|id| *id == format!("{n:03}")));
        let last: Vec<_> = last.collect();
        assert!(last.is_sorted() && last[0].is_some(), "{ran:?}");
    }
    let attempts = site.store().get(&key("017")).await.unwrap().unwrap();
    assert_eq!(attempts.attempts.started, 1);
}

async fn results_are_kept_and_too_large_ones_left_out<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &["small", "large", "none"].map(message)).await;
    let ran = Ran::default();
    let end = |_, context: Context, written: sqlx::Result<()>| async move {
        written?;
        Ok(match context.message().id().as_str() {
            "small" => Completion::with_result("kept"),
            "large" => Completion::with_result(vec![0; inbox::DEFAULT_PAYLOAD_LIMIT + 1]),
            _ => Completion::default(),
        })
    };
    assert_eq!(until_idle(processor(site, &ran, end)).await.processed, 3);
    assert_eq!(site.effects().await, ["large", "none", "small"]);
    assert_eq!(ran.all(), ["small", "large", "none"]);
    only_the_small_result_is_kept(site).await;
}

async fn a_transaction_that_is_kept_fails_by_itself<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &with_one("greedy", 6)).await;
    let ran = Ran::default();
    let keep = |transaction, context: Context, written: sqlx::Result<()>| async move {
        if context.message().id().as_str() == "greedy" {
            tokio::spawn(async move {
                sleep(Duration::from_millis(50)).await;
                drop(transaction);
            });
        }
        Ok(written?)
    };
    let builder = processor(site, &ran, keep).retry(at_once(1));
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.dead), (6, 1), "{summary:?}");
    assert_eq!(site.effects().await, numbers(6));
}

/// PostgreSQL refuses all statements behind one that has failed: what others are refused then is not their fault.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overlooked_error_of_postgresql_costs_the_next_message_nothing() {
    let Some(site) = in_postgres::InPostgres::new().await else {
        return;
    };
    filled(&site, &with_one("bad", 20)).await;
    let ran = Ran::default();
    let end = |_, context: Context, written: sqlx::Result<()>| async move {
        match context.message().id().as_str() {
            "bad" => Ok(()),
            _ => Ok(written?),
        }
    };
    let told = Told::default();
    let summary = until_idle(processor(&site, &ran, end).hooks(told.clone())).await;
    assert_eq!(
        (summary.processed, summary.retried, summary.dead),
        (20, 2, 1)
    );
    assert_eq!(site.effects().await, numbers(20));
    let failures = told.failures.lock().unwrap().clone();
    assert!(
        failures.iter().all(|one| one.starts_with("failed bad")),
        "{failures:?}"
    );
}
