//! `inbox receive` from Kafka into a file, as its user meets it.

use std::{process::Child, sync::LazyLock, time::Duration};

use nix::sys::signal::Signal;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use test_servers::{Error, Kind, Server, require_or_skip};

use crate::support::{Output, Place, event, finish, lines, signal, wait_for};

static KAFKA: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::Kafka));

const LIMIT: Duration = Duration::from_secs(30);

/// The shared server's address, with a topic of this name and its dead letters.
fn topic(name: &str) -> Option<String> {
    let server = KAFKA.as_ref().unwrap_or_else(|error| panic!("{error}"));
    let url = server.as_ref()?.url();
    let address = url.trim_start_matches("kafka://").trim_end_matches('/');
    let admin: AdminClient<DefaultClientContext> = config(address).create().unwrap();
    let dead = format!("{name}.dead");
    let topics = [name, &dead].map(|name| NewTopic::new(name, 2, TopicReplication::Fixed(1)));
    let made = admin.create_topics(&topics, &AdminOptions::new());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for topic in runtime.block_on(made).unwrap() {
        topic.unwrap();
    }
    Some(address.to_owned())
}

fn config(address: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address);
    config
}

fn send(address: &str, topic: &str, bodies: &[String]) {
    let producer: BaseProducer = config(address).create().unwrap();
    for body in bodies {
        let record = BaseRecord::<str, str>::to(topic).payload(body).key("one");
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(LIMIT).unwrap();
}

fn from(address: &str, topic: &str) -> String {
    format!(
        "kafka://{address}/?topic={topic}&group={topic}&dead_letters={topic}.dead&session_timeout_ms=6000"
    )
}

/// Ends a service as a supervisor does.
fn end(child: Child) -> Output {
    signal(&child, Signal::SIGTERM);
    finish(child.wait_with_output().unwrap())
}

#[test]
fn what_is_sent_twice_is_stored_once_and_acknowledged() {
    let Some(address) = topic("receive-twice") else {
        return;
    };
    let place = Place::new();
    // The last one is no duplicate: when it is stored, all have come.
    let order = |n: u32| if n == 99 { 0 } else { n % 100 };
    let bodies: Vec<_> = (0..200)
        .map(|n| format!(r#"{{"order":{{"id":{}}}}}"#, order(n)))
        .collect();
    send(&address, "receive-twice", &bodies);

    let from = from(&address, "receive-twice");
    let receive = [
        "receive",
        "--json",
        "--from",
        &from,
        "--id-from",
        "field:/order/id",
        "--kind-from",
        "fixed:order.placed",
        "--handler",
        "billing",
        "--handler",
        "audit",
    ];
    let child = place.start(&receive);
    wait_for("all to be stored", || {
        let listed = place.inbox(&["stats", "--json"]);
        listed.stdout.matches(r#""pending":100"#).count() == 2
    });
    let output = end(child).exits(0);
    let figures = &output.json()[0];
    assert_eq!(figures["accepted"], 100, "{output:?}");
    assert_eq!(figures["duplicates"], 100, "{output:?}");
    assert_eq!(figures["abandoned"], 0, "{output:?}");

    let shown = place.inbox(&["show", "audit/7", "--json"]).exits(0);
    let shown = shown.json();
    assert_eq!(shown[0]["kind"], "order.placed");
    assert_eq!(shown[0]["ordering_key"], "one");

    // The offsets are committed: nothing comes again.
    send(
        &address,
        "receive-twice",
        &[r#"{"order":{"id":"new"}}"#.into()],
    );
    let child = place.start(&receive);
    wait_for("the new one", || {
        place.inbox(&["show", "billing/new"]).code == Some(0)
    });
    let output = end(child).exits(0);
    assert_eq!(output.json()[0]["received"], 1, "{output:?}");
}

#[test]
fn what_is_no_message_is_kept_or_stops() {
    let Some(address) = topic("receive-poison") else {
        return;
    };
    let place = Place::new();
    let good = event("e1", "order.placed", "{}");
    send(&address, "receive-poison", &[good, r#"{"no":"id"}"#.into()]);
    let from = from(&address, "receive-poison");
    let receive = ["receive", "--from", &from, "--id-from", "field:id"];

    let stops = place.inbox(&[&receive[..], &["--stop-at-rejected"]].concat());
    stops
        .exits(1)
        .complains("a delivery is no message that can be stored: it has no id");

    let child = place.start(&[&receive[..], &["--keep-rejected", "poison"]].concat());
    wait_for("the dead letter", || {
        let dead = place.inbox(&["dead", "--json"]);
        dead.stdout.contains("poison")
    });
    end(child)
        .exits(0)
        .says("0 accepted, 0 duplicates, 1 kept as dead letters");
}

#[test]
fn a_wrong_url_says_what_is_wrong_with_it() {
    let place = Place::new();
    let receive = |from: &str| place.inbox(&["receive", "--from", from]).exits(2);
    receive("orders").complains("a broker's URL begins with one of: kafka://");
    receive("ftp://user:Secret@host/").complains("begins with one of: kafka://");
    receive("kafka://host/?topic=t").complains("group");
    let output = receive("kafka://u:Secret@host/?topic=t&group=g&rejected=stop");
    assert!(!output.stderr.contains("Secret"), "{output:?}");
    output.complains("sasl");
    let output = place.inbox(&["receive", "--from", "kafka://h/", "--id-from", "body"]);
    output
        .exits(2)
        .complains("expected cloudevent, property, header:NAME");
    // None of them has set an inbox up.
    assert!(!place.path("inbox.db").exists());
}

#[test]
fn a_service_receives_and_works() {
    let Some(address) = topic("receive-serve") else {
        return;
    };
    let place = Place::new();
    let bodies: Vec<_> = (0..20).map(|n| format!(r#"{{"id":"{n}"}}"#)).collect();
    send(&address, "receive-serve", &bodies);
    let from = from(&address, "receive-serve");
    place.file(
        "inbox.toml",
        format!(
            "store = \"sqlite://inbox.db\"\nlisten = \"127.0.0.1:0\"\n[[receivers]]\nfrom = \"{from}\"\n\
             handlers = [\"billing\"]\nid_from = [\"field:id\"]\nordering_key_from = []\n\
             [[handlers]]\nname = \"billing\"\ncommand = [\"sh\", \"-c\", \"echo $INBOX_ID >> ran\"]\n"
        ),
    );
    let child = place.start(&["serve", "--config", "inbox.toml", "--json"]);
    wait_for("all to be handled", || {
        let ran = place.path("ran");
        ran.exists() && lines(&ran).len() == 20
    });
    let figures = &end(child).exits(0).json()[0];
    assert_eq!(figures["receivers"]["accepted"], 20, "{figures}");
    assert_eq!(figures["processed"], 20, "{figures}");
}
