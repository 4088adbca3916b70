//! What is peculiar to SQS.

use std::time::Duration;

use aws_sdk_sqs::types::MessageAttributeValue;
use inbox_source::{
    Delivery as _, Envelope, Flow, Mapping, Publisher as _, Rejection, Source as _,
};
use inbox_sqs::{Rejections, SqsDelivery, SqsOptions, SqsPublisher, SqsSource};
use tokio::{
    task::block_in_place,
    time::{Instant, sleep, timeout},
};

use crate::harness::{Outcome, Sqs, dead};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn source(options: SqsOptions) -> SqsSource {
    SqsSource::new(options, Mapping::new("billing").unwrap()).unwrap()
}

pub(crate) async fn next(source: &mut SqsSource) -> Outcome<SqsDelivery> {
    let next = timeout(PATIENCE, source.next()).await??;
    Ok(next.ok_or("the source has ended")?)
}

pub(crate) async fn take(source: &mut SqsSource, count: usize) -> Outcome<Vec<SqsDelivery>> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(next(source).await?);
    }
    Ok(taken)
}

fn numbered(queue: &str, count: usize) -> Vec<Envelope> {
    let number = |number: usize| Envelope::new(queue, number.to_string());
    (1..=count).map(number).collect()
}

/// One server for all, as starting it takes longest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue() -> Outcome {
    let Some(server) = block_in_place(Sqs::own)? else {
        return Ok(());
    };
    let server = &server;
    tokio::try_join!(
        what_is_dropped_comes_again_and_what_is_closed_is_given_back(server),
        no_more_is_asked_for_than_may_be_held(server),
        no_more_is_asked_for_while_the_bytes_are_reached(server),
        attributes_are_headers(server),
        a_rejected_message_goes_where_it_is_told(server),
        a_fifo_queue_drops_a_second_sending(server),
        some_of_a_batch_may_fail(server),
        what_is_not_there_ends_a_source_and_is_waited_for_by_a_publisher(server),
    )?;
    Ok(())
}

async fn what_is_dropped_comes_again_and_what_is_closed_is_given_back(server: &Sqs) -> Outcome {
    let queue = "dropped";
    server.create(queue).await?;
    server.publish(queue, &numbered(queue, 25)).await?;
    // Longer than this test waits for anything.
    let options = server.options(queue)?.visibility(PATIENCE * 10)?;
    let mut first = source(options.clone());
    let taken = take(&mut first, 25).await?;
    server.until(queue, (0, 25)).await?;
    drop(taken);
    let taken = take(&mut first, 25).await?;
    server.until(queue, (0, 25)).await?;
    first.close().await?;
    server.until(queue, (25, 0)).await?;
    drop(taken);

    let mut second = source(options);
    let taken = take(&mut second, 25).await?;
    let failures = SqsDelivery::acknowledge_all(taken).await;
    assert!(failures.is_empty(), "{failures:?}");
    server.until(queue, (0, 0)).await?;
    Ok(second.close().await?)
}

async fn no_more_is_asked_for_than_may_be_held(server: &Sqs) -> Outcome {
    let queue = "held";
    server.create(queue).await?;
    server.publish(queue, &numbered(queue, 40)).await?;
    // Extended in time by a machine that is slow.
    let visibility = Duration::from_secs(12);
    let mut source = source(server.options(queue)?.visibility(visibility)?);
    source.set_flow(Flow::new(13, 13));
    let taken = take(&mut source, 13).await?;
    let more = timeout(visibility + Duration::from_secs(1), source.next()).await;
    assert!(more.is_err(), "{more:?}");
    // None has come again, as they are extended, and no more are taken.
    assert_eq!(server.outstanding(queue).await?, (27, 13));
    let failures = SqsDelivery::acknowledge_all(taken).await;
    assert!(failures.is_empty(), "{failures:?}");
    take(&mut source, 13).await?;
    Ok(source.close().await?)
}

async fn no_more_is_asked_for_while_the_bytes_are_reached(server: &Sqs) -> Outcome {
    let queue = "bytes";
    server.create(queue).await?;
    server.publish(queue, &numbered(queue, 25)).await?;
    let mut source = source(server.options(queue)?);
    source.set_flow(Flow::new(1000, 500).with_max_unacknowledged_bytes(1));
    let mut taken = vec![next(&mut source).await?];
    let more = async {
        loop {
            match source.next().await {
                Ok(Some(delivery)) => taken.push(delivery),
                other => return format!("{other:?}"),
            }
        }
    };
    let ended = timeout(Duration::from_secs(3), more).await;
    assert!(ended.is_err(), "{ended:?}");
    // What one answer may have.
    assert!(taken.len() <= 10, "{}", taken.len());
    Ok(source.close().await?)
}

async fn attributes_are_headers(server: &Sqs) -> Outcome {
    let queue = "attributes";
    server.create(queue).await?;
    let attribute = |kind: &str| MessageAttributeValue::builder().data_type(kind);
    let send = server.client().send_message().queue_url(server.url(queue));
    let send = send
        .message_body("body")
        .message_attributes("count", attribute("Number").string_value("7").build()?)
        .message_attributes(
            "raw",
            attribute("Binary")
                .binary_value(aws_sdk_sqs::primitives::Blob::new([0xff, 0]))
                .build()?,
        );
    let sent = send.send().await?;
    let mut source = source(server.options(queue)?);
    let delivery = next(&mut source).await?;
    let envelope = delivery.envelope();
    assert_eq!(envelope.header("count"), Some("7"));
    assert_eq!(envelope.header("raw-bin"), Some("/wA="));
    assert_eq!(envelope.position, sent.message_id);
    assert_eq!((&envelope.id, &envelope.key), (&None, &None));
    let message = delivery.message()?;
    assert_eq!(Some(message.id().as_str()), sent.message_id.as_deref());
    assert_eq!(message.kind().as_str(), queue);
    delivery.acknowledge().await?;
    Ok(source.close().await?)
}

async fn a_rejected_message_goes_where_it_is_told(server: &Sqs) -> Outcome {
    for (queue, rejections) in [
        ("rejected", Rejections::Delete),
        ("redriven", Rejections::Redrive),
        (
            "dead-letters",
            Rejections::DeadLetters(dead("dead-letters")),
        ),
    ] {
        server.create_one(&dead(queue), None).await?;
        server.create_one(queue, Some(2)).await?;
        let mut message = Envelope::new(queue, "poison");
        message.headers.push(("kept".into(), "value".into()));
        server.publish(queue, &[message]).await?;
        let mut source = source(server.options(queue)?.rejections(rejections.clone())?);
        let rounds = if rejections == Rejections::Redrive {
            2
        } else {
            1
        };
        for _ in 0..rounds {
            let delivery = next(&mut source).await?;
            delivery.reject(Rejection::new("it is no message")).await?;
        }
        // It is moved when it would be delivered once more.
        tokio::select! {
            more = source.next() => return Err(format!("{more:?}").into()),
            gone = server.until(queue, (0, 0)) => gone?,
        }
        let dead = server.messages(&dead(queue)).await?;
        let is_kept = rejections != Rejections::Delete;
        assert_eq!(dead.len(), usize::from(is_kept), "{queue}");
        if let Some(letter) = dead.first() {
            assert_eq!(letter.body.as_deref(), Some("poison"));
            let attributes = letter.message_attributes.as_ref().unwrap();
            let text = |name: &str| attributes.get(name)?.string_value.as_deref();
            assert_eq!(text("kept"), Some("value"));
            let reason = matches!(rejections, Rejections::DeadLetters(_));
            let reason = reason.then_some("it is no message");
            assert_eq!(text("inbox-rejection"), reason);
        }
        source.close().await?;
    }
    Ok(())
}

async fn a_fifo_queue_drops_a_second_sending(server: &Sqs) -> Outcome {
    let queue = "once.fifo";
    server.create(queue).await?;
    let mut messages = numbered(queue, 25);
    for (number, message) in messages.iter_mut().enumerate() {
        message.id = Some(format!("order {number}"));
        message.key = Some("k".into());
    }
    server.publish(queue, &messages).await?;
    server.publish(queue, &messages).await?;
    server.until(queue, (25, 0)).await?;
    let mut source = source(server.options(queue)?);
    let mut came = Vec::new();
    while came.len() < 25 {
        let delivery = next(&mut source).await?;
        let envelope = delivery.envelope();
        assert_eq!(envelope.key.as_deref(), Some("k"));
        came.push((envelope.id.clone(), envelope.payload.clone()));
        delivery.acknowledge().await?;
    }
    let sent = messages.into_iter().map(|one| (one.id, one.payload));
    assert_eq!(came, sent.collect::<Vec<_>>());
    Ok(source.close().await?)
}

/// Of one request, what is refused and what is not.
async fn some_of_a_batch_may_fail(server: &Sqs) -> Outcome {
    let queue = "partly";
    server.create(queue).await?;
    let publisher = SqsPublisher::new(server.direct().clone());
    let mut messages = numbered(queue, 5);
    messages[1].payload = "x".repeat(2_000_000).into();
    messages[3].address = "not a queue".into();
    let answers = publisher.publish(&messages).await;
    let is_permanent = |place: usize| {
        let error = answers[place].as_ref().err();
        error.is_some_and(|error| !error.is_transient())
    };
    assert!(is_permanent(1) && is_permanent(3), "{answers:?}");
    for place in [0, 2, 4] {
        assert!(answers[place].is_ok(), "{answers:?}");
    }
    server.until(queue, (3, 0)).await
}

async fn what_is_not_there_ends_a_source_and_is_waited_for_by_a_publisher(server: &Sqs) -> Outcome {
    let mut source = source(server.options("nowhere")?);
    let error = timeout(PATIENCE, source.next()).await?.err();
    let error = error.ok_or("a delivery came")?;
    assert!(!error.is_transient(), "{error}");
    let publisher = SqsPublisher::new(server.direct().clone());
    let answers = publisher.publish(&[Envelope::new("nowhere", "1")]).await;
    let error = answers.into_iter().next().and_then(Result::err);
    let error = error.ok_or("it was sent")?;
    // It may be made again in a moment.
    assert!(error.is_transient(), "{error}");
    Ok(())
}

/// A receipt is good over any connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_takes_nothing_along() -> Outcome {
    let Some(server) = block_in_place(Sqs::own)? else {
        return Ok(());
    };
    let queue = "restarted";
    server.create(queue).await?;
    server.publish(queue, &numbered(queue, 12)).await?;
    let mut source = source(server.options(queue)?.visibility(PATIENCE * 10)?);
    let taken = take(&mut source, 12).await?;
    block_in_place(|| server.kill())?;
    let deadline = Instant::now() + PATIENCE;
    let failed = loop {
        match timeout(Duration::from_secs(5), source.next()).await {
            Ok(Err(error)) => break error,
            _ if Instant::now() > deadline => return Err("nothing failed".into()),
            _ => sleep(Duration::from_millis(50)).await,
        }
    };
    assert!(failed.is_transient(), "{failed}");
    server.start().await?;
    let failures = SqsDelivery::acknowledge_all(taken).await;
    assert!(failures.is_empty(), "{failures:?}");
    server.until(queue, (0, 0)).await?;
    Ok(source.close().await?)
}
