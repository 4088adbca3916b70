//! Stored first, then acknowledged.

use std::{collections::BTreeMap, time::Duration};

use inbox::receiver::{Delivery, IdFrom};

use crate::{
    Broker,
    case::CaseResult,
    context::{Context, apart, ensure, mapping, some},
    shelf::Gate,
};

pub(crate) async fn nothing_before_it_is_stored<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..60).await?;
    let shelf = c.shelf().await?;
    shelf.hold();
    let consumer = c.consumer(&channel, &shelf)?;
    c.until("asked to store anything", async || Ok(shelf.asked() > 0))
        .await?;
    c.moment().await;
    let outstanding = c.broker.outstanding(&channel).await?;
    ensure!(
        outstanding == 60,
        "with nothing stored, the broker has {outstanding} of 60 messages to deliver"
    );
    consumer.vanish().await?;
    let other = shelf.sibling();
    let consumer = c.consumer(&channel, &other)?;
    c.until_stored(&other, 60).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &other, 0..60).await
}

pub(crate) async fn what_is_stored_and_no_more<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish_apart(&channel, 0..60).await?;
    let shelf = c.shelf().await?;
    shelf.hold();
    let few = |builder: inbox::receiver::ReceiverBuilder| {
        builder
            .batch_size(20)
            .max_unacknowledged(30)
            .linger(Duration::from_millis(500))
    };
    let consumer = c.consumer_with(&channel, &shelf, mapping()?, few)?;
    // A second batch is in the receiver's hands before the first one is stored, however small that is.
    c.until("21 handed out", async || Ok(consumer.counts.out() >= 21))
        .await?;
    shelf.set_gate(Gate::BeforeCall(1));
    c.until("asked to store a second batch", async || {
        Ok(shelf.asked() > shelf.accepted().len() && !shelf.accepted().is_empty())
    })
    .await?;
    let stored = shelf.accepted().len();
    let rest = 60 - stored as u64;
    c.until_outstanding(&channel, rest).await?;
    c.moment().await;
    let outstanding = c.broker.outstanding(&channel).await?;
    ensure!(
        outstanding == rest,
        "with {stored} messages stored, the broker has {outstanding} of 60 to deliver"
    );
    consumer.vanish().await?;
    let other = shelf.sibling();
    let consumer = c.consumer(&channel, &other)?;
    c.until_stored(&other, 60).await?;
    consumer.stop().await?;
    let again = other.duplicates();
    ensure!(
        again == 0,
        "{again} messages that were acknowledged came again"
    );
    c.all_is_done(&channel, &other, 0..60).await
}

pub(crate) async fn all_that_is_stored<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    // A number that no batch divides.
    c.publish(&channel, 0..93).await?;
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    c.until_stored(&shelf, 93).await?;
    let summary = consumer.stop().await?;
    let failed = summary.failed_acknowledgements;
    ensure!(failed == 0, "{failed} acknowledgements failed");
    c.until_done(&channel).await?;

    let consumer = c.consumer(&channel, &shelf)?;
    c.publish(&channel, 93..109).await?;
    c.until_stored(&shelf, 109).await?;
    c.moment().await;
    consumer.stop().await?;
    let again = shelf.duplicates();
    ensure!(again == 0, "{again} messages came again");
    c.all_is_done(&channel, &shelf, 0..109).await
}

pub(crate) async fn all_at_a_shutdown_in_mid_flow<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    shelf.slow(Duration::from_millis(5));
    let publishing = c.keep_publishing(&channel, 0..300, Duration::from_millis(20));
    for round in 1..=4 {
        let consumer = c.consumer(&channel, &shelf)?;
        c.until_stored(&shelf, round * 60).await?;
        let summary = consumer.stop().await?;
        let abandoned = summary.abandoned();
        ensure!(
            abandoned == 0,
            "a shutdown abandoned {abandoned} deliveries"
        );
    }
    publishing.finish().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    c.until_stored(&shelf, 300).await?;
    consumer.stop().await?;
    let again = shelf.duplicates();
    ensure!(again == 0, "{again} messages that were stored came again");
    c.all_is_done(&channel, &shelf, 0..300).await
}

pub(crate) async fn what_was_stored_and_not_acknowledged_comes_again<B: Broker>(
    c: Context<B>,
) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..40).await?;
    let shelf = c.shelf().await?;
    shelf.set_gate(Gate::Answer);
    let consumer = c.consumer(&channel, &shelf)?;
    c.until("anything stored", async || Ok(!shelf.accepted().is_empty()))
        .await?;
    c.moment().await;
    let stored = shelf.accepted().len();
    consumer.vanish().await?;
    let other = shelf.sibling();
    let consumer = c.consumer(&channel, &other)?;
    c.until_stored(&other, 40).await?;
    c.until("again delivered what was not acknowledged", async || {
        Ok(other.duplicates() >= stored)
    })
    .await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &other, 0..40).await
}

/// What a delivery is to the receiver.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    id: Option<String>,
    /// What tells it from others when it is kept.
    raw: Option<(Vec<u8>, Option<String>, String)>,
}

fn seen<D: Delivery>(deliveries: &[D]) -> Result<BTreeMap<Vec<u8>, Seen>, crate::Failure> {
    let mut all = BTreeMap::new();
    for delivery in deliveries {
        let raw = delivery.raw();
        let message = delivery.message();
        let payload = match (&message, &raw) {
            (Ok(message), _) => message.payload().to_vec(),
            (Err(_), Some(raw)) => raw.payload().to_vec(),
            (Err(rejection), None) => return Err(format!("no message: {rejection}").into()),
        };
        let told = raw.map(|raw| {
            let origin = raw.origin().map(String::from);
            let headers = match origin {
                Some(_) => String::new(),
                None => raw.headers().to_json(),
            };
            (raw.payload().to_vec(), origin, headers)
        });
        let seen = Seen {
            id: message.ok().map(|message| message.id().as_str().to_owned()),
            raw: told,
        };
        all.insert(payload, seen);
    }
    Ok(all)
}

async fn twice<B: Broker>(
    c: &Context<B>,
    channel: &str,
    mapping: inbox::receiver::Mapping,
    count: usize,
) -> Result<BTreeMap<Vec<u8>, Seen>, crate::Failure> {
    let mut source = c.broker.source(channel, mapping.clone())?;
    let first = seen(&c.take(&mut source, count).await?)?;
    drop(source);
    let mut source = c.broker.source(channel, mapping)?;
    let again = seen(&c.take(&mut source, count).await?)?;
    ensure!(
        first.len() == count,
        "of {count} messages only {} differ",
        first.len()
    );
    for (payload, seen) in &first {
        let told = String::from_utf8_lossy(payload);
        let Some(again) = again.get(payload) else {
            return Err(format!("{told} did not come again, something else did").into());
        };
        ensure!(
            seen == again,
            "{told} was {seen:?} first and {again:?} when it came again"
        );
    }
    Ok(first)
}

pub(crate) async fn a_redelivery_is_the_same<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let mut messages: Vec<_> = (0..20).map(|number| apart(&channel, number)).collect();
    let mut poison = crate::context::poison(&channel, "no id", 3);
    poison.key = Some("k-of-poison".into());
    messages.push(poison);
    c.broker.publish(&channel, &messages).await?;
    let seen = twice(&c, &channel, mapping()?, 21).await?;
    let without = seen.values().filter(|seen| seen.id.is_none()).count();
    ensure!(
        without == 1,
        "{without} messages have no id, where one has none"
    );
    Ok(())
}

pub(crate) async fn a_redelivery_has_the_same_position<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish_apart(&channel, 0..20).await?;
    let by_position = mapping()?.id_from([IdFrom::Position]);
    let seen = twice(&c, &channel, by_position, 20).await?;
    let ids = crate::context::count(seen.values().filter_map(|seen| seen.id.as_deref()));
    let shared = ids
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|(id, _)| id);
    let shared = some(shared);
    ensure!(
        ids.len() == 20,
        "positions that several messages have: {shared}"
    );
    Ok(())
}

pub(crate) async fn what_a_shutdown_leaves_comes_again<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..40).await?;
    let shelf = c.shelf().await?;
    shelf.hold();
    let short = |builder: inbox::receiver::ReceiverBuilder| {
        builder
            .batch_size(20)
            .drain_limit(Duration::from_millis(100))
    };
    let consumer = c.consumer_with(&channel, &shelf, mapping()?, short)?;
    c.until("asked to store anything", async || Ok(shelf.asked() > 0))
        .await?;
    let summary = consumer.stop().await?;
    ensure!(
        summary.abandoned() > 0,
        "nothing was abandoned: {summary:?}"
    );
    let other = shelf.sibling();
    let consumer = c.consumer(&channel, &other)?;
    c.until_stored(&other, 40).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &other, 0..40).await
}

pub(crate) async fn what_is_held_is_not_given_to_others<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    c.publish(&channel, 0..10).await?;
    let held = c.shelf().await?;
    held.hold();
    let all = |builder: inbox::receiver::ReceiverBuilder| {
        builder
            .batch_size(10)
            .max_unacknowledged(10)
            .linger(Duration::from_secs(2))
    };
    let consumer = c.consumer_with(&channel, &held, mapping()?, all)?;
    c.until("all handed out", async || Ok(consumer.counts.out() == 10))
        .await?;
    let other = held.sibling();
    let idle = c.consumer(&channel, &other)?;
    tokio::time::sleep((c.abilities.redelivery * 2).min(Duration::from_secs(12))).await;
    let taken = other.asked();
    held.open();
    c.until_stored(&held, 10).await?;
    consumer.stop().await?;
    idle.stop().await?;
    // A broker that moves partitions to a new consumer has to take them from the old one.
    ensure!(
        taken == 0 || c.abilities.order_across_consumers,
        "{taken} messages that the first consumer held were given to another"
    );
    c.all_is_done(&channel, &held, 0..10).await
}
