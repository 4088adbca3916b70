//! Changes of accounts from Kafka, applied in MySQL: `kafka-in-order BROKERS mysql://…`. The record's key, the
//! account, is the ordering key: changes of one account are applied one after the other, each once.

mod shutdown;

use std::{error::Error, sync::Arc, time::Duration};

use inbox::kafka::{Connection, KafkaOptions, KafkaSource, Rejections};
use inbox::mysql::sqlx::{self, Connection as _};
use inbox::mysql::{MySqlOptions, MySqlStore};
use inbox::receiver::Mapping;
use inbox::{AfterDead, Context, Failure, Janitor, Processor, Receiver};
use inbox::{Router, Schema as _, Service, in_transaction_fn};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS entry (number BIGINT AUTO_INCREMENT PRIMARY KEY,
    account INT NOT NULL, cents BIGINT NOT NULL, balance BIGINT NOT NULL, INDEX (account, number))";
const LAST: &str = "SELECT balance FROM entry WHERE account = ? ORDER BY number DESC LIMIT 1";

#[derive(serde::Deserialize)]
struct Change {
    account: i32,
    cents: i64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: kafka-in-order BROKERS mysql://…";
    let brokers = arguments.next().ok_or(usage)?;
    let database = arguments.next().ok_or(usage)?;
    let store = MySqlStore::connect(MySqlOptions::from_url(&database)?).await?;
    store.migrate().await?;
    let mut setup = sqlx::MySqlConnection::connect(&database).await?;
    sqlx::query(TABLE).execute(&mut setup).await?; // commits by itself, so not in a transaction of the store
    setup.close().await?;

    let apply = in_transaction_fn(store.clone(), |mut tx, context: Context| async move {
        let change: Change = context.json()?; // what cannot be read is dead at once
        let last = sqlx::query_scalar(LAST).bind(change.account);
        let last: Option<i64> = last.fetch_optional(&mut **tx).await?;
        let balance = last.unwrap_or_default() + change.cents; // nobody else changes this account
        let insert = "INSERT INTO entry (account, cents, balance) VALUES (?, ?, ?)";
        let insert = sqlx::query(insert).bind(change.account).bind(change.cents);
        insert.bind(balance).execute(&mut **tx).await?;
        Ok::<_, Failure>(())
    });
    let inbox = Arc::new(store);
    let router = Router::new("ledger")
        .on("account.changed", apply)
        .after_dead(AfterDead::Block); // later changes of the account wait for an operator
    let processor = Processor::builder(inbox.clone())
        .router(router)
        .concurrency(8) // a few below the pool's ten connections
        .lease(Duration::from_secs(10)) // when another process takes over from one that was killed
        .build()?;
    let topic = KafkaOptions::new(Connection::new(brokers), "ledger", ["accounts"])
        .rejections(Rejections::DeadLetters("accounts.dead".into()));
    let source = KafkaSource::new(topic, Mapping::new("ledger")?)?;
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let janitor = Janitor::builder(inbox.clone()).keep_processed(month);
    let service = Service::builder(inbox.clone())
        .receiver("accounts", Receiver::builder(inbox).build(), source)
        .processor("ledger", processor)
        .janitor("retention", janitor.build()?)
        .build()?;
    println!("{}", service.run(shutdown::shutdown()?).await?);
    Ok(())
}
