//! Stands between clients and the server, so that connections can be cut while both are up.

use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
};

pub(crate) struct Proxy {
    port: u16,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    target: OnceLock<String>,
    connections: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Listens until the process ends.
    pub(crate) fn listen() -> io::Result<Self> {
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

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn forward_to(&self, target: &str) {
        self.inner.target.get_or_init(|| target.to_owned());
    }

    pub(crate) fn cut(&self) {
        for connection in self.inner.connections().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Inner {
    fn forward(&self, client: TcpStream) -> io::Result<()> {
        let target = self.target.get().ok_or(io::ErrorKind::NotConnected)?;
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

    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
