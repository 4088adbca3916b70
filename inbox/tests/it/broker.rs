//! A broker in miniature: numbered deliveries, redelivery of what was dropped, and a check at
//! every acknowledgement that the message really is in the inbox.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use inbox::{
    HandlerName, Inbox, Key, Message, Operate as _,
    receiver::{Delivery, Rejection, Source, SourceError},
};
use tokio::time::{Instant, sleep_until};

#[derive(Debug)]
pub(crate) enum Step {
    Deliver(usize, Result<Message, Rejection>),
    Wait(Duration),
    Fail(SourceError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Acknowledged,
    Rejected(String),
}

struct Shared {
    inbox: Arc<dyn Inbox>,
    handlers: Vec<HandlerName>,
    steps: Mutex<VecDeque<Step>>,
    queued: AtomicUsize,
    fates: Mutex<Vec<(usize, Fate)>>,
    failing: Mutex<BTreeSet<usize>>,
    outstanding: AtomicUsize,
    most_outstanding: AtomicUsize,
}

pub(crate) struct Broker(Arc<Shared>);

impl Broker {
    /// A broker whose messages keep their own handler.
    pub(crate) fn new(inbox: Arc<dyn Inbox>) -> Self {
        Self::for_handlers(inbox, &[])
    }

    /// A broker whose messages have to be stored for each of `handlers`.
    pub(crate) fn for_handlers(inbox: Arc<dyn Inbox>, handlers: &[HandlerName]) -> Self {
        Self(Arc::new(Shared {
            inbox,
            handlers: handlers.to_vec(),
            steps: Mutex::default(),
            queued: AtomicUsize::new(0),
            fates: Mutex::default(),
            failing: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            most_outstanding: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn step(&self, step: Step) {
        self.0.steps.lock().unwrap().push_back(step);
    }

    pub(crate) fn queue(&self, message: Message) {
        self.deliver(Ok(message));
    }

    pub(crate) fn queue_invalid(&self, reason: &'static str) {
        self.deliver(Err(Rejection::new(reason)));
    }

    fn deliver(&self, message: Result<Message, Rejection>) {
        let number = self.0.queued.fetch_add(1, Ordering::SeqCst);
        self.step(Step::Deliver(number, message));
    }

    pub(crate) fn fail_acknowledgement_of(&self, number: usize) {
        self.0.failing.lock().unwrap().insert(number);
    }

    pub(crate) fn source(&self) -> BrokerSource {
        BrokerSource {
            shared: self.0.clone(),
            waiting_until: None,
        }
    }

    pub(crate) fn fates(&self) -> Vec<(usize, Fate)> {
        self.0.fates.lock().unwrap().clone()
    }

    /// How many deliveries were finished; panics unless they were all acknowledged, in order and
    /// without a gap.
    pub(crate) fn acknowledged_in_order(&self) -> usize {
        let fates = self.fates();
        for (expected, fate) in fates.iter().enumerate() {
            assert_eq!(*fate, (expected, Fate::Acknowledged), "out of order");
        }
        fates.len()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.0.outstanding.load(Ordering::SeqCst)
    }

    pub(crate) fn most_outstanding(&self) -> usize {
        self.0.most_outstanding.load(Ordering::SeqCst)
    }
}

pub(crate) struct BrokerSource {
    shared: Arc<Shared>,
    waiting_until: Option<Instant>,
}

impl BrokerSource {
    fn pop(&self) -> Option<Step> {
        self.shared.steps.lock().unwrap().pop_front()
    }

    fn wait_ahead(&self) -> Option<Duration> {
        match self.shared.steps.lock().unwrap().front() {
            Some(Step::Wait(duration)) => Some(*duration),
            _ => None,
        }
    }
}

impl Source for BrokerSource {
    type Delivery = BrokerDelivery;

    async fn next(&mut self) -> Result<Option<BrokerDelivery>, SourceError> {
        while let Some(duration) = self.wait_ahead() {
            let until = *self
                .waiting_until
                .get_or_insert_with(|| Instant::now() + duration);
            sleep_until(until).await;
            self.waiting_until = None;
            self.pop();
        }
        match self.pop() {
            Some(Step::Deliver(number, message)) => {
                let now = self.shared.outstanding.fetch_add(1, Ordering::SeqCst) + 1;
                self.shared
                    .most_outstanding
                    .fetch_max(now, Ordering::SeqCst);
                Ok(Some(BrokerDelivery {
                    shared: self.shared.clone(),
                    number,
                    message: Some(message),
                }))
            }
            Some(Step::Fail(error)) => Err(error),
            Some(Step::Wait(_)) => unreachable!("waits are taken above"),
            None => Ok(None),
        }
    }
}

pub(crate) struct BrokerDelivery {
    shared: Arc<Shared>,
    number: usize,
    /// Taken when the delivery is finished.
    message: Option<Result<Message, Rejection>>,
}

impl BrokerDelivery {
    fn finish(mut self, fate: Fate) -> Result<(), SourceError> {
        self.message = None;
        if self.shared.failing.lock().unwrap().contains(&self.number) {
            return Err(SourceError::transient("channel closed"));
        }
        let fate = (self.number, fate);
        self.shared.fates.lock().unwrap().push(fate);
        Ok(())
    }
}

impl Delivery for BrokerDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        self.message.clone().unwrap()
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        let message = self.message().unwrap();
        let mut keys = vec![message.key().clone()];
        if !self.shared.handlers.is_empty() {
            let handlers = self.shared.handlers.iter().cloned();
            keys = handlers
                .map(|handler| Key::new(handler, message.id().clone()))
                .collect();
        }
        for key in keys {
            let stored = self.shared.inbox.get(&key).await.unwrap();
            assert!(stored.is_some(), "{key} acknowledged but not stored");
        }
        self.finish(Fate::Acknowledged)
    }

    async fn reject(self, rejection: Rejection) -> Result<(), SourceError> {
        self.finish(Fate::Rejected(rejection.reason().into()))
    }
}

/// Dropped without an answer: delivered again, in its old place.
impl Drop for BrokerDelivery {
    fn drop(&mut self) {
        self.shared.outstanding.fetch_sub(1, Ordering::SeqCst);
        if let Some(message) = self.message.take() {
            let mut steps = self.shared.steps.lock().unwrap();
            let place = steps
                .iter()
                .position(|step| !matches!(step, Step::Deliver(n, _) if *n < self.number))
                .unwrap_or(steps.len());
            steps.insert(place, Step::Deliver(self.number, message));
        }
    }
}
