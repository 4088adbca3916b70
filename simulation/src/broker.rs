//! A broker in miniature: what is not acknowledged comes again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use inbox::{
    Message,
    receiver::{Delivery, Rejection, Source, SourceError},
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::{Flaw, history::PartId, world::World};

/// After how long it delivers again.
const AGAIN: Duration = Duration::from_millis(300);

pub(crate) struct Broker {
    world: Arc<World>,
    /// What waits: when, and which message.
    waiting: Mutex<Vec<(Instant, usize)>>,
    changed: Notify,
    acknowledgements: Mutex<u32>,
}

impl Broker {
    pub(crate) fn new(world: Arc<World>) -> Self {
        let deliveries = world.scenario.deliveries.iter();
        let queued = deliveries.filter(|delivered| delivered.inline.is_none());
        let waiting = queued.map(|delivered| (world.at(delivered.at), delivered.message));
        Self {
            waiting: Mutex::new(waiting.collect()),
            world,
            changed: Notify::new(),
            acknowledgements: Mutex::default(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(Instant, usize)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    fn put_back(&self, message: usize) {
        self.waiting().push((Instant::now() + AGAIN, message));
        self.changed.notify_waiters();
    }
}

pub(crate) struct Consumer {
    pub(crate) broker: Arc<Broker>,
    pub(crate) part: PartId,
    pub(crate) taken: u64,
}

impl Source for Consumer {
    type Delivery = Taken;

    async fn next(&mut self) -> Result<Option<Taken>, SourceError> {
        let broker = self.broker.clone();
        loop {
            let changed = broker.changed.notified();
            let first = {
                let mut waiting = broker.waiting();
                let places = waiting.iter().enumerate();
                let first = places.min_by_key(|(place, (at, _))| (*at, *place));
                match first.map(|(place, (at, _))| (place, *at)) {
                    Some((place, at)) if at <= Instant::now() => {
                        let (_, message) = waiting.swap_remove(place);
                        drop(waiting);
                        return Ok(self.take(message));
                    }
                    first => first.map(|(_, at)| at),
                }
            };
            match first {
                None => changed.await,
                Some(at) => {
                    let _ = timeout_at(at, changed).await;
                }
            }
        }
    }
}

impl Consumer {
    fn take(&mut self, number: usize) -> Option<Taken> {
        let message = self.broker.world.messages.get(number)?.clone();
        self.taken += 1;
        let mut taken = Taken {
            broker: self.broker.clone(),
            part: self.part.clone(),
            number,
            message,
            is_acknowledged: false,
        };
        if self.broker.world.flaw == Some(Flaw::AcknowledgesFirst) {
            taken.acknowledged();
        }
        Some(taken)
    }
}

pub(crate) struct Taken {
    broker: Arc<Broker>,
    part: PartId,
    number: usize,
    message: Message,
    is_acknowledged: bool,
}

impl Taken {
    fn acknowledged(&mut self) {
        self.is_acknowledged = true;
        let mut history = self.broker.world.history();
        history.acknowledged(&self.part, self.message.key());
    }
}

impl Delivery for Taken {
    fn message(&self) -> Result<Message, Rejection> {
        Ok(self.message.clone())
    }

    async fn acknowledge(mut self) -> Result<(), SourceError> {
        if self.is_acknowledged {
            return Ok(());
        }
        let number = {
            let count = self.broker.acknowledgements.lock();
            let mut count = count.unwrap_or_else(PoisonError::into_inner);
            *count += 1;
            *count
        };
        let world = &self.broker.world;
        if !world.is_calm() && world.scenario.failed_acknowledgements.contains(&number) {
            return Err(SourceError::transient("planned"));
        }
        self.acknowledged();
        Ok(())
    }

    async fn reject(mut self, rejection: Rejection) -> Result<(), SourceError> {
        self.is_acknowledged = true;
        let what = format!("{}: {rejection}", self.message.key());
        self.broker
            .world
            .history()
            .violated("nothing is refused", what);
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_acknowledged {
            self.broker.put_back(self.number);
        }
    }
}
