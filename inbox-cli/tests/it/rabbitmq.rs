//! `inbox receive` from a queue and from a stream of RabbitMQ into a file, as its user meets it.

use std::{fs, sync::LazyLock};

use inbox::receiver::{Envelope, Publisher as _, SourceError};
use inbox_rabbitmq::RabbitMqPublisher;
use nix::sys::signal::Signal;
use test_servers::{Error, Kind, Server, require_or_skip};

use crate::support::{Place, finish, signal, wait_for};

static RABBITMQ: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::RabbitMq));

fn publish(server: &str, messages: &[Envelope]) -> Vec<Result<(), SourceError>> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let publisher = RabbitMqPublisher::from_url(server).unwrap();
        publisher.publish(messages).await
    })
}

#[test]
fn what_is_sent_twice_is_stored_once_and_acknowledged() {
    let server = RABBITMQ.as_ref().unwrap_or_else(|error| panic!("{error}"));
    let Some(server) = server else {
        return;
    };
    let place = Place::new();
    let from = format!(
        "{}?queue=cli-orders&create=true&dead_letters=cli-orders.dead",
        server.url()
    );
    let receive = [
        "receive",
        "--json",
        "--from",
        &from,
        "--id-from",
        "field:/order",
        "--kind-from",
        "fixed:order.placed",
        "--handler",
        "billing",
    ];
    // The first one declares the queue.
    let child = place.start(&receive);
    // The last one is no duplicate: when it is stored, all have come.
    let order = |n: u32| if n == 49 { 0 } else { n % 50 };
    let message = |n: u32| {
        let mut message = Envelope::new("cli-orders", format!(r#"{{"order": {}}}"#, order(n)));
        message.key = Some(format!("c-{}", n % 3));
        message
    };
    let messages: Vec<_> = (0..100).map(message).collect();
    let (first, rest) = messages.split_at(1);
    wait_for("the queue", || publish(server.url(), first)[0].is_ok());
    let answers = publish(server.url(), rest);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
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
    let one = Envelope::new("cli-orders", r#"{"order": "new"}"#);
    let answers = publish(server.url(), &[one]);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let child = place.start(&receive);
    wait_for("the new one", || {
        place.inbox(&["show", "billing/new"]).code == Some(0)
    });
    signal(&child, Signal::SIGTERM);
    let output = finish(child.wait_with_output().unwrap()).exits(0);
    assert_eq!(output.json()[0]["received"], 1, "{output:?}");

    let wrong = from.replace("guest:guest@", "guest:Secret@");
    let output = place.inbox(&["receive", "--from", &wrong]).exits(1);
    assert!(!output.stderr.contains("Secret"), "{output:?}");
    output.complains("ACCESS_REFUSED");
}

/// Defects: the log spoke of a failed acknowledgement, and the error neither of the reason nor of what to do.
#[test]
fn what_ends_it_is_told() {
    let server = RABBITMQ.as_ref().unwrap_or_else(|error| panic!("{error}"));
    let Some(server) = server else {
        return;
    };
    let place = Place::new();
    let from = format!("{}?queue=cli-stops&create=true", server.url());
    let receive = ["receive", "--from", &from, "--id-from", "field:/order"];
    let child = place.start(&receive);
    let one = [Envelope::new("cli-stops", "garbage")];
    wait_for("the queue", || publish(server.url(), &one)[0].is_ok());
    let output = finish(child.wait_with_output().unwrap()).exits(1);
    assert!(output.stdout.contains("1 rejected"), "{output:?}");
    assert!(!output.stderr.contains("acknowledgement"), "{output:?}");
    for part in ["--keep-rejected", "rejections=", "no id"] {
        let last = output.stderr.lines().last().unwrap_or_default();
        assert!(last.contains(part), "{part}: {output:?}");
    }
}

#[test]
fn a_stream_is_received_from_where_it_was() {
    let server = RABBITMQ.as_ref().unwrap_or_else(|error| panic!("{error}"));
    // Where another server is named, its port for streams is not known.
    let Some((server, home)) = server
        .as_ref()
        .zip(server.as_ref().and_then(Server::directory))
    else {
        return;
    };
    let settings = fs::read_to_string(home.join("rabbitmq.conf")).unwrap();
    let mut lines = settings.lines();
    let streams = lines.find_map(|line| line.strip_prefix("stream.listeners.tcp.1 = "));
    let from = format!(
        "rabbitmq-stream://{}/%2f?stream=cli-events&consumer=billing&create=true",
        streams.unwrap()
    );
    let place = Place::new();
    let receive = ["receive", "--json", "--from", &from, "--handler", "billing"];
    let send = |id: &str| {
        let mut message = Envelope::new("cli-events", "{}");
        message.id = Some(id.to_owned());
        publish(server.url(), &[message])[0].is_ok()
    };
    // The first one declares the stream.
    let child = place.start(&receive);
    wait_for("the stream", || send("evt-1"));
    wait_for("the first one", || {
        place.inbox(&["show", "billing/evt-1"]).code == Some(0)
    });
    signal(&child, Signal::SIGTERM);
    finish(child.wait_with_output().unwrap()).exits(0);

    assert!(send("evt-2"));
    let child = place.start(&receive);
    wait_for("the second one", || {
        place.inbox(&["show", "billing/evt-2"]).code == Some(0)
    });
    signal(&child, Signal::SIGTERM);
    let output = finish(child.wait_with_output().unwrap()).exits(0);
    assert_eq!(output.json()[0]["received"], 1, "{output:?}");

    let wrong = from.replace("://", "://guest:Secret@");
    let output = place.inbox(&["receive", "--from", &wrong]).exits(1);
    assert!(!output.stderr.contains("Secret"), "{output:?}");
    output.complains("password are refused");
}
