//! What bounds a receiver, and what does not end it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use inbox::{
    BacklogGate, Bytes, CancellationToken, HandlerName, Kind, Message, MessageId, Operate, Receipt,
    State, Store as _,
    receiver::{
        ChannelSource, Delivery, Receiver, ReceiverBuilder, ReceiverError, Rejection, Source,
        SourceError, StreamSource, Submission,
    },
};
use tokio::sync::Semaphore;

use crate::faulty::{FaultyStore, memory, message};

fn never() -> CancellationToken {
    CancellationToken::new()
}

fn large(id: usize, bytes: usize) -> Message {
    with_payload(id, vec![0; bytes])
}

fn with_payload(id: usize, payload: impl Into<Bytes>) -> Message {
    let (handler, kind) = (HandlerName::new("billing"), Kind::new("order.placed"));
    let id = MessageId::new(id.to_string()).unwrap();
    Message::new(handler.unwrap(), id, kind.unwrap(), payload)
}

#[tokio::test(start_paused = true)]
async fn no_more_bytes_are_taken_than_may_be_unacknowledged() {
    let mut store = FaultyStore::new(memory().await);
    let gate = Arc::new(Semaphore::new(0));
    store.gate = Some(gate.clone());
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    let deliveries = (0..40).map(move |id| {
        count.fetch_add(1, SeqCst);
        Ok(large(id, 1000))
    });
    let receiver = Receiver::builder(Arc::new(store))
        .max_unacknowledged_bytes(10_000)
        .build();
    let mut source = StreamSource::new(futures_util::stream::iter(deliveries));
    let running = tokio::spawn(async move { receiver.run(&mut source, never()).await });
    let mut finished = 0;
    while finished < 40 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = taken.load(SeqCst);
        assert!(now - finished <= 10, "{now} taken, {finished} finished");
        finished = now;
        gate.add_permits(1);
    }
    assert_eq!(running.await.unwrap().unwrap().accepted, 40);
}

#[tokio::test(start_paused = true)]
async fn sixty_four_mebibytes_may_be_unacknowledged_unless_set() {
    let mut store = FaultyStore::new(memory().await);
    let gate = Arc::new(Semaphore::new(0));
    store.gate = Some(gate.clone());
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    // All share one payload, so the test itself needs no more than that.
    let payload = Bytes::from(vec![0; 1 << 20]);
    let deliveries = (0..80).map(move |id| {
        count.fetch_add(1, SeqCst);
        Ok(with_payload(id, payload.clone()))
    });
    let receiver = Receiver::builder(Arc::new(store)).build();
    let mut source = StreamSource::new(futures_util::stream::iter(deliveries));
    let running = tokio::spawn(async move { receiver.run(&mut source, never()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(taken.load(SeqCst), 64);
    gate.add_permits(80);
    assert_eq!(running.await.unwrap().unwrap().accepted, 80);
}

/// No message, but a body all the same.
struct Garbage(Option<usize>);

impl Delivery for Garbage {
    fn message(&self) -> Result<Message, Rejection> {
        Err(Rejection::new("no message"))
    }

    fn bytes(&self) -> Option<usize> {
        self.0
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        Ok(())
    }

    async fn reject(self, _: Rejection) -> Result<(), SourceError> {
        Ok(())
    }
}

/// In how many batches a receiver with these settings takes these deliveries.
async fn batches<D: Delivery + Sync>(
    set: impl FnOnce(ReceiverBuilder) -> ReceiverBuilder,
    deliveries: Vec<D>,
) -> u64 {
    let receiver = set(Receiver::builder(memory().await).linger(Duration::MAX)).build();
    let deliveries = deliveries.into_iter().map(Ok);
    let mut source = StreamSource::new(futures_util::stream::iter(deliveries));
    let summary = receiver.run(&mut source, never()).await;
    summary.unwrap().batches
}

#[tokio::test(start_paused = true)]
async fn rejected_deliveries_count_as_what_they_hold() {
    let limited = |builder: ReceiverBuilder| builder.max_unacknowledged_bytes(1000);
    let small: Vec<_> = (0..20).map(|_| Garbage(Some(100))).collect();
    assert_eq!(batches(limited, small).await, 2);
    // One that does not say may be as large as any.
    let unknown: Vec<_> = (0..130).map(|_| Garbage(None)).collect();
    assert_eq!(batches(|builder| builder, unknown).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_delivery_counts_with_its_headers_and_all_of_its_copies() {
    let limited = |builder: ReceiverBuilder| builder.max_unacknowledged_bytes(1000);
    let header = |id| {
        let message = large(id, 1);
        message.with_header("trace", "x".repeat(95)).unwrap()
    };
    assert_eq!(batches(limited, (0..20).map(header).collect()).await, 2);
    let fanned = |builder: ReceiverBuilder| {
        let handlers = ["a", "b", "c", "d", "e"].map(|name| HandlerName::new(name).unwrap());
        limited(builder).fan_out(handlers)
    };
    let all: Vec<_> = (0..20).map(|id| large(id, 100)).collect();
    assert_eq!(batches(fanned, all).await, 10);
}

#[tokio::test(start_paused = true)]
async fn one_delivery_over_the_limit_goes_through_alone() {
    let receiver = Receiver::builder(memory().await)
        .max_unacknowledged_bytes(10)
        .build();
    let deliveries = (0..3).map(|id| Ok(large(id, 1000)));
    let mut source = StreamSource::new(futures_util::stream::iter(deliveries));
    let summary = receiver.run(&mut source, never()).await.unwrap();
    assert_eq!((summary.accepted, summary.batches), (3, 3));
}

/// Panics where its number says.
struct Bomb(usize);

impl Delivery for Bomb {
    fn message(&self) -> Result<Message, Rejection> {
        assert_ne!(self.0, 1, "reading");
        if self.0 == 2 {
            return Err(Rejection::new("no message"));
        }
        Ok(message(self.0))
    }

    fn stored(&mut self, _: &Receipt) {
        assert_ne!(self.0, 3, "hearing");
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        assert_ne!(self.0, 4, "acknowledging");
        Ok(())
    }

    async fn reject(self, _: Rejection) -> Result<(), SourceError> {
        assert_ne!(self.0, 2, "rejecting");
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn panics_of_deliveries_and_observers_end_nothing() {
    let store = memory().await;
    let receiver = Receiver::builder(store.clone())
        .batch_size(1)
        .on_batch(|_| panic!("observing"))
        .build();
    let deliveries = (0..6).map(|number| Ok(Bomb(number)));
    let mut source = StreamSource::new(futures_util::stream::iter(deliveries));
    let summary = receiver.run(&mut source, never()).await.unwrap();
    assert_eq!((summary.accepted, summary.rejected), (4, 2));
    assert_eq!(summary.failed_acknowledgements, 2);
    assert_eq!(store.statistics().await.unwrap().count(State::Pending), 4);
}

/// Hands one message out and then panics.
struct Fragile(bool);

impl Source for Fragile {
    type Delivery = Message;

    async fn next(&mut self) -> Result<Option<Message>, SourceError> {
        assert!(!self.0, "the second call");
        self.0 = true;
        Ok(Some(message(1)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_panics_ends_the_run_after_the_rest_is_stored() {
    let store = memory().await;
    let receiver = Receiver::builder(store.clone()).build();
    let error = receiver
        .run(&mut Fragile(false), never())
        .await
        .unwrap_err();
    assert!(matches!(error, ReceiverError::Source(_)), "{error:?}");
    assert_eq!(store.statistics().await.unwrap().count(State::Pending), 1);
}

#[tokio::test(start_paused = true)]
async fn a_submission_whose_sender_has_left_is_no_failed_acknowledgement() {
    let (sender, channel) = tokio::sync::mpsc::channel(10);
    let (submission, answer) = Submission::new(message(1));
    drop(answer);
    sender.send(submission).await.unwrap();
    drop(sender);
    let receiver = Receiver::builder(memory().await).build();
    let mut source = ChannelSource::new(channel);
    let summary = receiver.run(&mut source, never()).await.unwrap();
    assert_eq!((summary.accepted, summary.failed_acknowledgements), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn durations_that_mean_for_ever_are_taken_as_such() {
    let receiver = Receiver::builder(memory().await)
        .batch_size(3)
        .linger(Duration::MAX)
        .drain_limit(Duration::MAX)
        .store_timeout(Duration::MAX)
        .build();
    let (sender, channel) = tokio::sync::mpsc::channel(10);
    let shutdown = never();
    let stop = shutdown.clone();
    let running =
        tokio::spawn(async move { receiver.run(&mut ChannelSource::new(channel), stop).await });
    sender.send(message(1)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    shutdown.cancel();
    assert_eq!(running.await.unwrap().unwrap().accepted, 1);
}

/// Statistics that can be taken away.
struct Counted {
    inner: Arc<dyn inbox::Inbox>,
    is_away: AtomicBool,
    panics: AtomicBool,
}

#[async_trait::async_trait]
impl Operate for Counted {
    fn signed_by(&self, operator: &inbox::OperatorName) -> Arc<dyn Operate> {
        self.inner.signed_by(operator)
    }

    async fn get(&self, key: &inbox::Key) -> inbox::Result<Option<inbox::Record>> {
        self.inner.get(key).await
    }

    async fn list(
        &self,
        filter: &inbox::Filter,
        page: &inbox::Page,
    ) -> inbox::Result<inbox::Listing> {
        self.inner.list(filter, page).await
    }

    async fn count(&self, filter: &inbox::Filter) -> inbox::Result<u64> {
        self.inner.count(filter).await
    }

    async fn statistics(&self) -> inbox::Result<inbox::Statistics> {
        assert!(!self.panics.load(SeqCst), "planned");
        if self.is_away.load(SeqCst) {
            let kind = inbox::ErrorKind::Unavailable;
            return Err(inbox::Error::new(kind, "planned").in_operation("statistics"));
        }
        self.inner.statistics().await
    }

    async fn replay(
        &self,
        key: &inbox::Key,
        edit: &inbox::Edit,
    ) -> inbox::Result<inbox::Intervention> {
        self.inner.replay(key, edit).await
    }

    async fn reschedule(
        &self,
        key: &inbox::Key,
        due: inbox::Due,
    ) -> inbox::Result<inbox::Intervention> {
        self.inner.reschedule(key, due).await
    }

    async fn reschedule_slice(
        &self,
        filter: &inbox::Filter,
        slice: &inbox::Slice,
        due: inbox::Due,
    ) -> inbox::Result<inbox::Progress> {
        self.inner.reschedule_slice(filter, slice, due).await
    }

    async fn clear_slice(
        &self,
        handler: &inbox::HandlerName,
        slice: &inbox::Slice,
    ) -> inbox::Result<inbox::Progress> {
        self.inner.clear_slice(handler, slice).await
    }

    async fn pause(&self, handler: &inbox::HandlerName) -> inbox::Result<()> {
        self.inner.pause(handler).await
    }

    async fn resume(&self, handler: &inbox::HandlerName) -> inbox::Result<()> {
        self.inner.resume(handler).await
    }

    async fn paused(&self) -> inbox::Result<Vec<inbox::HandlerName>> {
        self.inner.paused().await
    }

    async fn drop_payloads(&self, request: &inbox::PurgeRequest) -> inbox::Result<u64> {
        self.inner.drop_payloads(request).await
    }

    async fn replay_slice(
        &self,
        filter: &inbox::Filter,
        slice: &inbox::Slice,
    ) -> inbox::Result<inbox::Progress> {
        self.inner.replay_slice(filter, slice).await
    }

    async fn discard(&self, key: &inbox::Key) -> inbox::Result<inbox::Intervention> {
        self.inner.discard(key).await
    }

    async fn discard_slice(
        &self,
        filter: &inbox::Filter,
        slice: &inbox::Slice,
    ) -> inbox::Result<inbox::Progress> {
        self.inner.discard_slice(filter, slice).await
    }

    async fn expired(&self, request: &inbox::PurgeRequest) -> inbox::Result<inbox::Listing> {
        self.inner.expired(request).await
    }

    async fn purge_archived(
        &self,
        request: &inbox::PurgeRequest,
        keys: &[inbox::Key],
    ) -> inbox::Result<u64> {
        self.inner.purge_archived(request, keys).await
    }

    async fn purge(&self, request: &inbox::PurgeRequest) -> inbox::Result<u64> {
        self.inner.purge(request).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_is_held_back_while_the_backlog_is_over_its_limit() {
    let store = memory().await;
    let counted = Arc::new(Counted {
        inner: store.clone(),
        is_away: AtomicBool::new(false),
        panics: AtomicBool::new(false),
    });
    let gate = BacklogGate::builder(counted.clone(), 100)
        .handlers([HandlerName::new("billing").unwrap()])
        .interval(Duration::from_millis(10))
        .build()
        .unwrap();
    // Those of others do not count.
    let others = (0..500).map(|id| message(id).for_handler(HandlerName::new("other").unwrap()));
    let _ = store.receive(&others.collect::<Vec<_>>()).await.unwrap();
    let deliveries = futures_util::stream::unfold(0, |id| async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        (id < 1000).then(|| (Ok(message(id)), id + 1))
    });
    let receiver = Receiver::builder(store.clone())
        .batch_size(5)
        .backlog_gate(gate.clone())
        .build();
    let mut source = StreamSource::new(Box::pin(deliveries));
    let running = tokio::spawn(async move { receiver.run(&mut source, never()).await });
    let backlog = async || {
        let statistics = store.statistics().await.unwrap();
        let mut handlers = statistics.handlers.into_iter();
        handlers
            .find(|h| h.handler.as_str() == "billing")
            .unwrap()
            .pending
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    let held = backlog().await;
    assert!((100..125).contains(&held), "{held}");
    assert!(!gate.is_open());

    // While the backlog is not known it stays shut, and opens when it is.
    counted.is_away.store(true, SeqCst);
    let filter = inbox::Filter {
        states: vec![State::Pending],
        handler: Some(HandlerName::new("billing").unwrap()),
        ..inbox::Filter::default()
    };
    let slice = |limit| inbox::Slice { after: None, limit };
    let _ = store.discard_slice(&filter, &slice(50)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!gate.is_open());
    assert_eq!(backlog().await, held - 50);
    counted.is_away.store(false, SeqCst);
    gate.opened().await;
    while !running.is_finished() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(backlog().await < 125);
        let _ = store.discard_slice(&filter, &slice(20)).await.unwrap();
    }
    assert_eq!(running.await.unwrap().unwrap().accepted, 1000);
}

/// A gate that is shut over an inbox with two messages.
async fn shut() -> (Arc<dyn inbox::Inbox>, Arc<Counted>, BacklogGate) {
    let store = memory().await;
    let _ = store.receive(&[message(1), message(2)]).await.unwrap();
    let counted = Arc::new(Counted {
        inner: store.clone(),
        is_away: AtomicBool::new(false),
        panics: AtomicBool::new(false),
    });
    let gate = BacklogGate::builder(counted.clone(), 1)
        .interval(Duration::from_millis(10))
        .build()
        .unwrap();
    while gate.is_open() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (store, counted, gate)
}

#[tokio::test(start_paused = true)]
async fn a_gate_goes_on_after_a_look_that_panics() {
    let (store, counted, gate) = shut().await;
    counted.panics.store(true, SeqCst);
    tokio::time::sleep(Duration::from_secs(1)).await;
    counted.panics.store(false, SeqCst);
    let _ = store
        .clear_slice(
            &HandlerName::new("billing").unwrap(),
            &inbox::Slice {
                after: None,
                limit: 10,
            },
        )
        .await
        .unwrap();
    let opened = tokio::time::timeout(Duration::from_secs(10), gate.opened()).await;
    assert!(opened.is_ok() && gate.is_open());
}

#[test]
fn a_gate_for_which_nothing_looks_any_more_is_open() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let (_, _, gate) = runtime.block_on(shut());
    assert!(!gate.is_open());
    drop(runtime);
    assert!(gate.is_open());
}
