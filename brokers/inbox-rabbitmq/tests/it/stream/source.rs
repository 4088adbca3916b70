//! What is peculiar to streams.

use std::time::Duration;

use inbox_rabbitmq::{
    RabbitMqStreamDelivery, RabbitMqStreamOptions, RabbitMqStreamSource, StreamConnection,
    StreamStart,
};
use inbox_source::{
    Delivery as _, Envelope, Flow, IdFrom, Mapping, Rejection, Source as _, SourceError,
};
use test_servers::{Kind, Server};
use tokio::{
    task::block_in_place,
    time::{Instant, sleep, timeout},
};

use super::harness::{CONSUMER, Streams};
use crate::harness::{Outcome, dead};

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than an offset that is to be stored waits.
const STORED: Duration = Duration::from_millis(1200);
/// Longer than a source takes until it reads behind the end.
const SUBSCRIBED: Duration = Duration::from_secs(10);

fn source(options: RabbitMqStreamOptions) -> RabbitMqStreamSource {
    RabbitMqStreamSource::new(options, Mapping::new("billing").unwrap()).unwrap()
}

/// The next delivery; what may pass is waited for.
async fn next(source: &mut RabbitMqStreamSource) -> Outcome<RabbitMqStreamDelivery> {
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

async fn take(
    source: &mut RabbitMqStreamSource,
    count: usize,
) -> Outcome<Vec<RabbitMqStreamDelivery>> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(next(source).await?);
    }
    Ok(taken)
}

async fn failure(source: &mut RabbitMqStreamSource) -> Outcome<SourceError> {
    match timeout(PATIENCE, source.next()).await? {
        Ok(_) => Err("a delivery came".into()),
        Err(error) => Ok(error),
    }
}

async fn nothing(source: &mut RabbitMqStreamSource) -> Outcome {
    nothing_for(Duration::from_secs(1), source).await
}

/// Nothing comes for so long. What may pass may.
async fn nothing_for(time: Duration, source: &mut RabbitMqStreamSource) -> Outcome {
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

async fn acknowledge(all: Vec<RabbitMqStreamDelivery>) {
    let failures = RabbitMqStreamDelivery::acknowledge_all(all).await;
    assert!(failures.is_empty(), "{failures:?}");
}

fn texts(all: &[RabbitMqStreamDelivery]) -> Vec<String> {
    let text = |one: &RabbitMqStreamDelivery| {
        String::from_utf8_lossy(&one.envelope().payload).into_owned()
    };
    all.iter().map(text).collect()
}

fn numbers(range: std::ops::RangeInclusive<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

async fn filled(server: &Streams, stream: &str, count: usize) -> Outcome {
    server.create(stream).await?;
    server.rabbit.publish_numbers(stream, count).await
}

/// One server for what harms nothing.
async fn run(kind: Kind) -> Outcome {
    let Some(server) = block_in_place(|| Streams::own(kind, false))? else {
        return Ok(());
    };
    an_offset_is_stored_up_to_what_is_acknowledged(&server).await?;
    a_restart_goes_on_where_it_was(&server).await?;
    what_is_dropped_comes_again(&server).await?;
    no_more_than_may_be_held(&server).await?;
    an_old_delivery_acknowledges_nothing_else(&server).await?;
    it_begins_where_it_is_told(&server).await?;
    another_consumer_is_not_set_back(&server).await?;
    a_rejected_message_goes_to_its_stream(&server).await?;
    what_is_behind_one_that_was_given_up_is_no_dead_letter_yet(&server).await?;
    a_rejected_message_that_is_too_large_stops(&server).await?;
    a_rejected_message_stops(&server).await?;
    a_stream_that_is_missing(&server).await?;
    a_deleted_stream_is_noticed(&server).await?;
    a_stream_that_is_made_again_is_another(&server).await?;
    a_stream_that_the_source_makes_again_is_another(&server).await?;
    what_is_published_arrives_as_it_was(&server).await?;
    what_other_clients_send(&server).await?;
    what_is_refused_is_permanent(&server).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_streams() -> Outcome {
    run(Kind::RabbitMq).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_streams_of_rabbitmq_4() -> Outcome {
    run(Kind::RabbitMq4).await
}

async fn an_offset_is_stored_up_to_what_is_acknowledged(server: &Streams) -> Outcome {
    let stream = "stored";
    filled(server, stream, 50).await?;
    let mut source = source(server.options(stream)?);
    let mut taken = take(&mut source, 50).await?;
    assert_eq!(texts(&taken), numbers(1..=50));
    sleep(STORED).await;
    assert_eq!(server.stored(stream).await?, None);
    let rest = taken.split_off(30);
    let middle = taken.split_off(10);
    acknowledge(middle).await;
    sleep(STORED).await;
    assert_eq!(
        server.stored(stream).await?,
        None,
        "ten before have no answer"
    );
    acknowledge(taken).await;
    server.until(stream, 20).await?;
    assert_eq!(server.stored(stream).await?, Some(29));
    acknowledge(rest).await;
    // A close stores what is finished, without waiting for its time.
    source.close().await?;
    assert_eq!(server.stored(stream).await?, Some(49));
    Ok(())
}

async fn a_restart_goes_on_where_it_was(server: &Streams) -> Outcome {
    let stream = "restart";
    filled(server, stream, 20).await?;
    let mut first = source(server.options(stream)?);
    let mut taken = take(&mut first, 12).await?;
    let rest = taken.split_off(5);
    acknowledge(taken).await;
    first.close().await?;
    let failures = RabbitMqStreamDelivery::acknowledge_all(rest).await;
    assert_eq!(failures.len(), 7, "it is closed");
    let mut second = source(server.options(stream)?);
    let taken = take(&mut second, 15).await?;
    assert_eq!(texts(&taken), numbers(6..=20));
    acknowledge(taken).await;
    // So does a source that is dropped.
    drop(second);
    server.until(stream, 0).await?;
    let mut third = source(server.options(stream)?);
    nothing(&mut third).await?;
    server.rabbit.publish_numbers(stream, 1).await?;
    let one = take(&mut third, 1).await?;
    assert_eq!(texts(&one), numbers(1..=1));
    acknowledge(one).await;
    third.close().await?;
    server.until(stream, 0).await
}

async fn what_is_dropped_comes_again(server: &Streams) -> Outcome {
    let stream = "dropped";
    filled(server, stream, 30).await?;
    let mut source = source(server.options(stream)?);
    let mut taken = take(&mut source, 20).await?;
    let behind = taken.split_off(11);
    let dropped = taken.split_off(10);
    drop(dropped);
    let count = behind.len();
    assert_eq!(
        RabbitMqStreamDelivery::acknowledge_all(behind).await.len(),
        count
    );
    acknowledge(taken).await;
    let again = take(&mut source, 20).await?;
    assert_eq!(texts(&again), numbers(11..=30));
    acknowledge(again).await;
    source.close().await?;
    server.until(stream, 0).await
}

async fn no_more_than_may_be_held(server: &Streams) -> Outcome {
    let stream = "bounded";
    filled(server, stream, 30).await?;
    let mut source = source(server.options(stream)?);
    source.set_flow(Flow::new(10, 10));
    let mut taken = take(&mut source, 10).await?;
    nothing(&mut source).await?;
    taken.remove(0).acknowledge().await?;
    taken.push(next(&mut source).await?);
    nothing(&mut source).await?;
    assert_eq!(texts(&taken), numbers(2..=11));
    acknowledge(taken).await;
    acknowledge(take(&mut source, 10).await?).await;
    source.close().await?;
    server.until(stream, 9).await
}

async fn an_old_delivery_acknowledges_nothing_else(server: &Streams) -> Outcome {
    let stream = "cut";
    filled(server, stream, 30).await?;
    let mut source = source(server.options(stream)?);
    let mut old = take(&mut source, 30).await?;
    old.remove(0).acknowledge().await?;
    server.until(stream, 29).await?;
    server.cut()?;
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    let again = take(&mut source, 29).await?;
    assert_eq!(texts(&again), numbers(2..=30));
    let count = old.len();
    assert_eq!(
        RabbitMqStreamDelivery::acknowledge_all(old).await.len(),
        count
    );
    sleep(STORED).await;
    assert_eq!(server.stored(stream).await?, Some(0));
    acknowledge(again).await;
    server.until(stream, 0).await?;
    source.close().await?;
    Ok(())
}

async fn it_begins_where_it_is_told(server: &Streams) -> Outcome {
    let stream = "begin";
    filled(server, stream, 10).await?;
    sleep(Duration::from_millis(1200)).await;
    let between = std::time::SystemTime::now();
    sleep(Duration::from_millis(1200)).await;
    server.rabbit.publish_numbers(stream, 5).await?;
    for (start, position) in [
        (StreamStart::First, Some("begin/0")),
        (StreamStart::Offset(7), Some("begin/7")),
        (StreamStart::Time(between), Some("begin/10")),
        (StreamStart::Next, None),
    ] {
        let mut one = source(server.options(stream)?.start(start));
        match position {
            None => nothing(&mut one).await?,
            Some(position) => {
                let delivery = next(&mut one).await?;
                let there = delivery.envelope().position.clone();
                assert_eq!(there.as_deref(), Some(position), "{start:?}");
            }
        }
    }
    let mut last = source(server.options(stream)?.start(StreamStart::Last));
    let delivery = next(&mut last).await?;
    let there = delivery.envelope().position.clone().unwrap_or_default();
    let offset: u64 = there.trim_start_matches("begin/").parse()?;
    assert!((10..15).contains(&offset), "{there}");
    drop((delivery, last));
    // What is handed out on the first connection is not passed over on the next one.
    let mut newest = source(server.options(stream)?.start(StreamStart::Next));
    nothing_for(SUBSCRIBED, &mut newest).await?;
    server.rabbit.publish_numbers(stream, 3).await?;
    let old = take(&mut newest, 3).await?;
    server.cut()?;
    assert!(failure(&mut newest).await?.is_transient());
    let again = take(&mut newest, 3).await?;
    assert_eq!(again[0].envelope().position.as_deref(), Some("begin/15"));
    drop(old);
    acknowledge(again).await;
    newest.close().await?;
    // An offset that is stored counts, whatever the start.
    let mut stored = source(server.options(stream)?.start(StreamStart::First));
    nothing(&mut stored).await
}

/// Where several read under one name, the one behind leaves what the one ahead has stored.
async fn another_consumer_is_not_set_back(server: &Streams) -> Outcome {
    let stream = "ahead";
    filled(server, stream, 20).await?;
    let mut behind = source(server.options(stream)?);
    let taken = take(&mut behind, 20).await?;
    server.asker().await?.store(CONSUMER, stream, 15).await?;
    let mut taken = taken.into_iter();
    acknowledge(taken.by_ref().take(5).collect()).await;
    sleep(STORED).await;
    assert_eq!(server.stored(stream).await?, Some(15));
    acknowledge(taken.collect()).await;
    server.until(stream, 0).await?;
    behind.close().await?;
    Ok(())
}

async fn a_rejected_message_goes_to_its_stream(server: &Streams) -> Outcome {
    let stream = "rejected";
    filled(server, stream, 3).await?;
    let mut source = source(server.options(stream)?);
    let mut taken = take(&mut source, 3).await?;
    taken.remove(1).reject(Rejection::new("no good")).await?;
    acknowledge(taken).await;
    server.until(stream, 0).await?;
    assert_eq!(server.payloads(&dead(stream)).await?, [b"2"]);
    source.close().await?;
    // Where it cannot be written it is not finished, and the source says why.
    let nowhere = server.options(stream)?.dead_letters("nowhere")?;
    let mut source = self::source(nowhere);
    server.rabbit.publish_numbers(stream, 1).await?;
    let one = next(&mut source).await?;
    let refused = one.reject(Rejection::new("no good")).await;
    assert!(refused.is_err_and(|error| !error.is_transient()));
    let error = failure(&mut source).await?;
    assert!(!error.is_transient(), "{error}");
    assert!(error.to_string().contains("create"), "{error}");
    source.close().await?;
    server.until(stream, 1).await
}

/// It comes again with the one before it, and would be written again each time.
async fn what_is_behind_one_that_was_given_up_is_no_dead_letter_yet(server: &Streams) -> Outcome {
    let stream = "behind";
    filled(server, stream, 3).await?;
    let mut source = source(server.options(stream)?);
    let mut taken = take(&mut source, 3).await?;
    drop(taken.remove(0));
    for delivery in taken {
        let rejected = delivery.reject(Rejection::new("no good")).await;
        assert!(rejected.is_err_and(|error| error.is_transient()));
    }
    for delivery in take(&mut source, 3).await? {
        delivery.reject(Rejection::new("no good")).await?;
    }
    server.until(stream, 0).await?;
    let letters = server.payloads(&dead(stream)).await?;
    assert_eq!(letters, [b"1", b"2", b"3"]);
    source.close().await?;
    Ok(())
}

/// Over AMQP 0.9.1 a stream takes what its own protocol does not.
async fn a_rejected_message_that_is_too_large_stops(server: &Streams) -> Outcome {
    let stream = "large";
    server.create(stream).await?;
    let large = Envelope::new(stream, vec![b'x'; 1_500_000]);
    server.publish(stream, &[large]).await?;
    server.rabbit.publish_numbers(stream, 2).await?;
    let mut source = source(server.options(stream)?);
    let mut taken = take(&mut source, 3).await?;
    for _ in 0..2 {
        // The second is small, and comes again with the first.
        let rejected = taken.remove(0).reject(Rejection::new("no good")).await;
        assert!(rejected.is_err_and(|error| !error.is_transient()));
    }
    acknowledge(taken).await;
    let error = failure(&mut source).await?;
    assert!(!error.is_transient(), "{error}");
    assert!(error.to_string().contains("larger"), "{error}");
    source.close().await?;
    assert_eq!(server.stored(stream).await?, None);
    assert!(server.payloads(&dead(stream)).await?.is_empty());
    Ok(())
}

async fn a_rejected_message_stops(server: &Streams) -> Outcome {
    let stream = "stops";
    filled(server, stream, 3).await?;
    let to = StreamConnection::from_url(&format!("rabbitmq-stream://{}", server.address()))?;
    let options = || RabbitMqStreamOptions::new(to.clone(), stream, CONSUMER);
    let mut first = source(options()?);
    let mut taken = take(&mut first, 3).await?;
    let rejected = taken.remove(1).reject(Rejection::new("no good")).await;
    assert!(rejected.is_err_and(|error| !error.is_transient()));
    acknowledge(taken).await;
    let error = failure(&mut first).await?;
    assert!(!error.is_transient(), "{error}");
    first.close().await?;
    assert_eq!(server.stored(stream).await?, Some(0));
    let mut second = source(options()?);
    assert_eq!(texts(&take(&mut second, 2).await?), numbers(2..=3));
    Ok(())
}

async fn a_stream_that_is_missing(server: &Streams) -> Outcome {
    let missing = server.options("no-such-stream")?;
    let refused = failure(&mut source(missing.clone())).await?;
    assert!(!refused.is_transient(), "{refused}");
    assert!(refused.to_string().contains("create"), "{refused}");
    let missing = missing.create(true).max_age(Duration::from_secs(3600));
    let mut created = source(missing.max_length_bytes(1_000_000_000));
    nothing(&mut created).await?;
    let sent = server.rabbit.publish_numbers("no-such-stream", 1);
    let ((), one) = tokio::try_join!(sent, next(&mut created))?;
    one.acknowledge().await?;
    // So is the one for the dead letters.
    server.rabbit.publish_numbers("no-such-stream", 1).await?;
    let second = next(&mut created).await?;
    second.reject(Rejection::new("no good")).await?;
    created.close().await?;
    assert_eq!(server.payloads(&dead("no-such-stream")).await?, [b"1"]);
    // A queue is no stream.
    server.rabbit.create("queue").await?;
    let refused = failure(&mut source(server.options("queue")?)).await?;
    assert!(!refused.is_transient(), "{refused}");
    Ok(())
}

async fn a_deleted_stream_is_noticed(server: &Streams) -> Outcome {
    let stream = "deleted";
    filled(server, stream, 1).await?;
    let mut source = source(server.options(stream)?);
    let old = next(&mut source).await?;
    server.rabbit.delete(stream).await?;
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    let error = loop {
        let error = failure(&mut source).await?;
        if !error.is_transient() {
            break error;
        }
        sleep(Duration::from_millis(100)).await;
    };
    assert!(error.to_string().contains("no such stream"), "{error}");
    assert!(old.acknowledge().await.is_err());
    Ok(())
}

/// As its offsets are, too: what is behind the old ones in the new stream, and what is before them, is new.
async fn a_stream_that_is_made_again_is_another(server: &Streams) -> Outcome {
    for (stream, start, count) in [
        ("shorter", StreamStart::First, 3),
        ("longer", StreamStart::First, 12),
        ("next", StreamStart::Next, 3),
    ] {
        server.create(stream).await?;
        let mut source = source(server.options(stream)?.start(start));
        match start {
            StreamStart::Next => nothing_for(SUBSCRIBED, &mut source).await?,
            _ => nothing(&mut source).await?,
        }
        server.rabbit.publish_numbers(stream, 5).await?;
        let taken = take(&mut source, 5).await?;
        acknowledge(taken).await;
        server.until(stream, 0).await?;
        server.rabbit.delete(stream).await?;
        server.create(stream).await?;
        server.rabbit.publish_numbers(stream, count).await?;
        let again = take(&mut source, count).await?;
        assert_eq!(texts(&again), numbers(1..=u32::try_from(count)?));
        acknowledge(again).await;
        server.until(stream, 0).await?;
        assert_eq!(server.stored(stream).await?, Some(count as u64 - 1));
        source.close().await?;
    }
    Ok(())
}

async fn a_stream_that_the_source_makes_again_is_another(server: &Streams) -> Outcome {
    let stream = "remade";
    filled(server, stream, 5).await?;
    let mut source = source(server.options(stream)?.create(true));
    let old = take(&mut source, 5).await?;
    server.rabbit.delete(stream).await?;
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    nothing(&mut source).await?;
    let sent = server.rabbit.publish_numbers(stream, 3);
    let ((), new) = tokio::try_join!(sent, take(&mut source, 3))?;
    assert_eq!(texts(&new), numbers(1..=3));
    assert_eq!(RabbitMqStreamDelivery::acknowledge_all(old).await.len(), 5);
    acknowledge(new).await;
    server.until(stream, 0).await?;
    source.close().await?;
    Ok(())
}

async fn what_is_published_arrives_as_it_was(server: &Streams) -> Outcome {
    let stream = "round";
    server.create(stream).await?;
    let mut sent = Envelope::new(stream, &b"\xff\x00{}"[..]);
    sent.id = Some("urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6".into());
    sent.kind = Some("order.placed".into());
    sent.key = Some("customer-1".into());
    sent.content_type = Some("application/json".into());
    sent.time = Some(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    sent.headers = vec![
        ("app".into(), "shop \u{e9}".into()),
        ("x-shop".into(), "north".into()),
        ("cloudEvents:subject".into(), "caf\u{e9} 100%".into()),
    ];
    let empty = Envelope::new(stream, "");
    let both = [sent.clone(), empty];
    server.publish(stream, &both).await?;
    let mut source = source(server.options(stream)?);
    let taken = take(&mut source, 2).await?;
    let arrived = taken[0].envelope();
    assert_eq!((&arrived.id, &arrived.kind), (&sent.id, &sent.kind));
    assert_eq!((&arrived.key, &arrived.time), (&sent.key, &sent.time));
    assert_eq!(arrived.content_type, sent.content_type);
    assert_eq!(
        (&arrived.payload, &arrived.address),
        (&sent.payload, &sent.address)
    );
    for (name, value) in &sent.headers {
        assert_eq!(arrived.header(name), Some(value.as_str()), "{name}");
    }
    assert_eq!(arrived.headers.len(), 4, "{arrived:?}");
    assert_eq!(taken[1].envelope().payload, "");
    // Without an id of its own, it has its position for one.
    assert_eq!(taken[1].message()?.id().as_str(), "round/1");
    acknowledge(taken).await;
    source.close().await?;
    Ok(())
}

/// Records that a client for streams sent, alone, in batches, or what is no message at all.
async fn what_other_clients_send(server: &Streams) -> Outcome {
    let stream = "others";
    server.create(stream).await?;
    let body = |text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        [b"\0\x53\x75\xa0", &[length][..], text.as_bytes()].concat()
    };
    let sized = |bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).unwrap();
        [&length.to_be_bytes()[..], bytes].concat()
    };
    let records = [sized(&body("two")), sized(&body("three"))].concat();
    let length = u32::try_from(records.len())?.to_be_bytes();
    let batch = |kind: u8| [&[0x80 | kind << 4, 0, 2][..], &length, &length, &records].concat();
    let entries = [sized(&body("one")), batch(0), sized(b"no message")];
    server.asker().await?.publish(stream, &entries).await?;
    let mut source = source(server.options(stream)?);
    let mut taken = take(&mut source, 4).await?;
    assert_eq!(texts(&taken), ["one", "two", "three", "no message"]);
    assert_eq!(taken[2].envelope().position.as_deref(), Some("others/2"));
    assert!(taken[2].message().is_ok() && taken[3].message().is_err());
    taken.remove(3).reject(Rejection::new("no message")).await?;
    acknowledge(taken).await;
    server.until(stream, 0).await?;
    assert_eq!(server.payloads(&dead(stream)).await?, [b"no message"]);
    // A batch that is compressed cannot be read, and is not passed over; what was before it is finished.
    let entries = [sized(&body("five")), batch(1)];
    server.asker().await?.publish(stream, &entries).await?;
    let five = next(&mut source).await?;
    for _ in 0..2 {
        let error = failure(&mut source).await?;
        assert!(!error.is_transient(), "{error}");
        assert!(error.to_string().contains("gzip"), "{error}");
    }
    five.acknowledge().await?;
    source.close().await?;
    server.until(stream, 2).await
}

/// It does not pass by itself, and is never shown.
async fn what_is_refused_is_permanent(server: &Streams) -> Outcome {
    let at = |user: &str, vhost: &str| {
        let address = server.address();
        let url = format!("rabbitmq-stream://{user}@{address}/{vhost}?stream=s&consumer=c");
        RabbitMqStreamOptions::from_url(&url)
    };
    let mut wrong = source(at("guest:s3cret", "")?);
    let error = failure(&mut wrong).await?;
    assert!(!error.is_transient(), "{error}");
    let shown = format!("{error} {error:?} {wrong:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    let error = failure(&mut source(at("guest:guest", "no-such-host")?)).await?;
    assert!(!error.is_transient(), "{error}");
    // The port of queues speaks something else.
    let address = server.rabbit.address();
    let url = format!("rabbitmq-stream://{address}?stream=s&consumer=c");
    let error = failure(&mut source(RabbitMqStreamOptions::from_url(&url)?)).await?;
    assert!(error.to_string().contains("protocol"), "{error}");
    let nowhere = Mapping::new("billing")?.id_from(Vec::<IdFrom>::new());
    assert!(RabbitMqStreamSource::new(at("guest:guest", "")?, nowhere).is_err());
    Ok(())
}

/// A source without a message in its hands notices, too, that its server is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_noticed() -> Outcome {
    let Some(server) = block_in_place(|| Streams::own(Kind::RabbitMq, false))? else {
        return Ok(());
    };
    filled(&server, "silent", 1).await?;
    let mut source = source(server.options("silent")?);
    let old = next(&mut source).await?;
    block_in_place(|| server.harm(Server::pause))?;
    let begin = Instant::now();
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    block_in_place(|| server.harm(Server::resume))?;
    let again = next(&mut source).await?;
    assert!(old.acknowledge().await.is_err());
    again.acknowledge().await?;
    server.until("silent", 0).await?;
    source.close().await?;
    Ok(())
}

/// One has it, and the next one when that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_consumer_is_active() -> Outcome {
    let old = block_in_place(|| Streams::own(Kind::RabbitMq, true))?;
    if let Some(server) = old {
        filled(&server, "single", 1).await?;
        let mut any = source(server.options("single")?.single_active_consumer(false));
        next(&mut any).await?;
        // A version that cannot do it says so.
        let mut one = source(server.options("single")?);
        match timeout(PATIENCE, one.next()).await? {
            Ok(delivery) => drop(delivery),
            Err(error) => {
                assert!(!error.is_transient(), "{error}");
                assert!(error.to_string().contains("3.11"), "{error}");
            }
        }
    }
    let Some(server) = block_in_place(|| Streams::own(Kind::RabbitMq4, true))? else {
        return Ok(());
    };
    let stream = "single";
    filled(&server, stream, 30).await?;
    let mut first = source(server.options(stream)?);
    let mut taken = take(&mut first, 20).await?;
    let mut second = source(server.options(stream)?);
    nothing(&mut second).await?;
    let rest = taken.split_off(10);
    acknowledge(taken).await;
    first.close().await?;
    drop(rest);
    let mut taken = take(&mut second, 20).await?;
    assert_eq!(texts(&taken), numbers(11..=30));
    // What is given up comes again here, too.
    drop(taken.split_off(5));
    acknowledge(taken).await;
    let again = take(&mut second, 15).await?;
    assert_eq!(texts(&again), numbers(16..=30));
    acknowledge(again).await;
    second.close().await?;
    server.until(stream, 0).await
}
