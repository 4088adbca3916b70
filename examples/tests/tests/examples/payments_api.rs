use std::{path::Path, process::Command, sync::Mutex, thread};

use crate::{
    databases::{numbers, sqlite},
    program::{Address, Program},
    until,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tested-payments-api");
const PAYMENTS: &str = "SELECT cents FROM payment ORDER BY 1";

fn start(file: &Path, address: &Address) -> Program {
    let mut command = Command::new(PROGRAM);
    Program::serving(command.arg("127.0.0.1:0").arg(file), address)
}

/// Asks for a payment until it is answered, as a client does.
fn pay(address: &Address, cents: i64) -> String {
    let mut response = String::new();
    until(
        || match ask(address, &format!("\"payment-{cents}\""), cents) {
            Ok((201, answer)) => {
                response = answer;
                true
            }
            Ok((409 | 500.., _)) | Err(_) => false,
            Ok((_, answer)) => panic!("{answer}"),
        },
    );
    response
}

fn ask(address: &Address, key: &str, cents: i64) -> std::io::Result<(u16, String)> {
    let body = format!(r#"{{"account": 7, "cents": {cents}}}"#);
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", key),
    ];
    address.post("/payments", &headers, &body)
}

fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn each_payment_is_made_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("payments.db");
    let address = Address::default();
    let program = start(&file, &address);
    let database = sqlite(&file);
    let answers = Mutex::new(Vec::new());
    let program = thread::scope(|scope| {
        let mut program = program;
        for client in 0..4 {
            let (address, answers) = (&address, &answers);
            scope.spawn(move || {
                for cents in (1..=80).filter(|cents| cents % 4 == client) {
                    let first = pay(address, cents);
                    let again = pay(address, cents);
                    assert!(again.contains("idempotency-replayed: true"), "{again}");
                    assert_eq!(body(&first), body(&again));
                    answers.lock().unwrap().push(body(&again).to_owned());
                }
            });
        }
        for kill_at in [10, 40] {
            program.until(|| numbers!(&database, PAYMENTS).len() >= kill_at);
            program.kill();
            program = start(&file, &address);
        }
        program
    });
    assert_eq!(numbers!(&database, PAYMENTS), (1..=80).collect::<Vec<_>>());
    let mut answers = answers.into_inner().unwrap();
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 80, "each was told its own payment");

    let (status, answer) = ask(&address, "\"payment-7\"", 8).unwrap();
    assert_eq!(
        status, 422,
        "another payment under a key that is used: {answer}"
    );
    let (status, answer) = address.post("/payments", &[], "{}").unwrap();
    assert_eq!(status, 400, "one without a key: {answer}");
    program.stop();
}
