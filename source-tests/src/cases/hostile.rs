//! Contents that nobody meant well.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;

use crate::{
    Broker,
    case::CaseResult,
    context::{Context, ensure, envelope, id},
};

pub(crate) async fn payloads<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let mut payloads: Vec<Bytes> = vec![
        "{".into(),
        " ".into(),
        "\u{1f600}\r\n\t".into(),
        "x".repeat(c.abilities.max_payload).into(),
    ];
    if c.abilities.empty_payloads {
        payloads.push(Bytes::new());
    }
    if c.abilities.binary_payloads {
        payloads.push(vec![0].into());
        payloads.push((0..=255).collect::<Vec<u8>>().into());
        for length in [2, 100, 5000] {
            let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
                .take(length)
                .collect();
            payloads.push(bytes.into());
        }
    }
    let mut sent = BTreeMap::new();
    for (number, payload) in payloads.into_iter().enumerate() {
        let mut message = envelope(&channel, number);
        message.payload = payload.clone();
        c.broker.publish(&channel, &[message]).await?;
        sent.insert(id(number), payload);
    }
    let count = sent.len();
    c.publish(&channel, count..count + 5).await?;
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    c.until_stored(&shelf, count + 5).await?;
    consumer.stop().await?;
    for message in shelf.accepted() {
        let Some(payload) = sent.get(message.id().as_str()) else {
            continue;
        };
        let (length, arrived) = (payload.len(), message.payload().len());
        ensure!(
            message.payload() == payload,
            "a payload of {length} bytes arrived as another one, of {arrived} bytes"
        );
    }
    c.all_is_done(&channel, &shelf, 0..count + 5).await
}

/// Names and values that clients and brokers may refuse; what they do not refuse must do no harm.
fn odd() -> Vec<(String, String)> {
    let names = [
        "UPPER-Case",
        "with space",
        "\u{fc}n\u{ef}code",
        "colon:name",
        "=",
        "a\tb",
        "a\r\nb: c",
        "a\0b",
        "",
        "ce_",
        "ce_specversion",
        "content-type",
        "traceparent",
        "Nats-Expected-Stream",
        "x-death",
        "event-id-bin",
    ];
    let values = [
        "",
        " around ",
        "\u{1f600}",
        "line\r\nbreak",
        "nul\0",
        "\"",
        "\\",
        "1.0",
        "application/cloudevents+json",
    ];
    let mut pairs: Vec<(String, String)> = names
        .iter()
        .map(|name| ((*name).to_owned(), "value".to_owned()))
        .collect();
    pairs.extend(
        values
            .iter()
            .map(|value| ("odd".to_owned(), (*value).to_owned())),
    );
    pairs.extend([
        ("content-type".into(), "application/cloudevents+json".into()),
        ("content-type".into(), "no type \u{1f600}".into()),
        ("odd".into(), "x".repeat(5_000)),
        ("n".repeat(255), "v".into()),
        ("n".repeat(300), "v".into()),
    ]);
    pairs
}

pub(crate) async fn headers<B: Broker>(c: Context<B>) -> CaseResult {
    let channel = c.channel().await?;
    let shelf = c.shelf().await?;
    let consumer = c.consumer(&channel, &shelf)?;
    for (number, pair) in odd().into_iter().enumerate() {
        let mut message = envelope(&channel, 1000 + number);
        message.headers.push(pair);
        // Whether it is sent at all is the broker's affair.
        let sending = c.broker.publish(&channel, std::slice::from_ref(&message));
        let _ = timeout(Duration::from_secs(3), sending).await;
    }
    c.publish(&channel, 0..20).await?;
    c.until("stored what came after odd headers", async || {
        let accepted = shelf.accepted();
        let plain = (0..20).filter(|number| {
            let id = id(*number);
            accepted.iter().any(|message| message.id().as_str() == id)
        });
        Ok(plain.count() == 20)
    })
    .await?;
    c.until_done(&channel).await?;
    let summary = consumer.stop().await?;
    let failed = summary.failed_acknowledgements;
    ensure!(failed == 0, "{failed} acknowledgements failed");
    Ok(())
}
