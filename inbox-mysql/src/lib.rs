//! An inbox store in MySQL (8.0.14 or later) or MariaDB (10.6 or later), alone or in a Galera
//! cluster.
//!
//! ```no_run
//! use inbox_api::{HandlerName, Kind, Message, MessageId, Receipt, Schema, StoreExt};
//! use inbox_mysql::{MySqlOptions, MySqlStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = MySqlOptions::from_url("mysql://app:secret@db.example/shop")?;
//! let store = MySqlStore::connect(options).await?;
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
//! # What survives what
//! What the server's commits survive: a crash of the server in any case, a power cut with
//! `innodb_flush_log_at_trx_commit=1` (the default) and, where there is a binary log,
//! `sync_binlog=1`. With asynchronous replication a failover may lose what was answered last.
//!
//! With semi-synchronous replication a fail-over loses nothing that was answered, as long as a replica answers in time
//! (the servers go on without it otherwise). Set the wait point to `AFTER_SYNC`
//! (`rpl_semi_sync_master_wait_point` on MariaDB, `rpl_semi_sync_source_wait_point` on MySQL, where it is the default).
//! With `AFTER_COMMIT`, MariaDB's default, others see a commit before a replica has it. An answer that rests on it (a
//! duplicate, a repeated settlement, busy) then has a commit of its own on MariaDB, which waits for a replica too. On
//! MySQL it has none, and may be lost with what it rests on.
//!
//! # Transactional use
//! The inbox's tables live with the application's own, so the record of a message and the
//! handler's writes commit together. The transaction may come from [`open`] or from the
//! caller's pool on the same database.
//!
//! ```no_run
//! use inbox_api::{Message, Recorded, Transactional};
//! use inbox_mysql::MySqlStore;
//!
//! # async fn example(store: MySqlStore, message: Message) -> Result<(), Box<dyn std::error::Error>> {
//! let mut transaction = store.open().await?;
//! if store.record_in(&mut transaction, &message, None).await? == Recorded::First {
//!     sqlx::query("INSERT INTO invoice (order_number) VALUES (?)")
//!         .bind(7)
//!         .execute(&mut *transaction)
//!         .await?;
//! }
//! store.commit(transaction).await?;
//! # Ok(())
//! # }
//! ```
//!
#![doc = include_str!("../SETUP.md")]
//!
//! # Settings of the server and of sessions
//! Every operation is its own transaction in `READ COMMITTED`, whatever the defaults, and
//! ends with an explicit `COMMIT AND NO CHAIN`, whatever `autocommit` and `completion_type` say;
//! looks at the schema, too. The store's own connections have `autocommit=1` and
//! `completion_type=NO_CHAIN`, which also goes for the transactions that they open, and `sql_safe_updates=0` and
//! `sql_big_selects=1`, without which an operation on another pool's session may fail as `Unsupported`.
//! The statements mean the same in every `sql_mode`, `time_zone` and connection character set of
//! utf8mb4. With a binary log, `binlog_format` has to be `ROW` or `MIXED`: the servers refuse
//! `READ COMMITTED` with `STATEMENT`.
//!
//! A message has to fit into `max_allowed_packet`; larger batches are split and stay one
//! transaction, and a message that does not fit by itself is refused, as the answer for that
//! message.
//!
//! Deadlocks (1213), lock time-outs (1205) and certification failures are tried again a dozen times, as far as
//! there is time for it, and then fail as `Conflict`, with nothing changed. They never look like duplicates:
//! whether a message is new is read from the mark of the rows that are there after the insert. A number that is
//! in use already is no duplicate either, but an error, behind which another one is drawn.
//!
//! # When a server does not answer
//! An operation that takes longer than its limit
//! ([`operation_timeout`](MySqlOptions::operation_timeout)) fails as `Unavailable`. Its connection is
//! closed, and so are those that the pool holds ready: where one is silent, others may be. A
//! connection that was idle for a second is looked at before it is used, and replaced if it does not
//! answer within a quarter of the limit, or five seconds.
//!
//! Where a server answers that it takes no writes (`read_only`, or a node that is cut off from its cluster), as what
//! was the primary does after a fail-over, the operation fails as `Unavailable`, and the connections that were made
//! until then are closed: the next call connects again, to whatever is behind the address by now. A transaction's
//! connection is closed at its end. What ProxySQL and MySQL Router answer themselves, when they cannot
//! reach a server or have lost it, is `Unavailable`, too.
//!
//! The server waits for a lock (`innodb_lock_wait_timeout`) for about a second less, in whole seconds and
//! for one at least, so that it does not go on waiting for an operation that has ended. On the store's
//! own connections that holds for the caller's statements in a transaction, too. Sessions of a caller's
//! pool have their own limit back behind each operation, and within the caller's transactions.
//!
//! A message that a caller's open transaction holds is waited for by its settlement. In a batch the
//! others wait for a second at most and are settled before it, unless the limit is under two seconds and
//! a half. Claims and renewals of leases wait for none.
//!
//! The server keeps what a transaction has locked until it notices that the client is gone: behind a connection
//! that went silent for good, hours later by default, and until then a copy of a message that was received in
//! it meets `Conflict`. Let the server end such a transaction, with more time than any of yours is idle between
//! two statements:
//!
//! ```sql
//! SET GLOBAL idle_transaction_timeout = 300; -- MariaDB
//! SET GLOBAL wait_timeout = 900;             -- MySQL, of which the pool's idle connections have to be shorter
//! ```
//!
//! A transaction has its connection to itself until it ends. On the store's own connections its end,
//! or its being dropped, gives a silent one up after the limit. A connection of the caller's pool is the
//! driver's to give up, which waits for as long as the network does; what the pool holds ready is
//! closed there, too.
//!
//! # Galera
//! Clients may use all nodes at the same time. Certification stands in for what locks do on one
//! server:
//! - Two transactions on two nodes that change the same row, or insert the same key, conflict at
//!   the commit; one is rolled back as a whole and done again. Everything that the store decides,
//!   it decides by changing a row: ordering keys are locked by changing theirs.
//! - `SKIP LOCKED` sees the locks of its own node only. Claims of one handler on several nodes
//!   take the same messages, and all but one are rolled back and look again. That is correct, but
//!   costs throughput: let the processors of one handler use one node.
//! - What an open transaction holds is held on its own node, too. A claim on another node takes the
//!   message all the same, and the transaction is rolled back: one of them has done the work.
//! - The store's own connections have `wsrep_sync_wait=1`, so that what one node has answered is
//!   seen on the others. On a pool of the caller's it is set for the beginning of each transaction
//!   and set back. In a transaction of your own, set it yourself where that matters.
//! - An operation is several packets there. When another node's transaction makes the server roll one
//!   back between two statements of one packet, the rest of that packet would run without a
//!   transaction; so statements travel in compound statements (`BEGIN NOT ATOMIC`), which fail as a
//!   whole, and each query and the commit by itself.
//! - `GET_LOCK` is one node's only, so set-up does without it there: its statements are harmless
//!   when repeated, and the cluster runs them in one order.
//! - Every table has a primary key, and nothing depends on gapless numbers.
//!
//! # Layout, and why
//! For an inbox named `inbox`:
//!
//! - `inbox_message` holds what was received and hardly ever changes. Its `AUTO_INCREMENT` numbers the messages
//!   as they are inserted, which fills the table page by page; a counter elsewhere would not come along with a
//!   dump of its rows. Two receives of the same keys in other orders may meet in a deadlock; the one that the
//!   server rolls back is done again. What a receive has stored it knows by a mark that is drawn by lot for
//!   each batch: numbers only say where to look, as others' may be in between (a cluster, triggers).
//! - `inbox_work` has a narrow row for each message that is pending or leased (with room for a
//!   worker's name from the start, so that claims do not make pages split), `inbox_dead` for
//!   each dead letter, `inbox_done` for each one that is processed or discarded. The latter two are indexed
//!   by handler, and by whether there is content to drop, so that the retention of one handler reads nothing
//!   of the others'. So nothing that
//!   is left to do is looked for in the history. Three tables, because these servers have no
//!   partial indexes. What became of a message's newest ten attempts that failed is in its row (`history`),
//!   a line of JSON each: only such attempts write it, and no claim reads it.
//! - `inbox_open` lists the open messages of each ordering key; `inbox_ordering` has a row for
//!   each such key, which names its head and is its lock. Messages without an ordering key do not
//!   touch either. `inbox_run` lists the messages of keys of which several are leased at once, as long as they are:
//!   of those, the earliest can be claimed when its lease runs out, and the others follow it.
//! - `inbox_tally` is what statistics add up. Every operation inserts rows and none changes one;
//!   one of two hundred looks whether there are more than two for each handler and a hundred in addition, and then sums
//!   them up. What takes more than one short transaction is done in the background.
//! - `inbox_paused` names the handlers of which nothing is claimed. A claim looks there by key, in the
//!   statement that selects.
//! - `inbox_meta` marks the tables as an inbox's, with the version of their schema and the
//!   oldest version whose builds work with it.
//!
//! A claim of [runs](inbox_api::Store::claim) waits for no ordering key that another transaction has locked: the
//! first message comes alone then. In a cluster, what is locked on another node is not seen, and one of both is
//! rolled back. A caller's transaction in `REPEATABLE READ` that settles a message of a run locks the gap
//! behind it in `inbox_run`, so that such claims may wait for its end. Their leases begin behind that wait.
//!
//! A claim takes messages from the front of an index and so leaves removed entries there, which
//! InnoDB clears away later: MariaDB about once a second. A claim would have to step over them, at
//! 20,000 messages a second for longer than all the rest of it takes. So a claim of a hundred
//! messages or more that follows a full one starts where that one ended, for a quarter of a
//! second; then one looks from the very front again, for what came back or was committed late.
//!
//! An operation is one packet of several statements, from `SET TRANSACTION` to `COMMIT`: one
//! round trip, and no lock that waits for the client's next word. Batches of fifty messages or more
//! are received in a few packets more, with prepared statements whose values are bound: reading
//! payloads out of a text took these servers longer than the round trips do. Stored procedures would do that
//! too, but need privileges, so only what is done to one message at a time uses them, where they are there; separate
//! statements cost a round trip each, and leave locks behind when the client disappears between
//! two of them. Lists travel as JSON in session variables, which are set and read in the same
//! packet. Dropping a future closes its connection: the server then finishes the packet or rolls
//! it back.
//!
//! Times are microseconds since 1970 in `BIGINT` columns; to read them, use
//! `FROM_UNIXTIME(accepted_at / 1000000)`. Texts are `VARBINARY`, which both servers compare byte
//! for byte, trailing spaces included; no collation does on both.
//!
//! There is no partitioning: both servers want the partitioning column in every unique key, and
//! then a key would be unique within its partition only.
//!
//! Neither server has notifications, so wake-ups reach the workers of the same process only;
//! others find work by polling.
//!
//! [`open`]: inbox_api::Transactional::open

mod begin;
mod claim;
mod claim_cursor;
mod claim_runs;
mod compact_counters;
#[cfg(feature = "conformance")]
pub mod conformance;
mod connection;
mod connection_pool;
mod consistency;
mod context;
mod error;
mod exists_query;
mod extend;
mod first_copies;
mod installed_schema;
mod json;
mod list_variables;
mod lookup;
mod multi_statement;
mod operate;
mod options;
mod ordering;
mod procedures;
mod receive;
mod record;
mod rows;
mod schema;
mod server;
mod server_errors;
mod settle;
mod settle_one;
mod statement;
mod statements;
mod store;
mod transaction_step;
mod transactional;
mod wakeups;

/// The driver, whose transactions [`Transactional`](inbox_api::Transactional) use takes.
pub use sqlx;

pub use options::{MySqlOptions, PayloadType, SCHEMES};
pub use store::MySqlStore;
