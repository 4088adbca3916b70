//! Sends an order, and with it which span it comes from.

use std::{collections::HashMap, error::Error};

use inbox::receiver::{Envelope, Publisher as _};
use inbox::redis_streams::{Connection, RedisStreamsPublisher};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::Order;

#[tracing::instrument(name = "publish orders", fields(otel.kind = "producer"), skip(broker), err)]
pub(crate) async fn place(broker: Connection, order: u64) -> Result<(), Box<dyn Error>> {
    let mut placed = Envelope::new("orders", serde_json::to_vec(&Order { order })?);
    placed.id = Some(format!("order-{order}"));
    placed.kind = Some("order.placed".into());
    // The header `traceparent`, which the store keeps with the message.
    let mut headers = HashMap::new();
    let context = tracing::Span::current().context();
    TraceContextPropagator::new().inject_context(&context, &mut headers);
    placed.headers.extend(headers);
    for answer in RedisStreamsPublisher::new(broker).publish(&[placed]).await {
        answer?;
    }
    Ok(())
}
