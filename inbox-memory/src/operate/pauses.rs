//! Pausing handlers.

use std::iter::once;

use inbox_api::HandlerName;

use crate::queues::Queues;

pub(crate) fn pause(queues: &Queues, handler: &HandlerName) {
    queues.lock(&queues.make_for(once(handler)), |locked, _| {
        locked
            .as_mut_slice()
            .iter_mut()
            .for_each(|queue| queue.pause());
    });
}

pub(crate) fn resume(queues: &Queues, handler: &HandlerName) {
    queues.lock(&queues.of(once(handler)), |locked, _| {
        locked
            .as_mut_slice()
            .iter_mut()
            .for_each(|queue| queue.resume());
    });
}

pub(crate) fn paused(queues: &Queues) -> Vec<HandlerName> {
    queues.lock(&queues.all(), |locked, _| {
        locked
            .iter()
            .filter(|queue| queue.is_paused())
            .map(|queue| queue.handler().clone())
            .collect()
    })
}
