//! Logical dumps: `mariadb-dump` writes them, of MySQL's servers too, and `mariadb` loads them.

use std::{
    io::{self, Write as _},
    process::{Command, Output, Stdio},
};

use super::{TestInbox, connect_options};

/// Whether the two programs are there. If not, and a server is required, that is a failure.
pub fn available() -> bool {
    let there = Command::new("mariadb-dump").arg("--version").output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        assert!(
            std::env::var_os("INBOX_TEST_REQUIRE").is_none_or(|list| list.is_empty()),
            "no mariadb-dump on PATH: it is in Debian's package mariadb-client"
        );
        // The test runner captures what the printing macros write.
        let _ = io::stderr().write_all(b"restores: skipped: no mariadb-dump on PATH\n");
    }
    there
}

fn client(program: &str, inbox: &TestInbox) -> Command {
    let server = connect_options(&inbox.url, None);
    let mut command = Command::new(program);
    command
        .arg("--no-defaults")
        .arg("--protocol=tcp")
        .arg(format!("--host={}", server.get_host()))
        .arg(format!("--port={}", server.get_port()))
        .arg(format!("--user={}", server.get_username()));
    let url = url::Url::parse(&inbox.url).unwrap();
    if let Some(password) = url.password() {
        command.env("MYSQL_PWD", password);
    }
    command
}

/// The inbox's database as text.
pub fn dump(inbox: &TestInbox, arguments: &[&str]) -> Vec<u8> {
    let output = client("mariadb-dump", inbox)
        .arg("--single-transaction")
        .args(arguments)
        .arg(&inbox.database)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// Loads a dump into another database, up to the first statement that fails.
pub fn load(inbox: &TestInbox, dump: &[u8]) -> Output {
    let mut loading = client("mariadb", inbox)
        .arg(&inbox.database)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It stops reading where a statement fails.
    let _ = loading.stdin.take().unwrap().write_all(dump);
    loading.wait_with_output().unwrap()
}

pub fn load_all(inbox: &TestInbox, dump: &[u8]) {
    let output = load(inbox, dump);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
