//! Storing what comes at the same time together.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inbox::{
    CancellationToken, Message, Receipt, Store,
    receiver::{ChannelSource, Delivery, Receiver, Rejection, SourceError, Submission},
};
use tokio::{sync::mpsc, time::sleep};

use crate::budget::Share;

/// Requests that wait behind those that the receiver has taken keep their messages themselves.
const CHANNEL: usize = 64;

/// After a failure that waiting does not mend, such as a missing schema.
const PAUSE: Duration = Duration::from_secs(1);

/// Messages on their way to the store. Clones share it.
#[derive(Clone)]
pub(super) struct Intake {
    store: Arc<dyn Store>,
    channel: Arc<Mutex<Option<mpsc::Sender<Counted>>>>,
}

/// A message that counts as a body in memory until it is stored, which may be long after its request was
/// answered: nothing else bounds what waits for a store that is away.
struct Counted {
    submission: Submission,
    share: Arc<Share>,
}

impl Delivery for Counted {
    fn message(&self) -> Result<Message, Rejection> {
        self.submission.message()
    }

    fn stored(&mut self, receipt: &Receipt) {
        self.submission.stored(receipt);
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        // Before the answer.
        drop(self.share);
        self.submission.acknowledge().await
    }

    async fn reject(self, rejection: Rejection) -> Result<(), SourceError> {
        drop(self.share);
        self.submission.reject(rejection).await
    }
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

    /// Stores messages, and answers for each in their order. They came in a body with this share.
    pub(super) async fn store(
        &self,
        messages: Vec<Message>,
        share: Share,
    ) -> Result<Vec<Result<Receipt, Rejection>>, Unknown> {
        let channel = self.channel();
        let share = Arc::new(share);
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            let (submission, answer) = Submission::new(message);
            let counted = Counted {
                submission,
                share: Arc::clone(&share),
            };
            channel.send(counted).await.map_err(|_| Unknown)?;
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
    fn channel(&self) -> mpsc::Sender<Counted> {
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
async fn run(store: Arc<dyn Store>, channel: mpsc::Receiver<Counted>) {
    // A request does not wait for others: what comes while a batch is stored is the next one.
    let receiver = Receiver::builder(store).linger(Duration::ZERO).build();
    let mut source = ChannelSource::new(channel);
    while let Err(error) = receiver.run(&mut source, CancellationToken::new()).await {
        tracing::error!(%error, "webhooks cannot be stored; trying again");
        sleep(PAUSE).await;
    }
}
