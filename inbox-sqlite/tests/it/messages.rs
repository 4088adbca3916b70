//! What is about statements: none for nothing, and several for what one does not take.

use std::time::Duration;

use inbox_api::{
    AfterDead, Bytes, Due, Filter, Headers, Intervention, Kind, Message, MessageId, Operate,
    Outcome, Page, Receipt, Record, Settled, State, Store,
};
use inbox_sqlite::SqliteStore;

use crate::common::*;

#[tokio::test]
async fn nothing_in_gives_nothing_out() {
    let inbox = empty_test_inbox().await;
    let store = &inbox.store;
    // Without I/O: there is no inbox yet, and nobody notices.
    assert_eq!(store.receive(&[]).await.unwrap(), []);
    assert_eq!(store.settle(&[]).await.unwrap(), []);
    assert_eq!(store.extend(&[], LEASE).await.unwrap(), []);
    assert_eq!(claim(store, 0).await, []);
    let mut nobody = request(5);
    nobody.handlers.clear();
    assert_eq!(store.claim(&nobody).await.unwrap().leased, []);
}

#[tokio::test]
async fn many_large_results_and_headers_fit() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    // Headers are JSON, with twice their length here.
    let mut headers = Headers::new();
    headers.insert("large", "\"".repeat(60 * 1024)).unwrap();
    let batch: Vec<_> = (0..20)
        .map(|n| message(&n.to_string()).with_headers(headers.clone()))
        .collect();
    let receipts = store.receive(&batch).await.unwrap();
    assert_eq!(receipts, vec![Receipt::Accepted; 20]);
    let leased = claim(store, 20).await;
    assert_eq!(leased.len(), 20);
    assert!(leased.iter().all(|l| *l.message.headers() == headers));
    // More than a statement takes.
    let result = |n: usize| Bytes::from(vec![u8::try_from(n).unwrap(); 12 * 1024 * 1024]);
    let settlements: Vec<_> = leased
        .iter()
        .enumerate()
        .map(|(n, leased)| inbox_api::Settlement {
            lease: leased.lease.clone(),
            outcome: Outcome::Processed {
                result: (n < 7).then(|| result(n)),
            },
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert_eq!(settled, vec![Settled::Done; 20]);
    for (n, leased) in leased.iter().enumerate().take(8) {
        let record = store.get(&leased.lease.key).await.unwrap().unwrap();
        assert_eq!(record.state, State::Processed);
        assert!(record.result == (n < 7).then(|| result(n)), "{n}");
    }
}

#[tokio::test]
async fn a_claim_takes_what_is_due_for_longest_of_all_handlers() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let due = |name: &str, id: &str, seconds: u64| {
        Message::new(
            handler(name),
            MessageId::new(id).unwrap(),
            Kind::new("k").unwrap(),
            vec![b'x'; 8 * 1024],
        )
        .with_due(Due::After(Duration::from_secs(seconds)))
    };
    let batch = [
        due("h1", "third", 3),
        due("h1", "first", 1),
        due("h2", "fifth", 5),
        due("h2", "second", 2),
        due("h3", "fourth", 4),
    ];
    store.receive(&batch).await.unwrap();
    inbox.clock.advance(Duration::from_secs(10));
    let mut request = request(4);
    request.handlers = ["h3", "h2", "h1"].map(handler).to_vec();
    let claims = store.claim(&request).await.unwrap();
    let ids: Vec<_> = claims
        .leased
        .iter()
        .map(|leased| leased.message.id().as_str())
        .collect();
    assert_eq!(ids, ["first", "second", "third", "fourth"]);
}

/// Messages in each state, in no order, with leases that have run out among those that are pending.
async fn mix(inbox: &TestInbox) {
    let store = &inbox.store;
    let batch: Vec<_> = (0..60)
        .map(|n| match n % 2 {
            0 => message(&n.to_string()),
            _ => ordered(&n.to_string(), &format!("key {}", n % 3)),
        })
        .collect();
    store.receive(&batch).await.unwrap();
    for discarded in ["12", "21", "40"] {
        let intervention = store.discard(&key(discarded)).await.unwrap();
        assert_eq!(intervention, Intervention::Done);
    }
    for (n, leased) in claim(store, 16).await.iter().enumerate() {
        let outcome = match n % 5 {
            3 => dead(AfterDead::Block),
            4 => retry(Duration::from_secs(3600)),
            _ => processed(),
        };
        settle(store, &leased.lease, outcome).await;
    }
    assert_eq!(claim(store, 6).await.len(), 6);
    inbox.clock.advance(LEASE);
    assert_eq!(claim(store, 3).await.len(), 3);
}

async fn list_all(store: &SqliteStore, filter: &Filter, newest_first: bool) -> Vec<Record> {
    let mut records = Vec::new();
    let mut page = Page {
        newest_first,
        ..Page::first(5)
    };
    loop {
        let listing = store.list(filter, &page).await.unwrap();
        records.extend(listing.records);
        match listing.next {
            Some(next) => page.after = Some(next),
            None => return records,
        }
    }
}

#[tokio::test]
async fn lists_of_some_states_are_parts_of_the_whole_list() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    mix(&inbox).await;
    let statistics = store.statistics().await.unwrap();
    for state in State::ALL {
        assert!(statistics.count(state) > 0, "{state}");
    }
    for newest_first in [false, true] {
        let whole = list_all(store, &Filter::default(), newest_first).await;
        assert_eq!(whole.len(), 60);
        for some in 1..1 << State::ALL.len() {
            let is_asked = |place: &usize| (some >> place) & 1 == 1;
            let places = (0..State::ALL.len()).filter(is_asked);
            let filter = Filter {
                states: places.map(|place| State::ALL[place]).collect(),
                ..Filter::default()
            };
            let part: Vec<_> = whole
                .iter()
                .filter(|record| filter.states.contains(&record.state))
                .cloned()
                .collect();
            let listed = list_all(store, &filter, newest_first).await;
            assert_eq!(listed, part, "{:?}", filter.states);
            let counted = store.count(&filter).await.unwrap();
            assert_eq!(counted, part.len() as u64, "{:?}", filter.states);
        }
    }
}
