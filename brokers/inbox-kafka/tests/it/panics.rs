//! A consumer's thread that panics. What makes it do so here is a subscriber of its logs.

use std::{fmt::Debug, time::Duration};

use inbox_source::Source as _;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use crate::{
    harness::{Kafka, Outcome},
    source::{acknowledge, open, take, texts},
};

const TOPIC: &str = "panics";

/// Panics at a warning of the one topic, and hears nothing else.
struct Panicking;

impl Subscriber for Panicking {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("inbox_kafka")
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Look);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Look;

impl Visit for Look {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let is_due = field.name() == "place" && format!("{value:?}") == format!("{TOPIC}/0");
        assert!(!is_due, "on purpose");
    }
}

/// Otherwise the partition would be its own until its session is over, which is longer than this test waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_panics_leaves_its_group() -> Outcome {
    let Some(kafka) = Kafka::shared()? else {
        return Ok(());
    };
    tracing::subscriber::set_global_default(Panicking)?;
    kafka.create(TOPIC, 1).await?;
    kafka.publish_numbers(TOPIC, 3, 1).await?;
    let options = kafka.options(TOPIC);
    let mut source = open(options.session_timeout(Duration::from_secs(300)));
    let of_old = take(&mut source, 3).await?;
    kafka.create_again(TOPIC).await?;
    kafka.publish_texts(TOPIC, &["a"]).await?;
    let of_new = take(&mut source, 1).await?;
    assert_eq!(texts(&of_new), ["a"]);
    acknowledge(of_new).await;
    drop(of_old);
    source.close().await?;
    Ok(())
}
