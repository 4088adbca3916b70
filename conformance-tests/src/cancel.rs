//! Dropping a future at each of its await points in turn.

use std::{future::Future, pin::pin, task::Poll};

use futures_util::future::poll_fn;

/// Polls `future` up to `polls` times and then drops it; `None` if it was not ready by then.
pub(crate) async fn drop_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
