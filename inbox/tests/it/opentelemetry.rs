//! The span of an attempt continues the producer's trace.

use std::sync::Arc;

use inbox::{Context, Failure, Router};
use opentelemetry::trace::{SpanId, SpanKind, TraceId, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::{logged, processor_support::*};

#[tokio::test]
async fn each_attempt_is_a_child_of_the_producers_span() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let subscriber = tracing_subscriber::registry().with(layer);
    let _guard = logged::subscribe(subscriber);

    let spy = Arc::new(Spy::new());
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = |id, value| {
        let name = inbox::headers::TRACEPARENT;
        message(id).with_header(name, value).unwrap()
    };
    spy.receive_all([traced(1, traceparent), traced(2, "not a trace"), message(3)])
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
        let attribute = |name: &str| {
            let mut all = span.attributes.iter();
            let found = all.find(|attribute| attribute.key.as_str() == name);
            found.map(|attribute| attribute.value.to_string())
        };
        for (name, value) in [
            ("messaging.system", "inbox"),
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", "billing"),
        ] {
            assert_eq!(attribute(name).as_deref(), Some(value), "{name}");
        }
        let id = attribute("messaging.message.id").unwrap();
        assert!(["1", "2", "3"].contains(&id.as_str()), "{id}");
        assert!(attribute("messaging.message.body.size").is_some());
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
