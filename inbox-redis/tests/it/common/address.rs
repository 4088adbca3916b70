//! An address behind which the server changes: what is connected stays with the server that it has.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::net::{TcpListener, TcpStream};

use super::Raw;

pub struct Address {
    port: u16,
    server: Arc<Mutex<SocketAddr>>,
}

/// Where the server with this URL listens.
pub fn socket(url: &str) -> SocketAddr {
    let host = url.trim_start_matches("redis://").trim_end_matches('/');
    host.parse().unwrap()
}

/// Makes the server with this URL the replica of another, which it is when this returns, or of none.
pub async fn follow(url: &str, primary: Option<&str>) {
    let mut raw = Raw::connect(url, false).await.unwrap();
    let mut follow = redis::cmd("REPLICAOF");
    match primary {
        Some(primary) => {
            let address = socket(primary);
            follow.arg(address.ip().to_string()).arg(address.port());
        }
        None => {
            follow.arg("NO").arg("ONE");
        }
    }
    let _: String = raw.run(&follow).await.unwrap();
    if primary.is_none() {
        return;
    }
    let since = Instant::now();
    loop {
        let info: String = raw
            .run(redis::cmd("INFO").arg("replication"))
            .await
            .unwrap();
        if info.contains("master_link_status:up") {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{info}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
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
                    if let Ok(mut server) = TcpStream::connect(server).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
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
