//! Redis Streams as a source of an inbox: store, then acknowledge. And a publisher, for the way out.
//!
//! A [`RedisStreamsSource`] is a consumer of a group. It hands entries to a receiver of the crate `inbox`, and
//! acknowledges them only when the receiver has stored them.
//!
//! ```no_run
//! use inbox::receiver::{Mapping, Receiver};
//! use inbox_redis_streams::{Connection, RedisStreamsOptions, RedisStreamsSource};
//!
//! # async fn receive() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("sqlite://orders.db").await?;
//! store.migrate().await?;
//!
//! let server = Connection::from_url("redis://app:secret@redis.example:6379/0")?;
//! let options = RedisStreamsOptions::new(server, "orders", "billing")?.create(true);
//! let mut source = RedisStreamsSource::new(options, Mapping::new("billing")?)?;
//!
//! let shutdown = inbox::CancellationToken::new(); // cancel it to drain and end
//! Receiver::builder(store).build().run(&mut source, shutdown).await?;
//! # Ok(())
//! # }
//! ```
//!
//! And the way out: what is confirmed is in a stream.
//!
//! ```no_run
//! use inbox_redis_streams::RedisStreamsPublisher;
//! use inbox_source::{Envelope, Publisher as _};
//!
//! # async fn send() -> Result<(), Box<dyn std::error::Error>> {
//! let publisher = RedisStreamsPublisher::from_url("redis+stream://app:secret@redis.example:6379/0")?;
//! let mut message = Envelope::new("orders", r#"{"order": 7}"#); // the stream
//! message.id = Some("order-7".into());
//! for answer in publisher.publish(&[message]).await {
//!     answer?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//! - **An entry is acknowledged when it is stored, or known from before, and not earlier.** Each acknowledgement waits
//!   for the server's answer. One that fails brings the entry again, half a second later, and the inbox refuses the
//!   copy.
//! - **What waits for a slow store is not given to others**: as long as the source lives, each entry that it
//!   has handed out is kept from being idle, every third of [`claim_after`](RedisStreamsOptions::claim_after).
//! - **A lost connection takes nothing along**: what was handed out is acknowledged over the next one, and
//!   what the server had sent and the source never got is read again, before anything new.
//! - **What a killed process had** comes to another consumer of the group `claim_after` later, and to the same one as
//!   soon as it is started again, if it has a [name](RedisStreamsOptions::consumer).
//! - A delivery that is dropped comes again from the same source at once.
//!
//! Order: entries come in the order of the stream to a source that is alone in its group, across lost
//! connections too, and across its own restarts if it has a name. Several consumers of one group share the
//! entries, whatever their keys.
//!
//! A stream is as durable as the server: `appendfsync`, and replicas. What a fail-over forgets is gone, and an
//! acknowledgement that it forgets brings the entry again.
//!
//! # The group
//! With [`create`](RedisStreamsOptions::create) stream and group are made where they are not there, from the
//! beginning of the stream. A group that was lost (by a fail-over, or `FLUSHALL`) is made again when the source
//! next connects, and then the whole stream comes again, of which the inbox refuses what it still has the keys
//! of. Without it, that is a permanent error.
//!
//! Entries that were delivered, and deleted or trimmed before they were acknowledged, are logged, with their number,
//! and passed over. Of entries that were trimmed before they were delivered to any consumer the server says nothing.
//! So trim by time or with room to spare, or let the source [delete](RedisStreamsOptions::delete) what it has
//! acknowledged.
//!
//! # Mapping
//! What a [`Mapping`](inbox_source::Mapping) finds in an entry:
//!
//! | of the entry | in the [`Envelope`](inbox_source::Envelope) |
//! |---|---|
//! | field [`payload`](RedisStreamsOptions::payload), the last of the name | payload. Without one, an object in JSON of all fields, their values as texts |
//! | field `message-id` ([`ID`]) | id, and a header |
//! | field `message-type` ([`KIND`]) | kind, and a header |
//! | field `ordering-key` ([`KEY`]) | key, and so the ordering key; and a header |
//! | field `content-type` ([`CONTENT_TYPE`]) | content type, and a header |
//! | stream | address, and so the kind of a message that says no other |
//! | stream and number | position; stable, so it is the id of a message that has no other. A sender that numbers entries itself, in a stream that was deleted and made again, may use one twice |
//! | the number's first part, in milliseconds | time |
//! | other fields | headers; of several of one name the last counts |
//!
//! CloudEvents in either mode (`ce-id` and others, `application/cloudevents+json`) are told by the mapping.
//!
//! # Flow control
//! The source reads up to 250 entries at once, and never has more than the receiver's `max_unacknowledged`.
//! Other consumers of the group get the rest. It reads as many as should fit in `max_unacknowledged_bytes`, by
//! the largest entry of late, and none while that is reached: Redis counts entries and no bytes, so a page of
//! entries that are larger than those before may exceed it.
//!
//! # Rejection
//! A rejected entry is acknowledged. With [`dead_letters`](RedisStreamsOptions::dead_letters) it is, in the
//! same step, added to that stream with all its fields, byte for byte, and `inbox-rejection` and
//! `inbox-position`. If the server refuses the dead letter, as where the key is no stream, the entry stays, and
//! comes again half a second later. (An entry of more than 3,500 fields is acknowledged in a second step, so
//! that a lost answer may make two dead letters of it.) With `keep_rejected` of the receiver it is kept in the
//! inbox instead.
//!
//! # Errors and reconnecting
//! A lost connection, a server that does not answer within five seconds, and one that is loading or has become
//! a replica are transient errors; the next call connects again. Refused credentials, missing permissions, a
//! key that is no stream, a missing group without `create` and a node of a cluster that does not have the
//! stream are permanent. To a publisher only a key that is no stream is, and a message that is larger than
//! `proto-max-bulk-len`: what concerns its user or its server says nothing of a message, and is transient.
//!
//! # Shutdown
//! [`close`](inbox_source::Source::close) waits for the last answer of the server (half a second at most), and gives
//! back what was not acknowledged: others may claim it at once. Where the connection was lost, it connects once more
//! for that. A consumer without a name of its own is removed, and with it those that killed processes left an hour ago
//! or longer with nothing pending. Dropping the source leaves what it had to `claim_after`.
//!
//! # The server
//! Redis 6.2 or later, or Valkey. A user needs `XREADGROUP`, `XACK`, `XAUTOCLAIM`, `XCLAIM`, `XPENDING`,
//! `XINFO`, `XGROUP`, `EVAL` and `EVALSHA`; `XADD` for dead letters and publishing, `WAIT` for
//! [`wait_replicas`](RedisStreamsPublisher::wait_replicas), `XDEL` to delete. Clusters and Sentinel are not
//! supported.
//!
//! # TLS
//! With the Cargo feature `tls` (rustls) `rediss+stream://` is TLS. The server's certificate is checked against
//! `tls_ca_file`, or else the system's, or those of the file that the environment variable `SSL_CERT_FILE`
//! names. One that is refused is a transient error, which says why. Client certificates are not there.
//!
//! # Settings
//! Of a URL, `redis+stream://user:password@host:6379/0?stream=orders&group=billing&…` (`rediss+stream://` for
//! TLS); user and password percent-encoded:
//!
//! | parameter | method | default |
//! |---|---|---|
//! | `stream`, `group` | [`RedisStreamsOptions::new`] | have to be set |
//! | `consumer` | [`consumer`](RedisStreamsOptions::consumer) | a new one each time |
//! | `create=true`, `false` | [`create`](RedisStreamsOptions::create) | `false` |
//! | `claim_after_ms` | [`claim_after`](RedisStreamsOptions::claim_after) | 60,000 |
//! | `payload=FIELD` | [`payload`](RedisStreamsOptions::payload) | `payload` |
//! | `dead_letters=STREAM` | [`dead_letters`](RedisStreamsOptions::dead_letters) | none |
//! | `delete=true`, `false` | [`delete`](RedisStreamsOptions::delete) | `false` |
//! | `tls_ca_file` | [`Connection::from_url`] | the system's certificates |
//!
//! # Long runs
//! `cargo test -p inbox-redis-streams` runs the suite of `source-tests`, with kills of consumers and of the
//! server in a small number. A longer run:
//!
//! ```text
//! INBOX_CHAOS_MESSAGES=100000 INBOX_CHAOS_KILLS=60 INBOX_CHAOS_BROKER_KILLS=6 \
//!     cargo test -p inbox-redis-streams --test it -- redis::consumers::killed_as_processes --nocapture
//! ```

mod delivery;
mod entry;
mod envelope;
mod error;
mod held;
mod link;
mod options;
mod publisher;
mod reader;
mod shared;
mod source;

pub use delivery::RedisStreamsDelivery;
pub use envelope::{CONTENT_TYPE, ID, KEY, KIND, PAYLOAD};
pub use options::{Connection, RedisStreamsOptions, SCHEMES};
pub use publisher::RedisStreamsPublisher;
pub use source::RedisStreamsSource;
