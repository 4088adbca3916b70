//! Operations of several requests of which a later one fails: what they say of their effect, and
//! what they leave behind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use conformance_tests::crash::proxy::Proxy;
use inbox_api::{
    Effect, ErrorKind, LeaseTerms, Operate as _, OrderingKey, Outcome, PurgeRequest, State,
    Store as _, StoreExt as _,
};
use inbox_mongo::{
    MongoStore,
    mongodb::{
        Client,
        bson::{Document, doc},
        event::{EventHandler, command::CommandEvent},
        options::ClientOptions,
    },
};

use crate::common::{self, TestInbox, handler, message, worker};

const LEASE: Duration = Duration::from_secs(60);

fn in_order(id: &str) -> inbox_api::Message {
    message(id).with_ordering_key(OrderingKey::new("customer-1").unwrap())
}

fn changes_messages(command: &Document) -> bool {
    let names = ["insert", "update", "findAndModify"].into_iter();
    let mut changed = names.filter_map(|name| command.get_str(name).ok());
    changed.any(|collection| collection == "inbox_message")
}

/// A store whose connections are cut, once told to, whenever it reads after it has written.
struct Faulty {
    store: MongoStore,
    failing: Arc<AtomicBool>,
    written: Arc<AtomicBool>,
    _proxy: Arc<Proxy>,
}

impl Faulty {
    async fn at(place: &TestInbox) -> Self {
        let (proxy, url) = common::proxied(&place.url).await.unwrap();
        let proxy = Arc::new(proxy);
        let failing = Arc::new(AtomicBool::new(false));
        let mut options = ClientOptions::parse(&url).await.unwrap();
        options.server_selection_timeout = Some(Duration::from_secs(20));
        let written = Arc::new(AtomicBool::new(false));
        let (told, cut) = (Arc::clone(&failing), Arc::clone(&proxy));
        let has_written = Arc::clone(&written);
        options.command_event_handler = Some(EventHandler::callback(move |event| {
            let CommandEvent::Started(started) = event else {
                return;
            };
            if !told.load(Ordering::Relaxed) {
                return;
            }
            if changes_messages(&started.command) {
                has_written.store(true, Ordering::Relaxed);
            } else if started.command_name == "aggregate" && has_written.load(Ordering::Relaxed) {
                // Held back first, or the answer might be there before the cut.
                cut.stall();
                cut.cut();
                let proxy = Arc::clone(&cut);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    proxy.forward();
                });
            }
        }));
        let client = Client::with_options(options).unwrap();
        let store = MongoStore::with_client(client, place.options.clone())
            .await
            .unwrap();
        Self {
            store,
            failing,
            written,
            _proxy: proxy,
        }
    }

    /// Does something of which each read after a write fails.
    async fn fails<T>(
        &self,
        doing: impl Future<Output = inbox_api::Result<T>>,
    ) -> inbox_api::Error {
        self.written.store(false, Ordering::Relaxed);
        self.failing.store(true, Ordering::Relaxed);
        let outcome = doing.await;
        self.failing.store(false, Ordering::Relaxed);
        let error = outcome.err().expect("a read failed");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error
    }
}

#[tokio::test]
async fn an_error_after_a_change_does_not_deny_it() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let faulty = Faulty::at(&place).await;

    let first = in_order("a");
    let error = faulty.fails(faulty.store.receive_one(&first)).await;
    assert_eq!(error.effect(), Effect::Unknown, "receive: {error}");

    let _ = store.receive_one(&message("b")).await.unwrap();
    let (handler, worker) = (handler(), worker());
    let claim = faulty.store.claim_for(&handler, 10, LEASE, &worker);
    let error = faulty.fails(claim).await;
    assert_eq!(error.effect(), Effect::Unknown, "claim: {error}");

    place.offset.advance(LEASE * 2);
    let claims = store.claim_for(&handler, 10, LEASE, &worker).await;
    let mut leased = claims.unwrap().leased;
    leased.retain(|leased| leased.message.ordering_key().is_some());
    let processed = Outcome::Processed { result: None };
    let settle = faulty.store.settle_one(&leased[0].lease, processed);
    let error = faulty.fails(settle).await;
    assert_eq!(error.effect(), Effect::Unknown, "settle: {error}");

    let terms = LeaseTerms::new(LEASE, worker).unwrap();
    let of_another = message("c").with_ordering_key(OrderingKey::new("customer-2").unwrap());
    let error = faulty.fails(faulty.store.begin(&of_another, &terms)).await;
    assert_eq!(error.effect(), Effect::Unknown, "begin: {error}");
}

/// Where writes are not confirmed, a claim has no answer, and its messages are handed to nobody. They
/// are handed back once the claim comes to its end, and no other is leased before.
#[tokio::test]
async fn claims_without_an_answer_cost_no_attempts() {
    let Some(mut place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    place.options = place.options.operation_timeout(Duration::from_secs(2));
    let (proxy, url) = common::proxied(&place.url).await.unwrap();
    let proxy = Arc::new(proxy);
    let mut options = ClientOptions::parse(&url).await.unwrap();
    let stalling = Arc::new(AtomicBool::new(false));
    let (told, stalled) = (Arc::clone(&stalling), Arc::clone(&proxy));
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event
            && changes_messages(&started.command)
            && told.load(Ordering::Relaxed)
        {
            stalled.stall();
        }
    }));
    let client = Client::with_options(options).unwrap();
    let slow = MongoStore::with_client(client, place.options.clone())
        .await
        .unwrap();
    let _ = store.receive(&["a", "b"].map(message)).await.unwrap();
    // The first claim of a process makes further requests. One that is late costs no attempt either.
    let started = Instant::now();
    while let Err(error) = slow.claim_for(&handler(), 1, LEASE, &worker()).await {
        assert!(error.is_retryable(), "{error}");
        assert!(started.elapsed() < Duration::from_secs(60), "{error}");
    }
    place.offset.advance(LEASE * 2);

    stalling.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let claim = slow.claim_for(&handler(), 1, LEASE, &worker()).await;
        assert_eq!(claim.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    stalling.store(false, Ordering::Relaxed);
    proxy.forward();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut leased = Vec::new();
    while leased.len() < 2 {
        assert!(Instant::now() < deadline, "{leased:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let claims = store.claim_for(&handler(), 2, LEASE, &worker()).await;
        leased.extend(claims.unwrap().leased);
    }
    // One of them was leased before, when nothing was wrong.
    let attempts: u32 = leased.iter().map(|leased| leased.attempts.started).sum();
    assert_eq!(attempts, 3);
}

/// The driver takes a silent server for gone before the store's own time limit, and gives up what was sent.
#[tokio::test]
async fn what_was_sent_to_a_server_that_went_silent_may_have_been_done() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let _ = place.store().await;
    let (proxy, url) = common::proxied(&place.url).await.unwrap();
    let mut options = ClientOptions::parse(&url).await.unwrap();
    options.heartbeat_freq = Some(Duration::from_millis(500));
    options.connect_timeout = Some(Duration::from_millis(500));
    let client = Client::with_options(options).unwrap();
    let store = MongoStore::with_client(client, place.options.clone())
        .await
        .unwrap();
    let _ = store.receive_one(&message("a")).await.unwrap();
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    let leased = claims.unwrap().leased;

    proxy.stall();
    let processed = Outcome::Processed { result: None };
    let error = store.settle_one(&leased[0].lease, processed).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
}

/// The time limit is that of a slice: all of a purge may take longer.
#[tokio::test]
async fn a_purge_may_take_longer_than_an_operation() {
    const MANY: usize = 3000;
    let Some(mut place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let limit = Duration::from_secs(10);
    place.options = place.options.operation_timeout(limit);
    let (proxy, url) = common::proxied(&place.url).await.unwrap();
    let options = ClientOptions::parse(&url).await.unwrap();
    let client = Client::with_options(options).unwrap();
    let slow = MongoStore::with_client(client, place.options.clone())
        .await
        .unwrap();
    // The first operation looks at the schema.
    assert_eq!(slow.get(message("none").key()).await.unwrap(), None);
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    let final_ones = doc! {
        "$set": { "state": 2, "finishedAt": 1_i64, "visibleAt": 1_i64, "emptied": false },
        "$unset": { "lane": "" },
    };
    let all: Vec<_> = (0..MANY).map(|n| message(&format!("old-{n}"))).collect();
    for some in all.chunks(1000) {
        let _ = store.receive(some).await.unwrap();
    }
    messages.update_many(doc! {}, final_ones).await.unwrap();
    // Each slice makes two requests at least, and rests for as long as they took.
    proxy.delay(limit / 25);
    let all = PurgeRequest::new(State::Processed, Duration::ZERO, 10_000).unwrap();
    let started = Instant::now();
    assert_eq!(slow.purge(&all).await.unwrap(), MANY as u64);
    assert!(started.elapsed() > limit, "{:?}", started.elapsed());
}

/// Which request of a claim is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    /// With which the lease begins.
    Renewal,
    /// After that.
    Look,
}

/// A short lease may be over, and another's, before the claim that gave it has its answer. It is handed
/// out all the same, as the attempt that it has counted as.
async fn a_lost_lease_is_handed_out(late: Late) {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let (proxy, url) = common::proxied(&place.url).await.unwrap();
    let proxy = Arc::new(proxy);
    let mut options = ClientOptions::parse(&url).await.unwrap();
    options.server_selection_timeout = Some(Duration::from_secs(20));
    let (writes, stalled) = (Arc::new(AtomicU32::new(0)), Arc::clone(&proxy));
    let written = Arc::clone(&writes);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        let CommandEvent::Started(started) = event else {
            return;
        };
        let writes = changes_messages(&started.command);
        let before = match writes {
            true => written.fetch_add(1, Ordering::Relaxed),
            false => written.load(Ordering::Relaxed),
        };
        let is_late = match late {
            Late::Renewal => before == 1 && writes,
            Late::Look => before == 2 && !writes,
        };
        if is_late {
            stalled.stall();
        }
    }));
    let client = Client::with_options(options).unwrap();
    // Longer than the other claim is waited for.
    let options = place
        .options
        .clone()
        .operation_timeout(Duration::from_secs(120));
    let slow = MongoStore::with_client(client, options).await.unwrap();
    let _ = store.receive_one(&message("a")).await.unwrap();
    let claiming = tokio::spawn(async move {
        let short = Duration::from_millis(200);
        slow.claim_for(&handler(), 1, short, &worker()).await
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while writes.load(Ordering::Relaxed) < 2 {
        assert!(Instant::now() < deadline, "it is not leased");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Until it begins, the lease is longer than it was asked to be.
    place.offset.advance(Duration::from_secs(20));
    let again = loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
        if let Some(leased) = claims.unwrap().leased.pop()
            && leased.attempts.started == 2
        {
            break leased;
        }
        assert!(Instant::now() < deadline, "it is leased for good");
    };
    proxy.forward();
    let claims = claiming.await.unwrap().unwrap();
    let first = claims.leased.first().expect("what was leased");
    assert_eq!(first.attempts.started, 1);
    assert!(first.lease.token < again.lease.token);
    assert!(
        first.lease.until + LEASE <= again.lease.until,
        "over, when it was leased again"
    );
}

#[tokio::test]
async fn a_lease_that_ran_out_before_it_began_is_handed_out() {
    a_lost_lease_is_handed_out(Late::Renewal).await;
}

#[tokio::test]
async fn a_lease_that_ran_out_on_its_way_is_handed_out() {
    a_lost_lease_is_handed_out(Late::Look).await;
}

/// As a worker leaves it that is killed after its settlement: the server deletes by its TTL index
/// what has an `expireAt`, and with the message the mark by which the next one is found.
#[tokio::test]
async fn a_mark_does_not_expire() {
    let Some(mut place) = TestInbox::shared() else {
        return;
    };
    place.options = place
        .options
        .expire_processed_after(Some(Duration::from_secs(1)));
    let store = place.store().await;
    let faulty = Faulty::at(&place).await;
    for id in ["a", "b"] {
        let _ = store.receive_one(&in_order(id)).await.unwrap();
    }
    let claims = store.claim_for(&handler(), 10, LEASE, &worker()).await;
    let lease = claims.unwrap().leased.remove(0).lease;
    let processed = Outcome::Processed { result: None };
    faulty
        .fails(faulty.store.settle_one(&lease, processed))
        .await;

    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    let first = || async {
        messages
            .find_one(doc! { "id": "a" })
            .await
            .unwrap()
            .unwrap()
    };
    let marked = first().await;
    assert!(marked.contains_key("mark"), "{marked}");
    assert!(!marked.contains_key("expireAt"), "{marked}");
    let claims = store.claim_for(&handler(), 10, LEASE, &worker()).await;
    assert_eq!(claims.unwrap().leased[0].message.id().as_str(), "b");
    let unmarked = first().await;
    assert!(!unmarked.contains_key("mark"), "{unmarked}");
    assert!(!unmarked.contains_key("expireUnmarked"), "{unmarked}");
    let at = unmarked
        .get_datetime("expireAt")
        .unwrap()
        .timestamp_millis();
    let finished = unmarked.get_i64("finishedAt").unwrap() / 1000;
    assert_eq!(at - finished, 1000);
}
