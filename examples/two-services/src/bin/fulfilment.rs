//! What follows an order: `fulfilment postgres://… redis://…`. Each message of the stream `orders` is stored
//! twice, for the handlers `shipping` and `invoicing`, and each does its part once. Neither waits for the other.

#[path = "../shutdown.rs"]
mod shutdown;

use std::{error::Error, sync::Arc, time::Duration};

use inbox::postgres::{PostgresOptions, PostgresStore, sqlx};
use inbox::receiver::Mapping;
use inbox::redis_streams::{Connection, RedisStreamsOptions, RedisStreamsSource};
use inbox::{Context, Failure, HandlerName, Janitor, Processor, Receiver};
use inbox::{Router, Schema as _, Service, Transactional as _, in_transaction_fn};

const TABLES: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS shipment (order_number bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS invoice (order_number bigint NOT NULL)",
];

#[derive(serde::Deserialize)]
struct Order {
    order: i64,
}

/// Enters the order by `insert`, in the transaction that completes its message.
fn router(store: &PostgresStore, handler: &str, insert: &'static str) -> Router {
    let enter = in_transaction_fn(store.clone(), move |mut tx, context: Context| async move {
        let placed: Order = context.json()?; // what cannot be read is dead at once
        let insert = sqlx::query(insert).bind(placed.order);
        insert.execute(&mut **tx).await?;
        Ok::<_, Failure>(())
    });
    Router::new(handler)
        .on("order.placed", enter)
        .concurrency(4)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: fulfilment postgres://… redis://…";
    let options = PostgresOptions::from_url(&arguments.next().ok_or(usage)?)?;
    let broker = Connection::from_url(&arguments.next().ok_or(usage)?)?;
    let store = PostgresStore::connect(options).await?;
    store.migrate().await?;
    let mut setup = store.open().await?;
    for table in TABLES {
        sqlx::query(table).execute(&mut *setup).await?;
    }
    store.commit(setup).await?;

    let inbox = Arc::new(store.clone());
    let shipping = "INSERT INTO shipment (order_number) VALUES ($1)";
    let invoicing = "INSERT INTO invoice (order_number) VALUES ($1)";
    let ten_seconds = Duration::from_secs(10);
    let processor = Processor::builder(inbox.clone())
        .router(router(&store, "shipping", shipping))
        .router(router(&store, "invoicing", invoicing))
        .lease(ten_seconds) // when another process takes over from one that was killed
        .build()?;
    let stream = RedisStreamsOptions::new(broker, "orders", "fulfilment")?
        .create(true)
        .claim_after(ten_seconds)?; // the same for what it has not acknowledged
    let source = RedisStreamsSource::new(stream, Mapping::new("shipping")?)?;
    let handlers = [
        HandlerName::new("shipping")?,
        HandlerName::new("invoicing")?,
    ];
    let receiver = Receiver::builder(inbox.clone()).fan_out(handlers).build();
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let janitor = Janitor::builder(inbox.clone()).keep_processed(month);
    let service = Service::builder(inbox)
        .receiver("orders", receiver, source)
        .processor("handlers", processor)
        .janitor("retention", janitor.build()?)
        .build()?;
    println!("{}", service.run(shutdown::shutdown()?).await?);
    Ok(())
}
