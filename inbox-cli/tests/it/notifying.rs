//! What a webhook is told.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

use serde_json::Value;

use crate::{
    serve::service::{Service, on_both_stores},
    support::{Place, wait_for},
};

/// Takes what is posted; the first one is refused.
fn receiver() -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/T000/secret", listener.local_addr().unwrap());
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&bodies);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).unwrap_or(0) > 2 {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let status = if number == 0 { "503 Later" } else { "200 OK" };
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            if number > 0 {
                taken
                    .lock()
                    .unwrap()
                    .push(serde_json::from_slice(&body).unwrap());
            }
        }
    });
    (url, bodies)
}

#[test]
fn dead_letters_and_lag_are_told_once_each_and_when_they_are_over() {
    on_both_stores(async |place: &Place| {
        let (url, bodies) = receiver();
        let configuration = "[api]\ntokens = [{ env = \"INBOX_TEST_TOKEN\" }]\n\
            [notify]\nwebhook = { env = \"INBOX_TEST_WEBHOOK\" }\nmax_lag = \"300ms\"\n\
            interval = \"50ms\"\nat_most_every = \"200ms\"\ntitle = \"Orders\"\n\
            [[handlers]]\nname = \"bad\"\ncommand = [\"sh\", \"-c\", \"echo 'no order 4711' >&2; exit 65\"]";
        place.file("inbox.toml", configuration);
        let arguments = ["serve", "--config", "inbox.toml", "--listen", "127.0.0.1:0"];
        let mut command = place.command(&arguments);
        command.env("INBOX_TEST_WEBHOOK", &url);
        let service = Service::run(command);
        let has = |text: &str| {
            let bodies = bodies.lock().unwrap();
            let of = |body: &Value| body["text"].as_str().unwrap().to_owned();
            bodies
                .iter()
                .map(of)
                .filter(|body| body.contains(text))
                .count()
        };
        for id in ["1", "2", "3"] {
            let message =
                serde_json::json!({"handler": "bad", "id": id, "kind": "k", "payload": {}});
            service.ask("/v1/messages", message).await;
        }
        // Nobody works on it.
        service.send("4").await;
        wait_for("both", || has("of kind k") > 0 && has("h is behind by") > 0);
        place
            .inbox(&["discard", "--handler", "bad", "--all"])
            .exits(0);
        place
            .inbox(&["discard", "--handler", "h", "--state", "pending", "--all"])
            .exits(0);
        wait_for("the all-clear", || {
            let bodies = bodies.lock().unwrap();
            bodies.last().is_some_and(|body| body["all_clear"] == true)
        });
        assert_eq!(has("• h is behind by"), 1, "{bodies:?}");
        assert_eq!(has("✓ h is no longer behind"), 1, "{bodies:?}");
        assert_eq!(has("✓ bad: no dead letters of kind k"), 1, "{bodies:?}");
        let bodies = bodies.lock().unwrap();
        let all = serde_json::to_string(&*bodies).unwrap();
        assert!(
            all.contains("\"about\":\"dead\"") && all.contains("Orders"),
            "{all}"
        );
        // What a handler said is not sent about, but for its shape.
        assert!(!all.contains("4711"), "{all}");
        // Three messages of one group are one thing.
        let begun = bodies
            .iter()
            .flat_map(|body| body["events"].as_array().unwrap());
        let begun = begun.filter(|event| event["about"] == "dead" && event["state"] == "begun");
        assert_eq!(begun.count(), 1, "{all}");
        let said = service.said();
        assert!(said.contains("a notification was not taken"), "{said}");
        assert!(!said.contains("secret"), "{said}");
        assert!(
            said.contains("dead letters and lag are told to 127.0.0.1"),
            "{said}"
        );
    });
}
