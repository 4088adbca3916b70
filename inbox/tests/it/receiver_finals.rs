//! What a receiver makes final at once: nothing is acknowledged before it is.

use std::{sync::Arc, time::Duration};

use inbox::{
    Begun, Clock, Due, ErrorKind, Extended, Filter, Fingerprint, Headers, Inbox, Key, LeaseTerms,
    Message, MessageId, OrderingKey, Outcome, Page, PurgeRequest, Receipt, Record, Schema as _,
    Settled, State, StoreExt as _, WorkerName,
    memory::{MemoryOptions, MemoryStore},
    receiver::{
        ChannelSource, Delivery, Raw, Receiver, Rejection, SourceError, StreamSource, Submission,
        Summary,
    },
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::faulty::{self, Fault, FaultyStore, handler, message};

const HOUR: Duration = Duration::from_secs(3600);

/// An inbox whose clock is ahead of this machine's.
async fn ahead(by: Duration) -> (Arc<dyn Inbox>, Clock) {
    let clock = Clock::system();
    clock.advance(by);
    let store = MemoryStore::with(MemoryOptions::new().clock(clock.clone()));
    store.create().await.unwrap();
    (Arc::new(store), clock)
}

fn recorder(inbox: &Arc<dyn Inbox>) -> Receiver {
    Receiver::builder(inbox.clone()).record_only().build()
}

async fn record(receiver: &Receiver, messages: Vec<Message>) -> Summary {
    let (sender, channel) = tokio::sync::mpsc::channel(messages.len());
    for message in messages {
        sender.send(message).await.unwrap();
    }
    drop(sender);
    let mut source = ChannelSource::new(channel);
    let running = receiver.run(&mut source, CancellationToken::new());
    running.await.unwrap()
}

/// What a receiver does that is killed right after.
async fn begin_and_die(inbox: &Arc<dyn Inbox>, message: &Message) {
    let terms = LeaseTerms::new(Duration::from_secs(5), WorkerName::new("dead").unwrap());
    let begun = inbox.begin(message, &terms.unwrap()).await.unwrap();
    assert!(matches!(begun, Begun::Run(_)));
}

async fn state(inbox: &Arc<dyn Inbox>, id: &str) -> State {
    let key = Key::new(handler("billing"), MessageId::new(id).unwrap());
    inbox.get(&key).await.unwrap().unwrap().state
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_receiver_began_is_waited_for_whatever_this_machine_s_clock_says() {
    for by in [Duration::ZERO, Duration::from_secs(6), HOUR] {
        let (inbox, clock) = ahead(by).await;
        begin_and_die(&inbox, &message("1")).await;
        let receiver = recorder(&inbox);
        let recording = tokio::spawn(async move { record(&receiver, vec![message("1")]).await });
        sleep(Duration::from_secs(4)).await;
        assert!(!recording.is_finished(), "acknowledged before it is final");
        clock.advance(Duration::from_secs(5));
        let summary = recording.await.unwrap();
        assert_eq!((summary.accepted, summary.duplicates), (1, 0));
        assert_eq!(state(&inbox, "1").await, State::Processed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_count_as_waiting() {
    let (inbox, clock) = ahead(Duration::ZERO).await;
    begin_and_die(&inbox, &message("1")).await;
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    store.plan("begin", vec![Fault::Before(ErrorKind::Unavailable); 20]);
    let receiver = Receiver::builder(store.clone()).record_only().build();
    let recording = tokio::spawn(async move { record(&receiver, vec![message("1")]).await });
    let began = Instant::now();
    while store.calls("begin") <= 20 {
        sleep(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() > Duration::from_secs(10));
    sleep(Duration::from_secs(4)).await;
    assert!(!recording.is_finished(), "acknowledged before it is final");
    clock.advance(Duration::from_secs(5));
    assert_eq!(recording.await.unwrap().accepted, 1);
    assert_eq!(state(&inbox, "1").await, State::Processed);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_time_is_not_waited_for_for_ever() {
    let (inbox, _) = ahead(HOUR).await;
    let later = message("1").with_due(Due::After(HOUR));
    assert_eq!(inbox.receive_one(&later).await.unwrap(), Receipt::Accepted);
    let summary = record(&recorder(&inbox), vec![message("1"), message("2")]).await;
    assert_eq!((summary.accepted, summary.duplicates), (1, 1));
    assert_eq!(summary.unfinished, 1);
    assert_eq!(state(&inbox, "1").await, State::Pending);
}

/// Messages of one ordering key, which wait to be worked on.
async fn waiting_in_order(ids: &[&str]) -> Arc<dyn Inbox> {
    let inbox = faulty::memory().await;
    for id in ids {
        let ordered = message(id).with_ordering_key(OrderingKey::new("account").unwrap());
        let receipt = inbox.receive_one(&ordered).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
    }
    inbox
}

/// Defect: all but the first were acknowledged, and ran afterwards.
#[tokio::test(start_paused = true)]
async fn messages_of_one_ordering_key_that_wait_are_recorded_in_whatever_order_they_come() {
    for ids in [
        ["1", "2", "3", "4"],
        ["4", "3", "2", "1"],
        ["3", "1", "4", "2"],
    ] {
        let inbox = waiting_in_order(&["1", "2", "3", "4"]).await;
        let summary = record(&recorder(&inbox), ids.map(message).to_vec()).await;
        assert_eq!((summary.accepted, summary.duplicates), (4, 0), "{ids:?}");
        assert_eq!(summary.unfinished, 0);
        for id in ids {
            assert_eq!(state(&inbox, id).await, State::Processed, "{id} of {ids:?}");
        }
    }
}

/// Defect: a thousand messages in the reverse order were asked for half a million times.
#[tokio::test(start_paused = true)]
async fn messages_of_one_ordering_key_are_not_asked_for_again_and_again() {
    let ids: Vec<String> = (0..100).map(|id| id.to_string()).collect();
    let waiting: Vec<&str> = ids.iter().map(String::as_str).collect();
    let reverse: Vec<&str> = waiting.iter().rev().copied().collect();
    for order in [&waiting, &reverse] {
        let store = Arc::new(FaultyStore::new(waiting_in_order(&waiting).await));
        let receiver = Receiver::builder(store.clone()).record_only().build();
        let messages = order.iter().copied().map(message).collect();
        let summary = record(&receiver, messages).await;
        assert_eq!((summary.accepted, summary.unfinished), (100, 0));
        let asked = store.calls("begin");
        assert!(asked <= 4 * 100, "asked {asked} times");
    }
}

/// Defect: a call that was not answered counted as a time in which the store had said that the others are behind
/// another, and they were acknowledged.
#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_does_not_count_as_waiting_behind_others() {
    let inbox = waiting_in_order(&["1", "2", "3", "4"]).await;
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    let [pass, never] = [Fault::Pass, Fault::Never];
    store.plan("begin", [pass.clone(), pass.clone(), pass, never]);
    let receiver = Receiver::builder(store).record_only().build();
    let reverse = ["4", "3", "2", "1"].map(message);
    let summary = record(&receiver, reverse.to_vec()).await;
    assert_eq!((summary.accepted, summary.duplicates), (4, 0));
    assert_eq!(summary.unfinished, 0);
    for id in ["1", "2", "3", "4"] {
        assert_eq!(state(&inbox, id).await, State::Processed, "{id}");
    }
}

/// Defect: it was left while the one before it was still waited for.
#[tokio::test(start_paused = true)]
async fn what_is_behind_one_that_is_waited_for_is_waited_for_too() {
    let (inbox, clock) = ahead(Duration::ZERO).await;
    for id in ["1", "2"] {
        let ordered = message(id).with_ordering_key(OrderingKey::new("account").unwrap());
        let receipt = inbox.receive_one(&ordered).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
    }
    let length = Duration::from_secs(9);
    let terms = LeaseTerms::new(length, WorkerName::new("worker").unwrap()).unwrap();
    let begun = inbox.begin(&message("1"), &terms).await.unwrap();
    let Begun::Run(leased) = begun else {
        panic!("{begun:?}");
    };
    let receiver = recorder(&inbox);
    let both = ["1", "2"].map(message).to_vec();
    let recording = tokio::spawn(async move { record(&receiver, both).await });
    for _ in 0..6 {
        sleep(length / 3).await;
        clock.advance(length / 3);
        let renewed = inbox.extend_one(&leased.lease, length).await.unwrap();
        assert!(matches!(renewed, Extended::Until(_)), "{renewed:?}");
    }
    let processed = Outcome::Processed { result: None };
    let settled = inbox.settle_one(&leased.lease, processed).await;
    assert_eq!(settled.unwrap(), Settled::Done);
    let summary = recording.await.unwrap();
    assert_eq!((summary.accepted, summary.duplicates), (1, 1));
    assert_eq!(summary.unfinished, 0);
    assert_eq!(state(&inbox, "2").await, State::Processed);
}

#[tokio::test(start_paused = true)]
async fn what_is_behind_another_that_does_not_come_is_left_and_counted() {
    let inbox = waiting_in_order(&["1", "2", "3"]).await;
    let summary = record(&recorder(&inbox), ["2", "3", "4"].map(message).to_vec()).await;
    assert_eq!((summary.accepted, summary.duplicates), (1, 2));
    assert_eq!(summary.unfinished, 2);
    for (id, expected) in [
        ("2", State::Pending),
        ("3", State::Pending),
        ("4", State::Processed),
    ] {
        assert_eq!(state(&inbox, id).await, expected, "{id}");
    }
}

/// Defect: each failing call began the wait again. In a large batch one fails in every few rounds, and the receiver
/// stood still.
#[tokio::test(start_paused = true)]
async fn what_is_behind_another_is_left_though_a_call_fails_now_and_then() {
    const PLANNED: usize = 2000;
    let store = Arc::new(FaultyStore::new(waiting_in_order(&["1", "2", "3"]).await));
    let faults = (1..=PLANNED).map(|call| match call % 10 {
        0 => Fault::Before(ErrorKind::Unavailable),
        _ => Fault::Pass,
    });
    store.plan("begin", faults);
    let receiver = Receiver::builder(store.clone()).record_only().build();
    let summary = record(&receiver, ["2", "3"].map(message).to_vec()).await;
    assert_eq!((summary.duplicates, summary.unfinished), (2, 2));
    let asked = store.calls("begin");
    assert!(asked < PLANNED, "left only when no call failed any more");
}

/// Defect: it was counted as left to others, who had finished it before it was compared.
#[tokio::test(start_paused = true)]
async fn what_others_finish_in_an_outage_is_not_counted_as_unfinished() {
    let inbox = faulty::memory().await;
    let terms = LeaseTerms::new(HOUR, WorkerName::new("worker").unwrap()).unwrap();
    let begun = inbox.begin(&message("1"), &terms).await.unwrap();
    let Begun::Run(leased) = begun else {
        panic!("{begun:?}");
    };
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    store.plan("receive", vec![Fault::Before(ErrorKind::Unavailable); 3]);
    let receiver = Receiver::builder(store.clone()).record_only().build();
    let recording = tokio::spawn(async move { record(&receiver, vec![message("1")]).await });
    while store.calls("receive") == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    let processed = Outcome::Processed { result: None };
    let settled = inbox.settle_one(&leased.lease, processed).await;
    assert_eq!(settled.unwrap(), Settled::Done);
    let summary = recording.await.unwrap();
    assert_eq!((summary.duplicates, summary.unfinished), (1, 0));
}

/// Defect: each renewal began the wait again, and the receiver stood still.
#[tokio::test(start_paused = true)]
async fn what_others_renew_is_not_waited_for_for_ever() {
    let (inbox, clock) = ahead(Duration::ZERO).await;
    let length = Duration::from_secs(30);
    let terms = LeaseTerms::new(length, WorkerName::new("worker").unwrap()).unwrap();
    let begun = inbox.begin(&message("1"), &terms).await.unwrap();
    let Begun::Run(leased) = begun else {
        panic!("{begun:?}");
    };
    let renewing = tokio::spawn({
        let inbox = inbox.clone();
        async move {
            loop {
                sleep(length / 3).await;
                clock.advance(length / 3);
                let renewed = inbox.extend_one(&leased.lease, length).await.unwrap();
                assert!(matches!(renewed, Extended::Until(_)), "{renewed:?}");
            }
        }
    });
    let receiver = recorder(&inbox);
    let recording = record(&receiver, vec![message("1"), message("2")]);
    let summary = tokio::time::timeout(HOUR, recording).await;
    renewing.abort();
    let summary = summary.expect("it waits as long as the lease is renewed");
    assert_eq!((summary.accepted, summary.duplicates), (1, 1));
    assert_eq!(state(&inbox, "1").await, State::Leased);
}

/// Defect: the one was recorded whose call came through first.
#[tokio::test(start_paused = true)]
async fn of_copies_in_one_batch_the_first_is_recorded() {
    for fault in [
        Fault::Before(ErrorKind::Unavailable),
        Fault::Later(Duration::from_secs(1)),
    ] {
        let inbox = faulty::memory().await;
        let store = Arc::new(FaultyStore::new(inbox.clone()));
        store.plan("begin", [fault]);
        let receiver = Receiver::builder(store).record_only().build();
        let first = message("1");
        let other = message("1").with_fingerprint(Fingerprint::new(7));
        let copies = vec![first.clone(), other.clone(), other];
        let summary = record(&receiver, copies).await;
        assert_eq!((summary.accepted, summary.duplicates), (1, 2));
        assert_eq!(summary.differing, 2);
        let recorded = inbox.get(first.key()).await.unwrap().unwrap();
        assert_eq!(recorded.fingerprint, first.fingerprint());
    }
}

#[tokio::test]
async fn a_recorded_message_keeps_its_fingerprint() {
    let inbox = faulty::memory().await;
    let given = message("1").with_fingerprint(Fingerprint::new(7));
    let _ = record(&recorder(&inbox), vec![given.clone(), message("2")]).await;
    let same = Receipt::Duplicate { differs: false };
    assert_eq!(inbox.receive_one(&given).await.unwrap(), same);
    assert_eq!(inbox.receive_one(&message("2")).await.unwrap(), same);
    let other = Receipt::Duplicate { differs: true };
    assert_eq!(inbox.receive_one(&message("1")).await.unwrap(), other);
}

/// A delivery without a message, such as a topic's tombstone.
#[derive(Clone)]
struct Tombstone(Raw);

impl Tombstone {
    fn at(offset: &str) -> Self {
        let mut headers = Headers::new();
        headers.insert("topic", "orders").unwrap();
        headers.insert("offset", offset).unwrap();
        Self(Raw::new("").with_headers(headers))
    }
}

impl Delivery for Tombstone {
    fn message(&self) -> Result<Message, Rejection> {
        Err(Rejection::new("there is no id"))
    }

    fn raw(&self) -> Option<Raw> {
        Some(self.0.clone())
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        Ok(())
    }

    async fn reject(self, _: Rejection) -> Result<(), SourceError> {
        Ok(())
    }
}

/// The dead letters after these deliveries, and how many of those were kept.
async fn keep(inbox: &Arc<dyn Inbox>, deliveries: Vec<Tombstone>) -> (Vec<Record>, u64) {
    let receiver = Receiver::builder(inbox.clone()).keep_rejected(handler("rejected"));
    let deliveries = deliveries.into_iter().map(Ok);
    let mut source = StreamSource::new(futures_util::stream::iter(deliveries));
    let running = receiver.build();
    let running = running.run(&mut source, CancellationToken::new());
    let summary = running.await.unwrap();
    let filter = Filter {
        handler: Some(handler("rejected")),
        ..Filter::default()
    };
    let listing = inbox.list(&filter, &Page::first(100)).await.unwrap();
    (listing.records, summary.kept)
}

#[tokio::test]
async fn deliveries_that_differ_in_their_headers_are_as_many_dead_letters() {
    let inbox = faulty::memory().await;
    let both = vec![Tombstone::at("1"), Tombstone::at("2")];
    let (letters, kept) = keep(&inbox, both.clone()).await;
    assert_eq!((letters.len(), kept), (2, 2));
    assert!(letters.iter().all(|letter| letter.state == State::Dead));
    let (letters, kept) = keep(&inbox, both).await;
    assert_eq!((letters.len(), kept), (2, 2), "redeliveries are duplicates");
}

#[tokio::test]
async fn recording_tells_of_other_content() {
    let inbox = faulty::memory().await;
    let recorder = recorder(&inbox);
    let send = async |message: Message| {
        let (submission, answered) = Submission::new(message);
        let mut source = StreamSource::new(futures_util::stream::iter([Ok(submission)]));
        let running = recorder.run(&mut source, CancellationToken::new());
        running.await.unwrap();
        answered.await.unwrap().unwrap()
    };
    let other = message("1").with_fingerprint(Fingerprint::new(7));
    assert_eq!(send(message("1")).await, Receipt::Accepted);
    for (message, differs) in [(message("1"), false), (other, true), (message("1"), false)] {
        assert_eq!(send(message).await, Receipt::Duplicate { differs });
    }
}

/// Records a message that is purged while its second delivery is compared, which meets these faults.
async fn purged_while_it_is_compared(faults: impl IntoIterator<Item = Fault>) {
    let inbox = faulty::memory().await;
    let gate = Arc::new(Semaphore::new(0));
    let mut store = FaultyStore::new(inbox.clone());
    store.gate = Some(gate.clone());
    let store = Arc::new(store);
    store.plan("receive", faults);
    let receiver = Receiver::builder(store.clone()).record_only().build();
    let _ = record(&receiver, vec![message("1")]).await;
    let again = tokio::spawn(async move { record(&receiver, vec![message("1")]).await });
    while store.calls("begin") < 2 {
        tokio::task::yield_now().await;
    }
    let all = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
    assert_eq!(inbox.purge(&all).await.unwrap(), 1);
    gate.add_permits(2);
    let summary = again.await.unwrap();
    assert_eq!((summary.accepted, summary.duplicates), (1, 0));
    assert_eq!(state(&inbox, "1").await, State::Processed);
}

/// Defect: what has to be stored again is acknowledged while it is pending.
#[tokio::test]
async fn what_is_purged_while_it_is_compared_is_recorded_again() {
    purged_while_it_is_compared([]).await;
}

/// Defect: the second comparison takes for a duplicate what the first has stored.
#[tokio::test(start_paused = true)]
async fn what_is_purged_while_it_is_compared_is_recorded_again_also_without_an_answer() {
    purged_while_it_is_compared([Fault::After(ErrorKind::Unavailable)]).await;
}
