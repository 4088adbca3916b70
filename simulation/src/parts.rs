//! The parts of a run: each goes on until it is stopped as planned, and begins again.

use std::{sync::Arc, time::Duration};

use inbox::{
    AfterDead, Batches, CancellationToken, Context, Failure, InlineConsumer, Invalid, Janitor,
    LeaseTerms, Processor, Receiver, RetryPolicy, Router, WorkerName,
    inline::{Consumed, OnBusy},
    one_by_one,
};
use tokio::{
    task::JoinHandle,
    time::{sleep, sleep_until, timeout},
};

use crate::{
    broker::{Broker, Consumer},
    handler::handle,
    history::PartId,
    scenario::{Part, Stop},
    store::Seen,
    world::{HANDLERS, KIND, World},
};

/// How much longer than it says a shutdown may take.
const SLACK: u64 = 200_000;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn seen(world: &Arc<World>, part: &PartId) -> Arc<Seen> {
    Arc::new(Seen {
        world: world.clone(),
        part: part.clone(),
    })
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
        let until = planned.map(|planned| world.at(planned.at));
        let planned_stop = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let is_end = tokio::select! {
            biased;
            _ = &mut task => false,
            () = end.cancelled() => true,
            () = planned_stop => false,
        };
        let kill = planned.is_some_and(|planned| planned.kill) && !is_end;
        if kill && !task.is_finished() {
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

pub(crate) async fn receiver(
    world: Arc<World>,
    broker: Arc<Broker>,
    part: PartId,
    stop: CancellationToken,
) {
    let settings = &world.scenario.settings;
    let receiver = Receiver::builder(seen(&world, &part))
        .batch_size(settings.receive_batch)
        .max_unacknowledged(settings.unacknowledged)
        .linger(millis(settings.linger))
        .drain_limit(millis(settings.drain_limit))
        .store_timeout(millis(settings.store_timeout))
        .build();
    let mut source = Consumer {
        broker,
        part: part.clone(),
        taken: 0,
    };
    let running = receiver.run(&mut source, stop.clone());
    let (ended, told) = watched(&world, &part, &stop, settings.drain_limit, running).await;
    let taken = source.taken;
    let mut history = world.history();
    if let Ok(summary) = ended {
        history.receiver_ended(&part, taken, &summary);
    }
    if let Some(told) = told {
        history.ended_within(&part, told, settings.drain_limit * 1_000 + SLACK);
    }
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
    if let Ok(summary) = ended {
        history.processor_ended(&part, &summary);
    }
    if let Some(told) = told {
        // The drain limit, a second until handlers are dropped, five until the last settlement.
        history.ended_within(&part, told, drain * 1_000 + 6_000_000 + SLACK);
        history.ended_soon(&part, told, SLACK);
    }
}

fn build(world: &Arc<World>, part: &PartId) -> Result<Processor, Invalid> {
    let settings = &world.scenario.settings;
    let run = {
        let (world, part) = (world.clone(), part.clone());
        move |context: Context| {
            let cancellation = context.cancellation().clone();
            handle(
                world.clone(),
                part.clone(),
                context.leased().clone(),
                cancellation,
            )
        }
    };
    let [first, second] = HANDLERS;
    let second = match settings.runs {
        true => Router::new(second)
            .on_batch(KIND, one_by_one(run.clone()))
            .batches(Batches::of_one_key(4).at_once(settings.concurrency)),
        false => Router::new(second).on(KIND, run.clone()),
    };
    let mut builder = Processor::builder(seen(world, part))
        .router(Router::new(first).on(KIND, run))
        .router(second)
        .worker(WorkerName::new(part.to_string())?)
        .lease(millis(settings.lease))
        .concurrency(settings.concurrency)
        .batch(settings.batch)
        .look_ahead(settings.look_ahead)
        .retry(retry(world))
        .after_dead(after_dead(world))
        .poll_intervals(millis(50), millis(4_000))
        .settle_batching(250, millis(settings.linger))
        .drain_limit(millis(settings.drain_limit))
        .store_timeout(millis(settings.store_timeout));
    if let Some(timeout) = settings.timeout {
        builder = builder.handler_timeout(millis(timeout));
    }
    builder.build()
}

/// An inline consumer, and the deliveries that come to it.
pub(crate) async fn inline(
    world: Arc<World>,
    waiting: Arc<Inline>,
    part: PartId,
    stop: CancellationToken,
) {
    let settings = &world.scenario.settings;
    let Ok(terms) = terms(&world, &part) else {
        let mut history = world.history();
        return history.violated("valid settings", part.to_string());
    };
    let consumer = InlineConsumer::new(seen(&world, &part), terms)
        .retry(retry(&world))
        .after_dead(after_dead(&world))
        .on_busy(OnBusy::Wait(millis(1_000)))
        .store_timeout(millis(settings.store_timeout));
    let mut tasks = tokio::task::JoinSet::new();
    for (place, delivered) in world.scenario.deliveries.iter().enumerate() {
        let Some(leaves) = delivered.inline else {
            continue;
        };
        let (world, part, consumer) = (world.clone(), part.clone(), consumer.clone());
        let (waiting, stop, delivered) = (waiting.clone(), stop.clone(), delivered.clone());
        tasks.spawn(async move {
            sleep_until(world.at(delivered.at)).await;
            while !stop.is_cancelled() && !waiting.is_over(place) {
                if deliver(&world, &part, &consumer, delivered.message, leaves).await {
                    waiting.over(place);
                }
                sleep(millis(500)).await;
            }
        });
    }
    let told = stopping(&world, &part, &stop, settings.drain_limit).await;
    consumer.drain(millis(settings.drain_limit)).await;
    let limit = settings.drain_limit * 1_000 + 5_000_000 + SLACK;
    world.history().ended_within(&part, told, limit);
}

/// Which inline deliveries need not come again.
#[derive(Default)]
pub(crate) struct Inline(std::sync::Mutex<std::collections::BTreeSet<usize>>);

impl Inline {
    fn is_over(&self, place: usize) -> bool {
        let over = self.0.lock();
        over.unwrap_or_else(std::sync::PoisonError::into_inner)
            .contains(&place)
    }

    fn over(&self, place: usize) {
        let over = self.0.lock();
        over.unwrap_or_else(std::sync::PoisonError::into_inner)
            .insert(place);
    }
}

/// Answers whether another delivery could not change anything.
async fn deliver(
    world: &Arc<World>,
    part: &PartId,
    consumer: &InlineConsumer,
    message: usize,
    leaves: Option<u64>,
) -> bool {
    let Some(message) = world.messages.get(message) else {
        return true;
    };
    let run = async |leased| {
        let (world, part) = (world.clone(), part.clone());
        handle(world, part, leased, CancellationToken::new()).await?;
        Ok::<_, Failure>(None)
    };
    let consuming = consumer.consume(message, run);
    let consumed = match leaves.filter(|_| !world.is_calm()) {
        None => consuming.await,
        Some(after) => match timeout(millis(after), consuming).await {
            Ok(consumed) => consumed,
            Err(_) => {
                world.history().disturbed(0);
                world.history().caller_left(part, message.key());
                return false;
            }
        },
    };
    world
        .history()
        .trace(|| format!("{part} consumed {}: {consumed:?}", message.key()));
    match consumed {
        Ok(Consumed::Busy { .. } | Consumed::Blocked) => false,
        Ok(_) => true,
        Err(error) => error.is_final(),
    }
}

pub(crate) async fn janitor(world: Arc<World>, end: CancellationToken) {
    let retention = millis(world.scenario.settings.retention);
    let janitor = Janitor::builder(Arc::new(world.memory.clone()))
        .keep_processed(retention)
        .keep_dead(retention)
        .interval(millis(3_000))
        .slice(2)
        .build();
    match janitor {
        Ok(janitor) => {
            world.follow();
            janitor.run(end).await;
        }
        Err(invalid) => {
            let what = invalid.to_string();
            world.history().violated("valid settings", what);
        }
    }
}
