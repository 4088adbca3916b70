//! Kafka as a source of an inbox: store, then acknowledge. And a publisher, for the way out.
//!
//! A [`KafkaSource`] is a member of a consumer group. It hands records to a receiver of the crate `inbox`, and
//! commits their offsets only when the receiver has stored them.
//!
//! ```no_run
//! use inbox::receiver::{Mapping, Receiver};
//! use inbox_kafka::{Connection, KafkaOptions, KafkaSource, Rejections};
//!
//! # async fn receive() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("sqlite://orders.db").await?;
//! store.migrate().await?;
//!
//! let options = KafkaOptions::new(Connection::new("broker.example:9092"), "billing", ["orders"])
//!     .rejections(Rejections::DeadLetters("orders.dead".into()));
//! let mut source = KafkaSource::new(options, Mapping::new("billing")?)?;
//!
//! let shutdown = inbox::CancellationToken::new(); // cancel it to drain and end
//! Receiver::builder(store).build().run(&mut source, shutdown).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//! - **An offset is committed only when everything before it, on its partition, is finished**: stored, known
//!   from before, or written to the dead letters. Nothing is committed by the client on its own.
//! - **At a rebalance nothing is left half done.** Partitions move one by one (`cooperative-sticky`). One that goes
//!   to another member is held until what was handed to the receiver is stored and committed, for
//!   [`revoke_wait`](KafkaOptions::revoke_wait) at most; then it is let go, and what was not finished is delivered
//!   there. What was fetched and not handed out is forgotten. Other partitions wait for it meanwhile.
//! - **A delivery of a former assignment commits nothing**: acknowledging it fails, and the inbox refuses the
//!   copy that comes again.
//! - **A store that is away does not cost the membership.** The client is polled by a thread of its own whether
//!   or not the receiver takes anything, so `max.poll.interval.ms` is not exceeded.
//! - **Order**: records of one partition are handed out in their order, so those of one key are.
//! - **A topic that is deleted and made again is read from its beginning**, and so is a log that was cut off,
//!   as by an unclean election: an offset that came before is another record then. What was in flight of the
//!   old log commits nothing, and the group's offset goes back at once. A warning says so. With
//!   [`Start::Latest`] it is read from where it ended when that was noticed, and with
//!   [`Start::Error`] the source fails.
//!
//! A record with a header whose name is not UTF-8 is rejected. The client panics at it, which is caught: a
//! program that is built with `panic = "abort"`, or whose panic hook ends it, ends there.
//!
//! What is not: a record whose producer sent it twice is two records with two positions, unless its id is in a
//! header or field ([mapping](#mapping)). Offsets that are stored and not committed, as after a kill, are
//! delivered again and refused by the inbox. Records that the topic's retention deletes before they are
//! received are lost. A topic that is made again and has more records than the old one before the client looks
//! again is read from the old offset: the client does not heed that it is another. Stop the receiver, and reset
//! the group's offsets, before you make such a topic again.
//!
//! # Where it begins
//! **A group that has committed nothing begins at the earliest record** that is there, not at the newest as
//! Kafka's own clients do: nothing is left out because a consumer came later than its messages. The log says
//! so, as a warning, for each partition that it concerns. [`start`](KafkaOptions::start) changes it. The same
//! holds when a committed offset was deleted; with [`Start::Error`] the source fails instead.
//!
//! # Mapping
//! What a [`Mapping`](inbox_source::Mapping) finds in a record:
//!
//! | of the record | in the [`Envelope`](inbox_source::Envelope) |
//! |---|---|
//! | header `message-id` ([`ID`]) | id, and a header |
//! | header `message-type` ([`KIND`]) | kind, and a header |
//! | key | key, and so the ordering key; as base64 if it is no text |
//! | topic | address, and so the kind of a message that says no other |
//! | topic, partition and offset: `orders/2/17` | position; stable, so it is the id of a message that has no other |
//! | header `content-type` ([`CONTENT_TYPE`]) | content type, and a header |
//! | timestamp | time |
//! | other headers | headers; `name-bin` with base64 if the value is no text; one without a value is empty |
//! | no body (a tombstone) | an empty payload, and the header `kafka-tombstone: true` ([`TOMBSTONE`]) |
//!
//! A record that has a header whose name is not UTF-8 is no message: the client cannot read its headers, so it
//! is rejected, without them.
//!
//! CloudEvents in either mode of the Kafka binding (`ce_id` and others, `application/cloudevents+json`) are told by the
//! mapping. A topic that was deleted and made again has its positions twice: give the mapping an
//! [`id_prefix`](inbox_source::Mapping::id_prefix) then.
//!
//! Body, key and headers are copied once, out of the client's memory, in which they live only as long as the
//! client; the message that is stored shares the body with that copy.
//!
//! # Flow control
//! Deliveries that were taken from the client and are not finished are never more than the receiver's
//! `max_unacknowledged`, and hold no more than its `max_unacknowledged_bytes` and one record. Behind that, the
//! client fetches ahead, of each partition at most 10,000 records,
//! [`prefetch_kb`](KafkaOptions::prefetch_kb) and one fetched batch. No partition is paused for it.
//!
//! # Commits
//! What a run of acknowledgements makes of each partition is committed at once, one commit at a time, without
//! waiting for the answer. The answer is seen: a commit that fails is logged and made again for as long as the
//! partition is here. An acknowledgement says that the commit will be made, not that it was: what was not
//! committed before a crash is delivered again. Before a partition goes, and when the source is closed, the last
//! commit is waited for.
//!
//! # Rejected deliveries
//! Kafka has no dead letters of its own, so what becomes of a delivery that the receiver rejects has to be
//! decided: [`Rejections`]. With a topic for dead letters the record is written there, with its key, body and
//! headers as they were (without headers, if these cannot be read) and the headers [`REJECTED_REASON`] and
//! [`REJECTED_FROM`], and counts as finished once all replicas in sync have it; if that fails, the partition is
//! read again from it, half a second later. One that these headers make too large goes without them; one that is refused
//! for good all the same, as it is too large, stops the source, with the reason: so let that topic take records as large
//! (`max.message.bytes`) as the others. A receiver that has
//! `keep_rejected` or `stop_at_rejected` goes with [`Rejections::Stop`].
//!
//! # Errors and reconnecting
//! The client connects again by itself, and finds brokers, leaders and coordinators that have moved. While no
//! broker answers, or none of its topics is there, the source fails transiently, so that the receiver's outage
//! shows (where only some topics are missing, there is a warning). So it does while no broker's certificate is
//! accepted, and says what the client says of the last
//! connection; of a single broker whose certificate is refused there is a warning. A wrong password, missing
//! rights, or a group of members with another assignment strategy fail for good, of a source. Of a publisher
//! only what is wrong with the record does: it is too large, or the broker refuses it or its topic's name. A
//! topic that is not there is waited for: the client does not tell it from one that is being made, or made
//! again, nor from any at a broker that has just started. A member that gave no sign of life for the session
//! time-out has lost its partitions: what is in flight is given up, and the member joins again.
//!
//! # Shutdown
//! [`close`](inbox_source::Source::close) commits what is finished and leaves the group, so that other members have
//! the partitions at once (not those of a static member). It takes up to nine seconds when the brokers do not
//! answer. Dropping the source does the same, and nobody waits for it.
//!
//! # Setting Kafka up
//! Topics have to be there; none is created. The user needs `READ` on topics and group, and `WRITE` on the dead
//! letters' topic. All members of a group have to be `cooperative-sticky`. For messages that survive the loss
//! of a broker, topics need three replicas and `min.insync.replicas=2`. Retention has to be longer than the
//! longest time for which nobody receives.
//!
//! # TLS
//! With the Cargo feature `tls` the client has TLS and SCRAM, by the system's OpenSSL: a build needs its
//! headers (Debian's `libssl-dev`). Where these are missing, or the program shall run where OpenSSL is not
//! installed, add the client with OpenSSL's own source instead. Without either, a source that is to use TLS
//! fails for good when it connects, and says so.
//!
//! ```toml
//! rdkafka = { version = "0.39", features = ["ssl-vendored"] }
//! ```
//!
//! The brokers' certificates and names are checked, against `tls_ca_file` or else the system's certificates; with the
//! system's OpenSSL those of the file that the environment variable `SSL_CERT_FILE` names. Brokers have to advertise
//! names that are in their certificates.
//!
//! # Settings
//! Of a URL, `kafka://user:password@host:9092,host:9092/?topic=orders&group=billing&…`; user and password
//! percent-encoded:
//!
//! | parameter | method | default |
//! |---|---|---|
//! | `topic`, may be repeated | [`KafkaOptions::new`] | has to be set |
//! | `group` | [`KafkaOptions::new`] | has to be set |
//! | `dead_letters=TOPIC`, or `rejected=stop` or `discard` | [`rejections`](KafkaOptions::rejections) | has to be set |
//! | `start=earliest`, `latest`, `error` | [`start`](KafkaOptions::start) | `earliest` |
//! | `isolation=read_committed`, `read_uncommitted` | [`read_committed`](KafkaOptions::read_committed) | `read_committed` |
//! | `instance` | [`instance`](KafkaOptions::instance) | none: a dynamic member |
//! | `session_timeout_ms` | [`session_timeout`](KafkaOptions::session_timeout) | 45,000 |
//! | `revoke_wait_ms` | [`revoke_wait`](KafkaOptions::revoke_wait) | 10,000 |
//! | `prefetch_kb` | [`prefetch_kb`](KafkaOptions::prefetch_kb) | 4,096 |
//! | `sasl=plain`, `scram-sha-256`, `scram-sha-512` | [`credentials`](Connection::credentials) | none; has to be set with a user |
//! | `tls=true` | [`tls`](Connection::tls) | `false` |
//! | `tls_ca_file` | [`property`](Connection::property) `ssl.ca.location` | the system's |

mod committer;
mod connection;
mod context;
mod delivery;
mod envelope;
mod error;
mod missing_topics;
mod offsets;
mod options;
mod poller;
mod publisher;
mod shared;
mod source;
mod writer;

pub use connection::{Connection, Sasl};
pub use delivery::{KafkaDelivery, REJECTED_FROM, REJECTED_REASON};
pub use envelope::{CONTENT_TYPE, ID, KIND, TOMBSTONE};
pub use options::{KafkaOptions, Rejections, SCHEMES, Start};
pub use publisher::KafkaPublisher;
pub use source::KafkaSource;
