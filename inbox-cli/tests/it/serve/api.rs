//! The JSON API.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    serve::service::{Service, TOKEN, on_both_stores},
    support::Place,
};

#[test]
fn a_message_goes_from_a_producer_to_a_worker() {
    on_both_stores(async |place| {
        let service = Service::with_api(place);
        assert_eq!(service.send("1").await["status"], "accepted");
        assert_eq!(service.send("1").await["status"], "duplicate");
        let claimed = service.claim(10, 0).await;
        assert_eq!(claimed.len(), 1);
        assert_eq!(claimed[0]["payload"], json!({"id": "1"}));
        assert_eq!(claimed[0]["attempt"], 1);
        let leases = json!({"leases": [claimed[0]["lease"]], "lease_seconds": 120});
        let extended = service.ask("/v1/extend", leases).await;
        assert_eq!(extended["leases"][0]["status"], "extended");
        assert_eq!(
            service.settle(&claimed[0], "retry").await["outcome"],
            "retry"
        );
        // Waits for the retry.
        let claimed = service.claim(10, 30).await;
        assert_eq!(claimed[0]["attempt"], 2);
        let settled = service.settle(&claimed[0], "processed").await;
        assert_eq!(settled, json!({"status": "done", "outcome": "processed"}));
        // What a repetition says changes nothing.
        let repeated = service.settle(&claimed[0], "dead").await;
        assert_eq!(repeated, json!({"status": "done", "outcome": "dead"}));
        let message = json!({"handler": "h", "id": "1", "kind": "k"});
        let begun = service.ask("/v1/begin", json!({"message": message})).await;
        assert_eq!(begun["status"], "processed");
        let listed = place.inbox(&["list", "--json"]).json();
        assert_eq!(listed[0]["state"], "processed", "{listed:?}");
    });
}

#[test]
fn a_stale_lease_changes_nothing() {
    on_both_stores(async |place| {
        let service = Service::with_api(place);
        service.send("1").await;
        let claim = json!({"handlers": ["h"], "lease_seconds": 0.001});
        let first = service.ask("/v1/claim", claim).await["messages"][0].take();
        let second = service.claim(1, 30).await;
        let token = |message: &Value| -> i64 {
            message["lease"]["token"].as_str().unwrap().parse().unwrap()
        };
        assert!(token(&second[0]) > token(&first));
        assert_eq!(service.settle(&first, "dead").await["status"], "lease_lost");
        assert_eq!(
            service.settle(&second[0], "processed").await["status"],
            "done"
        );
    });
}

#[test]
fn one_bad_message_of_many_keeps_no_other_out() {
    on_both_stores(async |place| {
        let service = Service::with_api(place);
        let good = |id: &str| json!({"handler": "h", "id": id, "kind": "k"});
        let batch = json!({"messages": [
            good("1"), {"handler": "h"}, 7, good("1"), good("2"),
            {"handler": "h", "id": "x".repeat(256), "kind": "k"},
        ]});
        let receipts = service.ask("/v1/messages", batch).await["receipts"].take();
        let statuses: Vec<_> = receipts
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["status"].as_str().unwrap())
            .collect();
        let expected = [
            "accepted",
            "refused",
            "refused",
            "duplicate",
            "accepted",
            "refused",
        ];
        assert_eq!(statuses, expected);
        assert_eq!(receipts[1]["problem"]["type"], "urn:inbox:problem:invalid");
        assert_eq!(service.claim(10, 0).await.len(), 2);
    });
}

#[test]
fn a_claim_waits_for_a_message() {
    on_both_stores(async |place| {
        let service = Service::with_api(place);
        // In line behind each other, and for another set of handlers.
        let (one, two, three, ()) = tokio::join!(
            service.claim(1, 60),
            service.claim(1, 60),
            service.ask(
                "/v1/claim",
                json!({"handlers": ["x", "h"], "wait_seconds": 60})
            ),
            async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                for id in ["1", "2", "3"] {
                    service.send(id).await;
                }
            }
        );
        let mut ids = vec![&one[0]["id"], &two[0]["id"], &three["messages"][0]["id"]];
        ids.sort_by_key(|id| id.as_str());
        assert_eq!(ids, ["1", "2", "3"]);
        assert_eq!(service.claim(1, 0).await.len(), 0);
    });
}

/// Begins a claim that waits, as a client that can go away.
fn wait_by_hand(service: &Service) -> TcpStream {
    let address = service.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let body = r#"{"handlers":["h"],"wait_seconds":60}"#;
    write!(
        stream,
        "POST /v1/claim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream
}

#[test]
fn clients_that_end_their_wait_cost_no_attempt() {
    on_both_stores(async |place| {
        let service = Service::with_api(place);
        for round in 0..5 {
            let waiting: Vec<_> = (0..5).map(|_| wait_by_hand(&service)).collect();
            // Perhaps before the service has seen them.
            drop(waiting);
            let id = round.to_string();
            service.send(&id).await;
            let claimed = service.claim(1, 30).await;
            let listed = || place.inbox(&["list", "--json"]).stdout;
            assert_eq!(
                claimed.len(),
                1,
                "round {round}: {} {}",
                service.said(),
                listed()
            );
            assert_eq!(claimed[0]["id"], id);
            assert_eq!(claimed[0]["attempt"], 1, "round {round}");
            service.settle(&claimed[0], "processed").await;
        }
    });
}

#[test]
fn two_claims_never_share_a_message() {
    on_both_stores(async |place| {
        let service = Service::with_api(place);
        let message = |n: usize| json!({"handler": "h", "id": n.to_string(), "kind": "k"});
        let messages: Vec<_> = (0..300).map(message).collect();
        service
            .ask("/v1/messages", json!({"messages": messages}))
            .await;
        let worker = async || {
            let mut mine = Vec::new();
            loop {
                let claimed = service.claim(7, 1).await;
                if claimed.is_empty() {
                    return mine;
                }
                for message in claimed {
                    let settled = service.settle(&message, "processed").await;
                    assert_eq!(settled["status"], "done");
                    mine.push(message["id"].as_str().unwrap().to_owned());
                }
            }
        };
        let (a, b, c, d) = tokio::join!(worker(), worker(), worker(), worker());
        let mut times = BTreeMap::<_, u32>::new();
        for id in [a, b, c, d].concat() {
            *times.entry(id).or_default() += 1;
        }
        assert_eq!(times.len(), 300);
        assert!(times.values().all(|times| *times == 1), "{times:?}");
    });
}

#[test]
fn a_message_that_kills_its_workers_is_dead_in_the_end() {
    on_both_stores(async |place| {
        let service = Service::with_api(place);
        service.send("1").await;
        let claim = json!({"handlers": ["h"], "lease_seconds": 0.001, "wait_seconds": 1});
        let mut attempts = 0;
        loop {
            let answer = service.ask("/v1/claim", claim.clone()).await;
            match answer["messages"].as_array().unwrap().len() {
                0 => break,
                _ => attempts += 1,
            }
        }
        assert_eq!(attempts, 8);
        let listed = place.inbox(&["list", "--json"]).json();
        assert_eq!(listed[0]["state"], "dead", "{listed:?}");
        let error = listed[0]["last_error"].as_str().unwrap();
        assert!(error.contains("attempts used up"), "{error}");
    });
}

/// No worker is left to say whether the later ones of its ordering key may pass.
#[test]
fn a_message_that_kills_its_workers_holds_its_key_up_where_that_is_set() {
    on_both_stores(async |place| {
        place.file(
            "inbox.toml",
            "[api]\ntokens = [{ env = \"INBOX_TEST_TOKEN\" }]\nmax_attempts = 2\nafter_dead = \"block\"\n",
        );
        let service = Service::start(place, &["--config", "inbox.toml"]);
        let message = |id: &str, key: &str| json!({"handler": "h", "id": id, "kind": "k", "ordering_key": key});
        let all = [
            ("1", "a"),
            ("2", "a"),
            ("3", "b"),
            ("4", "b"),
            ("5", "c"),
            ("6", "c"),
        ];
        for (id, key) in all {
            service.ask("/v1/messages", message(id, key)).await;
        }
        // A worker of `b` says that it may go on, and one of `c` nothing.
        let claimed = service.claim(10, 0).await;
        for (at, more) in [(1, json!({"ordering_key": "continue"})), (2, json!({}))] {
            let mut settlement = json!({"lease": claimed[at]["lease"], "outcome": "dead"});
            let fields = settlement.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            let settle = json!({"settlements": [settlement]});
            let settled = service.ask("/v1/settle", settle).await;
            assert_eq!(settled["settlements"][0]["outcome"], "dead", "{settled}");
        }
        let settlement = json!({"lease": claimed[0]["lease"], "outcome": "release"});
        service
            .ask("/v1/settle", json!({"settlements": [settlement]}))
            .await;
        let mut seen = BTreeMap::<String, u32>::new();
        let claim = json!({"handlers": ["h"], "lease_seconds": 0.001, "wait_seconds": 1});
        loop {
            let answer = service.ask("/v1/claim", claim.clone()).await;
            let messages = answer["messages"].as_array().unwrap();
            if messages.is_empty() {
                break;
            }
            for message in messages {
                *seen
                    .entry(message["id"].as_str().unwrap().into())
                    .or_default() += 1;
            }
        }
        let seen: Vec<_> = seen.keys().map(String::as_str).collect();
        assert_eq!(seen, ["1", "4"]);
        let stats = place.inbox(&["stats", "--json"]).json();
        assert_eq!(
            (&stats[0]["dead"], &stats[0]["pending"]),
            (&json!(4), &json!(2))
        );
    });
}

/// The last day of the last year that a time can be written in is a usual way to say never.
#[test]
fn far_due_times_are_taken_and_shown() {
    on_both_stores(async |place| {
        let service = Service::with_api(place);
        let message = |id: &str, name: &str, due: Value| json!({"handler": "h", "id": id, "kind": "k", name: due});
        let far = [
            message("date", "due_at", json!("9999-12-31T23:59:59Z")),
            message(
                "offset",
                "due_at",
                json!("9999-12-31T23:59:59.999999-23:00"),
            ),
            message("delay", "delay_seconds", json!(1e18)),
        ];
        for message in far {
            let stored = service.ask("/v1/messages", message.clone()).await;
            assert_eq!(stored["status"], "accepted", "{message}");
        }
        let listed = place.inbox(&["list", "--json"]).exits(0).json();
        assert_eq!(listed.len(), 3, "{listed:?}");
        const LATEST: &str = "9999-12-30T22:00:00.999Z";
        for record in listed {
            let due = record["due_at"].as_str().unwrap();
            // A delay is cut to some centuries.
            let is_cut = record["id"] == "delay";
            assert!(
                if is_cut { due > "2300-" } else { due == LATEST },
                "{record}"
            );
        }
        place.inbox(&["show", "date"]).exits(0).says(LATEST);
        let until = ["reschedule", "date", "--due", "9999-12-31T00:00:00Z"];
        place.inbox(&until).exits(0);
        for due in [
            "10000-01-01T00:00:00Z",
            "9999-12-31",
            "9999-12-32T00:00:00Z",
        ] {
            let refused = message("none", "due_at", json!(due));
            let (status, answer) = service.post("/v1/messages", &refused).await;
            assert_eq!(status, 422, "{answer}");
        }
    });
}

#[test]
fn a_message_that_has_outlived_its_time_to_live_is_not_handed_out() {
    on_both_stores(async |place| {
        let service = Service::with_api(place);
        let message = |id: &str, millis: &str| {
            let headers = json!({"time-to-live": millis});
            json!({"handler": "h", "id": id, "kind": "k", "headers": headers})
        };
        for (id, millis) in [("claimed", "1"), ("begun", "1"), ("in time", "600000")] {
            service.ask("/v1/messages", message(id, millis)).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begin = json!({"message": message("begun", "1")});
        let begun = service.ask("/v1/begin", begin).await;
        assert_eq!(begun["status"], "dead", "{begun}");
        assert!(begun["reason"].as_str().unwrap().starts_with("expired"));
        let claimed = service.claim(10, 0).await;
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        assert_eq!(claimed[0]["id"], "in time");
        let dead = place.inbox(&["list", "--state", "dead", "--json"]).json();
        assert_eq!(dead.len(), 2, "{dead:?}");
        for one in dead {
            let error = one["last_error"].as_str().unwrap();
            assert!(error.starts_with("expired"), "{error}");
        }
    });
}

const PATHS: [&str; 5] = [
    "/v1/messages",
    "/v1/claim",
    "/v1/settle",
    "/v1/extend",
    "/v1/begin",
];

#[tokio::test]
async fn without_a_valid_token_nothing_is_done() {
    let place = Place::new();
    let service = Service::with_api(&place);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let wrong = [
        None,
        Some("Bearer".to_owned()),
        Some(format!("Bearer {TOKEN}x")),
        Some(format!("Bearer {}", &TOKEN[1..])),
        Some(format!("Basic {TOKEN}")),
        Some(TOKEN.to_owned()),
    ];
    for path in PATHS {
        for header in &wrong {
            let mut request = client.post(format!("{}{path}", service.base)).body("{");
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 401, "{path} {header:?}");
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
            let problem: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
            assert_eq!(problem["type"], "urn:inbox:problem:unauthorized");
        }
    }
    // The description is for everyone.
    let url = format!("{}/v1/openapi.json", service.base);
    let document = client.get(url).send().await.unwrap();
    assert_eq!(document.status(), 200);
    let document: Value = serde_json::from_str(&document.text().await.unwrap()).unwrap();
    assert_eq!(document["openapi"], "3.1.1");
}

#[tokio::test]
async fn the_api_is_not_there_without_a_token() {
    let place = Place::new();
    let service = Service::start(&place, &["--", "true"]);
    for path in PATHS {
        let (status, problem) = service.post(path, &json!({})).await;
        assert_eq!(
            (status.as_u16(), &problem["code"]),
            (404, &json!("not-found"))
        );
    }
}

#[tokio::test]
async fn hostile_requests_are_answered_and_do_no_harm() {
    let place = Place::new();
    let service = Service::with_api(&place);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let message = |field: &str| format!(r#"{{"handler":"h","id":"1","kind":"k",{field}}}"#);
    let bodies: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"\0".to_vec(),
        b"\xff\xfe".to_vec(),
        b"null".to_vec(),
        b"{}{}".to_vec(),
        deep.clone().into_bytes(),
        format!(r#"{{"messages":{deep}}}"#).into_bytes(),
        br#"{"messages":[],"messages":[]}"#.to_vec(),
        br#"{"messages":null}"#.to_vec(),
        br#"{"handlers":["h"],"limit":-1}"#.to_vec(),
        br#"{"handlers":["h"],"limit":99999999999}"#.to_vec(),
        br#"{"handlers":["h"],"wait_seconds":1e308}"#.to_vec(),
        br#"{"handlers":["h"],"wait_seconds":-0.1}"#.to_vec(),
        br#"{"leases":[{}],"lease_seconds":0.0000001}"#.to_vec(),
        message(r#""headers":{"a":1}"#).into_bytes(),
        message(r#""headers":{"":"x"}"#).into_bytes(),
        message(r#""due_at":"9999999-01-01T00:00:00Z""#).into_bytes(),
        message(r#""delay_seconds":1e400"#).into_bytes(),
        message(r#""payload_base64":"=""#).into_bytes(),
        message("\"id\":\"\u{0}\"").into_bytes(),
        message(r#""kind":"\u0000""#).into_bytes(),
        message(r#""ordering_key":"""#).into_bytes(),
    ];
    for path in PATHS {
        for body in &bodies {
            let request = service.request(Method::POST, path);
            let request = request.header("content-type", "application/json");
            let response = request.body(body.clone()).send().await.unwrap();
            let status = response.status().as_u16();
            let shown = String::from_utf8_lossy(&body[..body.len().min(80)]);
            assert!(
                (400..500).contains(&status) || status == 200,
                "{status} to {shown} at {path}"
            );
        }
        let typeless = service.request(Method::POST, path).body("{}");
        assert_eq!(typeless.send().await.unwrap().status(), 415);
        // Another client, since its connection ends with this.
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let large = client
            .post(format!("{}{path}", service.base))
            .bearer_auth(TOKEN);
        let large = large.header("content-type", "application/json");
        let large = large.body(vec![b' '; 33 * 1024 * 1024]).send().await;
        // Refused before all of it is read, which a client may see as a connection that ends.
        if let Ok(response) = large {
            assert_eq!(response.status(), 413);
        }
    }
    // A payload that is nested too deeply for most readers is as good as any other.
    let sent = message(&format!(r#""payload":{deep}"#));
    let request = service.request(Method::POST, "/v1/messages");
    let request = request
        .header("content-type", "application/json")
        .body(sent);
    assert_eq!(request.send().await.unwrap().status(), 201);
    let claimed = service.claim(1, 0).await;
    assert!(
        claimed[0]["payload_base64"]
            .as_str()
            .unwrap()
            .starts_with("W1tb")
    );
    service.settle(&claimed[0], "processed").await;
}

#[test]
fn garbage_on_the_connection_ends_that_connection_only() {
    let place = Place::new();
    let service = Service::with_api(&place);
    let address = service.base.strip_prefix("http://").unwrap();
    for garbage in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"GET\r\n\r\n",
        b"\r\n\r\n\r\n",
        &[0xff; 4096],
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(garbage).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // Answered or closed, but not left.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let sent = runtime.block_on(service.send("1"));
    assert_eq!(sent["status"], "accepted");
}
