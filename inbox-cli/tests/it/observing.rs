//! `/metrics`, the probes and `inbox health`.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

use nix::sys::signal::Signal;
use reqwest::{Method, StatusCode};

use crate::{
    serve::service::{Service, TOKEN, on_both_stores},
    support::{Place, event, signal, wait_for},
};

/// The values of the series whose names and labels begin so.
pub(crate) fn values(metrics: &str, series: &str) -> Vec<f64> {
    let lines = metrics.lines().filter(|line| line.starts_with(series));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect()
}

async fn text(url: &str) -> (StatusCode, String) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let answer = reqwest::get(url).await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}

/// Asks until a series has this value.
async fn shows(url: &str, series: &str, value: f64) -> String {
    for _ in 0..600 {
        let (_, metrics) = text(url).await;
        if values(&metrics, series).contains(&value) {
            return metrics;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let (_, metrics) = text(url).await;
    panic!("no {series} of {value} in {metrics}");
}

/// A service with a handler of each fate, and its metrics at their own address.
pub(crate) fn eventful(place: &Place) -> (Service, String) {
    let configuration = "[api]\ntokens = [{ env = \"INBOX_TEST_TOKEN\" }]\n\
        [metrics]\nlisten = \"127.0.0.1:0\"\n\
        [[handlers]]\nname = \"good\"\ncommand = [\"true\"]\n\
        [[handlers]]\nname = \"bad\"\ncommand = [\"sh\", \"-c\", \"exit 65\"]";
    place.file("inbox.toml", configuration);
    let service = Service::start(place, &["--config", "inbox.toml"]);
    let mut metrics = None;
    wait_for("the metrics' address", || {
        let said = service.said();
        let mut lines = said.lines();
        metrics = lines.find_map(|line| Some(line.strip_prefix("  metrics at ")?.to_owned()));
        metrics.is_some()
    });
    (service, metrics.unwrap())
}

#[test]
fn what_a_service_does_and_what_its_store_knows_are_numbers() {
    on_both_stores(async |place| {
        let (service, url) = eventful(place);
        for (handler, id) in [("good", "1"), ("bad", "2"), ("h", "3"), ("h", "4")] {
            let message =
                serde_json::json!({"handler": handler, "id": id, "kind": "k", "payload": {}});
            service.ask("/v1/messages", message).await;
        }
        let claimed = service.claim(1, 5).await;
        service.settle(&claimed[0], "dead").await;
        let metrics = shows(&url, "inbox_messages{handler=\"bad\",state=\"dead\"}", 1.0).await;
        for (series, value) in [
            ("inbox_processed_total{handler=\"good\"}", 1.0),
            ("inbox_dead_total{handler=\"bad\"}", 1.0),
            // By a worker of the API.
            ("inbox_dead_total{handler=\"h\"}", 1.0),
            ("inbox_claimed_total{handler=\"h\"}", 1.0),
            // Defect: without these, the first one was no increase, and a rate of both together was none.
            ("inbox_retried_total{handler=\"h\"}", 0.0),
            ("inbox_refused_total{handler=\"h\"}", 0.0),
            ("inbox_in_flight{handler=\"good\"}", 0.0),
            ("inbox_handler_paused{handler=\"good\"}", 0.0),
            ("inbox_blocking_dead{handler=\"bad\"}", 0.0),
            ("inbox_corrupt_total", 0.0),
        ] {
            assert!(
                values(&metrics, series).contains(&value),
                "{series} in {metrics}"
            );
        }
        for timestamp in [
            "inbox_last_claim_timestamp_seconds{handler=\"good\"}",
            "inbox_last_claim_timestamp_seconds{handler=\"h\"}",
            "inbox_last_sweep_timestamp_seconds",
            "inbox_statistics_timestamp_seconds",
        ] {
            let values = values(&metrics, timestamp);
            assert!(
                values.iter().any(|at| *at > 1.7e9),
                "{timestamp} in {metrics}"
            );
        }
        assert!(!metrics.contains(TOKEN));
        // Not where the senders are.
        let answer = service.request(Method::GET, "/metrics").send().await;
        assert_eq!(answer.unwrap().status(), StatusCode::NOT_FOUND);
    });
}

#[tokio::test]
async fn metrics_at_the_service_need_its_token_if_there_is_one() {
    let place = Place::new();
    let configuration = "[metrics]\ntokens = [{ env = \"INBOX_TEST_METRICS\" }]\n\
        [[handlers]]\nname = \"h\"\ncommand = [\"true\"]";
    place.file("inbox.toml", configuration);
    let arguments = ["serve", "--config", "inbox.toml", "--listen", "127.0.0.1:0"];
    let mut command = place.command(&arguments);
    command.env("INBOX_TEST_METRICS", "metrics-token-0123456789");
    let service = Service::run(command);
    let url = format!("{}/metrics", service.base);
    let (status, _) = text(&url).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let open = reqwest::Client::new().get(&url);
    let open = open.bearer_auth("metrics-token-0123456789").send();
    let open = open.await.unwrap();
    assert_eq!(open.status(), StatusCode::OK);
    let kind = open.headers()["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    assert!(open.text().await.unwrap().contains("inbox_build_info"));
    assert!(service.said().contains("metrics at /metrics"));
}

/// Starts a command, and returns what stands behind `mark` in the line of its standard error that has it.
fn start(place: &Place, arguments: &[&str], mark: &str) -> (Child, String) {
    let mut child = place
        .command(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let found = lines.find_map(|line| Some(line.unwrap().split_once(mark)?.1.to_owned()));
    (child, found.unwrap())
}

#[tokio::test]
async fn process_and_dashboard_tell_how_they_do() {
    let place = Place::new();
    place.file("one.ndjson", event("1", "k", "{}"));
    place.inbox(&["ingest", "one.ndjson"]).exits(0);
    let arguments = ["process", "--listen", "127.0.0.1:0", "--", "true"];
    let (mut process, base) = start(&place, &arguments, "metrics and probes at ");
    let url = format!("{base}/metrics");
    shows(&url, "inbox_processed_total{handler=\"default\"}", 1.0).await;
    shows(
        &url,
        "inbox_messages{handler=\"default\",state=\"processed\"}",
        1.0,
    )
    .await;
    assert_eq!(text(&format!("{base}/healthz")).await.0, StatusCode::OK);
    let ready = text(&format!("{base}/readyz")).await;
    assert_eq!(ready, (StatusCode::OK, "ready\n".to_owned()));
    place
        .inbox(&["health", "--at", &base])
        .exits(0)
        .says("well");

    let arguments = ["dashboard", "--listen", "127.0.0.1:0"];
    let (mut pages, address) = start(&place, &arguments, "the dashboard is at ");
    let url = format!("{address}/metrics");
    let series = "inbox_messages{handler=\"default\",state=\"processed\"}";
    shows(&url, series, 1.0).await;
    place
        .inbox(&["health", "--at", &address])
        .exits(0)
        .says("well");
    let rebound = reqwest::Client::new().get(&url);
    let rebound = rebound.header("host", "evil.example").send();
    let status = rebound.await.unwrap().status();
    assert_eq!(status, StatusCode::MISDIRECTED_REQUEST);

    for child in [&mut process, &mut pages] {
        signal(child, Signal::SIGTERM);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    let gone = place.inbox(&["health", "--at", &base]).exits(1);
    gone.says("it does not answer");
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_store_that_is_gone_is_no_reason_for_a_restart() {
    use test_servers::{Kind, find_own, or_skip};

    let server = or_skip(Kind::Postgres, find_own(Kind::Postgres, &[])).unwrap();
    let Some(mut server) = server else { return };
    let place = Place::at(server.url());
    let (service, metrics) = eventful(&place);
    let base = metrics.trim_end_matches("/metrics").to_owned();
    place
        .inbox(&["health", "--at", &base])
        .exits(0)
        .says("well");
    server.stop().unwrap();
    wait_for("it to notice", || {
        let health = place.inbox(&["health", "--at", &base]);
        health.code == Some(1) && health.stdout.contains("degraded: processor: claims")
    });
    let unwell = place.inbox(&["health", "--at", &base]).exits(1);
    unwell.says("the store is unavailable");
    assert_eq!(text(&format!("{base}/healthz")).await.0, StatusCode::OK);
    // Where senders come by, nothing is said of hosts and handlers.
    let public = text(&format!("{}/readyz", service.base)).await;
    let brief = "the store is unavailable\ndegraded: the log has the reasons\n";
    assert_eq!(public, (StatusCode::SERVICE_UNAVAILABLE, brief.to_owned()));
    server.start().unwrap();
    wait_for("it to recover", || {
        let health = place.inbox(&["health", "--at", &base]);
        health.code == Some(0) && health.stdout == "well\n"
    });
}

/// A proxy would answer for one that is not there.
#[test]
fn health_asks_the_process_itself_and_no_proxy() {
    let place = Place::new();
    let proxy = crate::posting::proxy();
    for at in ["http://127.0.0.1:7", "http://inbox.invalid"] {
        let mut health = place.command(&["health", "--at", at]);
        let output = health.env("http_proxy", &proxy).output().unwrap();
        crate::support::finish(output)
            .exits(1)
            .says("it does not answer");
    }
}

#[test]
fn health_of_a_store_is_an_exit_code_and_its_reasons() {
    let place = Place::new();
    place
        .inbox(&["health"])
        .exits(1)
        .says("there is no inbox")
        .says("if yours has a name, add `inbox=NAME`");
    let missing = place.inbox(&["health", "--json"]).exits(1).json();
    assert_eq!(missing[0]["is_well"], false);
    let reason = missing[0]["unwell"][0].as_str().unwrap();
    assert!(reason.contains("there is no inbox"), "{reason}");
    place.file("one.ndjson", event("1", "k", "{}"));
    place.inbox(&["ingest", "one.ndjson"]).exits(0);
    place.inbox(&["health"]).exits(0).says("well");
    std::thread::sleep(std::time::Duration::from_millis(20));
    place
        .inbox(&["health", "--max-lag", "1ms"])
        .exits(1)
        .says("handler default is behind by");
    place.inbox(&["health", "--max-lag", "1h"]).exits(0);
    place.inbox(&["pause", "default"]).exits(0);
    let paused = place.inbox(&["health", "--json"]).exits(0);
    assert_eq!(paused.json()[0]["is_well"], true);
    assert_eq!(paused.json()[0]["degraded"][0], "handler default is paused");
    // Nobody is to be woken for what an operator has done.
    place
        .inbox(&["health", "--max-lag", "1ms"])
        .exits(0)
        .says("degraded: handler default is paused");
    for at in ["ftp://h", "127.0.0.1:9191", "localhost:9191"] {
        place
            .inbox(&["health", "--at", at])
            .exits(2)
            .complains("such as http://127.0.0.1:8080");
    }
}
