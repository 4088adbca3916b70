//! Payments over HTTP, which clients may ask for as often as they like: `payments-api ADDRESS FILE`.
//!
//! The payment commits together with the response that is replayed, or neither does.

mod shutdown;

use std::{error::Error, time::Duration};

use axum::{Json, Router, http::StatusCode, routing::post};
use inbox::sqlite::{SqliteOptions, SqliteStore, sqlx};
use inbox::{Schema as _, Transactional as _};
use inbox_http::{IdempotencyLayer, idempotency::Tx};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS payment
    (number INTEGER PRIMARY KEY, account INTEGER NOT NULL, cents INTEGER NOT NULL)";

#[derive(serde::Deserialize)]
struct Payment {
    account: u32,
    cents: u32,
}

async fn pay(
    mut tx: Tx<SqliteStore>,
    Json(payment): Json<Payment>,
) -> Result<(StatusCode, String), StatusCode> {
    let insert = "INSERT INTO payment (account, cents) VALUES (?, ?) RETURNING number";
    let insert = sqlx::query_scalar(insert)
        .bind(payment.account)
        .bind(payment.cents);
    let number: Result<i64, _> = insert.fetch_one(&mut **tx).await;
    let number = number.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?; // rolls back
    Ok((StatusCode::CREATED, format!("payment {number}\n")))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: payments-api ADDRESS FILE";
    let address = arguments.next().ok_or(usage)?;
    let file = arguments.next().ok_or(usage)?;
    let store = SqliteStore::connect(SqliteOptions::new(file)).await?;
    store.migrate().await?;
    let mut setup = store.open().await?;
    sqlx::query(TABLE).execute(&mut *setup).await?;
    store.commit(setup).await?;

    let layer = IdempotencyLayer::in_transaction(store, "payments")?;
    let app = Router::new()
        .route("/payments", post(pay))
        .route_layer(layer.clone());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let shutdown = shutdown::shutdown()?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await?;
    layer.drain(Duration::from_secs(20)).await; // requests whose clients have left
    Ok(())
}
