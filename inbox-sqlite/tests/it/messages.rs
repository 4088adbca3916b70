//! What is about statements: none for nothing, and several for what one does not take.

use std::time::Duration;

use inbox_api::{
    Bytes, Due, Headers, Kind, Message, MessageId, Operate, Outcome, Receipt, Settled, State, Store,
};

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
