//! The parts of a run: each goes on until it is stopped as planned, and begins again.

mod batches;
mod inline;
mod janitor;
mod receivers;

use std::{pin::Pin, sync::Arc, time::Duration};

use inbox::{
    AfterDead, Batches, CancellationToken, Completion, Context, FailedAttempt, Failure, Invalid,
    LeaseTerms, LentTransaction, Processor, RetryPolicy, Router, WorkerName,
    batch_in_transaction_fn, in_transaction_fn, one_by_one, one_by_one_in_transaction_fn,
};
use tokio::{
    task::JoinHandle,
    time::{sleep, sleep_until},
};

use batches::{whole_batch, whole_batch_in_transaction};
pub(crate) use inline::{Inline, inline};
pub(crate) use janitor::janitor;
pub(crate) use receivers::{receiver, recorder};

use crate::{
    handler::handle,
    history::{PartId, name_of},
    scenario::{Part, Stop, Transactions},
    store::Seen,
    transaction::{Effect, Transaction},
    world::{HANDLERS, KIND, NEWER_KIND, World},
};

/// How much longer than it says a shutdown may take.
const SLACK: u64 = 200_000;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn seen(world: &Arc<World>, part: &PartId) -> Seen {
    Seen {
        world: world.clone(),
        part: part.clone(),
    }
}

fn retry(world: &World) -> RetryPolicy {
    RetryPolicy::default()
        .with_max_attempts(world.scenario.settings.attempts)
        .with_delays(millis(100), millis(2_000))
}

fn after_dead(world: &World) -> AfterDead {
    match world.scenario.settings.block {
        true => AfterDead::Block,
        false => AfterDead::Continue,
    }
}

fn terms(world: &World, part: &PartId) -> Result<LeaseTerms, Invalid> {
    let worker = WorkerName::new(part.to_string())?;
    LeaseTerms::new(millis(world.scenario.settings.lease), worker)
}

/// Runs a part life after life. `live` begins one, and is told when it is to end.
pub(crate) async fn live_on<F>(
    world: Arc<World>,
    part: Part,
    end: CancellationToken,
    mut live: impl FnMut(PartId, CancellationToken) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let name: Arc<str> = match part {
        Part::Receiver(number) => format!("receiver-{number}").into(),
        Part::Processor(number) => format!("processor-{number}").into(),
        Part::Inline => "inline".into(),
        Part::Recorder => "recorder".into(),
        Part::Janitor => "janitor".into(),
    };
    let mut stops = world.scenario.stops.iter().filter(|stop| stop.part == part);
    for life in 0.. {
        let id = PartId {
            name: name.clone(),
            life,
        };
        let stop = CancellationToken::new();
        let mut task: JoinHandle<()> = tokio::spawn(live(id.clone(), stop.clone()));
        let planned: Option<&Stop> = stops.next();
        let deployed = async {
            match world.scenario.deployment {
                Some(new) if matches!(part, Part::Processor(_)) && !world.is_deployed() => {
                    sleep_until(world.at(new.at)).await;
                }
                _ => std::future::pending().await,
            }
        };
        let until = planned.map(|planned| world.at(planned.at));
        let planned_stop = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let mut kill = planned.is_some_and(|planned| planned.kill);
        let is_end = tokio::select! {
            biased;
            ended = &mut task => {
                if ended.is_err_and(|error| error.is_panic()) {
                    world.history().violated("no panic ends a part", id.to_string());
                }
                false
            }
            () = end.cancelled() => true,
            () = planned_stop => false,
            () = deployed => {
                kill = false;
                false
            }
        };
        if kill && !is_end && !task.is_finished() {
            world.history().killed(&id);
            task.abort();
        }
        stop.cancel();
        if !task.is_finished() {
            let _ = task.await;
        }
        if is_end {
            return;
        }
        let pause = planned.map_or(1_000, |planned| planned.pause);
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            () = sleep(millis(pause)) => {}
        }
    }
}

/// Tells the history that a part is told to stop, when it is, and when that was.
async fn stopping(world: &World, part: &PartId, stop: &CancellationToken, drain: u64) -> u64 {
    stop.cancelled().await;
    let mut history = world.history();
    history.told_to_stop(part, drain);
    history.now
}

/// Runs `work` to its end; answers when it was told to stop, if it was.
async fn watched<T>(
    world: &World,
    part: &PartId,
    stop: &CancellationToken,
    drain: u64,
    work: impl Future<Output = T>,
) -> (T, Option<u64>) {
    let mut work = std::pin::pin!(work);
    let told = tokio::select! {
        biased;
        ended = &mut work => return (ended, None),
        told = stopping(world, part, stop, drain) => told,
    };
    (work.await, Some(told))
}

pub(crate) async fn processor(world: Arc<World>, part: PartId, stop: CancellationToken) {
    let Ok(processor) = build(&world, &part) else {
        let mut history = world.history();
        return history.violated("valid settings", part.to_string());
    };
    let drain = world.scenario.settings.drain_limit;
    let running = processor.run(stop.clone());
    let (ended, told) = watched(&world, &part, &stop, drain, running).await;
    let mut history = world.history();
    history.has_ended(&part);
    if let Ok(summary) = ended {
        history.processor_ended(&part, &summary);
    }
    if let Some(told) = told {
        // The drain limit, a second until handlers are dropped, five until the last settlement.
        history.ended_within(&part, told, drain * 1_000 + 6_000_000 + SLACK);
        history.ended_soon(&part, told, SLACK);
    }
}

/// The kinds of messages that a processor which begins now has handlers for.
fn kinds(world: &World, part: &PartId) -> &'static [&'static str] {
    if world.is_deployed() {
        return &[KIND, NEWER_KIND];
    }
    world.history().is_older(part);
    &[KIND]
}

fn build(world: &Arc<World>, part: &PartId) -> Result<Processor, Invalid> {
    let settings = &world.scenario.settings;
    let run = {
        let (world, part) = (world.clone(), part.clone());
        move |context: Context| {
            let cancellation = context.cancellation().clone();
            let handling = handle(
                world.clone(),
                part.clone(),
                context.leased().clone(),
                cancellation,
            );
            async {
                handling
                    .await
                    .map(|result| result.map_or_else(Completion::default, Completion::with_result))
            }
        }
    };
    let [mut first, mut second] = HANDLERS.map(Router::new);
    if let Some(deployment) = world.scenario.deployment {
        [first, second] = [first, second].map(|router| router.fallback(deployment.fallback));
    }
    let batches = match settings.runs {
        true => Batches::of_one_key(4),
        false => Batches::up_to(4),
    };
    let batches = batches.at_once(settings.concurrency);
    for &kind in kinds(world, part) {
        (first, second) = match settings.transactions {
            Transactions::None => (
                first.on(kind, run.clone()),
                match (settings.whole, settings.runs) {
                    (Some(whole), _) => second
                        .on_batch(kind, whole_batch(world.clone(), part.clone(), whole))
                        .batches(batches),
                    (None, true) => second
                        .on_batch(kind, one_by_one(run.clone()))
                        .batches(batches),
                    (None, false) => second.on(kind, run.clone()),
                },
            ),
            Transactions::Many | Transactions::OneAtATime => {
                let run_in = working(run.clone());
                let store = seen(world, part);
                (
                    first.on(kind, in_transaction_fn(store.clone(), run_in.clone())),
                    match (settings.whole, settings.runs) {
                        (Some(whole), _) => {
                            let run =
                                whole_batch_in_transaction(world.clone(), part.clone(), whole);
                            second
                                .on_batch(kind, batch_in_transaction_fn(store, run))
                                .batches(batches)
                        }
                        (None, true) => second
                            .on_batch(kind, one_by_one_in_transaction_fn(store, run_in))
                            .batches(batches),
                        (None, false) => second.on(kind, in_transaction_fn(store, run_in)),
                    },
                )
            }
        };
    }
    let [first, second] = [first, second].map(|router| match settings.notes {
        true => router.on_failure_in_transaction(seen(world, part), note),
        false => router,
    });
    let mut builder = Processor::builder(Arc::new(seen(world, part)))
        .router(first)
        .router(second)
        .worker(WorkerName::new(part.to_string())?)
        .lease(millis(settings.lease))
        .concurrency(settings.concurrency)
        .batch(settings.batch)
        .look_ahead(settings.look_ahead)
        .retry(retry(world))
        .after_dead(after_dead(world))
        .poll_intervals(millis(50), millis(4_000))
        .settle_batching(settings.settle_batch, millis(settings.linger))
        .drain_limit(millis(settings.drain_limit))
        .store_timeout(millis(settings.store_timeout));
    if let Some(timeout) = settings.timeout {
        builder = builder.handler_timeout(millis(timeout));
    }
    builder.build()
}

type Working = Pin<Box<dyn Future<Output = Result<Completion, Failure>> + Send>>;

/// A handler that writes in its transaction, also when it fails.
fn working<F>(
    run: impl Fn(Context) -> F + Clone,
) -> impl Fn(LentTransaction<Transaction>, Context) -> Working + Clone
where
    F: Future<Output = Result<Completion, Failure>> + Send + 'static,
{
    move |mut transaction, context| {
        let lease = context.leased().lease.clone();
        let running = run(context);
        Box::pin(async move {
            transaction.write(&lease, Effect::Work);
            running.await
        })
    }
}

/// Writes about a failed attempt.
async fn note(
    mut transaction: LentTransaction<Transaction>,
    attempt: FailedAttempt,
) -> Result<(), Failure> {
    let lease = &attempt.context.leased().lease;
    transaction.write(lease, Effect::Note(name_of(&attempt.outcome)));
    Ok(())
}
