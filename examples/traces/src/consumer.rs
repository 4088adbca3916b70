//! Charges orders. Each attempt is a span in the trace of its order, and what the handler does is inside.

use std::{error::Error, time::Duration};

use inbox::receiver::Mapping;
use inbox::redis_streams::{Connection, RedisStreamsOptions, RedisStreamsSource};
use inbox::{Context, Failure, Janitor, Processor, Receiver};
use inbox::{RetryPolicy, Router, Service};
use tracing::Instrument as _;

use crate::Order;

async fn charge(placed: Order, context: Context) -> Result<(), Failure> {
    let span = tracing::info_span!("call the bank", order = placed.order);
    let call = async {
        match (placed.order, context.attempts().started) {
            (13, 1) => Err(Failure::retry("the bank is busy")), // a second attempt to look at
            _ => Ok(()),
        }
    };
    call.instrument(span).await
}

pub(crate) async fn run(broker: Connection, file: &str) -> Result<(), Box<dyn Error>> {
    let inbox = inbox::connect(&format!("sqlite://{file}")).await?;
    inbox.migrate().await?;
    let processor = Processor::builder(inbox.clone())
        .router(Router::new("billing").on_json("order.placed", charge))
        .retry(RetryPolicy::schedule([1, 10, 60].map(Duration::from_secs)))
        .build()?;
    let stream = RedisStreamsOptions::new(broker, "orders", "billing")?.create(true);
    let source = RedisStreamsSource::new(stream, Mapping::new("billing")?)?;
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let janitor = Janitor::builder(inbox.clone()).keep_processed(month);
    let service = Service::builder(inbox.clone())
        .receiver("orders", Receiver::builder(inbox).build(), source)
        .processor("billing", processor)
        .janitor("retention", janitor.build()?)
        .build()?;
    println!("{}", service.run(crate::shutdown::shutdown()?).await?);
    Ok(())
}
