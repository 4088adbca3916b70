//! Looking, schema, and how the command talks.

use crate::support::{self, Place, event, events, on_every_store};

#[test]
fn a_message_is_shown_with_its_past_attempts() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    place.inbox(&["ingest", "in.ndjson"]).exits(0);
    let fresh = place.inbox(&["show", "a"]).exits(0);
    assert!(!fresh.stdout.contains("ATTEMPT"), "{fresh:?}");
    let process = [
        "process",
        "--drain",
        "--max-attempts",
        "2",
        "--retry-delay",
        "1ms",
    ];
    let script = "echo reason $INBOX_ATTEMPT >&2; exit 1";
    place
        .inbox(&[&process[..], &["--", "sh", "-c", script]].concat())
        .exits(4);
    place.inbox(&["replay", "a", "--by", "ada"]).exits(0);
    let shown = place.inbox(&["show", "a"]).exits(0);
    let table: Vec<&str> = shown
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("ATTEMPT"))
        .take_while(|line| !line.is_empty())
        .collect();
    assert_eq!(table.len(), 3, "{shown:?}");
    for (row, parts) in table[1..].iter().zip([
        ["1  ", "  0  ", "  retried  ", "reason 1"],
        ["2  ", "  0  ", "  dead  ", "reason 2"],
    ]) {
        assert!(parts.iter().all(|part| row.contains(part)), "{row}");
    }
    let json = place.inbox(&["show", "a", "--json"]).exits(0).json();
    assert_eq!(json[0]["last_error"], serde_json::Value::Null);
    let history = json[0]["history"].as_array().unwrap();
    assert_eq!(history.len(), 2, "{history:?}");
    assert_eq!(history[1]["attempt"], 2);
    assert_eq!(history[1]["end"], "dead");
    assert_eq!(history[1]["ended_at"].as_str().map(str::len), Some(24));
    assert_eq!(history[1]["worker"], json[0]["worker"]);
    assert_eq!(history[1]["leased_at"], json[0]["leased_at"]);
    assert!(history[1]["error"].as_str().unwrap().contains("reason 2"));
    assert!(history[1]["took_ms"].is_u64());
    shown.says("ada       replayed");
    let done = json[0]["interventions"].as_array().unwrap();
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!(
        (&done[0]["by"], &done[0]["intervention"]),
        (&"ada".into(), &"replayed".into())
    );
}

#[test]
fn lists_page_without_gaps() {
    on_every_store(|place| {
        place
            .inbox_with(&["ingest", "-"], events(25).as_bytes())
            .exits(0);
        let mut seen = Vec::new();
        let mut after = None::<String>;
        loop {
            let mut args = vec!["list", "--json", "--limit", "10"];
            if let Some(after) = &after {
                args.extend(["--after", after]);
            }
            let output = place.inbox(&args).exits(0);
            seen.extend(
                output
                    .json()
                    .iter()
                    .map(|r| r["id"].as_str().unwrap().to_owned()),
            );
            match output.stderr.trim().strip_prefix("more with --after ") {
                Some(next) => after = Some(next.to_owned()),
                None => break,
            }
        }
        let expected: Vec<_> = (0..25).map(|n| format!("e{n}")).collect();
        assert_eq!(seen, expected);
        place
            .inbox(&["list", "--limit", "1", "--newest"])
            .exits(0)
            .says("e24")
            .complains("1 of 25 messages; more with --after");
        // Nothing is counted message by message unless that is asked for.
        let some = ["list", "--limit", "2", "--kind", "t"];
        place
            .inbox(&some)
            .exits(0)
            .complains("2 messages; more with --after");
        let some = ["list", "--limit", "2", "--kind", "t", "--total"];
        place
            .inbox(&some)
            .exits(0)
            .complains("2 of 25 messages; more with --after");
        let counted = ["list", "--limit", "2", "--total", "--json"];
        place
            .inbox(&counted)
            .exits(0)
            .complains("2 of 25 messages; more with --after");
        let dead = ["list", "--state", "dead", "--state", "dead"];
        place.inbox(&dead).exits(0).complains("0 of 0 messages");
        let twice = [
            "list", "--limit", "2", "--state", "pending", "--state", "pending",
        ];
        place
            .inbox(&twice)
            .exits(0)
            .complains("2 of 25 messages; more");
        let other = ["list", "--limit", "2", "--handler", "other"];
        place.inbox(&other).exits(0).complains("0 of 0 messages");
        let quiet = place.inbox(&["list", "--limit", "1", "-q"]).exits(0);
        assert_eq!(quiet.stderr, "");
        place
            .inbox(&["list", "--after", "nonsense"])
            .exits(2)
            .complains("cursor");
        for nothing in [&["show", ""][..], &["show", "", "--handler", "default"]] {
            place.inbox(nothing).exits(2).complains("empty");
        }
    });
}

#[test]
fn filters_narrow() {
    on_every_store(|place| {
        let input = [
            event("a", "x", "{}"),
            event("b", "y", "{}"),
            event("c", "y", "{}"),
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
                "[ $INBOX_KIND = x ] || { echo card declined >&2; exit 65; }",
            ])
            .exits(4);
        let count = |args: &[&str]| {
            let args = [&["list", "--json"], args].concat();
            place.inbox(&args).exits(0).json().len()
        };
        assert_eq!(count(&[]), 3);
        assert_eq!(count(&["--state", "dead"]), 2);
        assert_eq!(count(&["--state", "dead", "--state", "processed"]), 3);
        assert_eq!(count(&["--kind", "x"]), 1);
        assert_eq!(count(&["--error", "card declined"]), 2);
        assert_eq!(count(&["--error", "Card Declined"]), 0);
        assert_eq!(count(&["--handler", "other"]), 0);
        assert_eq!(count(&["--older-than", "1h"]), 0);
        assert_eq!(count(&["--newer-than", "1h"]), 3);
    });
}

#[test]
fn show_and_stats() {
    on_every_store(|place| {
        place
            .inbox_with(
                &["ingest", "-"],
                event("a", "k", "{\"secret\":1}").as_bytes(),
            )
            .exits(0);
        let shown = place
            .inbox(&["show", "a"])
            .exits(0)
            .says("pending")
            .says("source: /test");
        assert!(!shown.stdout.contains("secret"), "{shown:?}");
        place
            .inbox(&["show", "a", "--payload"])
            .exits(0)
            .says("{\"secret\":1}");
        place
            .inbox(&["show", "b"])
            .exits(4)
            .complains("no message b");
        place
            .inbox(&["show", "a", "--handler", "h"])
            .exits(4)
            .complains("no message h/a");
        place
            .inbox(&["stats"])
            .exits(0)
            .says("PENDING")
            .says("default");
    });
}

#[test]
fn a_message_is_shown_with_what_it_waits_for() {
    on_every_store(|place| {
        let events = ["a", "b"].map(|id| {
            let event = serde_json::json!({
                "specversion": "1.0", "id": id, "source": "/test", "type": "t", "account": "1",
            });
            format!("{event}\n")
        });
        place
            .inbox_with(
                &["ingest", "-", "--ordering-field", "account"],
                events.concat().as_bytes(),
            )
            .exits(0);
        let shown = place.inbox(&["show", "a"]).exits(0);
        assert!(!shown.stdout.contains("waits"), "{shown:?}");
        let json = |id: &str| place.inbox(&["show", id, "--json"]).exits(0).json()[0].clone();
        assert_eq!(json("a").get("waits_for"), None);
        place
            .inbox(&["show", "b"])
            .exits(0)
            .says("waits for    default/a, which is pending and the first of the ordering key\n");
        place.inbox(&["pause", "default"]).exits(0);
        place
            .inbox(&["show", "a"])
            .exits(0)
            .says("waits for    its handler, which is paused until `inbox resume default`\n");
        place.inbox(&["resume", "default"]).exits(0);
        place.inbox(&["reschedule", "b", "--after", "1h"]).exits(0);
        let b = json("b");
        assert_eq!(
            b["waits_for"],
            serde_json::json!([
                {"reason": "due", "at": b["due_at"]},
                {"reason": "behind", "handler": "default", "id": "a", "state": "pending"},
            ])
        );
    });
}

#[test]
fn a_message_is_found_without_its_handler_where_there_is_one_only() {
    on_every_store(|place| {
        let ingest = |handler: &str, id: &str| {
            let line = event(id, "t", &format!("\"{handler}\""));
            let ingest = ["ingest", "-", "--handler", handler];
            place.inbox_with(&ingest, line.as_bytes()).exits(0);
        };
        ingest("mail", "a");
        ingest("mail", "both");
        ingest("bill", "both");
        ingest("bill", "2026/7");
        ingest("mail", "bill/2026/7");
        ingest("bill/2026", "8");
        let payload = |arguments: &[&str]| {
            let mut line = vec!["show", "--payload"];
            line.extend(arguments);
            place.inbox(&line).exits(0).stdout
        };
        assert_eq!(payload(&["a"]), "\"mail\"");
        assert_eq!(payload(&["mail/a"]), "\"mail\"");
        assert_eq!(payload(&["mail/both"]), "\"mail\"");
        assert_eq!(payload(&["bill/both"]), "\"bill\"");
        assert_eq!(payload(&["2026/7"]), "\"bill\"");
        assert_eq!(payload(&["bill/2026/8"]), "\"bill/2026\"");
        assert_eq!(payload(&["8"]), "\"bill/2026\"");
        // With a handler, an id is an id.
        place
            .inbox(&["show", "mail/a", "--handler", "mail"])
            .exits(4);
        assert_eq!(payload(&["bill/2026/7", "--handler", "mail"]), "\"mail\"");

        for command in ["show", "replay", "discard"] {
            place
                .inbox(&[command, "both"])
                .exits(4)
                .complains("--handler bill both")
                .complains("--handler mail both");
            // One has this id, the other is this handler's.
            place
                .inbox(&[command, "bill/2026/7"])
                .exits(4)
                .complains("--handler bill 2026/7")
                .complains("--handler mail bill/2026/7");
            place.inbox(&[command, "nobody"]).exits(4);
            place.inbox(&[command, "mail/nobody"]).exits(4);
            let long = "x".repeat(300);
            place
                .inbox(&[command, &long])
                .exits(2)
                .complains("300 bytes");
        }
        let ids = ["discard", "mail/both", "8", "both", "--json"];
        let output = place.inbox(&ids).exits(4);
        let told = &output.json()[0];
        assert_eq!(
            (&told["discarded"], &told["refused"]),
            (&2.into(), &1.into())
        );
        assert_eq!(told["refusals"][0]["id"], "both");
        place.inbox(&["replay", "8"]).exits(0);
        let state = |arguments: &[&str]| {
            let mut line = vec!["show", "--json"];
            line.extend(arguments);
            place.inbox(&line).exits(0).json()[0]["state"].clone()
        };
        assert_eq!(state(&["mail/both"]), "discarded");
        assert_eq!(state(&["bill/both"]), "pending");
        assert_eq!(state(&["8"]), "pending");
    });
}

#[test]
fn json_has_the_payload_and_the_result() {
    on_every_store(|place| {
        let bytes =
            r#"{"specversion":"1.0","id":"bytes","source":"s","type":"t","data_base64":"/wA="}"#;
        let input = event("text", "t", "{\"ä\":1}") + bytes;
        place
            .inbox_with(&["ingest", "-"], input.as_bytes())
            .exits(0);
        let show = |id: &str| {
            place
                .inbox(&["show", id, "--json"])
                .exits(0)
                .json()
                .remove(0)
        };
        let text = show("text");
        assert_eq!(text["payload"], "{\"ä\":1}");
        assert!(text["payload_base64"].is_null() && text["result"].is_null());
        let bytes = show("bytes");
        assert!(bytes["payload"].is_null());
        assert_eq!(bytes["payload_base64"], "/wA=");
        for bytes_alone in ["--payload", "--result"] {
            place
                .inbox(&["show", "text", bytes_alone, "--json"])
                .exits(2);
        }
    });
}

/// Whatever a command prints on standard output is JSON, a value on each line.
#[test]
fn every_command_obeys_json() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    for (arguments, exit, has_output) in [
        (&["schema", "ddl"][..], 0, true),
        (&["schema", "exists"], 4, true),
        (&["schema", "version"], 4, true),
        (&["schema", "create"], 0, true),
        (&["schema", "migrate"], 0, true),
        (&["schema", "exists"], 0, true),
        (&["schema", "version"], 0, true),
        (&["stats"], 0, false),
        (&["list"], 0, false),
        (&["ingest", "in.ndjson"], 0, true),
        (&["run", "in.ndjson", "--", "sh", "-c", "exit 65"], 4, true),
        (&["stats"], 0, true),
        (&["list"], 0, true),
        (&["show", "a"], 0, true),
        (&["show", "b"], 4, false),
        (&["replay", "--all", "--dry-run"], 0, true),
        (&["discard", "--all", "--dry-run"], 0, true),
        (&["replay", "a", "b"], 4, true),
        (&["process", "--drain", "--", "true"], 0, true),
        (&["discard", "a"], 4, true),
        (&["replay", "--all"], 0, true),
        (&["discard", "--all"], 0, true),
        (&["purge", "--older-than", "0s"], 0, true),
    ] {
        let mut line = vec!["--json"];
        line.extend(arguments);
        let output = place.inbox(&line).exits(exit);
        assert_eq!(!output.stdout.is_empty(), has_output, "{arguments:?}");
        assert!(output.json().iter().all(serde_json::Value::is_object));
    }
    // A script for a shell is none of it.
    place
        .inbox(&["completions", "bash", "--json"])
        .exits(2)
        .complains("no JSON");
}

#[test]
fn hostile_ids_cannot_play_with_the_terminal() {
    on_every_store(|place| {
        // U+009B is a control character that some terminals take for an escape sequence.
        place
            .inbox_with(&["ingest", "-"], event("a\\u009b31m", "t", "{}").as_bytes())
            .exits(3)
            .complains("control character");
        // Characters that turn the direction of writing, or are not seen, are none of these.
        let tricky = "turned\u{202e}di\u{2066}\u{200b}";
        let line = event(tricky, tricky, "{}").replace("/test", tricky);
        place.inbox_with(&["ingest", "-"], line.as_bytes()).exits(0);
        let handler = "printf 'no\\342\\200\\256' >&2; exit 65";
        let process = ["process", "--drain", "--", "sh", "-c", handler];
        place.inbox(&process).exits(4);
        for command in [
            &["list"][..],
            &["show", tricky],
            &["replay", tricky],
            &["discard", "no\u{202e}ne"],
            &["list", "--handler", "no\u{202e}ne"],
            &["list", "--after", "no\u{202e}where"],
            &["discard", tricky],
        ] {
            let output = place.inbox(command);
            let shown = output.stdout + &output.stderr;
            let is_raw = shown.contains(['\u{202e}', '\u{2066}', '\u{200b}']);
            assert!(!is_raw, "{command:?}: {shown}");
        }
        place
            .inbox(&["list"])
            .says("turned\\u{202e}di\\u{2066}\\u{200b}");
        place
            .inbox_with(
                &["ingest", "-"],
                event("quote'\\\"; --", "t", "{}").as_bytes(),
            )
            .exits(0);
        place
            .inbox(&["show", "quote'\"; --"])
            .exits(0)
            .says("pending");
    });
}

#[test]
fn schema_from_nothing_to_there() {
    let place = Place::new();
    place
        .inbox(&["schema", "ddl"])
        .exits(0)
        .says("CREATE TABLE");
    assert!(!place.path("inbox.db").exists());
    place.inbox(&["schema", "exists"]).exits(4).says("no");
    place.inbox(&["schema", "create"]).exits(0);
    place.inbox(&["schema", "create"]).exits(0);
    place.inbox(&["schema", "exists"]).exits(0).says("yes");
    place
        .inbox(&["schema", "migrate"])
        .exits(0)
        .says("already at version 1");
    place.inbox(&["schema", "version"]).exits(0).says("1");
    // A second inbox in the same file is none of the first one's business.
    let second = "sqlite://inbox.db?inbox=second";
    place
        .inbox(&["schema", "exists", "--store", second])
        .exits(4);
    place
        .inbox(&["schema", "migrate", "--store", second])
        .exits(0)
        .says("from nothing");
    place
        .inbox_with(&["ingest", "-", "--store", second], events(2).as_bytes())
        .exits(0);
    place.inbox(&["stats"]).exits(0).says("the inbox is empty");
}

#[test]
fn a_newer_inbox_is_refused_with_both_versions() {
    let place = Place::new();
    place.inbox(&["schema", "create"]).exits(0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let url = format!("sqlite://{}", place.path("inbox.db").display());
        let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
        sqlx::query("UPDATE inbox_meta SET version = 7, works_from = 7")
            .execute(&pool)
            .await
            .unwrap();
        pool.close().await;
    });
    for command in [
        &["stats"][..],
        &["ingest", "-"],
        &["schema", "migrate"],
        &["schema", "exists"],
    ] {
        let output = place.inbox(command).exits(1);
        assert!(
            output.stderr.contains('7') && output.stderr.contains('1'),
            "{output:?}"
        );
    }
}

#[test]
fn help_names_every_command_and_exit_code() {
    let place = Place::new();
    let help = place.inbox(&["--help"]).exits(0);
    for word in [
        "run",
        "ingest",
        "process",
        "list",
        "show",
        "stats",
        "replay",
        "discard",
        "purge",
        "schema",
        "demo",
        "completions",
        "Exit codes",
        "INBOX_STORE",
    ] {
        assert!(help.stdout.contains(word), "no {word}");
    }
    assert!(!help.stdout.contains("demo-worker"));
    place.inbox(&["help", "demo-worker"]).exits(2);
    place
        .inbox(&["process", "--help"])
        .exits(0)
        .says("INBOX_ATTEMPT")
        .says("65");
    place.inbox(&["nonsense"]).exits(2);
    place.inbox(&["process"]).exits(2);
}

#[test]
fn completions_for_every_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.inbox(&["completions", shell]).exits(0).says("inbox");
        assert!(!script.stdout.contains("demo-worker"), "in {shell}'s");
    }
}

#[cfg(not(feature = "conformance"))]
#[test]
fn a_build_without_the_suite_says_how_to_add_it() {
    Place::new()
        .inbox(&["conformance"])
        .exits(1)
        .complains("cargo install --path inbox-cli --features conformance");
}

#[cfg(feature = "conformance")]
#[test]
fn conformance_of_a_built_in_store_is_reported() {
    let place = Place::new();
    let memory = place
        .inbox(&["conformance", "--store", "memory://", "--json"])
        .exits(0);
    let report = &memory.json()[0];
    assert_eq!(report["failed"], 0, "{memory:?}");
    assert!(report["passed"].as_u64().unwrap() > 100, "{memory:?}");
    // One group on SQLite; the store's own tests run all of them.
    place
        .inbox(&["conformance", "fencing"])
        .exits(0)
        .says("sqlite: passes what was asked for, which is not the whole suite.");
    let left = std::fs::read_dir(place.path("")).unwrap().count();
    assert_eq!(left, 0, "files were left behind");
    place
        .inbox(&["conformance", "no-such-case"])
        .exits(4)
        .says("nothing was checked");
}

#[test]
fn the_demo_keeps_its_promise() {
    let place = Place::new();
    let output = place
        .inbox(&[
            "demo",
            "--workers",
            "2",
            "--kills",
            "3",
            "--keep",
            "demo.db",
            "--json",
        ])
        .exits(0);
    let result = &output.json()[0];
    assert_eq!(result["exactly_once"], true, "{output:?}");
    assert_eq!(result["crashes"], 3, "{output:?}");
    assert_eq!(result["effects"], result["processed"], "{output:?}");
    assert!(result["dead"].as_u64().unwrap() > 0, "{output:?}");
    assert!(place.path("demo.db").exists());
}

#[test]
fn a_read_only_inbox_can_be_looked_into() {
    let place = Place::new();
    place
        .inbox_with(&["ingest", "-"], events(2).as_bytes())
        .exits(0);
    let file = place.path("inbox.db");
    let mut permissions = std::fs::metadata(&file).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&file, permissions).unwrap();
    place.inbox(&["list"]).exits(0).says("e1");
    place.inbox(&["show", "e0"]).exits(0);
    assert_eq!(place.stats().pending, 2);
    place.inbox(&["schema", "exists"]).exits(0);
    for command in [
        &["discard", "e0"][..],
        &["process", "--", "true"],
        &["purge", "--older-than", "0s"],
    ] {
        place
            .inbox(command)
            .exits(1)
            .complains("the file cannot be written");
    }
}

/// A superuser is kept from nothing by permissions, and so runs the command as another user.
#[test]
fn a_folder_or_a_file_that_cannot_be_written_is_named_as_the_reason() {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _, process::Command};

    let place = Place::new();
    // A copy, since not everybody may run what is in the folder that it was built in. Another process makes it: what
    // this one starts meanwhile would hold it open for writing, and then it could not be run.
    let inbox = place.path("inbox");
    let mut copy = Command::new("cp");
    copy.arg("-p").arg(place.command(&[]).get_program());
    copy.arg(&inbox);
    assert!(copy.status().unwrap().success());
    let folder = place.path("closed");
    std::fs::create_dir(&folder).unwrap();
    let open = place.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::write(open.join("inbox.db"), "").unwrap();
    for (path, mode) in [
        (place.path("."), 0o711),
        (folder.clone(), 0o555),
        (open.clone(), 0o777),
        (open.join("inbox.db"), 0o000),
    ] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let create_in = |folder: &std::path::Path| {
        let mut command = if nix::unistd::geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            command.arg(&inbox);
            command
        } else {
            Command::new(&inbox)
        };
        let output = command
            .args(["schema", "create", "--store", "sqlite://inbox.db"])
            .current_dir(folder)
            .env_remove("INBOX_STORE")
            .output();
        support::finish(output.unwrap()).exits(1)
    };
    create_in(&folder).complains("nothing can be made in its folder: Permission denied");
    create_in(&open).complains("may this user read and write it");
}
