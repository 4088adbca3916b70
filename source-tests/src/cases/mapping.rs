//! What of a delivery becomes what of a message.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use inbox::{
    Message,
    receiver::{Envelope, IdFrom, Mapping, TextFrom},
};

use crate::{
    Broker, Failure,
    case::CaseResult,
    context::{Context, ensure, envelope, id, mapping},
    shelf::Shelf,
};

/// What becomes of these messages by this mapping.
async fn arrive<B: Broker>(
    c: &Context<B>,
    mapping: Mapping,
    make: impl Fn(&str) -> Vec<Envelope>,
) -> Result<Vec<Message>, Failure> {
    let channel = c.channel().await?;
    let messages = make(&channel);
    c.broker.publish(&channel, &messages).await?;
    let shelf = c.shelf().await?;
    let consumer = c.consumer_with(&channel, &shelf, mapping, |builder| builder)?;
    until_finished(c, &channel, &shelf, messages.len()).await?;
    consumer.stop().await?;
    let mut arrived = shelf.accepted();
    arrived.sort_by(|one, other| one.payload().cmp(other.payload()));
    Ok(arrived)
}

/// Waits for so many messages, and says what was rejected of them.
async fn until_finished<B: Broker>(
    c: &Context<B>,
    channel: &str,
    shelf: &Shelf,
    count: usize,
) -> Result<(), Failure> {
    c.until("each message stored or rejected", async || {
        Ok(shelf.accepted().len() >= count || c.broker.outstanding(channel).await? == 0)
    })
    .await?;
    c.moment().await;
    let stored = shelf.accepted().len();
    ensure!(
        stored == count,
        "of {count} messages {stored} were stored, the others rejected"
    );
    c.until_done(channel).await
}

fn numbered(channel: &str) -> Vec<Envelope> {
    (0..10).map(|number| envelope(channel, number)).collect()
}

fn ids(messages: &[Message]) -> BTreeSet<String> {
    let ids = messages
        .iter()
        .map(|message| message.id().as_str().to_owned());
    ids.collect()
}

fn has_ids(messages: &[Message]) -> CaseResult {
    let (found, sent) = (ids(messages), (0..10).map(id).collect());
    ensure!(found == sent, "the ids are {found:?}");
    Ok(())
}

pub(crate) async fn an_id_from_a_header<B: Broker>(c: Context<B>) -> CaseResult {
    let by_header = mapping()?.id_from([IdFrom::Header("Event-ID".into())]);
    has_ids(&arrive(&c, by_header, numbered).await?)
}

pub(crate) async fn an_id_from_the_property<B: Broker>(c: Context<B>) -> CaseResult {
    let with_property = |channel: &str| {
        let mut messages = numbered(channel);
        for (number, message) in messages.iter_mut().enumerate() {
            message
                .headers
                .retain(|(name, _)| name != crate::context::ID);
            message.id = Some(id(number));
        }
        messages
    };
    let by_property = mapping()?.id_from([IdFrom::Property]);
    has_ids(&arrive(&c, by_property, with_property).await?)
}

pub(crate) async fn an_id_from_a_field<B: Broker>(c: Context<B>) -> CaseResult {
    let by_field = mapping()?.id_from([IdFrom::Field("/id".into())]);
    has_ids(&arrive(&c, by_field, numbered).await?)
}

pub(crate) async fn an_id_from_the_position<B: Broker>(c: Context<B>) -> CaseResult {
    let by_position = mapping()?.id_from([IdFrom::Position]);
    let messages = arrive(&c, by_position, numbered).await?;
    let ids = ids(&messages);
    ensure!(ids.len() == 10, "10 messages have the ids {ids:?}");
    Ok(())
}

pub(crate) async fn an_unstable_position_is_refused<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let by_position = mapping()?.id_from([IdFrom::Position]);
    let built = c.broker.source(&channel, by_position);
    let stable = c.abilities.stable_positions;
    match built {
        Ok(_) => ensure!(
            stable,
            "a source was built whose ids are positions that are not stable"
        ),
        Err(error) => ensure!(
            !stable,
            "its positions are stable, and were refused: {error}"
        ),
    }
    let nowhere = mapping()?.id_from([]);
    let built = c.broker.source(&channel, nowhere);
    ensure!(
        built.is_err(),
        "a source was built that looks for ids nowhere"
    );
    Ok(())
}

pub(crate) async fn the_kind_from_the_property<B: Broker>(c: Context<B>) -> CaseResult {
    let with_kind = |channel: &str| {
        let mut messages = numbered(channel);
        for message in &mut messages {
            message.kind = Some("order.paid".into());
        }
        messages
    };
    let by_property = mapping()?.kind_from([TextFrom::Property]);
    for message in arrive(&c, by_property, with_kind).await? {
        let kind = message.kind();
        ensure!(kind.as_str() == "order.paid", "the kind is {kind}");
    }
    Ok(())
}

pub(crate) async fn the_key_from_the_property<B: Broker>(c: Context<B>) -> CaseResult {
    let by_property = mapping()?.ordering_key_from([TextFrom::Property]);
    let without = |channel: &str| {
        let mut messages = numbered(channel);
        for message in &mut messages {
            message.headers.truncate(1);
        }
        messages
    };
    for message in arrive(&c, by_property, without).await? {
        let number = message.id().as_str().trim_start_matches("m-").parse()?;
        let key = message.ordering_key().map(inbox::OrderingKey::as_str);
        let sent = crate::context::key(number);
        ensure!(key == Some(&sent), "the key {sent} arrived as {key:?}");
    }
    Ok(())
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

pub(crate) async fn headers_as_they_were_sent<B: Broker>(c: Context<B>) -> CaseResult {
    let headers = [
        ("traceparent", TRACE),
        ("correlation-id", "checkout-99"),
        ("x-tenant", "7"),
        ("x-json", r#"{"a": [1, "b"]}"#),
        ("x-long", &"0123456789".repeat(100)),
    ];
    let with_headers = |channel: &str| {
        let mut message = envelope(channel, 0);
        let pairs = headers
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        message.headers.extend(pairs);
        vec![message]
    };
    let arrived = arrive(&c, mapping()?, with_headers).await?;
    let Some(message) = arrived.first() else {
        return Err("nothing arrived".into());
    };
    for (name, value) in headers {
        let found = message.headers().get(name);
        ensure!(
            found == Some(value),
            "the header {name}: {value} arrived as {found:?}"
        );
    }
    let sent = envelope("", 0).payload;
    ensure!(
        message.payload() == &sent,
        "the payload arrived as {:?}",
        message.payload()
    );
    Ok(())
}

pub(crate) async fn the_content_type_and_the_time<B: Broker>(c: Context<B>) -> CaseResult {
    let typed = |channel: &str| {
        let mut message = envelope(channel, 0);
        message.content_type = Some("application/json".into());
        vec![message]
    };
    let arrived = arrive(&c, mapping()?, typed).await?;
    let Some(message) = arrived.first() else {
        return Err("nothing arrived".into());
    };
    let content_type = message.content_type().map(inbox::ContentType::as_str);
    ensure!(
        content_type == Some("application/json"),
        "the content type arrived as {content_type:?}"
    );
    if let Some(text) = message.headers().get("time") {
        let time: jiff::Timestamp = text.parse()?;
        let apart = match SystemTime::from(time).duration_since(SystemTime::now()) {
            Ok(later) => later,
            Err(earlier) => earlier.duration(),
        };
        ensure!(
            apart < Duration::from_secs(600),
            "it was sent at {text}, {apart:?} from now"
        );
    }
    Ok(())
}

fn is_the_event(messages: &[Message]) -> CaseResult {
    let [message] = messages else {
        return Err(format!("{} messages arrived of one event", messages.len()).into());
    };
    let (id, kind) = (message.id().as_str(), message.kind().as_str());
    ensure!(id == "/shop#7", "the id is {id}");
    ensure!(kind == "order.placed", "the kind is {kind}");
    let key = message.ordering_key().map(inbox::OrderingKey::as_str);
    ensure!(key == Some("customer-12"), "the ordering key is {key:?}");
    let subject = message.headers().get("subject");
    ensure!(subject == Some("basket"), "the subject is {subject:?}");
    let payload = message.payload();
    ensure!(payload == r#"{"order":7}"#, "the data are {payload:?}");
    let content_type = message.content_type().map(inbox::ContentType::as_str);
    ensure!(
        content_type == Some("application/json"),
        "the content type of the data is {content_type:?}"
    );
    Ok(())
}

pub(crate) async fn events_in_binary_mode<B: Broker>(c: Context<B>) -> CaseResult {
    let binary = |channel: &str| {
        let mut message = Envelope::new(channel, r#"{"order":7}"#);
        let attributes = [
            ("ce_specversion", "1.0"),
            ("ce_id", "7"),
            ("ce_source", "/shop"),
            ("ce_type", "order.placed"),
            ("ce_subject", "basket"),
            ("ce_partitionkey", "customer-12"),
        ];
        let pairs = attributes.map(|(name, value)| (name.into(), value.into()));
        message.headers = pairs.into();
        message.content_type = Some("application/json".into());
        vec![message]
    };
    is_the_event(&arrive(&c, Mapping::new("orders")?, binary).await?)
}

pub(crate) async fn events_in_structured_mode<B: Broker>(c: Context<B>) -> CaseResult {
    let structured = |channel: &str| {
        let json = r#"{"specversion":"1.0","id":"7","source":"/shop","type":"order.placed",
            "subject":"basket","partitionkey":"customer-12","data":{"order":7}}"#;
        let mut message = Envelope::new(channel, json);
        message.content_type = Some("application/cloudevents+json; charset=utf-8".into());
        vec![message]
    };
    is_the_event(&arrive(&c, Mapping::new("orders")?, structured).await?)
}

pub(crate) async fn a_second_sending_is_a_duplicate<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    c.publish(&channel, 0..10).await?;
    c.until_stored(&shelf, 10).await?;
    c.publish(&channel, 0..12).await?;
    c.until_stored(&shelf, 12).await?;
    // Of several partitions the one with the new messages may come first.
    c.until_done(&channel).await?;
    consumer.stop().await?;
    c.all_is_done(&channel, &shelf, 0..12).await
}
