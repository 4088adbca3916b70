//! Receiving a batch, of which all is stored at one moment.

use inbox_api::{Message, Receipt, Result};

use crate::queues::{Locked, Queues, no_queue};

pub(crate) fn receive(queues: &Queues, messages: &[Message]) -> Result<Vec<Receipt>> {
    let needed = queues.make_for(messages.iter().map(Message::handler));
    let receive = |locked: &mut Locked<'_>, message: &Message, now| {
        if let Err(invalid) = message.check_payload(queues.options.payload_limit) {
            return Ok(Receipt::Refused(invalid));
        }
        let queue = locked.get(message.handler()).ok_or_else(no_queue)?;
        Ok(queue.receive(message, || queues.next_seq(), now))
    };
    queues.lock(&needed, |locked, now| {
        messages
            .iter()
            .map(|message| receive(locked, message, now))
            .collect()
    })
}
