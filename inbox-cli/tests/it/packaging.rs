//! What `packaging` starts, and what it is built of. No image is built here.

use std::path::{Path, PathBuf};

use crate::support::{Output, Place, finish};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn toml(path: &str) -> toml::Table {
    read(path).parse().unwrap()
}

/// The rest of each line that begins with this, where lines that are continued are one.
fn instructions(text: &str, name: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Starts what a package starts, but for where the program and the configuration are, and with `--check`.
fn check(started: &[&str]) -> Output {
    let place = Place::new();
    place.file(
        "inbox.toml",
        "[api]\ntokens = [{ env = \"INBOX_TEST_TOKEN\" }]",
    );
    let [program, arguments @ ..] = started else {
        panic!("nothing is started");
    };
    assert_eq!(*program, "/usr/local/bin/inbox");
    let arguments = arguments.iter().map(|argument| match *argument {
        "/etc/inbox/inbox.toml" => "inbox.toml",
        argument => argument,
    });
    let mut arguments: Vec<_> = arguments.collect();
    assert!(arguments.contains(&"inbox.toml"), "{arguments:?}");
    if !arguments.contains(&"--check") {
        arguments.push("--check");
    }
    let mut command = place.command(&arguments);
    command.env("INBOX_TEST_TOKEN", "a-token-for-tests-0123456789");
    finish(command.output().unwrap())
}

#[test]
fn the_container_starts_the_command_that_it_builds() {
    let text = read("packaging/Containerfile");
    let manifest = toml("inbox-cli/Cargo.toml");
    // Two stages: the first has the compiler that the workspace asks for, or a newer one.
    let stages = instructions(&text, "FROM ");
    let [build, runs] = &stages[..] else {
        panic!("{stages:?}");
    };
    let version =
        |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap()).collect() };
    let has = build.split([':', '-']).nth(1).unwrap();
    let workspace = toml("Cargo.toml");
    let needs = workspace["workspace"]["package"]["rust-version"]
        .as_str()
        .unwrap();
    assert!(version(has) >= version(needs), "{build}, {needs}");
    // What is linked in the first runs in the second.
    let release = |stage: &str| stage.contains("bookworm");
    assert!(release(build) && release(runs), "{stages:?}");
    // The features are there, and the lock file, which is not ignored.
    let runs = instructions(&text, "RUN ");
    let cargo = runs.iter().find(|run| run.starts_with("cargo ")).unwrap();
    for needed in ["build", "--release", "--locked", "-p inbox-cli"] {
        assert!(cargo.contains(needed), "{cargo}");
    }
    let features = cargo.split("--features ").nth(1).unwrap();
    let declared = manifest["features"].as_table().unwrap();
    for feature in features.split(',') {
        assert!(declared.contains_key(feature), "{feature}");
    }
    let ignored = read(".dockerignore");
    assert!(ignored.lines().any(|line| line == "target"));
    assert!(!ignored.contains("Cargo.lock"));
    // The program goes where it is started, by a user who is not root.
    let name = manifest["bin"][0]["name"].as_str().unwrap();
    let copies = instructions(&text, "COPY --from=build ");
    let built = format!("/source/target/release/{name} /usr/local/bin/inbox");
    assert_eq!(copies, [built]);
    let user = &instructions(&text, "USER ")[0];
    assert!(user.parse::<u32>().unwrap() > 0);
    assert!(
        runs.iter()
            .any(|run| run.contains(&format!("--uid {user} "))),
        "{runs:?}"
    );
    let started = &instructions(&text, "ENTRYPOINT ")[0];
    let started: Vec<String> = serde_json::from_str(started).unwrap();
    let started: Vec<_> = started.iter().map(String::as_str).collect();
    check(&started).exits(0);
    // As its first lines say that it is run.
    check(&[&started[..], &["--listen", "0.0.0.0:8080"]].concat()).exits(0);
}

#[test]
fn the_unit_starts_the_command() {
    let text = read("packaging/inbox.service");
    for key in ["ExecStartPre=", "ExecStart="] {
        let [started] = &instructions(&text, key)[..] else {
            panic!("one {key}");
        };
        let started: Vec<_> = started.split(' ').collect();
        check(&started).exits(0);
    }
    // Longer than what is waited for by itself, and what the end takes after that.
    let [limit] = &instructions(&text, "TimeoutStopSec=")[..] else {
        panic!("one limit");
    };
    let limit: u32 = limit.trim_end_matches('s').parse().unwrap();
    let place = Place::new();
    let help = place.inbox(&["serve", "--help"]).exits(0);
    assert!(help.stdout.contains("grace"), "{help:?}");
    let example = read("inbox-cli/inbox.example.toml");
    let grace = instructions(&example, "grace = ").remove(0);
    let grace: u32 = grace
        .trim_matches('"')
        .trim_end_matches('s')
        .parse()
        .unwrap();
    assert!(limit > grace + 8, "{limit} {grace}");
}

/// By the program that reads it, where that is installed.
#[test]
fn systemd_understands_the_unit() {
    if which::which("systemd-analyze").is_err() {
        eprintln!("skipped: there is no systemd-analyze");
        return;
    }
    let place = Place::new();
    // The program has to be there.
    let text = read("packaging/inbox.service")
        .replace("/usr/local/bin/inbox", env!("CARGO_BIN_EXE_inbox"));
    let unit = place.file("inbox.service", text);
    let output = std::process::Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(unit)
        .output();
    let output = finish(output.unwrap());
    assert!(!output.stderr.contains("inbox.service"), "{output:?}");
    output.exits(0);
}
