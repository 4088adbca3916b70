//! Topics that are deleted and made again under a source, which then have their offsets a second time.

use inbox_kafka::KafkaDelivery;
use inbox_source::{Delivery as _, Source as _};

use crate::{
    harness::{Kafka, Outcome},
    source::{acknowledge, open, take, texts},
};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_in_flight_of_the_old_topic_commits_nothing_of_the_new_one() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "made-again-in-flight";
    kafka.create(topic, 1).await?;
    kafka.publish_numbers(topic, 7, 1).await?;
    let mut source = open(kafka.options(topic));
    let mut of_old = take(&mut source, 7).await?;
    let in_flight = of_old.split_off(5);
    acknowledge(of_old).await;
    kafka.until_committed(topic, 5).await?;
    kafka.create_again(topic).await?;
    kafka.publish_texts(topic, &["a", "b", "c", "d"]).await?;
    let mut of_new = take(&mut source, 4).await?;
    assert_eq!(texts(&of_new), ["a", "b", "c", "d"]);
    // The offset of the old topic does not stay, whatever becomes of the source.
    kafka.until_committed(topic, 0).await?;
    assert_eq!(KafkaDelivery::acknowledge_all(in_flight).await.len(), 2);
    let rest = of_new.split_off(2);
    acknowledge(of_new).await;
    kafka.until_committed(topic, 2).await?;
    drop(rest);
    source.close().await?;
    assert_eq!(kafka.offsets(topic)?[0].committed, Some(2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_skips_nothing_of_a_topic_that_was_made_again() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "made-again";
    kafka.create(topic, 1).await?;
    kafka.publish_numbers(topic, 7, 1).await?;
    let mut source = open(kafka.options(topic));
    acknowledge(take(&mut source, 7).await?).await;
    kafka.until_committed(topic, 7).await?;
    kafka.create_again(topic).await?;
    kafka.publish_texts(topic, &["a", "b"]).await?;
    let of_new = take(&mut source, 2).await?;
    assert_eq!(texts(&of_new), ["a", "b"]);
    acknowledge(of_new).await;
    source.close().await?;
    // More than the old one had.
    let more: Vec<String> = (1..=8).map(|number| number.to_string()).collect();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    kafka.publish_texts(topic, &more).await?;
    let mut source = open(kafka.options(topic));
    let rest = take(&mut source, 8).await?;
    assert_eq!(texts(&rest), more);
    acknowledge(rest).await;
    source.close().await?;
    assert_eq!(kafka.offsets(topic)?[0].committed, Some(10));
    Ok(())
}
