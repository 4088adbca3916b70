//! The publisher: what it sends, and how it tells what was not added.

use std::time::Duration;

use inbox_api::OrderingKey;
use inbox_redis_streams::RedisStreamsPublisher;
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
