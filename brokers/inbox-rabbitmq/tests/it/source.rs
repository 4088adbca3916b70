//! What is peculiar to RabbitMQ.

use std::time::Duration;

use inbox_api::{ErrorKind, OrderingKey};
use inbox_rabbitmq::{
    QueueKind, RabbitMqDelivery, RabbitMqOptions, RabbitMqPublisher, RabbitMqSource, Rejections,
};
use inbox_source::{
    Delivery as _, Envelope, Flow, IdFrom, Mapping, Publisher as _, Rejection, Source as _,
    SourceError,
};
use lapin::types::{AMQPValue, FieldTable};
use test_servers::{Kind, Server};
use tokio::{
    task::block_in_place,
    time::{Instant, sleep, timeout},
};

use crate::harness::{Outcome, Rabbit, Setup, dead};

const PATIENCE: Duration = Duration::from_secs(60);

fn source(options: RabbitMqOptions) -> RabbitMqSource {
    RabbitMqSource::new(options, Mapping::new("billing").unwrap()).unwrap()
}

/// The next delivery; what may pass is waited for.
async fn next(source: &mut RabbitMqSource) -> Outcome<RabbitMqDelivery> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match timeout(PATIENCE, source.next()).await? {
            Ok(delivery) => return Ok(delivery.ok_or("the source has ended")?),
            Err(error) if error.is_transient() && Instant::now() < deadline => {
                sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn take(source: &mut RabbitMqSource, count: usize) -> Outcome<Vec<RabbitMqDelivery>> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(next(source).await?);
    }
    Ok(taken)
}

async fn failure(source: &mut RabbitMqSource) -> Outcome<SourceError> {
    match timeout(PATIENCE, source.next()).await? {
        Ok(_) => Err("a delivery came".into()),
        Err(error) => Ok(error),
    }
}

/// Nothing comes for so long. What may pass may.
async fn nothing(source: &mut RabbitMqSource, time: Duration) -> Outcome {
    let came = async {
        loop {
            match source.next().await {
                Err(error) if error.is_transient() => sleep(Duration::from_millis(100)).await,
                came => return format!("{came:?}"),
            }
        }
    };
    match timeout(time, came).await {
        Err(_) => Ok(()),
        Ok(came) => Err(came.into()),
    }
}

fn text(delivery: &RabbitMqDelivery) -> String {
    String::from_utf8_lossy(&delivery.envelope().payload).into_owned()
}

fn texts(all: &[RabbitMqDelivery]) -> Vec<String> {
    all.iter().map(text).collect()
}

fn numbers(range: std::ops::RangeInclusive<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// One server for what harms nothing.
async fn run(kind: Kind, setup: Setup) -> Outcome {
    let Some(server) = block_in_place(|| Rabbit::of_kind(kind, setup, &[]))? else {
        return Ok(());
    };
    a_run_is_acknowledged(&server).await?;
    what_is_dropped_comes_again(&server).await?;
    no_more_than_may_be_held(&server).await?;
    a_close_gives_back_at_once(&server).await?;
    after_a_cut_it_comes_again_at_once(&server).await?;
    a_rejected_message_goes_to_its_queue(&server).await?;
    a_rejected_message_stops(&server).await?;
    queues_that_do_not_fit_are_refused(&server).await?;
    a_stream_is_refused(&server).await?;
    a_cancelled_consumer_comes_back(&server).await?;
    what_is_published_arrives_as_it_was(&server).await?;
    what_no_queue_takes_is_told(&server).await?;
    a_wrong_password_is_permanent_for_a_source(&server).await?;
    a_user_who_may_not_read_is_refused(&server).await?;
    a_limit_of_connections_passes(&server).await
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

async fn a_run_is_acknowledged(server: &Rabbit) -> Outcome {
    let queue = "run";
    server.create(queue).await?;
    server.publish_numbers(queue, 50).await?;
    let mut source = source(server.options(queue)?);
    let mut taken = take(&mut source, 50).await?;
    assert_eq!(texts(&taken), numbers(1..=50));
    server.until(queue, (0, 50)).await?;
    // What is acknowledged first includes nothing that has no answer.
    let rest = taken.split_off(30);
    let first = taken.split_off(10);
    assert!(RabbitMqDelivery::acknowledge_all(first).await.is_empty());
    server.until(queue, (0, 30)).await?;
    assert!(RabbitMqDelivery::acknowledge_all(rest).await.is_empty());
    server.until(queue, (0, 10)).await?;
    assert!(RabbitMqDelivery::acknowledge_all(taken).await.is_empty());
    server.until(queue, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

async fn what_is_dropped_comes_again(server: &Rabbit) -> Outcome {
    let queue = "dropped";
    server.create(queue).await?;
    server.publish_numbers(queue, 3).await?;
    let mut source = source(server.options(queue)?);
    let mut taken = take(&mut source, 3).await?;
    drop(taken.remove(1));
    // This one does not include it.
    assert!(taken.remove(1).acknowledge().await.is_ok());
    let again = next(&mut source).await?;
    assert_eq!(text(&again), "2");
    taken.push(again);
    assert!(RabbitMqDelivery::acknowledge_all(taken).await.is_empty());
    server.until(queue, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

async fn no_more_than_may_be_held(server: &Rabbit) -> Outcome {
    let queue = "flow";
    server.create(queue).await?;
    server.publish_numbers(queue, 20).await?;
    let mut source = source(server.options(queue)?);
    source.set_flow(Flow::new(7, 3));
    let mut taken = take(&mut source, 7).await?;
    assert_eq!(source.lag(), Some(20));
    let more = timeout(Duration::from_millis(300), source.next()).await;
    assert!(more.is_err());
    // Counted now and then, and so it stays.
    server.until(queue, (13, 7)).await?;
    assert_eq!(server.outstanding(queue).await?, (13, 7));
    let rest = taken.split_off(3);
    assert!(RabbitMqDelivery::acknowledge_all(taken).await.is_empty());
    let some = take(&mut source, 3).await?;
    assert_eq!(texts(&some), numbers(8..=10));
    server.until(queue, (10, 7)).await?;
    let deadline = Instant::now() + PATIENCE;
    while source.lag() != Some(10) {
        assert!(Instant::now() < deadline, "{:?}", source.lag());
        sleep(Duration::from_millis(100)).await;
    }
    drop((rest, some));
    source.close().await?;
    Ok(())
}

async fn a_close_gives_back_at_once(server: &Rabbit) -> Outcome {
    let queue = "close";
    server.create(queue).await?;
    server.publish_numbers(queue, 20).await?;
    let mut first = source(server.options(queue)?);
    let mut taken = take(&mut first, 10).await?;
    let rest = taken.split_off(5);
    assert!(RabbitMqDelivery::acknowledge_all(taken).await.is_empty());
    first.close().await?;
    server.until(queue, (15, 0)).await?;
    drop(rest);
    let mut second = source(server.options(queue)?);
    let taken = take(&mut second, 15).await?;
    assert_eq!(texts(&taken), numbers(6..=20));
    // So does a source that is dropped.
    drop(second);
    server.until(queue, (15, 0)).await?;
    let count = taken.len();
    assert_eq!(RabbitMqDelivery::acknowledge_all(taken).await.len(), count);
    let mut third = source(server.options(queue)?);
    let taken = take(&mut third, 15).await?;
    assert_eq!(texts(&taken), numbers(6..=20));
    assert!(RabbitMqDelivery::acknowledge_all(taken).await.is_empty());
    server.until(queue, (0, 0)).await?;
    third.close().await?;
    Ok(())
}

async fn after_a_cut_it_comes_again_at_once(server: &Rabbit) -> Outcome {
    let queue = "cut";
    server.create(queue).await?;
    server.publish_numbers(queue, 30).await?;
    let mut source = source(server.options(queue)?);
    let mut old = take(&mut source, 10).await?;
    assert!(old.remove(0).acknowledge().await.is_ok());
    server.until(queue, (0, 29)).await?;
    server.cut()?;
    // Until it is noticed, what the client has is handed out.
    let error = loop {
        match timeout(PATIENCE, source.next()).await? {
            Ok(delivery) => old.extend(delivery),
            Err(error) => break error,
        }
    };
    assert!(error.is_transient(), "{error}");
    server.until(queue, (29, 0)).await?;
    let again = take(&mut source, 29).await?;
    assert_eq!(texts(&again), numbers(2..=30));
    let count = old.len();
    assert_eq!(RabbitMqDelivery::acknowledge_all(old).await.len(), count);
    server.until(queue, (0, 29)).await?;
    assert_eq!(server.outstanding(queue).await?, (0, 29));
    assert!(RabbitMqDelivery::acknowledge_all(again).await.is_empty());
    server.until(queue, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

async fn a_rejected_message_goes_to_its_queue(server: &Rabbit) -> Outcome {
    let queue = "rejected";
    server.create(queue).await?;
    server.publish_numbers(queue, 3).await?;
    let mut source = source(server.options(queue)?);
    let mut taken = take(&mut source, 3).await?;
    taken.remove(1).reject(Rejection::new("no good")).await?;
    assert!(RabbitMqDelivery::acknowledge_all(taken).await.is_empty());
    server.until(queue, (0, 0)).await?;
    server.until(&dead(queue), (1, 0)).await?;
    assert_eq!(server.payloads(&dead(queue)).await?, [b"2"]);
    source.close().await?;
    Ok(())
}

async fn a_rejected_message_stops(server: &Rabbit) -> Outcome {
    let queue = "stops";
    server.create(queue).await?;
    server.publish_numbers(queue, 3).await?;
    let mut first = source(server.options(queue)?.rejections(Rejections::Stop));
    let mut taken = take(&mut first, 3).await?;
    let rejected = taken.remove(1).reject(Rejection::new("no good")).await;
    assert!(rejected.is_err_and(|error| !error.is_transient()));
    // What came before and after it is acknowledged, and it is not.
    assert!(RabbitMqDelivery::acknowledge_all(taken).await.is_empty());
    let error = failure(&mut first).await?;
    assert!(!error.is_transient(), "{error}");
    // The receiver ends with this error, so it says what was wrong and what may be done.
    let said = error.to_string();
    assert!(
        said.contains("no good") && said.contains("rejections="),
        "{said}"
    );
    first.close().await?;
    server.until(queue, (1, 0)).await?;
    assert_eq!(server.payloads(queue).await?, [b"2"]);
    Ok(())
}

async fn queues_that_do_not_fit_are_refused(server: &Rabbit) -> Outcome {
    let missing = server.options("no-such-queue")?.create(false);
    let refused = failure(&mut source(missing)).await?;
    assert!(!refused.is_transient(), "{refused}");
    assert!(refused.to_string().contains("create"), "{refused}");
    server.create("other").await?;
    let other = match server.setup.kind {
        QueueKind::Quorum => QueueKind::Classic,
        QueueKind::Classic => QueueKind::Quorum,
    };
    let other = server.options("other")?.kind(other);
    let refused = failure(&mut source(other)).await?;
    assert!(!refused.is_transient(), "{refused}");
    assert!(refused.to_string().contains("other settings"), "{refused}");
    // Of one that is there the settings are its own affair.
    let any = server.options("other")?.create(false);
    let mut any = source(any);
    server.publish_numbers("other", 1).await?;
    next(&mut any).await?.acknowledge().await?;
    any.close().await?;
    let by_tag = Mapping::new("billing")?.id_from([IdFrom::Position]);
    let refused = RabbitMqSource::new(server.options("other")?, by_tag);
    let refused = refused.err().ok_or("it was not refused")?;
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("delivery tag"), "{refused}");
    Ok(())
}

/// A consumer of a stream begins behind its end, whatever was acknowledged: what is sent while it is away would be lost.
async fn a_stream_is_refused(server: &Rabbit) -> Outcome {
    let stream = "a-stream";
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("stream".into()),
    );
    server.declare(stream, arguments).await?;
    server.publish_numbers(stream, 1).await?;
    let options = server.options(stream)?.create(false);
    let refused = failure(&mut source(options)).await?;
    assert!(!refused.is_transient(), "{refused}");
    assert!(refused.to_string().contains("rabbitmq-stream"), "{refused}");
    Ok(())
}

/// As when a queue's leader moves: the server cancels the consumer and keeps the connection.
async fn a_cancelled_consumer_comes_back(server: &Rabbit) -> Outcome {
    let queue = "cancelled";
    server.create(queue).await?;
    server.publish_numbers(queue, 1).await?;
    let mut source = source(server.options(queue)?);
    let old = next(&mut source).await?;
    server.delete(queue).await?;
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains("cancelled"), "{error}");
    // It declares the queue again.
    nothing(&mut source, Duration::from_secs(3)).await?;
    let sent = server.publish_numbers(queue, 2);
    let ((), new) = tokio::try_join!(sent, take(&mut source, 2))?;
    assert!(old.acknowledge().await.is_err());
    assert!(RabbitMqDelivery::acknowledge_all(new).await.is_empty());
    server.until(queue, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

async fn what_is_published_arrives_as_it_was(server: &Rabbit) -> Outcome {
    let queue = "round";
    server.create(queue).await?;
    let mut sent = Envelope::new(queue, &b"\xff\x00{}"[..]);
    sent.id = Some("evt-1".into());
    sent.kind = Some("order.placed".into());
    sent.key = Some("customer-1".into());
    sent.content_type = Some("application/json".into());
    sent.headers = vec![
        ("app".into(), "shop \u{e9}".into()),
        ("cloudEvents:subject".into(), "caf\u{e9} 100%".into()),
    ];
    let empty = Envelope::new(queue, "");
    server
        .publish(queue, &[sent.clone(), empty.clone()])
        .await?;
    let mut source = source(server.options(queue)?);
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
    // Without an id it is no message.
    assert!(taken[1].message().is_err());
    assert!(RabbitMqDelivery::acknowledge_all(taken).await.is_empty());
    source.close().await?;
    Ok(())
}

async fn what_no_queue_takes_is_told(server: &Rabbit) -> Outcome {
    let queue = "taken";
    server.create(queue).await?;
    let publisher = RabbitMqPublisher::new(server.direct()?);
    let mut messages = Vec::new();
    for number in 0..50 {
        let address = if number % 7 == 3 { "nowhere" } else { queue };
        messages.push(Envelope::new(address, number.to_string()));
    }
    messages.push(Envelope::new("x".repeat(256), "no routing key"));
    let answers = publisher.publish(&messages).await;
    assert_eq!(answers.len(), messages.len());
    for (number, answer) in answers.iter().enumerate() {
        let fits = number % 7 != 3 && number < 50;
        assert_eq!(answer.is_ok(), fits, "{number}: {answer:?}");
        if let Err(error) = answer {
            // A server that was just connected to may not know its queues yet.
            assert_eq!(error.is_transient(), number < 50, "{number}: {error}");
        }
    }
    server.until(queue, (43, 0)).await?;
    let nowhere = RabbitMqPublisher::new(server.direct()?).exchange("no-such-exchange")?;
    let answers = nowhere.publish(&messages[..1]).await;
    let error = answers.into_iter().next().and_then(Result::err);
    // It is a setting of the publisher, and no fault of the message.
    assert!(error.is_some_and(|error| error.is_transient()));
    Ok(())
}

/// It does not pass by itself, and is never shown. A publisher has messages that a change of the password makes
/// no worse: for it, it passes.
async fn a_wrong_password_is_permanent_for_a_source(server: &Rabbit) -> Outcome {
    let url = format!("amqp://guest:s3cret@{}/%2f?queue=q", server.address());
    let mut wrong = source(RabbitMqOptions::from_url(&url)?);
    let error = failure(&mut wrong).await?;
    assert!(!error.is_transient(), "{error}");
    let shown = format!("{error} {error:?} {wrong:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    let url = format!("amqp://{}/no-such-host?queue=q", server.address());
    let error = failure(&mut source(RabbitMqOptions::from_url(&url)?)).await?;
    assert!(!error.is_transient(), "{error}");
    for url in [
        format!("amqp://guest:s3cret@{}", server.address()),
        format!("amqp://{}/no-such-host", server.address()),
    ] {
        let publisher = RabbitMqPublisher::from_url(&url)?;
        let answers = publisher.publish(&[Envelope::new("a", "b")]).await;
        let error = answers.into_iter().next().and_then(Result::err);
        let error = error.ok_or("no error")?;
        assert!(error.is_transient(), "{error}");
        let shown = format!("{error} {error:?} {publisher:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    Ok(())
}

/// The server says so when the source is about to consume, behind all else.
async fn a_user_who_may_not_read_is_refused(server: &Rabbit) -> Outcome {
    let queue = "unread";
    server.create(queue).await?;
    let user = r#"{"password": "ann", "tags": ""}"#;
    server.manage("users/ann", user).await?;
    let rights = r#"{"configure": ".*", "write": ".*", "read": ""}"#;
    server.manage("permissions/%2f/ann", rights).await?;
    let url = format!("amqp://ann:ann@{}/%2f?queue={queue}", server.address());
    let refused = failure(&mut source(RabbitMqOptions::from_url(&url)?)).await?;
    assert!(!refused.is_transient(), "{refused}");
    assert!(
        refused.to_string().contains("refused for user"),
        "{refused}"
    );
    Ok(())
}

/// The server has the same code for it as for a virtual host that is not there.
async fn a_limit_of_connections_passes(server: &Rabbit) -> Outcome {
    for path in [
        "vhost-limits/%2f/max-connections",
        "user-limits/guest/max-connections",
    ] {
        server.manage(path, r#"{"value": 0}"#).await?;
        let refused = failure(&mut source(server.options("limited")?)).await?;
        assert!(refused.is_transient(), "{refused}");
        assert!(refused.to_string().contains("limit"), "{refused}");
        server.manage(path, r#"{"value": -1}"#).await?;
    }
    let mut source = source(server.options("limited")?);
    let sent = server.publish_numbers("limited", 1);
    let ((), one) = tokio::try_join!(sent, next(&mut source))?;
    one.acknowledge().await?;
    source.close().await?;
    Ok(())
}

/// The server closes a channel whose acknowledgements take too long, and takes no message that is too large.
#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_a_server_are_survived() -> Outcome {
    limits(Kind::RabbitMq).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_rabbitmq_4_are_survived() -> Outcome {
    limits(Kind::RabbitMq4).await
}

async fn limits(kind: Kind) -> Outcome {
    let arguments = [
        ["-rabbit", "consumer_timeout", "5000"],
        ["-rabbit", "channel_tick_interval", "500"],
        ["-rabbit", "max_message_size", "100000"],
    ];
    let server = || Rabbit::of_kind(kind, Setup::QUORUM, &arguments.concat());
    let Some(server) = block_in_place(server)? else {
        return Ok(());
    };
    let queue = "limits";
    server.create(queue).await?;
    server.publish_numbers(queue, 3).await?;
    let mut source = source(server.options(queue)?);
    let old = take(&mut source, 3).await?;
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    assert_eq!(RabbitMqDelivery::acknowledge_all(old).await.len(), 3);
    let again = take(&mut source, 3).await?;
    assert_eq!(texts(&again), numbers(1..=3));
    assert!(RabbitMqDelivery::acknowledge_all(again).await.is_empty());
    server.until(queue, (0, 0)).await?;
    source.close().await?;

    let publisher = RabbitMqPublisher::new(server.direct()?);
    let large = Envelope::new(queue, vec![b'x'; 200_000]);
    let small = Envelope::new(queue, "small");
    let answers = publisher.publish(&[large, small.clone()]).await;
    let transient: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().map_err(SourceError::is_transient))
        .collect();
    assert_eq!(transient[0], Err(false), "{answers:?}");
    assert_ne!(transient[1], Err(false), "{answers:?}");
    let answers = publisher.publish(&[small]).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    Ok(())
}

/// A source without a message in its hands notices, too, that its server is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_noticed() -> Outcome {
    let Some(server) = block_in_place(|| Rabbit::own(Setup::ORDERED))? else {
        return Ok(());
    };
    server.create("silent").await?;
    server.publish_numbers("silent", 1).await?;
    let mut source = source(server.options("silent")?);
    let old = next(&mut source).await?;
    block_in_place(|| server.harm(Server::pause))?;
    let begin = Instant::now();
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    block_in_place(|| server.harm(Server::resume))?;
    let again = next(&mut source).await?;
    assert!(old.acknowledge().await.is_err());
    again.acknowledge().await?;
    server.until("silent", (0, 0)).await?;
    source.close().await?;

    // A broker that is away is a transient error of the publisher.
    block_in_place(|| server.harm(Server::kill))?;
    let away = RabbitMqPublisher::new(server.direct()?).timeout(Duration::from_secs(1));
    let answer = away.publish(&[Envelope::new("silent", "4")]).await;
    let error = answer.into_iter().next().and_then(Result::err);
    assert!(error.is_some_and(|error| error.is_transient()));
    Ok(())
}

/// A queue of any settings, here one that is not replicated and has no dead letters, is consumed as it is.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_may_fill_the_queue() -> Outcome {
    let Some(server) = block_in_place(|| Rabbit::own(Setup::CLASSIC))? else {
        return Ok(());
    };
    let (connection, channel) = server.channel().await?;
    let none = FieldTable::default;
    server.declare("billing", none()).await?;
    let (exchange, kind) = ("events", lapin::ExchangeKind::Topic);
    let options = lapin::options::ExchangeDeclareOptions::default();
    let declared = channel.exchange_declare(exchange.into(), kind, options, none());
    declared.await?;
    let options = lapin::options::QueueBindOptions::default();
    let bound = channel.queue_bind(
        "billing".into(),
        exchange.into(),
        "order.#".into(),
        options,
        none(),
    );
    bound.await?;
    let publisher = RabbitMqPublisher::new(server.direct()?).exchange(exchange)?;
    let mut sent = Envelope::new("order.placed", "{}");
    sent.id = Some("m-1".into());
    let other = Envelope::new("parcel.sent", "{}");
    let answers = publisher.publish(&[sent, other]).await;
    assert!(answers[0].is_ok() && answers[1].is_err(), "{answers:?}");
    let mut source = source(server.options("billing")?.create(false));
    let delivery = next(&mut source).await?;
    assert_eq!(delivery.message()?.kind().as_str(), "order.placed");
    delivery.acknowledge().await?;
    source.close().await?;
    connection.close(200, "".into()).await?;
    Ok(())
}
