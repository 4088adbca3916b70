//! A server of PostgreSQL that goes away under a service, and comes back.

use hmac::{Hmac, KeyInit as _, Mac as _};
use nix::sys::signal::Signal;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use sha2::Sha256;
use test_servers::{Kind, Server, require_or_skip};

use crate::{
    serve::service::{Service, TOKEN},
    support::{Place, lines, signal, wait_for},
};

fn own_server() -> Option<Server> {
    let server = require_or_skip(Kind::Postgres).unwrap_or_else(|error| panic!("{error}"));
    server.filter(|server| !server.is_shared())
}

async fn post(service: &Service, path: &str, body: &Value) -> Response {
    let request = service.request(Method::POST, path);
    let request = request.header("content-type", "application/json");
    request.body(body.to_string()).send().await.unwrap()
}

/// As GitHub sends it. Any secret will do, and so this is the token.
async fn deliver(service: &Service, id: &str) -> Response {
    let body = format!("{{\"id\":\"{id}\"}}");
    let mac = Hmac::<Sha256>::new_from_slice(TOKEN.as_bytes()).unwrap();
    let mac = mac.chain_update(&body).finalize().into_bytes();
    let request = service
        .request(Method::POST, "/github")
        .header("content-type", "application/json")
        .header("x-github-delivery", id)
        .header("x-github-event", "push")
        .header(
            "x-hub-signature-256",
            format!("sha256={}", hex::encode(mac)),
        );
    request.body(body).send().await.unwrap()
}

async fn is_ready(service: &Service) -> bool {
    let asked = service.request(Method::GET, "/readyz").send().await;
    asked.unwrap().status() == 200
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_so().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let limit = std::time::Duration::from_secs(60);
    let asked = tokio::time::timeout(limit, asking).await;
    assert!(asked.is_ok(), "waited in vain for {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_while_postgresql_is_away_is_put_off_and_nothing_is_lost() {
    let Some(mut server) = tokio::task::block_in_place(own_server) else {
        return;
    };
    let place = Place::at(server.url());
    place.inbox(&["schema", "create"]).exits(0);
    // Short, to notice the outage soon; setting up may take longer.
    let place = place.with("acquire_timeout_ms=3000&operation_timeout_ms=5000");
    place.file(
        "inbox.toml",
        "[api]\ntokens = [{ env = \"INBOX_TEST_TOKEN\" }]\n\
         [[webhooks]]\npath = \"/github\"\nprovider = \"github\"\n\
         secrets = [{ env = \"INBOX_TEST_TOKEN\" }]\nhandlers = [\"h\"]\n\
         [[handlers]]\nname = \"h\"\ncommand = [\"sh\", \"-c\", \"echo $INBOX_ID >> done\"]",
    );
    let service = Service::start(&place, &["--config", "inbox.toml"]);
    let message = |id: &str| json!({"handler": "h", "id": id, "kind": "k"});
    for (round, harm, end) in [
        (
            0,
            Server::kill as fn(&mut Server) -> _,
            Server::start as fn(&mut Server) -> _,
        ),
        (1, Server::pause, Server::resume),
    ] {
        let id = |what: &str| format!("{what}-{round}");
        assert_eq!(
            post(&service, "/v1/messages", &message(&id("a")))
                .await
                .status(),
            201
        );
        assert_eq!(deliver(&service, &id("b")).await.status(), 202);
        let handled = || lines(&place.path("done")).len();
        tokio::task::block_in_place(|| wait_for("the handlers", || handled() == 4 * round + 2));
        let claim = json!({"handlers": ["other"]});
        assert_eq!(post(&service, "/v1/claim", &claim).await.status(), 200);

        tokio::task::block_in_place(|| harm(&mut server).unwrap());
        until("not being ready", async || !is_ready(&service).await).await;
        let (c, d) = (message(&id("c")), id("d"));
        let mut answers = vec![
            post(&service, "/v1/messages", &c).await,
            post(&service, "/v1/claim", &claim).await,
        ];
        if round == 0 {
            // Waits longer for the store than others do.
            answers.push(deliver(&service, &d).await);
        }
        for answer in answers {
            assert_eq!(answer.status(), 503, "{answer:?}");
            assert!(answer.headers().contains_key("retry-after"), "{answer:?}");
            let content_type = &answer.headers()["content-type"];
            assert_eq!(content_type, "application/problem+json");
        }
        let health = service.request(Method::GET, "/healthz").send().await;
        assert_eq!(health.unwrap().status(), 200);

        tokio::task::block_in_place(|| end(&mut server).unwrap());
        until("being ready", async || is_ready(&service).await).await;
        // As their senders do. What was answered 503 may have been stored.
        until("the message", async || {
            post(&service, "/v1/messages", &message(&id("c")))
                .await
                .status()
                .is_success()
        })
        .await;
        until("the webhook", async || {
            deliver(&service, &id("d")).await.status().is_success()
        })
        .await;
        tokio::task::block_in_place(|| wait_for("the handlers", || handled() == 4 * round + 4));
    }
    signal(&service.child, Signal::SIGTERM);
    let said = service.said();
    service.end().exits(0).says("8 processed");
    let mut done = lines(&place.path("done"));
    done.sort();
    let all = ["a-0", "a-1", "b-0", "b-1", "c-0", "c-1", "d-0", "d-1"];
    assert_eq!(done, all);
    assert!(!said.contains(TOKEN), "{said}");
}
