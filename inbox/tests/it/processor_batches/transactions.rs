//! Batches in one transaction, on each SQL database: effects exactly once, and nobody is held up by a neighbour.

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use inbox::{
    Answers, Completion, Failure, LentTransaction, Operate as _, ProcessorBuilder, State,
    batch_in_transaction_fn,
};
use tokio::{sync::Notify, time::sleep};

use super::{sites::*, *};

on_each_database! {
    a_message_whose_statement_fails_does_not_hold_up_its_neighbours,
    what_is_answered_with_success_is_committed_and_the_rest_ends_by_its_answer,
    a_savepoint_for_each_message_makes_one_transaction_of_a_batch_with_bad_ones,
    when_no_message_succeeds_nothing_is_committed,
    a_panic_behind_the_writes_undoes_them,
    without_the_message_whose_lease_is_lost_the_rest_is_committed,
    a_shutdown_in_the_middle_undoes_the_batch_and_costs_no_attempt,
    messages_of_an_ordering_key_take_effect_in_order,
    results_are_kept_and_too_large_ones_left_out,
}

/// A transactional batch handler that notes its runs, and is written for one site.
struct Writer<S> {
    runs: Runs,
    sql: String,
    site: PhantomData<S>,
}

impl<S: Site> Writer<S> {
    fn new(site: &S, runs: &Runs) -> Arc<Self> {
        Arc::new(Self {
            runs: runs.clone(),
            sql: site.sql(),
            site: PhantomData,
        })
    }

    /// Writes for all messages, up to the first that fails.
    async fn write_all(&self, transaction: &mut Tx<S>, batch: &Batch) -> sqlx::Result<()> {
        self.runs.add(batch);
        for id in ids(batch) {
            S::write(transaction, &self.sql, &id).await?;
        }
        Ok(())
    }
}

fn processor<S: Site, F, Fut, A>(site: &S, handler: F) -> ProcessorBuilder
where
    F: Fn(LentTransaction<Tx<S>>, Batch) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<A, Failure>> + Send + 'static,
    A: Into<Answers> + 'static,
{
    let router = router(batch_in_transaction_fn(site.store(), handler));
    processor_of(site, router)
}

async fn a_message_whose_statement_fails_does_not_hold_up_its_neighbours<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &with_one("bad", 60)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch| {
        let writer = writer.clone();
        async move { Ok(writer.write_all(&mut transaction, &batch).await?) }
    });
    let summary = until_idle(builder).await;
    assert_eq!(
        (summary.processed, summary.retried, summary.dead),
        (60, 2, 1)
    );
    let effects = site.effects().await;
    assert_eq!(
        effects,
        (0..60).map(|n| format!("{n:03}")).collect::<Vec<_>>()
    );
    let store = site.store();
    for id in &effects {
        let record = store.get(&key(id)).await.unwrap().unwrap();
        assert_eq!(
            (record.state, record.attempts.started),
            (State::Processed, 1)
        );
    }
    let bad = store.get(&key("bad")).await.unwrap().unwrap();
    assert_eq!((bad.state, bad.attempts.finished), (State::Dead, 3));
    // By halves, not one by one; and on the later attempts the bad one is by itself.
    assert!(runs.len() <= 16, "{:?}", runs.sizes());
    assert_eq!(runs.sizes()[0], 61);
}

async fn what_is_answered_with_success_is_committed_and_the_rest_ends_by_its_answer<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &["1", "2", "dead", "3", "later"].map(message)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.runs.add(&batch);
            let mut answers = Vec::new();
            for id in ids(&batch) {
                answers.push(match id.as_str() {
                    "dead" => Err(Failure::dead("no such order")),
                    "later" => Err(Failure::defer(Duration::from_secs(600), "closed")),
                    _ => {
                        S::write(&mut transaction, &writer.sql, &id).await?;
                        Ok(())
                    }
                });
            }
            Ok(answers)
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!(
        (summary.processed, summary.dead, summary.deferred),
        (3, 1, 1)
    );
    assert_eq!(site.effects().await, ["1", "2", "3"]);
    assert_eq!(runs.sizes(), [5]);
    let later = site.store().get(&key("later")).await.unwrap().unwrap();
    assert_eq!((later.state, later.attempts.started), (State::Pending, 0));
}

async fn a_savepoint_for_each_message_makes_one_transaction_of_a_batch_with_bad_ones<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    let ids = (0..40).map(|n| {
        if n % 10 == 3 {
            format!("bad-{n}")
        } else {
            format!("{n:02}")
        }
    });
    filled(site, &ids.map(message).collect::<Vec<_>>()).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.runs.add(&batch);
            let mut answers = Vec::new();
            for id in super::ids(&batch) {
                let written = S::write_or_not(&mut transaction, &writer.sql, &id).await;
                answers.push(written.map_err(Failure::dead));
            }
            Ok(answers)
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.dead), (36, 4));
    assert_eq!(site.effects().await.len(), 36);
    assert_eq!(runs.sizes(), [40]);
}

async fn when_no_message_succeeds_nothing_is_committed<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &["1", "2"].map(message)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            let answers = batch
                .iter()
                .map(|_| Err::<(), _>(Failure::dead("after all")));
            Ok(answers.collect::<Vec<_>>())
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.dead), (0, 2));
    assert_eq!(site.effects().await, [""; 0]);
    assert_eq!(runs.sizes(), [2]);
}

async fn a_panic_behind_the_writes_undoes_them<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &with_one("explosive", 20)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            assert!(!has(&batch, "explosive"), "it went off");
            Ok(())
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.dead), (20, 1));
    assert_eq!(site.effects().await.len(), 20);
    assert!(!site.effects().await.contains(&String::from("explosive")));
    let record = site.store().get(&key("explosive")).await.unwrap().unwrap();
    assert_eq!(record.last_error.unwrap(), "panicked: it went off");
}

async fn without_the_message_whose_lease_is_lost_the_rest_is_committed<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &with_one("lost", 10)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let told = Told::default();
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move { Ok(writer.write_all(&mut transaction, &batch).await?) }
    });
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
    assert_eq!(runs.sizes(), [11, 10]);
    let effects = site.effects().await;
    assert_eq!(effects.len(), 10);
    assert!(!effects.contains(&String::from("lost")));
    assert_eq!(told.all(), ["lost lost"]);
}

async fn a_shutdown_in_the_middle_undoes_the_batch_and_costs_no_attempt<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &(0..10).map(message).collect::<Vec<_>>()).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let (written, is_first) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let signal = written.clone();
    let handler = move |mut transaction: LentTransaction<Tx<S>>, batch: Batch| {
        let (writer, signal, is_first) = (writer.clone(), signal.clone(), is_first.clone());
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            if is_first.fetch_add(1, SeqCst) == 0 {
                signal.notify_one();
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    };
    let handler = Arc::new(handler);
    let shared = handler.clone();
    let builder = processor(site, move |transaction, batch| shared(transaction, batch));
    let processor_1 = builder.drain_limit(Duration::ZERO).build().unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let run = tokio::spawn(async move { processor_1.run(stop).await.unwrap() });
    written.notified().await;
    shutdown.cancel();
    let summary = run.await.unwrap();
    // A claim that was under way takes what has just been handed back, and hands it back as well.
    assert!(summary.released >= 10, "{summary:?}");
    assert_eq!(
        (summary.processed, summary.claimed),
        (0, summary.released),
        "{summary:?}"
    );
    assert_eq!(site.effects().await, [""; 0]);
    let record = site.store().get(&key(7)).await.unwrap().unwrap();
    assert_eq!((record.state, record.attempts.started), (State::Pending, 0));

    let builder = processor(site, move |transaction, batch| handler(transaction, batch));
    assert_eq!(until_idle(builder).await.processed, 10);
    assert_eq!(site.effects().await.len(), 10);
}

async fn messages_of_an_ordering_key_take_effect_in_order<S: Site + Send + Sync + 'static>(
    site: &S,
) {
    let messages = (0..48).map(|n| in_order(format!("{:02}-{}", n / 8, n % 8), n % 8));
    filled(site, &messages.collect::<Vec<_>>()).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            sleep(Duration::from_millis(1)).await;
            Ok(())
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.retried), (48, 0));
    assert_eq!(site.effects().await.len(), 48);
    for key in 0..8 {
        let suffix = format!("-{key}");
        let of_key = runs
            .all()
            .concat()
            .into_iter()
            .filter(|id| id.ends_with(&suffix));
        let of_key: Vec<_> = of_key.collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}

async fn results_are_kept_and_too_large_ones_left_out<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &["small", "large", "none"].map(message)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            let results = batch.iter().map(|one| match one.message().id().as_str() {
                "small" => Ok(Completion::with_result("kept")),
                "large" => Ok(Completion::with_result(vec![
                    0;
                    inbox::DEFAULT_PAYLOAD_LIMIT
                        + 1
                ])),
                _ => Ok::<_, Failure>(Completion::default()),
            });
            Ok(results.collect::<Vec<_>>())
        }
    });
    assert_eq!(until_idle(builder).await.processed, 3);
    assert_eq!(site.effects().await, ["large", "none", "small"]);
    assert_eq!(runs.sizes(), [3]);
    only_the_small_result_is_kept(site).await;
}

/// A server that goes on after a failed statement lets a handler overlook it; this one must not.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overlooked_error_of_postgresql_is_not_committed() {
    let Some(site) = in_postgres::InPostgres::new().await else {
        return;
    };
    filled(&site, &with_one("bad", 20)).await;
    let runs = Runs::default();
    let writer = Writer::new(&site, &runs);
    let builder = processor(&site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            let _ = writer.write_all(&mut transaction, &batch).await;
            Ok(())
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.dead), (20, 1));
    assert_eq!(site.effects().await.len(), 20);
    assert!(runs.len() <= 14, "{:?}", runs.sizes());
}
