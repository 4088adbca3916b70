//! What is compiled without having been asked for. Builds of all features, as the tests are, do not
//! show it.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, which the configuration for tests does not reach"
)]

use std::{collections::BTreeSet, process::Command};

/// The packages that a build with these arguments compiles, tests apart.
fn packages(arguments: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let names = lines.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Each with its feature and what it brings.
const SERVERS: [(&str, &str); 6] = [
    ("mongodb", "mongodb"),
    ("mysql", "sqlx-mysql"),
    ("postgres", "sqlx-postgres"),
    ("rabbitmq", "lapin"),
    ("redis", "redis"),
    ("sqs", "aws-sdk-sqs"),
];

#[test]
fn the_command_has_no_server_that_was_not_asked_for() {
    let default = packages(&["--package", "inbox-cli"]);
    assert!(default.contains("sqlx-sqlite"), "{default:?}");
    for (feature, driver) in SERVERS {
        assert!(!default.contains(driver), "{driver}");
        let asked = packages(&["--package", "inbox-cli", "--features", feature]);
        assert!(asked.contains(driver), "{driver}");
        for (_, other) in SERVERS.iter().filter(|(other, _)| *other != feature) {
            assert!(!asked.contains(*other), "{other} with {feature}");
        }
    }
    assert!(!default.contains("conformance-tests"));
}

#[test]
fn the_library_alone_has_no_driver() {
    let alone = packages(&["--package", "inbox"]);
    assert!(alone.contains("inbox-api"), "{alone:?}");
    let heavy = ["url", "rustls", "sqlx-core", "sqlx-sqlite"];
    let drivers = SERVERS.map(|(_, driver)| driver);
    for name in heavy.iter().chain(&drivers) {
        assert!(!alone.contains(*name), "{name}");
    }
    // Of others there were 60, and 29 of them for nothing. Since then digests of what is no message, base64 and
    // percent-encoding of CloudEvents, and fingerprints have brought twelve.
    let own = |name: &&String| name.as_str() == "inbox" || name.starts_with("inbox-");
    let others = alone.len() - alone.iter().filter(own).count();
    assert!(others < 45, "{others}: {alone:?}");
}
