//! The broker is killed, stands still, or loses connections.

use std::{sync::Arc, time::Duration};

use inbox::receiver::{Delivery as _, Flow, Source as _};
use tokio::time::{Instant, sleep};

use crate::{
    Broker, Failure, Harm,
    case::CaseResult,
    context::{Context, ensure, mapping},
    shelf::Shelf,
};

pub(crate) async fn a_kill_in_mid_flow<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    let publishing = c.keep_publishing(&channel, 0..300, Duration::from_millis(20));
    c.until_stored(&shelf, 60).await?;
    c.harm(Harm::Kill).await?;
    sleep(Duration::from_millis(500)).await;
    c.harm(Harm::Start).await?;
    publishing.finish().await?;
    c.until_stored(&shelf, 300).await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..300).await
}

pub(crate) async fn a_kill_while_the_store_is_held<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..60).await?;
    let shelf = c.shelf().await?;
    shelf.hold();
    let consumer = c.consumer(&channel, &shelf)?;
    c.until("asked to store anything", async || Ok(shelf.asked() > 0))
        .await?;
    c.harm(Harm::Kill).await?;
    shelf.open();
    c.until("anything stored", async || Ok(!shelf.accepted().is_empty()))
        .await?;
    c.harm(Harm::Start).await?;
    c.until_stored(&shelf, 60).await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..60).await
}

pub(crate) async fn a_pause_in_mid_flow<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    let publishing = c.keep_publishing(&channel, 0..200, Duration::from_millis(20));
    c.until_stored(&shelf, 40).await?;
    c.harm(Harm::Pause).await?;
    sleep(Duration::from_secs(3)).await;
    c.harm(Harm::Resume).await?;
    publishing.finish().await?;
    c.until_stored(&shelf, 200).await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..200).await
}

/// A flow in which connections are cut while batches are on their way.
async fn cut<B: Broker>(c: &Context<B>) -> Result<(String, Arc<Shelf>), Failure> {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    shelf.slow(Duration::from_millis(20));
    let consumer = c.consumer(&channel, &shelf)?;
    let publishing = c.keep_publishing(&channel, 0..400, Duration::from_millis(40));
    for cut in 1..=4 {
        c.until_stored(&shelf, cut * 60).await?;
        c.harm(Harm::Cut).await?;
    }
    publishing.finish().await?;
    c.until_stored(&shelf, 400).await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    Ok((channel, shelf))
}

pub(crate) async fn cuts_in_mid_batch<B: Broker>(c: Context<B>) -> CaseResult {
    let (channel, shelf) = cut(&c).await?;
    c.all_is_done(&channel, &shelf, 0..400).await
}

pub(crate) async fn the_order_after_cuts<B: Broker>(c: Context<B>) -> CaseResult {
    let (channel, shelf) = cut(&c).await?;
    shelf.in_order()?;
    c.all_is_done(&channel, &shelf, 0..400).await
}

pub(crate) async fn an_old_delivery_acknowledges_nothing_else<B: Broker>(
    c: Context<B>,
) -> CaseResult {
    let channel = c.channel().await?;
    c.publish_apart(&channel, 0..40).await?;
    let mut source = c.broker.source(&channel, mapping()?)?;
    source.set_flow(Flow::new(40, 40));
    let first: Vec<_> = c.take(&mut source, 10).await?;
    let failures = Delivery::<B>::acknowledge_all(first).await;
    if let Some(failure) = failures.first() {
        return Err(format!("an acknowledgement failed: {failure}").into());
    }
    let old = c.take(&mut source, 10).await?;
    c.harm(Harm::Cut).await?;
    // What comes on the new connection: those of the old one again, and others.
    let mut new = c.take(&mut source, 20).await?;
    let mut olds = Vec::new();
    for delivery in &old {
        olds.push(id_of::<B>(delivery)?);
    }
    for delivery in old {
        // It may fail, or be right: but only of these.
        let _ = delivery.acknowledge().await;
    }
    // Late deliveries of the broken connection count among the twenty.
    let deadline = Instant::now() + Duration::from_millis(500);
    while let Ok(Ok(Some(delivery))) = tokio::time::timeout_at(deadline, source.next()).await {
        new.push(delivery);
    }
    drop(new);
    drop(source);

    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    // Twenty were never handed out before the cut, or acknowledged by anything since.
    let rest: Vec<String> = c.until_rest(&shelf, 40 - 10 - olds.len(), &olds).await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    let missing = 20_usize.saturating_sub(rest.len());
    ensure!(
        missing == 0,
        "{missing} of 20 messages are gone that nobody acknowledged"
    );
    Ok(())
}

type Delivery<B> = <<B as Broker>::Source as inbox::receiver::Source>::Delivery;

fn id_of<B: Broker>(delivery: &Delivery<B>) -> Result<String, Failure> {
    Ok(delivery.message()?.id().as_str().to_owned())
}

impl<B: Broker> Context<B> {
    /// Waits until so many messages are stored that are none of `others`.
    async fn until_rest(
        &self,
        shelf: &Shelf,
        count: usize,
        others: &[String],
    ) -> Result<Vec<String>, Failure> {
        let rest = || {
            let accepted = shelf.accepted().into_iter();
            let ids = accepted.map(|message| message.id().as_str().to_owned());
            ids.filter(|id| !others.contains(id)).collect::<Vec<_>>()
        };
        let what = format!("{count} messages stored that were not acknowledged");
        self.until(&what, async || Ok(rest().len() >= count))
            .await?;
        Ok(rest())
    }
}

pub(crate) async fn a_start_before_the_broker<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..20).await?;
    c.harm(Harm::Kill).await?;
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    sleep(Duration::from_millis(500)).await;
    c.harm(Harm::Start).await?;
    c.until_stored(&shelf, 20).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..20).await
}

pub(crate) async fn a_shutdown_while_it_stands_still<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..100).await?;
    let shelf = c.shelf().await?;
    shelf.slow(Duration::from_millis(100));
    let short = |builder: inbox::receiver::ReceiverBuilder| {
        builder.batch_size(10).drain_limit(Duration::from_secs(1))
    };
    let consumer = c.consumer_with(&channel, &shelf, mapping()?, short)?;
    c.until_stored(&shelf, 10).await?;
    c.harm(Harm::Pause).await?;
    let began = Instant::now();
    let stopped = consumer.stop().await;
    let took = began.elapsed();
    c.harm(Harm::Resume).await?;
    stopped?;
    // The drain limit, ten seconds for the source to close, and a slow machine.
    ensure!(took < Duration::from_secs(25), "the shutdown took {took:?}");
    shelf.slow(Duration::ZERO);
    let consumer = c.consumer(&channel, &shelf)?;
    c.until_stored(&shelf, 100).await?;
    // What was stored and could not be acknowledged comes again, and may come last.
    c.until_done(&channel).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..100).await
}
