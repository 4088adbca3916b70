//! Whether a caller is still there.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// The connection that a request came over. A server puts it into the request's extensions, so that an
/// answer with leases asks, right before it is written, whether its caller is still there.
///
/// Without it a caller that has gone is noticed when the runtime next asks for the connection's events,
/// which on a busy machine takes some milliseconds.
///
/// ```
/// use inbox_http::api::Connection;
///
/// # async fn accept(listener: tokio::net::TcpListener) -> std::io::Result<()> {
/// let (stream, _) = listener.accept().await?;
/// let (connection, stream) = Connection::watch(stream);
/// // Serve `stream`, and insert `connection.clone()` into the extensions of each request.
/// # let _ = (connection, stream);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Connection(Shared);

/// Locked for single calls that do not wait.
type Shared = Arc<Mutex<TcpStream>>;

fn lock(stream: &Shared) -> MutexGuard<'_, TcpStream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Returns what requests are to be given, and the stream to be served.
    #[must_use]
    pub fn watch(stream: TcpStream) -> (Self, WatchedStream) {
        let stream = Arc::new(Mutex::new(stream));
        (Self(Arc::clone(&stream)), WatchedStream(stream))
    }

    /// Whether the caller has closed its side, or the connection is broken, as far as this machine has
    /// been told. Always `false` on other systems than Linux.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        is_closed(&lock(&self.0))
    }
}

/// Asks the system itself: what the runtime knows is as old as its last look at all connections.
#[cfg(target_os = "linux")]
fn is_closed(stream: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    // Unlike a peek, this tells also behind what was sent before the end, such as TLS's own farewell.
    let mut asked = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|happened| happened > 0)
}

#[cfg(not(target_os = "linux"))]
fn is_closed(_: &TcpStream) -> bool {
    false
}

/// A connection's stream, which its [`Connection`] looks at meanwhile. The connection ends with the last
/// of the two.
#[derive(Debug)]
pub struct WatchedStream(Shared);

impl AsyncRead for WatchedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.0)).poll_read(context, buffer)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.0)).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.0)).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.0).is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.0)).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.0)).poll_shutdown(context)
    }
}
