//! Settling a batch, each lease in the queue of its handler.

use inbox_api::{Invalid, Outcome, Result, Settled, Settlement, check_size};

use crate::queues::Queues;

pub(crate) fn settle(queues: &Queues, settlements: &[Settlement]) -> Vec<Settled> {
    let options = &queues.options;
    let needed = queues.of(settlements.iter().map(|s| &s.lease.key.handler));
    queues.lock(&needed, |locked, now| {
        let settle = |settlement: &Settlement| {
            if let Err(invalid) = check_result(&settlement.outcome, options.payload_limit) {
                return Settled::Refused(invalid);
            }
            locked
                .get(&settlement.lease.key.handler)
                .map_or(Settled::LeaseLost, |queue| {
                    queue.settle(settlement, options.drop_processed_payloads, now)
                })
        };
        settlements.iter().map(settle).collect()
    })
}

fn check_result(outcome: &Outcome, limit: usize) -> Result<(), Invalid> {
    match outcome {
        Outcome::Processed {
            result: Some(result),
        } => check_size("result", result.len(), limit),
        _ => Ok(()),
    }
}
