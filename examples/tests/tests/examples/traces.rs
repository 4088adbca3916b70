use std::process::Command;

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use crate::{
    collector::{Collector, Exported},
    databases::redis,
    program::Program,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tested-traces");

fn named(spans: &[Exported], name: &str) -> Vec<Exported> {
    let found = spans.iter().filter(|one| one.span.name == name);
    found.cloned().collect()
}

#[test]
fn a_trace_leads_from_the_producer_to_every_attempt() {
    let Some(redis) = redis(2) else {
        return;
    };
    let collector = Collector::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("billing.db");
    let command = |does: &str, what: &str| {
        let mut command = Command::new(PROGRAM);
        command.args([does, &redis, what]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint);
        command.env("OTEL_BSP_SCHEDULE_DELAY", "100");
        command
    };
    let consume = || Program::start(&mut command("consume", file.to_str().unwrap()));
    let produce = |order: &str| {
        assert!(command("produce", order).status().unwrap().success());
    };
    // The attempts at an order so far.
    let attempts = |order: &str| {
        let id = format!("order-{order}");
        let mut attempts = named(&collector.spans(), "process billing");
        attempts.retain(|one| one.attribute("messaging.message.id").as_ref() == Some(&id));
        attempts
    };

    // Whether there are the receipts of all messages so far.
    let are_received = || {
        let spans = collector.spans();
        let receipts = named(&spans, "receive redis-stream/orders");
        let links: Vec<_> = receipts.iter().flat_map(|one| &one.span.links).collect();
        let sent = named(&spans, "publish orders");
        sent.iter()
            .all(|one| links.iter().any(|link| link.span_id == one.span.span_id))
    };

    let mut program = consume();
    produce("13"); // fails at first
    produce("13");
    produce("7");
    program.until(|| attempts("13").len() >= 2 && !attempts("7").is_empty() && are_received());
    program.kill();
    produce("8"); // and its trace waits with it
    let mut program = consume();
    program.until(|| !attempts("8").is_empty());
    program.stop();

    let spans = collector.spans();
    let sent = named(&spans, "publish orders");
    let of_order = |order: &str| {
        let mut of_order = sent.clone();
        of_order.retain(|one| one.attribute("order").as_deref() == Some(order));
        of_order
    };
    for (order, copies, tries) in [("13", 2, 2), ("7", 1, 1), ("8", 1, 1)] {
        let sent = of_order(order);
        assert_eq!(sent.len(), copies, "{order}");
        let attempts = attempts(order);
        assert_eq!(attempts.len(), tries, "{order}");
        let first = &sent[0];
        assert_eq!(first.service, "shop");
        assert_eq!(first.span.kind(), SpanKind::Producer);
        for attempt in &attempts {
            assert_eq!(attempt.service, "billing");
            assert_eq!(attempt.span.kind(), SpanKind::Consumer);
            assert_eq!(attempt.span.trace_id, first.span.trace_id);
            assert_eq!(attempt.span.parent_span_id, first.span.span_id);
            let mut inside = named(&spans, "call the bank");
            inside.retain(|call| call.span.parent_span_id == attempt.span.span_id);
            assert_eq!(
                inside.len(),
                1,
                "what the handler does is inside its attempt"
            );
        }
        // Every copy was received, also the one that was refused.
        let receipts = named(&spans, "receive redis-stream/orders");
        for copy in &sent {
            let links = receipts.iter().flat_map(|receipt| &receipt.span.links);
            let links = links.filter(|link| link.span_id == copy.span.span_id);
            let traces: Vec<_> = links.map(|link| &link.trace_id).collect();
            assert_eq!(traces, [&copy.span.trace_id], "{order}");
        }
    }
}
