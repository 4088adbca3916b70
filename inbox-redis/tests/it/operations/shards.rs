//! Messages whose ordering key is in another shard than their id.

use conformance_tests::crash::proxy::Proxy;

use super::*;
use crate::common::{address::socket, messages::claim_runs};

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
            assert_eq!(
                again,
                Receipt::Duplicate { differs: false },
                "{first} then {second}"
            );
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

/// A note of where a message is may be there without the message, and the other way round.
#[tokio::test]
async fn a_lost_or_left_note_of_a_place_does_no_harm() {
    let Some(options) = shared(7) else { return };
    let (store, _) = store(options.clone()).await;
    let notes = |shard: u16| format!("{{{}:{shard}}}:places", options.name());
    let mut raw = raw().await;
    let mut noted = 0;
    for (number, okey) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        let id = number.to_string();
        let first = ordered(&id, okey);
        assert_eq!(store.receive_one(&first).await.unwrap(), Receipt::Accepted);
        for shard in 0..7 {
            let mut lost = redis::cmd("DEL");
            noted += raw.run::<i64>(lost.arg(notes(shard))).await.unwrap();
        }
        let again = store.receive_one(&first).await.unwrap();
        assert_eq!(again, Receipt::Duplicate { differs: false }, "{okey}");
        for shard in 0..7 {
            let mut lost = redis::cmd("DEL");
            let _: i64 = raw.run(lost.arg(notes(shard))).await.unwrap();
        }
        assert!(store.get(&key(&id)).await.unwrap().is_some(), "{okey}");
        let found = store.discard(&key(&id)).await.unwrap();
        assert_eq!(found, Intervention::Done, "{okey}");
        let gone = PurgeRequest::new(State::Discarded, Duration::ZERO, 10).unwrap();
        let purged = store.purge_archived(&gone, &[key(&id)]).await.unwrap();
        assert_eq!(purged, 1, "{okey}");

        // A note without a message: its writer died before it stored the message.
        let id = format!("noted {number}");
        for shard in 0..7 {
            let mut left = redis::cmd("HSET");
            left.arg(notes(shard)).arg(format!("billing\0{id}")).arg(3);
            let _: i64 = raw.run(&left).await.unwrap();
        }
        let sent = ordered(&id, okey);
        assert_eq!(store.receive_one(&sent).await.unwrap(), Receipt::Accepted);
        for copy in [message(&id), ordered(&id, "z"), sent] {
            let again = store.receive_one(&copy).await.unwrap();
            assert_eq!(again, Receipt::Duplicate { differs: false }, "{copy:?}");
        }
        let begun = store.begin(&message(&id), &terms()).await.unwrap();
        let Begun::Run(leased) = begun else {
            panic!("{begun:?}");
        };
        settle_all(&store, vec![*leased]).await;
        let gone = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
        assert_eq!(store.purge(&gone).await.unwrap(), 1, "{okey}");
    }
    assert!(noted > 0);
}

/// One delivery for several handlers, with one ordering key, is stored together.
#[tokio::test]
async fn a_delivery_is_stored_together_or_not_at_all() {
    let Some(options) = shared(7) else { return };
    let (store, _) = store(options).await;
    let (mut none, mut all) = (0, 0);
    for polls in 0..60_u32 {
        let id = format!("delivery {polls}");
        let sent: Vec<Message> = (0..6)
            .map(|n| {
                let name = HandlerName::new(format!("handler-{n}")).unwrap();
                ordered(&id, &format!("key of {id}")).for_handler(name)
            })
            .collect();
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
                Receipt::Duplicate { differs: false }
            };
            assert!(
                again.iter().all(|receipt| *receipt == expected),
                "{polls}: {again:?}"
            );
        }
    }
    assert!(none > 0 && all > 0, "{none} of none, {all} of all");
}

/// In one receive that takes each shard two scripts, copies for a second handler are stored with the first ones,
/// though what is between them is stored by the second script.
#[tokio::test]
async fn runs_of_one_receive_never_interleave() {
    let Some(options) = shared(2) else { return };
    let (store, _) = store(options).await;
    let [first, second] = ["one", "two"].map(|name| HandlerName::new(name).unwrap());
    let of = |handler: &HandlerName, name: &str, count: u32| -> Vec<Message> {
        let id = |n: u32| message(&format!("{name}{n}")).for_handler(handler.clone());
        (0..count).map(id).collect()
    };
    // Half of each name's are in each shard.
    let sent = [
        of(&first, "a", 500),
        of(&second, "b", 500),
        of(&second, "c", 600),
        of(&second, "a", 40),
    ]
    .concat();
    let receipts = store.receive(&sent).await.unwrap();
    assert!(receipts.iter().all(|one| *one == Receipt::Accepted));
    assert_eq!(contradictions(&store).await.unwrap(), [""; 0]);
    for one in &sent {
        let record = store.get(one.key()).await.unwrap().unwrap();
        assert_eq!(record.state, State::Pending, "{}", one.key());
    }

    let request = ClaimRequest {
        handlers: vec![first, second],
        limit: 2_000,
        terms: terms(),
        run_limit: 1,
    };
    let leased = store.claim(&request).await.unwrap().leased;
    assert_eq!(leased.len(), sent.len());
    for one in &leased {
        let extended = store.extend_one(&one.lease, LENGTH * 2).await.unwrap();
        assert!(matches!(extended, Extended::Until(_)), "{extended:?}");
    }
    settle_all(&store, leased).await;
    let statistics = store.statistics().await.unwrap();
    assert_eq!(statistics.count(State::Processed), sent.len() as u64);
    assert_eq!(contradictions(&store).await.unwrap(), [""; 0]);
}

/// The notes of where messages were go behind the settlement that deletes these.
#[tokio::test]
async fn notes_go_with_what_settlements_delete() {
    let Some(options) = shared(7) else { return };
    let name = options.name().clone();
    let (store, clock) = store(options.keep_processed(Some(LENGTH))).await;
    let of = |batch: &str| -> Vec<Message> {
        let sent = |n| ordered(&format!("{batch} {n}"), &format!("key {n}"));
        (0..40).map(sent).collect()
    };
    let mut raw = raw().await;
    let mut noted = async |batch: &str| {
        let mut noted = 0;
        for shard in 0..7 {
            let mut fields = redis::cmd("HKEYS");
            fields.arg(format!("{{{name}:{shard}}}:places"));
            let fields: Vec<String> = raw.run(&fields).await.unwrap();
            let of_batch = format!("billing\0{batch} ");
            noted += fields.iter().filter(|f| f.starts_with(&of_batch)).count();
        }
        noted
    };
    for batch in ["old", "new"] {
        let _ = store.receive(&of(batch)).await.unwrap();
        assert!(noted(batch).await > 0);
        settle_all(&store, claim(&store, 40).await).await;
        clock.advance(LENGTH * 2);
    }
    let left = store.statistics().await.unwrap().count(State::Processed);
    assert_eq!(left, 40);
    let since = Instant::now();
    while noted("old").await > 0 {
        assert!(since.elapsed() < crate::common::PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(noted("new").await > 0);
}

/// The shards that the notes of a message name.
async fn notes_of(raw: &mut Raw, options: &RedisOptions, id: &str) -> Vec<String> {
    let mut notes = Vec::new();
    for shard in 0..7 {
        let mut note = redis::cmd("HGET");
        note.arg(format!("{{{}:{shard}}}:places", options.name()))
            .arg(format!("billing\0{id}"));
        notes.extend(raw.run::<Option<String>>(&note).await.unwrap());
    }
    notes
}

/// A message comes again before the note of its predecessor is removed, behind the settlement that has deleted this.
#[tokio::test]
async fn a_note_that_a_new_message_needs_stays() {
    let Some(server) = own(&[]).await else { return };
    let options = options(server.url(), false, 7).keep_processed(Some(LENGTH));
    let (store, clock) = store(options.clone()).await;
    let proxy = Proxy::start(socket(server.url())).await.unwrap();
    let slow = common::options(&format!("redis://{}/", proxy.address()), false, 7)
        .inbox_name(options.name().clone())
        .keep_processed(Some(LENGTH))
        .operation_timeout(common::PATIENCE)
        .clock_offset(clock.clone());
    let slow = RedisStore::connect(slow).await.unwrap();
    let of = |batch: &str| -> Vec<Message> {
        let sent = |n| ordered(&format!("{batch} {n}"), "key");
        (0..40).map(sent).collect()
    };
    let (old, new) = (of("old"), of("new"));
    let _ = store.receive(&old).await.unwrap();
    settle_all(&store, claim_runs(&store, 40).await.unwrap()).await;
    clock.advance(LENGTH * 2);
    let _ = store.receive(&new).await.unwrap();
    let leased = claim_runs(&store, 40).await.unwrap();
    settle_all(&slow, leased).await;
    // What removes the notes is a task that has not begun.
    proxy.stall();
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let (again, gone) = old.split_at(20);
    let mut noted = 0;
    for one in again {
        assert_eq!(store.receive_one(one).await.unwrap(), Receipt::Accepted);
        noted += notes_of(&mut raw, &options, one.key().id.as_str())
            .await
            .len();
    }
    assert!(noted > 0);
    proxy.forward();
    let since = Instant::now();
    for one in gone {
        while !notes_of(&mut raw, &options, one.key().id.as_str())
            .await
            .is_empty()
        {
            assert!(since.elapsed() < common::PATIENCE);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for one in again {
        let id = one.key().id.as_str();
        for copy in [message(id), ordered(id, "another key")] {
            let receipt = store.receive_one(&copy).await.unwrap();
            assert_eq!(receipt, Receipt::Duplicate { differs: false }, "{copy:?}");
        }
    }
}

/// A copy that a note sends to another shard takes the note from the removal that has marked it.
#[tokio::test]
async fn a_note_that_is_read_loses_the_mark_of_its_removal() {
    let Some(options) = shared(7) else { return };
    let (store, _) = store(options.clone()).await;
    let mut raw = raw().await;
    for n in 0..10 {
        for (way, okey) in [("receive", None), ("receive", Some("a")), ("begin", None)] {
            let id = format!("{way} {okey:?} {n}");
            for shard in 0..7 {
                let mut marked = redis::cmd("HSET");
                marked
                    .arg(format!("{{{}:{shard}}}:places", options.name()))
                    .arg(format!("billing\0{id}"))
                    .arg("3 12345678901234567890");
                let _: i64 = raw.run(&marked).await.unwrap();
            }
            let sent = okey.map_or_else(|| message(&id), |okey| ordered(&id, okey));
            match way {
                // With others, of which runs are made.
                "receive" => {
                    let others = (0..20).map(|other| message(&format!("{other} with {id}")));
                    let batch: Vec<_> = std::iter::once(sent.clone()).chain(others).collect();
                    let receipts = store.receive(&batch).await.unwrap();
                    assert_eq!(receipts, vec![Receipt::Accepted; 21]);
                }
                _ => {
                    let begun = store.begin(&sent, &terms()).await.unwrap();
                    assert!(matches!(begun, Begun::Run(_)), "{begun:?}");
                }
            }
            let notes = notes_of(&mut raw, &options, &id).await;
            let without_mark = notes.iter().filter(|note| *note == "3").count();
            assert_eq!(without_mark, 1, "{id}: {notes:?}");
            let copy = ordered(&id, "z");
            let receipt = store.receive_one(&copy).await.unwrap();
            assert_eq!(receipt, Receipt::Duplicate { differs: false }, "{id}");
        }
    }
}
