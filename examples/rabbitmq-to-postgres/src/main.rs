//! Orders from RabbitMQ, booked in PostgreSQL: `rabbitmq-to-postgres amqp://… postgres://…`. A booking
//! commits together with the completion of its message, so each order is booked once.

mod shutdown;

use std::{error::Error, sync::Arc, time::Duration};

use inbox::postgres::{PostgresOptions, PostgresStore, sqlx};
use inbox::rabbitmq::{Connection, RabbitMqOptions, RabbitMqSource};
use inbox::{Context, Failure, Janitor, Processor, Receiver, Router};
use inbox::{Schema as _, Service, Transactional as _, in_transaction_fn, receiver::Mapping};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS booking (order_number bigint NOT NULL)";

#[derive(serde::Deserialize)]
struct Order {
    order: i64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: rabbitmq-to-postgres amqp://… postgres://…";
    let broker = Connection::from_url(&arguments.next().ok_or(usage)?)?;
    let options = PostgresOptions::from_url(&arguments.next().ok_or(usage)?)?;
    let store = PostgresStore::connect(options).await?;
    store.migrate().await?;
    let mut setup = store.open().await?;
    sqlx::query(TABLE).execute(&mut *setup).await?;
    store.commit(setup).await?;

    let book = in_transaction_fn(store.clone(), |mut tx, context: Context| async move {
        let placed: Order = context.json()?; // what cannot be read is dead at once
        let insert = sqlx::query("INSERT INTO booking (order_number) VALUES ($1)");
        insert.bind(placed.order).execute(&mut **tx).await?;
        Ok::<_, Failure>(())
    });
    let inbox = Arc::new(store);
    let processor = Processor::builder(inbox.clone())
        .router(Router::new("booking").on("order.placed", book))
        .concurrency(8) // a few below the pool's ten connections
        .lease(Duration::from_secs(10)) // when another process takes over from one that was killed
        .build()?;
    // What is no message, as it has no id, goes to a queue of its own.
    let queue = RabbitMqOptions::new(broker, "orders")?.create(true);
    let source = RabbitMqSource::new(queue.dead_letters("orders.dead")?, Mapping::new("booking")?)?;
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let janitor = Janitor::builder(inbox.clone()).keep_processed(month);
    let service = Service::builder(inbox.clone())
        .receiver("orders", Receiver::builder(inbox).build(), source)
        .processor("booking", processor)
        .janitor("retention", janitor.build()?)
        .build()?;
    println!("{}", service.run(shutdown::shutdown()?).await?);
    Ok(())
}
