use std::{path::Path, process::Command, thread};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::{
    databases::{numbers, sqlite},
    program::{Address, Program},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tested-webhook-to-sqlite");
const SECRET: &str = "It's a Secret to Everybody";
const BUILDS: &str = "SELECT CAST(revision AS INTEGER) FROM build ORDER BY 1";

fn start(file: &Path, address: &Address) -> Program {
    let mut command = Command::new(PROGRAM);
    let command = command.arg("127.0.0.1:0").arg(file);
    Program::serving(command.env("GITHUB_SECRET", SECRET), address)
}

/// What GitHub is answered; 0 when it gets no answer.
fn deliver(address: &Address, push: i64, secret: &str) -> u16 {
    let body = format!(r#"{{"ref": "refs/heads/main", "after": "{push}"}}"#);
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    let signature = format!("sha256={}", hex::encode(mac.finalize().into_bytes()));
    let headers = [
        ("content-type", "application/json"),
        ("x-github-event", "push"),
        ("x-github-delivery", &format!("delivery-{push}")),
        ("x-hub-signature-256", &signature),
    ];
    let answer = address.post("/github", &headers, &body);
    answer.map_or(0, |(status, _)| status)
}

#[test]
fn each_push_is_built_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("webhooks.db");
    let address = Address::default();
    let mut program = start(&file, &address);
    let database = sqlite(&file);
    assert_eq!(deliver(&address, 1, "another secret"), 401);

    // Killed while pushes come in from four sides, and twice.
    thread::scope(|scope| {
        for sender in 0..4 {
            let pushes = (1..=60).filter(move |push| push % 4 == sender);
            let address = &address;
            scope.spawn(move || {
                for push in pushes.flat_map(|push| [push, push]) {
                    deliver(address, push, SECRET);
                }
            });
        }
        program.until(|| numbers!(&database, BUILDS).len() >= 5);
        program.kill();
    });
    let mut program = start(&file, &address);
    for push in 1..=60 {
        let again = deliver(&address, push, SECRET);
        assert!(matches!(again, 200 | 202), "{again}");
        assert_eq!(deliver(&address, push, SECRET), 200);
    }
    program.until(|| numbers!(&database, BUILDS).len() >= 60);
    let report = program.stop();
    assert!(report.contains("processed"), "{report}");
    assert_eq!(numbers!(&database, BUILDS), (1..=60).collect::<Vec<_>>());
}
