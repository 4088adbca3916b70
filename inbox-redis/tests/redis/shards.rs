//! Messages that belong to another shard than their home.

use super::*;

/// A copy with another ordering key, or with none, belongs to another shard, and is a duplicate.
#[tokio::test]
async fn copies_with_other_ordering_keys_are_duplicates() {
    let Some(options) = shared(7) else { return };
    let (store, _) = store(options).await;
    for (number, first) in ["a", "b", "c", "d", "e", ""].into_iter().enumerate() {
        for (other, second) in ["a", "b", "c", "d", "e", ""].into_iter().enumerate() {
            let id = format!("{number}-{other}");
            let of = |okey: &str| match okey {
                "" => message(&id),
                okey => ordered(&id, okey),
            };
            let accepted = store.receive_one(&of(first)).await.unwrap();
            assert_eq!(accepted, Receipt::Accepted, "{first} {second}");
            let again = store.receive_one(&of(second)).await.unwrap();
            assert_eq!(again, Receipt::Duplicate, "{first} then {second}");
            let begun = store.begin(&of(second), &terms()).await.unwrap();
            assert!(matches!(begun, Begun::Run(_) | Begun::Blocked), "{begun:?}");
            let record = store.get(&key(&id)).await.unwrap().unwrap();
            assert_eq!(record.ordering_key, of(first).ordering_key().cloned());
            let found = store.discard(&key(&id)).await.unwrap();
            assert_ne!(found, Intervention::NotFound);
        }
    }
    let all = store.count(&Filter::default()).await.unwrap();
    assert_eq!(all, 36);
}

/// Whoever reserved a place and died leaves nothing in the way, and cannot come back to it.
#[tokio::test]
async fn a_reservation_that_was_never_used_gives_way() {
    let Some(options) = shared(7) else { return };
    let (store, _) = store(options).await;
    // Purging behind the store's back leaves the guards, as a purger that dies does.
    for okey in ["a", "b", "c", "d"] {
        let first = ordered("1", okey);
        assert_eq!(store.receive_one(&first).await.unwrap(), Receipt::Accepted);
        let mut raw = raw().await;
        let ddl = store.ddl();
        for line in ddl.lines().filter(|l| l.starts_with("HSET")) {
            let prefix = line
                .split(' ')
                .nth(1)
                .unwrap()
                .trim_end_matches("meta")
                .to_owned();
            let mut body = redis::cmd("HDEL");
            body.arg(format!("{prefix}body")).arg("billing\x001");
            let gone: i64 = raw.run(&body).await.unwrap();
            if gone == 1 {
                for rest in [
                    "ids",
                    "counts",
                    "log",
                    "due:billing",
                    "open:billing",
                    "heads:billing",
                ] {
                    let mut delete = redis::cmd(if rest == "ids" { "HDEL" } else { "DEL" });
                    delete.arg(format!("{prefix}{rest}"));
                    if rest == "ids" {
                        delete.arg("billing\x001");
                    }
                    let _: Value = raw.run(&delete).await.unwrap();
                }
            }
        }
        // A copy with another key takes the place.
        let other = ordered("1", "z");
        assert_eq!(
            store.receive_one(&other).await.unwrap(),
            Receipt::Accepted,
            "{okey}"
        );
        assert_eq!(
            store.receive_one(&first).await.unwrap(),
            Receipt::Duplicate,
            "{okey}"
        );
        let leased = claim(&store, 10).await;
        assert_eq!(leased.len(), 1, "{okey}");
        settle_all(&store, leased).await;
        let done = Expired::new(State::Processed, Duration::ZERO, 10).unwrap();
        assert_eq!(store.purge(&done).await.unwrap(), 1, "{okey}");
    }
}

/// One delivery for several handlers, each with an ordering key of its own.
fn fan_out(id: &str) -> Vec<Message> {
    (0..6)
        .map(|n| {
            let name = HandlerName::new(format!("handler-{n}")).unwrap();
            ordered(id, &format!("{id} {n}"))
                .for_handler(name)
                .with_ordering_key(OrderingKey::new(format!("key {n} of {id}")).unwrap())
        })
        .collect()
}

/// Whoever sends a delivery and dies half-way has stored all of its messages or none, and others
/// see to it that those that were on their way arrive.
#[tokio::test]
async fn a_delivery_for_several_shards_is_stored_together_or_not_at_all() {
    let Some(options) = shared(7) else { return };
    let (store, _) = store(options).await;
    let (mut none, mut all) = (0, 0);
    for polls in 0..60_u32 {
        let id = format!("delivery {polls}");
        let sent = fan_out(&id);
        {
            // Dropped at its n-th await point that waits.
            let mut receive = std::pin::pin!(store.receive(&sent));
            let mut left = polls / 2;
            let cut = std::future::poll_fn(|context| {
                let polled = receive.as_mut().poll(context);
                if polled.is_ready() || left == 0 {
                    return std::task::Poll::Ready(());
                }
                left -= 1;
                std::task::Poll::Pending
            });
            cut.await;
        }
        // What was sent arrives even though nobody waits for the answer.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut found = 0;
        for message in &sent {
            found += usize::from(store.get(message.key()).await.unwrap().is_some());
        }
        assert!(found == 0 || found == sent.len(), "{found} after {polls}");
        none += usize::from(found == 0);
        all += usize::from(found > 0);
        if polls % 2 == 0 {
            let again = store.receive(&sent).await.unwrap();
            let expected = if found == 0 {
                Receipt::Accepted
            } else {
                Receipt::Duplicate
            };
            assert!(
                again.iter().all(|receipt| *receipt == expected),
                "{polls}: {again:?}"
            );
        }
    }
    assert!(none > 0 && all > 0, "{none} of none, {all} of all");
}
