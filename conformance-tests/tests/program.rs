//! A report program, as a user starts it: this test program itself, when it is told to be one.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests as well")]

use std::{
    fs,
    process::{Command, ExitCode, Output, Stdio},
};

use conformance_tests::{Fresh, Need, Ready};
use inbox_api::Clock;
use inbox_memory::{MemoryOptions, MemoryStore};

/// Makes this a report program of the store that it names.
const STORE: &str = "REPORT_ON";

fn ready(name: &str) -> Ready {
    let keeps_limits = name == "sound";
    Ready::new(name, move |settings| async move {
        let clock = Clock::system();
        let mut options = MemoryOptions::new()
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock(clock.clone());
        if let Some(limit) = settings.payload_limit.filter(|_| keeps_limits) {
            options = options.payload_limit(limit);
        }
        Ok(Fresh::new(MemoryStore::with(options)).with_clock(clock))
    })
    .lacks([
        Need::SecondConnection,
        Need::Transactions,
        Need::WakeupsAcrossProcesses,
    ])
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(STORE) {
        return conformance_tests::main(ready(&name));
    }
    // There is no test harness here, since the arguments are the program's.
    let tests: [(&str, fn()); 6] = [
        ("a_sound_store_ends_well", a_sound_store_ends_well),
        ("a_broken_store_is_told", a_broken_store_is_told),
        ("cases_are_listed", cases_are_listed),
        ("reports_go_to_files", reports_go_to_files),
        ("bad_arguments_are_named", bad_arguments_are_named),
        (
            "a_reader_that_leaves_is_no_failure",
            a_reader_that_leaves_is_no_failure,
        ),
    ];
    println!("\nrunning {} tests", tests.len());
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
    println!("\ntest result: ok. {} passed; 0 failed\n", tests.len());
    ExitCode::SUCCESS
}

fn program(store: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(STORE, store).args(arguments);
    command
}

fn output(store: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = program(store, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn a_sound_store_ends_well() {
    let (code, out, progress) = output("sound", &[]);
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.ends_with("sound: conforms, as far as checked.\n"),
        "{out}"
    );
    assert!(
        progress.contains("fencing::tokens_grow ... ok ("),
        "{progress}"
    );
}

fn a_broken_store_is_told() {
    let (code, out, progress) = output("unlimited", &["an_oversized"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.ends_with("unlimited: does not conform.\n"), "{out}");
    assert!(progress.contains("... FAILED ("), "{progress}");
}

fn cases_are_listed() {
    let (code, out, _) = output("sound", &["--list", "tokens_grow"]);
    assert_eq!(code, Some(0));
    assert!(out.starts_with("fencing::tokens_grow: "), "{out}");
    assert!(
        out.lines().all(|line| line.contains("tokens_grow")),
        "{out}"
    );
}

fn reports_go_to_files() {
    let directory = tempfile::tempdir().unwrap();
    let (json, junit) = (directory.path().join("json"), directory.path().join("xml"));
    let files = [json.to_str().unwrap(), junit.to_str().unwrap()];
    let arguments = ["tokens_grow", "--json", files[0], "--junit", files[1]];
    let (code, out, _) = output("sound", &arguments);
    assert_eq!(code, Some(0));
    assert!(out.contains("not the whole suite"), "{out}");
    assert!(
        fs::read_to_string(&json)
            .unwrap()
            .contains("\"tokens_grow\"")
    );
    assert!(fs::read_to_string(&junit).unwrap().contains("<testsuites"));
    // Alone on standard output, for the next program.
    let (_, out, _) = output("sound", &["tokens_grow", "--json", "-"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["filter"], "tokens_grow");
    let (code, _, why) = output("sound", &["tokens_grow", "--json", "/nowhere/report"]);
    assert_eq!(code, Some(2));
    assert!(why.contains("/nowhere/report: "), "{why}");
}

fn bad_arguments_are_named() {
    let (code, _, why) = output("sound", &["--sequence", "3"]);
    assert_eq!(code, Some(2));
    assert!(
        why.contains("--sequence") && why.contains("Usage:"),
        "{why}"
    );
    let (code, help, _) = output("sound", &["--help"]);
    assert_eq!(code, Some(0));
    assert!(help.contains("--budget SECONDS"), "{help}");
}

fn a_reader_that_leaves_is_no_failure() {
    let mut running = program("sound", &["tokens_grow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((running.stdout.take(), running.stderr.take()));
    assert_eq!(running.wait().unwrap().code(), Some(0));
}
