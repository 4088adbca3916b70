//! What is no message.

use std::{collections::BTreeMap, time::Duration};

use inbox::{HandlerName, State, receiver::ReceiverError};

use crate::{
    Broker, Failure, Harm,
    case::CaseResult,
    context::{Context, ensure, envelope, id, mapping, poison},
};

/// Payloads that are no text where the broker can carry that.
fn payloads<B: Broker>(c: &Context<B>, count: usize) -> Vec<Vec<u8>> {
    let payload = |number: usize| {
        let mut payload = format!("poison {number} ").into_bytes();
        if c.abilities.binary_payloads {
            payload.extend([0, 255, 254, b'\r', b'\n', 0xc3]);
        }
        payload
    };
    (0..count).map(payload).collect()
}

async fn until_dead<B: Broker>(
    c: &Context<B>,
    channel: &str,
    expected: &[Vec<u8>],
) -> Result<(), Failure> {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    // A broker may count a redelivery of one as another.
    let distinct = async || {
        let mut dead = c.broker.dead_letters(channel).await?;
        dead.sort_unstable();
        dead.dedup();
        Ok::<_, Failure>(dead)
    };
    let waited = c
        .until("all among the dead letters", async || {
            Ok(distinct().await?.len() >= expected.len())
        })
        .await;
    let dead = distinct().await?;
    if let Err(failure) = waited {
        let (there, all) = (dead.len(), expected.len());
        return Err(format!("{failure}: {there} of {all}").into());
    }
    ensure!(
        dead == expected,
        "the dead letters differ from what was rejected"
    );
    Ok(())
}

pub(crate) async fn it_goes_to_dead_letters<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let payloads = payloads(&c, 5);
    let numbered = payloads.iter().enumerate();
    let messages: Vec<_> = numbered
        .map(|(number, payload)| poison(&channel, payload.clone(), number))
        .collect();
    c.broker.publish(&channel, &messages).await?;
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    until_dead(&c, &channel, &payloads).await?;
    c.until_done(&channel).await?;
    let summary = consumer.stop().await?;
    let rejected = summary.rejected;
    ensure!(rejected >= 5, "the receiver rejected {rejected} of 5");
    c.all_is_done(&channel, &shelf, 0..0).await
}

pub(crate) async fn it_goes_to_dead_letters_from_among_others<B: Broker>(
    c: Context<B>,
) -> CaseResult {
    let channel = c.channel().await?;
    let payloads = payloads(&c, 6);
    let mut messages = Vec::new();
    for (number, payload) in payloads.iter().enumerate() {
        let good = number * 5..number * 5 + 5;
        messages.extend(good.map(|number| envelope(&channel, number)));
        messages.push(poison(&channel, payload.clone(), number));
    }
    messages.extend((30..35).map(|number| envelope(&channel, number)));
    c.broker.publish(&channel, &messages).await?;
    let shelf = c.shelf().await?;
    let whole = |builder: inbox::receiver::ReceiverBuilder| {
        builder
            .batch_size(50)
            .max_unacknowledged(50)
            .linger(Duration::from_millis(500))
    };
    let consumer = c.consumer_with(&channel, &shelf, mapping()?, whole)?;
    c.until_stored(&shelf, 35).await?;
    until_dead(&c, &channel, &payloads).await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..35).await
}

pub(crate) async fn cuts_lose_none_of_it<B: Broker>(c: Context<B>) -> CaseResult {
    const AT_ONCE: usize = 15;
    let channel = c.channel().await?;
    let payloads = payloads(&c, 3 * AT_ONCE);
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    let mut numbered = payloads.iter().enumerate();
    for round in 1..=3 {
        let some = numbered.by_ref().take(AT_ONCE);
        let both = some.flat_map(|(number, payload)| {
            let good = envelope(&channel, number);
            [good, poison(&channel, payload.clone(), number)]
        });
        let messages: Vec<_> = both.collect();
        c.broker.publish(&channel, &messages).await?;
        // Some of these are stored, and what is no message is among them.
        c.until_stored(&shelf, round * AT_ONCE - AT_ONCE / 2)
            .await?;
        c.harm(Harm::Cut).await?;
    }
    until_dead(&c, &channel, &payloads).await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..payloads.len()).await
}

/// How often each payload is kept. It is stored first, and dead a moment later.
async fn kept(shelf: &crate::shelf::Shelf) -> Result<BTreeMap<Vec<u8>, usize>, Failure> {
    let mut kept = BTreeMap::new();
    let records = shelf.records("rejected").await?.into_iter();
    for record in records.filter(|record| record.state == State::Dead) {
        let payload = record.payload.unwrap_or_default();
        *kept.entry(payload.to_vec()).or_default() += 1;
    }
    Ok(kept)
}

pub(crate) async fn it_is_kept_with_its_bytes<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let payloads = payloads(&c, 4);
    let numbered = payloads.iter().enumerate();
    let mut messages: Vec<_> = numbered
        .map(|(number, payload)| poison(&channel, payload.clone(), number))
        .collect();
    messages.extend((0..10).map(|number| envelope(&channel, number)));
    c.broker.publish(&channel, &messages).await?;
    let shelf = c.shelf().await?;
    let handler = HandlerName::new("rejected")?;
    let keep = |builder: inbox::receiver::ReceiverBuilder| builder.keep_rejected(handler);
    let consumer = c.consumer_with(&channel, &shelf, mapping()?, keep)?;
    c.until_stored(&shelf, 10).await?;
    c.until("all kept", async || Ok(kept(&shelf).await?.len() >= 4))
        .await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    let expected: BTreeMap<_, _> = payloads.into_iter().map(|payload| (payload, 1)).collect();
    ensure!(
        kept(&shelf).await? == expected,
        "what was kept is not what was sent"
    );
    if c.abilities.dead_letters {
        let dead = c.broker.dead_letters(&channel).await?.len();
        ensure!(
            dead == 0,
            "{dead} of those that were kept are dead letters, too"
        );
    }
    c.all_is_done(&channel, &shelf, 0..10).await
}

pub(crate) async fn it_stops_the_receiver<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let messages: Vec<_> = (0..10).map(|number| envelope(&channel, number)).collect();
    c.broker.publish(&channel, &messages).await?;
    c.broker
        .publish(&channel, &[poison(&channel, "poison", 3)])
        .await?;
    c.publish(&channel, 10..20).await?;
    let shelf = c.shelf().await?;
    let stop = |builder: inbox::receiver::ReceiverBuilder| {
        builder
            .linger(Duration::from_millis(500))
            .stop_at_rejected()
    };
    let ended = c
        .consumer_with(&channel, &shelf, mapping()?, stop)?
        .end()
        .await?;
    ensure!(
        matches!(ended, Err(ReceiverError::Rejected(_))),
        "the receiver ended with {ended:?}"
    );
    let outstanding = c.broker.outstanding(&channel).await?;
    ensure!(
        outstanding > 0,
        "the delivery at which it stopped is finished for the broker"
    );
    let handler = HandlerName::new("rejected")?;
    let keep = |builder: inbox::receiver::ReceiverBuilder| builder.keep_rejected(handler);
    let consumer = c.consumer_with(&channel, &shelf, mapping()?, keep)?;
    c.until_stored(&shelf, 20).await?;
    c.until("kept", async || Ok(!kept(&shelf).await?.is_empty()))
        .await?;
    c.until_done(&channel).await?;
    consumer.stop().await?;
    if c.abilities.dead_letters {
        let dead = c.broker.dead_letters(&channel).await?.len();
        ensure!(dead == 0, "the broker has {dead} dead letters");
    }
    shelf.holds((0..20).map(id)).await
}

pub(crate) async fn it_does_not_hold_others_up<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let mut messages: Vec<_> = (0..10)
        .map(|number| poison(&channel, "no id", number))
        .collect();
    messages.extend((0..30).map(|number| envelope(&channel, number)));
    c.broker.publish(&channel, &messages).await?;
    let shelf = c.shelf().await?;
    let few =
        |builder: inbox::receiver::ReceiverBuilder| builder.batch_size(3).max_unacknowledged(5);
    let consumer = c.consumer_with(&channel, &shelf, mapping()?, few)?;
    c.until_stored(&shelf, 30).await?;
    c.until_done(&channel).await?;
    let summary = consumer.stop().await?;
    let failed = summary.failed_acknowledgements;
    ensure!(
        failed == 0,
        "{failed} acknowledgements or rejections failed"
    );
    c.all_is_done(&channel, &shelf, 0..30).await
}
