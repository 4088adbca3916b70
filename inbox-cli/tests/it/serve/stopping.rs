//! How a service ends, asked to or not.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::json;

use crate::{
    serve::service::{Service, TOKEN, on_both_stores},
    support::{Place, lines, signal, wait_for},
};

#[test]
fn sigterm_lets_handlers_finish_and_answers_those_who_wait() {
    on_both_stores(async |place| {
        let handler = "echo x >> started; until [ -e go ]; do sleep 0.05; done; echo x >> done";
        let arguments = [
            "--token-env",
            "INBOX_TEST_TOKEN",
            "--handler",
            "h",
            "--",
            "sh",
            "-c",
            handler,
        ];
        let service = Arc::new(Service::start(place, &arguments));
        for id in 0..20 {
            service.send(&id.to_string()).await;
        }
        wait_for("handlers", || lines(&place.path("started")).len() == 4);
        let waiting = {
            let service = Arc::clone(&service);
            let claim = json!({"handlers": ["other"], "wait_seconds": 60});
            tokio::spawn(async move { service.ask("/v1/claim", claim).await })
        };
        // It is under way before the end is asked for.
        tokio::time::sleep(Duration::from_millis(200)).await;
        signal(&service.child, Signal::SIGTERM);
        // At once, though handlers go on.
        assert_eq!(waiting.await.unwrap(), json!({"messages": []}));
        assert_eq!(lines(&place.path("done")).len(), 0);
        place.file("go", "");
        let service = Arc::into_inner(service).unwrap();
        let output = service.end().exits(0).says("21 requests; 4 processed");
        assert_eq!(output.stdout.lines().count(), 1, "{output:?}");
        assert_eq!(lines(&place.path("done")).len(), 4);
        let listed = place
            .inbox(&["list", "--json", "--state", "pending"])
            .json();
        assert_eq!(listed.len(), 16);
        assert!(listed.iter().all(|record| record["attempts_started"] == 0));
    });
}

/// A handler that goes on until there is a file `go`.
const SLOW: [&str; 8] = [
    "--token-env",
    "INBOX_TEST_TOKEN",
    "--handler",
    "h",
    "--",
    "sh",
    "-c",
    "echo x >> started; until [ -e go ]; do sleep 0.05; done",
];

#[test]
fn while_its_handlers_go_on_it_says_that_it_ends() {
    on_both_stores(async |place| {
        let service = Service::start(place, &SLOW);
        service.send("1").await;
        wait_for("the handler", || place.path("started").exists());
        signal(&service.child, Signal::SIGTERM);
        let health = async |path| {
            let response = service.request(Method::GET, path).send().await;
            response.unwrap().status().as_u16()
        };
        while health("/readyz").await == 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(health("/readyz").await, 503);
        assert_eq!(health("/healthz").await, 200);
        // What is sent is stored, for those who come after it.
        let other = json!({"handler": "other", "id": "1", "kind": "k"});
        assert_eq!(
            service.ask("/v1/messages", other).await["status"],
            "accepted"
        );
        let claim = json!({"handlers": ["other"], "wait_seconds": 60});
        let claimed = service.ask("/v1/claim", claim).await;
        assert_eq!(claimed, json!({"messages": []}));
        place.file("go", "");
        service.end().exits(0).says("1 processed");
    });
}

#[tokio::test]
async fn handlers_and_requests_share_the_grace() {
    let place = Place::new();
    place.file(
        "inbox.toml",
        "grace = \"1s\"\n[api]\ntokens = [{ env = \"INBOX_TEST_TOKEN\" }]\n\
         [[handlers]]\nname = \"h\"\ncommand = [\"sh\", \"-c\", \"echo > started; sleep 60\"]",
    );
    let service = Service::start(&place, &["--config", "inbox.toml"]);
    service.send("1").await;
    wait_for("the handler", || place.path("started").exists());
    // A request that never comes to its end.
    let address = service.base.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!(
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{"
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let told = std::time::Instant::now();
    signal(&service.child, Signal::SIGTERM);
    let output = service.end();
    let took = told.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?} {output:?}");
    let listed = place.inbox(&["list", "--json"]).json();
    assert_ne!(listed[0]["state"], "processed");
}

#[tokio::test]
async fn it_is_alive_and_ready() {
    let place = Place::new();
    let service = Service::with_api(&place);
    for (path, text) in [("/healthz", "alive\n"), ("/readyz", "ready\n")] {
        let response = service.request(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.text().await.unwrap(), text);
    }
    signal(&service.child, Signal::SIGINT);
    service.end().exits(130).says("0 requests; 0 processed");
}

#[test]
fn nothing_is_lost_when_it_is_killed_amid_traffic() {
    const MESSAGES: usize = 300;
    on_both_stores(async |place| {
        let mut service = Service::with_api(place);
        let base = Arc::new(Mutex::new(service.base.clone()));
        // Each goes on until it has its answer, whatever becomes of the service.
        let producing = tokio::spawn({
            let client = Client::new(&base);
            async move {
                for id in 0..MESSAGES {
                    client.send_until_stored(id).await;
                }
            }
        });
        let working: Vec<_> = (0..4)
            .map(|_| tokio::spawn(Client::new(&base).work()))
            .collect();
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            service.child.kill().unwrap();
            service.child.wait().unwrap();
            service = Service::with_api(place);
            service.base.clone_into(&mut base.lock().unwrap());
        }
        producing.await.unwrap();
        let mut done = std::collections::BTreeSet::new();
        for worker in working {
            done.extend(worker.await.unwrap());
        }
        assert_eq!(done.len(), MESSAGES);
        assert_eq!(place.stats().processed, MESSAGES as u64);
    });
}

/// A program that outlives the service.
#[derive(Clone)]
struct Client {
    /// Another one after each start.
    base: Arc<Mutex<String>>,
    http: reqwest::Client,
}

impl Client {
    fn new(base: &Arc<Mutex<String>>) -> Self {
        Self {
            base: Arc::clone(base),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
        }
    }

    /// The answer, if there is one.
    async fn post(&self, path: &str, body: &serde_json::Value) -> Option<serde_json::Value> {
        let url = format!("{}{path}", self.base.lock().unwrap());
        let request = self.http.post(url);
        let request = request.bearer_auth(super::service::TOKEN);
        let request = request.header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await.ok()?;
        let is_success = response.status().is_success();
        let text = response.text().await.ok()?;
        is_success.then(|| serde_json::from_str(&text).ok())?
    }

    async fn send_until_stored(&self, id: usize) {
        let message = json!({"handler": "h", "id": id.to_string(), "kind": "k"});
        while self.post("/v1/messages", &message).await.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Works until nothing comes any more; the ids whose settlement was answered as done.
    async fn work(self) -> Vec<String> {
        let claim = json!({"handlers": ["h"], "limit": 5, "lease_seconds": 1, "wait_seconds": 5});
        let mut done = Vec::new();
        loop {
            let Some(claimed) = self.post("/v1/claim", &claim).await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let messages = claimed["messages"].as_array().unwrap().clone();
            if messages.is_empty() {
                return done;
            }
            for message in messages {
                let settlement = json!({"lease": message["lease"], "outcome": "processed"});
                let settle = json!({"settlements": [settlement]});
                let answer = loop {
                    match self.post("/v1/settle", &settle).await {
                        Some(answer) => break answer,
                        None => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                };
                if answer["settlements"][0]["status"] == "done" {
                    done.push(message["id"].as_str().unwrap().to_owned());
                }
            }
        }
    }
}
