//! A running service, and a client of it.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::support::{Output, Place, finish, wait_for};

pub(crate) const TOKEN: &str = "a-token-for-tests-0123456789";

/// Runs a test on SQLite, and on PostgreSQL where that can be found.
pub(crate) fn on_both_stores(test: impl AsyncFn(&Place)) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    eprintln!("on SQLite");
    runtime.block_on(test(&Place::new()));
    if cfg!(feature = "postgres")
        && let Some(place) = Place::on_postgres()
    {
        eprintln!("on PostgreSQL");
        runtime.block_on(test(&place));
    }
}

pub(crate) struct Service {
    pub(crate) child: Child,
    pub(crate) base: String,
    client: Client,
    said: Arc<Mutex<Vec<String>>>,
}

impl Service {
    /// Starts `inbox serve` on a free port, and waits until it listens.
    pub(crate) fn start(place: &Place, arguments: &[&str]) -> Self {
        let all = [&["serve", "--listen", "127.0.0.1:0"], arguments].concat();
        Self::run(place.command(&all))
    }

    /// With the JSON API, and a log of what this says.
    pub(crate) fn with_log(place: &Place, log: &str) -> Self {
        let arguments = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--token-env",
            "INBOX_TEST_TOKEN",
        ];
        let mut command = place.command(&arguments);
        command.env("INBOX_LOG", log);
        Self::run(command)
    }

    /// Starts what serves by this command, and waits until it listens.
    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command
            .env("INBOX_TEST_TOKEN", TOKEN)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let heard = Arc::clone(&said);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                heard.lock().unwrap().push(line);
            }
        });
        let mut base = None;
        wait_for("the address", || {
            assert_eq!(child.try_wait().unwrap(), None, "{said:?}");
            let lines = said.lock().unwrap();
            let line = lines
                .iter()
                .find_map(|line| line.strip_prefix("listening on "));
            base = line.map(str::to_owned);
            base.is_some()
        });
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            child,
            base: base.unwrap(),
            client: Client::builder().no_proxy().build().unwrap(),
            said,
        }
    }

    /// With the JSON API for [`TOKEN`].
    pub(crate) fn with_api(place: &Place) -> Self {
        Self::start(place, &["--token-env", "INBOX_TEST_TOKEN"])
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.base);
        self.client.request(method, url).bearer_auth(TOKEN)
    }

    /// Posts JSON, and returns status and answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let request = self.request(Method::POST, path);
        let request = request.header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap())
    }

    /// The same for what must succeed.
    pub(crate) async fn ask(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, &body).await;
        assert!(status.is_success(), "{status} {answer} to {body}");
        answer
    }

    /// Stores a message of handler `h`.
    pub(crate) async fn send(&self, id: &str) -> Value {
        let message = json!({"handler": "h", "id": id, "kind": "k", "payload": {"id": id}});
        self.ask("/v1/messages", message).await
    }

    /// Claims messages of handler `h`, waiting for some.
    pub(crate) async fn claim(&self, limit: u32, wait: u32) -> Vec<Value> {
        let claim = json!({"handlers": ["h"], "limit": limit, "wait_seconds": wait});
        let answer = self.ask("/v1/claim", claim).await;
        answer["messages"].as_array().unwrap().clone()
    }

    pub(crate) async fn settle(&self, message: &Value, outcome: &str) -> Value {
        let settlement = json!({"lease": message["lease"], "outcome": outcome});
        let settle = json!({"settlements": [settlement]});
        self.ask("/v1/settle", settle).await["settlements"][0].take()
    }

    /// What it has said on standard error so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }

    /// How it ended. Its standard error is [`said`](Self::said).
    pub(crate) fn end(mut self) -> Output {
        let stdout = self.child.stdout.take();
        let status = self.child.wait().unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stdout.unwrap(), &mut text).unwrap();
        finish(std::process::Output {
            status,
            stdout: text.into_bytes(),
            stderr: self.said().into_bytes(),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Harmless once it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
