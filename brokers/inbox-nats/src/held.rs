//! What the server waits for an answer to.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_nats::Subject;
use tokio::sync::Notify;

/// What one connection has been given and has not answered, in the order of the stream.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// By sequence and reply subject, which has the number of the attempt; whether it was dropped.
    all: Mutex<BTreeMap<Ticket, bool>>,
    pub(crate) freed: Notify,
    pub(crate) dropped: Notify,
}

/// A message's number in its stream, and where its answer goes.
pub(crate) type Ticket = (u64, Subject);

impl Held {
    pub(crate) fn add(&self, ticket: Ticket) {
        self.lock().insert(ticket, false);
    }

    /// It was answered.
    pub(crate) fn remove(&self, ticket: &Ticket) {
        self.lock().remove(ticket);
        self.freed.notify_one();
    }

    /// Nobody works on it any more; it is to be given back. One that was answered is not.
    pub(crate) fn give_up(&self, ticket: &Ticket) {
        if let Some(dropped) = self.lock().get_mut(ticket) {
            *dropped = true;
            self.dropped.notify_one();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// What is to be extended.
    pub(crate) fn at_work(&self) -> Vec<Subject> {
        let all = self.lock();
        let at_work = all.iter().filter(|(_, dropped)| !**dropped);
        at_work.map(|((_, reply), _)| reply.clone()).collect()
    }

    /// What is to be given back; it is held no longer.
    pub(crate) fn take_dropped(&self) -> Vec<Subject> {
        let mut taken = Vec::new();
        self.lock().retain(|(_, reply), dropped| {
            if *dropped {
                taken.push(reply.clone());
            }
            !*dropped
        });
        taken
    }

    pub(crate) fn take_all(&self) -> Vec<Ticket> {
        let all = std::mem::take(&mut *self.lock());
        all.into_keys().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ticket, bool>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
