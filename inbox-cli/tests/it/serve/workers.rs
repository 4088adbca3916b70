//! The workers in other languages, as they stand in `examples`.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::post};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    serve::service::{Service, TOKEN, on_both_stores},
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

/// A worker whose handler waits until it is told that the lease is lost, and then says `stopped`. It must
/// not settle the message.
async fn stops(mut worker: Command) {
    let (claims, settlements) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let answer = |answer: Value| ([("content-type", "application/json")], answer.to_string());
    let claim = {
        let claims = Arc::clone(&claims);
        move || async move {
            let is_first = claims.fetch_add(1, Ordering::SeqCst) == 0;
            let message = json!({"payload": {"order": 7}, "lease": {"token": "1"}});
            tokio::time::sleep(Duration::from_millis(50)).await;
            answer(json!({"messages": if is_first { vec![message] } else { vec![] }}))
        }
    };
    let settle = {
        let settlements = Arc::clone(&settlements);
        move || async move {
            settlements.fetch_add(1, Ordering::SeqCst);
            answer(json!({"settlements": [{"status": "lease_lost"}]}))
        }
    };
    let app = Router::new()
        .route("/v1/claim", post(claim))
        .route(
            "/v1/extend",
            post(move || async move { answer(json!({"leases": [{"status": "lease_lost"}]})) }),
        )
        .route("/v1/settle", post(settle));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = axum_server::from_tcp(listener).unwrap();
    tokio::spawn(server.serve(app.into_make_service()));
    let worker = worker
        .env("INBOX_TOKEN", TOKEN)
        .env("INBOX_URL", url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    tokio::task::block_in_place(|| {
        wait_for("the next claim", || claims.load(Ordering::SeqCst) > 1);
    });
    signal(&worker, Signal::SIGTERM);
    let output = tokio::task::block_in_place(|| worker.wait_with_output());
    finish(output.unwrap()).exits(0).says("stopped");
    assert_eq!(settlements.load(Ordering::SeqCst), 0);
}

/// The worker with other lines in place of some.
fn changed(script: &Path, changes: [(&str, &str); 2]) -> tempfile::NamedTempFile {
    let mut text = std::fs::read_to_string(script).unwrap();
    for (from, to) in changes {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text = text.replace(from, to);
    }
    // To Node a module, as its package says of it where it stands; to Python it is all one.
    let file = tempfile::Builder::new().suffix(".mjs").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_worker_stops_when_its_lease_is_lost() {
    if which::which("python3").is_err() {
        eprintln!("skipped: there is no python3");
        return;
    }
    let script = changed(
        &examples().join("python-worker/worker.py"),
        [
            (
                "os.environ[\"INBOX_TOKEN\"], 60",
                "os.environ[\"INBOX_TOKEN\"], 0.3",
            ),
            (
                "print(\"charging for order\", message[\"payload\"][\"order\"])",
                "print(\"stopped\" if lost.wait(60) else \"not told\")",
            ),
        ],
    );
    let mut command = Command::new("python3");
    command.arg("-u").arg(script.path());
    stops(command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_typescript_worker_stops_when_its_lease_is_lost() {
    let script = match tokio::task::block_in_place(compiled) {
        Ok(script) => script,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let script = changed(
        &script,
        [
            ("LEASE = 60", "LEASE = 0.3"),
            (
                "console.log(\"charging for order\", order);",
                "await new Promise((stop) => lost.addEventListener(\"abort\", stop)); \
                 console.log(\"stopped\");",
            ),
        ],
    );
    let mut command = Command::new("node");
    command.arg(script.path());
    stops(command).await;
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

/// The worker as JavaScript, and with that its types checked; or why that cannot be had. One at a time:
/// those who ask share a folder.
fn compiled() -> Result<PathBuf, String> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
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
