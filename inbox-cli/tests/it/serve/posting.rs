//! Handlers that are HTTP endpoints, and a store that goes away meanwhile.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::json;
use tokio::net::TcpSocket;

use crate::{
    serve::service::{Service, on_both_stores},
    support::{Place, wait_for},
};

/// What an endpoint has seen: the path, some headers, and the body.
type Seen = Arc<Mutex<Vec<(String, HeaderMap, String)>>>;

/// An endpoint that answers as the kind of the message says, and its URL.
fn endpoint() -> (String, Seen) {
    let seen = Seen::default();
    let saw = Arc::clone(&seen);
    let handler = async move |Path(path): Path<String>, headers: HeaderMap, body: String| {
        let status = match headers["inbox-kind"].to_str().unwrap() {
            "bad" => StatusCode::UNPROCESSABLE_ENTITY,
            "later" if headers["inbox-attempt"] == "1" => StatusCode::SERVICE_UNAVAILABLE,
            "moved" => StatusCode::TEMPORARY_REDIRECT,
            _ => StatusCode::NO_CONTENT,
        };
        saw.lock().unwrap().push((path, headers, body));
        (status, [("location", "/elsewhere"), ("retry-after", "0")])
    };
    let app = Router::new().route("/{path}", post(handler));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let server = axum_server::from_tcp(listener).unwrap();
    tokio::spawn(server.serve(app.into_make_service()));
    (address.to_string(), seen)
}

/// The kinds that were seen, in the order of their ids.
fn seen_of(seen: &Seen, id: &str) -> Vec<(String, String)> {
    let seen = seen.lock().unwrap();
    let of = seen
        .iter()
        .filter(|(_, headers, _)| headers["inbox-id"] == id);
    of.map(|(path, _, body)| (path.clone(), body.clone()))
        .collect()
}

#[test]
fn messages_are_posted_and_the_answer_decides() {
    on_both_stores(async |place| {
        let (address, seen) = endpoint();
        place.file(
            "inbox.toml",
            format!(
                "[api]\ntokens = [{{ env = \"INBOX_TEST_TOKEN\" }}]\n\
                 [[handlers]]\nname = \"h\"\npost = \"http://user:hunter2@{address}/hook\"\n\
                 max_attempts = 2\nretry_delay = \"10ms\"\n\
                 [[handlers]]\nname = \"other\"\npost = \"http://{address}/other\""
            ),
        );
        let service = Service::start(place, &["--config", "inbox.toml"]);
        let send = async |handler: &str, id: &str, kind: &str| {
            let message =
                json!({"handler": handler, "id": id, "kind": kind, "payload": {"id": id}});
            service.ask("/v1/messages", message).await
        };
        for id in ["1", "1"] {
            send("h", id, "ok").await;
        }
        send("h", "2", "bad").await;
        send("h", "3", "later").await;
        send("h", "4", "moved").await;
        send("other", "5", "ok").await;
        wait_for("the handlers", || {
            let listed = place.inbox(&["list", "--json"]).json();
            let is_over = |record: &serde_json::Value| {
                ["processed", "dead"].contains(&record["state"].as_str().unwrap())
            };
            listed.len() == 5 && listed.iter().all(is_over)
        });
        let times = |times: usize, path: &str, id: &str| {
            vec![(path.to_owned(), format!("{{\"id\":\"{id}\"}}")); times]
        };
        assert_eq!(seen_of(&seen, "1"), times(1, "hook", "1"));
        assert_eq!(seen_of(&seen, "2"), times(1, "hook", "2"));
        assert_eq!(seen_of(&seen, "3"), times(2, "hook", "3"));
        // A redirection is not followed, and not the message's fault.
        assert_eq!(seen_of(&seen, "4"), times(2, "hook", "4"));
        assert_eq!(seen_of(&seen, "5"), times(1, "other", "5"));
        let all: Vec<_> = seen
            .lock()
            .unwrap()
            .iter()
            .map(|one| one.1.clone())
            .collect();
        let first = all
            .iter()
            .find(|headers| headers["idempotency-key"] == "\"h/1\"");
        let headers = first.expect("none of h/1");
        assert_eq!(headers["content-type"], "application/json");
        assert!(
            headers["authorization"]
                .to_str()
                .unwrap()
                .starts_with("Basic ")
        );
        let dead = place.inbox(&["dead", "--handler", "h"]).exits(0);
        for why in ["Unprocessable Entity", "Temporary Redirect"] {
            assert!(dead.stdout.contains(why), "{dead:?}");
        }
        assert!(!format!("{dead:?} {}", service.said()).contains("hunter2"));
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_needs_no_file_and_may_be_away() {
    let place = Place::new();
    // Nobody listens there at first, and nobody else may.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let url = format!("http://{address}/hook");
    let arguments = [
        "--token-env",
        "INBOX_TEST_TOKEN",
        "--handler",
        "h",
        "--post",
        &url,
    ];
    let service = Service::start(&place, &arguments);
    service.send("1").await;
    let is_refused = || {
        let listed = place.inbox(&["list", "--json"]).json();
        let error = listed[0]["last_error"].as_str().unwrap_or_default();
        error.contains("refused")
    };
    tokio::task::block_in_place(|| wait_for("a failure", is_refused));
    let (count, counted) = (Arc::new(Mutex::new(0)), async || StatusCode::OK);
    let counting = Arc::clone(&count);
    let handler = async move || {
        *counting.lock().unwrap() += 1;
        counted().await
    };
    let listener = socket.listen(128).unwrap().into_std().unwrap();
    let server = axum_server::from_tcp(listener).unwrap();
    let app = Router::new().route("/hook", post(handler));
    tokio::spawn(server.serve(app.into_make_service()));
    let record = || place.inbox(&["list", "--json"]).json()[0].clone();
    let is_done = || record()["state"] == "processed";
    tokio::task::block_in_place(|| wait_for("the message", is_done));
    // What was not sent costs no attempt.
    assert_eq!(record()["attempts_started"], 1);
    assert_eq!(*count.lock().unwrap(), 1);
}
