//! The publisher: what it sends, and how it tells what was not added.

use std::{collections::HashSet, time::Duration};

use inbox_api::OrderingKey;
use inbox_redis_streams::{PAYLOAD, RedisStreamsPublisher};
use inbox_source::{Delivery as _, Envelope, Publisher as _, Source as _, SourceError};
use redis::{Value, cmd};
use test_servers::Kind;
use tokio::{
    task::block_in_place,
    time::{Instant, sleep},
};

use crate::{
    harness::{Outcome, Redis},
    source::{PATIENCE, acknowledge, source, take},
};

pub(crate) async fn what_is_published_arrives_as_it_was(server: &Redis) -> Outcome {
    let stream = "round";
    server.create(stream).await?;
    let mut sent = Envelope::new(stream, &b"\xff\x00{}"[..]);
    sent.id = Some("evt-1".into());
    sent.kind = Some("order.placed".into());
    sent.key = Some("customer-1".into());
    sent.content_type = Some("application/json".into());
    sent.headers = vec![
        ("app".into(), "shop \u{e9}".into()),
        ("payload".into(), "x".into()),
    ];
    let empty = Envelope::new(stream, "");
    server
        .publish(stream, &[sent.clone(), empty.clone()])
        .await?;
    let mut source = source(server.options(stream)?);
    let taken = take(&mut source, 2).await?;
    let arrived = taken[0].envelope();
    let properties = |one: &Envelope| {
        let (id, kind, key) = (one.id.clone(), one.kind.clone(), one.key.clone());
        (id, kind, key, one.content_type.clone())
    };
    assert_eq!(properties(arrived), properties(&sent));
    assert_eq!(arrived.payload, sent.payload);
    assert_eq!(arrived.address, sent.address);
    for (name, value) in &sent.headers {
        assert_eq!(arrived.header(name), Some(value.as_str()));
    }
    let message = taken[0].message()?;
    assert_eq!(message.id().as_str(), "evt-1");
    assert_eq!(message.kind().as_str(), "order.placed");
    let key = message.ordering_key().map(OrderingKey::as_str);
    assert_eq!(key, Some("customer-1"));
    assert_eq!(taken[1].envelope().payload, empty.payload);
    acknowledge(taken).await;
    source.close().await?;
    Ok(())
}

pub(crate) async fn what_cannot_be_published_is_told(server: &Redis) -> Outcome {
    let stream = "told";
    server.create(stream).await?;
    server
        .ask::<Value>(cmd("SET").arg("no-stream").arg("a text"))
        .await?;
    let publisher = RedisStreamsPublisher::new(server.direct()?);
    let addresses = [stream, "no-stream", stream];
    let messages = addresses.map(|address| Envelope::new(address, "body"));
    let answers = publisher.publish(&messages).await;
    assert!(answers[0].is_ok() && answers[2].is_ok(), "{answers:?}");
    let error = answers[1].as_ref().err().ok_or("it was published")?;
    assert!(!error.is_transient(), "{error}");
    server.until(stream, (2, 0)).await?;
    // There is none.
    let publisher = RedisStreamsPublisher::new(server.direct()?);
    let publisher = publisher.wait_replicas(1).timeout(Duration::from_secs(2));
    for _ in 0..3 {
        let answers = publisher.publish(&[Envelope::new(stream, "body")]).await;
        let error = answers[0].as_ref().err().ok_or("it was confirmed")?;
        assert!(error.is_transient(), "{error}");
    }
    // Nor is it there, once for each attempt.
    assert_eq!(server.entries(stream).await?.len(), 2);
    Ok(())
}

async fn configure(server: &Redis, name: &str, bytes: u32) -> Outcome {
    let mut set = cmd("CONFIG");
    server
        .ask::<Value>(set.arg("SET").arg(name).arg(bytes))
        .await?;
    Ok(())
}

/// The server reads no more after a value that is larger than it takes.
pub(crate) async fn a_message_that_ends_the_connection_holds_up_no_other(
    server: &Redis,
) -> Outcome {
    let stream = "too-large";
    let name = "proto-max-bulk-len";
    configure(server, name, 1 << 20).await?;
    let mut messages: Vec<_> = (0..20)
        .map(|number: u32| Envelope::new(stream, number.to_string()))
        .collect();
    for large in [5, 12] {
        messages[large].payload = vec![b'x'; 2 << 20].into();
    }
    // It must not come before the one of its key that failed.
    messages[5].key = Some("k".into());
    messages[7].key = Some("k".into());
    let publisher = RedisStreamsPublisher::new(server.direct()?).timeout(PATIENCE);
    let answers = publisher.publish(&messages).await;
    configure(server, name, 512 << 20).await?;
    assert_eq!(answers.len(), messages.len());
    let mut stored: HashSet<_> = HashSet::new();
    for (_, mut fields) in server.entries(stream).await? {
        stored.extend(fields.remove(PAYLOAD));
    }
    for (place, answer) in answers.iter().enumerate() {
        let fits = ![5, 7, 12].contains(&place);
        assert_eq!(answer.is_ok(), fits, "{place}: {answer:?}");
        assert_eq!(
            stored.contains(&messages[place].payload[..]),
            fits,
            "{place}"
        );
    }
    Ok(())
}

/// Defect: after ten nothing more was added, and each further call began with the same ones. The server says nothing of a
/// command that is larger than what it keeps of one.
pub(crate) async fn many_that_end_the_connection_hold_up_none_behind_them(
    server: &Redis,
) -> Outcome {
    let (stream, name) = ("behind-too-large", "client-query-buffer-limit");
    let large = vec![b'x'; 2 << 20];
    let mut messages = vec![Envelope::new(stream, large); 12];
    messages.push(Envelope::new(stream, "small"));
    let publisher = RedisStreamsPublisher::new(server.direct()?).timeout(PATIENCE);
    configure(server, name, 1 << 20).await?;
    let answers = publisher.publish(&messages).await;
    configure(server, name, 1 << 30).await?;
    assert_eq!(answers.len(), messages.len());
    for (message, answer) in messages.iter().zip(answers) {
        match message.payload.len() > 5 {
            true => assert!(answer.is_err_and(|error| error.is_transient())),
            false => assert!(answer.is_ok(), "{answer:?}"),
        }
    }
    assert_eq!(server.entries(stream).await?.len(), 1);
    Ok(())
}

/// One that is not there yet, is there, and is there no longer.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_added_while_a_replica_is_missing() -> Outcome {
    let Some(server) = block_in_place(|| Redis::own(Kind::Redis))? else {
        return Ok(());
    };
    let Some(replica) = block_in_place(|| Redis::own(Kind::Redis))? else {
        return Ok(());
    };
    let stream = "replicated";
    let at_once = ["SET", "repl-diskless-sync-delay", "0"];
    server.ask::<Value>(cmd("CONFIG").arg(&at_once)).await?;
    let publisher = RedisStreamsPublisher::new(server.direct()?);
    let publisher = publisher.wait_replicas(1).timeout(PATIENCE);
    let message = [Envelope::new(stream, "body")];
    let answers = publisher.publish(&message).await;
    assert!(answers[0].as_ref().is_err_and(SourceError::is_transient));
    let (host, port) = server.address().split_once(':').ok_or("no port")?;
    replica
        .ask::<Value>(cmd("REPLICAOF").arg(host).arg(port))
        .await?;
    let deadline = Instant::now() + PATIENCE;
    while let Some(error) = publisher.publish(&message).await.remove(0).err() {
        assert!(error.is_transient() && Instant::now() < deadline, "{error}");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(server.entries(stream).await?.len(), 1);
    assert_eq!(replica.entries(stream).await?.len(), 1);
    replica
        .ask::<Value>(cmd("REPLICAOF").arg("NO").arg("ONE"))
        .await?;
    let told = |info: String| info.contains("connected_slaves:0");
    while !told(server.ask(cmd("INFO").arg("replication")).await?) {
        assert!(Instant::now() < deadline, "the replica is there");
        sleep(Duration::from_millis(50)).await;
    }
    let answers = publisher.publish(&message).await;
    assert!(answers[0].as_ref().is_err_and(SourceError::is_transient));
    assert_eq!(server.entries(stream).await?.len(), 1);
    Ok(())
}
