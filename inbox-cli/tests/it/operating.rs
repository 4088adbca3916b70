//! What operators do to many messages at once, to handlers, and to an inbox.

use std::{thread, time::Duration};

use crate::support::{Place, event, events, finish, on_every_store};

/// Ingests messages whose handling fails with this text, and with no other attempt.
fn fails_all(place: &Place, ids: &[&str], error: &str) {
    let input: String = ids.iter().map(|id| event(id, "k", "{}")).collect();
    place.file("failing.ndjson", input);
    let script = format!("echo '{error}' >&2; exit 65");
    place
        .inbox(&["run", "failing.ndjson", "--", "sh", "-c", &script])
        .exits(4);
}

#[test]
fn dead_ones_are_summarised_by_the_type_of_their_error() {
    on_every_store(|place| {
        fails_all(place, &["a", "b"], "app::Declined: card 1");
        fails_all(place, &["c"], "no type");
        place
            .inbox_with(&["ingest", "-"], event("d", "k", "{}").as_bytes())
            .exits(0);
        let groups = place.inbox(&["dead", "--json"]).exits(0).json();
        let told: u64 = groups.iter().filter_map(|g| g["messages"].as_u64()).sum();
        assert_eq!(told, 3, "{groups:?}");
        place
            .inbox(&["dead"])
            .exits(0)
            .says("LAST DIED")
            .complains("3 messages");
        let listed = place.inbox(&["dead", "--list", "--json"]).exits(0).json();
        assert_eq!(listed.len(), 3);
        let some = [
            "dead", "--list", "--json", "--id", "a", "--id", "c", "--id", "d",
        ];
        assert_eq!(place.inbox(&some).exits(0).json().len(), 2);
        place
            .inbox(&["dead", "--most", "1"])
            .exits(0)
            .complains("there are more");
        let none = ["dead", "--list", "--json", "--finished-longer-ago", "1h"];
        assert_eq!(place.inbox(&none).exits(0).json().len(), 0);
        let all = [
            "dead",
            "--list",
            "--json",
            "--finished-within",
            "1h",
            "--min-attempts",
            "1",
            "--max-attempts",
            "9",
        ];
        assert_eq!(place.inbox(&all).exits(0).json().len(), 3);
        let blocking = ["list", "--json", "--blocking"];
        assert_eq!(place.inbox(&blocking).exits(0).json().len(), 0);
        place
            .inbox(&["list", "--error-type", "no type"])
            .exits(2)
            .complains("a path such as");
    });
}

#[test]
fn what_is_for_lists_is_not_ignored_in_summaries() {
    let place = Place::new();
    for command in ["dead", "scheduled"] {
        for page in [
            &["--limit", "5"][..],
            &["--after", "x"],
            &["--newest"],
            &["--total"],
        ] {
            place
                .inbox(&[&[command], page].concat())
                .exits(2)
                .complains("go with --list");
        }
    }
    place
        .inbox_with(&["ingest", "-"], events(3).as_bytes())
        .exits(0);
    place
        .inbox(&["discard", "--all", "--state", "pending"])
        .exits(0);
    for list in [&["dead", "--list"][..], &["list"]] {
        let page = ["--json", "--limit", "2", "--newest", "--total"];
        place.inbox(&[list, &page].concat()).exits(0);
    }
}

#[test]
fn what_is_scheduled_is_shown_and_rescheduled() {
    on_every_store(|place| {
        place
            .inbox_with(&["ingest", "-"], events(3).as_bytes())
            .exits(0);
        let scheduled = || {
            place
                .inbox(&["scheduled", "--list", "--json"])
                .exits(0)
                .json()
                .len()
        };
        assert_eq!(scheduled(), 0);
        place
            .inbox(&["reschedule", "e0", "e1", "--after", "2h"])
            .exits(0)
            .says("2 messages rescheduled");
        assert_eq!(scheduled(), 2);
        place
            .inbox(&["scheduled"])
            .exits(0)
            .says("FIRST DUE")
            .complains("2 messages");
        place
            .inbox(&["scheduled", "--list"])
            .exits(0)
            .says("e1")
            .complains("2 of 2 messages");
        let later = ["scheduled", "--list", "--json", "--due-later-than", "3h"];
        assert_eq!(place.inbox(&later).exits(0).json().len(), 0);
        place
            .inbox(&[
                "reschedule",
                "--all",
                "--due-later-than",
                "0s",
                "--after",
                "0s",
                "--dry-run",
            ])
            .exits(0)
            .says("2 messages would be rescheduled");
        place
            .inbox(&[
                "reschedule",
                "--all",
                "--id",
                "e0",
                "--due",
                "2000-01-01T00:00:00Z",
            ])
            .exits(0)
            .says("1 message rescheduled");
        assert_eq!(scheduled(), 1);
        place.inbox(&["discard", "e0"]).exits(0);
        place
            .inbox(&["reschedule", "e0", "--after", "1h"])
            .exits(4)
            .complains("only pending messages can be rescheduled");
        place.inbox(&["reschedule", "e1"]).exits(2);
        place
            .inbox(&["reschedule", "e1", "--due", "tomorrow"])
            .exits(2);
        place
            .inbox(&["reschedule", "e1", "--due", "2h"])
            .exits(2)
            .complains("`--after 2h` is that long from now");
    });
}

#[test]
fn a_paused_handler_is_not_worked_for() {
    on_every_store(|place| {
        place
            .inbox_with(&["ingest", "-"], events(2).as_bytes())
            .exits(0);
        let handler = place.inbox(&["stats", "--json"]).exits(0).json()[0]["handler"].clone();
        let handler = handler.as_str().unwrap_or_default().to_owned();
        let paused = place.inbox(&["pause", &handler]).exits(0).says("is paused");
        assert_eq!(paused.stderr, "");
        let unknown = "no messages of `without messages` are known; there are some of default";
        place
            .inbox(&["pause", "without messages"])
            .exits(0)
            .complains(unknown);
        let stats = place.inbox(&["stats"]).exits(0);
        assert!(
            stats.stderr.contains("without messages is paused"),
            "{stats:?}"
        );
        let stats = place.inbox(&["stats", "--json"]).exits(0).json();
        assert_eq!(stats[0]["paused"], true);
        let worker = ["process", "--drain", "--", "sh", "-c", "touch ran"];
        let worker = place.start(&worker);
        thread::sleep(Duration::from_secs(1));
        assert!(!place.path("ran").exists(), "it is paused");
        assert_eq!(place.stats().pending, 2);
        place
            .inbox(&["resume", &handler])
            .exits(0)
            .says("is handed out again");
        finish(worker.wait_with_output().unwrap()).exits(0);
        assert_eq!(place.stats().processed, 2);
        place.inbox(&["resume", "without messages"]).exits(0);
        place
            .inbox(&["resume", "without mesages"])
            .exits(0)
            .says("was not paused");
        let stats = place.inbox(&["stats"]).exits(0);
        assert!(!stats.stderr.contains("paused"), "{stats:?}");
    });
}

#[test]
fn a_handler_that_is_not_known_is_noted() {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], event("a", "k", "{}").as_bytes())
        .exits(0);
    let unknown = "no messages of `nosuch` are known; there are some of default\n";
    for (command, prints) in [
        (&["replay", "--all", "--handler", "nosuch"][..], "replayed"),
        (&["discard", "--all", "--handler", "nosuch"], "discarded"),
        (
            &["discard", "--all", "--handler", "nosuch", "--dry-run"],
            "discarded",
        ),
        (&["clear", "nosuch"], "deleted"),
        (&["clear", "nosuch", "--yes"], "deleted"),
    ] {
        let output = place.inbox(command).exits(0).says(prints);
        assert_eq!(output.stderr, unknown, "{command:?}");
        let output = place.inbox(&[command, &["--json"]].concat()).exits(0);
        assert_eq!(output.json().len(), 1);
        assert_eq!(output.stderr, unknown, "{command:?}");
        let output = place.inbox(&[command, &["--quiet"]].concat()).exits(0);
        assert_eq!(output.stderr, "", "{command:?}");
    }
    let known = ["replay", "--all", "--handler", "default"];
    assert_eq!(place.inbox(&known).exits(0).stderr, "");
}

#[test]
fn headers_can_be_edited_on_replay() {
    on_every_store(|place| {
        fails_all(place, &["a"], "no");
        place
            .inbox(&[
                "replay",
                "a",
                "--header",
                "tenant=t 1",
                "--header",
                "empty=",
            ])
            .exits(0);
        let shown = place.inbox(&["show", "a", "--json"]).exits(0).json();
        assert_eq!(shown[0]["headers"]["tenant"], "t 1");
        assert_eq!(shown[0]["headers"]["empty"], "");
        place.inbox(&["discard", "a"]).exits(0);
        place
            .inbox(&[
                "replay",
                "a",
                "--remove-header",
                "tenant",
                "--remove-header",
                "not there",
                "--header",
                "other=2",
            ])
            .exits(0);
        let shown = place.inbox(&["show", "a", "--json"]).exits(0).json();
        let headers = shown[0]["headers"].as_object().unwrap();
        assert!(!headers.contains_key("tenant"), "{headers:?}");
        assert_eq!(
            (&headers["empty"], &headers["other"]),
            (&"".into(), &"2".into())
        );
        place.inbox(&["replay", "a", "--header", "tenant"]).exits(2);
        place
            .inbox(&["replay", "a", "b", "--header", "tenant=1"])
            .exits(2)
            .complains("exactly one id");
        place
            .inbox(&["replay", "a", "b", "--remove-header", "tenant"])
            .exits(2)
            .complains("exactly one id");
        place
            .inbox(&["replay", "--all", "--remove-header", "tenant"])
            .exits(2);
    });
}

#[test]
fn retention_can_be_of_a_handler_and_of_payloads() {
    on_every_store(|place| {
        fails_all(place, &["a", "b"], "no");
        let purge = ["purge", "--older-than", "0s", "--state", "dead"];
        let with = |more: &[&str]| place.inbox(&[&purge[..], more].concat());
        with(&["--handler", "other"])
            .exits(0)
            .says("0 messages purged");
        with(&["--drop-payloads"])
            .exits(0)
            .says("2 messages without payload");
        with(&["--drop-payloads"])
            .exits(0)
            .says("0 messages without payload");
        place
            .inbox(&["show", "a", "--payload"])
            .exits(1)
            .complains("dropped");
        place
            .inbox(&["replay", "a"])
            .exits(4)
            .complains("--payload");
        place
            .inbox(&["replay", "--all", "--dry-run"])
            .exits(0)
            .says("up to 2 messages would be replayed");
        place
            .inbox(&["replay", "--all"])
            .exits(0)
            .says("0 messages replayed")
            .complains("2 messages passed over, as the payload was dropped");
        let told = place.inbox(&["replay", "--all", "--json"]).exits(0).json();
        assert_eq!(told[0]["without_payload"], 2);
        let handler = place.inbox(&["stats", "--json"]).exits(0).json()[0]["handler"].clone();
        let handler = handler.as_str().unwrap_or_default();
        with(&["--handler", handler, "--archive", "old.ndjson"])
            .exits(0)
            .says("2 messages purged");
        assert_eq!(place.read("old.ndjson").lines().count(), 2);
    });
}

#[test]
fn a_handler_is_cleared_and_an_inbox_dropped_only_on_purpose() {
    on_every_store(|place| {
        place
            .inbox_with(&["ingest", "-"], events(3).as_bytes())
            .exits(0);
        let handler = place.inbox(&["stats", "--json"]).exits(0).json()[0]["handler"].clone();
        let handler = handler.as_str().unwrap_or_default();
        place
            .inbox(&["clear", handler])
            .exits(0)
            .says("3 messages would be deleted");
        place
            .inbox(&["clear", handler, "--yes"])
            .exits(0)
            .says("3 messages deleted");
        place.inbox(&["list"]).exits(0).complains("0 of 0 messages");
        let query = place.inbox(&["schema", "exists-query"]).exits(0).stdout;
        assert!(!query.trim().is_empty());
        place.inbox(&["schema", "drop"]).exits(2);
        place.inbox(&["schema", "exists"]).exits(0);
        for _ in 0..2 {
            place.inbox(&["schema", "drop", "--yes"]).exits(0);
            place.inbox(&["schema", "exists"]).exits(4);
        }
    });
}
