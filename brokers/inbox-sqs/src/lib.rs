//! Amazon SQS as a source of an inbox: store, then acknowledge. And a publisher, for the way out.
//!
//! An [`SqsSource`] consumes a queue, standard or FIFO. It hands messages to a receiver of the crate `inbox`,
//! and deletes them only when the receiver has stored them.
//!
//! ```no_run
//! use inbox::receiver::{Mapping, Receiver};
//! use inbox_sqs::{SqsOptions, SqsSource};
//!
//! # async fn receive() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("sqlite://orders.db").await?;
//! store.migrate().await?;
//!
//! // The queue's URL, and credentials from the environment.
//! let options = SqsOptions::from_url("sqs://sqs.eu-west-1.amazonaws.com/123456789012/orders")?;
//! let mut source = SqsSource::new(options, Mapping::new("billing")?)?;
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
//! use inbox_source::{Envelope, Publisher as _};
//! use inbox_sqs::SqsPublisher;
//!
//! # async fn send() -> Result<(), Box<dyn std::error::Error>> {
//! let publisher = SqsPublisher::from_url("sqs://sqs.eu-west-1.amazonaws.com/123456789012")?;
//! let mut message = Envelope::new("orders.fifo", r#"{"order": 7}"#); // the queue
//! message.id = Some("order-7".into());
//! for answer in publisher.publish(&[message]).await {
//!     answer?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//! - **A message is deleted when it is stored, or known from before, and not earlier**, ten with each request.
//!   Where the service fails to delete some of the ten, those come again, and the inbox refuses the copies.
//! - **What waits for a slow store is not given to others**: as long as the source lives, messages that it has
//!   handed out are kept invisible, every third of [`visibility`](SqsOptions::visibility). SQS allows 12 hours
//!   in all; then they come again.
//! - **A lost connection takes nothing along**: what was handed out is deleted over the next one. What the
//!   service had sent and the source never got comes again after `visibility`; so does what a killed process
//!   had.
//! - A delivery that is dropped is given back at once.
//!
//! Order: a FIFO queue keeps that of each group, over any number of consumers, as nobody gets a message of a
//! group while another is out. A standard queue keeps none, and may deliver a message twice; the inbox refuses
//! the copy.
//!
//! # Mapping
//! What a [`Mapping`](inbox_source::Mapping) finds in a message:
//!
//! | of the message | in the [`Envelope`](inbox_source::Envelope) |
//! |---|---|
//! | attribute `message-id` ([`ID`]), or the `MessageDeduplicationId` of a FIFO queue | id. One that the queue makes of the content (`ContentBasedDeduplication`) is none: all messages that are alike would be one, for ever |
//! | attribute `message-type` ([`KIND`]) | kind, and a header |
//! | attribute `ordering-key` ([`KEY`]), or the `MessageGroupId` of a FIFO queue | key, and so the ordering key |
//! | attribute `content-type` ([`CONTENT_TYPE`]) | content type, and a header |
//! | name of the queue | address, and so the kind of a message that says no other |
//! | `MessageId` | position; the same at each delivery, so it is the id of a message that has no other. A message that is moved back from dead letters has another one |
//! | `SentTimestamp` | time |
//! | other attributes | headers; numbers as their text, bytes as base64 under the name with `-bin` |
//! | attribute `inbox-headers` ([`HEADERS`]) | more headers, of the publisher here: SQS takes ten attributes, and not all names and values |
//! | attribute `inbox-encoding` ([`ENCODING`]) | how the body stands for a payload that is no text |
//!
//! CloudEvents in either mode (`ce-id` or `ce_id` and others as attributes, `application/cloudevents+json`) are told by
//! the mapping. A receipt handle, which changes with each delivery, is in no place where a mapping looks, so it cannot
//! become an id.
//!
//! # Flow control
//! The source asks for ten messages at most, and never has more than the receiver's `max_unacknowledged`. Other
//! consumers get the rest. It asks for none while `max_unacknowledged_bytes` is reached, so that one answer at
//! most is over it. It makes one request at a time; for more than some hundred messages a second run several
//! sources.
//!
//! # Rejection
//! A rejected message is deleted, or what [`Rejections`] say: left to the queue's redrive policy, or sent to a
//! queue for dead letters, with its attributes and, if there is room, `inbox-rejection`. With `keep_rejected`
//! of the receiver it is kept in the inbox instead. What could not be sent to the dead letters, or deleted, comes
//! again five seconds later, which a redrive policy of the queue counts.
//!
//! # Errors and reconnecting
//! A service that cannot be reached, fails or throttles is a transient error. Refused credentials or
//! permissions, and a queue that is not there, are permanent. To a publisher they say nothing of a message, and are
//! transient: an outbox waits until that is mended.
//!
//! # TLS
//! `sqs://` is HTTPS with rustls, and `sqs+http://` is not encrypted. The service's certificate is checked
//! against the system's, or those of the file that the environment variable `SSL_CERT_FILE` names. One that is
//! refused is a transient error, which says why.
//!
//! # Shutdown
//! [`close`](inbox_source::Source::close) waits for the last request ([`wait`](SqsOptions::wait)), and gives back what was not
//! deleted. Dropping the source leaves what it had to `visibility`.
//!
//! # Permissions
//! `sqs:ReceiveMessage`, `sqs:DeleteMessage` and `sqs:ChangeMessageVisibility`; `sqs:GetQueueAttributes` for
//! the lag, which is not known without; `sqs:SendMessage` for dead letters and publishing.
//!
//! # What is not there
//! A URL has static credentials only. A program that gets its own from a role, a profile or the instance gives a
//! client to [`Connection::new`]. Payloads that are kept in S3 are not fetched.
//!
//! # Tested with
//! [ElasticMQ](https://github.com/softwaremill/elasticmq) 1.6, not with AWS. The two differ:
//!
//! - It is one process whose messages are in a file. A standard queue delivers each message once and roughly in order,
//!   where AWS may deliver twice, and promises no order.
//! - **A FIFO queue forgets its order when the process is killed**: the next one restores the messages as those
//!   of a standard queue, so that one of a group is delivered while an earlier one is out. Kills of the server
//!   are therefore tried for losses and copies, with order looked at where consumers are killed and connections
//!   are cut.
//! - Queues are unknown for a moment after it listens.
//! - A receipt handle does not run out, only a newer one takes its place. A message may be invisible for longer
//!   than 12 hours.
//! - Signatures, permissions, quotas and throttling are not there.
//!
//! # Settings
//! Of a URL, `sqs://KEY:SECRET@sqs.eu-west-1.amazonaws.com/ACCOUNT/QUEUE?…` (`sqs+http://` without TLS); key and secret
//! percent-encoded, or in the [environment](Connection::from_url):
//!
//! | parameter | method | default |
//! |---|---|---|
//! | the path | [`SqsOptions::new`] | has to be set |
//! | `region` | [`Connection::from_url`] | that of the host, or `AWS_REGION` |
//! | `visibility_ms` | [`visibility`](SqsOptions::visibility) | 60,000 |
//! | `wait_s` | [`wait`](SqsOptions::wait) | 5 |
//! | `redrive=true`, `false` | [`rejections`](SqsOptions::rejections) | `false` |
//! | `dead_letters=QUEUE` | [`rejections`](SqsOptions::rejections) | none |
//!
//! # Long runs
//! `cargo test -p inbox-sqs` runs the suite of `source-tests` on FIFO queues, and a part of it on standard
//! queues, with kills of consumers and of the server in a small number. The whole on standard queues, and a
//! longer run:
//!
//! ```text
//! INBOX_TEST_SUITE_ON=standard cargo test -p inbox-sqs --test it whole
//! INBOX_CHAOS_MESSAGES=100000 INBOX_CHAOS_KILLS=60 \
//!     cargo test -p inbox-sqs --test it -- whole::consumers::killed_as_processes --nocapture
//! ```

mod delivery;
mod envelope;
mod error;
mod held;
mod options;
mod publisher;
mod queue;
mod reader;
mod source;

pub use aws_sdk_sqs;
pub use delivery::SqsDelivery;
pub use envelope::{CONTENT_TYPE, ENCODING, HEADERS, ID, KEY, KIND};
pub use options::{Connection, Rejections, SCHEMES, SqsOptions};
pub use publisher::SqsPublisher;
pub use source::SqsSource;
