//! Beginning inline: stores the message if it is new, and leases it if its handler may run now.

use inbox_api::{Begun, LeaseTerms, Message, Result};

use crate::queues::{Queues, no_queue};

pub(crate) fn begin(queues: &Queues, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
    message.check_payload(queues.options.payload_limit)?;
    let needed = queues.make_for(std::iter::once(message.handler()));
    queues
        .lock(&needed, |locked, now| {
            let queue = locked.get(message.handler())?;
            let _known_or_not = queue.receive(message, || queues.next_seq(), now);
            queue.begin(message.id(), terms, now)
        })
        .ok_or_else(no_queue)
}
