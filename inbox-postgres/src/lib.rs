//! An inbox store in PostgreSQL 15 to 18.
//!
//! ```no_run
//! use inbox_api::{HandlerName, Kind, Message, MessageId, Receipt, Schema, StoreExt};
//! use inbox_postgres::PostgresStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = PostgresStore::connect_url("postgres://app@localhost/shop").await?;
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
//! An application that has a pool hands it in: [`PostgresStore::with_pool`].
//!
//! # What survives what
//! What PostgreSQL's commits survive. With `fsync` and `synchronous_commit` on, as they are by
//! default, everything answered with `Ok` survives a crash of the server and a power cut. With
//! `synchronous_commit = off` a crash of the server may lose the last fraction of a second. After
//! a fail-over to an asynchronous standby, whatever had not reached it is lost;
//! `synchronous_standby_names` prevents that.
//!
//! What rests on the writes of others, such as *duplicate*, waits for the disk and the standbys as those did. So that
//! there is something to wait for, a logical message with the prefix `inbox` and no content is written; what captures
//! changes from the log may show it.
//!
//! # Transactional use
//! The inbox's tables live with the application's own, so the record of a message and the
//! handler's writes commit together. The transaction may come from [`open`] or from a pool of the
//! caller's own on the same database.
//!
//! ```no_run
//! use inbox_api::{HandlerName, Kind, Message, MessageId, Recorded, Transactional};
//! use inbox_postgres::PostgresStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = PostgresStore::connect_url("postgres://app@localhost/shop").await?;
//! # let message = Message::new(
//! #     HandlerName::new("billing")?, MessageId::new("evt-1")?, Kind::new("order.placed")?, "",
//! # );
//! let mut transaction = store.open().await?;
//! if store.record_in(&mut transaction, &message, None).await? == Recorded::First {
//!     sqlx::query("INSERT INTO invoice (order_number) VALUES ($1)")
//!         .bind(7)
//!         .execute(&mut *transaction)
//!         .await?;
//! }
//! store.commit(transaction).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`open`] begins at read committed. Of two transactions that record one key, the second waits for
//! the first; then it sees the duplicate and stays usable. In transactions of the caller's own at
//! stricter levels, whatever has changed since their first statement is a `Conflict`, never a wrong
//! answer.
//!
//! [`commit`](inbox_api::Transactional::commit) answers `Ok` only if the transaction is the one that
//! was opened and no statement in it has failed, which PostgreSQL's own `COMMIT` does not say. The
//! question goes along with the commit: it costs no round trip.
//!
//! **Cancellation.** No future of this crate leaves a transaction open when it is dropped. The driver's own
//! `Pool::begin` may (in sqlx 0.9.0); [`open`] closes its connection then. Do not put `Pool::begin` under a
//! time-out.
//!
//! # Time limits
//! Every request ends within [`PostgresOptions::operation_timeout`], also on a connection that has
//! gone silent, as behind a firewall that has forgotten it: the operation fails as `Unavailable`, its
//! connection is closed (but for one with a transaction of the caller's, who has to roll back), and the
//! next one uses another. Most operations are one request. Each slice of a purge is one, and each
//! 256 MiB of a batch; a claim has another before it now and then. The connection of
//! [`subscribe`](inbox_api::Store::subscribe) is asked for a sign of life when it has been quiet for
//! so long (at most 30 seconds), and replaced if none comes; one wake-up follows.
//!
//! A message that a caller's open transaction holds is waited for by its settlement. In a batch the
//! others wait for a second at most (a quarter of the limit if that is less) and are settled before
//! it. Claims and renewals of leases wait for none.
//!
//! The server goes on with what it was asked for until it looks at the connection. An operation
//! that waits for a lock, for instance, keeps waiting there, and a transaction on a connection that
//! went silent keeps its locks. So that neither lasts, let the server look, for the role that the
//! application uses:
//!
//! ```sql
//! ALTER ROLE app SET client_connection_check_interval = '10s';
//! ALTER ROLE app SET tcp_keepalives_idle = '30s';
//! ALTER ROLE app SET tcp_user_timeout = '30s';
//! ALTER ROLE app SET idle_in_transaction_session_timeout = '5min';
//! ```
//!
//! # Errors
//! By SQLSTATE:
//!
//! | what happened | kind | effect |
//! |---|---|---|
//! | the server cannot be reached, is starting or ending, is out of connections, disk or room for notifications | `Unavailable` | none, or unknown when the connection was lost under a statement |
//! | the server ended the session for an error of its own (`FATAL`, XX000), such as a new one while its disk is full | `Unavailable` | unknown |
//! | a pooler gave up: nothing behind it, no free connection in time, a setting that it refuses (08P01) | `Unavailable` | unknown |
//! | no connection of the pool became free in time | `Unavailable` | none |
//! | the operation took longer than its time limit | `Unavailable` | unknown |
//! | read-only: a standby after a fail-over (25006) | `Unavailable` | none |
//! | serialization failure, deadlock, lock time-out (40001, 40P01, 55P03) | `Conflict` | none |
//! | a permission is missing, the credentials were refused (42501, class 28) | `Denied` | none |
//! | no table or function of the inbox (42P01, 42883, 3F000), or one that is removed under a statement (XX000), no such database | `SchemaMissing` | none |
//! | a value or a request that the server never takes (classes 22 and 54) | `Invalid` | none |
//!
//! Where a server only reads, as what was the primary may do after a fail-over, connections that were made until then
//! are closed, in use or not, and the one of subscriptions is made again: the next call connects to whatever is behind
//! the address by now. In a pool of the application's it is those that are idle, the one that failed, and a
//! transaction's when it is given to [`roll_back`](inbox_api::Transactional::roll_back), which asks the server. So
//! does [`commit`](inbox_api::Transactional::commit) if a statement has failed: the first write may be the caller's
//! own. A transaction that is only dropped is not asked about.
//!
//! A pooler's words are looked at in one case: PgBouncer's refusal of transactions in statement
//! mode has the code of its outages, and is `Unsupported`.
//!
//! # Isolation levels
//! Each operation needs read committed, to see what was committed before it got its locks. Where
//! `default_transaction_isolation` of the database, the role or the pool says something else, each
//! operation is put into a transaction that states its level. That takes three round trips instead
//! of one; `options=-c default_transaction_isolation=read\ committed` in the URL (percent-encoded)
//! saves them where no pooler stands between.
//!
//! # Poolers
//! Nothing depends on the state of a session, so a pooler in transaction mode works. PgBouncer
//! from 1.21 keeps track of prepared statements (`max_prepared_statements`); for older ones turn
//! them off ([`PostgresOptions::prepared_statements`]), at the price of four round trips an
//! operation. `LISTEN` does not pass through any pooler in transaction mode: turn
//! [`notifications`](PostgresOptions::notifications) off there, or let workers connect directly.
//! In statement mode nobody can begin a transaction, so setting up and transactional use fail as
//! `Unsupported`, and so does everything else when prepared statements are turned off.
//!
#![doc = include_str!("../SETUP.md")]
//!
//! # Looking with SQL
//! The view `{inbox}_overview` shows each message with its state, attempts, times, worker and last
//! error in one row:
//!
//! ```sql
//! SELECT id, state, attempts_started, due_at, last_error
//! FROM inbox_overview WHERE handler = 'billing' AND state = 'dead';
//! ```
//!
//! Never change the tables by hand: counts and ordering keys would no longer be right. `discard`,
//! `replay` and `purge` are there for that.
//!
//! # Layout, and why
//! For an inbox named `inbox`:
//!
//! - `inbox_message` holds what was received. A row is written once and never changed (unless
//!   payloads are dropped, or payload and headers edited). Its unique index on handler and id, compared
//!   byte for byte, is what makes *accept once* atomic, in whatever state the first copy is. The
//!   fingerprints of keys are there, and read only for duplicates.
//! - `inbox_work` holds a narrow row for each message that is not finished, and for dead letters.
//!   Claiming updates it; settling as processed deletes it.
//! - `inbox_done` holds a narrow row for each finished message and is only ever added to. Retention
//!   finds the longest finished of a handler by an index that has those without payload and result
//!   apart, so that neither one handler's history nor what was dropped before costs another's anything.
//!   Of all handlers it looks at each one's.
//! - What became of a message's newest ten attempts that failed is in its row of either (`history`). Only
//!   such attempts write it, and no claim reads it.
//! - `inbox_ordering` has a row for each ordering key with unfinished messages. What adds or
//!   finishes one of them locks that row first; then the earliest unfinished message, and no other
//!   one, is marked claimable. Messages that wait for their key are in no index that a claim reads.
//!   Claims take no such lock and never wait. Of a run that is leased, the first message is claimable
//!   (once the lease has run out) and the others are marked as behind it, until their turn comes.
//! - `inbox_tally` holds counts: each operation adds one row per handler, and now and then the rows
//!   are summed up. A counter that is updated in place would make all writers wait for each other
//!   until their commits are on disk.
//! - `inbox_paused` has a row for each handler that is paused. A claim looks there first.
//! - `inbox_meta` marks the tables as an inbox's, with the version of their schema, which versions'
//!   builds work with it, and the revision of the functions.
//!
//! Of the layouts that were measured, one table writes a message of 1 KiB three times and settles at
//! less than half the rate; a state table that is kept grows with every message ever retained, and has
//! its dead rows spread over all of it. Here they are all in `inbox_work`, which is as small as the
//! backlog, however long the history. `docs/decisions/split-tables.md` has the figures.
//!
//! Each operation is a function in the database (`inbox_receive`, `inbox_claim`, …), called once
//! for a whole batch. It is one round trip and one transaction, works through poolers, sees what
//! was committed before it got its locks, and pins its plans: a plan that was made while a table was
//! empty must not read all of it once it has grown. All times come from `inbox_now()`, the server's
//! clock.
//!
//! While any transaction holds a snapshot (a dump, a report, a replication slot), vacuum may not
//! remove the index entries of what was processed since. Claims do not step over them: each store
//! asks now and then, in a round trip before a claim, what can be claimed first, and draws a transaction
//! number for it. Once all transactions with lower numbers are over, its claims start there. Four things
//! are not covered. What counts messages grows by a row or two with each operation, and those that were
//! summed up cannot be removed meanwhile: the statistics, one operation in 500, which sums up, the end of a purge
//! and one that is not for a single handler read all of them. A transaction that writes, wherever on the server, keeps the start from moving on
//! for as long as it is open. Messages that become claimable after they were due (the next ones of
//! ordering keys, released ones) are in their own index, which is read from its front. And settling, or discarding, a
//! message with an ordering key looks for the next one past all that its key has had since: of a key that had 5,000
//! messages meanwhile, it took 23 ms instead of 0.8 ms. Other keys cost nothing more. What
//! becomes claimable earlier than a clock has said before, because it was set back, is found by the
//! first claim of its handler ten seconds later, or twenty times as long as it takes to step over all
//! entries.
//!
//! Locks are taken in one order everywhere (keys of messages, then ordering keys, then rows,
//! each sorted), so that the store's operations do not deadlock with each other.
//!
//! # Retention
//! [`purge`](inbox_api::Operate::purge) deletes 100 messages a statement, the longest
//! finished first (of twenty handlers at a time, where it is for all: those whose messages finished longest ago come
//! first), passes over rows that others have locked, and rests after each statement for as long as that
//! took; [`drop_payloads`](inbox_api::Operate::drop_payloads) does the same. Nothing waits for it, but each
//! deleted row is a dead row of two tables and their indexes, which vacuum has to go after.
//!
//! # Partitions
//! With [`PostgresOptions::partitions`], set at set-up, messages and what is known of finished ones
//! are in range partitions, each of which holds the messages that were received in one period, and
//! a partition whose messages are all old enough is dropped as a table. What it takes:
//!
//! - **Duplicates are refused across partitions.** PostgreSQL has no unique index over several
//!   partitions, so the keys are in their own table that is not partitioned,
//!   `inbox_key`, and are deleted only after the messages. While a partition is being dropped a
//!   redelivery is still a duplicate, until its key is deleted, a thousand keys a statement; the
//!   dropped table is the list of what to delete. It costs a second row per received message.
//! - **Partitions are ranges of numbers, not of times**, because every statement knows its
//!   messages' numbers and so has to do with one partition each. The sequence of the numbers is
//!   moved on to the next partition when the current one's period is over.
//! - **Purging keeps them up**: each purge makes the next partition ahead of its time, moves
//!   on when it is time, and drops what can be dropped. There are no further jobs to set up. A
//!   partition is attached and dropped under a lock that waits 50 ms at most; when it cannot take
//!   it, because a dump is reading perhaps, the next purge tries again. If nobody purges, the
//!   current partition goes on growing, and nothing else happens.
//! - **One handler's retention** drops partitions that hold nothing of others. In those that do, its
//!   messages are deleted row by row, like stragglers.
//! - **Stragglers.** One pending or dead message holds its whole partition up. Finished messages
//!   that have been overdue for longer than [`Partitions::patience`] are deleted row by row, so that
//!   retention is kept whatever is held up.
//! - **Rights.** Making and dropping tables takes the role that owns them, so purging does. All other
//!   operations need, in addition to the grants above, `SELECT, INSERT, DELETE` on `inbox_key` and `SELECT`
//!   on `inbox_partition`.
//!
//! [`purge_archived`](inbox_api::Operate::purge_archived) deletes rows and then drops partitions that
//! are empty. Whether there are partitions is decided at set-up and never changed: for an inbox that
//! exists, set another one up, receive there, and let the old one run dry (keep it for
//! as long as copies may still arrive that it has to refuse).
//!
//! [`open`]: inbox_api::Transactional::open

mod arguments;
mod begin;
mod chunks;
mod claim;
mod claim_cursor;
#[cfg(feature = "conformance")]
pub mod conformance;
mod connection;
mod connection_guard;
mod ddl;
mod error;
mod extend;
mod names;
mod operate;
mod options;
mod partitions;
mod payload;
mod read_only;
mod receive;
mod rows;
mod schema;
mod settle;
mod shape;
mod sqlstate;
mod statements;
mod store;
mod time;
mod transactional;
mod versions;
mod wakeups;

/// The driver, whose pools and transactions this store takes.
pub use sqlx;

pub use names::SchemaName;
pub use options::{Partitions, PostgresOptions, SCHEMES};
pub use payload::PayloadType;
pub use store::PostgresStore;
