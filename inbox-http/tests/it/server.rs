//! A server on a port of this machine, and its clients.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    client: reqwest::Client,
    server: JoinHandle<()>,
}

/// A response, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// The code of a problem document, whose status is the response's.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16());
        assert!(problem["title"].is_string());
        problem["code"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A request that hangs fails its test, and not the whole run.
    let builder = reqwest::Client::builder().timeout(Duration::from_secs(120));
    builder.build().unwrap()
}

pub(crate) async fn send(
    client: &reqwest::Client,
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: impl Into<reqwest::Body>,
) -> Result<Answer, reqwest::Error> {
    let mut request = client.request(method, url).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await?;
    Ok(Answer {
        status: response.status(),
        headers: response.headers().clone(),
        body: response.bytes().await?,
    })
}

impl Site {
    pub(crate) async fn serve(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            axum::serve(listener, app).await.unwrap();
        });
        Self {
            address,
            client: client(),
            server,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Answer {
        let url = self.url(path);
        send(&self.client, method, &url, headers, body)
            .await
            .unwrap()
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Answer {
        self.send(Method::POST, path, headers, body).await
    }

    /// A request with this key.
    pub(crate) async fn with_key(&self, path: &str, key: &str, body: &str) -> Answer {
        self.post(path, &[("idempotency-key", key)], body.to_owned())
            .await
    }

    /// Sends bytes as they stand, and returns the beginning of what comes back until the server closes the
    /// connection.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = vec![0; 4096];
        let mut read = 0;
        while let Ok(more) = stream.read(&mut answer[read..]).await {
            read += more;
            if more == 0 || answer[..read].ends_with(b"}") {
                break;
            }
        }
        String::from_utf8_lossy(&answer[..read]).into_owned()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Asks again and again until it is so. The limit is for a test that fails.
pub(crate) async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let asked = tokio::time::timeout(Duration::from_secs(60), asking).await;
    assert!(asked.is_ok(), "it never was so");
}

pub(crate) fn seconds_now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs()
}
