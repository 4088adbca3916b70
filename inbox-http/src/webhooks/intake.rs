//! Storing what comes at the same time together.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inbox::{
    CancellationToken, Message, Receipt, Store,
    receiver::{ChannelSource, Receiver, Rejection, Submission},
};
use tokio::{sync::mpsc, time::sleep};

/// Requests that wait behind those that the receiver has taken keep their messages themselves.
const CHANNEL: usize = 64;

/// After a failure that waiting does not mend, such as a missing schema.
const PAUSE: Duration = Duration::from_secs(1);

/// Messages on their way to the store. Clones share it.
#[derive(Clone)]
pub(super) struct Intake {
    store: Arc<dyn Store>,
    channel: Arc<Mutex<Option<mpsc::Sender<Submission>>>>,
}

/// It is not known whether a message was stored.
pub(super) struct Unknown;

impl Intake {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            channel: Arc::default(),
        }
    }

    /// Stores messages, and answers for each in their order.
    pub(super) async fn store(
        &self,
        messages: Vec<Message>,
    ) -> Result<Vec<Result<Receipt, Rejection>>, Unknown> {
        let channel = self.channel();
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            let (submission, answer) = Submission::new(message);
            channel.send(submission).await.map_err(|_| Unknown)?;
            answers.push(answer);
        }
        let mut receipts = Vec::with_capacity(answers.len());
        for answer in answers {
            receipts.push(answer.await.map_err(|_| Unknown)?);
        }
        Ok(receipts)
    }

    /// To the task that stores, which is started with the first message, and again when it has ended: with a
    /// panic of the store's, or with the runtime that it was started in.
    fn channel(&self) -> mpsc::Sender<Submission> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        match &*channel {
            Some(sender) if !sender.is_closed() => sender.clone(),
            _ => {
                let (sender, receiver) = mpsc::channel(CHANNEL);
                tokio::spawn(run(self.store.clone(), receiver));
                channel.insert(sender).clone()
            }
        }
    }
}

/// Ends with the last sender.
async fn run(store: Arc<dyn Store>, channel: mpsc::Receiver<Submission>) {
    // A request does not wait for others: what comes while a batch is stored is the next one.
    let receiver = Receiver::builder(store).linger(Duration::ZERO).build();
    let mut source = ChannelSource::new(channel);
    while let Err(error) = receiver.run(&mut source, CancellationToken::new()).await {
        tracing::error!(%error, "webhooks cannot be stored; trying again");
        sleep(PAUSE).await;
    }
}
