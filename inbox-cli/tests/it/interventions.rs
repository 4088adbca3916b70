//! What operators do to messages: replays, edits, discards, purges, and which they mean.

use crate::support::{Counts, Place, event, events, on_every_store};

#[test]
fn filters_are_never_ignored() {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], events(2).as_bytes())
        .exits(0);
    for command in [
        &["discard", "e0", "--dry-run"][..],
        &["discard", "e0", "--kind", "other"],
        &["discard", "e0", "--state", "dead"],
        &["replay", "e0", "--error", "x"],
        &["replay", "e0", "--older-than", "1h"],
        // States in which nothing can be discarded or replayed.
        &["discard", "--all", "--state", "processed"],
        &["replay", "--all", "--state", "pending"],
        &["replay", "e0", "e1", "--payload", "-"],
        &["process", "--lease", "0s", "--", "true"],
    ] {
        place.inbox(command).exits(2);
    }
    assert_eq!(place.stats().pending, 2);
}

#[test]
fn a_payload_can_be_edited_on_replay() {
    on_every_store(|place| {
        place.file("in.ndjson", event("a", "t", "{\"amount\":-1}"));
        place
            .inbox(&["run", "in.ndjson", "--", "sh", "-c", "exit 65"])
            .exits(4);
        place.file("fixed.json", "{\"amount\":1}");
        place
            .inbox(&["replay", "a", "--payload", "fixed.json"])
            .exits(0);
        place
            .inbox(&["process", "--drain", "--", "sh", "-c", "cat > got"])
            .exits(0);
        assert_eq!(place.read("got"), "{\"amount\":1}");
    });
}

/// Defect: where a pipe had nothing in it, as the command before it had failed, the payload was gone for good.
#[test]
fn an_empty_standard_input_is_no_payload() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{\"amount\":1}"));
    let run = ["run", "in.ndjson", "--", "sh", "-c", "exit 65"];
    place.inbox(&run).exits(4);
    place
        .inbox(&["replay", "a", "--payload", "-"])
        .exits(1)
        .complains("standard input is empty");
    let payload = ["show", "a", "--payload"];
    place.inbox(&payload).exits(0).says("{\"amount\":1}");
    let empty = ["replay", "a", "--payload", "/dev/null"];
    place.inbox(&empty).exits(0);
    assert_eq!(place.inbox(&payload).exits(0).stdout, "");
}

#[test]
fn interventions_by_filter_and_their_refusals() {
    on_every_store(|place| {
        let input = [
            event("a", "bad", "{}"),
            event("b", "bad", "{}"),
            event("c", "good", "{}"),
        ]
        .concat();
        place.file("in.ndjson", input);
        place
            .inbox(&[
                "run",
                "in.ndjson",
                "--",
                "sh",
                "-c",
                "[ $INBOX_KIND = good ] || exit 65",
            ])
            .exits(4);
        place
            .inbox(&["replay", "--all", "--kind", "bad", "--dry-run"])
            .exits(0)
            .says("up to 2 messages would be replayed");
        place
            .inbox(&["replay", "--all", "--kind", "other", "--dry-run"])
            .exits(0)
            .says("no message would be replayed");
        place
            .inbox(&["discard", "a"])
            .exits(0)
            .says("1 message discarded");
        place
            .inbox(&["discard", "c"])
            .exits(4)
            .complains("it is processed");
        place
            .inbox(&["replay", "nobody"])
            .exits(4)
            .complains("no such message");
        place
            .inbox(&["replay", "--all"])
            .exits(0)
            .says("1 message replayed");
        // Discarded messages go on refusing duplicates.
        place
            .inbox(&["ingest", "in.ndjson"])
            .exits(0)
            .says("0 accepted, 3 duplicates");
        assert_eq!(
            place.stats(),
            Counts {
                pending: 1,
                leased: 0,
                processed: 1,
                dead: 0,
                discarded: 1
            }
        );
    });
}

#[test]
fn purging_archives_first_and_ends_protection() {
    on_every_store(|place| {
        place.file("in.ndjson", events(5));
        place.inbox(&["run", "in.ndjson", "--", "true"]).exits(0);
        place
            .inbox(&["purge", "--older-than", "1h"])
            .exits(0)
            .says("0 messages purged");
        for (older_than, would) in [("1h", "no message"), ("0s", "5 messages")] {
            let dry_run = ["--dry-run", "--archive", "dry.ndjson"];
            place
                .inbox(&[&["purge", "--older-than", older_than][..], &dry_run].concat())
                .exits(0)
                .says(&format!("{would} would be purged\n"));
        }
        assert!(!place.path("dry.ndjson").exists());
        let dead = ["purge", "--older-than", "0s", "--state", "dead"];
        let counted = place.inbox(&[&dead[..], &["--dry-run", "--json"]].concat());
        let nothing = serde_json::json!({"dry_run": true, "purged": 0});
        assert_eq!(counted.exits(0).json(), [nothing]);
        let drop = ["purge", "--older-than", "0s", "--drop-payloads"];
        place
            .inbox(&[&drop[..], &["--dry-run"]].concat())
            .exits(0)
            .says("up to 5 messages would lose payload and result");
        let shown = place.inbox(&["show", "e0", "--json"]).exits(0).json();
        assert_eq!(shown[0]["payload"], "{}");
        place
            .inbox(&[
                "purge",
                "--older-than",
                "0s",
                "--slice",
                "2",
                "--archive",
                "/nonexistent/a.ndjson",
            ])
            .exits(1)
            .complains("cannot write the archive");
        assert_eq!(place.stats().processed, 5);
        place
            .inbox(&[
                "purge",
                "--older-than",
                "0s",
                "--slice",
                "2",
                "--archive",
                "old.ndjson",
            ])
            .exits(0)
            .says("5 messages purged");
        let archived = place.read("old.ndjson");
        let mut ids: Vec<String> = archived
            .lines()
            .map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["payload_base64"], "e30=");
                line["id"].as_str().unwrap().to_owned()
            })
            .collect();
        ids.sort();
        assert_eq!(ids, ["e0", "e1", "e2", "e3", "e4"]);
        place
            .inbox(&["ingest", "in.ndjson"])
            .exits(0)
            .says("5 accepted");
    });
}
