//! Input: good, bad and hostile.

use crate::support::{self, Counts, Place, WEBHOOKS, event, events, on_every_store};

#[test]
fn a_file_fed_twice_is_accepted_once() {
    on_every_store(|place| {
        let twice = std::fs::read_to_string(WEBHOOKS).unwrap().repeat(2);
        let number = twice.lines().count() as u64 / 2;
        place.file("twice.ndjson", &twice);
        let run = [
            "run",
            "twice.ndjson",
            "--json",
            "--",
            "sh",
            "-c",
            "echo $INBOX_ID >> ran",
        ];

        let first = &place.inbox(&run).exits(0).json()[0];
        assert_eq!(first["accepted"], number);
        assert_eq!(first["duplicates"], number);
        assert_eq!(first["processed"], number);
        let mut ran = support::lines(&place.path("ran"));
        assert_eq!(ran.len() as u64, number);
        ran.sort_unstable();
        ran.dedup();
        assert_eq!(
            ran.len() as u64,
            number,
            "a handler ran twice for one message"
        );

        let second = &place.inbox(&run).exits(0).json()[0];
        assert_eq!(second["accepted"], 0);
        assert_eq!(second["duplicates"], 2 * number);
        assert_eq!(second["processed"], 0);
        assert_eq!(support::lines(&place.path("ran")).len() as u64, number);
    });
}

#[test]
fn payload_and_facts_reach_the_command() {
    on_every_store(|place| {
        let line = r#"{"specversion":"1.0","id":"a 1","source":"/s","type":"k","datacontenttype":"text/plain","data":"h\u00e9\n","x-y":"z","partitionkey":"p"}"#;
        place
            .inbox_with(
                &[
                    "run",
                    "-",
                    "--ordering-field",
                    "partitionkey",
                    "--",
                    "sh",
                    "-c",
                    "cat > payload; env | grep ^INBOX_ | sort > env",
                ],
                line.as_bytes(),
            )
            .exits(0);
        assert_eq!(place.read("payload"), "hé\n");
        let env = place.read("env");
        for expected in [
            "INBOX_ID=a 1",
            "INBOX_HANDLER=default",
            "INBOX_KIND=k",
            "INBOX_ATTEMPT=1",
            "INBOX_CONTENT_TYPE=text/plain",
            "INBOX_ORDERING_KEY=p",
            "INBOX_HEADER_SOURCE=/s",
            "INBOX_HEADER_X_Y=z",
        ] {
            assert!(
                env.lines().any(|line| line == expected),
                "no {expected} in {env}"
            );
        }
    });
}

/// A command of a handler's that calls `inbox run` itself has the facts of its own message.
#[test]
fn a_command_has_no_facts_of_another_message() {
    let place = Place::new();
    place.file("in.ndjson", event("a", "t", "{}"));
    let run = [
        "run",
        "in.ndjson",
        "--",
        "sh",
        "-c",
        "env | grep ^INBOX_ | sort > env",
    ];
    let mut command = place.command(&run);
    let inherited = [
        ("INBOX_ID", "outer"),
        ("INBOX_ORDERING_KEY", "outer"),
        ("INBOX_CONTENT_TYPE", "outer"),
        ("INBOX_HEADER_TENANT", "outer"),
        ("INBOX_HEADER_", "outer"),
        // Not a fact: it is for the command, too.
        ("INBOX_LOG", "error"),
    ];
    for (name, value) in inherited {
        command.env(name, value);
    }
    support::finish(command.output().unwrap()).exits(0);
    let env = place.read("env");
    assert!(!env.contains("outer"), "{env}");
    assert!(env.contains("INBOX_ID=a\n"), "{env}");
    assert!(env.contains("INBOX_LOG=error\n"), "{env}");
}

#[test]
fn bad_lines_are_reported_with_their_numbers_and_the_rest_goes_on() {
    let place = Place::new();
    let input = [
        event("good1", "t", "{}"),
        "{\"broken\": \n".to_owned(),
        event("", "t", "{}"),
        event(&"x".repeat(256), "t", "{}"),
        event("a\\u0000b", "t", "{}"),
        "\n".to_owned(),
        "[]\n".to_owned(),
        "\u{1}\u{2}\n".to_owned(),
        event("good2", "t", "{}"),
    ]
    .concat();
    place
        .inbox_with(&["ingest", "-"], input.as_bytes())
        .exits(3)
        .says("2 accepted, 0 duplicates, 6 lines refused")
        .complains("line 2: not JSON")
        .complains("line 3: not a CloudEvent")
        .complains("line 4: message id has 256 bytes, the limit is 255")
        .complains("line 5: message id contains a control character")
        .complains("line 7: not a CloudEvent")
        .complains("line 8: not JSON");
    assert_eq!(place.stats().pending, 2);
}

#[test]
fn bytes_that_are_not_utf8_harm_only_their_line() {
    on_every_store(|place| {
        let mut input =
            b"{\"specversion\":\"1.0\",\"id\":\"\xff\",\"source\":\"s\",\"type\":\"t\"}\n".to_vec();
        input.extend_from_slice(event("good", "t", "{}").as_bytes());
        place
            .inbox_with(&["ingest", "-"], &input)
            .exits(3)
            .says("1 accepted")
            .complains("line 1:");
    });
}

#[test]
fn strict_stops_at_the_first_bad_line_and_keeps_what_came_before() {
    let place = Place::new();
    let input = [
        event("1", "t", "{}"),
        "nonsense\n".into(),
        event("2", "t", "{}"),
    ]
    .concat();
    place
        .inbox_with(&["ingest", "-", "--strict"], input.as_bytes())
        .exits(3)
        .complains("stopped at line 2: not JSON");
    assert_eq!(place.stats().pending, 1);
}

#[test]
fn a_payload_over_the_limit_harms_only_its_line() {
    let place = Place::new();
    let large = format!("\"{}\"", "x".repeat(2000));
    let input = [event("large", "t", &large), event("small", "t", "{}")].concat();
    place
        .inbox_with(
            &[
                "ingest",
                "-",
                "--store",
                "sqlite://inbox.db?payload_limit=1000",
            ],
            input.as_bytes(),
        )
        .exits(3)
        .says("1 accepted")
        .complains("line 1: payload has 2002 bytes, this store's limit is 1000");
}

#[test]
fn other_ndjson_by_field() {
    let place = Place::new();
    let input = "{\"order\":{\"no\":7},\"event\":\"placed\"}\n{\"event\":\"placed\"}\n";
    place
        .inbox_with(
            &[
                "ingest",
                "-",
                "--id-field",
                "/order/no",
                "--kind-field",
                "event",
            ],
            input.as_bytes(),
        )
        .exits(3)
        .complains("line 2: no field /order/no");
    place
        .inbox(&["show", "7", "--payload"])
        .exits(0)
        .says("{\"order\":{\"no\":7},\"event\":\"placed\"}");
}

/// What counts as a copy, and is not, is lost to its producer: nobody is to learn that later.
#[test]
fn another_event_under_a_known_id_is_told() {
    on_every_store(|place| {
        let event = |data: &str| event("1", "t", data);
        let (first, other) = (event("{\"order\":1}"), event("{\"order\":2}"));
        let input = [&*first, &other, &first].concat();
        place
            .inbox_with(&["ingest", "-"], input.as_bytes())
            .exits(0)
            .says("1 accepted, 2 duplicates (1 with other content than the first)")
            .complains("default/1")
            .complains("`--id-field source --id-field id` tells them apart");
        // As it says.
        let other_source = first.replace("/test", "/other");
        let by_source = ["ingest", "-", "--id-field", "source", "--id-field", "id"];
        let input = [&*first, &other_source].concat();
        let told = place.inbox_with(
            &[&by_source[..], &["--handler", "by-source"]].concat(),
            input.as_bytes(),
        );
        let told = told.exits(0).says("2 accepted, 0 duplicates\n");
        assert!(!told.stderr.contains("tells them apart"), "{told:?}");
        let ingest = ["ingest", "-", "--json"];
        let told = place.inbox_with(&ingest, other.as_bytes()).exits(0);
        assert_eq!(told.json()[0]["duplicates"], 1);
        assert_eq!(told.json()[0]["differing"], 1);
        // Once for a run, however many there are.
        let many = other.repeat(5000);
        let run = ["run", "-", "--batch", "100", "--", "true"];
        let told = place
            .inbox_with(&run, many.as_bytes())
            .exits(0)
            .says("5,000 duplicates (5,000 with other content than the first); 1 processed");
        let lines = told.stderr.lines();
        let lines = lines.filter(|line| line.contains("other content"));
        assert_eq!(lines.count(), 1, "{told:?}");
        let copies = place.inbox_with(&["ingest", "-"], first.as_bytes());
        let copies = copies.exits(0).says("0 accepted, 1 duplicate\n");
        assert!(!copies.stderr.contains("other content"), "{copies:?}");
    });
}

#[test]
fn several_handlers_each_get_their_copy() {
    on_every_store(|place| {
        place
            .inbox_with(
                &["ingest", "-", "--handler", "mail", "--handler", "stock"],
                events(3).as_bytes(),
            )
            .exits(0)
            .says("3 accepted");
        let stats = place.inbox(&["stats", "--json"]).exits(0).json();
        assert_eq!(stats.len(), 2);
        assert!(stats.iter().all(|handler| handler["pending"] == 3));
    });
}

#[test]
fn a_missing_input_file_is_an_error() {
    let place = Place::new();
    place
        .inbox(&["ingest", "nowhere.ndjson"])
        .exits(1)
        .complains("cannot read nowhere.ndjson");
    place
        .inbox(&["ingest", "."])
        .exits(1)
        .complains("it is a folder");
    place
        .inbox(&["run", "nowhere.ndjson", "--", "true"])
        .exits(1)
        .complains("cannot read nowhere.ndjson");
    let left = std::fs::read_dir(place.path("")).unwrap().count();
    assert_eq!(left, 0, "an inbox was made for no input");
}

#[test]
fn an_unknown_store_lists_what_there_is() {
    let place = Place::new();
    place
        .inbox(&["stats", "--store", "oracle://scott:tiger@db/x"])
        .exits(2)
        .complains("sqlite")
        .complains("memory");
    let output = place.inbox(&["stats", "--store", "oracle://scott:tiger@db/x"]);
    assert!(!output.stderr.contains("tiger"), "{output:?}");
    place
        .inbox(&["stats", "--store", "nonsense"])
        .exits(2)
        .complains("sqlite");
}

#[test]
fn what_is_ingested_into_memory_is_said_to_be_lost() {
    let place = Place::new();
    let ingest = ["ingest", "-", "--store", "memory://"];
    place
        .inbox_with(&ingest, events(1).as_bytes())
        .exits(0)
        .says("1 accepted")
        .complains("nothing is kept in memory");
    let output = place.inbox_with(&["ingest", "-"], events(1).as_bytes());
    assert_eq!(output.exits(0).stderr, "");
    // Defect: of a copy nothing was said but that all is as it was.
    let copy = ["copy", "--from", "sqlite://inbox.db", "--to", "memory://"];
    place
        .inbox(&copy)
        .exits(0)
        .complains("nothing is kept in memory");
    place.file(
        "serve.toml",
        "store = \"memory://\"\n[[handlers]]\nname = \"h\"\ncommand = [\"true\"]",
    );
    place
        .inbox(&["serve", "--config", "serve.toml", "--check"])
        .exits(0)
        .complains("warning: nothing is kept in memory");
}

/// A wrong URL is a wrong command line, in whichever command and on whichever store.
#[test]
fn a_store_that_no_url_names_is_wrong_usage() {
    let place = Place::new();
    let mut wrong = vec![
        "oracle://db",
        "sqlite://",
        "sqlite://a.db?inbox=Upper",
        "sqlite://a.db?cache=shared",
        "sqlite://a.db?synchronous=maybe",
        "memory://x",
    ];
    if cfg!(feature = "postgres") {
        wrong.push("postgres://u:hunter2@h/d?inbox=Upper");
        wrong.push("postgres://u:hunter2@h:port/d");
    }
    if cfg!(feature = "mysql") {
        wrong.push("mysql://u:hunter2@h/d?payload_limit=x");
    }
    if cfg!(feature = "redis") {
        wrong.push("redis://:hunter2@h?operation_timeout_ms=x");
        wrong.push("redis://:hunter2@h?bogus=1");
    }
    if cfg!(feature = "mongo") {
        wrong.push("mongodb://u:hunter2@h/d?inbox=Upper");
    }
    place.file("in", "");
    for url in wrong {
        for command in [
            &["stats"][..],
            &["ingest", "in"],
            &["process", "--", "true"],
            &["purge", "--older-than", "1d"],
            &["schema", "ddl"],
            &["schema", "create"],
            #[cfg(feature = "conformance")]
            &["conformance"],
        ] {
            let mut command = place.command(command);
            let output = command.env("INBOX_STORE", url).output().unwrap();
            let output = support::finish(output)
                .exits(2)
                .complains("the store's URL");
            assert!(!output.stderr.contains("hunter2"), "{output:?}");
        }
    }
}

/// In whichever command. A build with everything leaves nothing out.
#[cfg(not(feature = "all"))]
#[test]
fn a_store_that_is_left_out_says_how_to_add_it() {
    let place = Place::new();
    for (url, is_built, feature) in [
        (
            "postgres://u:hunter2@127.0.0.1:1/d",
            cfg!(feature = "postgres"),
            "postgres",
        ),
        (
            "mariadb://u:hunter2@127.0.0.1:1/d",
            cfg!(feature = "mysql"),
            "mysql",
        ),
        (
            "redis://:hunter2@127.0.0.1:1",
            cfg!(feature = "redis"),
            "redis",
        ),
        (
            "mongodb://u:hunter2@127.0.0.1:1/d",
            cfg!(feature = "mongo"),
            "mongo",
        ),
    ] {
        if is_built {
            continue;
        }
        for command in [
            &["stats"][..],
            &["schema", "ddl"],
            &["schema", "exists"],
            &["run", "-", "--", "true"],
            #[cfg(feature = "conformance")]
            &["conformance"],
        ] {
            let output = place.command(command).env("INBOX_STORE", url).output();
            let output = support::finish(output.unwrap())
                .exits(2)
                .complains(&format!("without the feature `{feature}`"))
                .complains(&format!(
                    "cargo install --path inbox-cli --features {feature}"
                ));
            assert!(!output.stderr.contains("hunter2"), "{output:?}");
        }
    }
}

#[test]
fn an_empty_inbox_store_is_named_as_such() {
    let place = Place::new();
    let mut command = place.command(&["stats"]);
    support::finish(command.env("INBOX_STORE", "").output().unwrap())
        .exits(2)
        .complains("the environment variable INBOX_STORE is empty");
    place
        .inbox(&["stats", "--store", ""])
        .exits(2)
        .complains("--store is empty");
    // What is given by name counts, whatever the variable says.
    let mut command = place.command(&["schema", "exists", "--store", "sqlite://a.db"]);
    support::finish(command.env("INBOX_STORE", "").output().unwrap()).exits(4);
}

#[test]
fn a_file_that_is_not_an_inbox_is_refused() {
    let place = Place::new();
    place.file("notes.txt", "These are notes, not a database. ".repeat(100));
    place
        .inbox(&["ingest", "-", "--store", "sqlite://notes.txt"])
        .exits(1)
        .complains("notes.txt");
    assert!(place.read("notes.txt").starts_with("These are notes"));
    place
        .inbox(&["stats", "--store", "sqlite://nowhere/x.db"])
        .exits(1)
        .complains("nowhere");
}

#[test]
fn looking_never_creates_a_file() {
    let place = Place::new();
    for command in [
        &["stats"][..],
        &["list"],
        &["show", "x"],
        &["replay", "--all"],
        &["purge", "--older-than", "1d"],
        &["process", "--", "true"],
    ] {
        place.inbox(command).exits(1);
        assert!(!place.path("inbox.db").exists(), "{command:?} made a file");
    }
    place.inbox(&["schema", "exists"]).exits(4).says("no");
    assert!(!place.path("inbox.db").exists());
}

#[test]
fn a_handler_command_that_does_not_exist_touches_nothing() {
    let place = Place::new();
    place.file("in.ndjson", events(2));
    place
        .inbox(&["run", "in.ndjson", "--", "no-such-command-anywhere"])
        .exits(1)
        .complains("no such command");
    assert!(!place.path("inbox.db").exists());
    place.inbox(&["ingest", "in.ndjson"]).exits(0);
    place
        .inbox(&["process", "--drain", "--", "./no-such-file"])
        .exits(1)
        .complains("no such command");
    assert_eq!(
        place.stats(),
        Counts {
            pending: 2,
            ..Counts::default()
        }
    );
}

/// It is the file that is bad, and no line of it.
#[test]
fn an_input_that_cannot_be_read_to_its_end_is_a_failure() {
    let place = Place::new();
    // Reading its beginning fails.
    let unreadable = "/proc/self/mem";
    place
        .inbox(&["ingest", unreadable])
        .exits(1)
        .complains("cannot read");
    place.inbox(&["run", unreadable, "--", "true"]).exits(1);
}

/// The id decides what is a duplicate, and parsers do not agree on which of two counts.
#[test]
fn an_event_with_two_ids_is_refused() {
    let place = Place::new();
    let line = r#"{"specversion":"1.0","id":"a","source":"/s","type":"t","id":"b"}"#;
    let output = place.inbox_with(&["ingest", "-"], line.as_bytes()).exits(3);
    output.complains("line 1: has id twice");
    place.inbox(&["list"]).exits(0).complains("0 of 0");
    let fields = ["ingest", "-", "--id-field", "n", "--kind-field", "k"];
    let output = place.inbox_with(&fields, br#"{"n":1,"k":"t","n":2}"#);
    output.exits(3).complains("has field n twice");
}

#[test]
fn headers_that_share_a_variable_are_told_apart_by_order() {
    let place = Place::new();
    // Extensions of an event are its headers.
    for (first, second) in [("a-b", "a_b"), ("a_b", "a-b")] {
        let line = format!(
            r#"{{"specversion":"1.0","id":"{first}","source":"/s","type":"t","{first}":"of {first}","{second}":"of {second}"}}"#
        );
        place.inbox_with(&["ingest", "-"], line.as_bytes()).exits(0);
        let handler = "echo \"$INBOX_HEADER_A_B\" >> seen";
        place
            .inbox(&["process", "--drain", "--", "sh", "-c", handler])
            .exits(0);
    }
    assert_eq!(place.read("seen"), "of a-b\nof a-b\n");
}
