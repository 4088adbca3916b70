//! Readers that have gone, and disks that are full, for everything that prints.

use std::{
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt as _,
    process::{Command, Stdio},
    sync::LazyLock,
    thread,
};

use crate::support::{self, Place, closed_pipe, event, full_disk};

/// A command line, the exit code that it deserves, and whether it prints on standard output.
type Case = (&'static [&'static str], i32, bool);

/// On an inbox with a dead message, a processed and a pending one.
const CASES: &[Case] = &[
    (&["--help"], 0, true),
    (&["--version"], 0, true),
    (&["process", "--help"], 0, true),
    (&["nonsense"], 2, false),
    (&["process", "--post", "ftp://h"], 2, false),
    (&["stats", "--store", "nonsense"], 2, false),
    (&["run", "in.ndjson", "--", "true"], 0, true),
    (&["run", "in.ndjson", "--json", "--", "true"], 0, true),
    (&["ingest", "in.ndjson"], 0, true),
    (&["ingest", "bad.ndjson"], 3, true),
    (&["ingest", "nowhere.ndjson"], 1, false),
    (&["process", "--drain", "--", "true"], 0, true),
    (
        &["process", "--drain", "--max-attempts", "1", "--", "false"],
        4,
        true,
    ),
    (&["list"], 0, true),
    (&["list", "--json"], 0, true),
    (&["list", "--limit", "1"], 0, true),
    (&["show", "open"], 0, true),
    (&["show", "open", "--payload"], 0, true),
    (&["show", "open", "--json"], 0, true),
    (&["show", "nobody"], 4, false),
    (&["stats"], 0, true),
    (&["stats", "--json"], 0, true),
    (&["replay", "dead"], 0, true),
    (&["replay", "nobody"], 4, true),
    (&["replay", "--all", "--dry-run"], 0, true),
    (&["discard", "open"], 0, true),
    (&["discard", "done"], 4, true),
    (&["purge", "--older-than", "0s"], 0, true),
    (
        &["purge", "--older-than", "0s", "--archive", "/dev/full"],
        1,
        false,
    ),
    (&["schema", "ddl"], 0, true),
    (&["schema", "exists"], 0, true),
    (&["schema", "create"], 0, true),
    (&["schema", "migrate"], 0, true),
    (&["schema", "version"], 0, true),
    #[cfg(feature = "conformance")]
    (&["conformance", "fencing", "--store", "memory://"], 0, true),
    #[cfg(feature = "conformance")]
    (&["conformance", "no-such-case"], 4, true),
    (&["completions", "bash"], 0, true),
];

/// The inbox that every case begins with.
static TEMPLATE: LazyLock<Place> = LazyLock::new(|| {
    let place = Place::new();
    for (id, handler) in [("dead", "exit 65"), ("done", "exit 0")] {
        place.file("one.ndjson", event(id, "t", "{}"));
        let run = ["run", "one.ndjson", "--quiet", "--", "sh", "-c", handler];
        place.inbox(&run);
    }
    let open = event("open", "t", "{}");
    place.inbox_with(&["ingest", "-"], open.as_bytes()).exits(0);
    assert_eq!(place.stats().pending, 1);
    place
});

fn place() -> Place {
    let place = Place::new();
    std::fs::copy(TEMPLATE.path("inbox.db"), place.path("inbox.db")).unwrap();
    place.file("in.ndjson", event("new", "t", "{}"));
    place.file("bad.ndjson", "nonsense\n");
    place
}

/// The exit code of a case whose outputs are set up by `redirect`.
fn code(arguments: &[&str], redirect: impl FnOnce(&mut Command)) -> Option<i32> {
    let place = place();
    let mut command = place.command(arguments);
    command
        .env("INBOX_LOG", "trace")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    redirect(&mut command);
    command.status().unwrap().code()
}

#[test]
fn cases_are_what_they_say() {
    for (arguments, expected, prints) in CASES {
        let output = place().inbox(arguments);
        assert_eq!(output.code, Some(*expected), "{arguments:?}: {output:?}");
        assert_eq!(!output.stdout.is_empty(), *prints, "{arguments:?}");
    }
}

#[test]
fn a_reader_that_has_gone_changes_no_exit_code() {
    for (arguments, expected, _) in CASES {
        let expected = Some(*expected);
        let stdout = code(arguments, |c| {
            c.stdout(closed_pipe());
        });
        assert_eq!(stdout, expected, "{arguments:?} without a reader of stdout");
        let stderr = code(arguments, |c| {
            c.stderr(closed_pipe());
        });
        assert_eq!(stderr, expected, "{arguments:?} without a reader of stderr");
        let both = code(arguments, |c| {
            c.stdout(closed_pipe()).stderr(closed_pipe());
        });
        assert_eq!(both, expected, "{arguments:?} without any reader");
    }
}

#[test]
fn a_full_disk_is_a_failure_where_results_are_lost() {
    for (arguments, expected, prints) in CASES {
        let lost = if *prints { 1 } else { *expected };
        let stdout = code(arguments, |c| {
            c.stdout(full_disk());
        });
        assert_eq!(stdout, Some(lost), "{arguments:?} with stdout full");
        let stderr = code(arguments, |c| {
            c.stderr(full_disk());
        });
        assert_eq!(stderr, Some(*expected), "{arguments:?} with stderr full");
        let both = code(arguments, |c| {
            c.stdout(full_disk()).stderr(full_disk());
        });
        assert_eq!(both, Some(lost), "{arguments:?} with both full");
    }
    let place = place();
    let output = place
        .command(&["stats"])
        .stdout(full_disk())
        .output()
        .unwrap();
    support::finish(output)
        .exits(1)
        .complains("inbox: cannot write to standard output: No space left");
}

/// Reads one line and leaves, as `head -1` does.
fn code_with_head(place: &Place, arguments: &[&str]) -> Option<i32> {
    let mut child = place
        .command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = Vec::new();
    let mut stdout = BufReader::with_capacity(1, child.stdout.take().unwrap());
    stdout.read_until(b'\n', &mut line).unwrap();
    drop(stdout);
    child.wait().unwrap().code()
}

#[test]
fn everything_can_be_piped_into_head() {
    for (arguments, expected, _) in CASES {
        assert_eq!(
            code_with_head(&place(), arguments),
            Some(*expected),
            "{arguments:?}"
        );
    }
    // More than a pipe holds.
    let place = Place::new();
    let payload = format!("\"{}\"", "x".repeat(300_000));
    let mut input = event("large", "t", &payload);
    input.push_str(&support::events(9000));
    place
        .inbox_with(&["ingest", "-"], input.as_bytes())
        .exits(0);
    for arguments in [
        &["list", "--limit", "10000"][..],
        &["list", "--limit", "10000", "--json"],
        &["show", "large", "--payload"],
        &["show", "large", "--json"],
    ] {
        assert_eq!(code_with_head(&place, arguments), Some(0), "{arguments:?}");
    }
}

#[test]
fn the_demo_needs_no_reader() {
    let demo = ["demo", "--workers", "1", "--kills", "1"];
    thread::scope(|scope| {
        scope.spawn(|| {
            let closed = code(&demo, |c| {
                c.stdout(closed_pipe()).stderr(closed_pipe());
            });
            assert_eq!(closed, Some(0));
        });
        scope.spawn(|| {
            let full = code(&demo, |c| {
                c.stdout(full_disk()).stderr(full_disk());
            });
            assert_eq!(full, Some(1));
        });
    });
}

/// Defect: all that a service of systemd starts inherits the variable, and the lines in its log file had no times.
#[test]
fn lines_of_the_log_have_times_unless_they_go_to_the_journal() {
    let place = place();
    for is_journal in [false, true] {
        let log = std::fs::File::create(place.path("log")).unwrap();
        let metadata = log.metadata().unwrap();
        let inode = metadata.ino() + u64::from(!is_journal);
        place
            .command(&["ingest", "in.ndjson"])
            .env("INBOX_LOG", "inbox=debug")
            .env("JOURNAL_STREAM", format!("{}:{inode}", metadata.dev()))
            .stdout(Stdio::null())
            .stderr(log)
            .status()
            .unwrap();
        let said = place.read("log");
        let line = said.lines().find(|line| line.contains("batch received"));
        let line = line.unwrap_or_else(|| panic!("no batch in {said:?}"));
        let has_time = line.starts_with(|first: char| first.is_ascii_digit());
        assert_eq!(has_time, !is_journal, "{line}");
    }
}

/// Defect: a stored text could drive the terminal of who looked at it as JSON, by control characters above ASCII.
#[test]
fn json_drives_no_terminal_and_means_the_same() {
    let place = Place::new();
    let id = "a\u{202e}\u{200b}";
    place
        .inbox_with(&["ingest", "-"], event(id, "t", "{}").as_bytes())
        .exits(0);
    let text = "printf '\\302\\23331m\\177' >&2; exit 65";
    let process = ["process", "--drain", "--quiet", "--", "sh", "-c", text];
    place.inbox(&process).exits(4);
    let archive = [
        "purge",
        "--older-than",
        "0s",
        "--state",
        "dead",
        "--archive",
        "-",
    ];
    for command in [
        &["list", "--json"][..],
        &["show", id, "--json"],
        &["dead", "--json"],
        &archive,
    ] {
        let output = place.inbox(command).exits(0);
        let is_shown = |c: char| c == '\n' || c.is_ascii_graphic() || c == ' ';
        assert!(output.stdout.chars().all(is_shown), "{output:?}");
        let told = &output.json()[0];
        let (of_list, of_group) = (&told["last_error"], &told["sample_error"]);
        let error = of_list.as_str().or(of_group.as_str()).unwrap();
        assert!(error.ends_with("\u{9b}31m\u{7f}"), "{error:?}");
    }
}
