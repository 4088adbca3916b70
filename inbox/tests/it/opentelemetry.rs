//! The span of an attempt continues the producer's trace, and that of a receipt links to it.

use std::sync::Arc;

use inbox::receiver::{ChannelSource, Receiver};
use inbox::{CancellationToken, Context, Failure, Message, Router};
use opentelemetry::trace::{SpanId, SpanKind, TraceId, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::{logged, processor_support::*};

/// Subscribes until the guard is dropped.
fn export() -> (InMemorySpanExporter, SdkTracerProvider, impl Drop) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let guard = logged::subscribe(tracing_subscriber::registry().with(layer));
    (exporter, provider, guard)
}

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn traced(id: u32, value: &str) -> Message {
    let name = inbox::headers::TRACEPARENT;
    message(id).with_header(name, value).unwrap()
}

#[tokio::test]
async fn a_receipt_links_to_the_span_of_each_producer() {
    let (exporter, provider, _guard) = export();
    let spy = Arc::new(Spy::new());
    let other = "00-11111111111111111111111111111111-2222222222222222-01";
    let (sender, channel) = tokio::sync::mpsc::channel(10);
    // The copy has come by another span.
    let copy = traced(1, other);
    for message in [
        traced(1, TRACEPARENT),
        copy,
        traced(2, "not a trace"),
        message(3),
    ] {
        sender.send(message).await.unwrap();
    }
    drop(sender);
    let receiver = Receiver::builder(spy.clone()).build();
    let mut source = ChannelSource::new(channel);
    let summary = receiver
        .run(&mut source, CancellationToken::new())
        .await
        .unwrap();
    assert_eq!((summary.accepted, summary.duplicates), (3, 1));

    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    let receipts: Vec<_> = spans
        .iter()
        .filter(|span| span.name.starts_with("receive "))
        .collect();
    assert!(
        receipts
            .iter()
            .all(|span| span.span_kind == SpanKind::Client)
    );
    let count = |span: &&SpanData| attribute(span, "messaging.batch.message_count");
    let counts = receipts
        .iter()
        .filter_map(count)
        .map(|text| text.parse::<u64>().unwrap());
    assert_eq!(counts.sum::<u64>(), 4);
    let links = receipts.iter().flat_map(|span| span.links.iter());
    let linked: Vec<_> = links
        .map(|link| link.span_context.trace_id().to_string())
        .collect();
    assert_eq!(
        linked,
        [
            "0af7651916cd43dd8448eb211c80319c",
            "11111111111111111111111111111111"
        ]
    );
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let mut all = span.attributes.iter();
    let found = all.find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}

#[tokio::test]
async fn each_attempt_is_a_child_of_the_producers_span() {
    let (exporter, provider, _guard) = export();
    let spy = Arc::new(Spy::new());
    spy.receive_all([traced(1, TRACEPARENT), traced(2, "not a trace"), message(3)])
        .await;
    let router = Router::new(billing()).on("order.placed", |context: Context| async move {
        match (context.message().id().as_str(), context.attempts().started) {
            ("1", 1) => Err(Failure::retry("once more")),
            _ => Ok(()),
        }
    });
    let summary = until_idle(processor(&spy, router).retry(at_once(2))).await;
    assert_eq!((summary.processed, summary.retried), (3, 1));

    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    let attempts: Vec<_> = spans
        .iter()
        .filter(|span| span.name == "process billing")
        .collect();
    assert_eq!(attempts.len(), 4);
    for span in &attempts {
        assert_eq!(span.span_kind, SpanKind::Consumer);
        for (name, value) in [
            ("messaging.system", "inbox"),
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", "billing"),
        ] {
            assert_eq!(attribute(span, name).as_deref(), Some(value), "{name}");
        }
        let id = attribute(span, "messaging.message.id").unwrap();
        assert!(["1", "2", "3"].contains(&id.as_str()), "{id}");
        assert!(attribute(span, "messaging.message.body.size").is_some());
    }
    let trace = TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap();
    let parent = SpanId::from_hex("b7ad6b7169203331").unwrap();
    let (children, others): (Vec<_>, Vec<_>) = attempts
        .into_iter()
        .partition(|span| span.span_context.trace_id() == trace);
    assert_eq!(children.len(), 2, "both attempts");
    for span in children {
        assert!(span.parent_span_id == parent && span.parent_span_is_remote);
    }
    assert!(others.iter().all(|span| span.parent_span_id != parent));
}

/// Defect: the trace of what a batch handler is for ended at the inbox.
#[tokio::test]
async fn a_batch_links_to_the_span_of_each_producer() {
    use inbox::{Batch, Batches};

    let (exporter, provider, _guard) = export();
    let spy = Arc::new(Spy::new());
    spy.receive_all([traced(1, TRACEPARENT), traced(2, "not a trace"), message(3)])
        .await;
    let router = Router::new(billing())
        .on_batch("order.placed", |_: Batch| async { Ok::<_, Failure>(()) })
        .batches(Batches::up_to(3));
    let summary = until_idle(processor(&spy, router)).await;
    assert_eq!(summary.processed, 3);

    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    let batches: Vec<_> = spans
        .iter()
        .filter(|span| span.name == "process billing")
        .collect();
    let mut messages = 0;
    for span in &batches {
        assert_eq!(span.span_kind, SpanKind::Consumer);
        let count = attribute(span, "messaging.batch.message_count").unwrap();
        messages += count.parse::<u64>().unwrap();
    }
    assert_eq!(messages, 3, "{spans:?}");
    let links = batches.iter().flat_map(|span| span.links.iter());
    let linked: Vec<_> = links
        .map(|link| link.span_context.span_id().to_string())
        .collect();
    assert_eq!(linked, ["b7ad6b7169203331"]);
}

/// Defect: an attempt had a span for each of the two.
#[tokio::test]
async fn what_is_written_about_a_failed_attempt_is_no_attempt() {
    use inbox::{FailedAttempt, Processor, Schema as _, Store as _};
    use inbox_sqlite::{SqliteOptions, SqliteStore};

    let (exporter, provider, _guard) = export();
    let directory = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(directory.path().join("inbox.db"));
    let store = SqliteStore::connect(options).await.unwrap();
    store.create().await.unwrap();
    let _ = store.receive(&[traced(1, TRACEPARENT)]).await.unwrap();
    let router = Router::new(billing())
        .on("order.placed", |_: Context| async {
            Err::<(), _>(Failure::dead("no such order"))
        })
        .on_failure_in_transaction(store.clone(), |_, _: FailedAttempt| async {
            Ok::<_, Failure>(())
        });
    let processor = Processor::builder(Arc::new(store)).router(router);
    assert_eq!(until_idle(processor).await.dead, 1);

    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    let trace = TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap();
    let of_trace = spans
        .iter()
        .filter(|span| span.span_context.trace_id() == trace);
    let mut names: Vec<_> = of_trace
        .map(|span| (&*span.name, span.span_kind.clone()))
        .collect();
    names.sort_by_key(|(name, _)| *name);
    let expected = [
        ("process billing", SpanKind::Consumer),
        ("settle billing", SpanKind::Client),
    ];
    assert_eq!(names, expected);
}
