//! A handler whose writes commit together with the completion of its message: whatever crashes and
//! however often the message comes, each order is booked once.
//!
//! `cargo run -p example-programs --bin transactional-handler -- orders.db`

use std::{env, error::Error, sync::Arc};

use inbox::sqlite::{SqliteOptions, SqliteStore, sqlx};
use inbox::{
    CancellationToken, Context, Event, Message, Processor, Router, Schema as _, Store as _,
    Transactional as _, in_transaction_fn,
};

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: i64,
}

impl Event for OrderPlaced {
    const KIND: &'static str = "order.placed";
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "orders.db".into());
    let store = SqliteStore::connect(SqliteOptions::new(path)).await?;
    store.migrate().await?;
    let mut setup = store.open().await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS booking (order_number INTEGER NOT NULL)")
        .execute(&mut *setup)
        .await?;
    store.commit(setup).await?;

    // As a broker would deliver it: twice.
    let message = Message::json("booking", "evt-1", &OrderPlaced { order: 7 })?;
    for receipt in store.receive(&[message.clone(), message]).await? {
        println!("{receipt:?}");
    }

    let book = in_transaction_fn(
        store.clone(),
        |mut transaction, context: Context| async move {
            let event: OrderPlaced = serde_json::from_slice(context.message().payload())?;
            sqlx::query("INSERT INTO booking (order_number) VALUES (?)")
                .bind(event.order)
                .execute(&mut **transaction)
                .await?;
            Ok::<_, inbox::Failure>(())
        },
    );
    let processor = Processor::builder(Arc::new(store.clone()))
        .router(Router::new("booking").on(OrderPlaced::KIND, book))
        .build()?;
    let summary = processor.run_until_idle(CancellationToken::new()).await?;
    println!("{} processed", summary.processed);
    store.close().await;
    Ok(())
}
