//! What the server waits for an answer to.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::Subject;
use tokio::sync::Notify;

/// What one connection has been given and has not answered, in the order of the stream.
#[derive(Debug, Default)]
pub(crate) struct Held {
    inner: Mutex<Inner>,
    pub(crate) freed: Notify,
    pub(crate) dropped: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// By sequence and reply subject, which has the number of the attempt.
    all: BTreeMap<Ticket, One>,
    bytes: usize,
}

#[derive(Debug)]
struct One {
    bytes: usize,
    /// How long it is to stay away, when nobody works on it any more.
    dropped: Option<Duration>,
}

/// How much is held, or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

/// A message's number in its stream, and where its answer goes.
pub(crate) type Ticket = (u64, Subject);

impl Held {
    /// Holds a message of so many bytes.
    pub(crate) fn add(&self, ticket: Ticket, bytes: usize) {
        let mut inner = self.lock();
        let one = One {
            bytes,
            dropped: None,
        };
        let former = inner.all.insert(ticket, one);
        inner.bytes = inner.bytes + bytes - former.map_or(0, |one| one.bytes);
    }

    /// It was answered.
    pub(crate) fn remove(&self, ticket: &Ticket) {
        let mut inner = self.lock();
        let removed = inner.all.remove(ticket);
        inner.bytes -= removed.map_or(0, |one| one.bytes);
        drop(inner);
        self.freed.notify_one();
    }

    /// Nobody works on it any more; it is to be given back, and to come again after `pause`. One that was answered is
    /// not.
    pub(crate) fn give_up(&self, ticket: &Ticket, pause: Duration) {
        if let Some(one) = self.lock().all.get_mut(ticket) {
            one.dropped = Some(pause);
            self.dropped.notify_one();
        }
    }

    pub(crate) fn size(&self) -> Size {
        let inner = self.lock();
        Size {
            count: inner.all.len(),
            bytes: inner.bytes,
        }
    }

    /// What is to be extended.
    pub(crate) fn at_work(&self) -> Vec<Subject> {
        let inner = self.lock();
        let at_work = inner.all.iter().filter(|(_, one)| one.dropped.is_none());
        at_work.map(|((_, reply), _)| reply.clone()).collect()
    }

    /// What is to be given back, and how long each is to stay away; it is held no longer.
    pub(crate) fn take_dropped(&self) -> Vec<(Subject, Duration)> {
        let mut taken = Vec::new();
        let inner = &mut *self.lock();
        inner.all.retain(|(_, reply), one| {
            let Some(pause) = one.dropped else {
                return true;
            };
            taken.push((reply.clone(), pause));
            inner.bytes -= one.bytes;
            false
        });
        taken
    }

    pub(crate) fn take_all(&self) -> Vec<Ticket> {
        let inner = std::mem::take(&mut *self.lock());
        inner.all.into_keys().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
