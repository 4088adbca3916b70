//! The inline consumer, and those who call it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use inbox::{
    Bytes, CancellationToken, Error, ErrorKind, Failure, InlineConsumer, Leased, Outcome, Settled,
    Settlement, Transactional as _,
    inline::{ConsumeError, Consumed, OnBusy},
};
use tokio::time::{sleep, sleep_until, timeout};

use super::{SLACK, after_dead, millis, retry, seen, stopping, terms};
use crate::{
    Flaw, handler::handle, history::PartId, store::Seen, transaction::Effect, world::World,
};

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
    let consumer = InlineConsumer::new(Arc::new(seen(&world, &part)), terms)
        .retry(retry(&world))
        .after_dead(after_dead(&world))
        .on_busy(OnBusy::Wait(millis(1_000)))
        .store_timeout(millis(settings.store_timeout));
    let mut tasks = tokio::task::JoinSet::new();
    for (place, delivered) in world.scenario.deliveries.iter().enumerate() {
        let Some(caller) = delivered.inline else {
            continue;
        };
        let (world, part, consumer) = (world.clone(), part.clone(), consumer.clone());
        let (waiting, stop, delivered) = (waiting.clone(), stop.clone(), delivered.clone());
        tasks.spawn(async move {
            sleep_until(world.at(delivered.at)).await;
            while !stop.is_cancelled() && !waiting.is_over(place) {
                let is_last = waiting.comes(place, caller.times);
                if deliver(&world, &part, &consumer, delivered.message, caller.leaves).await
                    || is_last
                {
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

/// How often inline deliveries have come; `None` of those that need not come again.
#[derive(Default)]
pub(crate) struct Inline(Mutex<BTreeMap<usize, Option<u32>>>);

impl Inline {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<usize, Option<u32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self, place: usize) -> bool {
        self.counts().get(&place) == Some(&None)
    }

    /// Answers whether it is the last time.
    fn comes(&self, place: usize, times: Option<u32>) -> bool {
        let mut counts = self.counts();
        let count = counts.entry(place).or_insert(Some(0)).get_or_insert(0);
        *count += 1;
        times.is_some_and(|times| *count >= times)
    }

    fn over(&self, place: usize) {
        self.counts().insert(place, None);
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
    let since = world.now();
    let run = async |leased| {
        let (world, part) = (world.clone(), part.clone());
        handle(world, part, leased, CancellationToken::new()).await
    };
    let consuming = async {
        match world.scenario.settings.inline_settles {
            false => consumer.consume(message, run).await,
            true => {
                let run = |leased: Leased| in_transaction(seen(world, part), leased, run);
                consumer
                    .consume_settling(message, run, Failure::clone)
                    .await
            }
        }
    };
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
    let consumed = match consumed {
        Err(ConsumeError::Handler(_)) if world.flaw == Some(Flaw::HidesFailures) => {
            Ok(Consumed::Ran { result: None })
        }
        consumed => consumed,
    };
    let mut history = world.history();
    history.told_caller(part, message.key(), since, &consumed);
    drop(history);
    match consumed {
        Ok(Consumed::Busy { .. } | Consumed::Blocked) => false,
        Ok(_) => true,
        Err(error) => error.is_final(),
    }
}

/// Runs a handler and settles its message in one transaction, as one that does so by itself.
async fn in_transaction(
    store: Seen,
    leased: Leased,
    run: impl AsyncFnOnce(Leased) -> Result<Option<Bytes>, Failure>,
) -> Result<Option<Bytes>, Failure> {
    let limit = millis(store.world.scenario.settings.store_timeout);
    let lease = leased.lease.clone();
    let mut transaction = within(limit, store.open_for(std::slice::from_ref(&lease))).await?;
    transaction.write(&lease, Effect::Work);
    let result = match run(leased).await {
        Ok(result) => result,
        Err(failure) => {
            let _ = within(limit, store.roll_back(transaction)).await;
            return Err(failure);
        }
    };
    // What the store does not take of a result is left out.
    for kept in [result.clone(), None] {
        let settlement = Settlement {
            lease: lease.clone(),
            outcome: Outcome::Processed { result: kept },
        };
        let settling = store.settle_in(&mut transaction, std::slice::from_ref(&settlement));
        match within(limit, settling).await?.pop() {
            Some(Settled::Done) => {
                within(limit, store.commit(transaction)).await?;
                return Ok(result);
            }
            Some(Settled::LeaseLost) => {
                let _ = within(limit, store.roll_back(transaction)).await;
                return Err(Failure::lease_lost());
            }
            _ => {}
        }
    }
    Err(Failure::retry("refused"))
}

/// A call of the store, which may not be answered.
async fn within<T>(
    limit: Duration,
    call: impl Future<Output = inbox::Result<T>>,
) -> inbox::Result<T> {
    let given_up = |_| {
        let error = Error::new(ErrorKind::Unavailable, "planned");
        Err(error.with_effect(inbox::Effect::Unknown))
    };
    timeout(limit, call).await.unwrap_or_else(given_up)
}
