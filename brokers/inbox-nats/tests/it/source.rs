//! What is peculiar to NATS, on each server that the machine has.

use std::{collections::BTreeSet, time::Duration};

use async_nats::{
    HeaderValue,
    jetstream::{
        consumer::{AckPolicy, pull},
        stream,
    },
};
use inbox_nats::{NatsDelivery, NatsOptions, NatsPublisher, NatsSource};
use inbox_source::{
    Delivery as _, Envelope, Flow, Mapping, Publisher as _, Rejection, Source as _, SourceError,
};
use test_servers::{Kind, Server};
use tokio::{
    task::block_in_place,
    time::{Instant, sleep, timeout},
};

use crate::{
    harness::{CONSUMER, Nats, Outcome, consumer, dead},
    publisher,
};

/// A look into the stream that is refused takes five seconds, and a connection is lost before and behind it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn source(options: NatsOptions) -> NatsSource {
    NatsSource::new(options, Mapping::new("billing").unwrap()).unwrap()
}

/// The next delivery; what may pass is waited for.
pub(crate) async fn next(source: &mut NatsSource) -> Outcome<NatsDelivery> {
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

pub(crate) async fn take(source: &mut NatsSource, count: usize) -> Outcome<Vec<NatsDelivery>> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(next(source).await?);
    }
    Ok(taken)
}

async fn failure(source: &mut NatsSource) -> Outcome<SourceError> {
    match timeout(PATIENCE, source.next()).await? {
        Ok(_) => Err("a delivery came".into()),
        Err(error) => Ok(error),
    }
}

fn text(delivery: &NatsDelivery) -> String {
    String::from_utf8_lossy(&delivery.envelope().payload).into_owned()
}

fn texts(all: &[NatsDelivery]) -> Vec<String> {
    all.iter().map(text).collect()
}

fn numbers(range: std::ops::RangeInclusive<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// One server for what harms nothing.
async fn run(kind: Kind) -> Outcome {
    let Some(server) = block_in_place(|| Nats::own(kind))? else {
        return Ok(());
    };
    a_run_is_acknowledged(&server).await?;
    what_waits_is_extended_and_what_is_dropped_comes_again(&server).await?;
    no_more_is_asked_for_than_may_be_held(&server).await?;
    no_more_bytes_are_asked_for_than_may_be_held(&server).await?;
    a_close_gives_back_at_once(&server).await?;
    after_a_cut_it_comes_again_at_once(&server).await?;
    a_rejected_message_goes_to_its_subject(&server).await?;
    what_cannot_be_rejected_stays_away(&server).await?;
    a_dead_letter_that_is_too_large_stops_the_source(&server).await?;
    consumers_that_break_a_promise_are_refused(&server).await?;
    no_more_is_asked_for_than_the_consumer_allows(&server).await?;
    dead_letters_that_come_again_are_refused(&server).await?;
    a_stream_that_is_made_again_is_another(&server).await?;
    a_stream_that_is_made_again_unheard_is_another(&server).await?;
    the_lag_is_that_of_the_consumer(&server).await?;
    publisher::what_is_published_arrives_as_it_was(&server).await?;
    publisher::what_no_stream_takes_is_waited_for(&server).await?;
    publisher::what_can_never_be_sent_is_permanent(&server).await?;
    publisher::what_is_too_large_for_its_stream_is_permanent(&server).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_server_of_the_machine() -> Outcome {
    Box::pin(run(Kind::Nats)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_newest_server() -> Outcome {
    Box::pin(run(Kind::NatsNewest)).await
}

async fn a_run_is_acknowledged(server: &Nats) -> Outcome {
    for confirm in [false, true] {
        let stream = format!("run-{confirm}");
        server.create(&stream).await?;
        server.publish_numbers(&stream, 50).await?;
        let mut source = source(server.options(&stream)?.confirm(confirm));
        let taken = take(&mut source, 50).await?;
        assert_eq!(texts(&taken), numbers(1..=50));
        server.until(&stream, (0, 50)).await?;
        let failures = NatsDelivery::acknowledge_all(taken).await;
        assert!(failures.is_empty(), "{failures:?}");
        if confirm {
            // The server has them when it says so.
            assert_eq!(server.outstanding(&stream).await?, (0, 0));
        }
        server.until(&stream, (0, 0)).await?;
        source.close().await?;
    }
    Ok(())
}

async fn what_waits_is_extended_and_what_is_dropped_comes_again(server: &Nats) -> Outcome {
    let stream = "waits";
    // Extended in time by a machine that is slow.
    let ack_wait = Duration::from_secs(12);
    let config = pull::Config {
        ack_wait,
        ..consumer()
    };
    let made = server.create_stream(stream).await?;
    made.create_consumer(config).await?;
    server.publish_numbers(stream, 2).await?;
    let mut source = source(server.options(stream)?);
    let first = next(&mut source).await?;
    let begin = Instant::now();
    drop(next(&mut source).await?);
    let again = next(&mut source).await?;
    assert_eq!(text(&again), "2");
    assert!(begin.elapsed() < ack_wait, "{:?}", begin.elapsed());
    again.acknowledge().await?;
    let more = timeout(ack_wait * 2, source.next()).await;
    assert!(more.is_err(), "the first came again");
    first.acknowledge().await?;
    server.until(stream, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

async fn no_more_is_asked_for_than_may_be_held(server: &Nats) -> Outcome {
    let stream = "flow";
    server.create(stream).await?;
    server.publish_numbers(stream, 20).await?;
    let mut source = source(server.options(stream)?);
    source.set_flow(Flow::new(7, 3));
    let mut taken = take(&mut source, 7).await?;
    let more = timeout(Duration::from_millis(300), source.next()).await;
    assert!(more.is_err());
    assert_eq!(server.outstanding(stream).await?, (13, 7));
    let rest = taken.split_off(3);
    assert!(NatsDelivery::acknowledge_all(taken).await.is_empty());
    let some = take(&mut source, 3).await?;
    assert_eq!(texts(&some), numbers(8..=10));
    assert_eq!(source.lag(), Some(10));
    server.until(stream, (10, 7)).await?;
    drop((rest, some));
    source.close().await?;
    Ok(())
}

/// But for one message that has more by itself.
async fn no_more_bytes_are_asked_for_than_may_be_held(server: &Nats) -> Outcome {
    // The second consumer allows fewer in one request than a message has.
    for (stream, allowed) in [("flow-of-bytes", 0), ("flow-of-few-bytes", 20_000)] {
        let config = pull::Config {
            max_bytes: allowed,
            ..consumer()
        };
        let made = server.create_stream(stream).await?;
        made.create_consumer(config).await?;
        let of = |bytes: usize| Envelope::new(stream, vec![b'x'; bytes]);
        let mut all = vec![of(30_000); 10];
        all.push(of(150_000));
        all.extend(vec![of(30_000); 10]);
        server.publish(stream, &all).await?;
        let mut source = source(server.options(stream)?);
        source.set_flow(Flow::new(1000, 500).with_max_unacknowledged_bytes(100_000));
        let at_once = if allowed == 0 { 3 } else { 1 };
        let taken = take(&mut source, at_once).await?;
        let more = timeout(Duration::from_millis(1500), source.next()).await;
        assert!(more.is_err());
        server
            .until(stream, (21 - at_once as u64, at_once as u64))
            .await?;
        assert!(NatsDelivery::acknowledge_all(taken).await.is_empty());
        for _ in at_once..21 {
            next(&mut source).await?.acknowledge().await?;
        }
        server.until(stream, (0, 0)).await?;
        source.close().await?;
    }
    Ok(())
}

async fn a_close_gives_back_at_once(server: &Nats) -> Outcome {
    let stream = "close";
    // An older server is not asked to.
    let is_new = server
        .context()
        .await?
        .client()
        .is_server_compatible(2, 10, 0);
    let slow = Duration::from_secs(10);
    let config = pull::Config {
        ack_wait: slow,
        ..consumer()
    };
    let made = server.create_stream(stream).await?;
    made.create_consumer(config).await?;
    server.publish_numbers(stream, 20).await?;
    let mut first = source(server.options(stream)?);
    let mut taken = take(&mut first, 10).await?;
    let rest = taken.split_off(5);
    assert!(NatsDelivery::acknowledge_all(taken).await.is_empty());
    let begin = Instant::now();
    first.close().await?;
    assert!(rest.into_iter().next().is_some_and(|one| text(&one) == "6"));
    let mut second = source(server.options(stream)?);
    let mut came = BTreeSet::new();
    while came.len() < 15 {
        let delivery = next(&mut second).await?;
        came.insert(text(&delivery).parse::<u32>()?);
        delivery.acknowledge().await?;
    }
    if is_new {
        assert!(begin.elapsed() < slow, "{:?}", begin.elapsed());
    }
    assert!(came.into_iter().eq(6..=20));
    server.until(stream, (0, 0)).await?;
    second.close().await?;
    Ok(())
}

async fn after_a_cut_it_comes_again_at_once(server: &Nats) -> Outcome {
    let stream = "cut";
    // Much longer than the test waits.
    let slow = pull::Config {
        ack_wait: Duration::from_secs(600),
        ..consumer()
    };
    let made = server.create_stream(stream).await?;
    made.create_consumer(slow).await?;
    server.publish_numbers(stream, 30).await?;
    let mut source = source(server.options(stream)?);
    let mut old = take(&mut source, 10).await?;
    assert!(old.remove(0).acknowledge().await.is_ok());
    server.until(stream, (0, 29)).await?;
    server.cut()?;
    // Until it is noticed, what the client has is handed out.
    let error = loop {
        match timeout(PATIENCE, source.next()).await? {
            Ok(delivery) => old.extend(delivery),
            Err(error) => break error,
        }
    };
    assert!(error.is_transient(), "{error}");
    // What was taken, and what the client had for the source.
    let mut again = Vec::new();
    let mut came = BTreeSet::new();
    while came.len() < 29 {
        let delivery = next(&mut source).await?;
        came.insert(text(&delivery).parse::<u32>()?);
        again.push(delivery);
    }
    assert!(came.into_iter().eq(2..=30));
    let count = old.len();
    assert_eq!(NatsDelivery::acknowledge_all(old).await.len(), count);
    assert_eq!(server.outstanding(stream).await?, (0, 29));
    assert!(NatsDelivery::acknowledge_all(again).await.is_empty());
    server.until(stream, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

async fn a_rejected_message_goes_to_its_subject(server: &Nats) -> Outcome {
    let stream = "rejected";
    server.create(stream).await?;
    let mut message = Envelope::new(stream, "body");
    message.id = Some("m-1".into());
    message.headers = vec![("colour".into(), "red".into())];
    server.publish(stream, &[message]).await?;
    let mut first = source(server.options(stream)?.dead_letters("no-such-subject")?);
    let delivery = next(&mut first).await?;
    assert_eq!(delivery.message()?.id().as_str(), "m-1");
    // It is not lost for want of a place.
    assert!(delivery.reject(Rejection::new("no good")).await.is_err());
    first.close().await?;
    let mut second = source(server.options(stream)?.dead_letters(dead(stream))?);
    let delivery = next(&mut second).await?;
    delivery.reject(Rejection::new("no\r\ngood")).await?;
    server.until(stream, (0, 0)).await?;
    let kept = server.messages(&dead(stream)).await?;
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].payload.as_ref(), b"body");
    let header = |name: &str| kept[0].headers.get(name).map(HeaderValue::as_str);
    assert_eq!(header("colour"), Some("red"));
    assert_eq!(header("Inbox-Rejection"), Some("no  good"));
    assert_eq!(header("Inbox-Subject"), Some(stream));
    second.close().await?;
    Ok(())
}

/// Each time that it comes counts as a delivery, which a consumer may limit.
async fn what_cannot_be_rejected_stays_away(server: &Nats) -> Outcome {
    let stream = "stays-away";
    server.create(stream).await?;
    server.publish_numbers(stream, 1).await?;
    let mut source = source(server.options(stream)?.dead_letters("no-such-subject")?);
    let mut delivery = next(&mut source).await?;
    for pause in [500, 1000] {
        let begin = Instant::now();
        let refused = delivery.reject(Rejection::new("no good")).await;
        assert!(refused.is_err_and(|error| error.is_transient()));
        delivery = next(&mut source).await?;
        let away = begin.elapsed();
        assert!(away >= Duration::from_millis(pause), "{away:?}");
    }
    delivery.acknowledge().await?;
    server.until(stream, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

/// The stream for dead letters takes messages of the first one's size, and not with further headers.
async fn a_dead_letter_that_is_too_large_stops_the_source(server: &Nats) -> Outcome {
    let stream = "too-large";
    let of_dead = |limit| stream::Config {
        name: dead(stream),
        subjects: vec![dead(stream)],
        max_message_size: limit,
        ..stream::Config::default()
    };
    let made = server.create_stream(stream).await?;
    made.create_consumer(consumer()).await?;
    let context = server.context().await?;
    context.create_stream(of_dead(1000)).await?;
    let large = [990, 1001].map(|bytes| Envelope::new(stream, vec![b'x'; bytes]));
    server.publish(stream, &large).await?;
    server.publish_numbers(stream, 1).await?;
    let options = server.options(stream)?.dead_letters(dead(stream))?;
    let mut first = source(options.clone());
    let mut taken = take(&mut first, 3).await?;
    taken.remove(0).reject(Rejection::new("no good")).await?;
    assert_eq!(server.messages(&dead(stream)).await?.len(), 1);
    let refused = taken.remove(0).reject(Rejection::new("no good")).await;
    assert!(refused.is_err_and(|error| !error.is_transient()));
    let error = failure(&mut first).await?;
    assert!(!error.is_transient(), "{error}");
    assert!(error.to_string().contains("max_msg_size"), "{error}");
    // What is in flight is acknowledged still.
    assert!(NatsDelivery::acknowledge_all(taken).await.is_empty());
    server.until(stream, (0, 1)).await?;
    first.close().await?;
    context.update_stream(of_dead(10_000)).await?;
    let mut second = source(options);
    let again = next(&mut second).await?;
    again.reject(Rejection::new("no good")).await?;
    server.until(stream, (0, 0)).await?;
    assert_eq!(server.messages(&dead(stream)).await?.len(), 2);
    second.close().await?;
    Ok(())
}

async fn consumers_that_break_a_promise_are_refused(server: &Nats) -> Outcome {
    let stream = server.create_stream("promises").await?;
    let made_with = |policy| pull::Config {
        ack_policy: policy,
        ..consumer()
    };
    for config in [
        made_with(AckPolicy::None),
        made_with(AckPolicy::All),
        pull::Config {
            max_deliver: 3,
            ..consumer()
        },
        pull::Config {
            headers_only: true,
            ..consumer()
        },
    ] {
        stream.create_consumer(config).await?;
        let refused = failure(&mut source(server.options("promises")?)).await?;
        assert!(!refused.is_transient(), "{refused}");
        assert!(refused.to_string().contains("does not fit"), "{refused}");
        stream.delete_consumer(CONSUMER).await?;
    }
    let options = server.options("promises")?.create(false);
    let refused = failure(&mut source(options)).await?;
    assert!(!refused.is_transient(), "{refused}");
    let refused = failure(&mut source(server.options("no-such-stream")?)).await?;
    assert!(!refused.is_transient(), "{refused}");
    Ok(())
}

async fn no_more_is_asked_for_than_the_consumer_allows(server: &Nats) -> Outcome {
    let stream = "limits";
    let made = server.create_stream(stream).await?;
    let config = pull::Config {
        max_batch: 5,
        max_expires: Duration::from_secs(2),
        ..consumer()
    };
    made.create_consumer(config).await?;
    server.publish_numbers(stream, 20).await?;
    let mut source = source(server.options(stream)?);
    for number in 1..=20 {
        // Without a failure, which would be for ever.
        let delivery = timeout(PATIENCE, source.next()).await??;
        let delivery = delivery.ok_or("the source has ended")?;
        assert_eq!(text(&delivery), number.to_string());
        delivery.acknowledge().await?;
    }
    server.until(stream, (0, 0)).await?;
    // It goes on asking when requests end without a message.
    let nothing = timeout(Duration::from_secs(5), source.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    server.publish_numbers(stream, 1).await?;
    let delivery = timeout(PATIENCE, source.next()).await??;
    delivery
        .ok_or("the source has ended")?
        .acknowledge()
        .await?;
    source.close().await?;
    Ok(())
}

/// Each would be rejected again, and be one more dead letter.
async fn dead_letters_that_come_again_are_refused(server: &Nats) -> Outcome {
    let stream = "rounds";
    let config = stream::Config {
        name: stream.into(),
        subjects: vec!["rounds.>".into()],
        ..stream::Config::default()
    };
    let made = server.context().await?.create_stream(config).await?;
    let options = || {
        server
            .options(stream)?
            .dead_letters("rounds.dead")
            .map_err(Into::into)
    };
    let options: &dyn Fn() -> Outcome<NatsOptions> = &options;
    for filter in [None, Some("rounds.*"), Some("rounds.dead")] {
        let created = options()?;
        let created = match filter {
            Some(filter) => created.filter(filter),
            None => created,
        };
        let refused = failure(&mut source(created)).await?;
        assert!(!refused.is_transient(), "{refused}");
        assert!(refused.to_string().contains("rounds.dead"), "{refused}");
        // Also where the consumer was not there before.
        let _ = made.delete_consumer(CONSUMER).await;
    }
    let config = pull::Config {
        filter_subjects: vec!["rounds.dead".into(), "rounds.new".into()],
        ..consumer()
    };
    if made.create_consumer(config).await.is_ok() {
        let refused = failure(&mut source(options()?)).await?;
        assert!(!refused.is_transient(), "{refused}");
        made.delete_consumer(CONSUMER).await?;
    }
    // One that does not get them may have them in its stream.
    let mut other = source(options()?.filter("rounds.new.*"));
    let mut sent = Envelope::new("rounds.new.1", "body");
    sent.id = Some("m-1".into());
    let answers = NatsPublisher::new(server.direct()?).publish(&[sent]).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    next(&mut other)
        .await?
        .reject(Rejection::new("no good"))
        .await?;
    assert_eq!(server.messages(stream).await?.len(), 2);
    server.until(stream, (0, 0)).await?;
    other.close().await?;
    Ok(())
}

async fn a_stream_that_is_made_again_is_another(server: &Nats) -> Outcome {
    let stream = "again";
    server.create(stream).await?;
    server.publish_numbers(stream, 2).await?;
    let mut source = source(server.options(stream)?);
    let old = take(&mut source, 2).await?;
    server.context().await?.delete_stream(stream).await?;
    let error = failure(&mut source).await?;
    assert!(error.is_transient(), "{error}");
    let config = stream::Config {
        name: stream.into(),
        subjects: vec![stream.into()],
        ..stream::Config::default()
    };
    let made = server.context().await?.create_stream(config).await?;
    made.create_consumer(consumer()).await?;
    server.publish_numbers(stream, 2).await?;
    let new = take(&mut source, 2).await?;
    assert_ne!(old[0].envelope().position, new[0].envelope().position);
    assert_eq!(NatsDelivery::acknowledge_all(old).await.len(), 2);
    assert_eq!(server.outstanding(stream).await?, (0, 2));
    assert!(NatsDelivery::acknowledge_all(new).await.is_empty());
    server.until(stream, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

/// As long as nothing is asked for, the server says nothing of a consumer that it has deleted.
async fn a_stream_that_is_made_again_unheard_is_another(server: &Nats) -> Outcome {
    let stream = "again-unheard";
    server.create(stream).await?;
    server.publish_numbers(stream, 2).await?;
    let mut first = source(server.options(stream)?);
    first.set_flow(Flow::new(2, 2));
    let old = take(&mut first, 2).await?;
    server.context().await?.delete_stream(stream).await?;
    let made = server.create_stream(stream).await?;
    made.create_consumer(consumer()).await?;
    server.publish_numbers(stream, 2).await?;
    let mut second = source(server.options(stream)?);
    let new = take(&mut second, 2).await?;
    // The store of the first one was slow.
    sleep(Duration::from_secs(2)).await;
    let failures = NatsDelivery::acknowledge_all(old).await.len();
    assert_eq!((failures, server.outstanding(stream).await?), (2, (0, 2)));
    assert!(NatsDelivery::acknowledge_all(new).await.is_empty());
    server.until(stream, (0, 0)).await?;
    first.close().await?;
    second.close().await?;
    Ok(())
}

/// Whichever consumer takes it, and whether or not anything comes to this one.
async fn the_lag_is_that_of_the_consumer(server: &Nats) -> Outcome {
    let stream = "lag";
    server.create(stream).await?;
    server.publish_numbers(stream, 10).await?;
    let mut first = source(server.options(stream)?);
    first.set_flow(Flow::new(2, 2));
    let held = take(&mut first, 2).await?;
    until_lag(&first, 8).await?;
    let mut second = source(server.options(stream)?);
    let others = take(&mut second, 8).await?;
    until_lag(&first, 0).await?;
    assert!(NatsDelivery::acknowledge_all(others).await.is_empty());
    second.close().await?;
    server.publish_numbers(stream, 5).await?;
    until_lag(&first, 5).await?;
    assert!(NatsDelivery::acknowledge_all(held).await.is_empty());
    first.close().await?;
    Ok(())
}

async fn until_lag(source: &NatsSource, wanted: u64) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    while source.lag() != Some(wanted) {
        if Instant::now() > deadline {
            return Err(format!("in the end the lag is {:?}, not {wanted}", source.lag()).into());
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn survives_a_kill(kind: Kind) -> Outcome {
    let Some(server) = block_in_place(|| Nats::own(kind))? else {
        return Ok(());
    };
    let stream = "killed";
    server.create(stream).await?;
    server.publish_numbers(stream, 3).await?;
    let mut source = source(server.options(stream)?);
    let old = next(&mut source).await?;
    block_in_place(|| server.harm(Server::kill))?;
    let lost = timeout(PATIENCE, async {
        loop {
            if let Err(error) = source.next().await {
                return error;
            }
        }
    });
    let lost = lost.await?;
    assert!(lost.is_transient(), "{lost}");
    assert!(old.acknowledge().await.is_err());
    let away = NatsPublisher::new(server.direct()?).timeout(Duration::from_secs(1));
    let answer = away.publish(&[Envelope::new(stream, "4")]).await;
    let error = answer.into_iter().next().and_then(Result::err);
    assert!(error.is_some_and(|error| error.is_transient()));
    block_in_place(|| server.harm(Server::start))?;
    let mut seen = BTreeSet::new();
    while seen.len() < 3 {
        let delivery = next(&mut source).await?;
        seen.insert(text(&delivery));
        delivery.acknowledge().await?;
    }
    server.until(stream, (0, 0)).await?;
    source.close().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_is_survived() -> Outcome {
    survives_a_kill(Kind::Nats).await
}

/// A server that says nothing any more is given up, also by a source that only waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_noticed() -> Outcome {
    let Some(server) = block_in_place(|| Nats::own(Kind::Nats))? else {
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
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
    block_in_place(|| server.harm(Server::resume))?;
    let again = next(&mut source).await?;
    assert!(old.acknowledge().await.is_err());
    again.acknowledge().await?;
    server.until("silent", (0, 0)).await?;
    source.close().await?;
    Ok(())
}

/// A wrong password does not pass by itself, and is never shown. A publisher has messages that a change of the
/// password makes no worse: for it, it passes.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_permanent_for_a_source() -> Outcome {
    let arguments = ["--user", "ann", "--pass", "right"];
    let Some(server) = block_in_place(|| Nats::with_arguments(Kind::Nats, &arguments))? else {
        return Ok(());
    };
    let address = server.address();
    let url = format!("nats://ann:s3cret@{address}/?stream=S&consumer=c");
    let mut wrong = source(NatsOptions::from_url(&url)?);
    let error = failure(&mut wrong).await?;
    assert!(!error.is_transient(), "{error}");
    let shown = format!("{error} {error:?} {wrong:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    let publisher = NatsPublisher::from_url(&format!("nats://ann:s3cret@{address}"))?;
    let answers = publisher.publish(&[Envelope::new("a", "b")]).await;
    let error = answers.into_iter().next().and_then(Result::err);
    let error = error.ok_or("no error")?;
    assert!(error.is_transient(), "{error}");
    let shown = format!("{error} {error:?} {publisher:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    // With the right one it is the stream that is not there.
    let url = format!("nats://ann:right@{address}/?stream=S&consumer=c");
    let error = failure(&mut source(NatsOptions::from_url(&url)?)).await?;
    assert!(error.to_string().contains("stream"), "{error}");
    Ok(())
}
