//! Bookings over HTTP, which clients may ask for as often as they like: `idempotent-http ADDRESS FILE`.
//!
//! The booking commits together with the response that is replayed, or neither does.
//!
//! ```sh
//! curl -X POST -H 'Idempotency-Key: "8e03978e"' http://127.0.0.1:8080/bookings/7
//! ```

use std::{error::Error, time::Duration};

use axum::{Router, extract::Path, http::StatusCode, routing::post};
use inbox::{
    Schema as _, Transactional as _,
    sqlite::{SqliteOptions, SqliteStore, sqlx},
};
use inbox_http::{IdempotencyLayer, idempotency::Tx};

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS booking (number INTEGER PRIMARY KEY, seat INTEGER NOT NULL)";

async fn book(
    Path(seat): Path<u32>,
    mut tx: Tx<SqliteStore>,
) -> Result<(StatusCode, String), StatusCode> {
    let insert = sqlx::query_scalar("INSERT INTO booking (seat) VALUES (?) RETURNING number");
    let booked = insert.bind(seat).fetch_one(&mut **tx).await;
    let number: i64 = booked.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?; // rolls back
    Ok((
        StatusCode::CREATED,
        format!("booking {number}, seat {seat}\n"),
    ))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: idempotent-http ADDRESS FILE";
    let address = arguments.next().ok_or(usage)?;
    let file = arguments.next().ok_or(usage)?;
    let store = SqliteStore::connect(SqliteOptions::new(file)).await?;
    store.migrate().await?;
    let mut tx = store.open().await?;
    sqlx::query(TABLE).execute(&mut *tx).await?;
    store.commit(tx).await?;

    let layer = IdempotencyLayer::in_transaction(store, "bookings")?;
    let app = Router::new()
        .route("/bookings/{seat}", post(book))
        .route_layer(layer.clone());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;
    layer.drain(Duration::from_secs(20)).await; // requests whose clients have left
    Ok(())
}
