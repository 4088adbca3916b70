//! The rules of the `Idempotency-Key` header.

mod bodies;
mod commits;
mod failures;
mod keeping;
mod logs;
mod nested;
mod other_stores;
mod outage;
mod pool;
mod rules;
mod transactions;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use inbox::Store;
use inbox_http::IdempotencyLayer;

/// How often a handler was called.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicUsize>);

impl Runs {
    /// The number of this call, from 1.
    fn count(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn so_far(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn layer(store: Arc<dyn Store>) -> IdempotencyLayer {
    IdempotencyLayer::new(store, "payments").unwrap()
}
