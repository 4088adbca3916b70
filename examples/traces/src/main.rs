//! One trace from the producer of a message to every attempt at it, over a broker and a store:
//! `traces produce redis://… ORDER` and `traces consume redis://… FILE`.
//!
//! Both export their spans by OTLP over HTTP, to `OTEL_EXPORTER_OTLP_ENDPOINT` (unless set,
//! `http://localhost:4318`).

mod consumer;
mod export;
mod producer;
mod shutdown;

use std::error::Error;

use inbox::redis_streams::Connection;

const USAGE: &str = "usage: traces produce redis://… ORDER, or traces consume redis://… FILE";

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    order: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [does, broker, what] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let broker = Connection::from_url(broker)?;
    match does.as_str() {
        "produce" => {
            let spans = export::start("shop")?;
            producer::place(broker, what.parse()?).await?;
            spans.shutdown()?; // exports what is left
        }
        "consume" => {
            let spans = export::start("billing")?;
            consumer::run(broker, what).await?;
            spans.shutdown()?;
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}
