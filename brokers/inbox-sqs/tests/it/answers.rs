//! Answers of the service that ElasticMQ does not give.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use inbox_source::{Delivery as _, Envelope, Publisher as _, Rejection, Source as _, SourceError};
use inbox_sqs::{Rejections, SqsDelivery, SqsOptions, SqsPublisher};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::{
    fake::{self, Answer},
    harness::Outcome,
    source::{next, source, take},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// One with which each entry of a request is done.
fn all_done(request: &Value) -> Answer {
    let entries = request["Entries"].as_array().cloned().unwrap_or_default();
    let done = entries.iter().map(|entry| json!({ "Id": entry["Id"] }));
    let done: Vec<_> = done.collect();
    (200, json!({ "Successful": done, "Failed": [] }))
}

/// So many messages at the first question, and then none.
fn messages(count: usize) -> impl Fn() -> Answer + Send + Sync {
    let given = AtomicBool::new(false);
    move || {
        if given.swap(true, Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(200));
            return (200, json!({}));
        }
        let message = |number: usize| {
            json!({
                "MessageId": format!("m-{number}"),
                "ReceiptHandle": format!("r-{number}"),
                "Body": "body",
            })
        };
        let all: Vec<_> = (0..count).map(message).collect();
        (200, json!({ "Messages": all }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_answer_does_not_name_is_not_confirmed() -> Outcome {
    let connection = fake::serve(|_, _| {
        let refusal = json!({ "Id": "1", "SenderFault": true, "Code": "InvalidMessageContents" });
        (
            200,
            json!({ "Successful": [{ "Id": "0" }], "Failed": [refusal] }),
        )
    })?;
    let publisher = SqsPublisher::new(connection);
    let messages = ["1", "2", "3"].map(|body| Envelope::new("orders", body));
    let answers = publisher.publish(&messages).await;
    assert_eq!(answers.len(), 3);
    assert!(answers[0].is_ok(), "{answers:?}");
    let is_transient = |place: usize| answers[place].as_ref().err().map(SourceError::is_transient);
    assert_eq!(is_transient(1), Some(false), "{answers:?}");
    assert_eq!(is_transient(2), Some(true), "{answers:?}");
    Ok(())
}

/// Of a request that is refused as a whole nobody knows which message is the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_has_its_request_refused_is_no_fault_of_the_others() -> Outcome {
    for queue in ["orders", "orders.fifo"] {
        let connection = fake::serve(|_, request| {
            let entries = request["Entries"].as_array().cloned().unwrap_or_default();
            let refusal = json!({
                "__type": "com.amazonaws.sqs#InvalidMessageContents",
                "message": "it has a character that is not allowed",
            });
            match entries.iter().any(|entry| entry["MessageBody"] == "odd") {
                true => (400, refusal),
                false => all_done(request),
            }
        })?;
        let publisher = SqsPublisher::new(connection);
        let messages = ["1", "2", "odd", "3", "4"].map(|body| {
            let mut message = Envelope::new(queue, body);
            message.id = Some(body.to_owned());
            message
        });
        let answers = publisher.publish(&messages).await;
        for (message, answer) in messages.iter().zip(answers) {
            match &*message.payload {
                b"odd" => assert!(answer.is_err_and(|error| !error.is_transient())),
                body => assert!(answer.is_ok(), "{queue} {body:?}: {answer:?}"),
            }
        }
    }
    Ok(())
}

/// Standard queues have groups, too, by which they are fair, and keep no order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_a_standard_queue_is_no_order() -> Outcome {
    for (queue, key) in [("orders", None), ("orders.fifo", Some("tenant-1"))] {
        let given = AtomicBool::new(false);
        let connection = fake::serve(move |name, request| match name {
            "ReceiveMessage" if !given.swap(true, Ordering::SeqCst) => {
                let message = json!({
                    "MessageId": "m-1",
                    "ReceiptHandle": "r-1",
                    "Body": "body",
                    "Attributes": { "MessageGroupId": "tenant-1" },
                });
                (200, json!({ "Messages": [message] }))
            }
            "ReceiveMessage" => {
                thread::sleep(Duration::from_millis(200));
                (200, json!({}))
            }
            _ => all_done(request),
        })?;
        let mut source = source(SqsOptions::new(connection, queue)?);
        let delivery = next(&mut source).await?;
        assert_eq!(delivery.envelope().key.as_deref(), key, "{queue}");
        delivery.acknowledge().await?;
        source.close().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_answer_does_not_name_is_not_deleted() -> Outcome {
    let messages = messages(3);
    let connection = fake::serve(move |name, request| match name {
        "ReceiveMessage" => messages(),
        "DeleteMessageBatch" => (
            200,
            json!({ "Successful": [{ "Id": "0" }, { "Id": "2" }], "Failed": [] }),
        ),
        _ => all_done(request),
    })?;
    let mut source = source(SqsOptions::new(connection, "orders")?);
    let taken = take(&mut source, 3).await?;
    let failures = SqsDelivery::acknowledge_all(taken).await;
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].is_transient(), "{failures:?}");
    Ok(source.close().await?)
}

/// A message that is as large as its queue allows has no room for the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_is_too_large_goes_without_its_reason() -> Outcome {
    let messages = messages(1);
    let (told, had_reason) = mpsc::channel();
    let connection = fake::serve(move |name, request| match name {
        "ReceiveMessage" => messages(),
        "SendMessage" => {
            let has_reason = !request["MessageAttributes"]["inbox-rejection"].is_null();
            let _ = told.send(has_reason);
            let refusal = json!({
                "__type": "com.amazon.coral.service#InvalidParameterValueException",
                "message": "Reason: Message must be shorter than 262144 bytes.",
            });
            match has_reason {
                true => (400, refusal),
                false => (200, json!({ "MessageId": "m-2" })),
            }
        }
        _ => all_done(request),
    })?;
    let options = SqsOptions::new(connection, "orders")?;
    let options = options.rejections(Rejections::DeadLetters("dead".into()))?;
    let mut source = source(options);
    let delivery = next(&mut source).await?;
    delivery.reject(Rejection::new("it is no message")).await?;
    assert_eq!(had_reason.try_iter().collect::<Vec<_>>(), [true, false]);
    Ok(source.close().await?)
}

/// The same would be refused again at once, over and over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_finished_stays_away_for_a_while() -> Outcome {
    for refused in ["DeleteMessageBatch", "SendMessage"] {
        let messages = messages(1);
        let (told, changes) = mpsc::channel();
        let connection = fake::serve(move |name, request| match name {
            "ReceiveMessage" => messages(),
            "ChangeMessageVisibilityBatch" => {
                let _ = told.send(request["Entries"][0]["VisibilityTimeout"].as_u64());
                all_done(request)
            }
            _ if name == refused => {
                let refusal = json!({
                    "__type": "com.amazon.coral.service#AccessDeniedException",
                    "message": "no",
                });
                (400, refusal)
            }
            _ => all_done(request),
        })?;
        let options = SqsOptions::new(connection, "orders")?.visibility(PATIENCE)?;
        let options = options.rejections(Rejections::DeadLetters("dead".into()))?;
        let mut source = source(options);
        let delivery = next(&mut source).await?;
        let finished = match refused {
            "SendMessage" => delivery.reject(Rejection::new("it is no message")).await,
            _ => delivery.acknowledge().await,
        };
        assert!(finished.is_err_and(|error| !error.is_transient()));
        let change = || loop {
            let seconds = changes.recv_timeout(PATIENCE)?;
            // While it was worked on.
            if seconds != Some(PATIENCE.as_secs()) {
                return Ok::<_, mpsc::RecvTimeoutError>(seconds);
            }
        };
        let seconds = block_in_place(change)?.ok_or("no number")?;
        assert!(seconds > 0, "{refused}");
        source.close().await?;
    }
    Ok(())
}
