//! A server of AMQP 0.9.1 for publishers, which does what a proper one may do, but does only now and then.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use inbox_rabbitmq::Connection;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    harness::{Outcome, connection},
    sender::{long, read_frame, short, write_frame},
};

/// What is sent there is confirmed late: when a message that no queue takes was returned, and before that one is
/// confirmed.
pub(crate) const SLOW: &str = "slow";
/// No queue takes what is sent there.
pub(crate) const NOWHERE: &str = "nowhere";
/// With what is sent there the server runs short of memory: it says so, and reads no more until it is
/// [relieved](Peer::relieve).
pub(crate) const ALARM: &str = "alarm";

/// The user may not write there: the channel ends.
pub(crate) const REFUSED: &str = "refused";
/// What is sent there ends the channel, too, and nothing is said of which message it was.
pub(crate) const ODD: &str = "odd";

const PATIENCE: Duration = Duration::from_secs(60);
/// How often a connection that is blocked gets a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(1);

pub(crate) struct Peer {
    address: String,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    open: AtomicUsize,
    messages: AtomicUsize,
    relief: Notify,
}

impl Peer {
    pub(crate) async fn listen() -> Outcome<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?.to_string();
        let seen = Arc::<Seen>::default();
        let of_server = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = Arc::clone(&of_server);
                seen.connections.fetch_add(1, Ordering::SeqCst);
                seen.open.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    // It ends with the connection.
                    let _ = serve(stream, &seen).await;
                    seen.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok(Self { address, seen })
    }

    pub(crate) fn connection(&self) -> Outcome<Connection> {
        connection(&self.address)
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// Waits until no more than one connection is open.
    pub(crate) async fn until_others_end(&self) -> Outcome {
        until(&self.seen.open, |open| open <= 1).await
    }

    /// Waits until so many messages have come.
    pub(crate) async fn until_messages(&self, count: usize) -> Outcome {
        until(&self.seen.messages, |messages| messages >= count).await
    }

    pub(crate) fn relieve(&self) {
        self.seen.relief.notify_one();
    }
}

async fn until(number: &AtomicUsize, is_it: impl Fn(usize) -> bool) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let number = number.load(Ordering::SeqCst);
        if is_it(number) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("in the end it is {number}").into());
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn serve(mut stream: TcpStream, seen: &Seen) -> Outcome {
    let mut version = [0; 8];
    stream.read_exact(&mut version).await?;
    let start = [&[0, 9][..], &long(b""), &long(b"PLAIN"), &long(b"en_US")];
    method(&mut stream, 0, 10, 10, &start.concat()).await?;
    let (mut tag, mut kept) = (0_u64, Vec::new());
    let mut has_ended = false;
    loop {
        let (kind, channel, content) = read_frame(&mut stream).await?;
        // No heartbeat.
        if kind != 1 {
            continue;
        }
        let stream = &mut stream;
        match content.get(..4) {
            // As many channels and frames as large as usual, and no heartbeats.
            Some([0, 10, 0, 11]) => {
                method(stream, 0, 10, 30, &[7, 0xff, 0, 2, 0, 0, 0, 0]).await?;
            }
            Some([0, 10, 0, 40]) => method(stream, 0, 10, 41, &short(b"")).await?,
            Some([0, 10, 0, 50]) => return method(stream, 0, 10, 51, &[]).await,
            Some([0, 20, 0, 10]) => method(stream, channel, 20, 11, &long(b"")).await?,
            Some([0, 20, 0, 40]) => method(stream, channel, 20, 41, &[]).await?,
            Some([0, 85, 0, 10]) => method(stream, channel, 85, 11, &[]).await?,
            Some([0, 60, 0, 40]) if !has_ended => {
                let message = Message::read(stream, &content).await?;
                seen.messages.fetch_add(1, Ordering::SeqCst);
                tag += 1;
                kept.push(tag);
                match message.key.as_str() {
                    SLOW => continue,
                    NOWHERE => message.give_back(stream, channel).await?,
                    ALARM => run_short(stream, seen).await?,
                    REFUSED => {
                        let text = "ACCESS_REFUSED - write access to topic 'refused' in exchange 'events' in \
                                    vhost '/' refused for user 'ann'";
                        end(stream, channel, 403, text).await?;
                        has_ended = true;
                        continue;
                    }
                    ODD => {
                        end(stream, channel, 406, "PRECONDITION_FAILED - odd").await?;
                        has_ended = true;
                        continue;
                    }
                    _ => {}
                }
                for tag in mem::take(&mut kept) {
                    let confirmed = [&tag.to_be_bytes()[..], &[0]];
                    method(stream, channel, 60, 80, &confirmed.concat()).await?;
                }
            }
            _ => {}
        }
    }
}

async fn method(
    to: &mut TcpStream,
    channel: u16,
    class: u16,
    method: u16,
    content: &[u8],
) -> Outcome {
    let head = [class.to_be_bytes(), method.to_be_bytes()].concat();
    write_frame(to, 1, channel, &[&head, content].concat()).await
}

/// Ends a channel, on which nothing is confirmed after that.
async fn end(to: &mut TcpStream, channel: u16, code: u16, text: &str) -> Outcome {
    let code = code.to_be_bytes();
    let end = [&code[..], &short(text.as_bytes()), &[0, 60, 0, 40]];
    method(to, channel, 20, 40, &end.concat()).await
}

async fn run_short(stream: &mut TcpStream, seen: &Seen) -> Outcome {
    method(stream, 0, 10, 60, &short(b"low on memory")).await?;
    while timeout(HEARTBEAT, seen.relief.notified()).await.is_err() {
        write_frame(stream, 8, 0, &[]).await?;
    }
    method(stream, 0, 10, 61, &[]).await
}

struct Message {
    key: String,
    /// The frame of its properties.
    properties: Vec<u8>,
    body: Vec<u8>,
}

impl Message {
    async fn read(from: &mut TcpStream, publish: &[u8]) -> Outcome<Self> {
        // Behind class, method and a number that means nothing: the exchange, and then the key.
        let exchange = usize::from(publish[6]);
        let key = &publish[7 + exchange..];
        let key = String::from_utf8(key[1..=usize::from(key[0])].to_vec())?;
        let (_, _, properties) = read_frame(from).await?;
        let length = usize::try_from(u64::from_be_bytes(properties[4..12].try_into()?))?;
        let mut body = Vec::new();
        while body.len() < length {
            let (_, _, part) = read_frame(from).await?;
            body.extend(part);
        }
        Ok(Self {
            key,
            properties,
            body,
        })
    }

    async fn give_back(&self, to: &mut TcpStream, channel: u16) -> Outcome {
        let code = 312_u16.to_be_bytes();
        let returned = [
            &code[..],
            &short(b"NO_ROUTE"),
            &short(b""),
            &short(self.key.as_bytes()),
        ];
        method(to, channel, 60, 50, &returned.concat()).await?;
        write_frame(to, 2, channel, &self.properties).await?;
        write_frame(to, 3, channel, &self.body).await
    }
}
