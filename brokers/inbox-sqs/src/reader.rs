//! Asks for messages, never for more than may be held.

use std::sync::{Arc, atomic::Ordering};

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName as System};
use inbox_source::SourceError;
use tokio::{
    sync::{mpsc::Sender, watch},
    time::{Duration, sleep, timeout},
};

use crate::{
    Rejections, SqsDelivery,
    envelope::envelope,
    error::{failed, late},
    queue::{BATCH, PATIENCE, Queue, whole_seconds},
};

/// It is asked when this part of what may be held is free, so that one request does not bring one message.
const PART: usize = 4;
/// What was freed in between is seen after this.
const LOOK: Duration = Duration::from_millis(500);

type Outcome<T> = Result<T, SourceError>;
type Deliveries = Sender<Outcome<SqsDelivery>>;

/// Asks until it fails or is stopped. It is a task of its own: a request that is given up leaves what the
/// service has sent invisible, while the receiver may drop [`Source::next`](inbox_source::Source::next) at any
/// time.
pub(crate) async fn read(queue: Arc<Queue>, to: Deliveries, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        let most = queue.most.load(Ordering::Relaxed);
        let free = most.saturating_sub(queue.held.count());
        let is_full = queue.held.bytes() >= queue.most_bytes.load(Ordering::Relaxed);
        if free == 0 || free < (most / PART).min(BATCH) || is_full {
            tokio::select! {
                () = queue.held.freed.notified() => {}
                _ = stop.changed() => {}
                () = sleep(LOOK) => {}
            }
            continue;
        }
        match receive(&queue, free.min(BATCH)).await {
            Ok(messages) => {
                for message in messages {
                    // Dropped, it is given back.
                    let Some(delivery) = delivery(&queue, message) else {
                        continue;
                    };
                    let _ = to.send(Ok(delivery)).await;
                }
            }
            Err(error) => {
                let _ = to.send(Err(error)).await;
                return;
            }
        }
    }
}

async fn receive(queue: &Queue, count: usize) -> Outcome<Vec<Message>> {
    let doing = "receiving";
    let options = &queue.options;
    let request = options
        .connection
        .client
        .receive_message()
        .queue_url(options.url())
        .max_number_of_messages(i32::try_from(count).unwrap_or(1))
        .wait_time_seconds(i32::from(options.wait))
        .visibility_timeout(whole_seconds(options.visibility))
        .message_system_attribute_names(System::All)
        .message_attribute_names("All");
    let limit = Duration::from_secs(options.wait.into()) + PATIENCE;
    let answer = timeout(limit, request.send()).await;
    let answer = answer.map_err(|_| late(doing))?;
    let answer = answer.map_err(|error| failed(doing, &error))?;
    Ok(answer.messages.unwrap_or_default())
}

/// `None` for one that is held already, or cannot be answered.
fn delivery(queue: &Arc<Queue>, message: Message) -> Option<SqsDelivery> {
    let receipt = message.receipt_handle.clone()?;
    let id = message.message_id.as_deref().unwrap_or(&receipt);
    let envelope = envelope(&queue.options.queue, &message);
    let keeps = matches!(queue.options.rejections, Rejections::DeadLetters(_));
    let bytes = envelope.bytes() * (1 + usize::from(keeps));
    let number = queue.held.add(id, &receipt, bytes)?;
    Some(SqsDelivery {
        envelope,
        number,
        receipt,
        received: keeps.then_some(message),
        pause: Duration::ZERO,
        queue: Arc::clone(queue),
    })
}
