//! An address behind which the server changes: what is connected stays with the server that it has.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::net::{TcpListener, TcpStream};

pub struct Address {
    port: u16,
    server: Arc<Mutex<SocketAddr>>,
}

/// Where the server with this URL listens.
pub fn socket(url: &str) -> SocketAddr {
    let host = url.trim_start_matches("redis://").trim_end_matches('/');
    host.parse().unwrap()
}

impl Address {
    /// The address of the server with this URL, for now.
    pub async fn of(url: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Arc::new(Mutex::new(socket(url)));
        let current = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = *current.lock().unwrap();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { port, server }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on, who connects reaches the server with this URL.
    pub fn means(&self, url: &str) {
        *self.server.lock().unwrap() = socket(url);
    }
}
