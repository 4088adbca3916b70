//! How the examples end, which is the same in all of them.

use std::{fs, io::Write as _, path::Path, process::Command, thread::sleep, time::Duration};

use nix::sys::signal::Signal;

use crate::{
    examples,
    program::{Address, Program},
};

fn start(file: &Path, address: &Address) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tested-payments-api"));
    Program::serving(command.arg("127.0.0.1:0").arg(file), address)
}

#[test]
fn all_have_the_function_of_the_guide() {
    let guide = fs::read_to_string(examples().join("../docs/guide/handlers.md")).unwrap();
    let mut found = 0;
    for example in fs::read_dir(examples()).unwrap() {
        let file = example.unwrap().path().join("src/shutdown.rs");
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let function = text.find("fn shutdown()").map(|begin| &text[begin..]);
        let is_there = function.is_some_and(|function| guide.contains(function));
        assert!(is_there, "{} is another one", file.display());
        found += 1;
    }
    assert_eq!(found, 8, "two-services has one for both of its programs");
}

#[test]
fn ctrl_c_ends_one_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let program = start(&folder.path().join("payments.db"), &Address::default());
    program.signal(Signal::SIGINT);
    let (status, _) = program.end();
    assert!(status.success(), "{status}");
}

#[test]
fn a_second_signal_ends_one_that_waits() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::default();
    let mut program = start(&folder.path().join("payments.db"), &address);
    // A request whose body does not come.
    let mut request = address.connect().unwrap();
    let head =
        "POST /payments HTTP/1.1\r\nhost: a\r\nidempotency-key: \"k\"\r\ncontent-length: 9\r\n\r\n";
    request.write_all(head.as_bytes()).unwrap();
    let (status, _) = address.post("/payments", &[], "{}").unwrap();
    assert_eq!(status, 400, "one behind it is answered");

    program.signal(Signal::SIGTERM);
    sleep(Duration::from_millis(300));
    assert!(!program.has_ended(), "it waits for the body");
    program.signal(Signal::SIGTERM);
    let (status, _) = program.end();
    assert_eq!(status.code(), Some(1));
}
