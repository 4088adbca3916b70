//! A store that fails for good, and an archive with half a line.

use std::{
    io::Write as _,
    process::{Child, ChildStdin, Stdio},
};

use crate::support::{self, Place, event, events, wait_for};

/// What is changed in the inbox's file, as an administrator would.
fn change(place: &Place, sql: &'static str) {
    use sqlx::{Connection as _, Executor as _, SqliteConnection};

    let url = format!("sqlite://{}", place.path("inbox.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        connection.execute(sql).await.unwrap();
        connection.close().await.unwrap();
    });
}

/// `inbox run` of what a pipe brings, which stays open.
fn run_from_a_pipe(place: &Place, handler: &str, first: &str) -> (Child, ChildStdin) {
    let mut child = place
        .command(&[
            "run",
            "-",
            "--retry-delay",
            "1s",
            "--batch",
            "1",
            "--",
            "sh",
            "-c",
            handler,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(place.path("stderr")).unwrap())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(first.as_bytes()).unwrap();
    wait_for("the handler", || place.path("started").exists());
    (child, stdin)
}

#[test]
fn a_run_that_cannot_handle_anything_takes_nothing_more() {
    let place = Place::new();
    let (mut child, _stdin) =
        run_from_a_pipe(&place, "echo x > started; exit 1", &event("a", "t", "{}"));
    change(&place, "DROP TABLE inbox_state");
    wait_for("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(
        place.read("stderr").contains("inbox: "),
        "{}",
        place.read("stderr")
    );
}

#[test]
fn a_run_that_cannot_store_says_so_at_once_and_finishes_what_it_has() {
    let place = Place::new();
    let handler = "echo x > started; until [ -e go ]; do sleep 0.05; done";
    let (mut child, mut stdin) = run_from_a_pipe(&place, handler, &event("a", "t", "{}"));
    change(
        &place,
        "CREATE TRIGGER full BEFORE INSERT ON inbox_message \
         BEGIN SELECT RAISE(ABORT, 'no more room'); END",
    );
    stdin.write_all(event("b", "t", "{}").as_bytes()).unwrap();
    wait_for("the word", || {
        place.read("stderr").contains("finishing what is stored")
    });
    assert!(child.try_wait().unwrap().is_none());
    place.file("go", "");
    wait_for("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(place.stats().processed, 1);
}

/// The lines of an archive that are whole.
fn whole(place: &Place, archive: &str) -> Vec<String> {
    let lines = place.read(archive);
    let values = lines.lines().map(serde_json::from_str::<serde_json::Value>);
    let ids = values
        .flatten()
        .map(|value| value["id"].as_str().unwrap().to_owned());
    ids.collect()
}

/// A full disk, or a kill, has left half a line; or an editor has taken the last end of line away.
#[test]
fn half_a_line_in_the_archive_takes_no_other_with_it() {
    for (before, kept) in [("{\"id\":\"hal", 0), ("{\"id\":\"whole\"}", 1)] {
        let place = Place::new();
        place
            .inbox_with(&["ingest", "-"], events(3).as_bytes())
            .exits(0);
        place
            .inbox(&["process", "--drain", "--quiet", "--", "true"])
            .exits(0);
        place.file("old", format!("{{\"id\":\"first\"}}\n{before}"));
        let purge = ["purge", "--older-than", "0s", "--archive", "old"];
        place.inbox(&purge).exits(0).says("3 messages purged");
        let ids = whole(&place, "old");
        assert_eq!(ids.len(), 4 + kept, "{ids:?}");
        for id in ["first", "e0", "e1", "e2"] {
            assert!(ids.contains(&id.to_owned()), "{id} is not in {ids:?}");
        }
    }
}

/// Their lines would mix.
#[test]
fn two_purges_do_not_share_an_archive() {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], events(1).as_bytes())
        .exits(0);
    let archive = std::fs::File::create(place.path("old")).unwrap();
    archive.lock().unwrap();
    let purge = ["purge", "--older-than", "0s", "--archive", "old"];
    place.inbox(&purge).exits(1).complains("another process");
    archive.unlock().unwrap();
    place.inbox(&purge).exits(0);
}

/// What was deleted before a failure is deleted.
#[test]
fn a_purge_that_fails_says_what_it_has_deleted() {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], events(3).as_bytes())
        .exits(0);
    place
        .inbox(&[
            "process",
            "--drain",
            "--quiet",
            "--concurrency",
            "1",
            "--",
            "true",
        ])
        .exits(0);
    change(
        &place,
        "CREATE TRIGGER kept BEFORE DELETE ON inbox_message WHEN old.id = 'e2' \
         BEGIN SELECT RAISE(ABORT, 'to be kept'); END",
    );
    let purge = ["purge", "--older-than", "0s", "--slice", "1"];
    let output = place.inbox(&purge).exits(1).says("2 messages purged");
    output.complains("to be kept");
    assert_eq!(place.stats().processed, 1);
}

/// Defect: what `inbox clear` had deleted before a failure was not told.
#[test]
fn a_clear_that_fails_says_what_it_has_deleted() {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], events(1500).as_bytes())
        .exits(0);
    change(
        &place,
        "CREATE TRIGGER kept BEFORE DELETE ON inbox_message WHEN old.id = 'e1400' \
         BEGIN SELECT RAISE(ABORT, 'to be kept'); END",
    );
    let output = place.inbox(&["clear", "default", "--yes"]).exits(1);
    output
        .says("1,000 messages deleted")
        .complains("clear_slice");
    assert_eq!(place.stats().pending, 500);
    let output = place.inbox(&["clear", "default", "--yes"]).exits(1);
    assert_eq!(output.stdout, "");
}

fn with_processed(number: usize) -> Place {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], events(number).as_bytes())
        .exits(0);
    place
        .inbox(&["process", "--drain", "--quiet", "--", "true"])
        .exits(0);
    place
}

/// Under whichever name, and before anything is written.
#[test]
fn a_file_of_the_inbox_is_no_archive_and_no_input() {
    let place = with_processed(2);
    std::fs::hard_link(place.path("inbox.db"), place.path("other")).unwrap();
    std::os::unix::fs::symlink("inbox.db", place.path("link")).unwrap();
    let before = std::fs::read(place.path("inbox.db")).unwrap();
    for name in [
        "inbox.db",
        "./inbox.db",
        "inbox.db-wal",
        "inbox.db-shm",
        "other",
        "link",
    ] {
        place
            .inbox(&["purge", "--older-than", "0s", "--archive", name])
            .exits(1)
            .complains("a file of the inbox itself");
    }
    assert_eq!(std::fs::read(place.path("inbox.db")).unwrap(), before);
    assert!(!place.path("inbox.db-wal").exists());
    for command in [&["ingest", "other"][..], &["run", "inbox.db", "--", "true"]] {
        place
            .inbox(command)
            .exits(1)
            .complains("a file of the inbox itself");
    }
    assert_eq!(place.stats().processed, 2);
}

/// A named pipe waits for its reader; so does the purge, and can be ended.
#[test]
fn an_archive_that_nobody_reads_can_be_left() {
    let place = with_processed(2);
    let pipe = place.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let start = || {
        let stderr = std::fs::File::create(place.path("stderr")).unwrap();
        let child = place
            .command(&["purge", "--older-than", "0s", "--archive", "pipe"])
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        wait_for("the word", || {
            place
                .read("stderr")
                .contains("waiting for a reader of pipe")
        });
        child
    };
    let mut child = start();
    support::signal(&child, nix::sys::signal::Signal::SIGTERM);
    wait_for("the end", || child.try_wait().unwrap().is_some());
    assert!(!child.wait().unwrap().success());
    assert_eq!(place.stats().processed, 2);
    // With one it goes on.
    let child = start();
    let archive = std::fs::read_to_string(&pipe).unwrap();
    support::finish(child.wait_with_output().unwrap())
        .exits(0)
        .says("2 messages purged");
    assert_eq!(archive.lines().count(), 2, "{archive}");
}

#[test]
fn standard_output_is_an_archive() {
    for archive in ["-", "/dev/stdout"] {
        let place = with_processed(2);
        let purge = ["purge", "--older-than", "0s", "--archive", archive];
        let output = place.inbox(&purge).exits(0);
        assert_eq!(output.json().len(), 2, "{output:?}");
        output.complains("2 messages purged");
        assert!(!place.path("-").exists());
        // Nobody has what a closed pipe was given.
        let place = with_processed(2);
        let mut command = place.command(&purge);
        let mut child = command.stdout(support::closed_pipe()).spawn().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert_eq!(place.stats().processed, 2);
    }
}

/// An administrator has tidied up under a running process, which would go on in a file that nobody finds.
#[test]
fn a_process_whose_file_is_gone_ends_and_says_why() {
    let place = with_processed(1);
    let mut child = place
        .command(&["process", "--", "true"])
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(place.path("stderr")).unwrap())
        .spawn()
        .unwrap();
    place
        .inbox_with(&["ingest", "-", "--handler", "other"], events(1).as_bytes())
        .exits(0);
    wait_for("the start", || place.read("stderr").contains("processing"));
    for name in ["inbox.db", "inbox.db-wal", "inbox.db-shm"] {
        let _ = std::fs::remove_file(place.path(name));
    }
    wait_for("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let said = place.read("stderr");
    assert!(said.contains("deleted or moved away"), "{said}");
    assert!(!place.path("inbox.db").exists());
}
