//! Commits on a thread of its own, which waits for the answer.
//!
//! The client has a commit that does not wait, but does not tell what came of it.

use std::{
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle, Thread},
};

use rdkafka::{
    TopicPartitionList,
    consumer::{CommitMode, Consumer as _},
};

use crate::context::{Consumer, Event};

pub(crate) struct Committer {
    /// Both `None` when it was ended.
    orders: Option<mpsc::Sender<TopicPartitionList>>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Answers are events of the consumer's context, upon which `poller` is woken.
    pub(crate) fn start(consumer: Arc<Consumer>, poller: Thread) -> io::Result<Self> {
        let (orders, ordered) = mpsc::channel();
        let work = move || {
            for offsets in ordered {
                let done = consumer.commit(&offsets, CommitMode::Sync);
                consumer.context().note(Event::Committed(done));
                poller.unpark();
            }
        };
        let thread = thread::Builder::new().name("inbox-kafka-commits".into());
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread.spawn(work)?),
        })
    }

    /// Begins a commit. `false`: the thread has ended.
    pub(crate) fn commit(&self, offsets: TopicPartitionList) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.send(offsets).is_ok())
    }

    /// Ends the thread, which has nothing to do, so that it does not hold the consumer any more.
    pub(crate) fn end(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
