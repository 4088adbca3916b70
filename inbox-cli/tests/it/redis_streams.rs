//! `inbox receive` from a stream of Redis into a file, as its user meets it.

use std::{io::Write as _, net::TcpStream, sync::LazyLock};

use nix::sys::signal::Signal;
use test_servers::{Error, Kind, Server, require_or_skip};

use crate::support::{Place, finish, signal, wait_for};

static REDIS: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::Redis));

/// Sends commands, each a line, as a person does who has connected by hand.
fn send(address: &str, commands: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(commands.as_bytes()).unwrap();
    stream.write_all(b"QUIT\r\n").unwrap();
    let answers = std::io::read_to_string(stream).unwrap();
    assert!(!answers.contains("-ERR"), "{answers}");
}

/// Defect: nothing was said of what is thrown away.
#[test]
fn what_is_thrown_away_is_told() {
    let server = REDIS.as_ref().unwrap_or_else(|error| panic!("{error}"));
    let Some(server) = server else {
        return;
    };
    let address = server
        .url()
        .trim_start_matches("redis://")
        .trim_end_matches('/');
    let place = Place::new();
    send(
        address,
        "DEL cli-lost\r\nXADD cli-lost * payload garbage\r\nXADD cli-lost * order 1\r\n",
    );
    let from = format!("redis+stream://{address}/0?stream=cli-lost&group=g&create=true");
    let receive = ["receive", "--from", &from, "--id-from", "field:/order"];
    let child = place.start(&receive);
    wait_for("the message", || {
        place.inbox(&["show", "default/1"]).code == Some(0)
    });
    signal(&child, Signal::SIGTERM);
    let output = finish(child.wait_with_output().unwrap()).exits(0);
    assert!(
        output
            .stdout
            .contains("1 accepted, 0 duplicates, 1 rejected"),
        "{output:?}"
    );
    output.complains("inbox::rejected");
}

#[test]
fn what_is_sent_twice_is_stored_once_and_acknowledged() {
    let server = REDIS.as_ref().unwrap_or_else(|error| panic!("{error}"));
    let Some(server) = server else {
        return;
    };
    let address = server
        .url()
        .trim_start_matches("redis://")
        .trim_end_matches('/');
    let place = Place::new();
    // The last one is no duplicate: when it is stored, all have come.
    let order = |n: u32| if n == 49 { 0 } else { n % 50 };
    let entry = |n: u32| {
        format!(
            "XADD cli-orders * order {} customer c-{}\r\n",
            order(n),
            n % 3
        )
    };
    let entries: String = (0..100).map(entry).collect();
    send(address, &format!("DEL cli-orders\r\n{entries}"));
    let from = format!("redis+stream://{address}/0?stream=cli-orders&group=billing&create=true");
    let receive = [
        "receive",
        "--json",
        "--from",
        &from,
        "--id-from",
        "field:/order",
        "--kind-from",
        "fixed:order.placed",
        "--ordering-key-from",
        "header:customer",
        "--handler",
        "billing",
    ];
    let child = place.start(&receive);
    wait_for("all to be stored", || {
        let listed = place.inbox(&["stats", "--json"]);
        listed.stdout.contains(r#""pending":50"#)
    });
    signal(&child, Signal::SIGTERM);
    let output = finish(child.wait_with_output().unwrap()).exits(0);
    let figures = &output.json()[0];
    assert_eq!(figures["accepted"], 50, "{output:?}");
    assert_eq!(figures["duplicates"], 50, "{output:?}");
    let shown = place.inbox(&["show", "billing/7", "--json"]).exits(0);
    assert_eq!(shown.json()[0]["ordering_key"], "c-1");

    // They are acknowledged: nothing comes again.
    send(address, "XADD cli-orders * order new\r\n");
    let child = place.start(&receive);
    wait_for("the new one", || {
        place.inbox(&["show", "billing/new"]).code == Some(0)
    });
    signal(&child, Signal::SIGTERM);
    let output = finish(child.wait_with_output().unwrap()).exits(0);
    assert_eq!(output.json()[0]["received"], 1, "{output:?}");

    // Another group has all of them again, and only records them.
    let audit = from.replace("billing", "audit");
    let child = place.start(&[
        "receive",
        "--from",
        &audit,
        "--id-from",
        "field:/order",
        "--handler",
        "audit",
        "--record-only",
    ]);
    wait_for("all to be recorded", || {
        place.inbox(&["show", "audit/new"]).code == Some(0)
    });
    signal(&child, Signal::SIGTERM);
    finish(child.wait_with_output().unwrap()).exits(0);
    let counts = place.inbox(&["stats", "--json"]).exits(0);
    let audit = |line: &serde_json::Value| line["handler"] == "audit" && line["processed"] == 51;
    assert!(counts.json().iter().any(audit), "{counts:?}");

    let wrong = format!("redis+stream://u:Secret@{address}/0?stream=s&group=g");
    let output = place.inbox(&["receive", "--from", &wrong]).exits(1);
    assert!(!output.stderr.contains("Secret"), "{output:?}");
    output.complains("user or password were refused");
}
