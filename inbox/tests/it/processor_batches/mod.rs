//! Batch handlers: an answer for each message, whatever goes wrong with its batch.

mod answers;
mod around;
mod claimed_again;
mod going_back;
mod leases;
mod one_by_one_transactions;
mod runs;
mod sites;
mod transactions;

use std::sync::{Arc, Mutex};

use inbox::{Batch, BatchHandler, Batches, CancellationToken, Message, OrderingKey, Router};

use crate::processor_support::*;

/// The ids of each batch that was run, in order.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<Vec<String>>>>);

impl Runs {
    fn add(&self, batch: &Batch) {
        self.0.lock().unwrap().push(ids(batch));
    }

    fn all(&self) -> Vec<Vec<String>> {
        self.0.lock().unwrap().clone()
    }

    fn sizes(&self) -> Vec<usize> {
        self.0.lock().unwrap().iter().map(Vec::len).collect()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

fn ids(batch: &Batch) -> Vec<String> {
    let ids = batch.iter().map(|context| context.message().id());
    ids.map(ToString::to_string).collect()
}

fn has(batch: &Batch, id: &str) -> bool {
    batch
        .iter()
        .any(|context| context.message().id().as_str() == id)
}

/// A store whose clock is the runtime's.
fn spy() -> Arc<Spy> {
    let spy = Spy::new();
    spy.follow_the_runtime();
    Arc::new(spy)
}

/// A router whose only handler takes batches of up to 100.
fn router(handler: impl BatchHandler) -> Router {
    Router::new(billing())
        .on_batch("order.placed", handler)
        .batches(Batches::up_to(100))
}

fn in_order(id: impl std::fmt::Display, key: impl std::fmt::Display) -> Message {
    message(id).with_ordering_key(OrderingKey::new(key.to_string()).unwrap())
}

/// `count` messages, called by their numbers, and one called so in the middle.
fn with_one(id: &str, count: usize) -> Vec<Message> {
    let mut messages: Vec<_> = (0..count).map(|n| message(format!("{n:03}"))).collect();
    messages.insert(count / 2, message(id));
    messages
}
