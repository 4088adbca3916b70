//! What stands between the network and the client: frames that the client could not read are [cleaned](super::clean).

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use async_rs::{Runtime, Tokio, traits::Reactor, util::RuntimeParts};
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::Stream;
use lapin::{AsyncTcpStream, ConnectionProperties, tcp::AMQPUriTcpExt as _, uri::AMQPUri};

use crate::clean::{Cleaner, HEAD, HEADER, METHOD, Replaced};

/// How much is read at a time.
const READ: usize = 16 * 1024;
/// What is larger is no frame that was agreed on, and left to the client.
const LARGEST: usize = 1024 * 1024;

/// As the client makes one.
type Network = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

/// Connects a client that reads what is in these, too.
pub(crate) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
    replaced: Arc<Replaced>,
) -> lapin::Result<lapin::Connection> {
    let tokio = Tokio::current();
    let network = Runtime::new(tokio.clone());
    let runtime = Runtime::new(RuntimeParts::new(tokio.clone(), Screened(tokio)));
    let connect = async move |uri: AMQPUri, _| {
        let network = uri.connect_async(&network).await?;
        let screen = Screen::new(network, Arc::clone(&replaced));
        Ok(AsyncTcpStream::Plain(screen))
    };
    lapin::Connection::connector(uri, runtime, connect, properties).await
}

/// Says of what kind the connections are. The client makes none by it.
#[derive(Clone, Debug)]
struct Screened(Tokio);

impl Reactor for Screened {
    type TcpStream = Screen<Network>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Screen<Network>, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        async {
            Ok(Screen::new(
                Network::Plain(connecting.await?),
                Arc::default(),
            ))
        }
    }
}

/// A connection whose frames are cleaned as they come.
pub(crate) struct Screen<S> {
    network: S,
    cleaner: Cleaner,
    replaced: Arc<Replaced>,
    /// What has come and was not handed on.
    came: Vec<u8>,
    /// So much of it was handed on already,
    handed: usize,
    /// and so much of it, from its beginning, may be.
    clean: usize,
    /// So much of what is still to come is not looked at.
    passing: usize,
}

impl<S> Screen<S> {
    fn new(network: S, replaced: Arc<Replaced>) -> Self {
        Self {
            network,
            cleaner: Cleaner::default(),
            replaced,
            came: Vec::new(),
            handed: 0,
            clean: 0,
            passing: 0,
        }
    }

    /// Hands on as much as may be and has room.
    fn hand_on(&mut self, to: &mut [u8]) -> usize {
        let ready = self.came.get(self.handed..self.clean).unwrap_or_default();
        let count = ready.len().min(to.len());
        if let (Some(to), Some(from)) = (to.get_mut(..count), ready.get(..count)) {
            to.copy_from_slice(from);
        }
        self.handed += count;
        if self.handed == self.clean {
            self.came.drain(..self.clean);
            (self.handed, self.clean) = (0, 0);
        }
        count
    }

    /// Cleans the frames that are whole. Of a body nothing is waited for.
    fn look(&mut self) {
        while self.passing == 0 {
            let Some(frame) = self.came.get_mut(self.clean..) else {
                return;
            };
            let Some((head, _)) = frame.split_first_chunk::<HEAD>() else {
                return;
            };
            let [kind, _, _, length @ ..] = *head;
            // With its last byte.
            let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            let whole = length.saturating_add(HEAD + 1);
            let there = frame.len();
            if [METHOD, HEADER].contains(&kind) && whole <= LARGEST {
                let Some(frame) = frame.get_mut(..whole) else {
                    return;
                };
                self.cleaner.clean(frame, &self.replaced);
            }
            self.clean += whole.min(there);
            self.passing = whole.saturating_sub(there);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Screen<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            if this.clean > this.handed || to.is_empty() {
                return Poll::Ready(Ok(this.hand_on(to)));
            }
            let network = Pin::new(&mut this.network);
            if this.passing > 0 {
                let room = to.len().min(this.passing);
                let to = to.get_mut(..room).unwrap_or_default();
                let count = ready!(network.poll_read(context, to))?;
                this.passing -= count.min(this.passing);
                return Poll::Ready(Ok(count));
            }
            let before = this.came.len();
            this.came.resize(before + READ, 0);
            let room = this.came.get_mut(before..).unwrap_or_default();
            let read = network.poll_read(context, room);
            let count = match &read {
                Poll::Ready(Ok(count)) => *count,
                _ => 0,
            };
            this.came.truncate(before + count);
            if ready!(read)? == 0 {
                return Poll::Ready(Ok(0));
            }
            this.look();
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Screen<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().network).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().network).poll_write_vectored(context, parts)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().network).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().network).poll_close(context)
    }
}
