use std::{path::Path, process::Command};

use crate::{
    databases::{numbers, sqlite},
    program::{Address, Program},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tested-multi-tenant");
const NOTES: &str = "SELECT CAST(id AS INTEGER) FROM note ORDER BY 1";

fn start(folder: &Path, tenants: &[&str], address: &Address) -> Program {
    let mut command = Command::new(PROGRAM);
    let command = command.arg("127.0.0.1:0").arg(folder);
    Program::serving(command.args(tenants), address)
}

fn send(address: &Address, tenant: &str, note: i64) -> u16 {
    let (status, _) = address
        .post(&format!("/{tenant}/{note}"), &[], "a note")
        .unwrap();
    status
}

#[test]
fn each_tenant_has_each_of_its_notes_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let address = Address::default();
    let notes = |tenant: &str| {
        let database = sqlite(&folder.join(format!("{tenant}.db")));
        numbers!(&database, NOTES)
    };

    let program = start(folder, &["blue", "red"], &address);
    for note in 1..=30 {
        for tenant in ["blue", "red"] {
            // The ids of one tenant are nothing to another.
            assert_eq!(send(&address, tenant, note), 202);
            assert_eq!(send(&address, tenant, note), 200);
        }
    }
    assert_eq!(send(&address, "green", 1), 404);
    program.kill(); // with some of it handled, and some not

    let mut program = start(folder, &["blue", "green", "red"], &address);
    assert_eq!(send(&address, "red", 7), 200);
    assert_eq!(send(&address, "green", 7), 202);
    program.until(|| {
        ["blue", "red"]
            .iter()
            .all(|tenant| notes(tenant).len() >= 30)
    });
    program.until(|| !notes("green").is_empty());
    let report = program.stop();
    assert_eq!(
        report.lines().count(),
        3,
        "a line for each tenant: {report}"
    );
    for tenant in ["blue", "red"] {
        assert_eq!(notes(tenant), (1..=30).collect::<Vec<_>>(), "{tenant}");
    }
    assert_eq!(notes("green"), [7]);
}
