//! Messages that AMQP allows and that are no text.

use std::time::Duration;

use inbox_rabbitmq::{RabbitMqDelivery, RabbitMqOptions, RabbitMqSource};
use inbox_source::{Delivery as _, Mapping, Rejection, Source as _};
use lapin::types::FieldTable;
use test_servers::Kind;
use tokio::{task::block_in_place, time::timeout};

use crate::{
    harness::{Outcome, Rabbit, Setup, dead},
    sender::{Property, Sender, long, short},
};

const PATIENCE: Duration = Duration::from_secs(30);
const BAD: &[u8] = b"M\xfcller-1";

fn source(options: RabbitMqOptions) -> Outcome<RabbitMqSource> {
    Ok(RabbitMqSource::new(options, Mapping::new("billing")?)?)
}

/// The next delivery, over the connection that is there: none is lost.
async fn next(source: &mut RabbitMqSource) -> Outcome<RabbitMqDelivery> {
    let came = timeout(PATIENCE, source.next()).await??;
    came.ok_or_else(|| "the source has ended".into())
}

fn table(name: &[u8], value: &[u8]) -> Vec<u8> {
    long(&[&short(name), &b"S"[..], &long(value)].concat())
}

async fn run(kind: Kind, setup: Setup) -> Outcome {
    let Some(server) = block_in_place(|| Rabbit::of_kind(kind, setup, &[]))? else {
        return Ok(());
    };
    good_ones_pass_and_bad_ones_are_rejected(&server).await?;
    what_nobody_reads_is_no_reason(&server).await?;
    tables_within_tables_do_no_harm(&server).await?;
    a_bad_routing_key_is_rejected(&server).await?;
    a_bad_one_is_kept_as_it_came(&server).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_quorum_queues() -> Outcome {
    run(Kind::RabbitMq, Setup::QUORUM).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_quorum_queues_of_rabbitmq_4() -> Outcome {
    run(Kind::RabbitMq4, Setup::QUORUM).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_classic_queues() -> Outcome {
    run(Kind::RabbitMq, Setup::CLASSIC).await
}

async fn good_ones_pass_and_bad_ones_are_rejected(server: &Rabbit) -> Outcome {
    let queue = "unreadable";
    server.create(queue).await?;
    let mut sender = Sender::connect(server.plain()).await?;
    let bad = [
        ("message-id", Property::MessageId, short(BAD)),
        ("type", Property::Type, short(BAD)),
        ("app-id", Property::AppId, short(BAD)),
        ("content-type", Property::ContentType, short(BAD)),
        ("correlation-id", Property::CorrelationId, short(BAD)),
        ("reply-to", Property::ReplyTo, short(BAD)),
        ("header", Property::Headers, table(BAD, b"v")),
    ];
    for (number, (_, property, value)) in bad.iter().enumerate() {
        let good = [(
            Property::MessageId,
            short(format!("good-{number}").as_bytes()),
        )];
        let key = queue.as_bytes();
        sender.send("", key, &good, b"good").await?;
        let bad = [(*property, value.clone())];
        sender.send("", key, &bad, b"bad").await?;
    }
    let mut source = source(server.options(queue)?)?;
    for (number, (name, ..)) in bad.iter().enumerate() {
        let good = next(&mut source).await?;
        assert_eq!(good.message()?.id().as_str(), format!("good-{number}"));
        good.acknowledge().await?;
        let delivery = next(&mut source).await?;
        let rejection = delivery.message().err().ok_or("it is a message")?;
        assert!(rejection.reason().contains(name), "{name}: {rejection}");
        assert!(rejection.reason().contains("UTF-8"), "{name}: {rejection}");
        delivery.reject(Rejection::new("no good")).await?;
    }
    server.until(queue, (0, 0)).await?;
    server.until(&dead(queue), (bad.len() as u64, 0)).await?;
    source.close().await?;
    Ok(())
}

/// A property that is not looked at, and bytes where AMQP has bytes, make a message no worse.
async fn what_nobody_reads_is_no_reason(server: &Rabbit) -> Outcome {
    let queue = "readable";
    server.create(queue).await?;
    let mut sender = Sender::connect(server.plain()).await?;
    let properties = [
        (Property::ContentEncoding, short(BAD)),
        (Property::Headers, table(b"name", BAD)),
        (Property::MessageId, short("M\u{fc}ller".as_bytes())),
    ];
    sender
        .send("", queue.as_bytes(), &properties, b"{}")
        .await?;
    let mut source = source(server.options(queue)?)?;
    let delivery = next(&mut source).await?;
    let message = delivery.message()?;
    assert_eq!(message.id().as_str(), "M\u{fc}ller");
    assert_eq!(message.headers().get("name-bin"), Some("TfxsbGVyLTE="));
    delivery.acknowledge().await?;
    source.close().await?;
    Ok(())
}

/// The client reads them by calling itself.
async fn tables_within_tables_do_no_harm(server: &Rabbit) -> Outcome {
    let queue = "deep";
    server.create(queue).await?;
    let mut table = long(b"");
    for _ in 0..10_000 {
        table = long(&[&short(b""), &b"F"[..], &table].concat());
    }
    let mut sender = Sender::connect(server.plain()).await?;
    let properties = [
        (Property::Headers, table),
        (Property::MessageId, short(b"m-1")),
    ];
    sender
        .send("", queue.as_bytes(), &properties, b"{}")
        .await?;
    let mut source = source(server.options(queue)?)?;
    let delivery = next(&mut source).await?;
    assert_eq!(delivery.message()?.id().as_str(), "m-1");
    delivery.acknowledge().await?;
    source.close().await?;
    Ok(())
}

async fn a_bad_routing_key_is_rejected(server: &Rabbit) -> Outcome {
    let (queue, exchange) = ("routed", "all");
    server.create(queue).await?;
    let (connection, channel) = server.channel().await?;
    let declared = channel.exchange_declare(
        exchange.into(),
        lapin::ExchangeKind::Fanout,
        Default::default(),
        FieldTable::default(),
    );
    declared.await?;
    let bound = channel.queue_bind(
        queue.into(),
        exchange.into(),
        "".into(),
        Default::default(),
        FieldTable::default(),
    );
    bound.await?;
    connection.close(200, "".into()).await?;
    let mut sender = Sender::connect(server.plain()).await?;
    let id = [(Property::MessageId, short(b"m-1"))];
    sender.send(exchange, BAD, &id, b"bad").await?;
    sender.send(exchange, b"key", &id, b"good").await?;
    let mut source = source(server.options(queue)?)?;
    let delivery = next(&mut source).await?;
    let rejection = delivery.message().err().ok_or("it is a message")?;
    assert!(rejection.reason().contains("routing key"), "{rejection}");
    delivery.reject(rejection).await?;
    let good = next(&mut source).await?;
    assert_eq!(good.message()?.kind().as_str(), "key");
    good.acknowledge().await?;
    server.until(queue, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

/// For a receiver that keeps it: the bytes that are no text are there.
async fn a_bad_one_is_kept_as_it_came(server: &Rabbit) -> Outcome {
    let queue = "kept";
    server.create(queue).await?;
    let mut sender = Sender::connect(server.plain()).await?;
    let properties = [
        (Property::Headers, table(BAD, b"v")),
        (Property::MessageId, short(BAD)),
    ];
    sender
        .send("", queue.as_bytes(), &properties, b"body")
        .await?;
    let mut source = source(server.options(queue)?)?;
    let delivery = next(&mut source).await?;
    let raw = delivery.raw().ok_or("it has no bytes")?;
    assert_eq!(raw.payload().as_ref(), b"body");
    let header = |name| raw.headers().get(name);
    assert_eq!(header("message-id-bin"), Some("TfxsbGVyLTE="));
    assert_eq!(header("header-name-bin"), Some("TfxsbGVyLTE="));
    delivery.acknowledge().await?;
    server.until(queue, (0, 0)).await?;
    source.close().await?;
    Ok(())
}
