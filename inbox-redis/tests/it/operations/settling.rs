//! Runs that are taken apart, and the caller's own commands with a settlement.

use super::*;

/// Messages that were received together keep together as long as they fare alike, and can part in
/// any way.
#[tokio::test]
async fn messages_of_a_run_part_ways() {
    let Some(options) = shared(1) else { return };
    let (store, clock) = store(options.drop_processed_payloads(true)).await;
    let sent: Vec<Message> = (0..100).map(|n| message(&n.to_string())).collect();
    let _ = store.receive(&sent[..60]).await.unwrap();
    // Some are known: the others are stored together.
    let receipts = store.receive(&sent[40..]).await.unwrap();
    let accepted = receipts.iter().filter(|r| **r == Receipt::Accepted).count();
    assert_eq!(accepted, 40);
    let first = claim(&store, 25).await;
    let ids = |leased: &[Leased]| -> Vec<String> {
        let id = |leased: &Leased| leased.message.id().to_string();
        leased.iter().map(id).collect()
    };
    let numbers =
        |range: std::ops::Range<u32>| -> Vec<String> { range.map(|n| n.to_string()).collect() };
    assert_eq!(ids(&first), numbers(0..25));
    // One is retried, one is dead, one is released; their neighbours are processed.
    let settlements: Vec<Settlement> = first
        .iter()
        .enumerate()
        .map(|(n, leased)| Settlement {
            lease: leased.lease.clone(),
            outcome: match n {
                3 => Outcome::Retry {
                    after: LENGTH,
                    error: "later".into(),
                },
                4 => Outcome::Dead {
                    reason: "never".into(),
                    after: AfterDead::Continue,
                },
                5 => Outcome::Release,
                _ => processed(),
            },
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert!(settled.iter().all(|one| *one == Settled::Done));
    let settled = store.settle(&settlements).await.unwrap();
    assert!(
        settled.iter().all(|one| *one == Settled::Done),
        "a repetition"
    );
    assert_eq!(store.discard(&key("30")).await.unwrap(), Intervention::Done);
    let begun = store.begin(&message("31"), &terms()).await.unwrap();
    assert!(matches!(begun, Begun::Run(_)));
    let second = claim(&store, 5).await;
    assert_eq!(ids(&second), ["5", "25", "26", "27", "28"]);
    // A lease that is extended alone, and others that run out together.
    let until = store
        .extend_one(&second[1].lease, LENGTH * 4)
        .await
        .unwrap();
    assert!(matches!(until, inbox_api::Extended::Until(_)));
    clock.advance(LENGTH * 2);
    let third = claim(&store, 100).await;
    let mut expected = numbers(0..100);
    expected.retain(|id| {
        let n: u32 = id.parse().unwrap();
        !(n < 25 && n != 3 && n != 5 || n == 25 || n == 30)
    });
    let mut got = ids(&third);
    got.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(got, expected);
    for stale in [&second[0], &second[2]] {
        let lost = store.settle_one(&stale.lease, processed()).await.unwrap();
        assert_eq!(lost, Settled::LeaseLost);
    }
    settle_all(&store, third).await;
    settle_all(&store, vec![second[1].clone()]).await;
    let statistics = store.statistics().await.unwrap();
    assert_eq!(statistics.count(State::Processed), 98);
    assert_eq!(statistics.count(State::Dead), 1);
    assert_eq!(statistics.count(State::Discarded), 1);
    let listed = store
        .list(&Filter::default(), &Page::first(200))
        .await
        .unwrap();
    let listed: Vec<String> = listed
        .records
        .iter()
        .map(|r| r.key.id.to_string())
        .collect();
    assert_eq!(listed, numbers(0..100));
    // One of those that were processed together is replayed with a new payload.
    let edited = Edit {
        payload: Some(Bytes::from_static(b"new")),
        ..Edit::default()
    };
    assert_eq!(
        store.replay(&key("50"), &edited).await.unwrap(),
        Intervention::Done
    );
    assert_eq!(claim(&store, 5).await[0].message.payload(), &b"new"[..]);
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 30).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 30);
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 70);
}

#[tokio::test]
async fn commands_of_the_callers_own_are_done_once_and_with_the_settlement() {
    for shards in [1, 4] {
        let Some(options) = shared(shards) else {
            return;
        };
        let (store, _) = store(options).await;
        let mut raw = raw().await;
        let _ = store.receive_one(&message("1")).await.unwrap();
        let leased = claim(&store, 1).await.remove(0);
        let name = format!("{}:effects", store.hash_tag(&leased.lease).unwrap());
        let push = || Command::new("RPUSH").key(&name).arg("done");
        // A failing command leaves the lease as it was.
        let wrong = Command::new("INCR").key(&name);
        let error = store
            .settle_with(&leased.lease, processed(), &[push(), wrong])
            .await
            .unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        let record = store.get(&key("1")).await.unwrap().unwrap();
        assert_eq!(record.state, State::Leased);
        // What came before it stands, as documented. Of the first nothing is known to stand.
        let wrong = Command::new("INCR").key(&name);
        let error = store
            .settle_with(&leased.lease, processed(), &[wrong])
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.effect()),
            (ErrorKind::Invalid, Effect::None)
        );
        let length: i64 = raw.run(redis::cmd("LLEN").arg(&name)).await.unwrap();
        assert_eq!(length, 1);

        let (settled, replies) = store
            .settle_with(&leased.lease, processed(), &[push()])
            .await
            .unwrap();
        assert_eq!((settled, replies), (Settled::Done, vec![Value::Int(2)]));
        let (again, _) = store
            .settle_with(&leased.lease, processed(), &[push()])
            .await
            .unwrap();
        assert_eq!(again, Settled::LeaseLost);
        let length: i64 = raw.run(redis::cmd("LLEN").arg(&name)).await.unwrap();
        assert_eq!(length, 2);
        let elsewhere = Command::new("DEL").key("{elsewhere}:x");
        let error = store
            .settle_with(&leased.lease, processed(), &[elsewhere])
            .await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

/// It is in `errors`, under the message's key and another NUL.
#[tokio::test]
async fn a_history_that_cannot_be_read_is_reported_and_stops_nothing() {
    let Some(options) = shared(1) else { return };
    let (store, _) = store(options).await;
    let _ = store.receive(&[message("1"), message("2")]).await.unwrap();
    let fail = async || {
        for leased in claim(&store, 10).await {
            let retry = Outcome::Retry {
                after: Duration::ZERO,
                error: "a \"quoted\"\nä".into(),
            };
            let settled = store.settle_one(&leased.lease, retry).await.unwrap();
            assert_eq!(settled, Settled::Done);
        }
    };
    fail().await;
    let leased = claim(&store, 1).await.remove(0);
    let tag = store.hash_tag(&leased.lease).unwrap();
    let settled = store.settle_one(&leased.lease, Outcome::Release).await;
    assert_eq!(settled.unwrap(), Settled::Done);
    let mut spoil = redis::cmd("HSET");
    spoil
        .arg(format!("{tag}:errors"))
        .arg("billing\x001\0")
        .arg("{}");
    let _: Value = raw().await.run(&spoil).await.unwrap();
    fail().await;
    let corrupt = store.get(&key("1")).await.unwrap_err();
    assert_eq!(corrupt.kind(), ErrorKind::Corrupt);
    let page = Page {
        with_payload: true,
        ..Page::first(10)
    };
    let listing = store.list(&Filter::default(), &page).await.unwrap();
    assert_eq!((listing.records.len(), listing.corrupt.len()), (1, 1));
    let history = &listing.records[0].history;
    assert_eq!(history.len(), 2);
    assert!(history.iter().all(|past| past.error == "a \"quoted\"\nä"));
}
