//! What is retained, what it costs, and how it goes.

use super::*;

#[tokio::test]
async fn purging_leaves_no_keys_but_the_markers() {
    for shards in [1, 5] {
        let Some(server) = own(&[]).await else { return };
        let (store, _) = store(options(server.url(), false, shards)).await;
        for n in 0..40 {
            let sent = match n % 2 {
                0 => message(&n.to_string()),
                _ => ordered(&n.to_string(), &format!("k{}", n % 7)),
            };
            assert_eq!(store.receive_one(&sent).await.unwrap(), Receipt::Accepted);
        }
        for n in 0..40 {
            let leased = claim(&store, 3).await;
            for leased in leased {
                let outcome = match n % 4 {
                    0 => Outcome::Dead {
                        reason: "x".into(),
                        after: AfterDead::Block,
                    },
                    1 => Outcome::Processed {
                        result: Some(Bytes::from_static(b"r")),
                    },
                    _ => processed(),
                };
                let settled = store.settle_one(&leased.lease, outcome).await.unwrap();
                assert_eq!(settled, Settled::Done);
            }
        }
        for _ in 0..40 {
            for state in [State::Dead, State::Processed] {
                let expired = PurgeRequest::new(state, Duration::ZERO, 100).unwrap();
                store.purge(&expired).await.unwrap();
            }
            settle_all(&store, claim(&store, 100).await).await;
        }
        assert_eq!(store.count(&Filter::default()).await.unwrap(), 0);
        let mut raw = Raw::connect(server.url(), false).await.unwrap();
        let mut keys: Vec<String> = raw.run(redis::cmd("KEYS").arg("*")).await.unwrap();
        // The log stays as an empty key, since it remembers its last entry.
        keys.retain(|key| ![":meta", ":log"].iter().any(|end| key.ends_with(end)));
        assert_eq!(keys, Vec::<String>::new(), "{shards} shards");
    }
}

#[tokio::test]
async fn processed_messages_can_expire_without_a_janitor() {
    for shards in [1, 4] {
        let Some(options) = shared(shards) else {
            return;
        };
        let (store, clock) = store(options.keep_processed(Some(LENGTH))).await;
        let first: Vec<Message> = (0..40)
            .map(|n| ordered(&n.to_string(), &n.to_string()))
            .collect();
        let _ = store.receive(&first).await.unwrap();
        settle_all(&store, claim(&store, 40).await).await;
        clock.advance(LENGTH / 2);
        let second: Vec<Message> = (40..100).map(|n| message(&n.to_string())).collect();
        let _ = store.receive(&second).await.unwrap();
        settle_all(&store, claim(&store, 30).await).await;
        assert_eq!(
            store.statistics().await.unwrap().count(State::Processed),
            70
        );
        clock.advance(LENGTH * 2 / 3);
        settle_all(&store, claim(&store, 30).await).await;
        // The first 40 are too old now; some may be in shards where nothing was settled since.
        let left = store.statistics().await.unwrap().count(State::Processed);
        assert!((60..=65).contains(&left), "{left}");
        if left == 60 {
            let receipts = store.receive(&first).await.unwrap();
            assert!(receipts.iter().all(|r| *r == Receipt::Accepted));
        }
        assert_eq!(
            store.receive_one(&message("99")).await.unwrap(),
            Receipt::Duplicate { differs: false }
        );
    }
}

/// Longer than the time since 1970, which a server's clock cannot go back by.
#[tokio::test]
async fn processed_messages_can_be_kept_for_ever() {
    for shards in [1, 4] {
        let Some(options) = shared(shards) else {
            return;
        };
        let (store, _) = store(options.keep_processed(Some(Duration::MAX))).await;
        for batch in 1..3 {
            let id = |n: u32| format!("{batch} {n}");
            let mut sent: Vec<Message> = (0..20).map(|n| message(&id(n))).collect();
            sent.push(ordered(&id(20), "k"));
            let _ = store.receive(&sent).await.unwrap();
            let mut leased = claim(&store, 30).await;
            let alone = leased.pop().unwrap();
            settle_all(&store, vec![alone]).await;
            settle_all(&store, leased).await;
            let processed = store.statistics().await.unwrap().count(State::Processed);
            assert_eq!(processed, batch * 21);
            assert_eq!(contradictions(&store).await.unwrap(), [""; 0]);
        }
    }
}

/// What a settlement has just completed is not deleted by it, so that its repetition still finds it.
#[tokio::test]
async fn a_settlement_that_keeps_nothing_can_be_repeated() {
    let Some(options) = shared(1) else { return };
    let (store, clock) = store(options.keep_processed(Some(Duration::ZERO))).await;
    for batch in ["first", "second"] {
        let sent: Vec<Message> = (0..3).map(|n| message(&format!("{batch} {n}"))).collect();
        let _ = store.receive(&sent).await.unwrap();
        let leased = claim(&store, 3).await;
        assert_eq!(leased.len(), 3);
        settle_all(&store, leased.clone()).await;
        settle_all(&store, leased).await;
        let left = store.statistics().await.unwrap().count(State::Processed);
        assert_eq!(left, 3, "those of the {batch} batch alone");
        assert_eq!(contradictions(&store).await.unwrap(), [""; 0]);
        clock.advance(LENGTH);
    }
}

/// Defect: what it took to find them left no work for dropping what they were found by, which was read again and again,
/// until nothing was deleted any more.
#[tokio::test]
async fn messages_of_many_batches_that_end_together_expire() {
    const BATCHES: usize = 200;
    let Some(server) = own(&["--appendfsync", "no"]).await else {
        return;
    };
    let options = options(server.url(), false, 1).keep_processed(Some(Duration::ZERO));
    let (store, clock) = store(options).await;
    for batch in 0..BATCHES {
        let sent: Vec<Message> = (0..100)
            .map(|n| {
                let due = Due::After(Duration::from_secs(n));
                message(&format!("{batch} {n}")).with_due(due)
            })
            .collect();
        let _ = store.receive(&sent).await.unwrap();
    }
    for round in 0..12 {
        let leased = claim(&store, u32::try_from(BATCHES).unwrap()).await;
        assert_eq!(leased.len(), BATCHES, "round {round}");
        settle_all(&store, leased).await;
        let kept = store.statistics().await.unwrap().count(State::Processed);
        assert!(kept <= 2 * BATCHES as u64, "{kept} in round {round}");
        clock.advance(Duration::from_secs(1));
    }
}

/// The bound of the crate's documentation, measured by the server itself.
#[tokio::test]
async fn a_retained_message_takes_less_than_250_bytes() {
    let Some(server) = own(&["--appendfsync", "no"]).await else {
        return;
    };
    let (store, _) = store(options(server.url(), false, 1).drop_processed_payloads(true)).await;
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let before = used_memory(&mut raw).await;
    const COUNT: u64 = 50_000;
    fill(&store, COUNT).await;
    let each = (used_memory(&mut raw).await - before) / COUNT;
    assert!(each < 250, "{each} bytes");
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, u32::MAX).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), COUNT);
    // The server gives some of it back later, such as what it has still to write to its log.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let left = used_memory(&mut raw).await.saturating_sub(before);
        if left < COUNT * 250 / 20 {
            break;
        }
        assert!(Instant::now() < deadline, "{left} bytes after a purge");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn used_memory(raw: &mut Raw) -> u64 {
    let info: String = raw.run(redis::cmd("INFO").arg("memory")).await.unwrap();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory_dataset:"));
    line.unwrap().trim().parse().unwrap()
}

/// Receives and processes so many messages with ids like UUIDs and payloads of 1 KiB.
async fn fill(store: &RedisStore, count: u64) {
    let payload = Bytes::from(vec![7; 1024]);
    for batch in 0..count / 500 {
        let messages: Vec<Message> = (0..500)
            .map(|n| {
                let id = format!("{batch:08x}-1c4f-4d5e-8f0a-{n:012x}");
                Message::new(
                    handler(),
                    MessageId::new(id).unwrap(),
                    Kind::new("order.placed").unwrap(),
                    payload.clone(),
                )
            })
            .collect();
        let _ = store.receive(&messages).await.unwrap();
        settle_all(store, claim(store, 500).await).await;
    }
}

/// History and backlog do not add to what the working side asks of the server.
#[tokio::test]
async fn claims_cost_the_same_with_a_long_history() {
    let Some(server) = own(&["--appendfsync", "no"]).await else {
        return;
    };
    let (store, _) = store(options(server.url(), false, 1).drop_processed_payloads(true)).await;
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let empty = commands_of_a_cycle(&store, &mut raw, "a").await;
    fill(&store, 50_000).await;
    // A backlog of 20,000, and as many that are blocked behind one message.
    for batch in 0..40 {
        let messages: Vec<Message> = (0..500)
            .map(|n| match batch % 2 {
                0 => message(&format!("backlog {batch} {n}")),
                _ => ordered(&format!("blocked {batch} {n}"), "k"),
            })
            .collect();
        let _ = store.receive(&messages).await.unwrap();
    }
    let full = commands_of_a_cycle(&store, &mut raw, "b").await;
    // Behind a backlog of batches of 500, claims of 100 take parts of what was received together.
    assert!(
        full < empty * 2,
        "{empty} commands became {full} for 2,000 messages"
    );
}

/// How many commands the server runs, those of scripts included, to receive, claim and settle
/// 2,000 messages.
async fn commands_of_a_cycle(store: &RedisStore, raw: &mut Raw, name: &str) -> u64 {
    let _: Value = raw
        .run(redis::cmd("CONFIG").arg("RESETSTAT"))
        .await
        .unwrap();
    for batch in 0..20 {
        let messages: Vec<Message> = (0..100)
            .map(|n| message(&format!("{name} {batch} {n}")))
            .collect();
        let _ = store.receive(&messages).await.unwrap();
        settle_all(store, claim(store, 100).await).await;
    }
    let info: String = raw
        .run(redis::cmd("INFO").arg("commandstats"))
        .await
        .unwrap();
    info.lines()
        .filter_map(|line| line.split_once("calls=")?.1.split_once(','))
        .map(|(calls, _)| calls.parse::<u64>().unwrap())
        .sum()
}

/// Commands and scripts that the server has run since the last reset, those within scripts included.
async fn commands_and_scripts(raw: &mut Raw) -> (u64, u64) {
    let info: String = raw
        .run(redis::cmd("INFO").arg("commandstats"))
        .await
        .unwrap();
    let _: Value = raw
        .run(redis::cmd("CONFIG").arg("RESETSTAT"))
        .await
        .unwrap();
    let calls = |line: &str| {
        let (command, rest) = line.split_once(":calls=")?;
        let calls: u64 = rest.split(',').next()?.parse().ok()?;
        Some((command.to_owned(), calls))
    };
    let all: Vec<(String, u64)> = info.lines().filter_map(calls).collect();
    let scripts = all
        .iter()
        .filter(|(command, _)| command == "cmdstat_evalsha");
    (
        all.iter().map(|(_, calls)| calls).sum(),
        scripts.map(|(_, calls)| calls).sum(),
    )
}

/// Settles so many messages one at a time, each of which then has its own moment in the history.
async fn settle_singly(store: &RedisStore, name: &str, count: usize, outcome: fn() -> Outcome) {
    let batch: Vec<Message> = (0..count)
        .map(|n| message(&format!("{name} {n}")))
        .collect();
    for batch in batch.chunks(500) {
        let _ = store.receive(batch).await.unwrap();
        for leased in claim(store, 500).await {
            let settled = store.settle_one(&leased.lease, outcome()).await.unwrap();
            assert_eq!(settled, Settled::Done);
        }
    }
}

fn dead() -> Outcome {
    Outcome::Dead {
        reason: "x".into(),
        after: AfterDead::Continue,
    }
}

/// So many commands, and a script's own, are the most that one script of these runs.
const BOUND: u64 = 2_500;

/// Looks at no message that has neither payload nor result, but once; and at not too many in one script.
#[tokio::test]
async fn payloads_cost_the_same_to_drop_behind_a_long_history() {
    for drop_processed in [false, true] {
        let Some(server) = own(&["--appendfsync", "no"]).await else {
            return;
        };
        let options = options(server.url(), false, 1).drop_processed_payloads(drop_processed);
        let (store, _) = store(options).await;
        let mut raw = Raw::connect(server.url(), false).await.unwrap();
        settle_singly(&store, "a", 4_000, processed).await;
        let request = PurgeRequest::new(State::Processed, Duration::ZERO, 500).unwrap();
        let _ = commands_and_scripts(&mut raw).await;
        let (mut costs, mut left) = (Vec::new(), if drop_processed { 0 } else { 4_000 });
        loop {
            let dropped = store.drop_payloads(&request).await.unwrap();
            let (commands, scripts) = commands_and_scripts(&mut raw).await;
            println!("{commands} commands in {scripts} scripts to drop {dropped}");
            assert!(commands <= BOUND * scripts, "{commands} in {scripts}");
            costs.push(commands);
            assert_eq!(dropped, left.min(500));
            left -= dropped;
            if dropped == 0 {
                break;
            }
        }
        let (first, before_last) = (costs[0], costs[costs.len().saturating_sub(2)]);
        assert!(before_last < first + first / 2 + 100, "{costs:?}");
        // What has been looked at once is not looked at again, by any caller.
        assert_eq!(store.drop_payloads(&request).await.unwrap(), 0);
        let (commands, _) = commands_and_scripts(&mut raw).await;
        assert!(commands < 50, "{commands} commands for nothing");
        // One that is among the first of many without content is found.
        settle_singly(&store, "b", 1, || Outcome::Processed {
            result: Some(Bytes::from_static(b"r")),
        })
        .await;
        settle_singly(&store, "c", 10, processed).await;
        let expected = if drop_processed { 1 } else { 11 };
        assert_eq!(store.drop_payloads(&request).await.unwrap(), expected);
    }
}

/// What waits, and what is named, is found without the history, and so is the place in an ordering key.
#[tokio::test]
async fn looking_at_what_waits_costs_the_same_behind_a_long_history() {
    let Some(server) = own(&["--appendfsync", "no"]).await else {
        return;
    };
    let (store, _) = store(options(server.url(), false, 1)).await;
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    settle_singly(&store, "done", 5_000, processed).await;
    let _ = store.receive_one(&message("leased")).await.unwrap();
    assert_eq!(claim(&store, 1).await.len(), 1);
    let waiting = [
        message("pending"),
        ordered("first", "k"),
        ordered("second", "k"),
    ];
    let _ = store.receive(&waiting).await.unwrap();
    let in_states = |states: &[State]| Filter {
        states: states.to_vec(),
        ..Filter::default()
    };
    let of_key = Filter {
        handler: Some(handler()),
        ordering_key: waiting[1].ordering_key().cloned(),
        ..in_states(&[State::Pending, State::Leased, State::Dead])
    };
    let named = Filter {
        handler: Some(handler()),
        ids: vec![waiting[0].id().clone()],
        ..Filter::default()
    };
    for (filter, expected) in [
        (
            in_states(&[State::Pending]),
            &["pending", "first", "second"][..],
        ),
        (in_states(&[State::Leased]), &["leased"][..]),
        (of_key, &["first", "second"][..]),
        (named, &["pending"][..]),
    ] {
        // The server may have to be told a script first.
        let _ = store.list(&filter, &Page::first(50)).await.unwrap();
        let _ = commands_and_scripts(&mut raw).await;
        let found = store.list(&filter, &Page::first(50)).await.unwrap().records;
        let (commands, scripts) = commands_and_scripts(&mut raw).await;
        let found: Vec<&str> = found.iter().map(|one| one.key.id.as_str()).collect();
        assert_eq!(found, expected);
        println!("{commands} commands in {scripts} scripts for {filter:?}");
        assert!(scripts <= 2 && commands < 100, "{commands} in {scripts}");
    }
}

/// The same of purges, of numbers whose messages have been replayed.
#[tokio::test]
async fn a_purge_costs_the_same_behind_what_was_replayed() {
    let Some(server) = own(&["--appendfsync", "no"]).await else {
        return;
    };
    let (store, _) = store(options(server.url(), false, 1)).await;
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    settle_singly(&store, "a", 4_000, dead).await;
    settle_singly(&store, "b", 3, dead).await;
    let first: Vec<Key> = (0..4_000).map(|n| key(&format!("a {n}"))).collect();
    for key in &first {
        let replayed = store.replay(key, &Edit::default()).await.unwrap();
        assert_eq!(replayed, Intervention::Done);
    }
    let request = PurgeRequest::new(State::Dead, Duration::ZERO, 2).unwrap();
    let _ = commands_and_scripts(&mut raw).await;
    let expired = store.expired(&request).await.unwrap().records;
    let found: Vec<&str> = expired.iter().map(|one| one.key.id.as_str()).collect();
    assert_eq!(found, ["b 0", "b 1"]);
    assert_eq!(store.purge(&request).await.unwrap(), 2);
    let (commands, scripts) = commands_and_scripts(&mut raw).await;
    println!("{commands} commands in {scripts} scripts to purge 2");
    assert!(commands <= BOUND * scripts, "{commands} in {scripts}");
    assert_eq!(store.purge(&request).await.unwrap(), 1);
    assert_eq!(store.purge(&request).await.unwrap(), 0);
    let (commands, _) = commands_and_scripts(&mut raw).await;
    assert!(commands < 100, "{commands} commands for one");
}
