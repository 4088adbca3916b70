//! The store is away, forgets to answer, or fails for good.

use inbox::{ErrorKind, receiver::ReceiverError};

use crate::{
    Broker,
    case::CaseResult,
    context::{Context, ensure},
    shelf::Fault,
};

pub(crate) async fn an_outage_loses_nothing<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..60).await?;
    let shelf = c.shelf().await?;
    shelf.fail([Fault::Before(ErrorKind::Unavailable); 4]);
    let consumer = c.consumer(&channel, &shelf)?;
    c.until_stored(&shelf, 60).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..60).await
}

pub(crate) async fn a_lost_answer_loses_nothing<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    shelf.fail([Fault::After, Fault::After]);
    let publishing = c.keep_publishing(&channel, 0..60, std::time::Duration::from_millis(20));
    let consumer = c.consumer(&channel, &shelf)?;
    publishing.finish().await?;
    c.until_stored(&shelf, 60).await?;
    consumer.stop().await?;
    ensure!(
        shelf.duplicates() > 0,
        "nothing was stored again after a lost answer"
    );
    c.all_is_done(&channel, &shelf, 0..60).await
}

pub(crate) async fn a_failure_for_good_acknowledges_nothing<B: Broker>(
    c: Context<B>,
) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..40).await?;
    let shelf = c.shelf().await?;
    shelf.fail([Fault::Before(ErrorKind::Denied)]);
    let ended = c.consumer(&channel, &shelf)?.end().await?;
    ensure!(
        matches!(ended, Err(ReceiverError::Store(_))),
        "the receiver ended with {ended:?}"
    );
    let outstanding = c.broker.outstanding(&channel).await?;
    ensure!(
        outstanding == 40,
        "with nothing stored, the broker has {outstanding} of 40 messages to deliver"
    );
    let consumer = c.consumer(&channel, &shelf)?;
    c.until_stored(&shelf, 40).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..40).await
}
