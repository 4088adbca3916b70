//! A queue's consumer as one service: it stores what comes and charges each order once, however often
//! it comes. Orders on standard input stand for the queue; Ctrl-C ends it.
//!
//! `echo '{"order": 7}' | cargo run -p from-processed-messages --bin queue-consumer -- orders.db`

#[path = "../shutdown.rs"]
mod shutdown;

use std::{env, error::Error, io, thread, time::Duration};

use inbox::receiver::ChannelSource;
use inbox::{Context, Event, Janitor, Message, Processor, Receiver, Router, Service};
use tokio::sync::mpsc;

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    order: u64,
}

impl Event for Order {
    const KIND: &'static str = "order.placed";
}

async fn charge(event: Order, _: Context) -> Result<(), io::Error> {
    println!("charged order {}", event.order);
    Ok(()) // an error would be retried
}

fn read(queue: &mpsc::Sender<Message>) -> Result<(), Box<dyn Error>> {
    for line in io::stdin().lines() {
        // serde's own error may quote the order, and errors go into logs.
        let order: Order = serde_json::from_str(&line?).map_err(|_| "a line is no order")?;
        let id = format!("order-{}", order.order);
        queue.blocking_send(Message::json("billing", id, &order)?)?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "orders.db".into());
    let inbox = inbox::connect(&format!("sqlite://{path}")).await?;
    inbox.migrate().await?;
    let (sender, queue) = mpsc::channel(100);
    thread::spawn(move || read(&sender).inspect_err(|error| eprintln!("{error}")).ok());
    let processor = Processor::builder(inbox.clone())
        .router(Router::new("billing").on_event(charge))
        .build()?;
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let janitor = Janitor::builder(inbox.clone()).keep_processed(month);
    let receiver = Receiver::builder(inbox.clone()).build();
    let service = Service::builder(inbox)
        .receiver("queue", receiver, ChannelSource::new(queue))
        .processor("billing", processor)
        .janitor("retention", janitor.build()?)
        .build()?;
    println!("{}", service.run(shutdown::shutdown()?).await?);
    Ok(())
}
