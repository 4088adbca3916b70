//! Order by key, and consumers that come and go.

use std::{sync::Arc, time::Duration};

use crate::{
    Broker, Failure,
    case::CaseResult,
    context::{Context, mapping},
    shelf::Shelf,
};

pub(crate) async fn by_key<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    let publishing = c.keep_publishing(&channel, 0..300, Duration::from_millis(5));
    let consumer = c.consumer(&channel, &shelf)?;
    publishing.finish().await?;
    c.until_stored(&shelf, 300).await?;
    consumer.stop().await?;
    shelf.in_order()?;
    c.all_is_done(&channel, &shelf, 0..300).await
}

/// How many messages flow while consumers come and go.
const FLOW: usize = 600;

/// 1 → 4 → 2 consumers; those that go are shut down or dropped with deliveries in their hands.
async fn come_and_go<B: Broker>(c: &Context<B>) -> Result<(String, Arc<Shelf>), Failure> {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    let publishing = c.keep_publishing(&channel, 0..FLOW, Duration::from_millis(30));
    let start = || {
        // Slow, so that there is always something in its hands.
        let own = shelf.sibling();
        own.slow(Duration::from_millis(25));
        let set = |builder: inbox::receiver::ReceiverBuilder| {
            builder.batch_size(10).max_unacknowledged(20)
        };
        c.consumer_with(&channel, &own, mapping()?, set)
    };
    let mut consumers = vec![start()?];
    c.until_stored(&shelf, 60).await?;
    for _ in 0..3 {
        consumers.push(start()?);
    }
    c.until_stored(&shelf, 220).await?;
    consumers.remove(0).stop().await?;
    c.until_stored(&shelf, 300).await?;
    consumers.remove(0).vanish().await?;
    c.until_stored(&shelf, 400).await?;
    consumers.push(start()?);
    c.until_stored(&shelf, 450).await?;
    consumers.remove(0).vanish().await?;
    publishing.finish().await?;
    c.until_stored(&shelf, FLOW).await?;
    c.until_done(&channel).await?;
    for consumer in consumers {
        consumer.stop().await?;
    }
    Ok((channel, shelf))
}

pub(crate) async fn none_lost_while_consumers_come_and_go<B: Broker>(c: Context<B>) -> CaseResult {
    let (channel, shelf) = come_and_go(&c).await?;
    c.all_is_done(&channel, &shelf, 0..FLOW).await
}

pub(crate) async fn by_key_while_consumers_come_and_go<B: Broker>(c: Context<B>) -> CaseResult {
    let (_, shelf) = come_and_go(&c).await?;
    shelf.in_order()
}
