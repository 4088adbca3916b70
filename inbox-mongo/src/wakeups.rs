//! Wake-ups: a signal within the process, and a change stream for the writes of other processes
//! where the server has one.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{Effect, Error, ErrorKind, Result, Subscription};
use mongodb::{
    Collection,
    bson::{Document, doc},
    change_stream::{ChangeStream, event::ResumeToken},
    options::{ReadConcern, ReadPreference},
};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use crate::{error::before, rows::CLAIMABLE};

const RECONNECT: Duration = Duration::from_millis(500);

type Stream = ChangeStream<mongodb::change_stream::event::ChangeStreamEvent<Document>>;

/// Counts causes to look for work, and watches for those of other processes.
pub(crate) struct Wakers {
    causes: watch::Sender<u64>,
    watching: Mutex<Watching>,
}

#[derive(Default)]
struct Watching {
    is_stopped: bool,
    watcher: Weak<Watcher>,
}

/// The task that follows the change stream; ends with the last subscription.
#[derive(Debug)]
struct Watcher {
    task: JoinHandle<()>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wakers {
    pub(crate) fn new() -> Self {
        Self {
            causes: watch::Sender::new(0),
            watching: Mutex::default(),
        }
    }

    /// Something may have become claimable by this store's own doing.
    pub(crate) fn raise(&self) {
        self.causes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Ends the watcher, for good: a change stream that is just being opened is closed again.
    pub(crate) fn stop(&self) {
        let mut watching = self.watching();
        watching.is_stopped = true;
        if let Some(watcher) = watching.watcher.upgrade() {
            watcher.task.abort();
        }
    }

    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With a change stream where the server has one. Watches first, so that nothing after the return is missed.
    pub(crate) async fn subscribe(
        &self,
        messages: &Collection<Document>,
        replicates: bool,
    ) -> Result<Box<dyn Subscription>> {
        let mut watcher = self.watching().watcher.upgrade();
        if watcher.is_none() && replicates {
            let stream = watch_messages(messages, None).await.map_err(before)?;
            watcher = Some(self.start_watcher(messages, stream)?);
        }
        Ok(Box::new(Subscribed {
            causes: self.causes.subscribe(),
            _watcher: watcher,
        }))
    }

    /// One that follows this stream, unless another subscription has started one meanwhile.
    fn start_watcher(
        &self,
        messages: &Collection<Document>,
        stream: Stream,
    ) -> Result<Arc<Watcher>> {
        let mut watching = self.watching();
        if watching.is_stopped {
            let closed = Error::new(ErrorKind::Unavailable, "the store is closed");
            return Err(closed.with_effect(Effect::None));
        }
        if let Some(watcher) = watching.watcher.upgrade() {
            return Ok(watcher);
        }
        let following = follow(messages.clone(), stream, self.causes.clone());
        let task = tokio::spawn(following);
        let watcher = Arc::new(Watcher { task });
        watching.watcher = Arc::downgrade(&watcher);
        Ok(watcher)
    }
}

/// Only changes after which a message may be claimed: it is new, or was put in the lane for it.
fn what_matters() -> Document {
    doc! { "$match": { "$or": [
        { "operationType": "insert" },
        { "operationType": "update", "updateDescription.updatedFields.lane": CLAIMABLE },
        { "operationType": "update", "updateDescription.updatedFields.state": 0 },
        // It was rescheduled, or its handler is not paused any more.
        { "operationType": "update", "updateDescription.updatedFields.dueAt": { "$gt": 0 } },
        { "operationType": "update", "updateDescription.updatedFields.touched": { "$gt": 0 } },
        // What servers before 5.0 make of an update by a pipeline.
        { "operationType": "replace", "fullDocument.state": 0, "fullDocument.lane": CLAIMABLE },
    ] } }
}

async fn watch_messages(
    messages: &Collection<Document>,
    token: Option<ResumeToken>,
) -> mongodb::error::Result<Stream> {
    messages
        .watch()
        // The payload is not wanted, only that there was a change.
        .pipeline([
            what_matters(),
            doc! { "$project": { "_id": 1, "operationType": 1 } },
        ])
        .read_concern(ReadConcern::majority())
        .selection_criteria(ReadPreference::Primary.into())
        .resume_after(token)
        .await
}

/// The driver resumes by itself after most errors; after the others the stream is opened again, by
/// token if that is still known to the server.
async fn follow(messages: Collection<Document>, mut stream: Stream, causes: watch::Sender<u64>) {
    loop {
        match stream.next_if_any().await {
            Ok(Some(_)) => {}
            Ok(None) if stream.is_alive() => continue,
            ended => {
                if let Err(error) = ended {
                    let error = before(error);
                    tracing::warn!(%error, "the change stream for wake-ups failed; opening it again");
                }
                let mut token = stream.resume_token();
                stream = loop {
                    sleep(RECONNECT).await;
                    if let Ok(stream) = watch_messages(&messages, token.take()).await {
                        break stream;
                    }
                };
            }
        }
        // Also after a new stream: what happened meanwhile may be lost.
        causes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Wakes on every cause in the inbox, whichever handler it is for.
struct Subscribed {
    causes: watch::Receiver<u64>,
    _watcher: Option<Arc<Watcher>>,
}

#[async_trait]
impl Subscription for Subscribed {
    async fn woken(&mut self) {
        if self.causes.changed().await.is_err() {
            // The store is gone: nothing will ever become due here.
            std::future::pending::<()>().await;
        }
    }
}
