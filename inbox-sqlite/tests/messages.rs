//! Receive, claim, settle, extend and begin.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::*;
use inbox_api::{
    AfterDead, Attempts, Begun, Bytes, ClaimRequest, ContentType, Due, ErrorKind, Extended,
    FencingToken, Headers, Invalid, Message, Operate, Outcome, Receipt, Settled, Settlement, State,
    Store, StoreExt, from_micros,
};

#[tokio::test]
async fn the_first_copy_is_accepted_and_all_others_are_duplicates() {
    let place = place().await;
    let store = &place.store;
    let batch = [message("1"), message("2"), message("1")];
    let receipts = store.receive(&batch).await.unwrap();
    use Receipt::{Accepted, Duplicate};
    assert_eq!(receipts, [Accepted, Accepted, Duplicate]);
    let receipts = place.other().await.receive(&batch).await.unwrap();
    assert_eq!(receipts, [Duplicate, Duplicate, Duplicate]);
    let other_handler = message("1").for_handler(handler("other"));
    let receipts = store.receive(&[message("3"), other_handler]).await.unwrap();
    assert_eq!(receipts, [Accepted, Accepted]);
    check_consistent(store).await;
}

#[tokio::test]
async fn a_message_comes_back_byte_for_byte() {
    let place = place().await;
    let store = &place.store;
    let payload: Vec<u8> = (0..=255).collect();
    let odd = "a \u{e9} e\u{301} \u{1f980} \"'\\%_ ?1 {inbox} trailing ";
    let full = Message::new(
        handler(odd),
        inbox_api::MessageId::new(odd).unwrap(),
        inbox_api::Kind::new(odd).unwrap(),
        payload,
    )
    .with_content_type(ContentType::new("text/plain; a=\"b\"").unwrap())
    .with_ordering_key(inbox_api::OrderingKey::new(odd).unwrap())
    .with_header("name \"1\"", "line\nbreak \t \\ \u{1} \u{1f980}")
    .unwrap();
    let empty = message("empty");
    let empty = Message::new(
        empty.handler().clone(),
        empty.id().clone(),
        empty.kind().clone(),
        "",
    );
    for way in ["receive", "begin"] {
        let id = inbox_api::MessageId::new(format!("{way}{odd}")).unwrap();
        let full = Message::new(
            full.handler().clone(),
            id,
            full.kind().clone(),
            full.payload().clone(),
        )
        .with_headers(full.headers().clone())
        .with_content_type(full.content_type().unwrap().clone());
        if way == "receive" {
            let receipts = store.receive(&[full.clone(), empty.clone()]).await.unwrap();
            assert_eq!(receipts, [Receipt::Accepted, Receipt::Accepted]);
            let request = ClaimRequest {
                handlers: vec![full.handler().clone(), handler("h"), handler("h")],
                limit: 10,
                terms: terms(),
            };
            let claims = store.claim(&request).await.unwrap();
            let messages: Vec<_> = claims.leased.iter().map(|l| l.message.clone()).collect();
            assert_eq!(messages, [full.clone(), empty.clone()]);
        } else {
            assert_eq!(run(store, &full).await.message, full);
        }
        let record = store.get(full.key()).await.unwrap().unwrap();
        assert_eq!(record.message(), Some(full));
        assert_eq!(record.payload_bytes, Some(256));
    }
    let receipt = store.receive_one(&full).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted);
    let record = store.get(full.key()).await.unwrap().unwrap();
    assert_eq!(record.message(), Some(full));
}

#[tokio::test]
async fn keys_compare_byte_for_byte() {
    let place = place().await;
    let distinct = ["a", "A", "a ", " a", "á", "a\u{301}", "01", "1"].map(message);
    for receipt in place.store.receive(&distinct).await.unwrap() {
        assert_eq!(receipt, Receipt::Accepted);
    }
}

#[tokio::test]
async fn large_payloads_are_refused_alone() {
    let place = place_with(|options| options.payload_limit(20)).await;
    let store = &place.store;
    let large = |id: &str| {
        let message = message(id);
        Message::new(
            message.handler().clone(),
            message.id().clone(),
            message.kind().clone(),
            vec![0; 21],
        )
    };
    let receipts = store
        .receive(&[large("1"), message("1"), message("2")])
        .await
        .unwrap();
    let refused = Invalid::TooLarge {
        what: "payload",
        bytes: 21,
        limit: 20,
    };
    assert_eq!(receipts[0], Receipt::Refused(refused));
    assert_eq!(receipts[1..], [Receipt::Accepted, Receipt::Accepted]);
    let receipts = store.receive(&[large("9")]).await.unwrap();
    assert!(matches!(receipts[0], Receipt::Refused(_)));
    let error = store.begin(&large("3"), &terms()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(store.get(&key("3")).await.unwrap(), None);

    let lease = claim_one(store).await;
    let outcome = Outcome::Processed {
        result: Some(vec![0; 21].into()),
    };
    let settled = store.settle_one(&lease, outcome).await.unwrap();
    assert!(matches!(settled, Settled::Refused(_)));
    let settled = store.settle_one(&lease, processed()).await.unwrap();
    assert_eq!(settled, Settled::Done);
}

#[tokio::test]
async fn a_batch_over_several_statements_is_one_receive() {
    let place = place().await;
    let store = &place.store;
    let batch: Vec<_> = (0..2500)
        .map(|n| message(&(n % 2400).to_string()))
        .collect();
    let receipts = store.receive(&batch).await.unwrap();
    let accepted = receipts.iter().filter(|r| **r == Receipt::Accepted).count();
    assert_eq!(accepted, 2400);
    assert!(receipts[2400..].iter().all(|r| *r == Receipt::Duplicate));
    let leased = claim(store, 3000).await;
    assert_eq!(leased.len(), 2400);
    for (n, leased) in leased.iter().enumerate() {
        assert_eq!(leased.message.id().as_str(), n.to_string());
    }
    let settlements: Vec<_> = leased
        .into_iter()
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: processed(),
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert!(settled.iter().all(|s| *s == Settled::Done));
    check_consistent(store).await;
}

#[tokio::test]
async fn claims_take_the_longest_due_first_and_not_before_their_time() {
    let place = place().await;
    let store = &place.store;
    let later = message("later").with_due(Due::After(Duration::from_secs(5)));
    let soon = message("soon").with_due(Due::After(Duration::from_secs(1)));
    store.receive(&[later, soon, message("now")]).await.unwrap();
    assert_eq!(ids(&claim(store, 10).await), ["now"]);
    place.clock.advance(Duration::from_secs(10));
    assert_eq!(ids(&claim(store, 10).await), ["soon", "later"]);
    assert_eq!(ids(&claim(store, 10).await), [""; 0]);
    place.clock.advance(LENGTH);
    let again = claim(store, 2).await;
    // The two others share the end of their lease, so the earlier accepted goes first.
    assert_eq!(ids(&again), ["now", "later"]);
    assert_eq!(again[0].attempts.started, 2);
    assert_eq!(again[0].attempts.finished, 0);
}

#[tokio::test]
async fn tokens_grow_and_stale_ones_change_nothing() {
    let place = place().await;
    let store = &place.store;
    store.receive(&[message("1")]).await.unwrap();
    let first = claim_one(store).await;
    place.clock.advance(LENGTH);
    let second = claim_one(store).await;
    assert!(second.token > first.token);
    for outcome in [processed(), Outcome::Release, dead(AfterDead::Continue)] {
        let settled = store.settle_one(&first, outcome).await.unwrap();
        assert_eq!(settled, Settled::LeaseLost);
    }
    let extended = store.extend_one(&first, LENGTH).await.unwrap();
    assert_eq!(extended, Extended::LeaseLost);
    assert_eq!(get(store, "1").await.state, State::Leased);
    let settled = store.settle_one(&second, processed()).await.unwrap();
    assert_eq!(settled, Settled::Done);
    let repeated = store.settle_one(&second, retry(LENGTH)).await.unwrap();
    assert_eq!(repeated, Settled::Done);
    let record = get(store, "1").await;
    assert_eq!(record.state, State::Processed);
    assert_eq!(
        record.attempts,
        Attempts {
            started: 2,
            finished: 1
        }
    );
    let extended = store.extend_one(&second, LENGTH).await.unwrap();
    assert_eq!(extended, Extended::LeaseLost);
}

#[tokio::test]
async fn every_outcome_does_what_it_says_in_one_batch() {
    let place = place().await;
    let store = &place.store;
    let batch = ["1", "2", "3", "4", "5", "6"].map(message);
    store.receive(&batch).await.unwrap();
    let leases: Vec<_> = claim(store, 10)
        .await
        .into_iter()
        .map(|l| l.lease)
        .collect();
    let mut foreign = leases[0].clone();
    foreign.token = FencingToken::new(foreign.token.get() + 1);
    let mut unknown = leases[0].clone();
    unknown.locator = u64::MAX;
    let of = |lease: &inbox_api::Lease, outcome| Settlement {
        lease: lease.clone(),
        outcome,
    };
    let result = |bytes: &'static [u8]| Outcome::Processed {
        result: Some(Bytes::from_static(bytes)),
    };
    let settled = store
        .settle(&[
            of(&foreign, processed()),
            of(&leases[0], result(b"one")),
            of(&leases[1], retry(Duration::from_secs(60))),
            of(&leases[2], dead(AfterDead::Block)),
            of(&leases[3], Outcome::Release),
            of(&leases[4], result(b"")),
            of(&leases[0], retry(Duration::ZERO)),
            of(&unknown, processed()),
        ])
        .await
        .unwrap();
    use Settled::{Done, LeaseLost};
    let expected = [LeaseLost, Done, Done, Done, Done, Done, Done, LeaseLost];
    assert_eq!(settled, expected);

    let one = get(store, "1").await;
    assert_eq!(one.state, State::Processed);
    assert_eq!(one.result.as_deref(), Some(&b"one"[..]));
    assert!(one.finished_at.is_some());
    assert_eq!(one.worker.unwrap().as_str(), "w");
    assert_eq!(get(store, "5").await.result.as_deref(), Some(&b""[..]));
    let two = get(store, "2").await;
    assert_eq!(two.state, State::Pending);
    assert_eq!(two.last_error.as_deref(), Some("failed"));
    assert_eq!(
        two.attempts,
        Attempts {
            started: 1,
            finished: 1
        }
    );
    assert!(two.due_at > one.finished_at.unwrap() + Duration::from_secs(59));
    let three = get(store, "3").await;
    assert_eq!(three.state, State::Dead);
    assert_eq!(three.last_error.as_deref(), Some("poison"));
    assert!(!three.blocks_ordering_key, "it has no ordering key");
    let four = get(store, "4").await;
    assert_eq!(four.state, State::Pending);
    assert_eq!(four.attempts, Attempts::default());
    assert_eq!(ids(&claim(store, 10).await), ["4"]);
    check_consistent(store).await;
}

#[tokio::test]
async fn long_and_odd_error_texts_are_kept_within_bounds() {
    let place = place().await;
    let store = &place.store;
    store.receive(&[message("1")]).await.unwrap();
    let lease = claim_one(store).await;
    let outcome = Outcome::Dead {
        reason: format!("nul \0 quote \" {}", "ä".repeat(5000)),
        after: AfterDead::Continue,
    };
    assert_eq!(
        store.settle_one(&lease, outcome).await.unwrap(),
        Settled::Done
    );
    let kept = get(store, "1").await.last_error.unwrap();
    assert!(kept.starts_with("nul   quote \" ä") && kept.len() <= 4096);
}

#[tokio::test]
async fn a_lease_that_ran_out_is_shown_as_pending_and_can_still_be_settled_or_revived() {
    let place = place().await;
    let store = &place.store;
    store.receive(&[message("1")]).await.unwrap();
    let lease = claim_one(store).await;
    assert_eq!(get(store, "1").await.lease_until, Some(lease.until));
    place.clock.advance(LENGTH);
    let record = get(store, "1").await;
    assert_eq!((record.state, record.lease_until), (State::Pending, None));
    let statistics = store.statistics().await.unwrap();
    assert_eq!(
        (
            statistics.count(State::Pending),
            statistics.count(State::Leased)
        ),
        (1, 0)
    );
    let extended = store.extend_one(&lease, LENGTH).await.unwrap();
    assert!(matches!(extended, Extended::Until(until) if until > lease.until));
    assert_eq!(get(store, "1").await.state, State::Leased);
    assert_eq!(claim(store, 1).await, []);
    place.clock.advance(LENGTH * 2);
    let settled = store.settle_one(&lease, processed()).await.unwrap();
    assert_eq!(settled, Settled::Done);
    let error = store.extend_one(&lease, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn begin_decides_in_every_state() {
    let place = place().await;
    let store = &place.store;
    let first = run(store, &message("1")).await;
    assert_eq!(
        first.attempts,
        Attempts {
            started: 1,
            finished: 0
        }
    );
    let busy = store.begin(&message("1"), &terms()).await.unwrap();
    assert_eq!(
        busy,
        Begun::Busy {
            until: first.lease.until
        }
    );
    settle(store, &first.lease, retry(LENGTH)).await;
    let busy = store.begin(&message("1"), &terms()).await.unwrap();
    assert_eq!(
        busy,
        Begun::Busy {
            until: get(store, "1").await.due_at
        }
    );
    place.clock.advance(LENGTH);
    let second = run(store, &message("1")).await;
    assert_eq!(
        second.attempts,
        Attempts {
            started: 2,
            finished: 1
        }
    );
    assert!(second.lease.token > first.lease.token);
    place.clock.advance(LENGTH);
    let third = run(store, &message("1")).await;
    let lost = store.settle_one(&second.lease, processed()).await.unwrap();
    assert_eq!(lost, Settled::LeaseLost);
    let result = Some(Bytes::from_static(b"done"));
    let outcome = Outcome::Processed {
        result: result.clone(),
    };
    settle(store, &third.lease, outcome).await;
    let begun = store.begin(&message("1"), &terms()).await.unwrap();
    assert_eq!(begun, Begun::Processed { result });

    let later = message("2").with_due(Due::After(LENGTH));
    assert!(matches!(
        store.begin(&later, &terms()).await.unwrap(),
        Begun::Busy { .. }
    ));
    assert_eq!(get(store, "2").await.state, State::Pending);

    let lease = run(store, &message("3")).await.lease;
    settle(store, &lease, dead(AfterDead::Continue)).await;
    let begun = store.begin(&message("3"), &terms()).await.unwrap();
    assert_eq!(
        begun,
        Begun::Dead {
            reason: "poison".into()
        }
    );
    let _ = store.discard(&key("3")).await.unwrap();
    let begun = store.begin(&message("3"), &terms()).await.unwrap();
    assert_eq!(begun, Begun::Discarded);
    check_consistent(store).await;
}

#[tokio::test]
async fn dropped_payloads_leave_the_key() {
    let place = place_with(|options| options.drop_processed_payloads(true)).await;
    let store = &place.store;
    store.receive(&[message("1"), message("2")]).await.unwrap();
    let leased = claim(store, 2).await;
    settle(store, &leased[0].lease, processed()).await;
    settle(store, &leased[1].lease, retry(LENGTH)).await;
    let record = get(store, "1").await;
    assert_eq!((record.payload, record.payload_bytes), (None, None));
    assert!(get(store, "2").await.payload.is_some());
    let receipt = store.receive_one(&message("1")).await.unwrap();
    assert_eq!(receipt, Receipt::Duplicate);
}

#[tokio::test]
async fn nothing_in_gives_nothing_out() {
    let place = empty_place().await;
    let store = &place.store;
    // Without I/O: there is no inbox yet, and nobody notices.
    assert_eq!(store.receive(&[]).await.unwrap(), []);
    assert_eq!(store.settle(&[]).await.unwrap(), []);
    assert_eq!(store.extend(&[], LENGTH).await.unwrap(), []);
    assert_eq!(claim(store, 0).await, []);
    let mut nobody = request(5);
    nobody.handlers.clear();
    assert_eq!(store.claim(&nobody).await.unwrap().leased, []);
}

#[tokio::test]
async fn a_due_time_far_ahead_is_kept() {
    let place = place().await;
    let store = &place.store;
    let far = message("1").with_due(Due::After(Duration::MAX));
    store.receive(&[far]).await.unwrap();
    assert_eq!(claim(store, 1).await, []);
    assert!(get(store, "1").await.due_at > from_micros(1 << 60));
}

#[tokio::test]
async fn many_large_results_and_headers_fit() {
    let place = place().await;
    let store = &place.store;
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
