//! Processing: retries, dead letters, interventions, and workers that are killed.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read, Write},
    net::TcpListener,
    process::Stdio,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use inbox::{AfterDead, CancellationToken, Context, Failure, HandlerName, Processor, Router};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{self, Counts, Place, event, events, finish, on_every_store, wait_for};

#[test]
fn a_failing_command_is_retried_and_then_dead() {
    on_every_store(|place| {
        place.file("in.ndjson", event("a", "t", "{}"));
        let output = place
            .inbox(&[
                "run",
                "in.ndjson",
                "--json",
                "--max-attempts",
                "3",
                "--retry-delay",
                "10ms",
                "--",
                "sh",
                "-c",
                "echo attempt $INBOX_ATTEMPT >> log; echo the reason >&2; exit 1",
            ])
            .exits(4);
        assert_eq!(output.json()[0]["dead"], 1);
        assert_eq!(place.read("log"), "attempt 1\nattempt 2\nattempt 3\n");
        place
            .inbox(&["list", "--state", "dead"])
            .exits(0)
            .says("the reason");
        place
            .inbox(&["show", "a"])
            .exits(0)
            .says("dead")
            .says("the reason");

        // Replayed, it starts again from the first attempt.
        place
            .inbox(&["replay", "a"])
            .exits(0)
            .says("1 message replayed");
        place
            .inbox(&[
                "process",
                "--drain",
                "--",
                "sh",
                "-c",
                "echo again $INBOX_ATTEMPT >> log",
            ])
            .exits(0);
        assert!(place.read("log").ends_with("attempt 3\nagain 1\n"));
        assert_eq!(place.stats().processed, 1);

        // It has had its effect by now.
        place
            .inbox(&["replay", "a"])
            .exits(4)
            .complains("a second time");
        place
            .inbox(&["replay", "a", "--state", "dead"])
            .exits(4)
            .complains("it is processed");
        place
            .inbox(&["replay", "a", "--state", "processed"])
            .exits(0)
            .says("1 message replayed");
        assert_eq!(place.stats().pending, 1);
    });
}

#[test]
fn exit_code_65_is_dead_at_once() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    place
        .inbox(&[
            "run",
            "in.ndjson",
            "--",
            "sh",
            "-c",
            "echo x >> log; exit 65",
        ])
        .exits(4);
    assert_eq!(place.read("log"), "x\n");
    assert_eq!(place.stats().dead, 1);
}

#[test]
fn a_lack_of_files_costs_no_attempt() {
    let place = Place::new();
    place.file("in.ndjson", events(60));
    place.inbox(&["ingest", "in.ndjson"]).exits(0);
    // Each command takes three files, so that there are not enough for all at once.
    let mut limited = std::process::Command::new("sh");
    limited
        .arg("-c")
        .arg(format!(
            "ulimit -n 80; {} process --drain --concurrency 60 --max-attempts 1 -- sleep 0.5",
            env!("CARGO_BIN_EXE_inbox")
        ))
        .current_dir(place.path(""));
    let output = limited.output().unwrap();
    finish(output).exits(0).complains("cannot run the command");
    let stats = place.stats();
    assert_eq!((stats.processed, stats.dead), (60, 0));
}

#[test]
fn a_handler_over_its_time_is_ended_and_retried() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    place
        .inbox(&[
            "run",
            "in.ndjson",
            "--timeout",
            "3s",
            "--retry-delay",
            "10ms",
            "--",
            "sh",
            "-c",
            "echo x >> log; [ $INBOX_ATTEMPT = 2 ] || exec sleep 300",
        ])
        .exits(0);
    assert_eq!(place.read("log"), "x\nx\n");
}

#[test]
fn a_time_out_ends_what_the_command_has_started() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    place
        .inbox(&[
            "run",
            "in.ndjson",
            "--timeout",
            "3s",
            "--max-attempts",
            "1",
            "--",
            "sh",
            "-c",
            "sleep 300 & echo $! > pid; sleep 301; true",
        ])
        .exits(4);
    let started = Pid::from_raw(place.read("pid").trim().parse().unwrap());
    wait_for("the end of what it started", || {
        kill(started, None).is_err()
    });
}

#[test]
fn a_command_may_leave_something_running() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    place
        .inbox(&[
            "run",
            "in.ndjson",
            "--",
            "sh",
            "-c",
            "sleep 20 >/dev/null & echo $! > pid; exit 0",
        ])
        .exits(0);
    let left = Pid::from_raw(place.read("pid").trim().parse().unwrap());
    kill(left, Signal::SIGKILL).unwrap();
}

#[test]
fn filters_are_never_ignored() {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], events(2).as_bytes())
        .exits(0);
    for command in [
        &["discard", "e0", "--dry-run"][..],
        &["discard", "e0", "--kind", "other"],
        &["discard", "e0", "--state", "dead"],
        &["replay", "e0", "--error", "x"],
        &["replay", "e0", "--older-than", "1h"],
        // States in which nothing can be discarded or replayed.
        &["discard", "--all", "--state", "processed"],
        &["replay", "--all", "--state", "pending"],
        &["replay", "e0", "e1", "--payload", "-"],
        &["process", "--lease", "0s", "--", "true"],
    ] {
        place.inbox(command).exits(2);
    }
    assert_eq!(place.stats().pending, 2);
}

#[test]
fn a_payload_can_be_edited_on_replay() {
    on_every_store(|place| {
        place.file("in.ndjson", event("a", "t", "{\"amount\":-1}"));
        place
            .inbox(&["run", "in.ndjson", "--", "sh", "-c", "exit 65"])
            .exits(4);
        place.file("fixed.json", "{\"amount\":1}");
        place
            .inbox(&["replay", "a", "--payload", "fixed.json"])
            .exits(0);
        place
            .inbox(&["process", "--drain", "--", "sh", "-c", "cat > got"])
            .exits(0);
        assert_eq!(place.read("got"), "{\"amount\":1}");
    });
}

#[test]
fn interventions_by_filter_and_their_refusals() {
    on_every_store(|place| {
        let input = [
            event("a", "bad", "{}"),
            event("b", "bad", "{}"),
            event("c", "good", "{}"),
        ]
        .concat();
        place.file("in.ndjson", input);
        place
            .inbox(&[
                "run",
                "in.ndjson",
                "--",
                "sh",
                "-c",
                "[ $INBOX_KIND = good ] || exit 65",
            ])
            .exits(4);
        place
            .inbox(&["replay", "--all", "--kind", "bad", "--dry-run"])
            .exits(0)
            .says("2 messages would be replayed");
        place
            .inbox(&["discard", "a"])
            .exits(0)
            .says("1 message discarded");
        place
            .inbox(&["discard", "c"])
            .exits(4)
            .complains("it is processed");
        place
            .inbox(&["replay", "nobody"])
            .exits(4)
            .complains("no such message");
        place
            .inbox(&["replay", "--all"])
            .exits(0)
            .says("1 message replayed");
        // Discarded messages go on refusing duplicates.
        place
            .inbox(&["ingest", "in.ndjson"])
            .exits(0)
            .says("0 accepted, 3 duplicates");
        assert_eq!(
            place.stats(),
            Counts {
                pending: 1,
                leased: 0,
                processed: 1,
                dead: 0,
                discarded: 1
            }
        );
    });
}

#[test]
fn purging_archives_first_and_ends_protection() {
    on_every_store(|place| {
        place.file("in.ndjson", events(5));
        place.inbox(&["run", "in.ndjson", "--", "true"]).exits(0);
        place
            .inbox(&["purge", "--older-than", "1h"])
            .exits(0)
            .says("0 messages purged");
        place
            .inbox(&[
                "purge",
                "--older-than",
                "0s",
                "--slice",
                "2",
                "--archive",
                "/nonexistent/a.ndjson",
            ])
            .exits(1)
            .complains("cannot write the archive");
        assert_eq!(place.stats().processed, 5);
        place
            .inbox(&[
                "purge",
                "--older-than",
                "0s",
                "--slice",
                "2",
                "--archive",
                "old.ndjson",
            ])
            .exits(0)
            .says("5 messages purged");
        let archived = place.read("old.ndjson");
        let mut ids: Vec<String> = archived
            .lines()
            .map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["payload_base64"], "e30=");
                line["id"].as_str().unwrap().to_owned()
            })
            .collect();
        ids.sort();
        assert_eq!(ids, ["e0", "e1", "e2", "e3", "e4"]);
        place
            .inbox(&["ingest", "in.ndjson"])
            .exits(0)
            .says("5 accepted");
    });
}

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

#[test]
fn what_was_processed_long_ago_is_deleted_unless_it_is_kept() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    place.file("more.ndjson", event("b", "t", "{}"));
    let run = |arguments: &[&str]| place.inbox(arguments).exits(0);
    run(&["run", "in.ndjson", "--", "true"]);
    run(&[
        "run",
        "in.ndjson",
        "--keep-processed",
        "forever",
        "--",
        "true",
    ]);
    assert_eq!(place.stats().processed, 1);
    // Of the handler that is worked on, and no other.
    run(&["ingest", "more.ndjson", "--handler", "other"]);
    run(&[
        "process",
        "--drain",
        "--handler",
        "other",
        "--keep-processed",
        "1ms",
        "--",
        "true",
    ]);
    assert_eq!(place.stats().processed, 1);
    run(&[
        "process",
        "--drain",
        "--keep-processed",
        "1ms",
        "--",
        "true",
    ]);
    assert_eq!(place.stats().processed, 0);
}

#[test]
fn draining_says_what_it_waits_for() {
    // What a process says on standard error until `expected` is among it.
    let said = |place: &Place, expected: &str| {
        let mut child = place
            .command(&["process", "--drain", "--", "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let retention = lines.next().unwrap().unwrap();
        assert!(
            retention.contains("are deleted after 30 days"),
            "{retention:?}"
        );
        let line = lines.next().unwrap().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(line.contains(expected), "no {expected:?} in {line:?}");
        assert!(!line.contains("under a lease"), "{line:?}");
    };

    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    let retry = ["--retry-delay", "1h", "--", "false"];
    let mut failing = place
        .command(&["run", "in.ndjson"])
        .args(retry)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the first attempt", || {
        place.path("inbox.db").exists()
            && place
                .inbox(&["show", "a", "--json"])
                .json()
                .first()
                .is_some_and(|message| message["attempts_finished"] == 1)
    });
    failing.kill().unwrap();
    failing.wait().unwrap();
    said(
        &place,
        "waiting for 1 message pending, not due yet or behind another",
    );

    // Due, but behind a dead message that an application has let block its key.
    let place = Place::new();
    let input = [1, 2].map(|n| {
        format!("{{\"specversion\":\"1.0\",\"id\":\"{n}\",\"source\":\"s\",\"type\":\"t\",\"key\":\"k\"}}\n")
    });
    place
        .inbox_with(
            &["ingest", "-", "--ordering-field", "key"],
            input.concat().as_bytes(),
        )
        .exits(0);
    let url = format!("sqlite://{}", place.path("inbox.db").display());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = inbox::connect(&url).await.unwrap();
        let handler = HandlerName::new("default").unwrap();
        let dies = |_: Context| async { Err::<(), _>(Failure::dead("no")) };
        let processor = Processor::builder(Arc::clone(&store))
            .router(Router::new(handler).on("t", dies))
            .after_dead(AfterDead::Block)
            .build()
            .unwrap();
        let shutdown = CancellationToken::new();
        processor.run_until_idle(shutdown).await.unwrap();
        store.close().await;
    });
    said(
        &place,
        "A dead message blocks the ordering key `k` until it is replayed or discarded",
    );
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

#[test]
fn an_endpoint_that_is_not_there_is_retried_without_showing_its_credentials() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    let output = place
        .inbox(&[
            "run",
            "in.ndjson",
            "--max-attempts",
            "1",
            "--post",
            "http://user:secret@127.0.0.1:1/",
        ])
        .exits(4);
    let shown = place.inbox(&["show", "a"]).exits(0);
    assert!(shown.stdout.contains("refused"), "{shown:?}");
    assert!(!format!("{output:?}{shown:?}").contains("secret"));
    place
        .inbox(&["process", "--post", "ftp://x"])
        .exits(2)
        .complains("http or https");
}

/// Twenty kills at arbitrary moments: nothing is lost, nothing is left unfinished.
#[test]
fn workers_killed_at_random_lose_nothing() {
    on_every_store(|place| {
        let number = 60;
        place
            .inbox_with(&["ingest", "-"], events(number).as_bytes())
            .exits(0);
        let process = [
            "process",
            "--drain",
            "--lease",
            "400ms",
            "--max-attempts",
            "100",
            "--retry-delay",
            "1ms",
            "--",
            "sh",
            "-c",
            "sleep 0.02; echo $INBOX_ID >> done",
        ];
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20 {
            let mut child = place.start(&process);
            thread::sleep(Duration::from_millis(random.u64(1..150)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        place.inbox(&process).exits(0);
        assert_eq!(
            place.stats(),
            Counts {
                processed: number as u64,
                ..Counts::default()
            }
        );
        let mut done = support::lines(&place.path("done"));
        done.sort_unstable();
        done.dedup();
        assert_eq!(done.len(), number, "a message was lost");
    });
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing_that_was_stored() {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], events(3).as_bytes())
        .exits(0);
    // A limit on the file's pages is how SQLite itself plays a full disk; a limit on file sizes
    // is what a process can have from outside.
    let large = event("large", "t", &format!("\"{}\"", "x".repeat(4_000_000)));
    place.file("large.ndjson", large);
    let mut limited = std::process::Command::new("sh");
    limited
        .arg("-c")
        .arg(format!(
            "ulimit -f 2000; trap '' XFSZ; timeout 5 {} ingest large.ndjson",
            env!("CARGO_BIN_EXE_inbox")
        ))
        .current_dir(place.path(""));
    let output = finish(limited.output().unwrap());
    assert_ne!(output.code, Some(0), "{output:?}");
    assert_eq!(place.stats().pending, 3);
    place
        .inbox(&["ingest", "large.ndjson"])
        .exits(0)
        .says("1 accepted");
}
