//! A broker in miniature: what is not acknowledged comes again. It keeps no order, or that of its partitions.

mod delivery;
mod queue;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use inbox::receiver::{Source, SourceError};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use delivery::{Taken, Verdict};
use queue::{Place, Queue};

use crate::{Flaw, history::PartId, world::World};

/// After how long it delivers again, and after how long others get the partition of a consumer that has left.
const AGAIN: Duration = Duration::from_millis(300);

pub(crate) struct Broker {
    world: Arc<World>,
    queue: Mutex<Queue>,
    changed: Notify,
    acknowledgements: Mutex<u32>,
    readings: Mutex<Readings>,
}

/// What was found when deliveries were read.
#[derive(Default)]
struct Readings {
    /// How often each was handed out.
    counts: BTreeMap<usize, u32>,
    /// What is to become of each.
    verdicts: BTreeMap<usize, Verdict>,
    /// At which of their deliveries, counted as they were handed out, consumers have to end.
    stops: BTreeMap<PartId, u64>,
    /// Those that were rejected.
    rejected: BTreeSet<usize>,
}

impl Broker {
    /// The broker of receivers, or of the one that only records.
    pub(crate) fn new(world: Arc<World>, is_of_records: bool) -> Self {
        let deliveries = world.scenario.queued(is_of_records);
        let waiting = deliveries.map(|(number, delivered)| (world.at(delivered.at), number));
        let settings = &world.scenario.settings;
        let queue = match settings.keeps_order {
            false => Queue::loose(waiting.collect()),
            true => {
                let is_backwards = world.flaw == Some(Flaw::DeliversBackwards);
                let place = |number| world.scenario.partition(number);
                let count = if is_of_records {
                    1
                } else {
                    usize::from(settings.receivers)
                };
                let place = |number| place(number) % count;
                Queue::partitions(waiting, count, place, is_backwards)
            }
        };
        Self {
            queue: Mutex::new(queue),
            world,
            changed: Notify::new(),
            acknowledgements: Mutex::default(),
            readings: Mutex::default(),
        }
    }

    fn readings(&self) -> MutexGuard<'_, Readings> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all has been acknowledged, or was refused to be.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue().is_empty()
    }

    /// Whether a consumer has got what its receiver has to end at.
    pub(crate) fn stops(&self, consumer: &PartId) -> bool {
        self.readings().stops.contains_key(consumer)
    }

    /// Whether an acknowledgement is to fail.
    fn refuses(&self) -> bool {
        let count = self.acknowledgements.lock();
        let mut count = count.unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        let planned = &self.world.scenario.failed_acknowledgements;
        !self.world.is_calm() && planned.contains(&count)
    }
}

pub(crate) struct Consumer {
    pub(crate) broker: Arc<Broker>,
    pub(crate) part: PartId,
    /// Its own partition, which it has as long as nobody else has got it.
    pub(crate) number: u8,
    pub(crate) taken: u64,
}

impl Source for Consumer {
    type Delivery = Taken;

    async fn next(&mut self) -> Result<Option<Taken>, SourceError> {
        let broker = self.broker.clone();
        loop {
            let changed = broker.changed.notified();
            let own = usize::from(self.number);
            let taken = broker.queue().take(&self.part, own, Instant::now());
            match taken {
                Ok(place) => return Ok(self.take(place)),
                Err(None) => changed.await,
                Err(Some(at)) => {
                    let _ = timeout_at(at, changed).await;
                }
            }
        }
    }
}

impl Consumer {
    fn take(&mut self, place: Place) -> Option<Taken> {
        self.taken += 1;
        Taken::new(self.broker.clone(), self.part.clone(), place, self.taken)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.broker.queue().release(&self.part, Instant::now());
        self.broker.changed.notify_waiters();
    }
}
