//! Claiming what has been due for longest, over all queues that are asked for.

use std::{cmp::Reverse, collections::BinaryHeap};

use inbox_api::{ClaimRequest, Claims};

use crate::{queue::Queue, queues::Queues};

pub(crate) fn claim(queues: &Queues, request: &ClaimRequest) -> Claims {
    let needed = queues.of(request.handlers.iter());
    let limit = request.limit as usize;
    let run_limit = request.run_limit as usize;
    let leased = queues.lock(&needed, |locked, now| {
        // The longest-due message of each queue; the smallest of them is the next to take.
        let mut first: BinaryHeap<Reverse<(i64, i64, usize)>> = BinaryHeap::new();
        let next_of = |queue: &Queue, position: usize| {
            let (at, seq) = queue.next_to_claim(now)?;
            Some(Reverse((at, seq, position)))
        };
        for (position, queue) in locked.iter().enumerate() {
            first.extend(next_of(queue, position));
        }
        let mut leased = Vec::new();
        while leased.len() < limit
            && let Some(Reverse((_, seq, position))) = first.pop()
        {
            let queue = &mut locked.as_mut_slice()[position];
            let most = run_limit.min(limit - leased.len());
            leased.extend(queue.lease_run(seq, most, &request.terms, now));
            first.extend(next_of(queue, position));
        }
        leased
    });
    Claims {
        leased,
        corrupt: Vec::new(),
    }
}
