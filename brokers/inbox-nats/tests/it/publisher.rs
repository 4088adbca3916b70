//! The publisher: what it sends, and how it tells what no stream takes.

use async_nats::jetstream::stream;
use inbox_api::OrderingKey;
use inbox_nats::{NatsDelivery, NatsPublisher};
use inbox_source::{Delivery as _, Envelope, Publisher as _, Source as _};
use tokio::{task::block_in_place, time::timeout};

use crate::{
    harness::{Nats, Outcome},
    source::{PATIENCE, source, take},
};

pub(crate) async fn what_is_published_arrives_as_it_was(server: &Nats) -> Outcome {
    let stream = "round";
    server.create(stream).await?;
    let mut sent = Envelope::new(stream, &b"\xff\x00{}"[..]);
    sent.id = Some("evt-1".into());
    sent.kind = Some("order.placed".into());
    sent.key = Some("customer-1".into());
    sent.content_type = Some("application/json".into());
    sent.headers = vec![
        ("app".into(), "shop \u{e9}".into()),
        ("ce-subject".into(), "caf\u{e9} 100%".into()),
    ];
    let empty = Envelope::new(stream, "");
    // The second time the stream knows the id.
    for _ in 0..2 {
        server.publish(stream, std::slice::from_ref(&sent)).await?;
    }
    server.publish(stream, std::slice::from_ref(&empty)).await?;
    let mut source = source(server.options(stream)?);
    let taken = take(&mut source, 2).await?;
    server.until(stream, (0, 2)).await?;
    let arrived = taken[0].envelope();
    let properties = |one: &Envelope| {
        let (id, kind, key) = (one.id.clone(), one.kind.clone(), one.key.clone());
        (id, kind, key, one.content_type.clone())
    };
    assert_eq!(properties(arrived), properties(&sent));
    assert_eq!(arrived.payload, sent.payload);
    assert_eq!(arrived.address, sent.address);
    for (name, value) in &sent.headers {
        assert_eq!(arrived.header(name), Some(value.as_str()));
    }
    let message = taken[0].message()?;
    assert_eq!(message.id().as_str(), "evt-1");
    assert_eq!(message.kind().as_str(), "order.placed");
    assert_eq!(
        message.ordering_key().map(OrderingKey::as_str),
        Some("customer-1")
    );
    assert_eq!(taken[1].envelope().payload, empty.payload);
    assert!(taken[1].envelope().headers.is_empty());
    assert!(NatsDelivery::acknowledge_all(taken).await.is_empty());
    source.close().await?;
    Ok(())
}

pub(crate) async fn what_no_stream_takes_is_permanent(server: &Nats) -> Outcome {
    let stream = "taken";
    server.create(stream).await?;
    let publisher = NatsPublisher::new(server.direct()?);
    let mut messages = Vec::new();
    for number in 0..50 {
        let address = if number % 7 == 3 { "nowhere" } else { stream };
        messages.push(Envelope::new(address, number.to_string()));
    }
    messages.push(Envelope::new("a.*", "no subject"));
    messages.push(Envelope::new(stream, vec![b'x'; 2 << 20]));
    let answers = publisher.publish(&messages).await;
    assert_eq!(answers.len(), messages.len());
    for (number, answer) in answers.iter().enumerate() {
        let fits = number % 7 != 3 && number < 50;
        assert_eq!(answer.is_ok(), fits, "{number}: {answer:?}");
        if let Err(error) = answer {
            assert!(!error.is_transient(), "{number}: {error}");
        }
    }
    server.until(stream, (43, 0)).await
}

/// The stream says so, and not the client.
pub(crate) async fn what_is_too_large_for_its_stream_is_permanent(server: &Nats) -> Outcome {
    let (small, any) = ("small", "any-size");
    let config = stream::Config {
        name: small.into(),
        subjects: vec![small.into()],
        max_message_size: 1000,
        ..stream::Config::default()
    };
    server.context().await?.create_stream(config).await?;
    server.create_stream(any).await?;
    let mut headers = Envelope::new(any, "headers of more than 64 KiB");
    headers.headers = vec![("long".into(), "x".repeat(70_000))];
    let messages = [
        Envelope::new(small, "1"),
        Envelope::new(small, vec![b'x'; 2000]),
        headers,
        Envelope::new(any, vec![b'x'; 2000]),
    ];
    let answers = NatsPublisher::new(server.direct()?)
        .publish(&messages)
        .await;
    assert!(answers[0].is_ok() && answers[3].is_ok(), "{answers:?}");
    for place in [1, 2] {
        let error = answers[place].as_ref().err().ok_or("it was stored")?;
        assert!(!error.is_transient(), "{error}");
    }
    Ok(())
}

/// An account that may not ask which stream takes a subject gets no answer.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_ask_for_streams_a_call_asks_once() -> Outcome {
    let server = block_in_place(|| Nats::with_a_denial("$JS.API.STREAM.NAMES"))?;
    let Some(server) = server else {
        return Ok(());
    };
    let stream = "asked";
    server.create(stream).await?;
    let publisher = NatsPublisher::from_url(&format!("nats://ann:ann@{}", server.address()))?;
    let publisher = publisher.timeout(PATIENCE / 2);
    // One question for each would take longer than is waited here.
    let mut messages = vec![Envelope::new("nowhere", "lost"); 50];
    messages.push(Envelope::new(stream, "1"));
    let answers = timeout(PATIENCE, publisher.publish(&messages)).await?;
    assert_eq!(answers.len(), messages.len());
    for answer in &answers[..50] {
        let error = answer.as_ref().err().ok_or("it was stored")?;
        assert!(error.is_transient(), "{error}");
    }
    assert!(answers[50].is_ok(), "{:?}", answers[50]);
    server.until(stream, (1, 0)).await?;
    Ok(())
}
