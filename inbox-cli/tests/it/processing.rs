//! Processing by a command: retries, dead letters, limits, and workers that are killed.

use std::{
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt,
    process::Stdio,
    sync::Arc,
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
fn processing_for_a_handler_without_messages_says_so() {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], event("1", "k", "{}").as_bytes())
        .exits(0);
    let drain = |handler| {
        let process = ["process", "--drain", "--handler", handler, "--", "true"];
        place.inbox(&process).exits(0).stderr
    };
    let said = "no messages of `deflaut` are known; there are some of default";
    assert!(drain("deflaut").contains(said));
    assert!(!drain("default").contains("no messages"));
    let process = ["process", "--handler", "deflaut", "--", "true"];
    let mut command = place.command(&process);
    command.stderr(std::fs::File::create(place.path("stderr")).unwrap());
    let mut child = command.spawn().unwrap();
    wait_for("the words", || place.read("stderr").contains(said));
    child.kill().unwrap();
    child.wait().unwrap();
}

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
            "ulimit -n 80; {} process --drain --concurrency 60 --max-attempts 1 -- \
             sh -c 'until [ -e go ]; do sleep 0.05; done'",
            env!("CARGO_BIN_EXE_inbox")
        ))
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(place.path("stderr")).unwrap());
    let child = limited.spawn().unwrap();
    wait_for("the words", || {
        place.read("stderr").contains("cannot run the command")
    });
    place.file("go", "");
    finish(child.wait_with_output().unwrap()).exits(0);
    let stats = place.stats();
    assert_eq!((stats.processed, stats.dead), (60, 0));
}

/// Writes an executable file.
fn program(place: &Place, name: &str, script: &str) {
    let path = place.file(name, script);
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// As while it is being replaced.
#[test]
fn a_command_that_is_not_there_for_a_while_costs_no_attempt() {
    let place = Place::new();
    program(&place, "handler", "#!/bin/sh\nrm \"$0\"\n");
    place
        .inbox_with(&["ingest", "-"], events(5).as_bytes())
        .exits(0);
    let mut command = place.command(&["process", "--drain", "--max-attempts", "1"]);
    command
        .args(["--concurrency", "1", "--", "./handler"])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(place.path("stderr")).unwrap());
    let child = command.spawn().unwrap();
    wait_for("the words", || {
        place.read("stderr").contains("cannot run the command")
    });
    program(&place, "next", "#!/bin/sh\n");
    std::fs::rename(place.path("next"), place.path("handler")).unwrap();
    finish(child.wait_with_output().unwrap()).exits(0);
    let listed = place.inbox(&["list", "--json"]).exits(0).json();
    assert_eq!(listed.len(), 5);
    for record in listed {
        assert_eq!(record["state"], "processed", "{record}");
        assert_eq!(record["attempts_started"], 1, "{record}");
    }
}

/// Defect: work that has an end waited for ever. The command is found, but its interpreter is not, as with the line ends
/// of another system.
#[test]
fn work_ends_when_its_command_can_never_be_started() {
    let places = [Place::new(), Place::new()];
    let commands = [&["run", "in.ndjson"][..], &["process", "--drain"]];
    let handler = ["--max-attempts", "1", "--", "./handler"];
    for place in &places {
        program(place, "handler", "#!/bin/sh\r\nexit 0\r\n");
        place.file("in.ndjson", events(3));
    }
    places[1].inbox(&["ingest", "in.ndjson"]).exits(0);
    // Both at once, as each takes some time.
    let pairs = places.iter().zip(commands);
    let children: Vec<_> = pairs
        .map(|(place, command)| place.start(&[command, &handler].concat()))
        .collect();
    for (place, child) in places.iter().zip(children) {
        finish(child.wait_with_output().unwrap())
            .exits(1)
            .complains("could not be started 10 times in a row: No such file or directory");
        let listed = place.inbox(&["list", "--json"]).exits(0).json();
        assert_eq!(listed.len(), 3);
        for record in listed {
            assert_eq!(record["state"], "pending", "{record}");
            assert_eq!(record["attempts_started"], 0, "{record}");
        }
        program(place, "handler", "#!/bin/sh\n");
        let drain = [&["process", "--drain"][..], &handler].concat();
        place.inbox(&drain).exits(0);
        assert_eq!(place.stats().processed, 3);
    }
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

/// What it has left running holds its standard error open.
#[test]
fn what_a_command_leaves_running_neither_hides_its_error_nor_holds_the_next_up() {
    let place = Place::new();
    let leaving = |end: &str| format!("echo oops >&2; sleep 60 & echo $! >> pids; exit {end}");
    place.file("in.ndjson", event("bad", "t", "{}"));
    let run = ["run", "in.ndjson", "--max-attempts", "1", "--"];
    let command = ["sh", "-c", &leaving("3")];
    place.inbox(&[&run[..], &command].concat()).exits(4);
    let listed = place.inbox(&["list", "--json"]).exits(0).json();
    assert_eq!(listed[0]["last_error"], "exit status: 3: oops");

    place.file("in.ndjson", events(20));
    let run = ["run", "in.ndjson", "--concurrency", "1", "--"];
    let command = ["sh", "-c", &leaving("0")];
    let began = std::time::Instant::now();
    place.inbox(&[&run[..], &command].concat()).exits(0);
    let took = began.elapsed();
    for pid in support::lines(&place.path("pids")) {
        kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    }
    // If each were waited for, it would be a second for each.
    assert!(took < Duration::from_secs(20), "{took:?}");
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
    ])
    .complains("less than the longest retry window");
    assert_eq!(place.stats().processed, 0);
    let keep = ["--keep-processed", "1ms", "--", "true"];
    run(&[&["run", "in.ndjson"], &keep[..]].concat())
        .complains("less than the longest retry window");
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

    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    place.inbox(&["ingest", "in.ndjson"]).exits(0);
    place.inbox(&["pause", "default"]).exits(0);
    said(&place, "paused until `inbox resume default`");
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
