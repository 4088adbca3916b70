//! What stands between the network and the client: frames that the client could not read are [cleaned](super::clean),
//! and a connection can be [cut](Cut).

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

use crate::{
    clean::{Cleaner, HEAD, HEADER, METHOD, Replaced},
    flag::Flag,
};

/// How much is read at a time.
const READ: usize = 16 * 1024;
/// What is larger is no frame that was agreed on, and left to the client.
const LARGEST: usize = 1024 * 1024;

/// As the client makes one.
type Network = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

/// Cuts a connection off: what it reads and writes fails from then on, so that the client ends it, with its thread and
/// its socket. The client itself knows only an orderly end, and waits for the server with it: for ever where that is
/// silent, and while it takes nothing.
pub(crate) struct Cut {
    flag: Arc<Flag>,
    /// Whether it cuts when it is dropped.
    pub(crate) on_drop: bool,
}

impl Drop for Cut {
    fn drop(&mut self) {
        if self.on_drop {
            self.flag.set();
        }
    }
}

fn cut_off() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

/// Connects a client that reads what is in these, too. The connection is cut off when this is given up, and when what
/// comes with it is dropped.
pub(crate) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
    replaced: Arc<Replaced>,
) -> lapin::Result<(lapin::Connection, Cut)> {
    let tokio = Tokio::current();
    let network = Runtime::new(tokio.clone());
    let runtime = Runtime::new(RuntimeParts::new(tokio.clone(), Screened(tokio)));
    let flag = Arc::<Flag>::default();
    let cut = Cut {
        flag: Arc::clone(&flag),
        on_drop: true,
    };
    let connect = async move |uri: AMQPUri, _| {
        let connected = tokio::select! {
            connected = uri.connect_async(&network) => connected,
            () = flag.wait() => Err(cut_off()),
        };
        let screen = Screen::new(connected?, Arc::clone(&replaced), Arc::clone(&flag));
        Ok(AsyncTcpStream::Plain(screen))
    };
    let connection = lapin::Connection::connector(uri, runtime, connect, properties).await?;
    Ok((connection, cut))
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
                Arc::default(),
            ))
        }
    }
}

/// A connection whose frames are cleaned as they come.
pub(crate) struct Screen<S> {
    network: S,
    cut: Arc<Flag>,
    /// Wakes the reader.
    until_cut: Pin<Box<dyn Future<Output = ()> + Send>>,
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
    fn new(network: S, replaced: Arc<Replaced>, cut: Arc<Flag>) -> Self {
        let flag = Arc::clone(&cut);
        Self {
            network,
            cut,
            until_cut: Box::pin(async move { flag.wait().await }),
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
        if this.cut.is_set() || this.until_cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(cut_off()));
        }
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
        let this = self.get_mut();
        if this.cut.is_set() {
            return Poll::Ready(Err(cut_off()));
        }
        Pin::new(&mut this.network).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.cut.is_set() {
            return Poll::Ready(Err(cut_off()));
        }
        Pin::new(&mut this.network).poll_write_vectored(context, parts)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().network).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().network).poll_close(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::timeout;

    use super::*;

    /// A network on which nothing comes, and that takes everything.
    struct Silent;

    impl AsyncRead for Silent {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Silent {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    async fn read(screen: &mut Screen<Silent>) -> io::Result<usize> {
        poll_fn(|context| Pin::new(&mut *screen).poll_read(context, &mut [0; 8])).await
    }

    async fn write(screen: &mut Screen<Silent>) -> io::Result<usize> {
        poll_fn(|context| Pin::new(&mut *screen).poll_write(context, b"x")).await
    }

    #[tokio::test]
    async fn what_is_cut_fails_also_while_it_is_read() {
        let flag = Arc::<Flag>::default();
        let mut screen = Screen::new(Silent, Arc::default(), Arc::clone(&flag));
        let reading = tokio::spawn(async move {
            let written = write(&mut screen).await.is_ok();
            // Again and again, as the client does.
            let failed = [read(&mut screen).await, read(&mut screen).await];
            let failed = failed.iter().all(Result::is_err);
            (written, failed, write(&mut screen).await.is_err())
        });
        for on_drop in [false, true] {
            // It waits.
            tokio::task::yield_now().await;
            assert!(!reading.is_finished());
            let flag = Arc::clone(&flag);
            drop(Cut { flag, on_drop });
        }
        let done = timeout(Duration::from_secs(30), reading).await;
        assert_eq!(done.unwrap().unwrap(), (true, true, true));
    }
}
