//! An inbox store in MongoDB 4.4 and later: replica sets, sharded clusters (from 5.1, see
//! [Sharding](#sharding)) and standalone servers.
//!
//! ```no_run
//! use inbox_api::{HandlerName, Kind, Message, MessageId, Receipt, Schema, StoreExt};
//! use inbox_mongo::{MongoOptions, MongoStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = MongoOptions::from_url("mongodb://app@localhost/shop?replicaSet=rs0")?;
//! let store = MongoStore::connect(options).await?;
//! store.create().await?;
//! let message = Message::new(
//!     HandlerName::new("billing")?,
//!     MessageId::new("evt-1")?,
//!     Kind::new("order.placed")?,
//!     r#"{"order": 7}"#,
//! );
//! assert_eq!(store.receive_one(&message).await?, Receipt::Accepted);
//! assert_eq!(store.receive_one(&message).await?, Receipt::Duplicate { differs: false });
//! # Ok(())
//! # }
//! ```
//!
//! An application that has a client hands it in: [`MongoStore::with_client`]. What a URL may say is
//! at [`MongoOptions::from_url`].
//!
//! # What is tested, and what is not
//! The store passes the conformance suite, and its own tests and crash runs, on FerretDB 2.7, which
//! speaks MongoDB's protocol but has no replica sets and enforces no roles.
//!
//! Its tests run on a replica set of MongoDB instead where there is a `mongod`, which the
//! project's automatic tests do not have. By hand, on 2026-11-26 and 27, on MongoDB 4.4.0 (built without
//! optimisation, on two cores that were busy with other work):
//!
//! | what | on | result |
//! |---|---|---|
//! | the conformance suite, 521 cases | a standalone server | all pass |
//! | the same | a set of three members | all pass; two, batches of thousands and of 80 MiB, met the time-out of their operations at a load of fifteen, and pass when run alone |
//! | the conformance suite, 505 cases | a set of one member | 501 pass. Two with batches of thousands, and one that waits for a transaction, met the time-out of their operations; one met a conflict. When run alone, all but one of the former pass |
//! | operations, requests, faults; transactions that meet each other; the primary killed, and stopped | sets of one and of three members | pass |
//! | a crash run in transactions: 20 kills of workers, 50 of the primary, 20,447 operations, 22 minutes | a set of three members | nothing lost, doubled or out of order; 7 of 9,126 messages were never handed out: a commit as the primary was killed, since mended |
//! | the same, after that: 20 and 50 kills, 24,043 operations, 18 minutes | a set of three members | no rule broken: 11,118 messages, each effect once |
//! | without transactions: 20 and 50 kills, 32,500 operations, 20 minutes | a set of three members | no rule broken: 18,908 messages |
//! | messages that are sharded, and others, through a `mongos` | two shards | refused, as [below](#sharding); the others are handled, in transactions too |
//! | the conformance suite, 505 cases | through a `mongos`, not sharded | 502 pass. One with a batch of thousands ran out of time, one met a conflict, one is [known](#known) |
//!
//! ## Known
//! - Through a `mongos` 4.4, a claim that meets a message which an open transaction holds can leave it leased to nobody
//!   until that lease ends, with one attempt counted (`skew::two_records_of_a_key_keep_the_order`, each time). The likely cause: a
//!   shard goes on with a change that the `mongos` has given up, and makes it when the transaction ends. No message was lost
//!   or out of order.
//!
//! MongoDB 5.1 and later, sharded messages and TLS have **not been run**.
//!
//! The roles are tried on a `mongod` that asks who it is, where one is installed: a worker does every
//! operation, transactions and wake-ups included, and removing is denied. Everywhere it is tested that they
//! have the actions that the server's documentation asks for each command that the store sends. How to set FerretDB
//! up so that its rates do not fall with the backlog is below.
//!
//! # What survives what
//! Every write asks for the write concern *majority, journaled*, and every read of documents for
//! the read concern *majority* on the primary, whatever the client's defaults. On a replica set
//! everything answered with `Ok` survives a crash of all members, a power cut, and the loss of a
//! minority. On a standalone server it survives a crash and a power cut, but not the loss of the
//! disk.
//!
//! An arbiter votes and stores nothing. In a set of two members with data and an arbiter, no write
//! has a majority while one of the two is down: operations fail as `Unavailable` until it is back.
//!
//! # One receive
//! The messages of a batch are stored one by one, in one request. Those that share a message id
//! (one delivery for several handlers) are stored together, in a transaction, where the server has
//! transactions. A standalone server that crashes in the middle of a batch may keep some of them
//! only; the call has failed then, and the redelivery stores the others.
//!
//! # Limits
//! A payload and a result of 7.5 MiB each, half of the contract's usual 16 MiB: MongoDB takes no
//! document over 16 MiB, and both are in one. A larger payload is refused, for this message alone,
//! with an error that names the limit.
//!
//! # Transactional use
//! On replica sets and sharded clusters the record of a message and the handler's writes commit
//! together. A standalone server is refused with `Unsupported`.
//!
//! ```no_run
//! use inbox_api::{HandlerName, Kind, Message, MessageId, Recorded, Transactional};
//! use inbox_mongo::{MongoOptions, MongoStore, mongodb::bson::{Document, doc}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = MongoOptions::from_url("mongodb://app@localhost/shop?replicaSet=rs0")?;
//! let store = MongoStore::connect(options).await?;
//! # let message = Message::new(
//! #     HandlerName::new("billing")?, MessageId::new("evt-1")?, Kind::new("order.placed")?, "",
//! # );
//! let mut transaction = store.open().await?;
//! if store.record_in(&mut transaction, &message, None).await? == Recorded::First {
//!     let session = transaction.session()?;
//!     let invoices = session.client().database("shop").collection::<Document>("invoice");
//!     invoices.insert_one(doc! { "order": 7 }).session(session).await?;
//! }
//! store.commit(transaction).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Two transactions that touch one message, or record messages of one ordering key, conflict: the
//! second fails as `Conflict`, is rolled back and repeated, and then sees what the first has done. A
//! few ordering keys of 65,536 share their guard, so that two of different keys may conflict, too.
//! A message of the key that is received while such a transaction is open may be handed out before
//! its end. An error with the label `TransientTransactionError`
//! certainly aborted the transaction; a commit with `UnknownTransactionCommitResult` is sent again
//! a few times, and then answered with an unknown effect.
//!
//! A transaction may work in several inboxes of one client, through the store of each. Whichever commits
//! does what is left to do in all of them.
//!
//! **Conflicts** between handlers, over their own documents, end as errors with the label
//! `TransientTransactionError`: as the runtime's `Failure::conflict`, they cost no attempt.
//!
//! **Leases.** A transaction sees the documents as they were when it began, and fails if it settles
//! a message that was changed since, be it by a renewal of its lease. So work on leased messages
//! begins with [`open_for`](inbox_api::Transactional::open_for), as the runtime's `in_transaction`
//! does: it makes the leases last for 60 seconds
//! ([`transaction_lifetime`](MongoOptions::transaction_lifetime)), which is as long as a server lets a
//! transaction be open, and the store does not renew them before its end. If the worker crashes,
//! its message is handed out again after that time.
//!
//! **Held messages.** The server lets other writes wait for a transaction that has changed the same
//! document. The store gives changes of many messages, and of one by
//! [`begin`](inbox_api::Store::begin), a quarter of a second and little more, or up to sixteen times
//! that on a server that has been slow lately. What is not done by then is looked at in small
//! transactions, which do not wait, so that a slow server is not taken for a transaction that holds
//! something. A message that is held is left out for two seconds, unless nothing else is due; it is
//! `Busy` to `begin`, and costs the others that time once. A settlement waits for it after the
//! others of its batch are done.
//!
//! **Cancellation.** The driver's futures must not be dropped in the middle. Everything of this
//! crate runs in its own tasks, so its futures may be: what was begun goes on to its end. An
//! operation in a transaction whose future is dropped ends with the abort of the transaction.
//!
//! # Errors
//! By code and label, never by a message's text (but why no server was found is told in the
//! driver's words, as far as they are about the connection):
//!
//! | what happened | kind | effect |
//! |---|---|---|
//! | no suitable server was found in time, before anything was changed | `Unavailable` | none |
//! | the connection was lost; the server is not the primary any more, or stops; the write concern was not met | `Unavailable` | unknown |
//! | the server is overloaded or recovering: the labels `SystemOverloadedError`, `RetryableError` and `RetryableWriteError` | `Unavailable` | unknown; none with `NoWritesPerformed` |
//! | write conflict, aborted transaction; a commit behind a step of the store's that failed | `Conflict` | none |
//! | a privilege is missing, the credentials were refused | `Denied` | none |
//! | no inbox of this name | `SchemaMissing` | none |
//!
//! An operation of several requests that fails after one of them has changed something says that its
//! effect is unknown, whatever made the later one fail. Repeating is safe after each of them. The driver's own error text is not kept, since it may
//! quote documents; the source names its code and labels.
//!
//! # Wake-ups
//! On replica sets and clusters a change stream wakes every process, resumed by token after an
//! interruption. On a standalone server only the own process is woken; others poll.
//!
//! # Layout, and why
//! For an inbox named `inbox`, in the database of the URL:
//!
//! - `inbox_message` has a document per message. Its `_id` is handler and id with a separator that
//!   neither may contain: compared byte for byte and unique on every topology, in whatever state the
//!   message is. That decides *accept once*, in the insert itself. What became of the newest ten attempts
//!   that failed is an array in the document.
//! - `inbox_meta` has the version of the schema and the oldest one whose builds work with it, the counter of sequence numbers, and counts.
//!
//! | operation | requests, whatever the batch | with ordering keys |
//! |---|---|---|
//! | receive | 2: numbers and the time; insert. 3 with duplicates, whose fingerprints are read | 4 or 5 |
//! | claim | 3: candidates; take; read what was won. 2 for one message, 1 if nothing is due; 2 more for a lease under ten seconds | 3 |
//! | settle | 1; 2 if a lease was lost, and on a sharded cluster | 3 or 4 |
//! | extend | 2 | 2 |
//! | begin | 2 or 3 | 4 to 7 |
//!
//! Twice a minute at most, and whenever work reaches the next 10,000 messages, a claim, settle or
//! begin makes one request more, for the counts.
//!
//! A claim takes its candidates by a conditional update that draws a new fencing token in the
//! server; of two workers, one wins each message. A worker that loses many reads more candidates
//! the next time and starts at a random one. Until a claim hands out what it has taken, that is leased for ten
//! seconds at least, so that no other claim takes it meanwhile; a shorter lease begins when it is handed out, and a
//! worker that dies in between keeps its messages for so long. All times come from the server (`$$NOW`), which
//! counts in milliseconds.
//!
//! Which handlers are paused stands in one document of `inbox_meta`, and comes with a claim's candidates,
//! in the same reply. What is due of a handler that the process knows to be paused is not read. A claim
//! that meets another set of paused handlers than the one before looks once more.
//!
//! Ordering keys need two documents to change one after the other. A mark, set in the same write as
//! the change, makes sure that the next claim completes what a crash interrupts, and each claim
//! verifies that it holds the first message of a key before it hands it out. A mark does not
//! expire: the date of a processed message's expiry takes effect when its mark is removed.
//!
//! The requests of one operation share a causal session on replica sets and clusters: each sees at
//! least what those before it have seen and written, also on a member that has just taken over.
//! Requests about known messages, claims, purges and counts name their index.
//!
//! **Counts.** No two documents can be changed together everywhere, so a counter next to the
//! messages would be wrong after the first crash, and one that many writers share would be where
//! they wait. [`statistics`](inbox_api::Operate::statistics) adds up the counts of segments of
//! 10,000 sequence numbers instead. Those in which a message changed its state within the last
//! three minutes are counted, in the index of sequence numbers; the counts of all others are kept
//! in `inbox_meta` until something changes there. So its cost grows with the traffic of three
//! minutes, and with one small document for 10,000 messages, not with history or backlog. Nor does it
//! grow with what was purged: a hundred of these documents become one when no more than 10,000 of
//! their messages are left. A process that has not looked for three minutes, as a command has not, counts
//! also what has changed within the last hour, unless another one has kept that. The first
//! call after a long time without one counts what was touched since; so do not leave it to the day
//! when it is needed. Where many retries lie far apart, the segments that they touch are counted.
//!
//! Writers tell readers: before a process changes the states of messages, it takes the kept counts
//! of their segments away, in one more request every half a minute at most, and again before a transaction is
//! committed that was open for longer. That is exact after
//! crashes and with a TTL index too. What has not changed for three minutes, a process tells by its own
//! clock: the server's may be set, and those of several `mongos` may differ. Two exceptions leave the
//! counts of a segment off by a batch, until anything changes there again. The first is a process that is
//! stopped for more than two minutes between this and the change itself, and is then killed before it
//! notices. The second is a call by a process that has not looked for three minutes, since it goes by the
//! server's clock: when its `mongos` is about an hour ahead of the one that a worker uses, or when the
//! server's clock was set forward by as much during a worker's last change, and the worker ended before it
//! claimed again.
//!
//! # Retention
//! [`purge`](inbox_api::Operate::purge) deletes a thousand messages a request, the longest finished
//! first; the time limit of operations is that of each thousand. The index has the messages of a state by
//! handler, so a purge of one handler's messages reads no
//! others. One of all goes from fifty handlers to the next fifty, by name: of more than fifty, the
//! longest finished of some go before the others'. A call that reaches its limit leaves its place to
//! the next one of the process; one that ends below it has been around, and has left nothing.
//! [`drop_payloads`](inbox_api::Operate::drop_payloads) reads only what has a payload or a result still.
//! With [`expire_processed_after`](MongoOptions::expire_processed_after) the server deletes processed
//! messages by itself, through a TTL index.
//!
//! # Sharding
//! Shard `inbox_message` by handler and `_id`; `inbox_meta` stays as it is. In `mongosh`, for an
//! inbox that is set up and has no messages yet:
//!
//! ```js
//! sh.shardCollection("shop.inbox_message", { handler: 1, _id: 1 });
//! ```
//!
//! If it has some, an index on `{ handler: 1, _id: 1 }` is to be created first. Every request about
//! known messages names both, so it goes to the shards that have them; a claim names its handlers,
//! so it goes to the shards that hold those. `_id` stays unique, since it determines the handler.
//! Listings and statistics ask all shards. Both statistics and ordering keys look messages up from
//! another document (`$lookup`), which servers before 5.1 do not do in a sharded collection: there,
//! the first operation of a store fails as `Unsupported`.
//!
//! The time is that of the `mongos` that a client uses, or of the shard. A lease may end, and a
//! message be due, so much early or late as the clocks of these machines differ; keep them
//! together by NTP, and leases a good deal longer than what is left.
//!
//! Ids that grow (counters, times, UUIDs of version 7) of a few handlers all go to the end of a
//! handler's range, and so to one shard. `{ handler: 1, _id: "hashed" }` spreads them.
//!
//! Claims and settlements are updates of many documents (`multi`). While a chunk is moved to
//! another shard, such an update may be applied to a document never, once or several times, and be
//! counted all the same. A second time does nothing: each is conditional on the token or the time
//! that the first has changed. Nor is one that is missed taken for done: a claim hands out what it
//! then reads as its own, and a settlement looks again, and answers that the lease is lost if the
//! message is still leased. It is then handed out again when the lease ends. The numbers that a
//! replay, a discard or a purge of many answers may be off. From MongoDB 8 on, the cluster
//! parameter `pauseMigrationsDuringMultiUpdates` avoids all of that.
//!
#![doc = include_str!("../SETUP.md")]

mod begin;
mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
mod connection;
mod count_cache;
mod error;
mod extend;
mod layout;
mod locked_messages;
mod operate;
mod options;
mod ordering;
mod patience;
mod paused_handlers;
mod paused_renewals;
mod pipelines;
mod receive;
mod rows;
mod schema;
mod server;
mod server_selection;
mod sessions;
mod settle;
mod store;
mod transaction;
mod transactional;
mod wakeups;

/// The driver, whose clients and sessions this store takes.
pub use mongodb;

pub use options::{MongoOptions, SCHEMES};
pub use store::MongoStore;
pub use transactional::MongoTransaction;
