//! The programs do what they say, and are short.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// What a program that ends by itself has printed.
fn output(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let ended = command.args(arguments).stderr(Stdio::inherit()).output();
    let ended = ended.unwrap();
    assert!(ended.status.success(), "{}", ended.status);
    String::from_utf8(ended.stdout).unwrap()
}

#[test]
fn a_program_has_at_most_60_lines() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin");
    for program in fs::read_dir(folder).unwrap() {
        let path = program.unwrap().path();
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 60, "{} has {lines}", path.display());
    }
}

#[test]
fn transactional_handler_books_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.db");
    let run = || {
        output(
            env!("CARGO_BIN_EXE_transactional-handler"),
            &[file.to_str().unwrap()],
        )
    };
    assert_eq!(
        run(),
        "Accepted\nDuplicate { differs: false }\n1 processed\n"
    );
    let again = "Duplicate { differs: false }\n";
    assert_eq!(run(), format!("{again}{again}0 processed\n"));
}

/// A program that listens on a port of this machine.
struct Listening {
    process: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Listening {
    fn start(program: &str, file: &Path) -> Self {
        let mut process = Command::new(program)
            .args(["127.0.0.1:0", file.to_str().unwrap()])
            .env("GITHUB_SECRET", "It's a Secret to Everybody")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut listening = Self {
            process,
            output,
            address: String::new(),
        };
        let line = listening.line();
        listening.address = line.strip_prefix("listening on ").unwrap().to_owned();
        listening
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The whole response.
    fn post(&self, path: &str, headers: &str, body: &str) -> String {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n\r\n{body}"
        );
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    fn stop(mut self) {
        let id = Pid::from_raw(self.process.id().try_into().unwrap());
        kill(id, Signal::SIGINT).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

/// One that a failed test has left behind.
impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.process.kill();
    }
}

#[test]
fn idempotent_http_books_once() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let file = folder.path().join("bookings.db");
        Listening::start(env!("CARGO_BIN_EXE_idempotent-http"), &file)
    };
    let key = "idempotency-key: \"8e03978e\"";
    let program = start();
    let first = program.post("/bookings/7", key, "");
    assert!(first.starts_with("HTTP/1.1 201 "), "{first}");
    assert!(first.ends_with("booking 1, seat 7\n"), "{first}");
    let missing = program.post("/bookings/7", "x: y", "");
    assert!(missing.starts_with("HTTP/1.1 400 "), "{missing}");
    program.stop();
    let program = start();
    let again = program.post("/bookings/7", key, "");
    assert!(again.contains("idempotency-replayed: true"), "{again}");
    assert!(again.ends_with("booking 1, seat 7\n"), "{again}");
    let other = program.post("/bookings/8", key, "");
    assert!(other.starts_with("HTTP/1.1 422 "), "{other}");
    program.stop();
}

#[test]
fn webhook_axum_handles_an_event_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("webhooks.db");
    let mut program = Listening::start(env!("CARGO_BIN_EXE_webhook-axum"), &file);
    // The vector of GitHub's documentation.
    let signature = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let deliver = |program: &Listening, body: &str| {
        let headers = format!(
            "content-type: application/json\r\nx-github-event: push\r\nx-github-delivery: d-1\r\nx-hub-signature-256: sha256={signature}"
        );
        let response = program.post("/github", &headers, body);
        response.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(deliver(&program, "Hello, World?"), "401");
    assert_eq!(deliver(&program, "Hello, World!"), "202");
    assert_eq!(program.line(), "ci/d-1 13 bytes");
    assert_eq!(deliver(&program, "Hello, World!"), "200");
    let id = Pid::from_raw(program.process.id().try_into().unwrap());
    kill(id, Signal::SIGINT).unwrap();
    assert_eq!(program.line(), "1 handled");
    assert!(program.process.wait().unwrap().success());
}

#[test]
fn queue_consumer_charges_once_and_ends_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.db");
    // Ends it once `last` is charged, and answers what it has printed.
    let run = |orders: &str, last: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_queue-consumer"));
        let command = command
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(orders.as_bytes()).unwrap();
        let mut lines = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == last {
                let pid = i32::try_from(child.id()).unwrap();
                kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
            }
            lines.push(line);
        }
        assert!(child.wait().unwrap().success());
        lines
    };
    let lines = run("{\"order\": 7}\n{\"order\": 7}\n", "charged order 7");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("(1 new), 1 processed"), "{lines:?}");
    let lines = run("{\"order\": 7}\n{\"order\": 8}\n", "charged order 8");
    assert_eq!(lines[0], "charged order 8");
    assert!(
        lines[1].starts_with("2 received (1 new), 1 processed"),
        "{lines:?}"
    );
}
