//! The producer's trace, and what OpenTelemetry calls an attempt.

use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::Message;

/// Names an attempt's span, and gives it attributes, by OpenTelemetry's conventions for messaging. The
/// handler is what messages are sent to.
pub(super) fn describe(span: &Span, message: &Message) {
    let handler = message.handler().as_str();
    span.record("otel.kind", "consumer");
    span.record("otel.name", format!("process {handler}"));
    for (name, value) in [
        ("messaging.system", "inbox"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", handler),
        ("messaging.message.id", message.id().as_str()),
    ] {
        span.set_attribute(name, value.to_owned());
    }
    let size = i64::try_from(message.payload().len()).unwrap_or(i64::MAX);
    span.set_attribute("messaging.message.body.size", size);
}

/// Makes `span` a child of the span that `traceparent` names. What is not a trace context is
/// passed over: a header is no reason to fail.
pub(super) fn follow(span: &Span, traceparent: &str, tracestate: Option<&str>) {
    if let Some(parent) = parse(traceparent, tracestate) {
        let context = Context::new().with_remote_span_context(parent);
        // It fails where no layer takes part, or has sampled the span out.
        let _ = span.set_parent(context);
    }
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
