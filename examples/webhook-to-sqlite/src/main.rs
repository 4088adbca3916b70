//! Webhooks of GitHub: `GITHUB_SECRET=… webhook-to-sqlite ADDRESS FILE`. A push is stored before it is
//! answered, and its build is entered afterwards, once.

mod shutdown;

use std::{error::Error, sync::Arc, time::Duration};

use inbox::sqlite::{SqliteOptions, SqliteStore, sqlx};
use inbox::{CancellationToken, Context, Failure, Janitor, Processor, Router};
use inbox::{Schema as _, Service, Transactional as _, in_transaction_fn};
use inbox_http::{Endpoint, Provider, WebhookReceiver};

const USAGE: &str = "usage: webhook-to-sqlite ADDRESS FILE";
const TABLE: &str = "CREATE TABLE IF NOT EXISTS build (revision TEXT NOT NULL)";
#[derive(serde::Deserialize)]
struct Push {
    after: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or(USAGE)?;
    let file = arguments.next().ok_or(USAGE)?;
    let store = SqliteStore::connect(SqliteOptions::new(file)).await?;
    store.migrate().await?;
    let mut setup = store.open().await?;
    sqlx::query(TABLE).execute(&mut *setup).await?;
    store.commit(setup).await?;
    let build = in_transaction_fn(store.clone(), |mut tx, context: Context| async move {
        let push: Push = context.json()?; // what cannot be read is dead at once
        let insert = sqlx::query("INSERT INTO build (revision) VALUES (?)").bind(push.after);
        insert.execute(&mut **tx).await?;
        Ok::<_, Failure>(())
    });
    let inbox = Arc::new(store);
    let processor = Processor::builder(inbox.clone())
        .router(Router::new("ci").on("push", build))
        .concurrency(8) // they take turns: SQLite has one writer
        .lease(Duration::from_secs(10)) // when another process takes over from one that was killed
        .build()?;
    let github = Provider::github([std::env::var("GITHUB_SECRET")?])?;
    let github = Endpoint::new(github, ["ci"])?;
    let webhooks = WebhookReceiver::new(inbox.clone()).endpoint("/github", github)?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let web = axum::serve(listener, webhooks.into_router());
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let janitor = Janitor::builder(inbox.clone()).keep_processed(month);
    let service = Service::builder(inbox)
        .processor("ci", processor)
        .janitor("retention", janitor.build()?)
        .task("web", |stop: CancellationToken| async move {
            web.with_graceful_shutdown(stop.cancelled_owned()).await
        })
        .build()?;
    println!("{}", service.run(shutdown::shutdown()?).await?);
    Ok(())
}
