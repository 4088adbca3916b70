//! What is peculiar to Kafka: offsets, assignments, dead letters, transactions.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    harness::{Failure, Kafka, Outcome, dead},
    wire,
};
use inbox_kafka::{
    KafkaDelivery, KafkaOptions, KafkaSource, REJECTED_FROM, REJECTED_REASON, Rejections,
};
use inbox_source::{Delivery as _, Envelope, Flow, Mapping, Rejection, Source as _, SourceError};
use rdkafka::{
    ClientConfig, Message as _,
    message::{Header, Headers as _, OwnedHeaders},
    mocking::MockCluster,
    producer::{FutureProducer, FutureRecord},
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use tokio::time::{sleep, timeout};

/// How long what has to happen may take, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// How long nothing has to happen for it not to.
const QUIET: Duration = Duration::from_secs(2);

fn mapping() -> Mapping {
    Mapping::new("billing").unwrap()
}

pub(crate) fn open(options: KafkaOptions) -> KafkaSource {
    KafkaSource::new(options, mapping()).unwrap()
}

/// The next delivery, through outages.
pub(crate) async fn next(source: &mut KafkaSource) -> Result<KafkaDelivery, Failure> {
    let next = async {
        loop {
            match source.next().await {
                Ok(delivery) => return delivery.ok_or("it ended".into()),
                Err(error) if error.is_transient() => sleep(Duration::from_millis(100)).await,
                Err(error) => return Err(error.into()),
            }
        }
    };
    timeout(LIMIT, next).await?
}

pub(crate) async fn take(
    source: &mut KafkaSource,
    count: usize,
) -> Result<Vec<KafkaDelivery>, Failure> {
    let mut deliveries = Vec::new();
    while deliveries.len() < count {
        deliveries.push(next(source).await?);
    }
    Ok(deliveries)
}

/// What ends it.
async fn end(source: &mut KafkaSource) -> Result<SourceError, Failure> {
    loop {
        match timeout(LIMIT, source.next()).await? {
            Ok(delivery) => drop(delivery),
            Err(error) if error.is_transient() => {}
            Err(error) => return Ok(error),
        }
    }
}

async fn is_quiet(source: &mut KafkaSource) -> bool {
    timeout(QUIET, source.next()).await.is_err()
}

fn text(delivery: &KafkaDelivery) -> String {
    String::from_utf8_lossy(&delivery.envelope().payload).into_owned()
}

pub(crate) fn texts(deliveries: &[KafkaDelivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}

pub(crate) async fn acknowledge(run: Vec<KafkaDelivery>) {
    assert!(KafkaDelivery::acknowledge_all(run).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_finished_is_committed() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "only-what-is-finished";
    kafka.create(topic, 1).await?;
    kafka.publish_numbers(topic, 10, 1).await?;
    let mut source = open(kafka.options(topic));
    let mut deliveries = take(&mut source, 5).await?;
    let after = deliveries.split_off(3);
    // A later one alone commits nothing.
    let mut after = after.into_iter();
    let (fourth, fifth) = (after.next().unwrap(), after.next().unwrap());
    fifth.acknowledge().await?;
    acknowledge(deliveries).await;
    kafka.until_committed(topic, 3).await?;
    fourth.acknowledge().await?;
    kafka.until_committed(topic, 5).await?;
    let sixth = next(&mut source).await?;
    source.close().await?;
    assert!(sixth.acknowledge().await.is_err(), "it is closed");
    assert_eq!(kafka.offsets(topic)?[0].committed, Some(5));

    let mut source = open(kafka.options(topic));
    assert_eq!(
        texts(&take(&mut source, 5).await?),
        ["6", "7", "8", "9", "10"]
    );
    source.close().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_last_is_committed_by_close() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "committed-by-close";
    kafka.create(topic, 3).await?;
    kafka.publish_numbers(topic, 300, 7).await?;
    let mut source = open(kafka.options(topic));
    let deliveries = take(&mut source, 300).await?;
    acknowledge(deliveries).await;
    source.close().await?;
    assert_eq!(kafka.outstanding(topic)?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_goes_when_what_is_in_flight_is_finished() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "goes-when-finished";
    kafka.create(topic, 2).await?;
    kafka.publish_numbers(topic, 20, 10).await?;
    let options = kafka.options(topic).revoke_wait(Duration::from_secs(50));
    let mut first = open(options.clone());
    let in_flight = take(&mut first, 20).await?;
    let mut second = open(options);
    assert!(is_quiet(&mut second).await, "all is in flight");
    assert!(is_quiet(&mut second).await, "still");
    acknowledge(in_flight).await;
    kafka.publish_numbers(topic, 20, 10).await?;
    // Both have one partition now, and nothing comes twice.
    let mut seen = BTreeSet::new();
    let mut of_second = 0;
    while seen.len() < 20 {
        let delivery = tokio::select! {
            delivery = next(&mut first) => delivery?,
            delivery = next(&mut second) => { of_second += 1; delivery? }
        };
        assert!(seen.insert(text(&delivery)), "twice: {delivery:?}");
        delivery.acknowledge().await?;
    }
    assert!(of_second > 0, "the second has nothing");
    first.close().await?;
    second.close().await?;
    assert_eq!(kafka.outstanding(topic)?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_goes_after_the_wait_and_late_acknowledgements_fail() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "goes-after-the-wait";
    kafka.create(topic, 2).await?;
    kafka.publish_numbers(topic, 20, 10).await?;
    let options = kafka.options(topic).revoke_wait(Duration::from_secs(1));
    let mut first = open(options.clone());
    let mut in_flight = take(&mut first, 20).await?;
    let mut second = open(options);
    let moved = next(&mut second).await?;
    let gone = moved.envelope().position.clone();
    let gone = gone.as_deref().unwrap().rsplit_once('/').unwrap().0;
    let is_gone = |delivery: &KafkaDelivery| {
        let position = delivery.envelope().position.as_deref().unwrap();
        position.starts_with(&format!("{gone}/"))
    };
    let late: Vec<_> = in_flight.extract_if(.., |one| is_gone(one)).collect();
    let count = late.len();
    assert!(count > 0 && !in_flight.is_empty());
    assert_eq!(KafkaDelivery::acknowledge_all(late).await.len(), count);
    // The other partition is still the first one's.
    acknowledge(in_flight).await;
    first.close().await?;
    let partition: usize = gone.rsplit_once('/').unwrap().1.parse()?;
    assert_eq!(kafka.offsets(topic)?[partition].committed, None);
    second.close().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_delivery_is_a_dead_letter_before_it_is_finished() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "rejected";
    kafka.create(topic, 1).await?;
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", &kafka.servers)
        .create()?;
    let headers = OwnedHeaders::new().insert(Header {
        key: "raw",
        value: Some(b"\xff\x00"),
    });
    let record = FutureRecord::to(topic)
        .key(&b"\xfe"[..])
        .payload(&b"\xff"[..]);
    let sent = producer.send(record.headers(headers), LIMIT).await;
    sent.map_err(|(error, _)| error)?;

    let mut source = open(kafka.options(topic));
    let delivery = next(&mut source).await?;
    delivery.reject(Rejection::new("it is no message")).await?;
    kafka.until_committed(topic, 1).await?;
    source.close().await?;
    let letters = kafka.records(&dead(topic))?;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].key(), Some(&b"\xfe"[..]));
    assert_eq!(letters[0].payload(), Some(&b"\xff"[..]));
    let headers = letters[0].headers().unwrap();
    let value = |name: &str| {
        let mut headers = headers.iter();
        headers
            .find(|header| header.key == name)
            .unwrap()
            .value
            .unwrap()
    };
    assert_eq!(value("raw"), b"\xff\x00");
    assert_eq!(value(REJECTED_REASON), b"it is no message");
    assert_eq!(value(REJECTED_FROM), b"rejected/0/0");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_cannot_be_written_keeps_the_offset() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "no-dead-letters";
    kafka.create(topic, 1).await?;
    kafka.publish_numbers(topic, 3, 1).await?;
    let nowhere = Rejections::DeadLetters("this-topic-is-not-there".into());
    let mut source = open(kafka.options(topic).rejections(nowhere));
    let mut deliveries = take(&mut source, 3).await?.into_iter();
    let rejected = deliveries.next().unwrap();
    let refused = timeout(LIMIT, rejected.reject(Rejection::new("no"))).await?;
    assert!(refused.is_err());
    // What came after it is given up with it.
    let after: Vec<_> = deliveries.collect();
    assert_eq!(KafkaDelivery::acknowledge_all(after).await.len(), 2);
    let again = take(&mut source, 3).await?;
    assert_eq!(texts(&again), ["1", "2", "3"]);
    assert_eq!(kafka.offsets(topic)?[0].committed, None);
    acknowledge(again).await;
    source.close().await?;
    assert_eq!(kafka.offsets(topic)?[0].committed, Some(3));
    Ok(())
}

/// The client panics when it is asked for such a name.
#[tokio::test(flavor = "multi_thread")]
async fn a_header_whose_name_is_no_text_is_no_message_and_holds_nothing_up() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "odd-header";
    kafka.create(topic, 1).await?;
    wire::produce(
        &kafka.servers,
        topic,
        b"key",
        b"body",
        (b"odd-\xff\xfe", b"value"),
    )?;
    kafka.publish_numbers(topic, 1, 1).await?;
    let mut source = open(kafka.options(topic));
    let odd = next(&mut source).await?;
    let refused = odd.message().unwrap_err();
    assert!(refused.reason().contains("header"), "{refused}");
    assert_eq!(odd.raw().unwrap().payload(), "body");
    assert_eq!(odd.envelope().key.as_deref(), Some("key"));
    odd.reject(refused).await?;
    let behind = next(&mut source).await?;
    assert_eq!(text(&behind), "1");
    acknowledge(vec![behind]).await;
    source.close().await?;
    assert_eq!(kafka.offsets(topic)?[0].committed, Some(2));
    let letter = kafka.records(&dead(topic))?.remove(0);
    assert_eq!(letter.key(), Some(&b"key"[..]));
    assert_eq!(letter.payload(), Some(&b"body"[..]));
    Ok(())
}

/// A producer that has failed for good takes nothing more, however often it is asked.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_get_a_new_producer_when_theirs_has_failed_for_good() -> Outcome {
    let brokers = MockCluster::new(1)?;
    let kafka = Kafka::at(&brokers.bootstrap_servers());
    let topic = "fatal";
    for name in [topic, &dead(topic)] {
        brokers.create_topic(name, 1, 1)?;
    }
    kafka.publish_numbers(topic, 1, 1).await?;
    let mut source = open(kafka.options(topic));
    let delivery = next(&mut source).await?;
    brokers.request_errors(
        RDKafkaApiKey::InitProducerId,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED],
    );
    let refused = delivery.reject(Rejection::new("no")).await.unwrap_err();
    let again = next(&mut source).await?;
    assert_eq!(text(&again), "1");
    again.reject(Rejection::new("no")).await?;
    assert!(refused.is_transient(), "{refused}");
    source.close().await?;
    assert_eq!(kafka.records(&dead(topic))?.len(), 1);
    Ok(())
}

/// It comes again with the one before it, and would be written again each time.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_behind_one_that_could_not_be_rejected_is_no_dead_letter_yet() -> Outcome {
    let brokers = MockCluster::new(1)?;
    let kafka = Kafka::at(&brokers.bootstrap_servers());
    let topic = "behind";
    for name in [topic, &dead(topic)] {
        brokers.create_topic(name, 1, 1)?;
    }
    kafka.publish_numbers(topic, 2, 1).await?;
    let mut source = open(kafka.options(topic));
    let both = take(&mut source, 2).await?;
    brokers.request_errors(
        RDKafkaApiKey::InitProducerId,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED],
    );
    for delivery in both {
        let refused = delivery.reject(Rejection::new("no")).await.unwrap_err();
        assert!(refused.is_transient(), "{refused}");
    }
    for delivery in take(&mut source, 2).await? {
        delivery.reject(Rejection::new("no")).await?;
    }
    source.close().await?;
    assert_eq!(kafka.records(&dead(topic))?.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_too_large_stops_the_source() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let (topic, small) = ("too-large-for-dead-letters", "small-dead-letters");
    kafka.create(topic, 1).await?;
    kafka.create_with_limit(small, "2000").await?;
    let large = Envelope::new(topic, vec![b'x'; 5000]);
    kafka.publish(topic, &[large]).await?;
    kafka.publish_numbers(topic, 1, 1).await?;
    let to_small = Rejections::DeadLetters(small.into());
    let mut source = open(kafka.options(topic).rejections(to_small));
    let mut deliveries = take(&mut source, 2).await?;
    let large = deliveries.remove(0);
    let refused = timeout(LIMIT, large.reject(Rejection::new("no"))).await?;
    assert!(refused.is_err_and(|error| !error.is_transient()));
    let behind = deliveries.remove(0);
    assert!(behind.reject(Rejection::new("no")).await.is_err());
    let error = end(&mut source).await?;
    assert!(error.to_string().contains("max.message.bytes"), "{error}");
    source.close().await?;
    assert_eq!(kafka.offsets(topic)?[0].committed, None);
    assert!(kafka.records(small)?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_goes_without_its_reason_where_that_makes_it_too_large() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let (topic, small) = ("nearly-too-large", "dead-letters-as-large");
    kafka.create(topic, 1).await?;
    kafka.create_with_limit(small, "2000").await?;
    let large = Envelope::new(topic, vec![b'x'; 1890]);
    kafka.publish(topic, &[large]).await?;
    let to_small = Rejections::DeadLetters(small.into());
    let mut source = open(kafka.options(topic).rejections(to_small));
    let reason = Rejection::new("no ".repeat(100));
    next(&mut source).await?.reject(reason).await?;
    let letters = kafka.records(small)?;
    assert_eq!(letters.len(), 1);
    assert!(
        letters[0]
            .headers()
            .is_none_or(|headers| headers.count() == 0)
    );
    source.close().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_stops_the_source_if_so_decided() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "stops";
    kafka.create(topic, 1).await?;
    kafka.publish_numbers(topic, 2, 1).await?;
    let mut source = open(kafka.options(topic).rejections(Rejections::Stop));
    let delivery = next(&mut source).await?;
    assert!(delivery.reject(Rejection::new("no")).await.is_err());
    let error = end(&mut source).await?;
    assert!(error.to_string().contains("stops/0/0"), "{error}");
    source.close().await?;
    assert_eq!(kafka.offsets(topic)?[0].committed, None);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_is_dropped_comes_again() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "dropped";
    kafka.create(topic, 1).await?;
    kafka.publish_numbers(topic, 4, 1).await?;
    let mut source = open(kafka.options(topic));
    let mut deliveries = take(&mut source, 4).await?;
    let after = deliveries.split_off(2);
    drop(deliveries.pop());
    acknowledge(deliveries).await;
    assert_eq!(KafkaDelivery::acknowledge_all(after).await.len(), 2);
    let again = take(&mut source, 3).await?;
    assert_eq!(texts(&again), ["2", "3", "4"]);
    acknowledge(again).await;
    source.close().await?;
    assert_eq!(kafka.offsets(topic)?[0].committed, Some(4));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_taken_than_the_flow_allows() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "flow";
    kafka.create(topic, 2).await?;
    kafka.publish_numbers(topic, 200, 10).await?;
    let mut source = open(kafka.options(topic));
    source.set_flow(Flow::new(7, 3));
    let mut held = take(&mut source, 7).await?;
    assert!(is_quiet(&mut source).await);
    acknowledge(vec![held.remove(0)]).await;
    held.push(next(&mut source).await?);
    assert!(is_quiet(&mut source).await);
    drop(held);
    source.close().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_bytes_are_taken_than_the_flow_allows() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "flow-of-bytes";
    kafka.create(topic, 2).await?;
    let record = |number: u8| {
        let mut record = Envelope::new(topic, vec![number; 100_000]);
        record.key = Some(number.to_string());
        record
    };
    let records: Vec<_> = (0..10).map(record).collect();
    kafka.publish(topic, &records).await?;
    let mut source = open(kafka.options(topic));
    source.set_flow(Flow::new(1000, 500).with_max_unacknowledged_bytes(250_000));
    let mut held = take(&mut source, 3).await?;
    assert!(is_quiet(&mut source).await);
    acknowledge(vec![held.remove(0)]).await;
    held.push(next(&mut source).await?);
    assert!(is_quiet(&mut source).await);
    drop(held);
    source.close().await?;
    // One is always taken.
    let mut source = open(kafka.options(topic));
    source.set_flow(Flow::new(1000, 500).with_max_unacknowledged_bytes(1));
    drop(next(&mut source).await?);
    source.close().await?;
    Ok(())
}

/// A store that is away for longer than the group's `max.poll.interval.ms`.
#[tokio::test(flavor = "multi_thread")]
async fn holding_deliveries_for_long_does_not_cost_the_membership() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "held-for-long";
    kafka.create(topic, 1).await?;
    kafka.publish_numbers(topic, 4, 1).await?;
    let connection = kafka
        .connection()
        .property("max.poll.interval.ms", "6000")?;
    let options = KafkaOptions::new(connection, topic, [topic])
        .session_timeout(Duration::from_secs(6))
        .rejections(Rejections::Stop);
    let mut source = open(options);
    source.set_flow(Flow::new(2, 1));
    let held = take(&mut source, 2).await?;
    sleep(Duration::from_secs(10)).await;
    acknowledge(held).await;
    let rest = take(&mut source, 2).await?;
    assert_eq!(texts(&rest), ["3", "4"]);
    acknowledge(rest).await;
    source.close().await?;
    assert_eq!(kafka.offsets(topic)?[0].committed, Some(4));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_transactions_are_left_out() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "transactions";
    kafka.create(topic, 1).await?;
    let sent = [("kept", true), ("aborted", false), ("kept too", true)];
    kafka.publish_in_transactions(topic, &sent).await?;
    let mut source = open(kafka.options(topic));
    let deliveries = take(&mut source, 2).await?;
    assert_eq!(texts(&deliveries), ["kept", "kept too"]);
    acknowledge(deliveries).await;
    source.close().await?;
    Ok(())
}

/// One broker whose host is not known is no outage, and all of them are.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_not_known_is_told() -> Outcome {
    let kafka = Kafka::at("no-such-host.invalid:9092");
    let mut source = open(kafka.options("nowhere"));
    let error = timeout(LIMIT, source.next()).await?.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let text = error.to_string();
    assert!(text.contains("no broker can be reached"), "{text}");
    assert!(text.contains("no-such-host"), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_is_waited_for() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "made-later";
    let mut source = open(kafka.options(topic));
    let error = timeout(LIMIT, source.next()).await?.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let expected = "create the topic: made-later";
    assert!(error.to_string().ends_with(expected), "{error}");
    // It is told for as long as the topic is missing, not only once.
    let error = timeout(LIMIT, source.next()).await?.unwrap_err();
    assert!(error.to_string().ends_with(expected), "{error}");
    kafka.create(topic, 1).await?;
    kafka.publish_numbers(topic, 1, 1).await?;
    assert_eq!(text(&next(&mut source).await?), "1");
    source.close().await?;
    Ok(())
}

/// Defect: the source failed again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_of_several_is_no_outage() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let (there, later) = ("there", "there-later");
    kafka.create(there, 1).await?;
    kafka.publish_numbers(there, 1, 1).await?;
    let options = KafkaOptions::new(kafka.connection(), there, [there, later])
        .session_timeout(Duration::from_secs(6))
        .rejections(Rejections::DeadLetters(dead(there)));
    let mut source = open(options);
    let delivery = timeout(LIMIT, source.next()).await??;
    acknowledge(delivery.into_iter().collect()).await;
    assert!(is_quiet(&mut source).await);
    kafka.create(later, 1).await?;
    kafka.publish_texts(later, &["a"]).await?;
    assert_eq!(text(&next(&mut source).await?), "a");
    source.close().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_comes_back_with_what_was_committed() -> Outcome {
    let Some(kafka) = Kafka::own()? else {
        return Ok(());
    };
    let topic = "killed";
    kafka.create(topic, 2).await?;
    kafka.publish_numbers(topic, 20, 10).await?;
    // Longer than the server is away.
    let options = kafka.options(topic);
    let mut source = open(options.session_timeout(Duration::from_secs(30)));
    source.set_flow(Flow::new(5, 5));
    acknowledge(take(&mut source, 5).await?).await;
    let held = take(&mut source, 5).await?;
    kafka.harm(test_servers::Server::kill)?;
    let error = timeout(LIMIT, source.next()).await?.unwrap_err();
    assert!(error.is_transient(), "{error}");
    // Stored while the broker is away: committed when it is back.
    acknowledge(held).await;
    kafka.harm(test_servers::Server::start)?;
    kafka.publish_numbers(topic, 5, 5).await?;
    // What was acknowledged while it was away may come again, if the member had to join again.
    finish_all(&kafka, topic, &mut source).await?;
    source.close().await?;
    Ok(())
}

/// The group gives the partitions away, as far as the server knows, and the member comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_silent_for_longer_than_the_session() -> Outcome {
    let Some(kafka) = Kafka::own()? else {
        return Ok(());
    };
    let topic = "silent";
    kafka.create(topic, 2).await?;
    kafka.publish_numbers(topic, 20, 10).await?;
    let mut source = open(kafka.options(topic));
    let mut held = take(&mut source, 20).await?;
    acknowledge(held.drain(..10).collect()).await;
    kafka.harm(test_servers::Server::pause)?;
    sleep(Duration::from_secs(12)).await;
    kafka.harm(test_servers::Server::resume)?;
    // They may be of a former assignment, and are then delivered again.
    let _ = KafkaDelivery::acknowledge_all(held).await;
    kafka.publish_numbers(topic, 1, 1).await?;
    finish_all(&kafka, topic, &mut source).await?;
    source.close().await?;
    Ok(())
}

/// Acknowledges what comes until the group has committed all.
async fn finish_all(kafka: &Kafka, topic: &str, source: &mut KafkaSource) -> Outcome {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let taken = timeout(Duration::from_secs(1), next(source)).await;
        if let Ok(delivery) = taken {
            let _ = delivery?.acknowledge().await;
        } else if tokio::task::block_in_place(|| kafka.outstanding(topic))? == 0 {
            return Ok(());
        }
        let offsets = || kafka.offsets(topic);
        assert!(tokio::time::Instant::now() < deadline, "{:?}", offsets()?);
    }
}
