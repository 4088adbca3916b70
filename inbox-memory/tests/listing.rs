//! Looking: pages, filters, statistics.

mod common;

use std::time::Duration;

use common::{
    DONE, LEASE, all, fixture, handler, ids, key, keyed, message, one_of_each, retry, states,
};
use inbox_api::{
    Bytes, Cursor, Due, ErrorKind, Expired, Filter, HandlerStatistics, Intervention, Kind, Message,
    MessageId, Operate, OrderingKey, Page, Settled, Slice, State, Store,
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn pages_are_stable_while_messages_change_and_go() {
    let f = fixture();
    for id in 0..7 {
        // Spread over two handlers: places are of the inbox, not of the handler.
        let name = if id % 2 == 0 { "h" } else { "g" };
        f.accept(&[message(&id.to_string()).for_handler(handler(name))])
            .await;
    }
    let mut page = Page::first(3);
    let (first, next) = ids(&f, &Filter::default(), &page).await;
    assert_eq!(first, ["0", "1", "2"]);
    let leased = f.claim_one().await;
    assert_eq!(f.settle(&leased, DONE).await, Settled::Done);
    let purged = Expired::new(State::Processed, Duration::ZERO, 9).unwrap();
    assert_eq!(f.store.purge(&purged).await.unwrap(), 1);
    assert_eq!(
        f.store.discard(&key("2")).await.unwrap(),
        Intervention::Done
    );
    page.after = next;
    let (second, next) = ids(&f, &Filter::default(), &page).await;
    assert_eq!(second, ["3", "4", "5"]);
    page.after = next;
    assert_eq!(
        ids(&f, &Filter::default(), &page).await,
        (vec!["6".into()], None)
    );

    let mut page = Page {
        newest_first: true,
        ..Page::first(3)
    };
    let (first, next) = ids(&f, &Filter::default(), &page).await;
    assert_eq!(first, ["6", "5", "4"]);
    f.accept(&[message("new")]).await;
    page.after = next;
    assert_eq!(
        ids(&f, &Filter::default(), &page).await,
        (vec!["3".into(), "2".into(), "1".into()], None)
    );
}

#[tokio::test]
async fn page_limits_and_cursors_are_checked() {
    let f = fixture();
    f.accept(&[message("1"), message("2")]).await;
    let nothing = (vec![], None);
    assert_eq!(ids(&f, &Filter::default(), &Page::first(0)).await, nothing);
    let (full, next) = ids(&f, &Filter::default(), &Page::first(2)).await;
    assert_eq!((full.len(), next), (2, None));
    for place in [i64::MAX, i64::MIN, 0] {
        let page = Page {
            after: Some(Cursor::from(place)),
            ..Page::first(u32::MAX)
        };
        let expected = if place == i64::MAX { 0 } else { 2 };
        assert_eq!(ids(&f, &Filter::default(), &page).await.0.len(), expected);
    }
    let after = Some(Cursor::new("x'; --"));
    let page = Page {
        after: after.clone(),
        ..Page::first(1)
    };
    let slice = Slice { after, limit: 1 };
    let filter = Filter::default();
    for error in [
        f.store.list(&filter, &page).await.unwrap_err(),
        f.store.replay_slice(&filter, &slice).await.unwrap_err(),
        f.store.discard_slice(&filter, &slice).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn listings_bring_payloads_only_when_asked() {
    let f = fixture();
    let result = Some(Bytes::from_static(b"r"));
    let outcome = inbox_api::Outcome::Processed {
        result: result.clone(),
    };
    f.finished(&message("1"), outcome).await;
    let page = Page::first(1);
    let record = f
        .store
        .list(&Filter::default(), &page)
        .await
        .unwrap()
        .records
        .remove(0);
    assert_eq!((&record.payload, &record.result), (&None, &None));
    assert_eq!(record.payload_bytes, Some(12));
    let page = Page {
        with_payload: true,
        ..page
    };
    let record = f
        .store
        .list(&Filter::default(), &page)
        .await
        .unwrap()
        .records
        .remove(0);
    assert_eq!(record.payload, Some(Bytes::from_static(b"payload of 1")));
    assert_eq!(record.result, result);
}

#[tokio::test]
async fn filters_narrow_by_what_is_shown() {
    let f = one_of_each().await;
    let (every, _) = ids(&f, &Filter::default(), &Page::first(10)).await;
    assert_eq!(every.len(), 6);
    for (state, expected) in [
        (State::Pending, vec!["ran-out", "pending"]),
        (State::Leased, vec!["leased"]),
        (State::Processed, vec!["processed"]),
        (State::Dead, vec!["dead"]),
        (State::Discarded, vec!["discarded"]),
    ] {
        assert_eq!(all(&f, &states(&[state])).await, expected);
    }
    let some = states(&[State::Leased, State::Dead]);
    assert_eq!(all(&f, &some).await, ["dead", "leased"]);
}

#[tokio::test]
async fn filters_narrow_by_each_part() {
    let f = fixture();
    f.accept(&[Message::new(
        handler("h"),
        MessageId::new("old").unwrap(),
        Kind::new("other").unwrap(),
        "",
    )])
    .await;
    f.clock.advance(SECOND * 100);
    f.accept(&[keyed("keyed", "o"), message("g").for_handler(handler("g"))])
        .await;
    let old = f.claim_one().await;
    assert_eq!(f.settle(&old, retry(LEASE)).await, Settled::Done);
    let filter = Filter::default;
    let cases = [
        (
            Filter {
                handler: Some(handler("g")),
                ..filter()
            },
            vec!["g"],
        ),
        (
            Filter {
                handler: Some(handler("none")),
                ..filter()
            },
            vec![],
        ),
        (
            Filter {
                kind: Some(Kind::new("other").unwrap()),
                ..filter()
            },
            vec!["old"],
        ),
        (
            Filter {
                ordering_key: Some(OrderingKey::new("o").unwrap()),
                ..filter()
            },
            vec!["keyed"],
        ),
        (
            Filter {
                older_than: Some(SECOND * 100),
                ..filter()
            },
            vec!["old"],
        ),
        (
            Filter {
                newer_than: Some(SECOND * 100),
                ..filter()
            },
            vec!["keyed", "g"],
        ),
        (
            Filter {
                older_than: Some(Duration::MAX),
                ..filter()
            },
            vec![],
        ),
        (
            Filter {
                error_contains: Some("y ag".into()),
                ..filter()
            },
            vec!["old"],
        ),
        (
            Filter {
                error_contains: Some("Y ag".into()),
                ..filter()
            },
            vec![],
        ),
        (
            Filter {
                error_contains: Some(String::new()),
                ..filter()
            },
            vec!["old"],
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(all(&f, &filter).await, expected, "{filter:?}");
    }
}

#[tokio::test]
async fn statistics_count_and_tell_the_lag() {
    let f = fixture();
    assert_eq!(f.store.statistics().await.unwrap().handlers, []);
    // A handler that is only known is no entry.
    f.store.subscribe(&[handler("idle")]).await.unwrap();
    f.accept(&[
        keyed("blocking", "o").with_due(Due::After(SECOND * 1_000)),
        keyed("blocked", "o"),
        message("due").with_due(Due::After(SECOND * 10)),
        message("first").for_handler(handler("a")),
    ])
    .await;
    let statistics = f.store.statistics().await.unwrap();
    let names: Vec<_> = statistics
        .handlers
        .iter()
        .map(|h| h.handler.as_str())
        .collect();
    assert_eq!(names, ["a", "h"]);
    let of_h = &statistics.handlers[1];
    let waiting = HandlerStatistics {
        pending: 3,
        ..HandlerStatistics::empty(handler("h"))
    };
    assert_eq!(
        *of_h, waiting,
        "a blocked message is not due, whatever its time"
    );

    f.clock.advance(SECOND * 15);
    let near = |got: Option<Duration>, secs: u32| {
        let got = got.expect("something is due");
        got >= SECOND * secs && got < SECOND * (secs + 1)
    };
    let statistics = f.store.statistics().await.unwrap();
    assert!(near(statistics.handlers[1].lag, 5));
    assert!(near(statistics.handlers[1].oldest_due_age, 15));
    assert!(near(statistics.lag(), 15));

    let _held = f.claim_one().await;
    let of_h = f.store.statistics().await.unwrap().handlers.remove(1);
    assert_eq!((of_h.pending, of_h.leased, of_h.lag), (2, 1, None));
    f.clock.advance(LEASE + SECOND * 2);
    let of_h = f.store.statistics().await.unwrap().handlers.remove(1);
    assert_eq!((of_h.pending, of_h.leased, of_h.backlog()), (3, 0, 3));
    assert!(near(of_h.lag, 2));
    assert!(near(of_h.oldest_due_age, 47));
}

#[tokio::test]
async fn statistics_count_each_state() {
    let f = one_of_each().await;
    let statistics = f.store.statistics().await.unwrap();
    let counts = State::ALL.map(|state| statistics.count(state));
    assert_eq!(counts, [2, 1, 1, 1, 1]);
}
