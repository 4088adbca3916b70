//! Back-pressure, by count and by bytes.

use std::time::Duration;

use crate::{
    Broker,
    case::CaseResult,
    context::{Context, ensure, envelope, id, mapping},
};

pub(crate) async fn no_more_than_may_be_unacknowledged<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..60).await?;
    let shelf = c.shelf().await?;
    shelf.hold();
    // Of one batch, so that one that slow deliveries leave small is not the reason that fewer are taken.
    let few =
        |builder: inbox::receiver::ReceiverBuilder| builder.batch_size(7).max_unacknowledged(7);
    let consumer = c.consumer_with(&channel, &shelf, mapping()?, few)?;
    c.until("7 handed out", async || Ok(consumer.counts.out() >= 7))
        .await?;
    c.moment().await;
    shelf.open();
    c.until_stored(&shelf, 60).await?;
    let most = consumer.counts.most();
    consumer.stop().await?;
    ensure!(
        most == 7,
        "{most} deliveries were out at once, of 7 that may be"
    );
    c.all_is_done(&channel, &shelf, 0..60).await
}

pub(crate) async fn no_more_bytes_than_may_be_unacknowledged<B: Broker>(
    c: Context<B>,
) -> CaseResult {
    let channel = c.channel().await?;
    let size = c.abilities.max_payload.min(20_000);
    let messages: Vec<_> = (0..40)
        .map(|number| {
            let mut message = envelope(&channel, number);
            message.payload = "x".repeat(size).into();
            message
        })
        .collect();
    for some in messages.chunks(10) {
        c.broker.publish(&channel, some).await?;
    }
    let shelf = c.shelf().await?;
    shelf.hold();
    let limit = size * 5;
    let few = |builder: inbox::receiver::ReceiverBuilder| {
        builder
            .batch_size(100)
            .max_unacknowledged(100)
            .max_unacknowledged_bytes(limit)
    };
    let consumer = c.consumer_with(&channel, &shelf, mapping()?, few)?;
    c.until("asked to store anything", async || Ok(shelf.asked() > 0))
        .await?;
    c.moment().await;
    let most = consumer.counts.most_bytes();
    shelf.open();
    c.until_stored(&shelf, 40).await?;
    let most = most.max(consumer.counts.most_bytes());
    consumer.stop().await?;
    ensure!(
        most <= limit + size,
        "{most} bytes were out at once, of {limit} that may be"
    );
    c.all_is_done(&channel, &shelf, 0..40).await
}

pub(crate) async fn the_rest_is_for_others<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..60).await?;
    let held = c.shelf().await?;
    held.hold();
    let few =
        |builder: inbox::receiver::ReceiverBuilder| builder.batch_size(10).max_unacknowledged(10);
    let consumer = c.consumer_with(&channel, &held, mapping()?, few)?;
    c.until("10 handed out", async || Ok(consumer.counts.out() >= 10))
        .await?;
    c.moment().await;
    let other = held.sibling();
    let free = c.consumer(&channel, &other)?;
    c.until_stored(&other, 50).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    held.open();
    c.until_stored(&held, 60).await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    free.stop().await?;
    held.holds((0..60).map(id)).await
}
