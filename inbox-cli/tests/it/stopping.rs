//! Ctrl-C and SIGTERM: what an end that was asked for finishes, hands back and says.

use std::{
    io::{PipeReader, PipeWriter, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{
    Place, closed_pipe, complaints, event, events, finish, on_every_store, signal, wait_for,
};

#[test]
fn an_interrupt_finishes_what_runs_and_hands_the_rest_back() {
    on_every_store(|place| {
        place
            .inbox_with(&["ingest", "-"], events(20).as_bytes())
            .exits(0);
        let child = place.start(&[
            "process",
            "--concurrency",
            "2",
            "--",
            "sh",
            "-c",
            "echo started >> started; sleep 0.5; echo done >> done",
        ]);
        wait_for("two handlers to start", || {
            place.read("started").lines().count() >= 2
        });
        signal(&child, Signal::SIGINT);
        let output = finish(child.wait_with_output().unwrap()).exits(130);
        assert!(output.stderr.contains("finishing"), "{output:?}");
        let (started, done) = (place.read("started"), place.read("done"));
        assert_eq!(started.lines().count(), done.lines().count());
        let counts = place.stats();
        assert_eq!(counts.processed, done.lines().count() as u64);
        assert_eq!(counts.pending, 20 - counts.processed, "{counts:?}");
        assert_eq!(counts.leased, 0);
        // Handed back means not counted.
        let listed = place
            .inbox(&["list", "--json", "--state", "pending"])
            .json();
        assert!(
            listed.iter().all(|record| record["attempts_started"] == 0),
            "{listed:?}"
        );
    });
}

#[test]
fn an_interrupt_while_reading_standard_input_ends_the_command() {
    let place = Place::new();
    let mut child = place
        .command(&["ingest", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(events(3).as_bytes()).unwrap();
    wait_for("three messages", || {
        place.path("inbox.db").exists()
            && place
                .inbox(&["stats", "--json"])
                .json()
                .first()
                .is_some_and(|s| s["pending"] == 3)
    });
    signal(&child, Signal::SIGINT);
    finish(child.wait_with_output().unwrap())
        .exits(130)
        .says("3 accepted");
    drop(stdin);
}

#[test]
fn an_import_that_is_interrupted_says_what_stays_paused() {
    let place = Place::new();
    place.inbox(&["schema", "create"]).exits(0);
    let import = ["import-keys", "-", "--handler", "billing"];
    let mut child = place
        .command(&import)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // As many as are recorded at a time.
    let ids: String = (1..=500).map(|id| format!("{id}\n")).collect();
    stdin.write_all(ids.as_bytes()).unwrap();
    wait_for("the first ids", || place.stats().processed == 500);
    signal(&child, Signal::SIGINT);
    finish(child.wait_with_output().unwrap())
        .exits(130)
        .says("500 accepted")
        .complains("its handlers stay paused");
    drop(stdin);
    let is_paused = || place.inbox(&["stats", "--json"]).exits(0).json()[0]["paused"].clone();
    assert_eq!(is_paused(), true);
    // Nor does a line that cannot be an id let them go.
    let strict = [&import[..], &["--strict"]].concat();
    place
        .inbox_with(&strict, b"1\n2\n\xff\n501\n")
        .exits(3)
        .complains("its handlers stay paused");
    assert_eq!(is_paused(), true);
    place
        .inbox_with(&import, b"1\n2\n501\n")
        .exits(0)
        .says("1 accepted, 2 duplicates");
    assert_eq!(is_paused(), false);
}

#[test]
fn a_second_interrupt_ends_at_once() {
    on_every_store(|place| {
        place
            .inbox_with(&["ingest", "-"], events(1).as_bytes())
            .exits(0);
        let mut child = place
            .command(&[
                "process",
                "--lease",
                "300ms",
                "--",
                "sh",
                "-c",
                "echo $$ > pid; exec sleep 60",
            ])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the handler", || place.read("pid").ends_with('\n'));
        signal(&child, Signal::SIGINT);
        thread::sleep(Duration::from_millis(300));
        signal(&child, Signal::SIGINT);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(130), "{:?}", status.signal());
        // The handler went with it.
        let handler = Pid::from_raw(place.read("pid").trim().parse().unwrap());
        wait_for("the handler's end", || kill(handler, None).is_err());
        // Its lease runs out, and the message is worked on again.
        place.inbox(&["process", "--drain", "--", "true"]).exits(0);
        assert_eq!(place.stats().processed, 1);
    });
}

/// A place with stored messages.
fn place_with(number: usize) -> Place {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], events(number).as_bytes())
        .exits(0);
    place
}

/// Waits for the end, which is a failure of the test if it does not come.
fn code_of(child: &mut Child) -> Option<i32> {
    wait_for("the end of the command", || {
        child.try_wait().unwrap().is_some()
    });
    child.wait().unwrap().code()
}

/// A handler that runs until it is let go, and for a moment then, so that many of them take long.
const HELD: [&str; 4] = [
    "--",
    "sh",
    "-c",
    "echo x >> started; until [ -e go ]; do sleep 0.05; done; sleep 0.05; echo x >> done",
];

/// Far more messages than are handled before a signal arrives.
const MANY: usize = 2000;

/// A process of which two handlers run at a time.
fn held(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(&["process", "--concurrency", "2"]);
    command
        .args(arguments)
        .args(HELD)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn wait_for_a_start(place: &Place) {
    wait_for("a handler to start", || {
        place.path("started").exists() && !place.read("started").is_empty()
    });
}

#[test]
fn signals_work_when_the_reader_of_the_output_has_gone() {
    for (number, stop, code) in [(1, Signal::SIGINT, 130), (2, Signal::SIGTERM, 0)] {
        let place = place_with(MANY);
        let mut child = held(&place, &[])
            .stdout(closed_pipe())
            .stderr(closed_pipe())
            .spawn()
            .unwrap();
        wait_for_a_start(&place);
        signal(&child, stop);
        place.file("go", "");
        assert_eq!(code_of(&mut child), Some(code), "run {number}");
        assert_eq!(place.read("started"), place.read("done"));
        assert_eq!(place.stats().leased, 0);
        assert!(place.stats().pending > 0, "it went on to the end");
    }
}

/// A pipe that takes nothing more, because its reader has stopped reading.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let size = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).unwrap();
    let size = usize::try_from(size).unwrap();
    writer.write_all(&vec![b'x'; size]).unwrap();
    (reader, writer)
}

#[test]
fn a_second_signal_ends_at_once_when_nobody_reads_the_output() {
    let place = place_with(1);
    let (_reader, writer) = full_pipe();
    let mut child = place
        .command(&["process", "--quiet"])
        .args(["--", "sh", "-c", "echo $$ > pid; exec sleep 60"])
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    wait_for("the handler", || place.read("pid").ends_with('\n'));
    signal(&child, Signal::SIGINT);
    // Signals that come together count as one.
    wait_for("the end", || {
        signal(&child, Signal::SIGINT);
        thread::sleep(Duration::from_millis(50));
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let handler = Pid::from_raw(place.read("pid").trim().parse().unwrap());
    wait_for("the handler's end", || kill(handler, None).is_err());
}

#[test]
fn sigterm_after_an_orderly_end_is_a_success() {
    let place = place_with(MANY);
    let mut child = held(&place, &[]).spawn().unwrap();
    wait_for_a_start(&place);
    signal(&child, Signal::SIGTERM);
    place.file("go", "");
    assert_eq!(code_of(&mut child), Some(0));
    assert_eq!(place.read("started"), place.read("done"));
    assert_eq!(place.stats().leased, 0);
}

#[test]
fn sigterm_that_leaves_work_undone_is_none() {
    // All of it was asked for, and some of it is left.
    let place = place_with(MANY);
    let mut child = held(&place, &["--drain"]).spawn().unwrap();
    wait_for_a_start(&place);
    signal(&child, Signal::SIGTERM);
    place.file("go", "");
    assert_eq!(code_of(&mut child), Some(143));
    assert!(place.stats().pending > 0);

    // A handler that outlives the grace is cut short.
    let place = place_with(1);
    let mut child = place
        .command(&["process", "--grace", "100ms"])
        .args(["--", "sh", "-c", "echo x >> started; exec sleep 60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_a_start(&place);
    signal(&child, Signal::SIGTERM);
    assert_eq!(code_of(&mut child), Some(143));
    assert_eq!(place.stats().dead, 0);

    // The rest of the input was not read.
    let place = Place::new();
    let mut child = place
        .command(&["ingest", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(event("a", "t", "{}").as_bytes()).unwrap();
    wait_for("the message", || {
        place.path("inbox.db").exists() && place.inbox(&["show", "a"]).code == Some(0)
    });
    signal(&child, Signal::SIGTERM);
    assert_eq!(code_of(&mut child), Some(143));
}

/// As a service manager does that ends a whole control group, and in whichever order.
#[test]
fn a_handler_that_is_ended_together_with_the_command_costs_no_attempt() {
    for handler_first in [false, true] {
        let place = place_with(1);
        let mut child = place
            .command(&["process", "--max-attempts", "1"])
            .args(["--", "sh", "-c", "echo $$ > pid; exec sleep 60"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the handler", || place.read("pid").ends_with('\n'));
        let handler = Pid::from_raw(place.read("pid").trim().parse().unwrap());
        if handler_first {
            kill(handler, Signal::SIGTERM).unwrap();
        }
        signal(&child, Signal::SIGTERM);
        if !handler_first {
            kill(handler, Signal::SIGTERM).unwrap();
        }
        // Something was cut short.
        assert_eq!(code_of(&mut child), Some(143));
        let record = &place.inbox(&["show", "e0", "--json"]).exits(0).json()[0];
        assert_eq!(record["state"], "pending", "{record}");
        assert_eq!(record["attempts_started"], 0, "{record}");
    }
}

/// A handler that ends by that signal for another reason has failed.
#[test]
fn a_handler_that_ends_by_a_signal_has_failed_otherwise() {
    let place = place_with(1);
    let handler = ["--", "sh", "-c", "kill -TERM $$"];
    let mut command = place.command(&["process", "--drain", "--max-attempts", "1"]);
    let output = finish(command.args(handler).output().unwrap());
    output.exits(4);
    assert_eq!(place.stats().dead, 1);
}

/// The terminal is closed, or the connection to it is gone.
#[test]
fn a_hang_up_is_an_orderly_end() {
    let place = place_with(MANY);
    // Also where these tests run under `nohup`.
    let mut child = Command::new("env")
        .args(["--default-signal=HUP"])
        .arg(place.command(&[]).get_program())
        .args(["process", "--concurrency", "2"])
        .args(HELD)
        .current_dir(place.path("."))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_a_start(&place);
    signal(&child, Signal::SIGHUP);
    place.file("go", "");
    assert_eq!(code_of(&mut child), Some(129));
    assert_eq!(place.read("started"), place.read("done"));
    assert_eq!(place.stats().leased, 0);
    assert!(place.stats().pending > 0);
}

#[test]
fn under_nohup_a_hang_up_is_nothing() {
    let place = place_with(2);
    let inbox = place.command(&[]);
    let mut child = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(inbox.get_program())
        .args(["process", "--drain", "--concurrency", "1"])
        .args(HELD)
        .current_dir(place.path("."))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_a_start(&place);
    signal(&child, Signal::SIGHUP);
    thread::sleep(Duration::from_millis(300));
    place.file("go", "");
    assert_eq!(code_of(&mut child), Some(0));
    assert_eq!(place.stats().processed, 2);
}

#[test]
fn the_exit_code_names_the_signal() {
    let mut commands = vec![vec!["demo"]];
    if cfg!(feature = "conformance") {
        commands.push(vec!["conformance", "--store", "memory://"]);
    }
    for command in &commands {
        for (stop, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
            let place = Place::new();
            let mut child = place
                .command(command)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // Its signals are caught from here on.
            let status = format!("/proc/{}/status", child.id());
            wait_for("the handler of signals", || {
                let status = std::fs::read_to_string(&status).unwrap_or_default();
                let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
                let caught = u64::from_str_radix(caught.unwrap_or("0").trim(), 16).unwrap();
                caught & 1 << (stop as i32 - 1) != 0
            });
            signal(&child, stop);
            assert_eq!(code_of(&mut child), Some(code), "{command:?}");
        }
    }
}

/// A connection that keeps all others from writing, as a backup or an administrator's shell may.
fn lock(place: &Place) -> impl Drop {
    use sqlx::{Connection as _, Executor as _, SqliteConnection};

    struct Lock(tokio::runtime::Runtime, Option<SqliteConnection>);
    impl Drop for Lock {
        fn drop(&mut self) {
            let connection = self.1.take().unwrap();
            self.0.block_on(connection.close()).unwrap();
        }
    }
    let url = format!("sqlite://{}", place.path("inbox.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let connection = runtime.block_on(async {
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        connection.execute("BEGIN IMMEDIATE").await.unwrap();
        connection
    });
    Lock(runtime, Some(connection))
}

/// A place with processed messages.
fn place_with_processed(number: usize) -> Place {
    let place = place_with(number);
    place
        .inbox(&["process", "--drain", "--quiet", "--", "true"])
        .exits(0);
    place
}

/// Starts the command, its standard error in a file of that name.
fn start_logged(place: &Place, arguments: &[&str], name: &str) -> Child {
    let stderr = std::fs::File::create(place.path(name)).unwrap();
    let mut command = place.command(arguments);
    command.stdout(Stdio::piped()).stderr(stderr);
    command.spawn().unwrap()
}

#[test]
fn a_purge_waits_for_a_locked_file_says_so_and_goes_on() {
    let place = place_with_processed(3);
    let held = lock(&place);
    // The file's own time limit passes several times. A purge that is slower than it on a busy machine is done
    // twice, and finds nothing then.
    let url = format!(
        "sqlite://{}?operation_timeout_ms=2000",
        place.path("inbox.db").display()
    );
    let purge = ["purge", "--older-than", "0s", "--store", &url];
    let child = start_logged(&place, &purge, "stderr");
    wait_for("the word", || {
        place.read("stderr").contains("store unavailable; retrying")
    });
    thread::sleep(Duration::from_secs(7));
    assert_eq!(complaints(&place.read("stderr")).len(), 1, "said once");
    drop(held);
    let output = finish(child.wait_with_output().unwrap()).exits(0);
    output.says("3 messages purged");
    assert!(place.read("stderr").contains("store available again"));
}

#[test]
fn a_signal_ends_what_waits_for_a_locked_file() {
    let place = place_with_processed(3);
    place
        .inbox_with(&["ingest", "-", "--handler", "other"], events(2).as_bytes())
        .exits(0);
    let held = lock(&place);
    for (arguments, says, stop, code) in [
        (
            &["purge", "--older-than", "0s"][..],
            "0 messages purged",
            Signal::SIGTERM,
            143,
        ),
        (
            &["replay", "--all", "--state", "processed"],
            "0 messages replayed",
            Signal::SIGINT,
            130,
        ),
        (
            &["discard", "other/e0", "other/e1"],
            "0 messages discarded",
            Signal::SIGTERM,
            143,
        ),
    ] {
        let mut child = start_logged(&place, arguments, "stderr");
        // It is named, within seconds.
        wait_for("the word", || {
            let said = place.read("stderr");
            said.contains("waiting for the store") || said.contains("takes long")
        });
        let began = Instant::now();
        signal(&child, stop);
        assert_eq!(code_of(&mut child), Some(code), "{arguments:?}");
        assert!(began.elapsed() < Duration::from_secs(15));
        finish(child.wait_with_output().unwrap()).says(says);
    }
    // The second one ends it at once, without a report.
    let mut child = start_logged(&place, &["purge", "--older-than", "0s"], "stderr");
    wait_for("the word", || place.read("stderr").contains("takes long"));
    signal(&child, Signal::SIGTERM);
    wait_for("the first to be heard", || {
        place.read("stderr").contains("once more")
    });
    signal(&child, Signal::SIGTERM);
    assert_eq!(code_of(&mut child), Some(143));
    let output = finish(child.wait_with_output().unwrap());
    assert_eq!(output.stdout, "", "{output:?}");
    drop(held);
    assert_eq!(place.stats().processed, 3);
}
