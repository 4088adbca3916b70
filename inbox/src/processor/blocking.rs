//! Finds handlers that block their thread.

use std::{
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::HandlerName;

/// The longest that a handler may keep its thread without a warning.
const LONGEST: Duration = Duration::from_secs(1);

/// How long a handler name is not warned of again.
const QUIET: Duration = Duration::from_secs(60);

/// When a handler name was warned of last.
#[derive(Default)]
pub(super) struct Warned(Mutex<Option<Instant>>);

/// A handler's future, with a look at the clock after each of its steps.
pub(super) struct Watched<'a, F> {
    future: F,
    handler: &'a HandlerName,
    warned: &'a Warned,
    limit: Duration,
    /// When its present step began; `None` while it waits.
    began: Option<Instant>,
}

impl<'a, F> Watched<'a, F> {
    /// A future whose first step begins now.
    pub(super) fn new(
        future: F,
        handler: &'a HandlerName,
        warned: &'a Warned,
        lease: Duration,
        now: Instant,
    ) -> Self {
        Self {
            future,
            handler,
            warned,
            limit: LONGEST.min(lease / 3),
            began: Some(now),
        }
    }
}

impl<F: Future + Unpin> Future for Watched<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let began = self.began.take().unwrap_or_else(Instant::now);
        let polled = Pin::new(&mut self.future).poll(context);
        let step = began.elapsed();
        if step > self.limit {
            self.warned.warn(self.handler, step);
        }
        polled
    }
}

impl Warned {
    fn warn(&self, handler: &HandlerName, step: Duration) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() > QUIET) {
            *last = Some(Instant::now());
            tracing::warn!(
                handler = handler.as_str(),
                ?step,
                "the handler blocks its thread: leases cannot be renewed meanwhile, nor other \
                 handlers go on"
            );
        }
    }
}
