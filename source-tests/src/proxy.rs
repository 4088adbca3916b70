//! Stands between clients and the server, so that connections can be cut while both are up.

use std::{
    fmt, io,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Stands between clients and a broker, for [`Harm::Cut`](crate::Harm::Cut): cuts connections while both are up.
pub struct Proxy {
    port: u16,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    target: OnceLock<String>,
    connections: Mutex<Vec<TcpStream>>,
    is_shut: AtomicBool,
}

impl Proxy {
    /// Listens at a free port of 127.0.0.1 until the process ends.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn listen() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let inner = Arc::new(Inner::default());
        let of_thread = inner.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Where the server is away, so is this connection.
                let _ = of_thread.forward(client);
            }
        });
        Ok(Self { port, inner })
    }

    /// Where clients connect.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where the broker is, such as `127.0.0.1:9092`; only the first call counts. Connections before it are closed.
    pub fn forward_to(&self, target: &str) {
        self.inner.target.get_or_init(|| target.to_owned());
    }

    /// Whether to close connections of clients at once, from now on: for a broker that listens before it knows its
    /// channels.
    pub fn shut(&self, shut: bool) {
        self.inner.is_shut.store(shut, Ordering::SeqCst);
        if shut {
            self.cut();
        }
    }

    /// Closes all connections of clients. Later ones are served.
    pub fn cut(&self) {
        for connection in self.inner.connections().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn forward(&self, client: TcpStream) -> io::Result<()> {
        let target = self.target.get().ok_or(io::ErrorKind::NotConnected)?;
        if self.is_shut.load(Ordering::SeqCst) {
            return Ok(());
        }
        let server = TcpStream::connect(target)?;
        self.connections().push(client.try_clone()?);
        let pairs = [(client.try_clone()?, server.try_clone()?), (server, client)];
        for (mut from, mut to) in pairs {
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        Ok(())
    }

    fn connections(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
