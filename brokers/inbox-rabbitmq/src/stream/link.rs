//! One connection, which is closed by being dropped.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use inbox_source::{SourceError, network};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};

use super::{
    error::{Outcome, malformed, refused},
    frame::{self, Incoming, code, code_of, key},
    nodes::Node,
    options::StreamConnection,
    wire::{Reader, Writer},
};
use crate::error::transient;

/// How often both sides say something, in seconds.
pub(crate) const HEARTBEAT: u32 = 5;
/// How long a write may take. What is written is short, so this says that the server reads nothing.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// What is longer is no frame but another protocol: `AMQP` and `HTTP` are such numbers.
const MAX_FRAME: usize = 1 << 30;

/// A connection of either kind.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection that was let in.
pub(crate) struct Link {
    io: Box<dyn Io>,
    buffer: BytesMut,
    correlation: u32,
    /// When the server was last heard.
    pub(crate) heard: Instant,
    /// When something was last said to it.
    pub(crate) said: Instant,
    /// The largest frame that the server takes, in bytes; 0 is no limit.
    pub(crate) frame_max: u32,
    /// The server's version: its first two numbers.
    pub(crate) version: (u32, u32),
    /// Where the server says that it is.
    pub(crate) node: Option<Node>,
}

impl Link {
    /// Connects, to `node` instead of the connection's own address if there is one, and logs in.
    pub(crate) async fn open(to: &StreamConnection, node: Option<&Node>) -> Outcome<Self> {
        let (host, port) = match node {
            Some(node) => (node.host.as_str(), node.port),
            None => (to.host.as_str(), to.port),
        };
        let now = Instant::now();
        let failed =
            |error: io::Error| transient("connecting", network::advise(&error.to_string()));
        let mut link = Self {
            io: connect(to, host, port).await.map_err(failed)?,
            buffer: BytesMut::new(),
            correlation: 0,
            heard: now,
            said: now,
            frame_max: 0,
            version: (0, 0),
            node: None,
        };
        link.log_in(to).await?;
        Ok(link)
    }

    async fn log_in(&mut self, to: &StreamConnection) -> Outcome<()> {
        let about = [
            ("product", "inbox"),
            ("version", env!("CARGO_PKG_VERSION")),
            ("connection_name", "inbox"),
        ];
        let about = |writer: Writer| writer.pairs(&about);
        let answer = self
            .asked("connecting", key::PEER_PROPERTIES, about)
            .await?;
        let facts = pairs_after_code(&answer)?;
        self.version = version(find(&facts, "version").unwrap_or_default());
        self.asked("connecting", key::SASL_HANDSHAKE, |writer| writer)
            .await?;
        let proof = format!("\0{}\0{}", to.user, to.password);
        let proof = |writer: Writer| writer.text("PLAIN").long(proof.as_bytes());
        self.asked("connecting", key::SASL_AUTHENTICATE, proof)
            .await?;
        loop {
            if let Incoming::Tune { frame_max } = self.read().await? {
                self.frame_max = frame_max;
                break;
            }
        }
        let tune = Writer::default().u32(self.frame_max).u32(HEARTBEAT);
        self.say(key::TUNE, tune).await?;
        let vhost = |writer: Writer| writer.text(&to.vhost);
        let answer = self.asked("connecting", key::OPEN, vhost).await?;
        // The oldest servers end the answer with its code.
        let facts = pairs_after_code(&answer).unwrap_or_default();
        let port = find(&facts, "advertised_port").and_then(|port| port.parse().ok());
        let host = find(&facts, "advertised_host");
        self.node = host.zip(port).map(|(host, port)| Node {
            host: host.to_owned(),
            port,
        });
        Ok(())
    }

    /// The next thing that the server says. A future that is dropped loses nothing.
    pub(crate) async fn read(&mut self) -> Outcome<Incoming> {
        let frame = loop {
            if let Some(frame) = self.frame()? {
                break frame;
            }
            let read = self.io.read_buf(&mut self.buffer).await;
            let read = read.map_err(|error| transient("the connection is lost", error))?;
            if read == 0 {
                return Err(SourceError::transient(
                    "the server has closed the connection",
                ));
            }
            self.heard = Instant::now();
        };
        Incoming::read(&frame).map_err(malformed)
    }

    /// The frame at the beginning of what was read, without its length.
    fn frame(&mut self) -> Outcome<Option<Bytes>> {
        let Ok(length) = Reader::new(&self.buffer).u32() else {
            return Ok(None);
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            return Err(SourceError::transient(
                "the server does not speak the stream protocol; its port is another one than that of queues",
            ));
        }
        let whole = length.saturating_add(4);
        if self.buffer.len() < whole {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(whole).freeze();
        Ok(Some(frame.split_off(4)))
    }

    pub(crate) async fn say(&mut self, key: u16, content: Writer) -> Outcome<()> {
        self.send(&frame::frame(key, content)).await
    }

    pub(crate) async fn send(&mut self, frame: &[u8]) -> Outcome<()> {
        let sending = async {
            self.io.write_all(frame).await?;
            self.io.flush().await
        };
        let late = |_| SourceError::transient("the server reads nothing");
        let sent = timeout(WRITE_LIMIT, sending).await.map_err(late)?;
        sent.map_err(|error| transient("the connection is lost", error))?;
        self.said = Instant::now();
        Ok(())
    }

    /// Asks, and returns the number of the answer.
    pub(crate) async fn ask(
        &mut self,
        key: u16,
        content: impl FnOnce(Writer) -> Writer,
    ) -> Outcome<u32> {
        self.correlation = self.correlation.wrapping_add(1);
        let content = content(Writer::default().u32(self.correlation));
        self.say(key, content).await?;
        Ok(self.correlation)
    }

    /// Asks and waits. Only for connections that nothing is delivered to: what else the server says is left out.
    pub(crate) async fn answer(
        &mut self,
        key: u16,
        content: impl FnOnce(Writer) -> Writer,
    ) -> Outcome<Bytes> {
        let asked = self.ask(key, content).await?;
        loop {
            match self.read().await? {
                Incoming::Answer(correlation, answer) if correlation == asked => return Ok(answer),
                Incoming::Close(_, reason) => {
                    return Err(SourceError::transient(format!(
                        "the server has closed the connection: {reason}"
                    )));
                }
                _ => {}
            }
        }
    }

    /// As [`answer`](Self::answer), of answers that begin with a code: another one than *OK* is an error.
    pub(crate) async fn asked(
        &mut self,
        doing: &str,
        key: u16,
        content: impl FnOnce(Writer) -> Writer,
    ) -> Outcome<Bytes> {
        let answer = self.answer(key, content).await?;
        match code_of(&answer).map_err(malformed)? {
            code::OK => Ok(answer),
            refusal => Err(refused(doing, refusal)),
        }
    }
}

async fn connect(to: &StreamConnection, host: &str, port: u16) -> io::Result<Box<dyn Io>> {
    // An address of version 6 stands in brackets in a URL.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let socket = TcpStream::connect((host, port)).await?;
    socket.set_nodelay(true)?;
    #[cfg(feature = "tls")]
    if to.tls {
        return Ok(Box::new(super::tls::connect(host, socket).await?));
    }
    let _ = to;
    Ok(Box::new(socket))
}

fn pairs_after_code(answer: &[u8]) -> Outcome<Vec<(&str, &str)>> {
    let mut reader = Reader::new(answer);
    let read = reader.u16().and_then(|_| reader.pairs());
    read.map_err(malformed)
}

fn find<'a>(pairs: &[(&'a str, &'a str)], name: &str) -> Option<&'a str> {
    let found = pairs.iter().find(|(one, _)| *one == name);
    found.map(|(_, value)| *value)
}

fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split('.').map(|part| part.parse().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("3.10.8"), (3, 10));
        assert!(version("3.9") < (3, 11) && version("4.0.2-rc.1") >= (3, 11));
        assert_eq!(version("other"), (0, 0));
    }
}
