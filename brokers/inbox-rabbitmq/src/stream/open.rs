//! A connection to a node that has a stream.

use std::time::Duration;

use inbox_source::SourceError;
use tokio::time::{sleep, timeout};

use super::{
    error::{Outcome, malformed, refused},
    frame::{code, code_of, key},
    link::Link,
    nodes::{Metadata, Node, Nodes},
    options::RabbitMqStreamOptions,
    wire::{Reader, Writer},
};

/// How long connecting may take, with all that is asked.
const CONNECT_LIMIT: Duration = Duration::from_secs(8);
/// How long to wait before a load balancer is tried again.
const AGAIN: Duration = Duration::from_millis(50);

const DOING: &str = "looking for the stream";

/// A stream that can be read.
pub(crate) struct Found {
    pub(crate) link: Link,
    /// The offset that the server keeps for the consumer.
    pub(crate) kept: Option<u64>,
    /// Whether it was not there at first.
    pub(crate) is_new: bool,
}

/// A connection to read the stream by.
pub(crate) async fn to_read(options: &RabbitMqStreamOptions) -> Outcome<Found> {
    within(async {
        let (mut link, is_new) = to_node(options, &options.stream, Nodes::readable).await?;
        if options.single_active_consumer && link.version < (3, 11) {
            return Err(SourceError::permanent(
                "`single_active_consumer` needs RabbitMQ 3.11 or later",
            ));
        }
        let (consumer, stream) = (&options.consumer, &options.stream);
        let asking = link.answer(key::QUERY_OFFSET, |writer| {
            writer.text(consumer).text(stream)
        });
        let kept = kept_offset(&asking.await?)?;
        Ok(Found { link, kept, is_new })
    })
    .await
}

/// A connection to the node that takes messages for `stream`.
pub(crate) async fn to_write(options: &RabbitMqStreamOptions, stream: &str) -> Outcome<Link> {
    let (link, _) = within(to_node(options, stream, Nodes::writable)).await?;
    Ok(link)
}

async fn within<T>(opening: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let late = |_| SourceError::transient("connecting: the server did not answer in time");
    timeout(CONNECT_LIMIT, opening).await.map_err(late)?
}

/// Reads the answer to a question for a consumer's offset.
pub(crate) fn kept_offset(answer: &[u8]) -> Outcome<Option<u64>> {
    let mut reader = Reader::new(answer);
    match reader.u16().map_err(malformed)? {
        code::OK => reader.u64().map(Some).map_err(malformed),
        code::NO_OFFSET => Ok(None),
        refusal => Err(refused("asking for the offset", refusal)),
    }
}

/// A connection to one of the nodes of a stream that `fit`, which is declared if it is to be, and whether it was.
async fn to_node(
    options: &RabbitMqStreamOptions,
    stream: &str,
    fit: fn(Nodes) -> Vec<Node>,
) -> Outcome<(Link, bool)> {
    let to = &options.connection;
    let mut link = Link::open(to, None).await?;
    let (nodes, created) = find(&mut link, options, stream).await?;
    let nodes = fit(nodes);
    let Some(first) = nodes.first() else {
        return Err(refused(DOING, code::STREAM_AWAY));
    };
    // A node that does not say where it is cannot be told from others.
    let is_one = |link: &Link| link.node.as_ref().is_none_or(|node| nodes.contains(node));
    if is_one(&link) {
        return Ok((link, created));
    }
    if !to.load_balancer {
        let chosen = nodes.get(fastrand::usize(..nodes.len())).unwrap_or(first);
        let opened = Link::open(to, Some(chosen)).await.map_err(|error| {
            let text = format!(
                "{error}; the stream is on {}:{}, by the word of {}: if that is behind a load balancer, say so \
                 by `load_balancer`",
                chosen.host, chosen.port, to.host
            );
            match error.is_transient() {
                true => SourceError::transient(text),
                false => SourceError::permanent(text),
            }
        });
        return opened.map(|link| (link, created));
    }
    while !is_one(&link) {
        sleep(AGAIN).await;
        link = Link::open(to, None).await?;
    }
    Ok((link, created))
}

/// The nodes of a stream, and whether it had to be declared.
async fn find(
    link: &mut Link,
    options: &RabbitMqStreamOptions,
    stream: &str,
) -> Outcome<(Nodes, bool)> {
    let mut created = false;
    loop {
        let asking = link.answer(key::METADATA, |writer| writer.u32(1).text(stream));
        match Metadata::read(&asking.await?).map_err(malformed)? {
            Metadata::Found(nodes) => return Ok((nodes, created)),
            Metadata::Not(code::NO_SUCH_STREAM) if options.create && !created => {
                let arguments = options.arguments();
                let declare = |writer: Writer| writer.text(stream).pairs(&arguments);
                let answer = link.answer(key::CREATE, declare).await?;
                match code_of(&answer).map_err(malformed)? {
                    // Another one may be faster.
                    code::OK | code::STREAM_EXISTS => created = true,
                    refusal => return Err(refused("declaring the stream", refusal)),
                }
            }
            // One that was just declared may take a moment.
            Metadata::Not(code::NO_SUCH_STREAM | code::STREAM_AWAY) if created => {
                sleep(AGAIN).await;
            }
            Metadata::Not(refusal) => return Err(refused(DOING, refusal)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::stream::frame;

    /// Lets a client in as the node that it says it is, and leads it to the stream's leader.
    async fn be_node(mut client: TcpStream, name: &str, leader: &Node) -> io::Result<()> {
        loop {
            let length = client.read_u32().await?;
            let mut said = vec![0; usize::try_from(length).unwrap_or_default()];
            client.read_exact(&mut said).await?;
            let mut said = Reader::new(&said);
            let (key, _) = (said.u16().unwrap(), said.u16().unwrap());
            let Ok(asked) = said.u32() else { continue };
            let ok = || Writer::default().u32(asked).u16(code::OK);
            let answer = match key {
                key::PEER_PROPERTIES => ok().pairs(&[("version", "4.1.0")]),
                key::OPEN => ok().pairs(&[("advertised_host", name), ("advertised_port", "5552")]),
                key::METADATA => {
                    let nodes = Writer::default().u32(asked).u32(1).u16(0);
                    let nodes = nodes.text(&leader.host).u32(leader.port.into());
                    nodes.u32(1).text("s").u16(code::OK).u16(0).u32(0)
                }
                key::QUERY_OFFSET => ok().u64(41),
                key::TUNE => continue,
                _ => ok(),
            };
            client.write_all(&frame::answer(key, answer)).await?;
            if key == key::SASL_AUTHENTICATE {
                let tune = Writer::default().u32(1 << 20).u32(60);
                client.write_all(&frame::frame(key::TUNE, tune)).await?;
            }
        }
    }

    /// A port behind which these nodes are in turn, and how often one connected there.
    async fn balancer(names: &'static [&'static str], leader: Node) -> (u16, Arc<AtomicUsize>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connected = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connected);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let turn = count.fetch_add(1, Ordering::SeqCst);
                let (name, leader) = (names[turn % names.len()], leader.clone());
                tokio::spawn(async move { be_node(client, name, &leader).await });
            }
        });
        (port, connected)
    }

    fn options(port: u16, setting: &str) -> RabbitMqStreamOptions {
        let url = format!("rabbitmq-stream://127.0.0.1:{port}/?stream=s&consumer=c{setting}");
        RabbitMqStreamOptions::from_url(&url).unwrap()
    }

    fn node(host: &str, port: u16) -> Node {
        let host = host.to_owned();
        Node { host, port }
    }

    #[tokio::test]
    async fn a_load_balancer_is_asked_until_it_leads_to_the_stream() {
        let (port, connected) = balancer(&["a", "b", "c"], node("c", 5552)).await;
        let found = to_read(&options(port, "&load_balancer=true"))
            .await
            .unwrap();
        assert_eq!((found.kept, found.is_new), (Some(41), false));
        assert_eq!(found.link.node, Some(node("c", 5552)));
        assert_eq!(found.link.version, (4, 1));
        assert_eq!(connected.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn a_node_that_has_the_stream_is_read_from() {
        let (port, connected) = balancer(&["c"], node("c", 5552)).await;
        assert!(to_read(&options(port, "")).await.is_ok());
        assert_eq!(connected.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn otherwise_it_goes_where_the_stream_is_said_to_be() {
        let (other, reached) = balancer(&["b"], node("b", 5552)).await;
        let (port, connected) = balancer(&["a"], node("127.0.0.1", other)).await;
        let found = to_read(&options(port, "")).await.unwrap();
        assert_eq!(found.link.node, Some(node("b", 5552)));
        assert_eq!(connected.load(Ordering::SeqCst), 1);
        assert_eq!(reached.load(Ordering::SeqCst), 1);
        // One that cannot be reached there is told of.
        let (port, _) = balancer(&["a"], node("127.0.0.1", 1)).await;
        let error = to_read(&options(port, "")).await.err().unwrap();
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().contains("load_balancer"), "{error}");
    }
}
