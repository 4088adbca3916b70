//! Looking at messages without their history: where they wait, and by their keys.

use super::*;

/// No lease runs out while a test runs.
const HOUR: Duration = Duration::from_secs(3600);

/// What a filter means, page by page.
async fn pages(store: &RedisStore, filter: &Filter, limit: u32, newest_first: bool) -> Vec<Key> {
    let mut page = Page {
        newest_first,
        ..Page::first(limit)
    };
    let mut found = Vec::new();
    loop {
        let listing = store.list(filter, &page).await.unwrap();
        assert!(listing.corrupt.is_empty(), "{:?}", listing.corrupt);
        assert!(listing.records.len() <= limit as usize);
        found.extend(listing.records.into_iter().map(|record| record.key));
        page.after = listing.next;
        if page.after.is_none() {
            return found;
        }
    }
}

/// Whether states, handler, ordering key and ids of a filter mean a message.
fn is_meant(filter: &Filter, record: &Record) -> bool {
    let is_of_handler = |own: &HandlerName| *own == record.key.handler;
    let is_of_key = |own: &OrderingKey| record.ordering_key.as_ref() == Some(own);
    (filter.states.is_empty() || filter.states.contains(&record.state))
        && filter.handler.as_ref().is_none_or(is_of_handler)
        && filter.ordering_key.as_ref().is_none_or(is_of_key)
        && (filter.ids.is_empty() || filter.ids.contains(&record.key.id))
}

/// Claims up to so many, with runs of ordering keys, and ends all but each fourth in different ways.
async fn work(store: &RedisStore, handler: HandlerName, limit: u32) {
    let request = ClaimRequest {
        handlers: vec![handler],
        limit,
        terms: LeaseTerms::new(HOUR, WorkerName::new("w").unwrap()).unwrap(),
        run_limit: 3,
    };
    let leased = store.claim(&request).await.unwrap().leased;
    for (n, one) in leased.into_iter().enumerate() {
        let outcome = match n % 4 {
            0 => processed(),
            1 => Outcome::Retry {
                after: HOUR,
                error: "later".into(),
            },
            2 => Outcome::Dead {
                reason: "never".into(),
                after: if n % 8 == 2 {
                    AfterDead::Block
                } else {
                    AfterDead::Continue
                },
            },
            _ => continue,
        };
        // One behind a message of its key that is retried has lost its lease.
        let _ = store.settle_one(&one.lease, outcome).await.unwrap();
    }
}

/// Messages of two handlers, in every state, in runs and by themselves.
async fn fill(store: &RedisStore, clock: &inbox_api::ClockOffset) {
    let handlers = [handler(), HandlerName::new("other").unwrap()];
    for batch in 0..3 {
        for handler in &handlers {
            let plain = (0..12).map(|n| message(&format!("plain {batch} {n}")));
            let keyed =
                (0..12).map(|n| ordered(&format!("keyed {batch} {n}"), &format!("k{}", n % 6)));
            let sent: Vec<Message> = plain
                .chain(keyed)
                .map(|one| one.for_handler(handler.clone()))
                .collect();
            let _ = store.receive(&sent).await.unwrap();
            work(store, handler.clone(), 16).await;
        }
        // The leases of the first two batches run out.
        if batch == 1 {
            clock.advance(HOUR * 2);
        }
    }
    let _ = store.discard(&key("plain 2 11")).await.unwrap();
    let _ = store.discard(&key("keyed 2 11")).await.unwrap();
}

#[tokio::test]
async fn what_waits_and_what_is_named_is_listed_as_among_all() {
    for shards in [1, 5] {
        let Some(options) = shared(shards) else {
            return;
        };
        let (store, clock) = store(options).await;
        fill(&store, &clock).await;
        // Of any state, so among all that is logged.
        let page = Page::first(1_000);
        let all = store.list(&Filter::default(), &page).await.unwrap().records;
        assert_eq!(all.len(), 144);
        let named = ["plain 0 0", "keyed 2 7", "keyed 1 2", "plain 2 11", "no"];
        let named = named.map(|id| MessageId::new(id).unwrap()).to_vec();
        let okey = |name: &str| Some(OrderingKey::new(name).unwrap());
        use State::{Dead, Leased, Pending};
        for states in [
            vec![],
            vec![Pending],
            vec![Leased],
            vec![Pending, Leased],
            vec![Dead, Pending],
            vec![Leased, Dead],
            vec![Pending, Leased, Dead],
        ] {
            for (handler, ordering_key, ids) in [
                (None, None, vec![]),
                (Some(handler()), None, vec![]),
                (Some(handler()), okey("k1"), vec![]),
                (None, okey("k4"), vec![]),
                (Some(handler()), okey("nowhere"), vec![]),
                (Some(handler()), None, named.clone()),
                (None, None, named.clone()),
                (Some(handler()), okey("k1"), named.clone()),
            ] {
                let filter = Filter {
                    states: states.clone(),
                    handler,
                    ordering_key,
                    ids,
                    ..Filter::default()
                };
                let meant = all.iter().filter(|record| is_meant(&filter, record));
                let mut meant: Vec<Key> = meant.map(|record| record.key.clone()).collect();
                assert_eq!(store.count(&filter).await.unwrap(), meant.len() as u64);
                for newest_first in [false, true] {
                    for limit in [5, 1_000] {
                        let found = pages(&store, &filter, limit, newest_first).await;
                        assert_eq!(found, meant, "{filter:?}, {limit} on a page");
                    }
                    meant.reverse();
                }
            }
        }
    }
}

/// More than one script puts in order are found among all.
#[tokio::test]
async fn what_waits_may_be_many() {
    let Some(options) = shared(1) else { return };
    let (store, _) = store(options).await;
    let sent: Vec<Message> = (0..5_500)
        .map(|n| match n % 11 {
            0 => ordered(&n.to_string(), "k"),
            _ => message(&n.to_string()),
        })
        .collect();
    for batch in sent.chunks(500) {
        let _ = store.receive(batch).await.unwrap();
    }
    let pending = Filter {
        states: vec![State::Pending],
        ..Filter::default()
    };
    let of_key = Filter {
        ordering_key: sent[0].ordering_key().cloned(),
        ..pending.clone()
    };
    for (filter, number) in [(pending, 5_500), (of_key, 500)] {
        let found = pages(&store, &filter, 999, false).await;
        let meant = sent.iter().filter(|one| {
            filter.ordering_key.is_none() || one.ordering_key() == filter.ordering_key.as_ref()
        });
        assert!(found.iter().eq(meant.map(Message::key)));
        assert_eq!(found.len(), number);
        assert_eq!(store.count(&filter).await.unwrap(), number as u64);
    }
}
