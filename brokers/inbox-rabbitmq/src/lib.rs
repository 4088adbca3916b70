//! RabbitMQ as a source of an inbox: store, then acknowledge. And a publisher, for the way out.
//!
//! A [`RabbitMqSource`] consumes a queue. It hands messages to a receiver of the crate `inbox`, and acknowledges
//! them only when the receiver has stored them. With the Cargo feature `streams` there is another one for
//! [streams](#streams).
//!
//! ```no_run
//! use inbox::receiver::{Mapping, Receiver};
//! use inbox_rabbitmq::{Connection, RabbitMqOptions, RabbitMqSource};
//!
//! # async fn receive() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("sqlite://orders.db").await?;
//! store.migrate().await?;
//!
//! let server = Connection::from_url("amqp://app:secret@mq.example:5672/shop")?;
//! let options = RabbitMqOptions::new(server, "orders")?
//!     .create(true)
//!     .dead_letters("orders.dead")?;
//! let mut source = RabbitMqSource::new(options, Mapping::new("billing")?)?;
//!
//! let shutdown = inbox::CancellationToken::new(); // cancel it to drain and end
//! Receiver::builder(store).build().run(&mut source, shutdown).await?;
//! # Ok(())
//! # }
//! ```
//!
//! And the way out: what is confirmed is in a queue.
//!
//! ```no_run
//! use inbox_rabbitmq::RabbitMqPublisher;
//! use inbox_source::{Envelope, Publisher as _};
//!
//! # async fn send() -> Result<(), Box<dyn std::error::Error>> {
//! let publisher = RabbitMqPublisher::from_url("amqp://app:secret@mq.example:5672/shop")?;
//! let mut message = Envelope::new("orders", r#"{"order": 7}"#); // the routing key: here, a queue
//! message.id = Some("order-7".into());
//! for answer in publisher.publish(&[message]).await {
//!     answer?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//! - **A message is acknowledged when it is stored, or known from before, and not earlier.** A run is
//!   acknowledged at once (`multiple`), as far as nothing earlier is without an answer. RabbitMQ does not
//!   confirm acknowledgements: one that is lost brings the message again, and the inbox refuses the copy.
//! - **A delivery of a former connection acknowledges nothing**: acknowledging it fails, and says why. RabbitMQ
//!   gives back what a lost connection had, as soon as it notices: at once when it is closed, after two
//!   heartbeats (ten seconds) when it is silent.
//! - A delivery that is dropped goes back to its queue, a moment later.
//!
//! # Order
//! A queue gives messages in their order, and gives back to the place where they were. That keeps no order
//! while several consumers share a queue, or while one connection follows another: the next consumer may have
//! later messages already. With [`single_active_consumer`](RabbitMqOptions::single_active_consumer) one
//! consumer at a time gets messages, and the next one when that is gone and all that it had is back: the order
//! holds, also per key, while consumers come and go and connections are cut. To work in parallel nevertheless,
//! spread keys over several queues (the exchange type `x-consistent-hash`), with a source for each.
//!
//! # The queue
//! Without [`create`](RabbitMqOptions::create) the queue has to be there, and any durable one fits, but no stream: it is
//! refused, for good, as what is sent to it while no consumer is there would never come. With it,
//! the queue is declared, durable and of the [kind](QueueKind) that is set, and declared again when it was
//! deleted; one that is there with other settings is a permanent error. It is bound to no exchange but the
//! default one.
//!
//! A node that is killed within a second after a quorum queue was declared may forget the queue's contents, and then
//! answers nothing that is asked of the queue (seen on 3.10, with one node). Declare queues before they are needed.
//!
//! RabbitMQ 4 gives a message of a quorum queue up after 20 deliveries unless the queue or a policy says
//! otherwise, and an outage of the store that is longer than the server's `consumer_timeout` (30 minutes) is
//! one of them. Set `delivery-limit` to -1 by a policy, or have dead letters.
//!
//! # Mapping
//! What a [`Mapping`](inbox_source::Mapping) finds in a message:
//!
//! | of the message | in the [`Envelope`](inbox_source::Envelope) |
//! |---|---|
//! | `message_id` | id |
//! | `type` | kind |
//! | header `ordering-key` ([`KEY`]) | key, and so the ordering key; and a header |
//! | `content_type` | content type |
//! | routing key, or the exchange where that is empty | address, and so the kind of a message that says no other |
//! | `timestamp` | time, in whole seconds |
//! | `correlation_id`, `reply_to`, `app_id` | headers `correlation-id`, `reply-to`, `app-id`, unless there are headers of that name |
//! | other headers | headers: text, bytes, numbers and truth values; not tables and lists, nor `x-delivery-count` and `x-acquired-count`, which change |
//!
//! AMQP wants UTF-8 in properties, names of headers and routing keys, and the server takes any bytes. A message
//! in which one of those above is not UTF-8 is no message, and is [rejected](#rejection), or kept with the
//! bytes as base64 in the header `message-id-bin`, `header-name-bin` and so on; others pass it.
//!
//! There is no position: a delivery tag is another one when a message comes again, so a mapping that takes the
//! position for the id is refused when the source is built. The `redelivered` flag says nothing about identity,
//! and is not looked at. CloudEvents in either mode of the AMQP binding (`cloudEvents:id` and others,
//! `application/cloudevents+json`) are told by the mapping. The payload is the client's buffer, not a copy.
//!
//! # Flow control
//! The prefetch count is the receiver's `max_unacknowledged`, at most 65,535. Other consumers of the queue get
//! the rest.
//!
//! # Rejection
//! What becomes of a rejected message is [decided](Rejections): it goes to the queue's dead-letter exchange
//! (`basic.nack` without `requeue`), or stops the source. The usual is the first where the source declares the
//! queue with
//! [`dead_letters`](RabbitMqOptions::dead_letters), and else the second: a queue without a dead-letter exchange loses what is
//! rejected, and a client cannot see whether it has one. With `keep_rejected` of the receiver it is kept in the
//! inbox instead, with its bytes.
//!
//! # Errors and reconnecting
//! A lost connection is a transient error, and so are a server that is silent for ten seconds, a channel that
//! the server has closed because an acknowledgement took too long (`consumer_timeout`), and a consumer that it
//! has cancelled, as it does when a queue's leader moves. The next call connects again, and finds or declares
//! the queue. A limit of connections, a virtual host that is down, and a queue that another consumer has for itself
//! are waited for. A refused password, a virtual host that is not there or not for this user, a queue that is not there
//! or not for this user to read, and one with other settings are permanent. For the publisher they are transient, and
//! so is an exchange that is not there: what a message waits for there is no fault of the message.
//!
//! # Shutdown
//! [`close`](inbox_source::Source::close) returns when the server has read all acknowledgements, and has put what was not
//! acknowledged back. Dropping the source does the same without being waited for.
//!
//! # TLS
//! With the Cargo feature `tls` (rustls) `amqps://` is TLS. The server's certificate is checked against the
//! system's, or those of the file that the environment variable `SSL_CERT_FILE` names. One that is refused is a
//! transient error, which says why. Client certificates are not there.
//!
//! # Settings
//! Of a URL, `amqp://user:password@host:5672/vhost?queue=orders&…`; user, password and virtual host percent-encoded:
//!
//! | parameter | method | default |
//! |---|---|---|
//! | `queue` | [`RabbitMqOptions::new`] | has to be set |
//! | `create=true`, `false` | [`create`](RabbitMqOptions::create) | `false` |
//! | `kind=quorum`, `classic` | [`kind`](RabbitMqOptions::kind) | `quorum`; of a queue that is declared |
//! | `single_active_consumer=true`, `false` | [`single_active_consumer`](RabbitMqOptions::single_active_consumer) | `false`; of a queue that is declared |
//! | `dead_letters=QUEUE` | [`dead_letters`](RabbitMqOptions::dead_letters) | none; of a queue that is declared |
//! | `rejections=dead_letters`, `stop` | [`rejections`](RabbitMqOptions::rejections) | see [Rejection](#rejection) |
//!
//! # Streams
#![cfg_attr(feature = "streams", doc = include_str!("stream/streams.md"))]
#![cfg_attr(
    not(feature = "streams"),
    doc = "Streams are a source with the Cargo feature `streams`."
)]
//!
//! # What is not there
//! Several servers in one URL; dead letters with the reason of a rejection, as RabbitMQ has no place for it; of
//! streams, batches that a producer has compressed, super streams as one source (each of their partitions is a
//! stream), filters, and publishing over their own protocol: the [`RabbitMqPublisher`] sends to a stream as it
//! does to a queue.
//!
//! # Long runs
//! `cargo test -p inbox-rabbitmq` runs the suite of `source-tests`, with kills of consumers and of the server
//! in a small number. A longer run:
//!
//! ```text
//! INBOX_CHAOS_MESSAGES=100000 INBOX_CHAOS_KILLS=60 INBOX_CHAOS_BROKER_KILLS=6 \
//!     cargo test -p inbox-rabbitmq --test it -- whole::consumers::killed_as_processes --nocapture
//! ```

mod clean;
mod delivery;
mod envelope;
mod error;
mod flag;
mod held;
mod options;
mod publisher;
mod screen;
mod session;
mod source;
mod stop;
#[cfg(feature = "streams")]
mod stream;

pub use delivery::RabbitMqDelivery;
pub use envelope::KEY;
pub use options::{Connection, QueueKind, RabbitMqOptions, Rejections, SCHEMES};
pub use publisher::RabbitMqPublisher;
pub use source::RabbitMqSource;
#[cfg(feature = "streams")]
pub use stream::{
    RabbitMqStreamDelivery, RabbitMqStreamOptions, RabbitMqStreamSource, STREAM_SCHEMES,
    StreamConnection, StreamStart,
};
