//! An inbox store in an SQLite file: durable without a server.
//!
//! ```
//! use inbox_api::{HandlerName, Kind, Message, MessageId, Receipt, Schema, StoreExt};
//! use inbox_sqlite::{SqliteOptions, SqliteStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::TempDir::new()?;
//! # let path = folder.path().join("orders.db");
//! let store = SqliteStore::connect(SqliteOptions::new(path)).await?;
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
//! | [`Synchronous`] | process killed | power cut or kernel crash |
//! |---|---|---|
//! | `Full` (default), `Extra` | everything answered with `Ok` | everything answered with `Ok` |
//! | `Normal` | everything answered with `Ok` | the last transactions may be lost; the file stays sound |
//! | `Off` | everything answered with `Ok` | the file may be damaged |
//!
//! A power cut is survived as far as the disk and the file system keep their promise about
//! flushed data; on a Mac, its cache is flushed as well (`fullfsync`). The file is always in WAL mode;
//! connecting switches it, and the mode stays with the file. Let all processes on a file use the same
//! setting: *duplicate* rests on what another one has written.
//!
//! # Backups
//! A copy by `VACUUM INTO` or by SQLite's backup functions goes on where the inbox was, and so do a
//! whole `.dump` that is loaded into a file without the inbox, and a copy of the file together with
//! its `-wal` that was made while nothing wrote. A copy without the `-wal` lacks the latest
//! transactions, which the file does not show. A dump that is loaded into an inbox which was set
//! up already, or without all of its tables, is refused by the next store that opens it: triggers have met
//! its messages, and those that were processed would be pending again.
//!
//! Stop all processes on a file before another one takes its place, and move its `-wal` and `-shm`
//! away with it. A store whose file was deleted, moved or replaced notices within about a second, and
//! all of its operations fail as `Other` until it is connected again; what it did between is in the file
//! that was open.
//!
//! What was received after a backup is gone with the file, and what was processed after it is pending
//! in the backup. Tokens are times, so those of leases after a restore are higher than all before it.
//!
//! # Transactional use
//! The inbox's tables live with the application's own, so the record of a message and the
//! handler's writes commit together. The transaction may come from [`open`] or from a pool of the
//! caller's own on the same file; begin it with `BEGIN IMMEDIATE`. How durable the latter is, that
//! pool's settings say.
//!
//! ```
//! use inbox_api::{HandlerName, Kind, Message, MessageId, Recorded, Schema, Transactional};
//! use inbox_sqlite::{SqliteOptions, SqliteStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::TempDir::new()?;
//! # let path = folder.path().join("orders.db");
//! # let store = SqliteStore::connect(SqliteOptions::new(path)).await?;
//! # store.create().await?;
//! # let message = Message::new(
//! #     HandlerName::new("billing")?, MessageId::new("evt-1")?, Kind::new("order.placed")?, "",
//! # );
//! # let mut transaction = store.open().await?;
//! # sqlx::query("CREATE TABLE invoice (order_number INTEGER)").execute(&mut *transaction).await?;
//! # store.commit(transaction).await?;
//! let mut transaction = store.open().await?;
//! if store.record_in(&mut transaction, &message, None).await? == Recorded::First {
//!     sqlx::query("INSERT INTO invoice (order_number) VALUES (?1)")
//!         .bind(7)
//!         .execute(&mut *transaction)
//!         .await?;
//! }
//! store.commit(transaction).await?;
//! # Ok(())
//! # }
//! ```
//!
//! SQLite has one writer at a time. While a transaction is open, all other writers of the file,
//! this store's own operations included, wait for up to
//! [`operation_timeout`](SqliteOptions::operation_timeout) and then fail as `Unavailable`: keep
//! transactions short, and do not call the store's other writing operations while holding one. Readers never
//! wait.
//!
#![doc = include_str!("../SETUP.md")]
//!
//! # Several processes
//! Any number of processes on one host can use one file. Wake-ups reach all of them: within a
//! process by a signal, across processes by a look at SQLite's change counter every 25
//! milliseconds, as long as there are subscriptions. They may come without cause.
//!
//! Time is the host's clock, which all processes on the file share.
//!
//! # Upgrades
//! `migrate` brings an inbox to the newest version of its tables and to the newest text of its
//! triggers. Processes of an earlier release go on next to newer ones, as long as the version says
//! that they may (`inbox_meta.works_from`), and can be started again; otherwise they are refused as
//! `SchemaVersion`.
//!
//! **Not on a network file system**: WAL mode needs shared memory and locks that work, and a file
//! on one would be damaged sooner or later.
//!
//! # Layout, and why
//! For an inbox named `inbox`:
//!
//! - `inbox_message` holds what was received and hardly ever changes; `inbox_state` holds where
//!   it stands, in a narrow row of the same `seq`. Claiming and settling rewrite only the second.
//! - `inbox_state.claimable` marks the rows that a claim may look at: those without an ordering
//!   key, and the head of each ordering key. A partial index over them, in order of due times and
//!   ends of leases, is all that a claim reads; a blocked message is not in it. A unique partial
//!   index makes two heads of one key impossible.
//! - A [run](inbox_api::Store::claim) is read from an index of the open messages of each ordering key.
//!   Those behind its first are leased and not `claimable`; an index of them alone, empty where nobody
//!   asks for runs, gives the next one when the first is settled.
//! - `inbox_count` holds for each handler the number of unfinished messages and of those in each final
//!   state, so that statistics count only leases, and dead letters that hold up an ordering key, each in
//!   its index; and a claim, which finishes nothing, does not touch it.
//! - `inbox_paused` names the handlers of which nothing is claimed.
//! - `inbox_meta` marks the tables as an inbox's, with the version of their schema, the oldest one that
//!   builds may know to work with it, and the revision of its triggers.
//!
//! Triggers keep the state row, the counts and the heads of ordering keys. They are what makes
//! receive, settle, extend and purge one statement each, committed by itself: the alternative,
//! further statements, takes a transaction around them and a trip to SQLite's thread for each.
//! They also keep every writer right, including one on the caller's own connection.
//!
//! A batch goes to SQLite as one JSON text and, for payloads and results, one blob that the
//! statement cuts up. So there is one statement text whatever the size of the batch.
//!
//! A commit costs several times what one message does. So calls of `begin`, `receive` and `settle` for a
//! few messages each share a transaction with those that are made at the same time, and each is answered
//! after the commit. One that fails is run again by itself and harms no other.
//!
//! [`open`]: inbox_api::Transactional::open

mod batch;
mod begin;
mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
mod connection;
mod error;
mod extend;
mod file_identity;
mod operate;
mod options;
mod receive;
mod rows;
mod schema;
mod schema_objects;
mod settle;
mod shared_script;
mod shared_transaction;
mod statements;
mod store;
mod transactional;
mod version;
mod wakeups;
mod writer_turns;

/// The driver, whose transactions [`Transactional`](inbox_api::Transactional) use takes.
pub use sqlx;

pub use options::{SCHEMES, SqliteOptions, Synchronous};
pub use store::SqliteStore;
