//! The shop: `shop ADDRESS postgres://… redis://…`. An order is `POST /orders`, with an `Idempotency-Key`.
//!
//! The order, the message that tells of it and the response commit together. A processor publishes the message
//! afterwards, to the stream `orders`.

#[path = "../shutdown.rs"]
mod shutdown;

use std::{error::Error, sync::Arc, time::Duration};

use axum::{Json, extract::State, http::StatusCode, routing::post};
use inbox::outbox::Outbox;
use inbox::postgres::{PostgresOptions, PostgresStore, sqlx};
use inbox::redis_streams::{Connection, RedisStreamsPublisher};
use inbox::{CancellationToken, Failure, Janitor, MessageId, Processor};
use inbox::{Schema as _, Service, Transactional as _};
use inbox_http::{IdempotencyLayer, idempotency::Tx};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS shop_order
    (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL)";

#[derive(serde::Deserialize)]
struct Order {
    item: String,
}

/// An error rolls back the order and its message, and is answered by 500.
async fn place(
    outbox: &Outbox<PostgresStore>,
    tx: &mut Tx<PostgresStore>,
    order: &Order,
) -> Result<i64, Failure> {
    let insert = sqlx::query_scalar("INSERT INTO shop_order (item) VALUES ($1) RETURNING number");
    let number: i64 = insert.bind(&order.item).fetch_one(&mut ***tx).await?;
    let body = serde_json::json!({ "order": number, "item": order.item });
    // A later message about the order, as that it was cancelled, has another id.
    let id = MessageId::new(format!("order-{number}/order.placed"))?;
    let placed = outbox.message("orders", id, "order.placed", body.to_string())?;
    outbox.send_in(&mut **tx, &[placed]).await?;
    Ok(number)
}

async fn orders(
    State(outbox): State<Outbox<PostgresStore>>,
    mut tx: Tx<PostgresStore>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, String), StatusCode> {
    let placed = place(&outbox, &mut tx, &order).await;
    let number = placed.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok((StatusCode::CREATED, format!("order {number}\n")))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: shop ADDRESS postgres://… redis://…";
    let address = arguments.next().ok_or(usage)?;
    let options = PostgresOptions::from_url(&arguments.next().ok_or(usage)?)?;
    let broker = Connection::from_url(&arguments.next().ok_or(usage)?)?;
    let store = PostgresStore::connect(options).await?;
    store.migrate().await?;
    let mut setup = store.open().await?;
    sqlx::query(TABLE).execute(&mut *setup).await?;
    store.commit(setup).await?;

    let inbox = Arc::new(store.clone());
    let outbox = Outbox::new(store.clone(), "to-broker")?;
    let publishing = Processor::builder(inbox.clone())
        .router(outbox.router(RedisStreamsPublisher::new(broker)))
        .lease(Duration::from_secs(10)) // when another process takes over from one that was killed
        .build()?;
    let layer = IdempotencyLayer::in_transaction(store, "orders")?;
    let app = axum::Router::new()
        .route("/orders", post(orders))
        .route_layer(layer.clone())
        .with_state(outbox);
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let janitor = Janitor::builder(inbox.clone()).keep_processed(month);
    let service = Service::builder(inbox)
        .processor("publishing", publishing)
        .janitor("retention", janitor.build()?)
        .task("web", |shutdown: CancellationToken| async move {
            let server = axum::serve(listener, app);
            let ended = server
                .with_graceful_shutdown(shutdown.cancelled_owned())
                .await;
            layer.drain(Duration::from_secs(10)).await; // requests whose clients have left
            ended
        })
        .build()?;
    println!("{}", service.run(shutdown::shutdown()?).await?);
    Ok(())
}
