//! The publisher: what it sends, and how it tells what was not taken.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use crate::{
    harness::{Kafka, Outcome, dead},
    source::{LIMIT, acknowledge, open, take},
};
use inbox_kafka::{KafkaDelivery, KafkaPublisher, TOMBSTONE};
use inbox_source::{Delivery as _, Envelope, Publisher as _, Source as _, SourceError};
use rdkafka::{Message as _, message::Headers as _};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_publisher_sends_arrives_as_it_was() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "round-trip";
    kafka.create(topic, 3).await?;
    let mut sent = Envelope::new(topic, &b"\x00\xff{}"[..]);
    sent.id = Some("evt-1".into());
    sent.kind = Some("order.placed".into());
    sent.key = Some("c-1".into());
    sent.content_type = Some("application/json".into());
    sent.headers = vec![("traceparent".into(), "00-1-2-01".into())];
    sent.time = Some(std::time::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
    let mut empty = Envelope::new(topic, "");
    empty.key = Some("c-2".into());
    let mut tombstone = empty.clone();
    tombstone.add_header(TOMBSTONE, b"true");
    kafka
        .publish(topic, &[sent.clone(), empty, tombstone])
        .await?;

    let mut source = open(kafka.options(topic));
    let deliveries = take(&mut source, 3).await?;
    let find = |key: &str| {
        let of_key = deliveries.iter().map(KafkaDelivery::envelope);
        let found = of_key.filter(|one| one.key.as_deref() == Some(key));
        found.cloned().collect::<Vec<_>>()
    };
    let mut got = find("c-1").remove(0);
    let message = deliveries
        .iter()
        .find(|one| one.envelope() == &got)
        .unwrap()
        .message()?;
    assert_eq!(message.id().as_str(), "evt-1");
    assert_eq!(message.kind().as_str(), "order.placed");
    assert_eq!(message.ordering_key().unwrap().as_str(), "c-1");
    assert!(got.position.take().unwrap().starts_with("round-trip/"));
    // The properties are headers, too.
    got.headers.truncate(1);
    assert_eq!(got, sent);
    let others = find("c-2");
    assert_eq!(others[0].header(TOMBSTONE), None);
    assert_eq!(others[1].header(TOMBSTONE), Some("true"));
    assert!(others.iter().all(|one| one.payload.is_empty()));
    acknowledge(deliveries).await;
    source.close().await?;

    // What was received can be sent on.
    let mut again = got.clone();
    again.address = dead(topic);
    let publisher = KafkaPublisher::from_url(&format!("kafka://{}", kafka.servers))?;
    assert!(publisher.publish(&[again]).await[0].is_ok());
    let record = kafka.records(&dead(topic))?.remove(0);
    assert_eq!(record.headers().unwrap().count(), 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_tells_what_will_never_be_taken() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "never-taken";
    kafka.create(topic, 1).await?;
    let publisher = KafkaPublisher::new(kafka.connection());
    let good = Envelope::new(topic, "1");
    let large = Envelope::new(topic, vec![0; 2_000_000]);
    let answers = publisher.publish(&[good.clone(), large, good]).await;
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert!(!answers[1].as_ref().unwrap_err().is_transient());
    Ok(())
}

/// As an outbox sends them. A new client connects for longer than these are handed to it, and puts them into few
/// batches.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_too_large_is_no_fault_of_its_messages() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "small-batches";
    kafka.create_with_limit(topic, "100000").await?;
    let large = 200_usize;
    let mut messages = Vec::new();
    for number in 0..400 {
        let bytes = if number == large { 200_000 } else { 2_000 };
        let mut message = Envelope::new(topic, vec![b'x'; bytes]);
        message.key = Some(number.to_string());
        messages.push(message);
    }
    let publisher = KafkaPublisher::new(kafka.connection()).timeout(LIMIT);
    let answers = publisher.publish(&messages).await;
    assert_eq!(answers.len(), messages.len());
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_ok(), number != large, "{number}: {answer:?}");
        if let Err(error) = answer {
            assert!(!error.is_transient(), "{number}: {error}");
        }
    }
    assert_eq!(kafka.records(topic)?.len(), messages.len() - 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_again_alone_does_not_pass_others_of_its_key() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "small-batches-in-order";
    kafka.create_with_limit(topic, "100000").await?;
    let mut messages = Vec::new();
    for number in 0..500 {
        let mut message = Envelope::new(topic, format!("{number:04000}"));
        message.key = Some(format!("key-{}", number % 50));
        messages.push(message);
    }
    let publisher = KafkaPublisher::new(kafka.connection()).timeout(LIMIT);
    let answers = publisher.publish(&messages).await;
    let mut failures = answers.iter().filter_map(|answer| answer.as_ref().err());
    assert!(failures.all(SourceError::is_transient), "{answers:?}");
    let mut stored = BTreeSet::new();
    let mut last = HashMap::new();
    for record in kafka.records(topic)? {
        let text = std::str::from_utf8(record.payload().unwrap())?;
        let number: usize = text.parse()?;
        let before = last.insert(record.key().unwrap().to_vec(), number);
        assert!(before.is_none_or(|before| before < number), "{number}");
        stored.insert(number);
    }
    for (number, answer) in answers.iter().enumerate() {
        assert!(answer.is_err() || stored.contains(&number), "{number}");
    }
    Ok(())
}

/// As a compacted topic refuses a record without a key, with all that is in its batch.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_a_topic_refuses_is_no_fault_of_its_batch() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "compacted";
    kafka.create_compacted(topic).await?;
    let odd = 7_usize;
    let mut messages = Vec::new();
    for number in 0..20 {
        let mut message = Envelope::new(topic, number.to_string());
        message.key = (number != odd).then(|| number.to_string());
        messages.push(message);
    }
    let publisher = KafkaPublisher::new(kafka.connection()).timeout(LIMIT);
    // The second time, the client goes on behind what was refused.
    for _ in 0..2 {
        let answers = publisher.publish(&messages).await;
        for (number, answer) in answers.iter().enumerate() {
            assert_eq!(answer.is_ok(), number != odd, "{number}: {answer:?}");
            if let Err(error) = answer {
                assert!(!error.is_transient(), "{number}: {error}");
            }
        }
    }
    assert_eq!(kafka.records(topic)?.len(), 2 * (messages.len() - 1));
    Ok(())
}
