//! What is shipped for Prometheus and Grafana, in a running Prometheus.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use test_servers::{Kind, find_own, or_skip};

use crate::{observing::eventful, support::Place};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging");

/// Metrics that nothing here brings about: circuits, which the command does not have, brokers, webhooks, and
/// what has not gone wrong.
const ABSENT: [&str; 5] = [
    "inbox_circuit_open",
    "inbox_received_total",
    "inbox_http_webhooks_total",
    "inbox_store_errors_total",
    "inbox_purged_total",
];

/// How long to wait for what has to come.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `promtool` as far as it is there, which it is with Prometheus.
fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

#[tokio::test]
async fn every_query_that_is_shipped_is_answered() {
    // Readable for the user that the server runs as.
    let place = Place::new();
    let folder = place.path("");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let (service, url) = eventful(&place);
    let target = url
        .trim_start_matches("http://")
        .trim_end_matches("/metrics");
    let rules = fs::read_to_string(Path::new(PACKAGING).join("prometheus/inbox.rules.yml"));
    place.file("inbox.rules.yml", rules.unwrap());
    let configuration = place.file(
        "prometheus.yml",
        format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: [inbox.rules.yml]\n\
             scrape_configs:\n  - job_name: inbox\n    static_configs: [{{ targets: ['{target}'] }}]\n"
        ),
    );
    let argument = format!("--config.file={}", configuration.display());
    let prometheus = find_own(Kind::Prometheus, &[&argument]);
    let Some(prometheus) = or_skip(Kind::Prometheus, prometheus).unwrap() else {
        return;
    };
    promtool(&[
        "check",
        "rules",
        &format!("{PACKAGING}/prometheus/inbox.rules.yml"),
    ]);
    promtool(&[
        "test",
        "rules",
        &format!("{PACKAGING}/prometheus/inbox.rules.test.yml"),
    ]);
    promtool(&["check", "config", &configuration.display().to_string()]);

    let base = prometheus.url().to_owned();
    let ask = async |path: &str, query: &str| -> Value {
        let mut url: reqwest::Url = format!("{base}/api/v1/{path}").parse().unwrap();
        if !query.is_empty() {
            url.query_pairs_mut().append_pair("query", query);
        }
        let answer = reqwest::get(url).await.unwrap().text().await.unwrap();
        serde_json::from_str(&answer).unwrap()
    };
    // What it is made of may come with a later scrape.
    let ask_until = async |path: &str, query: &str, is_so: &dyn Fn(&Value) -> bool| -> Value {
        let begun = Instant::now();
        loop {
            let answer = ask(path, query).await;
            if is_so(&answer) || begun.elapsed() > LIMIT {
                return answer;
            }
            thread::sleep(Duration::from_millis(300));
        }
    };
    // Messages all the time, so that there are rates.
    let begun = Instant::now();
    let mut number = 0;
    loop {
        for handler in ["good", "bad", "h"] {
            number += 1;
            let id = number.to_string();
            let message = json!({"handler": handler, "id": id, "kind": "k", "payload": {}});
            service.ask("/v1/messages", message).await;
        }
        let query = "rate(inbox_processed_total{handler=\"good\"}[1m]) > 0 and on (handler) \
                     inbox_messages{state=\"processed\"}";
        let rate = ask("query", query).await;
        if rate["data"]["result"]
            .as_array()
            .is_some_and(|r| !r.is_empty())
        {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{rate}");
        thread::sleep(Duration::from_millis(300));
    }

    let there: BTreeSet<String> = ask("label/__name__/values", "").await["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let is_there = |query: &str| {
        let mut names = names(query);
        names.all(|name| {
            let known = there.contains(&name);
            assert!(known || ABSENT.contains(&name.as_str()), "no metric {name}");
            known
        })
    };
    let (mut queries, mut answered) = (0, 0);
    for query in of_dashboard() {
        let is_answered = |answer: &Value| {
            let result = answer["data"]["result"].as_array();
            result.is_some_and(|result| !result.is_empty())
        };
        let has_answer = is_there(&query);
        let is_so = |answer: &Value| !has_answer || is_answered(answer);
        let answer = ask_until("query", &query, &is_so).await;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        queries += 1;
        if has_answer {
            assert!(is_answered(&answer), "{query}: {answer}");
            answered += 1;
        }
    }
    assert!(queries >= 25 && answered >= 20, "{queries} {answered}");

    let rules_of = |answer: &Value| {
        let rules = answer["data"]["groups"][0]["rules"].as_array();
        rules.unwrap().clone()
    };
    let is_known = |rule: &Value| rule["health"] != "unknown";
    let is_firing = |rule: &Value| rule["name"] == "InboxDeadLetters" && rule["state"] == "firing";
    let is_so = |answer: &Value| {
        let rules = rules_of(answer);
        rules.iter().all(is_known) && rules.iter().any(is_firing)
    };
    let alerts = rules_of(&ask_until("rules", "", &is_so).await);
    assert!(alerts.len() >= 10, "{alerts:?}");
    for rule in &alerts {
        assert_eq!(rule["health"], "ok", "{rule}");
        is_there(rule["query"].as_str().unwrap());
    }
    let dead = alerts
        .iter()
        .find(|rule| rule["name"] == "InboxDeadLetters");
    assert_eq!(dead.unwrap()["state"], "firing", "{dead:?}");
}

/// The metrics that a query names.
fn names(query: &str) -> impl Iterator<Item = String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("inbox_"))
        .map(str::to_owned)
}

/// The queries of the Grafana dashboard, as Grafana sends them. What Grafana relies on is as it should be.
fn of_dashboard() -> Vec<String> {
    let text = fs::read_to_string(format!("{PACKAGING}/grafana/inbox.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut ids = BTreeSet::new();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = &panel["gridPos"];
        let right = place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap();
        assert!(right <= 24, "{panel}");
        let Some(targets) = panel["targets"].as_array() else {
            assert_eq!(panel["type"], "row");
            continue;
        };
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}");
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$handler", ".*");
            let query = query.replace("$__rate_interval", "1m");
            assert!(!query.contains('$'), "{query}");
            queries.push(query);
        }
    }
    queries
}
