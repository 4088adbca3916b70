//! Handle each message once: an inbox for consumers of at-least-once deliveries.
//!
//! Brokers and webhooks deliver *at least once*: a consumer that crashes between doing its work
//! and acknowledging gets the message again. An inbox stores each message under a unique key
//! before the broker is acknowledged, refuses the second copy, and sees the first through to
//! *processed* or *dead*.
//!
//! # Which way to use it
//! | when | use |
//! |---|---|
//! | messages come from a broker, work may be slow or fail | a [`Receiver`] that stores and acknowledges, and a [`Processor`] that works |
//! | the caller waits for the answer, as in HTTP | an [`InlineConsumer`], or the tower layer [`InboxLayer`] |
//! | the handler writes to the inbox's own database | the same with [`in_transaction`] or [`consume_in_transaction`](inline::consume_in_transaction): effects happen exactly once |
//!
//! In the first two, a handler can run twice if its process dies between its effect and the record
//! of it, so effects elsewhere should be idempotent (by the message's key or the
//! [`FencingToken`]); in the third it cannot.
//!
//! # From a message to its effect
//! ```
//! use inbox::{
//!     CancellationToken, Context, HandlerName, Kind, Message, MessageId, Processor, Receipt,
//!     Router, StoreExt,
//! };
//!
//! #[derive(serde::Deserialize)]
//! struct OrderPlaced { order: u64 }
//!
//! async fn charge(event: OrderPlaced, _: Context) -> Result<(), std::io::Error> {
//!     println!("charging for order {}", event.order);
//!     Ok(()) // an error would be retried
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("memory://").await?;
//! store.migrate().await?; // sets up or upgrades; harmless every time
//!
//! let message = Message::new(
//!     HandlerName::new("billing")?,
//!     MessageId::new("evt-1")?,
//!     Kind::new("order.placed")?,
//!     r#"{"order": 7}"#,
//! );
//! assert_eq!(store.receive_one(&message).await?, Receipt::Accepted);
//! assert_eq!(store.receive_one(&message).await?, Receipt::Duplicate { differs: false });
//!
//! let router = Router::new("billing").on_json("order.placed", charge);
//! let processor = Processor::builder(store).router(router).build()?;
//! let summary = processor.run_until_idle(CancellationToken::new()).await?;
//! assert_eq!(summary.processed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Running it
//! A [`Service`] runs receivers, processors, a janitor and the application's own tasks together: one
//! shutdown token, one order of shutdown, one summary, and [`Health`](service::Health) for probes. Each of
//! them runs alone just as well.
//!
//! # Looking after it
//! A [`Janitor`] purges by age, with an [`Archiver`] if wanted. [`Hooks`] tell of failed
//! attempts, dead letters, lost leases and a growing backlog. [`Operate`] lists, replays and discards, and so does the
//! command `inbox`. Spans and events go to `tracing`; with the feature `metrics`, counters and
//! histograms go to the `metrics` facade ([`telemetry`]); with the feature `opentelemetry`, spans
//! of attempts continue the producer's trace, and spans of receipts link to it.
//!
//! # Stores
//! One Cargo feature each, which adds a module and what [`connect`] takes:
//!
//! | feature | store | survives |
//! |---|---|---|
//! | `memory` (the default) | in this process | nothing; for tests |
//! | `mongo` | MongoDB 4.4 or later | the loss of a minority of a replica set; on one server, a crash and a power cut |
//! | `mysql` | MySQL 8.0.14 or later, MariaDB 10.6 or later, Galera | what the server's commits survive |
//! | `postgres` | PostgreSQL 15 or later | what the server's commits survive |
//! | `redis` | Redis 7, Valkey or a cluster of them | what the server's settings say; a fail-over can lose what replicas did not have |
//! | `sqlite` | a file | a killed process, and a power cut |
//!
//! Any other database: implement the traits of `inbox-api`, which this crate re-exports, and run
//! the crate `conformance-tests` on it.
//!
//! An application that has a pool of connections hands it in:
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use inbox::InboxName;
//! use inbox::postgres::{PostgresOptions, PostgresStore, sqlx::PgPool};
//!
//! let pool = PgPool::connect("postgres://app@db.example/shop").await?;
//! let options = PostgresOptions::new().inbox_name(InboxName::new("orders")?);
//! let store = PostgresStore::with_pool(pool, options);
//! # let _ = store;
//! # Ok(())
//! # }
//! ```
//!
//! # Brokers
//! One Cargo feature each, which adds a module with a [`Source`](receiver::Source) for receivers and a
//! [`Publisher`](receiver::Publisher) for an [outbox]:
//!
//! | feature | broker |
//! |---|---|
//! | `kafka` | Kafka and what speaks its protocol |
//! | `nats` | NATS JetStream |
//! | `rabbitmq` | RabbitMQ |
//! | `rabbitmq-streams` | RabbitMQ, with its streams as a source |
//! | `redis-streams` | Redis Streams |
//! | `sqs` | Amazon SQS |
//!
//! Any other broker: implement the traits, and run the crate `source-tests` on it.
//!
//! # Other features
//! | feature | what |
//! |---|---|
//! | `anyhow` | `anyhow::Error` as a handler's error, with all of its sources |
//! | `metrics` | [`telemetry`] through the `metrics` facade, and gauges of the store |
//! | `opentelemetry` | spans that continue the producer's trace |
//! | `uuid` | [`MessageId`] from a `uuid::Uuid`; `MessageId::unique`, of version 7, for those who have no id |
//!
//! # Encryption
//! Stores on a server leave TLS to the features of their driver, so that the application decides
//! which implementation and which root certificates it builds. Cargo unites the features of a
//! crate that is named twice, so adding the driver to the dependencies is enough. For PostgreSQL:
//!
//! ```toml
//! inbox = { version = "0.1", features = ["postgres"] }
//! sqlx = { version = "0.9", default-features = false, features = ["tls-rustls-ring-native-roots"] }
//! ```
//!
//! and `sslmode=verify-full` behind the `?` of the URL, for a connection that is encrypted, and to
//! the right server, or none at all. MongoDB's driver is built with TLS here: `tls=true` in the URL
//! is all.

mod backlog_gate;
mod backoff;
mod connect;
mod expiry;
mod hooks;
pub mod inline;
mod janitor;
pub mod layer;
pub mod outbox;
#[doc(hidden)]
pub mod pace;
mod patience;
mod processor;
pub mod receiver;
mod refusal;
mod retry;
pub mod service;
mod store_kind;
#[cfg(feature = "metrics")]
mod store_monitor;
pub mod telemetry;
#[cfg(feature = "opentelemetry")]
mod trace;
mod vitals;

pub use backlog_gate::{BacklogGate, BacklogGateBuilder};
pub use connect::{connect, ddl, exists_query, schemes};
pub use expiry::expiry_reason;
pub use hooks::Hooks;
pub use store_kind::StoreKind;
// What applications use. Helpers for those who write stores are in `inbox_api` itself.
pub use inbox_api::{
    AfterDead, AttemptEnd, Attempts, Begun, Bytes, Capabilities, ClaimRequest, Claims, Clock,
    ClockOffset, ContentType, CorruptRow, Cursor, DEFAULT_PAYLOAD_LIMIT, Due, Edit, Effect, Error,
    ErrorKind, ErrorType, Event, Extended, FencingToken, Filter, Fingerprint, HandlerName,
    HandlerStatistics, Headers, Inbox, InboxName, Intervention, InterventionKind, Invalid, Key,
    Kind, Lease, LeaseTerms, Leased, Listing, Message, MessageGroup, MessageId, MessageSummary,
    Migration, Operate, OperateExt, OperatorName, OrderingKey, Outcome, Page, PastAttempt,
    PastIntervention, Progress, PurgeRequest, Receipt, ReceiveAtomicity, Record, Recorded, Result,
    Schema, Settled, Settlement, Slice, Span, State, Statistics, Store, StoreExt, Subscription,
    Transactional, Wakeups, WorkerName, error_shape, headers,
};
pub use inbox_source::{cloudevents, fields};
pub use inline::InlineConsumer;
pub use janitor::{
    Archiver, Janitor, JanitorBuilder, Retention, RetentionWarning, Sweep, SweepError,
};
pub use layer::InboxLayer;
pub use processor::{
    Answers, Batch, BatchHandler, Batches, CircuitBreaker, Completion, Context, FailedAttempt,
    Failure, Fallback, Handler, KindOptions, LentTransaction, Middleware, Next, Processor,
    ProcessorBuilder, Rate, Remedy, Router, Summary, TransactionalBatchHandler,
    TransactionalHandler, batch_in_transaction, batch_in_transaction_fn, in_transaction,
    in_transaction_fn, json, one_by_one, one_by_one_in_transaction, one_by_one_in_transaction_fn,
};
pub use receiver::Receiver;
pub use retry::RetryPolicy;
pub use service::Service;
#[cfg(feature = "metrics")]
pub use store_monitor::StoreMonitor;
pub use tokio_util::sync::CancellationToken;

/// Kafka: a source for receivers, and a publisher.
#[cfg(feature = "kafka")]
pub use inbox_kafka as kafka;
/// The memory store, with its options.
#[cfg(feature = "memory")]
pub use inbox_memory as memory;
/// The MongoDB store, with its options. Transactional use needs it, as with `postgres`.
#[cfg(feature = "mongo")]
pub use inbox_mongo as mongo;
/// The MySQL and MariaDB store, with its options. Transactional use needs it, as with `postgres`.
#[cfg(feature = "mysql")]
pub use inbox_mysql as mysql;
/// NATS JetStream: a source for receivers, and a publisher.
#[cfg(feature = "nats")]
pub use inbox_nats as nats;
/// The PostgreSQL store, with its options. Transactional use needs it:
/// [`PostgresStore`](postgres::PostgresStore) is [`Transactional`], the `Arc<dyn Inbox>` of
/// [`connect`] is not, since it does not know the driver's transaction type.
#[cfg(feature = "postgres")]
pub use inbox_postgres as postgres;
/// RabbitMQ: a source for receivers, and a publisher; with the feature `rabbitmq-streams` a source of streams.
/// TLS is its Cargo feature `tls`.
#[cfg(feature = "rabbitmq")]
pub use inbox_rabbitmq as rabbitmq;
/// The Redis store, with its options. TLS is its Cargo feature `tls`.
#[cfg(feature = "redis")]
pub use inbox_redis as redis;
/// Redis Streams: a source for receivers, and a publisher. TLS is its Cargo feature `tls`.
#[cfg(feature = "redis-streams")]
pub use inbox_redis_streams as redis_streams;
/// The SQLite store, with its options. Transactional use needs it, as with `postgres`.
#[cfg(feature = "sqlite")]
pub use inbox_sqlite as sqlite;
/// Amazon SQS: a source for receivers, and a publisher.
#[cfg(feature = "sqs")]
pub use inbox_sqs as sqs;

/// The README's example, so that it compiles.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../README.md")]
struct Readme;
