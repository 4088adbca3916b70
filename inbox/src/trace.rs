//! The producer's trace, and what OpenTelemetry calls an attempt and a receipt.

use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{Message, headers::TRACEPARENT};

/// Names an attempt's span, gives it attributes by OpenTelemetry's conventions for messaging, and makes it a
/// child of the producer's span. The handler is what messages are sent to.
pub(crate) fn attempt(span: &Span, message: &Message) {
    if span.is_disabled() {
        return;
    }
    let handler = message.handler().as_str();
    describe(span, "consumer", "process", handler);
    continue_trace(span, message);
    let size = i64::try_from(message.payload().len()).unwrap_or(i64::MAX);
    span.set_attribute("messaging.message.body.size", size);
}

/// The same for the span in which a router writes about a failed attempt, which is none itself.
pub(crate) fn conclusion(span: &Span, message: &Message) {
    if span.is_disabled() {
        return;
    }
    describe(span, "client", "settle", message.handler().as_str());
    continue_trace(span, message);
}

fn continue_trace(span: &Span, message: &Message) {
    span.set_attribute("messaging.message.id", message.id().as_str().to_owned());
    if let Some(producer) = producer(message) {
        let context = Context::new().with_remote_span_context(producer);
        // It fails where no layer takes part, or has sampled the span out.
        let _ = span.set_parent(context);
    }
}

/// The same for the span of a batch handler. It has as many producers as messages, so it has a link to each.
pub(crate) fn batch<'a>(
    span: &Span,
    handler: &str,
    number: usize,
    messages: impl Iterator<Item = &'a Message>,
) {
    if span.is_disabled() {
        return;
    }
    describe(span, "consumer", "process", handler);
    link(span, number, messages);
}

/// The same for the span in which a batch is stored.
pub(crate) fn receipt<'a>(
    span: &Span,
    source: &str,
    deliveries: usize,
    messages: impl Iterator<Item = &'a Message>,
) {
    if span.is_disabled() {
        return;
    }
    describe(span, "client", "receive", source);
    link(span, deliveries, messages);
}

fn link<'a>(span: &Span, number: usize, messages: impl Iterator<Item = &'a Message>) {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    span.set_attribute("messaging.batch.message_count", number);
    for producer in messages.filter_map(producer) {
        span.add_link(producer);
    }
}

fn describe(span: &Span, kind: &'static str, operation: &'static str, destination: &str) {
    span.record("otel.kind", kind);
    span.record("otel.name", format!("{operation} {destination}"));
    for (name, value) in [
        ("messaging.system", "inbox"),
        ("messaging.operation.name", operation),
        ("messaging.operation.type", operation),
        ("messaging.destination.name", destination),
    ] {
        span.set_attribute(name, value.to_owned());
    }
}

/// The span that the message's headers name. What is no trace context is passed over: a header is no reason to fail.
fn producer(message: &Message) -> Option<SpanContext> {
    let headers = message.headers();
    parse(headers.get(TRACEPARENT)?, headers.get("tracestate"))
}

/// Reads `version-trace-span-flags`, as the W3C's recommendation has it: later versions may add
/// parts behind.
fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let mut parts = traceparent.split('-');
    let mut hex = |digits: usize| {
        let part = parts.next()?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (part.len() == digits && part.bytes().all(is_hex)).then_some(part)
    };
    let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let is_whole = version != "ff" && (version != "00" || parts.next().is_none());
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(flags) & TraceFlags::SAMPLED,
        true,
        tracestate
            .and_then(|state| state.parse().ok())
            .unwrap_or(TraceState::NONE),
    );
    (is_whole && context.is_valid()).then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trace_context_is_taken() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = parse(good, Some("vendor=1")).unwrap();
        assert!(parent.is_sampled() && parent.is_remote());
        assert_eq!(parent.trace_state().get("vendor"), Some("1"));
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more";
        assert!(!parse(later, Some("not a state")).unwrap().is_sampled());
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(parse(bad, None), None, "{bad}");
        }
    }
}
