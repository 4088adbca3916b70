//! Extending leases, each in the queue of its handler.

use std::time::Duration;

use inbox_api::{Extended, Lease, LeaseTerms, Result};

use crate::queues::Queues;

pub(crate) fn extend(queues: &Queues, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
    LeaseTerms::check_length(length)?;
    let needed = queues.of(leases.iter().map(|lease| &lease.key.handler));
    Ok(queues.lock(&needed, |locked, now| {
        let extend = |lease: &Lease| {
            locked
                .get(&lease.key.handler)
                .map_or(Extended::LeaseLost, |queue| {
                    queue.extend(lease, length, now)
                })
        };
        leases.iter().map(extend).collect()
    }))
}
