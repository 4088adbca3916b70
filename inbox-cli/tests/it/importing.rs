//! Recording what was handled before there was an inbox.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
};

use crate::support::{self, Counts, Place, event, on_every_store, wait_for};

#[test]
fn what_was_handled_before_is_a_duplicate() {
    on_every_store(|place| {
        place
            .inbox_with(
                &["import-keys", "-", "--handler", "billing"],
                b"evt-1\nevt-2\n\nevt-1\n\xff\n",
            )
            .exits(3)
            .says("2 accepted, 1 duplicate, 1 line refused")
            .complains("line 5: is not UTF-8");
        let input = [event("evt-1", "t", "{}"), event("evt-3", "t", "{}")].concat();
        place
            .inbox_with(&["ingest", "-", "--handler", "billing"], input.as_bytes())
            .exits(0)
            .says("1 accepted, 1 duplicate");
        assert_eq!(place.stats().pending, 1);
        let shown = place.inbox(&["show", "billing/evt-2", "--json"]).exits(0);
        assert_eq!(shown.json()[0]["state"], "processed");
    });
}

/// A worker would run what is recorded only in part.
#[test]
fn an_import_that_is_killed_leaves_its_handlers_paused_until_it_is_made_again() {
    on_every_store(|place| {
        // More than are recorded at a time.
        let ids: String = (0..600).map(|n| format!("evt-{n}\n")).collect();
        let import = [
            "import-keys",
            "-",
            "--handler",
            "billing",
            "--handler",
            "mail",
        ];
        place.inbox(&["schema", "create"]).exits(0);
        // By an operator, and so for longer than the import.
        place.inbox(&["pause", "mail"]).exits(0);
        let mut child = place
            .command(&import)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The end of the input does not come.
        let mut input = child.stdin.take().unwrap();
        input.write_all(ids.as_bytes()).unwrap();
        wait_for("some of it", || place.stats() != Counts::default());
        child.kill().unwrap();
        child.wait().unwrap();
        drop(input);
        let handlers = || place.inbox(&["stats", "--json"]).exits(0).json();
        for of_handler in handlers() {
            assert_eq!(of_handler["paused"], true, "{of_handler}");
        }

        place.inbox_with(&import, ids.as_bytes()).exits(0);
        let handlers = handlers();
        assert_eq!(handlers.len(), 2, "{handlers:?}");
        for of_handler in handlers {
            assert_eq!(of_handler["processed"], 600, "{of_handler}");
            assert_eq!(of_handler["pending"], 0, "{of_handler}");
            assert_eq!(of_handler["leased"], 0, "{of_handler}");
            let is_the_operators = of_handler["handler"] == "mail";
            assert_eq!(of_handler["paused"], is_the_operators, "{of_handler}");
        }
        let stats = place.inbox(&["stats"]).exits(0);
        for mark in ["inbox-import-keys", "inbox-kept"] {
            assert!(!stats.stderr.contains(mark), "{stats:?}");
        }
    });
}

/// Stores messages of one ordering key for `billing`.
fn ingest_in_order(place: &Place, ids: &[&str]) {
    let line = |id: &&str| format!("{{\"id\":\"{id}\",\"event\":\"t\",\"key\":\"one\"}}\n");
    let input: String = ids.iter().map(line).collect();
    let ingest = [
        "ingest",
        "-",
        "--id-field",
        "id",
        "--kind-field",
        "event",
        "--ordering-field",
        "key",
        "--handler",
        "billing",
    ];
    place.inbox_with(&ingest, input.as_bytes()).exits(0);
}

const IMPORT: [&str; 4] = ["import-keys", "-", "--handler", "billing"];

/// Defect: operators were told to resume, which the import forbids, and were let to.
#[test]
fn a_handler_whose_import_was_cut_short_is_not_resumed() {
    let place = Place::new();
    ingest_in_order(&place, &["1"]);
    let too_long = format!("{}\n", "x".repeat(300));
    place
        .inbox_with(&[&IMPORT[..], &["--strict"]].concat(), too_long.as_bytes())
        .complains("the import was cut short");
    let refused = place
        .inbox(&["resume", "billing"])
        .exits(1)
        .complains("`inbox import-keys` has paused `billing`");
    let (_, rest) = refused.stderr.split_once("`inbox resume ").unwrap();
    let (mark, _) = rest.split_once('`').unwrap();
    let mut child = place.start(&["process", "--handler", "billing", "--drain", "--", "true"]);
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("The handler is paused") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it has ended");
    }
    assert!(line.contains("`inbox import-keys`"), "{line}");
    assert!(!line.contains("inbox resume"), "{line}");
    // Who gives it up says so.
    place.inbox(&["resume", mark]).exits(0);
    place
        .inbox(&["resume", "billing"])
        .exits(0)
        .says("billing is handed out again");
    assert!(child.wait().unwrap().success());
    // A mark alone, as of a command that is killed before it pauses the handler, is no pause of it.
    place.inbox(&["pause", mark]).exits(0);
    place.inbox(&["resume", "billing"]).exits(0);
}

/// Defect: where an operator had paused the handler, nothing kept it from being resumed.
#[test]
fn a_handler_that_was_paused_before_its_import_was_cut_short_is_not_resumed() {
    let place = Place::new();
    place.inbox(&["schema", "create"]).exits(0);
    place.inbox(&["pause", "billing"]).exits(0);
    let too_long = format!("{}\n", "x".repeat(300));
    place
        .inbox_with(&[&IMPORT[..], &["--strict"]].concat(), too_long.as_bytes())
        .complains("its handlers stay paused");
    let resume = ["resume", "billing"];
    place
        .inbox(&resume)
        .exits(1)
        .complains("`inbox import-keys` has paused `billing`");
    place.inbox_with(&IMPORT, b"1\n").exits(0);
    let stats = place.inbox(&["stats"]).exits(0);
    assert_eq!(support::complaints(&stats.stderr), ["billing is paused"]);
    place.inbox(&resume).exits(0);
    let stats = place.inbox(&["stats"]).exits(0);
    assert!(support::complaints(&stats.stderr).is_empty(), "{stats:?}");
}

/// Defect: the import's end ended the operator's pause, too.
#[test]
fn a_handler_that_is_paused_during_its_import_stays_paused() {
    let place = Place::new();
    place.inbox(&["schema", "create"]).exits(0);
    let mut child = place
        .command(&IMPORT)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ids = child.stdin.take().unwrap();
    // As many as are recorded at a time.
    let first: String = (0..500).map(|id| format!("{id}\n")).collect();
    ids.write_all(first.as_bytes()).unwrap();
    wait_for("the first ids", || place.stats() != Counts::default());
    place.inbox(&["pause", "billing"]).exits(0);
    drop(ids);
    assert!(child.wait().unwrap().success());
    let stats = place.inbox(&["stats"]).exits(0);
    assert_eq!(support::complaints(&stats.stderr), ["billing is paused"]);
}

/// Defect: those behind the first of an ordering key counted as handled, and ran when the import was over.
#[test]
fn an_import_records_messages_that_wait_in_order() {
    let place = Place::new();
    ingest_in_order(&place, &["1", "2", "3", "4"]);
    place
        .inbox_with(&IMPORT, b"4\n1\n2\n3\n")
        .exits(0)
        .says("4 accepted, 0 duplicates");
    assert_eq!(place.stats().processed, 4);
}

/// Defect: lines of which the second came a few milliseconds later were not recorded together.
#[test]
fn an_import_does_not_depend_on_how_fast_its_input_comes() {
    let place = Place::new();
    ingest_in_order(&place, &["1", "2"]);
    let mut child = place
        .command(&IMPORT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"2\n").unwrap();
    wait_for("the import", || {
        place.inbox(&["stats", "--json"]).exits(0).json()[0]["paused"] == true
    });
    input.write_all(b"1\n").unwrap();
    drop(input);
    support::finish(child.wait_with_output().unwrap())
        .exits(0)
        .says("2 accepted");
}

#[test]
fn an_import_that_leaves_messages_to_others_says_so_and_keeps_their_handler_paused() {
    let place = Place::new();
    ingest_in_order(&place, &["1", "2", "3"]);
    let is_paused = || {
        let handlers = place.inbox(&["stats", "--json"]).exits(0).json();
        let billing = handlers.into_iter().find(|one| one["handler"] == "billing");
        billing.unwrap()["paused"] == true
    };
    place
        .inbox_with(&IMPORT, b"2\n3\n")
        .exits(4)
        .complains("2 messages. The handlers stay paused");
    assert_eq!(place.stats().pending, 3);
    assert!(is_paused());
    place
        .inbox_with(&IMPORT, b"1\n2\n3\n")
        .exits(0)
        .says("3 accepted");
    assert_eq!(place.stats().processed, 3);
    assert!(!is_paused());
}
