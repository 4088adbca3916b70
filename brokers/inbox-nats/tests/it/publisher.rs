//! The publisher: what it sends, and how it tells what no stream takes.

use async_nats::jetstream::stream;
use inbox_api::OrderingKey;
use inbox_nats::{NatsDelivery, NatsPublisher};
use inbox_source::{Delivery as _, Envelope, Publisher as _, Source as _};

use crate::{
    harness::{Nats, Outcome},
    source::{source, take},
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

/// Behind a leaf node that is cut off, a stream that is there looks as one that is not.
pub(crate) async fn what_no_stream_takes_is_waited_for(server: &Nats) -> Outcome {
    let (stream, later) = ("taken", "made-later");
    server.create(stream).await?;
    let publisher = NatsPublisher::new(server.direct()?);
    let mut messages = Vec::new();
    for number in 0..50 {
        let address = if number % 7 == 3 { later } else { stream };
        messages.push(Envelope::new(address, number.to_string()));
    }
    let answers = publisher.publish(&messages).await;
    assert_eq!(answers.len(), messages.len());
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_ok(), number % 7 != 3, "{number}: {answer:?}");
        if let Err(error) = answer {
            assert!(error.is_transient(), "{number}: {error}");
            assert!(error.to_string().contains(later), "{error}");
        }
    }
    server.until(stream, (43, 0)).await?;
    server.create_stream(later).await?;
    let answers = publisher.publish(&messages[3..4]).await;
    assert!(answers[0].is_ok(), "{answers:?}");
    Ok(())
}

/// An address that is too long for a line of the protocol would end the connection, and fail the others.
pub(crate) async fn what_can_never_be_sent_is_permanent(server: &Nats) -> Outcome {
    let stream = "never-sent";
    let long = "long";
    server.create(stream).await?;
    let config = stream::Config {
        name: long.into(),
        subjects: vec![format!("{long}.>")],
        ..stream::Config::default()
    };
    server.context().await?.create_stream(config).await?;
    let longest = 3840 - long.len() - 1;
    let messages = [
        Envelope::new(stream, "1"),
        Envelope::new("a.*", "no subject"),
        Envelope::new(stream, vec![b'x'; 2 << 20]),
        Envelope::new(format!("{long}.{}", "x".repeat(longest + 1)), "too long"),
        Envelope::new(format!("{long}.{}", "x".repeat(8000)), "too long"),
        Envelope::new(format!("{long}.{}", "x".repeat(longest)), "2"),
        Envelope::new(stream, "3"),
    ];
    let answers = NatsPublisher::new(server.direct()?)
        .publish(&messages)
        .await;
    for (place, answer) in answers.iter().enumerate() {
        let fits = [0, 5, 6].contains(&place);
        assert_eq!(answer.is_ok(), fits, "{place}: {answer:?}");
        if let Err(error) = answer {
            assert!(!error.is_transient(), "{place}: {error}");
        }
    }
    server.until(stream, (2, 0)).await
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
