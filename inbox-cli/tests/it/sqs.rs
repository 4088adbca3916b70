//! `inbox receive` from a queue of SQS into a file, as its user meets it.

use inbox::receiver::{Envelope, Publisher as _};
use inbox_sqs::{Connection, SqsPublisher, aws_sdk_sqs::types::QueueAttributeName as Attribute};
use nix::sys::signal::Signal;
use test_servers::{Kind, require_or_skip};

use crate::support::{Place, finish, signal, wait_for};

#[test]
fn what_is_sent_twice_is_stored_once_and_deleted() {
    let server = require_or_skip(Kind::Elasticmq);
    let Some(server) = server.unwrap_or_else(|error| panic!("{error}")) else {
        return;
    };
    let server = server.url().replace("http://", "sqs+http://key:Secret@");
    // One for all requests: a client keeps its connections.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connection = Connection::from_url(&format!("{server}?region=elasticmq")).unwrap();
    let client = connection.client();
    let create = client.create_queue().queue_name("cli-orders");
    runtime.block_on(create.send()).unwrap();
    let message = |n: u32| {
        let mut message = Envelope::new("cli-orders", format!(r#"{{"order": {}}}"#, n % 50));
        message.key = Some(format!("c-{}", n % 50 % 3));
        message
    };
    let messages: Vec<_> = (0..100).map(message).collect();
    let publisher = SqsPublisher::new(connection.clone());
    let answers = runtime.block_on(publisher.publish(&messages));
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");

    let place = Place::new();
    let from = format!("{server}/cli-orders?region=elasticmq&wait_s=1");
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
    let child = place.start(&receive);
    let counts = [
        Attribute::ApproximateNumberOfMessages,
        Attribute::ApproximateNumberOfMessagesNotVisible,
    ];
    wait_for("all to be deleted", || {
        let ask = client
            .get_queue_attributes()
            .queue_url(connection.queue_url("cli-orders"))
            .set_attribute_names(Some(counts.to_vec()));
        let answer = runtime.block_on(ask.send()).unwrap().attributes.unwrap();
        counts.iter().all(|count| answer[count] == "0")
    });
    signal(&child, Signal::SIGTERM);
    let output = finish(child.wait_with_output().unwrap()).exits(0);
    let figures = &output.json()[0];
    assert_eq!(figures["accepted"], 50, "{output:?}");
    assert_eq!(figures["duplicates"], 50, "{output:?}");
    assert!(!output.stderr.contains("Secret"), "{output:?}");
    let shown = place.inbox(&["show", "billing/7", "--json"]).exits(0);
    assert_eq!(shown.json()[0]["ordering_key"], "c-1");

    let wrong = from.replace("cli-orders", "cli-nowhere");
    let output = place.inbox(&["receive", "--from", &wrong]).exits(1);
    assert!(!output.stderr.contains("Secret"), "{output:?}");
    output.complains("QueueDoesNotExist");
}
