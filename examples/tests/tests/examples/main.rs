//! The examples do what they say, also when they are killed in the middle of it.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests, which fail by panicking"
)]

mod collector;
mod databases;
mod from_processed_messages;
mod kafka_in_order;
mod multi_tenant;
mod payments_api;
mod program;
mod rabbitmq_to_postgres;
mod shutdown;
mod traces;
mod two_services;
mod webhook_to_sqlite;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
    thread::sleep,
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;

/// How long a loaded machine may take.
const PATIENCE: Duration = Duration::from_secs(120);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Waits for a future, in a test that otherwise waits for processes.
fn wait<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

/// The folder of all examples.
fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Looks until it is so.
#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}");
        sleep(Duration::from_millis(10));
    }
}

/// Those that are read first have sixty lines at most.
const FIRST: [&str; 3] = ["webhook-to-sqlite", "payments-api", "rabbitmq-to-postgres"];

/// So that it is read to its end.
#[test]
fn a_file_of_an_application_is_short() {
    let examples = examples();
    let manifest = fs::read_to_string(examples.join("tests/Cargo.toml")).unwrap();
    let paths = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"../"));
    let mut files = 0;
    for path in paths.map(|path| examples.join(path.trim_end_matches('"'))) {
        for file in fs::read_dir(path.parent().unwrap()).unwrap() {
            let file = file.unwrap().path();
            if file.is_file() {
                let lines = fs::read_to_string(&file).unwrap().lines().count();
                let is_first = FIRST
                    .iter()
                    .any(|name| file.iter().any(|part| part == *name));
                let most = if is_first { 60 } else { 100 };
                assert!(lines <= most, "{} has {lines}", file.display());
                files += 1;
            }
        }
    }
    assert!(files >= 10, "{files}");
}
