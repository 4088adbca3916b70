//! The same consumer without an inbox: it looks into a table, charges, and writes the id into the table.
//!
//! What is wrong with it: two of these at a time both find nothing, and both charge; one that dies before its
//! `INSERT` charges again; and an order that cannot be charged ends it, again and again.
//!
//! `echo '{"order": 7}' | cargo run -p from-processed-messages --bin by-hand -- shop.db`

use std::{env, error::Error, io};

use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS processed_messages (id TEXT PRIMARY KEY)";
const KNOWN: &str = "SELECT EXISTS (SELECT 1 FROM processed_messages WHERE id = ?)";

#[derive(serde::Deserialize)]
struct Order {
    order: u64,
}

fn charge(placed: &Order) {
    println!("charged order {}", placed.order);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args().nth(1).ok_or("usage: by-hand FILE")?;
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true);
    let database = SqlitePool::connect_with(options).await?;
    sqlx::query(TABLE).execute(&database).await?;
    for line in io::stdin().lines() {
        let placed: Order = serde_json::from_str(&line?).map_err(|_| "a line is no order")?;
        let id = format!("order-{}", placed.order);
        let known: bool = sqlx::query_scalar(KNOWN)
            .bind(&id)
            .fetch_one(&database)
            .await?;
        if !known {
            charge(&placed);
            let insert = sqlx::query("INSERT INTO processed_messages (id) VALUES (?)");
            insert.bind(&id).execute(&database).await?;
        }
    }
    Ok(())
}
