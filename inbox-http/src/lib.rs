//! HTTP in front of an inbox: idempotent endpoints and webhooks, ready to mount.
//!
//! # An endpoint that clients may call again
//! An [`IdempotencyLayer`] lets each request with an `Idempotency-Key` through once, and replays its
//! response to the copies, as the IETF's draft says:
//!
//! ```no_run
//! use axum::{Json, Router, routing::post};
//! use inbox_http::IdempotencyLayer;
//!
//! async fn pay(Json(order): Json<serde_json::Value>) -> String {
//!     format!("charged for {order}") // once, however often the client asks
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("memory://").await?;
//! store.migrate().await?;
//! let layer = IdempotencyLayer::new(store, "payments")?;
//! let app = Router::new().route("/payments", post(pay)).route_layer(layer.clone());
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, app).await?;
//! layer.drain(std::time::Duration::from_secs(20)).await;
//! # Ok(())
//! # }
//! ```
//!
//! Responses and webhooks are kept until something deletes them: run a [`Janitor`](inbox::Janitor) next to the
//! server. Requests that failed for good need its [`give_up_after`](inbox::JanitorBuilder::give_up_after) as well.
//!
//! ```
//! # async fn run(
//! #     store: std::sync::Arc<dyn inbox::Inbox>,
//! #     shutdown: inbox::CancellationToken,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let week = std::time::Duration::from_secs(7 * 24 * 60 * 60);
//! let janitor = inbox::Janitor::builder(store).keep_processed(week).build()?;
//! let cleaning = tokio::spawn(async move { janitor.run(shutdown).await });
//! # cleaning.await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Webhooks
//! A [`WebhookReceiver`] verifies what providers send, stores it, and only then answers. A
//! [`Processor`](inbox::Processor) does the work:
//!
//! ```no_run
//! use inbox_http::{Endpoint, Provider, WebhookReceiver};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("memory://").await?;
//! store.migrate().await?;
//! let github = Provider::github([std::env::var("GITHUB_SECRET")?])?;
//! let webhooks = WebhookReceiver::new(store)
//!     .endpoint("/webhooks/github", Endpoint::new(github, ["ci"])?)?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, webhooks.into_router()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Load
//! Bodies are read whole. How many bytes of them are in memory at one time is bounded by a [`BodyBudget`], however
//! many clients send them and however slowly; how many connections there are is for the server to bound.
//!
//! # Telemetry
//! With the feature `metrics`, what becomes of requests is counted through the `metrics` facade:
//!
//! | counter | labels | meaning |
//! |---|---|---|
//! | `inbox_http_idempotent_total` | `outcome`: `ran`, `replayed`, `in-progress`, `key-reused`, `store-unavailable`, … | requests that an idempotency layer had to decide on |
//! | `inbox_http_webhooks_total` | `endpoint`, `outcome`: `accepted`, `duplicate`, `wrong-signature`, `too-large`, … | requests to a webhook receiver; `endpoint` is its path, or `unknown` |
//!
//! What workers of the [`api`] claim and settle is counted as that of a processor is, in `inbox_claimed_total`,
//! `inbox_processed_total`, `inbox_last_claim_timestamp_seconds` and others, and so are errors of the store
//! (`inbox_store_errors_total`): see the module `telemetry` of the crate `inbox`.
//!
//! Logs never contain secrets, bodies, header values or the texts of panics.

#[cfg(feature = "api")]
pub mod api;
mod body;
mod budget;
mod guard;
pub mod idempotency;
#[doc(hidden)]
pub mod linger;
pub mod problem;
mod telemetry;
#[cfg(feature = "times")]
#[doc(hidden)]
pub mod times;
mod token;
mod uri;
pub mod webhooks;

pub use body::{BoxError, ReplyBody};
pub use budget::BodyBudget;
pub use guard::{Guard, Refusal, authorization, host};
pub use idempotency::IdempotencyLayer;
pub use token::Token;
pub use webhooks::{Endpoint, Provider, WebhookReceiver};
