//! The workers in other languages, as they stand in `examples`.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    service::{Service, TOKEN, on_both_stores},
    support::{Place, finish, signal, wait_for},
};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// A worker's run: it handles good messages, retries and gives up bad ones, and ends in order.
async fn works(place: &Place, start: impl Fn(&str) -> Command) {
    let service = Service::with_api(place);
    let mut worker: Child = start(&service.base)
        .env("INBOX_TOKEN", TOKEN)
        .env("INBOX_URL", &service.base)
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let message = |id: &str, payload| json!({"handler": "billing", "id": id, "kind": "order.placed", "payload": payload});
    let batch = json!({"messages": [
        message("1", json!({"order": 7})),
        message("2", json!({"order": 8})),
        message("3", json!({"no": "order"})),
    ]});
    service.ask("/v1/messages", batch.clone()).await;
    wait_for("the worker", || {
        assert_eq!(worker.try_wait().unwrap(), None);
        let listed = place.inbox(&["list", "--json"]).json();
        let is = |id: &str, state: &str| {
            listed
                .iter()
                .any(|record| record["id"] == id && record["state"] == state)
        };
        is("1", "processed") && is("2", "processed") && is("3", "dead")
    });
    let again = service.ask("/v1/messages", batch).await;
    assert_eq!(again["receipts"][0]["status"], "duplicate");
    signal(&worker, Signal::SIGTERM);
    let output = finish(worker.wait_with_output().unwrap()).exits(0);
    assert!(output.stdout.contains("charging for order 7"), "{output:?}");
    assert_eq!(output.stdout.matches("charging").count(), 2, "{output:?}");
}

#[test]
fn the_python_worker_works() {
    if which::which("python3").is_err() {
        eprintln!("skipped: there is no python3");
        return;
    }
    on_both_stores(async |place| {
        let script = examples().join("python-worker/worker.py");
        works(place, |_| {
            let mut command = Command::new("python3");
            command.arg("-u").arg(&script);
            command
        })
        .await;
    });
}

/// The worker as JavaScript, and with that its types checked; or why that cannot be had.
fn compiled() -> Result<PathBuf, String> {
    let example = examples().join("typescript-worker");
    if which::which("node").is_err() || which::which("npm").is_err() {
        return Err("there is no node and npm".to_owned());
    }
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("typescript-worker");
    std::fs::create_dir_all(&out).unwrap();
    for file in [
        "package.json",
        "package-lock.json",
        "tsconfig.json",
        "worker.ts",
    ] {
        std::fs::copy(example.join(file), out.join(file)).unwrap();
    }
    let npm = |arguments: &[&str]| {
        let output = Command::new("npm")
            .args(arguments)
            .current_dir(&out)
            .output();
        output.unwrap()
    };
    let lock = std::fs::read(out.join("package-lock.json")).unwrap();
    let installed = std::fs::read(out.join("node_modules/of-lock")).unwrap_or_default();
    if installed != lock {
        let output = npm(&["ci", "--no-audit", "--no-fund"]);
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("the compiler cannot be installed: {said}"));
        }
        std::fs::write(out.join("node_modules/of-lock"), lock).unwrap();
    }
    // What it says of the worker's types is a failure, no reason to skip.
    finish(npm(&["run", "--silent", "build"])).exits(0);
    Ok(out.join("worker.js"))
}

#[test]
fn the_typescript_worker_works() {
    let script = match compiled() {
        Ok(script) => script,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    on_both_stores(async |place| {
        works(place, |_| {
            let mut command = Command::new("node");
            command.arg(&script);
            command
        })
        .await;
    });
}
