//! The receiver on a real store: what is acknowledged is stored, in order, through outages.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox::{
    ErrorKind, Filter, Inbox, Key, Message, MessageId, Receipt,
    receiver::{
        ChannelSource, Receiver, ReceiverError, Rejection, SourceError, StreamSource, Submission,
    },
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{Broker, Fate, Step},
    faulty::{Fault, FaultyStore, handler, memory, message},
};

pub async fn faulty() -> (Arc<dyn Inbox>, Arc<FaultyStore>) {
    let inbox = memory().await;
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    (inbox, store)
}

pub fn never() -> CancellationToken {
    CancellationToken::new()
}

#[tokio::test(start_paused = true)]
async fn deliveries_are_stored_in_batches_and_acknowledged_in_order() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox.clone());
    for n in 0..1203 {
        broker.queue(message(n));
    }
    let receiver = Receiver::builder(store.clone()).build();
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!(
        (summary.received, summary.accepted, summary.batches),
        (1203, 1203, 3)
    );
    assert_eq!(summary.abandoned(), 0);
    let sizes: Vec<usize> = store.batches().iter().map(Vec::len).collect();
    assert_eq!(sizes, [500, 500, 203]);
    assert_eq!(broker.acknowledged_in_order(), 1203);
    assert_eq!(inbox.count(&Filter::default()).await.unwrap(), 1203);
}

/// Of what is lost to a producer that uses ids twice, reports and the log tell; the log not each time.
#[tokio::test(start_paused = true)]
async fn duplicates_with_other_content_are_counted_and_told() {
    let (log, _guard) = crate::logged::Log::of(tracing::Level::WARN);
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    broker.queue(message("a"));
    for n in 0..5 {
        let first = message("a");
        let (handler, id) = (first.handler().clone(), first.id().clone());
        broker.queue(Message::new(
            handler,
            id,
            first.kind().clone(),
            n.to_string(),
        ));
        broker.queue(first);
    }
    let receiver = Receiver::builder(store).batch_size(2).build();
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!((summary.accepted, summary.duplicates), (1, 10));
    assert_eq!(summary.differing, 5);
    let told = log.lines(&["came again with other content", "key=billing/a", "count=1"]);
    assert_eq!(told.len(), 1, "{}", log.text());
}

/// What the broker will deliver again is trouble for as long as it lasts, and told once.
#[tokio::test(start_paused = true)]
async fn acknowledgements_that_fail_are_told_once() {
    let (log, _guard) = crate::logged::Log::of(tracing::Level::INFO);
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    for n in 0..6 {
        broker.queue(message(n));
    }
    for n in 1..4 {
        broker.fail_acknowledgement_of(n);
    }
    let receiver = Receiver::builder(store).batch_size(1).build();
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!(summary.failed_acknowledgements, 3);
    let told = log.lines(&["WARN", "inbox::outage", "acknowledg", "channel closed"]);
    assert_eq!(told.len(), 1, "{}", log.text());
    let over = log.lines(&["INFO", "inbox::outage", "acknowledg"]);
    assert_eq!(over.len(), 1, "{}", log.text());
}

/// Defect: the only line about what is lost was about each delivery, and so hidden by the command.
#[tokio::test(start_paused = true)]
async fn rejected_deliveries_are_told_with_what_becomes_of_them() {
    let (log, _guard) = crate::logged::Log::of(tracing::Level::INFO);
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    for _ in 0..5 {
        broker.queue_invalid("has no id");
    }
    let receiver = Receiver::builder(store).batch_size(2).build();
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!(summary.rejected, 5);
    let told = log.lines(&[
        "WARN",
        "inbox::rejected",
        "has no id",
        "count=2",
        "lost unless",
    ]);
    assert_eq!(told.len(), 1, "{}", log.text());
    assert_eq!(log.lines(&["inbox::rejected"]).len(), 1, "{}", log.text());
}

/// Defect: of a rejection that failed, the log said that an acknowledgement did, and that copies would be refused.
#[tokio::test(start_paused = true)]
async fn a_rejection_that_fails_is_not_told_as_an_acknowledgement() {
    let (log, _guard) = crate::logged::Log::of(tracing::Level::INFO);
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    broker.queue(message("a"));
    broker.queue_invalid("has no id");
    broker.queue_invalid("has no id either");
    broker.fail_acknowledgement_of(1);
    let receiver = Receiver::builder(store).batch_size(2).build();
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!((summary.accepted, summary.failed_acknowledgements), (1, 1));
    let failed = log.lines(&[
        "WARN",
        "inbox::outage",
        "could not be rejected",
        "channel closed",
    ]);
    assert_eq!(failed.len(), 1, "{}", log.text());
    let over = log.lines(&["INFO", "inbox::outage", "rejections are taken again"]);
    assert_eq!(over.len(), 1, "{}", log.text());
    assert!(log.lines(&["acknowledgement"]).is_empty(), "{}", log.text());
    // Only of the one that the broker has taken.
    let told = log.lines(&["inbox::rejected", "has no id either", "count=1"]);
    assert_eq!(told.len(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_not_full_is_stored_after_the_linger() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    broker.queue(message("a"));
    broker.step(Step::Wait(Duration::from_millis(20)));
    broker.queue(message("b"));
    broker.step(Step::Wait(Duration::from_millis(60)));
    broker.queue(message("c"));
    let receiver = Receiver::builder(store.clone())
        .linger(Duration::from_millis(50))
        .build();
    receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!(
        store.batches(),
        [vec!["billing/a", "billing/b"], vec!["billing/c"]]
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_linger_what_is_there_is_stored_at_once() {
    let (_, store) = faulty().await;
    let (sender, channel) = tokio::sync::mpsc::channel(2);
    let (first, answer) = Submission::new(message("a"));
    let (second, _) = Submission::new(message("b"));
    for submission in [first, second] {
        sender.send(submission).await.unwrap();
    }
    let receiver = Receiver::builder(store.clone())
        .linger(Duration::ZERO)
        .build();
    let mut source = ChannelSource::new(channel);
    let start = tokio::time::Instant::now();
    tokio::select! {
        ended = receiver.run(&mut source, never()) => panic!("{ended:?}"),
        answer = answer => assert_eq!(answer.unwrap().unwrap(), Receipt::Accepted),
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(store.batches(), [["billing/a", "billing/b"]]);
}

#[tokio::test(start_paused = true)]
async fn duplicates_and_rejections_are_told_apart_and_finished_in_order() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox.clone());
    let limit = inbox.capabilities().payload_limit;
    broker.queue(message("a"));
    broker.queue(message("a"));
    broker.queue_invalid("no id");
    let mut large = message("large");
    large = inbox::Message::new(
        large.handler().clone(),
        large.id().clone(),
        large.kind().clone(),
        vec![0; limit + 1],
    );
    broker.queue(large);
    broker.queue(message("b"));
    let receiver = Receiver::builder(store).build();
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!(summary.received, 5);
    assert_eq!(
        (summary.accepted, summary.duplicates, summary.rejected),
        (2, 1, 2)
    );
    let fates = broker.fates();
    assert_eq!(fates[0], (0, Fate::Acknowledged));
    assert_eq!(fates[1], (1, Fate::Acknowledged));
    assert_eq!(fates[2], (2, Fate::Rejected("no id".into())));
    assert_eq!(fates[3].0, 3);
    assert!(
        matches!(&fates[3].1, Fate::Rejected(reason) if reason.contains("limit")),
        "{fates:?}"
    );
    assert_eq!(fates[4], (4, Fate::Acknowledged));
    let key = Key::new(handler("billing"), MessageId::new("large").unwrap());
    assert!(inbox.get(&key).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_out_and_nothing_is_acknowledged_or_lost_meanwhile() {
    for fault in [
        Fault::Before(ErrorKind::Unavailable),
        Fault::Before(ErrorKind::Conflict),
        Fault::After(ErrorKind::Unavailable),
    ] {
        let (inbox, store) = faulty().await;
        let broker = Broker::new(inbox.clone());
        for n in 0..25 {
            broker.queue(message(n));
        }
        // The second batch of ten meets an outage of thirty attempts.
        store.plan("receive", [Fault::Pass]);
        store.plan("receive", vec![fault.clone(); 30]);
        let receiver = Receiver::builder(store.clone()).batch_size(10).build();
        let began = tokio::time::Instant::now();
        let mut source = broker.source();
        let running = receiver.run(&mut source, never());
        tokio::pin!(running);
        // Back-off grows: thirty attempts take minutes, not milliseconds.
        let early = tokio::time::timeout(Duration::from_secs(60), &mut running).await;
        assert!(early.is_err());
        assert_eq!(broker.acknowledged_in_order(), 10);
        let summary = running.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(30 * 25));
        assert_eq!(summary.received, 25);
        assert_eq!(summary.accepted + summary.duplicates, 25);
        assert_eq!(summary.batches, 3);
        assert_eq!(broker.acknowledged_in_order(), 25);
        assert_eq!(store.calls("receive"), 33);
        assert_eq!(inbox.count(&Filter::default()).await.unwrap(), 25);
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_store_error_ends_the_run_with_nothing_of_the_batch_acknowledged() {
    for kind in [
        ErrorKind::SchemaMissing,
        ErrorKind::SchemaVersion,
        ErrorKind::Denied,
        ErrorKind::Other,
    ] {
        let (inbox, store) = faulty().await;
        let broker = Broker::new(inbox);
        for n in 0..30 {
            broker.queue(message(n));
        }
        store.plan("receive", [Fault::Pass, Fault::Before(kind)]);
        let receiver = Receiver::builder(store.clone()).batch_size(10).build();
        let error = receiver
            .run(&mut broker.source(), never())
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ReceiverError::Store(e) if e.kind() == kind),
            "{error:?}"
        );
        assert_eq!(broker.acknowledged_in_order(), 10);
        // The broker delivers the rest again to the next receiver.
        let receiver = Receiver::builder(store).build();
        let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
        assert_eq!(summary.accepted, 20);
        assert_eq!(broker.acknowledged_in_order(), 30);
    }
}

#[tokio::test(start_paused = true)]
async fn transient_source_errors_are_retried_and_permanent_ones_end_after_the_rest_is_stored() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    broker.queue(message("a"));
    for _ in 0..5 {
        broker.step(Step::Fail(SourceError::transient("connection reset")));
    }
    broker.queue(message("b"));
    broker.step(Step::Fail(SourceError::permanent("queue deleted")));
    broker.queue(message("never pulled"));
    let began = tokio::time::Instant::now();
    let error = Receiver::builder(store)
        .build()
        .run(&mut broker.source(), never())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ReceiverError::Source(e) if e.to_string() == "queue deleted"),
        "{error:?}"
    );
    assert!(began.elapsed() >= Duration::from_millis(50 + 100 + 200 + 400 + 800));
    assert_eq!(broker.acknowledged_in_order(), 2);
}

#[tokio::test(start_paused = true)]
async fn no_more_is_pulled_than_may_be_unacknowledged() {
    let (inbox, mut store) = faulty().await;
    let gate = Arc::new(Semaphore::new(0));
    Arc::get_mut(&mut store).unwrap().gate = Some(gate.clone());
    let broker = Broker::new(inbox);
    for n in 0..100 {
        broker.queue(message(n));
    }
    let receiver = Receiver::builder(store.clone())
        .batch_size(10)
        .max_unacknowledged(15)
        .build();
    let mut source = broker.source();
    let running = receiver.run(&mut source, never());
    tokio::pin!(running);
    // One batch is held up in the store: the next is gathered meanwhile, up to the bound.
    let held = tokio::time::timeout(Duration::from_secs(5), &mut running).await;
    assert!(held.is_err());
    assert_eq!(broker.outstanding(), 15);
    assert_eq!(store.batches().len(), 1);
    gate.add_permits(1000);
    let summary = running.await.unwrap();
    assert_eq!(summary.accepted, 100);
    assert_eq!(broker.most_outstanding(), 15);
    assert!(store.batches().iter().all(|batch| batch.len() <= 10));
}

#[tokio::test(start_paused = true)]
async fn fan_out_stores_every_copy_in_one_call_and_acknowledges_once() {
    let (inbox, store) = faulty().await;
    let handlers = ["billing", "mail", "search"].map(handler);
    // One copy of delivery 1 is known already.
    inbox
        .receive(&[message(1).for_handler(handler("mail"))])
        .await
        .unwrap();
    let broker = Broker::for_handlers(inbox.clone(), &handlers);
    for n in 0..7 {
        broker.queue(message(n));
    }
    broker.queue(message(0));
    store.plan("receive", [Fault::After(ErrorKind::Unavailable)]);
    let receiver = Receiver::builder(store.clone())
        .batch_size(3)
        .fan_out(handlers.iter().chain(&handlers).cloned())
        .build();
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!(summary.received, 8);
    assert_eq!(summary.accepted + summary.duplicates, 8);
    assert_eq!(broker.acknowledged_in_order(), 8);
    for batch in store.batches() {
        assert_eq!(batch.len() % 3, 0);
        for copies in batch.chunks(3) {
            let id = copies[0].split('/').nth(1).unwrap();
            let expected = handlers.clone().map(|h| format!("{h}/{id}"));
            assert_eq!(copies, expected);
        }
    }
    assert_eq!(inbox.count(&Filter::default()).await.unwrap(), 21);
}

#[tokio::test(start_paused = true)]
async fn fan_out_does_not_acknowledge_a_delivery_when_storing_its_copies_fails_for_good() {
    let (inbox, store) = faulty().await;
    let handlers = ["billing", "mail"].map(handler);
    let broker = Broker::for_handlers(inbox.clone(), &handlers);
    broker.queue(message(0));
    store.plan("receive", [Fault::Before(ErrorKind::Denied)]);
    let receiver = Receiver::builder(store).fan_out(handlers).build();
    receiver
        .run(&mut broker.source(), never())
        .await
        .unwrap_err();
    assert_eq!(broker.fates(), []);
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!((summary.accepted, summary.batches), (1, 1));
    assert_eq!(inbox.count(&Filter::default()).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn fan_out_rejects_a_delivery_of_which_any_copy_is_refused() {
    let (inbox, mut store) = faulty().await;
    let limit = inbox.capabilities().payload_limit;
    let handlers = ["billing", "mail"].map(handler);
    let half = message("half").for_handler(handler("mail"));
    Arc::get_mut(&mut store).unwrap().refused = Some(half.key().clone());
    let broker = Broker::for_handlers(inbox.clone(), &handlers);
    let small = message("small");
    broker.queue(inbox::Message::new(
        small.handler().clone(),
        MessageId::new("large").unwrap(),
        small.kind().clone(),
        vec![0; limit + 1],
    ));
    broker.queue(small);
    broker.queue(message("half"));
    let receiver = Receiver::builder(store).fan_out(handlers).build();
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!((summary.accepted, summary.rejected), (1, 2));
    let fates = broker.fates();
    assert!(matches!(fates[0], (0, Fate::Rejected(_))));
    assert_eq!(fates[1], (1, Fate::Acknowledged));
    assert!(matches!(fates[2], (2, Fate::Rejected(_))));
}

#[tokio::test(start_paused = true)]
async fn shutdown_stops_pulling_and_finishes_what_was_gathered() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    for n in 0..3 {
        broker.queue(message(n));
    }
    broker.step(Step::Wait(Duration::from_secs(3600)));
    broker.queue(message("late"));
    let receiver = Receiver::builder(store.clone())
        .linger(Duration::from_secs(600))
        .build();
    let shutdown = never();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
    });
    // The store is away for the first attempts after the shutdown, and comes back in time.
    store.plan("receive", vec![Fault::Before(ErrorKind::Unavailable); 3]);
    let began = tokio::time::Instant::now();
    let summary = receiver.run(&mut broker.source(), shutdown).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!((summary.received, summary.accepted), (3, 3));
    assert_eq!(broker.acknowledged_in_order(), 3);
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_up_at_the_drain_limit() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    for n in 0..25 {
        broker.queue(message(n));
    }
    broker.step(Step::Wait(Duration::from_secs(3600)));
    store.plan("receive", [Fault::Pass, Fault::Hang]);
    let receiver = Receiver::builder(store)
        .batch_size(10)
        .drain_limit(Duration::from_secs(2))
        .build();
    let shutdown = never();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
    });
    let began = tokio::time::Instant::now();
    let summary = receiver.run(&mut broker.source(), shutdown).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 3);
    assert_eq!((summary.received, summary.accepted), (25, 10));
    assert_eq!(summary.abandoned(), 15);
    assert_eq!(broker.acknowledged_in_order(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_failing_acknowledgement_is_counted_and_its_redelivery_is_a_duplicate() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    for n in 0..4 {
        broker.queue(message(n));
    }
    broker.fail_acknowledgement_of(2);
    let receiver = Receiver::builder(store).build();
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!((summary.accepted, summary.failed_acknowledgements), (4, 1));
    assert_eq!(broker.fates().len(), 3);
    broker.queue(message(2));
    let summary = receiver.run(&mut broker.source(), never()).await.unwrap();
    assert_eq!((summary.accepted, summary.duplicates), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn observers_hear_of_every_batch() {
    let (inbox, store) = faulty().await;
    let broker = Broker::new(inbox);
    for n in 0..12 {
        broker.queue(message(n % 8));
    }
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = reports.clone();
    let receiver = Receiver::builder(store)
        .batch_size(5)
        .on_batch(move |report| seen.lock().unwrap().push(report.clone()))
        .build();
    receiver.run(&mut broker.source(), never()).await.unwrap();
    let reports = reports.lock().unwrap();
    let counts: Vec<_> = reports
        .iter()
        .map(|r| (r.deliveries, r.accepted, r.duplicates))
        .collect();
    assert_eq!(counts, [(5, 5, 0), (5, 3, 2), (2, 0, 2)]);
}

#[tokio::test]
async fn submissions_hear_when_they_are_stored() {
    let inbox = memory().await;
    let (sender, channel) = tokio::sync::mpsc::channel(10);
    let receiver = Receiver::builder(inbox.clone()).build();
    let running = tokio::spawn(async move {
        let mut source = ChannelSource::new(channel);
        receiver.run(&mut source, never()).await
    });
    for receipt in [Receipt::Accepted, Receipt::Duplicate { differs: false }] {
        let (submission, answer) = Submission::new(message("a"));
        sender.send(submission).await.unwrap();
        assert_eq!(answer.await.unwrap(), Ok(receipt));
        assert!(inbox.get(message("a").key()).await.unwrap().is_some());
    }
    let small = message("large");
    let large = inbox::Message::new(
        small.handler().clone(),
        small.id().clone(),
        small.kind().clone(),
        vec![0; inbox.capabilities().payload_limit + 1],
    );
    let (submission, answer) = Submission::new(large);
    sender.send(submission).await.unwrap();
    assert!(answer.await.unwrap().is_err());
    drop(sender);
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.accepted, summary.duplicates), (1, 1));
}

#[tokio::test]
async fn streams_of_plain_messages_are_a_source() {
    let inbox = memory().await;
    let deliveries = (0..10).map(|n| Ok(message(n)));
    let mut source = StreamSource::new(futures_util::stream::iter(deliveries));
    let receiver = Receiver::builder(inbox.clone()).build();
    let summary = receiver.run(&mut source, never()).await.unwrap();
    assert_eq!(summary.accepted, 10);
    assert_eq!(inbox.count(&Filter::default()).await.unwrap(), 10);
}

#[test]
fn rejections_and_source_errors_show_their_text() {
    assert_eq!(Rejection::new("no id").to_string(), "no id");
    let error = SourceError::permanent(std::io::Error::other("gone"));
    assert_eq!(error.to_string(), "gone");
    assert!(!error.is_transient());
}
