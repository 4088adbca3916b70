//! Several sources, and sources that are dropped.

use std::{collections::BTreeSet, time::Duration};

use inbox::receiver::{Delivery as _, Flow, Source as _};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Broker,
    case::CaseResult,
    chaos,
    context::{Context, ensure, id, mapping},
    outbox,
};

pub(crate) async fn two_sources_in_one_process<B: Broker>(c: Context<B>) -> CaseResult {
    let (one, other) = (c.channel().await?, c.channel().await?);
    let (ones, others) = (c.shelf().await?, c.shelf().await?);
    let first = c.consumer(&one, &ones)?;
    let second = c.consumer(&other, &others)?;
    c.publish(&one, 0..30).await?;
    c.publish(&other, 100..130).await?;
    c.until_stored(&ones, 30).await?;
    c.until_stored(&others, 30).await?;
    first.stop().await?;
    c.publish(&other, 130..160).await?;
    c.until_stored(&others, 60).await?;
    second.stop().await?;
    c.all_is_done(&one, &ones, 0..30).await?;
    c.all_is_done(&other, &others, 100..160).await
}

pub(crate) async fn an_abandoned_wait_loses_nothing<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let publishing = c.keep_publishing(&channel, 0..150, Duration::from_millis(10));
    let mut source = c.broker.source(&channel, mapping()?)?;
    source.set_flow(Flow::new(20, 10));
    let deadline = Instant::now() + c.patience();
    let mut came = BTreeSet::new();
    while came.len() < 150 {
        let late = Instant::now() > deadline;
        ensure!(!late, "only {} of 150 came: {came:?}", came.len());
        // Sometimes polled once, sometimes for a while.
        let patience = match fastrand::u8(..3) {
            0 => Duration::ZERO,
            _ => Duration::from_micros(fastrand::u64(..3000)),
        };
        let waited = timeout(patience, source.next()).await;
        match waited {
            Ok(Ok(Some(delivery))) => {
                came.insert(delivery.message()?.id().as_str().to_owned());
                delivery.acknowledge().await?;
            }
            Ok(Ok(None)) => return Err("the source ended by itself".into()),
            Ok(Err(error)) if error.is_transient() => sleep(Duration::from_millis(50)).await,
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => tokio::task::yield_now().await,
        }
    }
    publishing.finish().await?;
    let sent: BTreeSet<String> = (0..150).map(id).collect();
    ensure!(came == sent, "others came than were sent: {came:?}");
    source.close().await?;
    c.until_done(&channel).await
}

pub(crate) async fn a_consumer_dropped_at_any_moment<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    let publishing = c.keep_publishing(&channel, 0..200, Duration::from_millis(30));
    for _ in 0..12 {
        let own = shelf.sibling();
        own.slow(Duration::from_millis(fastrand::u64(..10)));
        let consumer = c.consumer(&channel, &own)?;
        sleep(Duration::from_millis(fastrand::u64(..120))).await;
        consumer.vanish().await?;
    }
    let consumer = c.consumer(&channel, &shelf)?;
    publishing.finish().await?;
    c.until_stored(&shelf, 200).await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..200).await
}

pub(crate) async fn a_name_and_a_lag<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..50).await?;
    let source = c.source(&channel)?;
    let name = source.name();
    ensure!(
        name.contains(&channel) && !name.contains('@') && !name.contains("://"),
        "the name is {name:?}: it has to have the channel's, and no credentials"
    );
    drop(source);
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    c.until_stored(&shelf, 50).await?;
    let most = consumer.counts.most_lag();
    consumer.stop().await?;
    ensure!(most <= 50, "with 50 messages the lag was {most}");
    c.all_is_done(&channel, &shelf, 0..50).await
}

pub(crate) async fn killed_as_processes<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    chaos::run(&c, &channel, chaos::Options::from_env()?).await
}

pub(crate) async fn each_effect_once<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    outbox::run(&c, &channel).await
}
