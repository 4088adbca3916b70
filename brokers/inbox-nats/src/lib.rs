//! NATS JetStream as a source of an inbox: store, then acknowledge. And a publisher, for the way out.
//!
//! A [`NatsSource`] reads a durable pull consumer. It hands messages to a receiver of the crate `inbox`, and
//! acknowledges them only when the receiver has stored them.
//!
//! ```no_run
//! use inbox::receiver::{Mapping, Receiver};
//! use inbox_nats::{Connection, NatsOptions, NatsSource};
//!
//! # async fn receive() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("sqlite://orders.db").await?;
//! store.migrate().await?;
//!
//! let server = Connection::from_url("nats://app:secret@nats.example:4222")?;
//! let options = NatsOptions::new(server, "ORDERS", "billing")?.create(true);
//! let mut source = NatsSource::new(options, Mapping::new("billing")?)?;
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
//! use inbox_nats::NatsPublisher;
//! use inbox_source::{Envelope, Publisher as _};
//!
//! # async fn send() -> Result<(), Box<dyn std::error::Error>> {
//! let publisher = NatsPublisher::from_url("nats://app:secret@nats.example:4222")?;
//! let mut message = Envelope::new("orders.placed", r#"{"order": 7}"#); // the subject
//! message.id = Some("order-7".into());
//! for answer in publisher.publish(&[message]).await {
//!     answer?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//! - **A message is acknowledged when it is stored, or known from before, and not earlier.** With
//!   [`confirm`](NatsOptions::confirm) each acknowledgement waits until the server has confirmed it; without, one that is
//!   lost brings the message again, and the inbox refuses the copy.
//! - **What waits for a slow store is not given to others**: each delivery's time-out is extended (`+WPI`) every
//!   third of the consumer's `ack_wait`, for as long as the source lives. What the client has and the receiver has not
//!   taken yet is not extended.
//! - **A delivery of a former connection acknowledges nothing**: acknowledging it fails, and says why. What the
//!   source had over the former connection is given back over the next one, so that it comes again at once, not
//!   after `ack_wait`. What the server had sent and the client never got comes again after `ack_wait`; so does
//!   what a killed process had.
//! - **So does a delivery of a consumer that was deleted, and made again**, as with its stream: its numbers are those of other
//!   messages then. Before it acknowledges, the source asks the server for the consumer, once a second at most.
//! - A delivery that is dropped is given back at once.
//!
//! Order: messages come in the order of the stream while nothing comes again. One that does comes later than its
//! successors, also of the same key. Where order has to survive that, create the consumer with `max_ack_pending` of 1.
//!
//! # The consumer
//! The stream has to be there. The consumer is durable, pulls and acknowledges explicitly. One that
//! acknowledges otherwise, pushes, delivers headers only, is deleted when unused, or has another limit of
//! deliveries is refused with the reason, for good. With [`create`](NatsOptions::create) a consumer that is not
//! there is created, without a limit of what may be unacknowledged over all sources (`max_ack_pending`); so is
//! one that was deleted, and then the whole stream comes again, of which the inbox refuses what it still has
//! the keys of. Without it, that is a permanent error. A consumer that is there keeps its settings.
//!
//! # Mapping
//! What a [`Mapping`](inbox_source::Mapping) finds in a message:
//!
//! | of the message | in the [`Envelope`](inbox_source::Envelope) |
//! |---|---|
//! | header `Nats-Msg-Id` ([`ID`]) | id, and a header |
//! | header `message-type` ([`KIND`]) | kind, and a header |
//! | header `ordering-key` ([`KEY`]) | key, and so the ordering key; and a header |
//! | header `content-type` ([`CONTENT_TYPE`]) | content type, and a header |
//! | subject | address, and so the kind of a message that says no other |
//! | stream, when it was created, and sequence | position; stable, so it is the id of a message that has no other. A stream that was deleted and made again has other ones |
//! | when the stream got it | time |
//! | other headers | headers; of several values of one name the last counts; those that begin with `ce-` are percent-decoded |
//!
//! CloudEvents in either mode of the NATS binding (`ce-id` and others, `application/cloudevents+json`) are told by the
//! mapping. The payload is shared with the client's buffer, not copied.
//!
//! # Flow control
//! The source asks the server for as many messages as the receiver's `max_unacknowledged` and
//! `max_unacknowledged_bytes` leave room for, and for more when a quarter of both is free again; never for more, nor
//! for longer, than the consumer allows (`max_batch`, `max_bytes`, `max_expires`). A message that is larger than that by
//! itself is asked for when nothing else is held. The client holds nothing else, so other sources of the
//! consumer get the rest.
//!
//! # Rejection
//! A rejected message is terminated, with the reason on servers since 2.10.4. The server publishes
//! `$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.<stream>.<consumer>`, which nobody keeps unless a stream does.
//! With [`dead_letters`](NatsOptions::dead_letters) it is first sent to that subject, with the headers
//! `Inbox-Rejection` and `Inbox-Subject`; if that fails it is not terminated, and comes again, half a second later and
//! then each time twice as long, up to eight seconds. Each time counts for
//! [`max_deliver`](NatsOptions::max_deliver). With `keep_rejected` of the receiver it is kept in the inbox instead,
//! with its bytes.
//!
//! A dead letter is larger than its message, by these headers (for one that the client does not read, by all of its
//! headers once more, as base64). One that is too large for its stream (`max_msg_size`) or for the server
//! (`max_payload`) goes with the headers of the message alone, and without the id by which the stream drops a second
//! copy. If the message itself is too large for that stream, the source stops, with the reason, and it comes again when
//! the source starts again. So let the stream for dead letters take larger messages.
//!
//! A subject for dead letters that the consumer gets itself is refused, for good: each would be rejected again.
//!
//! # Headers that the client does not read
//! Servers keep headers of any bytes. At one that is not UTF-8, whose name has a space, or that is no name and
//! value, NATS's client ends the connection. The source then looks at what the server waits for, one by one and
//! for five seconds at most, hands such a message out as one that is no message (see [Rejection](#rejection)),
//! and goes on. What was sent behind it comes again after `ack_wait`; no delivery is lost. The account needs
//! the right to publish to `$JS.API.STREAM.MSG.GET.<stream>`, without which the connection is lost again each
//! time that the message comes; behind such a loss one message is asked for first, so that others get through.
//! In its dead letter and with `keep_rejected`, all its headers are in `Inbox-Headers` or `headers-bin`, as
//! base64. A subject that is not UTF-8 is not told, and the connection is lost again and again.
//!
//! # Errors and reconnecting
//! A lost connection is a transient error, and so is a server that is silent for nine seconds; the next call
//! connects again and looks for stream and consumer. So is a consumer that the server cannot create at the moment.
//! A wrong password, a stream that is not there, and a consumer that does not fit are permanent. For the publisher a
//! wrong password is transient, and so is a subject at which no stream answers: that is no fault of the message.
//!
//! # Shutdown
//! [`close`](inbox_source::Source::close) asks for no more, gives back what was not acknowledged, to be delivered
//! at once, and returns when the server has read all of it. A message that the server sends in that very moment is left
//! to `ack_wait`. Servers before 2.10 do not give back reliably while nobody asks, so there everything is left to
//! `ack_wait`. So is what the source had when its last call failed transiently, as it then has no connection; dropping
//! it leaves what it had to `ack_wait`, too.
//!
//! # TLS
//! `tls://` is TLS with rustls, after the server's greeting (not with `handshake_first`). The server's
//! certificate is checked against the system's, or those of the file that the environment variable
//! `SSL_CERT_FILE` names. With `nats://` the connection is encrypted where the server asks for it, and else it
//! is not. A certificate that is refused is a transient error, which says why.
//!
//! # What is not there
//! Client certificates, credential files and NKeys, and several servers in one URL.
//!
//! # Settings
//! Of a URL, `nats://user:password@host:4222/?stream=ORDERS&consumer=billing&…` (`tls://` for TLS); user and password
//! percent-encoded:
//!
//! | parameter | method | default |
//! |---|---|---|
//! | `stream`, `consumer` | [`NatsOptions::new`] | have to be set |
//! | `create=true`, `false` | [`create`](NatsOptions::create) | `false` |
//! | `filter=SUBJECT` | [`filter`](NatsOptions::filter) | all; of a consumer that is created |
//! | `ack_wait_ms` | [`ack_wait`](NatsOptions::ack_wait) | 30,000; of a consumer that is created |
//! | `max_deliver` | [`max_deliver`](NatsOptions::max_deliver) | no limit |
//! | `confirm=true`, `false` | [`confirm`](NatsOptions::confirm) | `false` |
//! | `dead_letters=SUBJECT` | [`dead_letters`](NatsOptions::dead_letters) | none |
//!
//! # Long runs
//! `cargo test -p inbox-nats` runs the suite of `source-tests`, with kills of consumers and of the server in a small
//! number. A longer run:
//!
//! ```text
//! INBOX_CHAOS_MESSAGES=100000 INBOX_CHAOS_KILLS=60 INBOX_CHAOS_BROKER_KILLS=6 \
//!     cargo test -p inbox-nats --test it -- newest::consumers::killed_as_processes --nocapture
//! ```

mod delivery;
mod envelope;
mod error;
mod held;
mod options;
mod publisher;
mod pull;
mod session;
mod source;
mod stop;
mod unreadable;

pub use delivery::NatsDelivery;
pub use envelope::{CONTENT_TYPE, ID, KEY, KIND};
pub use options::{Connection, NatsOptions, SCHEMES};
pub use publisher::NatsPublisher;
pub use source::NatsSource;
