use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{databases::sqlite, program::Program, wait};

const BY_HAND: &str = env!("CARGO_BIN_EXE_tested-by-hand");
const WITH_AN_INBOX: &str = env!("CARGO_BIN_EXE_tested-queue-consumer");

/// The command `inbox`, which the tests of inbox-cli build, in the same directory.
fn inbox() -> PathBuf {
    let command = Path::new(BY_HAND).with_file_name("inbox");
    let hint = "build it: cargo build -p inbox-cli --all-features";
    assert!(command.exists(), "no {}: {hint}", command.display());
    command
}

/// Runs a command that ends by itself, with this on its standard input; answers what it prints.
fn output(command: &mut Command, input: &str) -> String {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let ended = process.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", ended.status);
    String::from_utf8(ended.stdout).unwrap()
}

fn orders(numbers: impl IntoIterator<Item = u64>) -> String {
    let lines = numbers
        .into_iter()
        .map(|number| format!("{{\"order\": {number}}}\n"));
    lines.collect()
}

/// Gives orders to the consumer with an inbox, and stops it when this many were charged.
fn consume(file: &Path, input: &str, charges: usize) -> (Vec<String>, String) {
    let queue = file.with_file_name("queue");
    fs::write(&queue, input).unwrap();
    let mut command = Command::new(WITH_AN_INBOX);
    let queue = fs::File::open(queue).unwrap();
    let mut program = Program::start(command.arg(file).stdin(queue));
    let charged = (0..charges).map(|_| program.line()).collect();
    (charged, program.stop())
}

#[test]
fn nothing_is_charged_again_after_the_move() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let by_hand = |input: &str| output(Command::new(BY_HAND).arg(&file), input);
    let before = by_hand(&orders([1, 2, 2, 3]));
    assert_eq!(
        before,
        "charged order 1\ncharged order 2\ncharged order 3\n"
    );
    assert_eq!(by_hand(&orders([3])), "");

    let select = sqlx::query_scalar("SELECT id FROM processed_messages");
    let ids: Vec<String> = wait(select.fetch_all(&sqlite(&file))).unwrap();
    let store = format!("sqlite://{}", file.display());
    let mut import = Command::new(inbox());
    let import = import.args([
        "--store",
        &store,
        "import-keys",
        "-",
        "--handler",
        "billing",
    ]);
    let imported = output(import, &ids.join("\n"));
    assert!(imported.starts_with("3 accepted"), "{imported}");

    let (mut charged, _) = consume(&file, &orders([1, 2, 3, 4, 4, 5]), 2);
    charged.sort();
    assert_eq!(charged, ["charged order 4", "charged order 5"]);
    let (charged, report) = consume(&file, &orders([5, 3, 6]), 1);
    assert_eq!(charged, ["charged order 6"]);
    assert!(report.contains("(1 new), 1 processed"), "{report}");
}
