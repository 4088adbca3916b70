//! What the receiver stores and acknowledges behind what, with a batch or two under way.

use std::{pin::pin, sync::Arc, time::Duration};

use inbox::{
    ErrorKind, Filter, Kind, Message, MessageId, OrderingKey,
    receiver::{Delivery, Receiver, ReceiverError, Rejection, SourceError, StreamSource},
};
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    broker::{Broker, Step},
    faulty::{Fault, FaultyStore, handler, message},
    receiver::{faulty, never},
};

/// A message whose acknowledgement takes a second.
struct Slow(Message);

impl Delivery for Slow {
    fn message(&self) -> Result<Message, Rejection> {
        Ok(self.0.clone())
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    async fn reject(self, _: Rejection) -> Result<(), SourceError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_stored_behind_a_batch_that_fails_for_good_while_another_is_acknowledged() {
    let (inbox, store) = faulty().await;
    let deliveries = (0..20).map(|n| Ok(Slow(ordered(n))));
    let mut source = StreamSource::new(futures_util::stream::iter(deliveries));
    store.plan("receive", [Fault::Pass, Fault::Before(ErrorKind::Denied)]);
    let receiver = Receiver::builder(store.clone()).batch_size(1).build();
    let error = receiver.run(&mut source, never()).await.unwrap_err();
    assert!(matches!(&error, ReceiverError::Store(e) if e.kind() == ErrorKind::Denied));
    assert_eq!(store.calls("receive"), 2);
    assert_eq!(inbox.count(&Filter::default()).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_stored_behind_a_batch_at_which_the_receiver_stops() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox.clone());
    for n in 0..100 {
        match n {
            15 => broker.queue_invalid("no id"),
            _ => broker.queue(message(n)),
        }
    }
    let receiver = Receiver::builder(store.clone())
        .batch_size(10)
        .stop_at_rejected()
        .build();
    let error = receiver
        .run(&mut broker.source(), never())
        .await
        .unwrap_err();
    assert!(matches!(error, ReceiverError::Rejected(_)));
    assert_eq!(store.calls("receive"), 2);
    assert_eq!(broker.acknowledged_in_order(), 15);
}

/// Defect: it was not acknowledged, but stored, and so before the other when that is a message after all.
#[tokio::test]
async fn nothing_is_stored_behind_a_delivery_at_which_the_receiver_stops() {
    for is_too_large in [false, true] {
        let (inbox, store) = faulty().await;
        let broker = Broker::new(inbox.clone());
        broker.queue(ordered(1));
        if is_too_large {
            let large = vec![0; inbox.capabilities().payload_limit + 1];
            let (handler, kind) = (handler("billing"), Kind::new("order.placed").unwrap());
            let id = MessageId::new("2").unwrap();
            broker.queue(Message::new(handler, id, kind, large));
        } else {
            broker.queue_invalid("no id");
        }
        broker.queue(ordered(3));
        let receiver = Receiver::builder(store.clone()).stop_at_rejected().build();
        let ended = receiver.run(&mut broker.source(), never()).await;
        assert!(matches!(ended.unwrap_err(), ReceiverError::Rejected(_)));
        assert_eq!(inbox.count(&Filter::default()).await.unwrap(), 1);
        assert_eq!(broker.acknowledged_in_order(), 1);
    }
}

fn ordered(id: impl std::fmt::Display) -> Message {
    message(id).with_ordering_key(OrderingKey::new("customer-7").unwrap())
}

/// With batches of ten, each of which waits for a permit in the store.
async fn gated() -> (Broker, Arc<FaultyStore>, Arc<Semaphore>, Receiver) {
    let (inbox, mut store) = faulty().await;
    let gate = Arc::new(Semaphore::new(0));
    Arc::get_mut(&mut store).unwrap().gate = Some(gate.clone());
    let receiver = Receiver::builder(store.clone()).batch_size(10).build();
    (Broker::new(inbox), store, gate, receiver)
}

#[tokio::test(start_paused = true)]
async fn two_full_batches_are_stored_at_once_and_one_that_is_not_full_waits() {
    for (deliveries, at_once) in [(100, 2), (20, 2), (19, 1), (10, 1)] {
        let (broker, store, gate, receiver) = gated().await;
        for n in 0..deliveries {
            broker.queue(message(n));
        }
        broker.step(Step::Wait(Duration::from_secs(60)));
        let mut source = broker.source();
        let mut running = pin!(receiver.run(&mut source, never()));
        let held = timeout(Duration::from_secs(5), &mut running).await;
        assert!(held.is_err());
        assert_eq!(store.batches().len(), at_once, "of {deliveries}");
        assert_eq!(broker.outstanding(), deliveries.min(30));
        gate.add_permits(1000);
        assert_eq!(running.await.unwrap().accepted, deliveries as u64);
        assert_eq!(broker.acknowledged_in_order(), deliveries);
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_stored_first_is_acknowledged_in_its_turn() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox.clone());
    for n in 0..20 {
        broker.queue(message(n));
    }
    // The first call is answered long after the second, or fails first.
    store.plan("receive", [Fault::Before(ErrorKind::Unavailable)]);
    store.plan(
        "receive",
        [Fault::Pass, Fault::Slow(Duration::from_secs(10))],
    );
    let receiver = Receiver::builder(store).batch_size(10).build();
    let mut source = broker.source();
    let mut running = pin!(receiver.run(&mut source, never()));
    let held = timeout(Duration::from_secs(5), &mut running).await;
    assert!(held.is_err());
    assert_eq!(inbox.count(&Filter::default()).await.unwrap(), 20);
    assert_eq!(broker.acknowledged_in_order(), 0);
    let summary = running.await.unwrap();
    assert_eq!((summary.accepted, summary.batches), (20, 2));
    assert_eq!(broker.acknowledged_in_order(), 20);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_behind_a_batch_that_fails_for_good() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox.clone());
    for n in 0..30 {
        broker.queue(message(n));
    }
    let denied = Fault::Before(ErrorKind::Denied);
    store.plan("receive", [Fault::Before(ErrorKind::Unavailable)]);
    store.plan("receive", [Fault::Pass, denied]);
    let receiver = Receiver::builder(store).batch_size(10).build();
    let mut source = broker.source();
    let error = receiver.run(&mut source, never()).await.unwrap_err();
    assert!(matches!(&error, ReceiverError::Store(e) if e.kind() == ErrorKind::Denied));
    assert!(inbox.count(&Filter::default()).await.unwrap() >= 10);
    assert_eq!(broker.fates(), []);
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_ordering_keys_waits_for_another_one_with_them() {
    // In each batch of ten, the last message has a key or not.
    for (batches, at_once) in [
        ([true, true], 1),
        ([true, false], 2),
        ([false, true], 2),
        ([false, false], 2),
    ] {
        let (broker, store, gate, receiver) = gated().await;
        for (batch, is_ordered) in batches.into_iter().enumerate() {
            for n in 0..10 {
                let n = 10 * batch + n;
                let is_last = n % 10 == 9;
                broker.queue(if is_ordered && is_last {
                    ordered(n)
                } else {
                    message(n)
                });
            }
        }
        let mut source = broker.source();
        let mut running = pin!(receiver.run(&mut source, never()));
        let held = timeout(Duration::from_secs(5), &mut running).await;
        assert!(held.is_err());
        assert_eq!(store.batches().len(), at_once, "{batches:?}");
        gate.add_permits(1000);
        assert_eq!(running.await.unwrap().accepted, 20);
        assert_eq!(broker.acknowledged_in_order(), 20);
    }
}
