//! Webhooks of GitHub, stored before they are answered, and handled afterwards:
//! `GITHUB_SECRET=… webhook-axum ADDRESS FILE`.

use std::error::Error;

use axum::Router;
use inbox::{CancellationToken, Context, Processor};
use inbox_http::{Endpoint, Provider, WebhookReceiver};

async fn build(context: Context) -> Result<(), std::io::Error> {
    let message = context.message();
    println!("{} {} bytes", message.key(), message.payload().len());
    Ok(()) // an error, of any type, is retried, then dead-lettered
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: webhook-axum ADDRESS FILE";
    let address = arguments.next().ok_or(usage)?;
    let file = arguments.next().ok_or(usage)?;
    let store = inbox::connect(&format!("sqlite://{file}")).await?;
    store.migrate().await?;

    let github = Provider::github([std::env::var("GITHUB_SECRET")?])?;
    let webhooks =
        WebhookReceiver::new(store.clone()).endpoint("/github", Endpoint::new(github, ["ci"])?)?;
    let app = Router::new().merge(webhooks.into_router());

    let router = inbox::Router::new("ci").on("push", build);
    let processor = Processor::builder(store).router(router).build()?;
    let shutdown = CancellationToken::new();
    let stopping = shutdown.clone();
    let working = tokio::spawn(async move { processor.run(stopping).await });

    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;
    shutdown.cancel();
    let summary = working.await??;
    println!("{} handled", summary.processed);
    Ok(())
}
