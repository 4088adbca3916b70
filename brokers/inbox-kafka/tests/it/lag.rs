//! How far a source is behind.

use std::time::Duration;

use inbox_kafka::KafkaSource;
use inbox_source::{Flow, Source as _};
use tokio::time::{Instant, sleep};

use crate::{
    harness::{Kafka, Outcome},
    source::{LIMIT, acknowledge, open, take},
};

async fn becomes(source: &KafkaSource, lag: u64) {
    let deadline = Instant::now() + LIMIT;
    while source.lag() != Some(lag) {
        assert!(Instant::now() < deadline, "{:?}", source.lag());
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lag_is_known_without_asking() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "lag";
    kafka.create(topic, 1).await?;
    kafka.publish_numbers(topic, 50, 1).await?;
    let mut source = open(kafka.options(topic));
    source.set_flow(Flow::new(10, 10));
    assert_eq!(source.lag(), None);
    let held = take(&mut source, 10).await?;
    becomes(&source, 40).await;
    acknowledge(held).await;
    source.close().await?;
    Ok(())
}

/// The mark at the end of a transaction has an offset, and so has what was aborted: neither is ever handed out.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_never_handed_out_is_not_behind() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    let topic = "lag-of-transactions";
    kafka.create(topic, 1).await?;
    let sent = [("kept", true), ("aborted", false)];
    kafka.publish_in_transactions(topic, &sent).await?;
    let mut source = open(kafka.options(topic));
    acknowledge(take(&mut source, 1).await?).await;
    becomes(&source, 0).await;
    source.close().await?;
    Ok(())
}
