//! Processing by HTTP: what answers mean, and servers that do not answer.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use tokio::net::TcpSocket;

use crate::support::{Place, event, events, finish, signal, wait_for};

#[test]
fn http_answers_decide() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut seen = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = read_request(&mut stream);
            let kind = ["ok", "bad", "later", "stop"]
                .into_iter()
                .find(|kind| request.contains(&format!("inbox-kind: {kind}\r\n")))
                .unwrap();
            let first = request.contains("inbox-attempt: 1\r\n");
            let status = match kind {
                "bad" => "422 Unprocessable Content",
                "later" if first => "503 Service Unavailable",
                _ => "204 No Content",
            };
            write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            .unwrap();
            seen.push(request);
            if kind == "stop" {
                return seen;
            }
        }
        seen
    });
    let place = Place::new();
    let input = [
        event("1", "ok", "{\"a\":1}"),
        event("2", "bad", "{}"),
        event("3", "later", "{}"),
    ]
    .concat();
    place.file("in.ndjson", input);
    let url = format!("http://{address}/hook");
    place
        .inbox(&["run", "in.ndjson", "--post", &url, "--retry-delay", "10ms"])
        .exits(4);
    let counts = place.stats();
    assert_eq!((counts.processed, counts.dead), (2, 1));
    place.file("stop.ndjson", event("4", "stop", "{}"));
    place
        .inbox(&["run", "stop.ndjson", "--post", &url])
        .exits(0);
    let seen = server.join().unwrap();
    assert_eq!(seen.len(), 5);
    let first = seen
        .iter()
        .find(|request| request.contains("inbox-id: 1\r\n"))
        .unwrap();
    assert!(first.starts_with("POST /hook HTTP/1.1\r\n"), "{first}");
    assert!(
        first.contains("idempotency-key: \"default/1\"\r\n"),
        "{first}"
    );
    assert!(
        first.contains("content-type: application/json\r\n"),
        "{first}"
    );
    assert!(first.ends_with("{\"a\":1}"), "{first}");
}

/// Whatever ids may be, ours and the IETF draft's rules of the header hold.
#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_endpoint_takes_every_key() {
    let store = inbox::connect("memory://").await.unwrap();
    store.create().await.unwrap();
    let layer = inbox_http::IdempotencyLayer::new(store, "endpoint").unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let saw = Arc::clone(&seen);
    let handler = move |headers: axum::http::HeaderMap, body: String| async move {
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        saw.lock().unwrap().push((body, key));
    };
    let app = axum::Router::new()
        .route("/hook", axum::routing::post(handler))
        .route_layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let server = axum_server::from_tcp(listener).unwrap();
    tokio::spawn(server.serve(app.into_make_service()));

    // With `default/` in front.
    let (fits, long) = ("f".repeat(247), "l".repeat(254));
    let ids = [
        "a b".to_owned(),
        "é".to_owned(),
        "q\"uote,x".to_owned(),
        "back\\slash".to_owned(),
        fits.clone(),
        long.clone(),
        format!("{long}1"),
        format!("{long}2"),
    ];
    let place = Place::new();
    let event = |id: &String| {
        let event = serde_json::json!({
            "specversion": "1.0", "id": id, "source": "/test", "type": "t", "data": {"id": id},
        });
        format!("{event}\n")
    };
    place.file("in.ndjson", ids.iter().map(event).collect::<String>());
    let run = ["run", "in.ndjson", "--post", &url];
    tokio::task::block_in_place(|| place.inbox(&run).exits(0));
    assert_eq!(place.stats().processed, ids.len() as u64);

    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let key_of = |id: &str| -> &str {
        let body = serde_json::json!({"id": id}).to_string();
        &seen.iter().find(|(of, _)| *of == body).unwrap().1
    };
    assert_eq!(key_of("a b"), r#""default/a b""#);
    assert_eq!(key_of("q\"uote,x"), r#""default/q\"uote,x""#);
    assert_eq!(key_of("back\\slash"), r#""default/back\\slash""#);
    assert_eq!(key_of(&fits), format!("\"default/{fits}\""));
    assert!(key_of("é").starts_with("\"sha256:"));
    let keys: BTreeSet<_> = seen.iter().map(|(_, key)| key).collect();
    assert_eq!(keys.len(), ids.len());
}

#[test]
fn a_server_that_never_answers_does_not_hold_a_slot_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    // Connections are taken by the system, and nothing is ever read from them.
    let place = Place::new();
    place.file("in.ndjson", events(6));
    place
        .inbox(&[
            "run",
            "in.ndjson",
            "--timeout",
            "1s",
            "--max-attempts",
            "1",
            "--post",
            &url,
        ])
        .exits(4);
    assert_eq!(place.stats().dead, 6);
    // Without --timeout there is a limit, too.
    for command in ["run", "process"] {
        place
            .inbox(&[command, "--help"])
            .exits(0)
            .says("30s with --post, 1h with a command");
    }
}

/// One request, headers and body.
fn read_request(stream: &mut impl Read) -> String {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        request.push(byte[0]);
    }
    let head = String::from_utf8(request).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}

/// The URL of a proxy that answers whatever it is asked, with success.
pub(crate) fn proxy() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            read_request(&mut stream);
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

/// On this machine it is not the proxy's to answer; elsewhere it is.
#[test]
fn what_is_posted_to_this_machine_goes_by_no_proxy() {
    let place = Place::new();
    let proxy = proxy();
    // Nothing listens there.
    for url in [
        "http://127.0.0.1:1/",
        "http://localhost:1/",
        "http://[::1]:1/",
    ] {
        place
            .inbox_with(&["ingest", "-"], event(url, "t", "{}").as_bytes())
            .exits(0);
        let mut command = place.command(&["process", "--post", url]);
        command
            .env("http_proxy", &proxy)
            .stderr(std::fs::File::create(place.path("stderr")).unwrap());
        let mut child = command.spawn().unwrap();
        wait_for("the words", || {
            place.read("stderr").contains("cannot reach the server")
        });
        // In order, or the lease would keep the message.
        signal(&child, Signal::SIGTERM);
        child.wait().unwrap();
    }
    assert_eq!(place.stats().processed, 0);
    let elsewhere = ["process", "--drain", "--post", "http://inbox.invalid/"];
    let output = place.command(&elsewhere).env("http_proxy", &proxy).output();
    finish(output.unwrap()).exits(0);
    assert_eq!(place.stats().processed, 3);
}

/// An answer that says by a date when to come again.
#[test]
fn a_server_may_ask_for_a_retry_by_date() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = read_request(&mut stream);
            let hours = |hours: u64| Duration::from_secs(hours * 3600);
            // The server's clock is a day ahead.
            let now = std::time::SystemTime::now() + hours(24);
            let at = match request.contains("inbox-id: past\r\n") {
                true => "Sun, 06 Nov 1994 08:49:37 GMT".to_owned(),
                false => httpdate::fmt_http_date(now + hours(5)),
            };
            let now = httpdate::fmt_http_date(now);
            let answer = format!(
                "HTTP/1.1 503 Service Unavailable\r\nretry-after: {at}\r\ndate: {now}\r\n\
                 content-length: 0\r\nconnection: close\r\n\r\n"
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let place = Place::new();
    let input = [event("future", "t", "{}"), event("past", "t", "{}")].concat();
    place.file("in.ndjson", input);
    place.inbox(&["ingest", "in.ndjson"]).exits(0);
    let process = ["process", "--max-attempts", "2", "--post", &url];
    let mut child = place.start(&process);
    let state = |id: &str| place.inbox(&["show", id, "--json"]).exits(0).json()[0].clone();
    // What is past asks for nothing: it is tried again as the policy says, and dead then.
    wait_for("both", || {
        state("past")["state"] == "dead" && state("future")["attempts_finished"] == 1
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let future = state("future");
    let due = inbox_dashboard::text::parse_time(future["due_at"].as_str().unwrap()).unwrap();
    let wait = due.duration_since(std::time::SystemTime::now()).unwrap();
    // It is jittered.
    assert!((4 * 3600..=6 * 3600).contains(&wait.as_secs()), "{wait:?}");
}

/// All attempts would be used up in seconds.
#[test]
fn a_server_cannot_ask_for_an_earlier_retry_than_the_usual_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            read_request(&mut stream);
            let answer = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
                          content-length: 0\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], event("a", "t", "{}").as_bytes())
        .exits(0);
    let mut child = place.start(&["process", "--retry-delay", "1h", "--post", &url]);
    let record = || place.inbox(&["show", "a", "--json"]).exits(0).json()[0].clone();
    wait_for("an attempt", || record()["attempts_finished"] == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let due = inbox_dashboard::text::parse_time(record()["due_at"].as_str().unwrap()).unwrap();
    let wait = due.duration_since(std::time::SystemTime::now()).unwrap();
    // Half of it is at random.
    assert!(wait.as_secs() > 20 * 60, "{wait:?}");
}

/// Defect: two minutes without it made all that was due dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_for_a_while_costs_no_attempt() {
    let place = Place::new();
    place.file("in.ndjson", events(5));
    // Nobody listens there at first, and nobody else may.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/", socket.local_addr().unwrap());
    let run = ["run", "in.ndjson", "--max-attempts", "1", "--post", &url];
    let mut command = place.command(&run);
    command
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(place.path("stderr")).unwrap());
    let child = command.spawn().unwrap();
    tokio::task::block_in_place(|| {
        wait_for("the words", || {
            place.read("stderr").contains("cannot reach the server")
        });
    });
    let listener = socket.listen(128).unwrap().into_std().unwrap();
    let server = axum_server::from_tcp(listener).unwrap();
    let app = axum::Router::new().route("/", axum::routing::post(async || ()));
    tokio::spawn(server.serve(app.into_make_service()));
    let ended = tokio::task::block_in_place(|| child.wait_with_output().unwrap());
    finish(ended).exits(0);
    let listed = place.inbox(&["list", "--json"]).exits(0).json();
    assert_eq!(listed.len(), 5);
    for record in listed {
        assert_eq!(record["state"], "processed", "{record}");
        assert_eq!(record["attempts_started"], 1, "{record}");
    }
}

/// As a host that is down.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_takes_too_long_costs_no_attempt() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    // Once its queue is full, the system answers no further connection.
    let patience = Duration::from_millis(200);
    let queue: Vec<_> = std::iter::repeat_with(|| TcpStream::connect_timeout(&address, patience))
        .take_while(Result::is_ok)
        .collect();
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    place.inbox(&["ingest", "in.ndjson"]).exits(0);
    let url = format!("http://{address}/");
    let process = ["process", "--max-attempts", "1", "--timeout", "1s"];
    let mut child = place.start(&[&process[..], &["--post", &url]].concat());
    let record = || place.inbox(&["show", "a", "--json"]).exits(0).json()[0].clone();
    tokio::task::block_in_place(|| {
        wait_for("a failure", || record()["last_error"].is_string());
    });
    child.kill().unwrap();
    child.wait().unwrap();
    drop(queue);
    assert_eq!(record()["state"], "pending");
    assert_eq!(record()["attempts_started"], 0);
}

/// The request may have had its effect.
#[test]
fn an_answer_that_breaks_off_is_an_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            read_request(&mut stream.unwrap());
        }
    });
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    let run = ["run", "in.ndjson", "--max-attempts", "1", "--post", &url];
    place.inbox(&run).exits(4);
    assert_eq!(place.stats().dead, 1);
}

#[test]
fn work_ends_when_its_server_can_never_be_reached_without_showing_its_credentials() {
    let places = [Place::new(), Place::new()];
    let urls = [
        ("http://user:secret@127.0.0.1:1/", "refused"),
        ("http://user:secret@inbox.invalid/", "dns error"),
    ];
    // Both at once, as each takes some time.
    let pairs = places.iter().zip(urls);
    let children: Vec<_> = pairs
        .map(|(place, (url, reason))| {
            place.file("in.ndjson", event("a", "t", "{}"));
            (place.start(&["run", "in.ndjson", "--post", url]), reason)
        })
        .collect();
    for (place, (child, reason)) in places.iter().zip(children) {
        let output = finish(child.wait_with_output().unwrap())
            .exits(1)
            .complains("could not be reached 10 times in a row")
            .complains(reason);
        let shown = place.inbox(&["show", "a"]).exits(0).says(reason);
        assert!(!format!("{output:?}{shown:?}").contains("secret"));
        let record = place.inbox(&["show", "a", "--json"]).exits(0).json();
        assert_eq!(record[0]["state"], "pending");
        assert_eq!(record[0]["attempts_started"], 0);
    }
    places[0]
        .inbox(&["process", "--post", "ftp://x"])
        .exits(2)
        .complains("http or https");
}
