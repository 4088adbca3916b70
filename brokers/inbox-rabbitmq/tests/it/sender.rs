//! A client of AMQP 0.9.1 that shares nothing with the source, and sends what a proper one does not.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::harness::Outcome;

const PATIENCE: Duration = Duration::from_secs(10);

/// Basic properties, by their bits.
#[derive(Clone, Copy)]
pub(crate) enum Property {
    ContentType = 15,
    ContentEncoding = 14,
    Headers = 13,
    CorrelationId = 10,
    ReplyTo = 9,
    MessageId = 7,
    Type = 5,
    AppId = 3,
}

pub(crate) struct Sender(TcpStream);

/// A short string of any bytes.
pub(crate) fn short(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

pub(crate) fn long(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [&length, bytes].concat()
}

pub(crate) async fn write_frame(
    to: &mut TcpStream,
    kind: u8,
    channel: u16,
    content: &[u8],
) -> Outcome {
    let frame = [&[kind], &channel.to_be_bytes()[..], &long(content), &[0xce]];
    Ok(to.write_all(&frame.concat()).await?)
}

/// The kind, the channel and the content.
pub(crate) async fn read_frame(from: &mut TcpStream) -> Outcome<(u8, u16, Vec<u8>)> {
    let mut head = [0; 7];
    from.read_exact(&mut head).await?;
    let [kind, high, low, length @ ..] = head;
    // With its last byte.
    let mut content = vec![0; usize::try_from(u32::from_be_bytes(length))? + 1];
    from.read_exact(&mut content).await?;
    content.pop();
    Ok((kind, u16::from_be_bytes([high, low]), content))
}

impl Sender {
    pub(crate) async fn connect(address: &str) -> Outcome<Self> {
        let mut sender = Self(TcpStream::connect(address).await?);
        sender.0.write_all(b"AMQP\0\0\x09\x01").await?;
        sender.until(10, 10).await?;
        let start = [
            long(b""),
            short(b"PLAIN"),
            long(b"\0guest\0guest"),
            short(b"en"),
        ];
        sender.method(0, 10, 11, &start.concat()).await?;
        sender.until(10, 30).await?;
        // As many channels as the server likes, and no heartbeats.
        sender.method(0, 10, 31, &[0, 10, 0, 2, 0, 0, 0, 0]).await?;
        let open = [short(b"/"), short(b""), vec![0]];
        sender.method(0, 10, 40, &open.concat()).await?;
        sender.until(10, 41).await?;
        sender.method(1, 20, 10, &short(b"")).await?;
        sender.until(20, 11).await?;
        sender.method(1, 85, 10, &[0]).await?;
        sender.until(85, 11).await?;
        Ok(sender)
    }

    /// Sends one, with properties in the order of their bits from the highest, and waits until the server has it.
    pub(crate) async fn send(
        &mut self,
        exchange: &str,
        key: &[u8],
        properties: &[(Property, Vec<u8>)],
        body: &[u8],
    ) -> Outcome {
        let to = [vec![0; 2], short(exchange.as_bytes()), short(key), vec![0]];
        self.method(1, 60, 40, &to.concat()).await?;
        let mut flags = 0_u16;
        let mut values = Vec::new();
        for (property, value) in properties {
            flags |= 1 << *property as u16;
            values.extend_from_slice(value);
        }
        let length = u64::try_from(body.len())?.to_be_bytes();
        let head = [&[0, 60, 0, 0], &length[..], &flags.to_be_bytes(), &values];
        self.frame(2, 1, &head.concat()).await?;
        self.frame(3, 1, body).await?;
        self.until(60, 80).await
    }

    async fn method(&mut self, channel: u16, class: u16, method: u16, content: &[u8]) -> Outcome {
        let head = [class.to_be_bytes(), method.to_be_bytes()].concat();
        self.frame(1, channel, &[&head, content].concat()).await
    }

    async fn frame(&mut self, kind: u8, channel: u16, content: &[u8]) -> Outcome {
        write_frame(&mut self.0, kind, channel, content).await
    }

    /// Waits for a method.
    async fn until(&mut self, class: u16, method: u16) -> Outcome {
        let wanted = [class.to_be_bytes(), method.to_be_bytes()].concat();
        let waiting = async {
            loop {
                let (kind, _, content) = read_frame(&mut self.0).await?;
                match content.get(..4) {
                    _ if kind != 1 => {}
                    Some(said) if said == wanted => return Ok(()),
                    // The server ends the connection or the channel.
                    Some([0, 10, 0, 50] | [0, 20, 0, 40]) => {
                        return Err(String::from_utf8_lossy(&content).into());
                    }
                    _ => {}
                }
            }
        };
        timeout(PATIENCE, waiting).await?
    }
}
