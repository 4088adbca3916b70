//! Messages with headers that the client does not read: it ends the connection at one.

use std::collections::BTreeSet;

use async_nats::HeaderValue;
use inbox_nats::NatsOptions;
use inbox_source::{Delivery as _, Source as _};
use test_servers::Kind;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::block_in_place,
};

use crate::{
    harness::{CONSUMER, Nats, Outcome, dead},
    source::{next, source},
};

const BAD: [&[u8]; 3] = [
    b"name: M\xfcller",
    b"a name: with a space",
    b"a line without a colon",
];

/// Sends one with a header that is as it is.
async fn send(server: &Nats, subject: &str, header: &[u8], body: &str) -> Outcome {
    let mut stream = TcpStream::connect(server.plain()).await?;
    let head = [b"NATS/1.0\r\nNats-Msg-Id: bad\r\n", header, b"\r\n\r\n"].concat();
    let (length, all) = (head.len(), head.len() + body.len());
    let order = format!(
        "CONNECT {{\"headers\":true,\"verbose\":false}}\r\nHPUB {subject} {length} {all}\r\n"
    );
    let all = [order.as_bytes(), &head, body.as_bytes(), b"\r\nPING\r\n"].concat();
    stream.write_all(&all).await?;
    let mut said = String::new();
    while !said.contains("PONG") {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await?;
        if count == 0 {
            return Err(said.into());
        }
        said.push_str(&String::from_utf8_lossy(&part[..count]));
    }
    Ok(())
}

async fn run(kind: Kind) -> Outcome {
    let Some(server) = block_in_place(|| Nats::own(kind))? else {
        return Ok(());
    };
    for (number, bad) in BAD.into_iter().enumerate() {
        good_ones_pass_and_a_bad_one_is_rejected(&server, number, bad).await?;
    }
    a_bad_one_is_kept_as_it_came(&server).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_server_of_the_machine() -> Outcome {
    run(Kind::Nats).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_newest_server() -> Outcome {
    run(Kind::NatsNewest).await
}

/// A user without the right to look into the stream loses the connection at each delivery of the bad one, and
/// gets the others.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_look_the_others_pass() -> Outcome {
    let server = block_in_place(|| Nats::with_a_denial("$JS.API.STREAM.MSG.GET.>"))?;
    let Some(server) = server else {
        return Ok(());
    };
    let stream = "denied";
    server.create(stream).await?;
    server.publish_numbers(stream, 1).await?;
    send(&server, stream, BAD[0], "bad").await?;
    server.publish_numbers(stream, 1).await?;
    let address = server.address();
    let url = format!("nats://ann:ann@{address}/?stream={stream}&consumer={CONSUMER}");
    let mut source = source(NatsOptions::from_url(&url)?);
    let mut positions = BTreeSet::new();
    while positions.len() < 2 {
        let delivery = next(&mut source).await?;
        assert!(delivery.message().is_ok());
        let position = delivery.envelope().position.clone();
        if delivery.acknowledge().await.is_ok() {
            positions.insert(position);
        }
    }
    server.until(stream, (0, 1)).await?;
    Ok(())
}

async fn good_ones_pass_and_a_bad_one_is_rejected(
    server: &Nats,
    number: usize,
    bad: &[u8],
) -> Outcome {
    let stream = format!("unreadable-{number}");
    server.create(&stream).await?;
    server.publish_numbers(&stream, 3).await?;
    send(server, &stream, bad, "bad").await?;
    server.publish_numbers(&stream, 3).await?;
    let mut source = source(server.options(&stream)?.dead_letters(dead(&stream))?);
    let mut positions = BTreeSet::new();
    while positions.len() < 7 {
        let delivery = next(&mut source).await?;
        let position = delivery.envelope().position.clone();
        match delivery.message() {
            Ok(_) => {
                if delivery.acknowledge().await.is_ok() {
                    positions.insert(position);
                }
            }
            Err(rejection) => {
                assert!(rejection.reason().contains("header"), "{rejection}");
                assert_eq!(delivery.envelope().payload.as_ref(), b"bad");
                if delivery.reject(rejection).await.is_ok() {
                    positions.insert(position);
                }
            }
        }
    }
    server.until(&stream, (0, 0)).await?;
    let kept = server.messages(&dead(&stream)).await?;
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].payload.as_ref(), b"bad");
    let subject = kept[0]
        .headers
        .get("Inbox-Subject")
        .map(HeaderValue::as_str);
    assert_eq!(subject, Some(stream.as_str()));
    assert!(kept[0].headers.get("Inbox-Headers").is_some());
    source.close().await?;
    Ok(())
}

/// For a receiver that keeps it: it is acknowledged as others are.
async fn a_bad_one_is_kept_as_it_came(server: &Nats) -> Outcome {
    let stream = "kept";
    server.create(stream).await?;
    send(server, stream, BAD[0], "bad").await?;
    let mut source = source(server.options(stream)?.confirm(true));
    let delivery = next(&mut source).await?;
    assert!(delivery.message().is_err());
    let raw = delivery.raw().ok_or("it has no bytes")?;
    assert_eq!(raw.payload().as_ref(), b"bad");
    assert_eq!(raw.headers().get("name-bin"), Some("TfxsbGVy"));
    drop(delivery);
    // Dropped, it comes again.
    let delivery = next(&mut source).await?;
    assert!(delivery.message().is_err());
    delivery.acknowledge().await?;
    server.until(stream, (0, 0)).await?;
    source.close().await?;
    Ok(())
}
