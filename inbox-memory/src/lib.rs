//! An inbox store in memory: the reference for all others, and for tests.
//!
//! [`MemoryStore`] keeps every promise of the inbox contract but durability: **nothing survives
//! the end of the process.** Use it in tests, in examples, and where a redelivery after a restart
//! does no harm. Clones share one inbox.
//!
//! ```
//! use std::time::Duration;
//! use inbox_api::{HandlerName, Kind, Message, MessageId, Outcome, Receipt, StoreExt, WorkerName};
//! use inbox_memory::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let billing = HandlerName::new("billing")?;
//! let message = Message::new(
//!     billing.clone(),
//!     MessageId::new("evt-1")?,
//!     Kind::new("order.placed")?,
//!     "{}",
//! );
//! assert_eq!(store.receive_one(&message).await?, Receipt::Accepted);
//! assert_eq!(store.receive_one(&message).await?, Receipt::Duplicate { differs: false });
//!
//! let worker = WorkerName::new("worker-1")?;
//! let claims = store.claim_for(&billing, 10, Duration::from_secs(30), &worker).await?;
//! for leased in claims.leased {
//!     let _ = store
//!         .settle_one(&leased.lease, Outcome::Processed { result: None })
//!         .await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! Each handler has its own queue behind one lock: its messages by sequence number, their
//! ids, and ordered indexes from which claims, purges and statistics read their answers without
//! scanning. A call that concerns several handlers takes their locks in order of name and holds
//! them together, so a receive stores its whole batch or nothing. Locks are held for work in
//! memory only, never across an await.
//!
//! Payloads and results are kept as the [`Bytes`](inbox_api::Bytes) that were handed in, not as
//! copies: a slice keeps the whole buffer that it belongs to alive.

mod begin;
mod claim;
mod entry;
mod extend;
mod index;
mod operate;
mod options;
mod queue;
mod queues;
mod receive;
mod rows;
mod schema;
mod settle;
mod store;
mod wakeups;

pub use options::{MemoryOptions, SCHEMES};
pub use store::MemoryStore;
