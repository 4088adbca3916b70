//! The conformance suite that every inbox store passes, ours or yours.
//!
//! The contract of an inbox is the documentation of [`inbox_api`]; each rule of it is a case
//! here ([`CASES`]). Add this crate as a dev-dependency, say how to get a fresh inbox of your
//! store, and one line makes a test of every case. In `Cargo.toml`:
//!
//! ```toml
//! [dependencies]
//! async-trait = "0.1"
//! inbox-api = "0.1"
//!
//! [dev-dependencies]
//! conformance-tests = "0.1"
//! tempfile = "3" # for a store that keeps files
//! ```
//!
//! The whole of `tests/conformance.rs`, for a store that can do nearly everything; [`Ready`] shows
//! the list of what is lacking to start with:
//!
//! ```
//! use conformance_tests::{Fresh, Need, Ready};
//! use inbox_api::Clock;
//! use inbox_memory::{MemoryOptions, MemoryStore};
//!
//! fn my_store() -> Ready {
//!     Ready::new("my store", |settings| async move {
//!         let clock = Clock::system();
//!         let mut options = MemoryOptions::new().clock(clock.clone());
//!         if let Some(limit) = settings.payload_limit {
//!             options = options.payload_limit(limit);
//!         }
//!         Ok(Fresh::new(MemoryStore::with(options)).with_clock(clock))
//!     })
//!     .lacks([
//!         Need::DroppedPayloads,
//!         Need::OperationTimeout,
//!         Need::SecondConnection,
//!         Need::Transactions,
//!         Need::WakeupsAcrossProcesses,
//!     ])
//! }
//!
//! conformance_tests::conformance!(my_store());
//! # fn main() {
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
//! # let runtime = runtime.unwrap_or_else(|error| panic!("{error}"));
//! # let report = runtime.block_on(conformance_tests::run(std::sync::Arc::new(my_store()), ""));
//! # assert!(report.is_conformant(), "{report}");
//! # }
//! ```
//!
//! [`Ready`] is enough to begin with. A test that cannot be checked fails, and says which [`Need`] to
//! declare, or which ability to offer. For all abilities, implement [`Harness`] and [`Fixture`].
//!
//! [`main`] makes a program of its own instead, which lists, filters and reports as text, JSON or
//! JUnit XML; [`run`] is for programs that do more.
//!
//! # Abilities
//! Only [`Harness::fresh`] and [`Fixture::inbox`] are required. Every other method is an ability:
//! something that the suite may do to the store, which lets more cases be checked.
//!
//! | ability | lets be checked |
//! |---|---|
//! | [`Fixture::advance_clock`] | time, ages and lag; every case that waits becomes quick; the model |
//! | [`Fixture::second_connection`] | several processes on one inbox; half of the tasks in the concurrent cases use it |
//! | [`Harness::schema_variant`] | setting up where there is nothing, less, something older, newer or foreign |
//! | [`Fixture::keep`] | makes the inboxes that later builds have to read, as [`SchemaVariant::Kept`] |
//! | [`Fixture::check_invariants`] | after every case, that what the store keeps in several places agrees |
//! | [`Fixture::corrupt`] | rows that cannot be read |
//! | [`ServerControl::begin_outage`] | outages that must not pass for duplicates |
//! | [`ServerControl::begin_outage_after`] | that an operation which stops between two writes is done or not done |
//! | [`Fixture::silence`] | that every call ends when connections go silent |
//! | [`ServerControl::restart`] | durability across a restart or a kill |
//! | [`ServerControl::lose_power`] | durability across a loss of power |
//! | [`Fixture::transactions`] | recording and settling in the caller's transaction, through [`Transactions`]; with [`BusinessWrites`], that the handler's effects commit with the record, whatever [`Mishap`] befalls the transaction |
//!
//! # Environments
//! A store on a server meets servers that are set up in other ways than the one it was written on. The
//! suite runs on each, as a module of its own:
//!
//! ```text
//! mod behind_a_pooler {
//!     conformance_tests::conformance!(crate::my_store(Behind::Pooler));
//! }
//! ```
//!
//! The stores of this project run behind a pooler in transaction mode, under each default isolation
//! level, with a collation that is not that of bytes, as a cluster, with node clocks apart, on the oldest
//! and the newest version of their servers, and next to an older build of their tables. Of dumps that are
//! restored and of fail-overs, each store has tests of its own.
//!
//! A crash run belongs on a real disk: in memory (tmpfs), two writes where one is meant are too close
//! together for a kill to come between.
//!
//! # Nothing is skipped silently
//! A case that needs what the harness does not offer, or what the store's
//! [`Capabilities`](inbox_api::Capabilities) say it cannot do, is *not checked*: neither passed
//! nor failed. A test runner knows only those two, so
//! - the harness declares what is known to be lacking ([`Harness::expected_not_checked`]), where
//!   a reader of the test sees it;
//! - a case that is not checked for a reason that was declared prints `NOT CHECKED` and why on
//!   standard error, also when the runner captures the output of tests that pass;
//! - one that is not checked for any other reason fails.
//!
//! # Reading the report
//! [`Report`] shows counts by group, then each failed case with its rule, what was expected and
//! what was seen, then what was not checked, by what is lacking. [`Report::is_conformant`] is the
//! verdict, or [`Report::is_clean`] of a run with a filter; [`Report::to_json`] and
//! [`Report::to_junit`] have every case. A case that panics or hangs has failed.
//!
//! # The model
//! The case `model::random_sequences_agree_with_the_memory_store` draws random sequences of
//! operations by several actors (with stale leases among them), runs them on the store and on the
//! memory store side by side, and compares every answer, every record and the statistics after
//! each step. Some sequences are about two messages, where operations meet often, others about
//! twelve. A sequence whose answers differ is shrunk and printed together with its seed. Half of
//! the sequences are the same in every run, so that what has failed fails again; after a minute no
//! more are drawn. [`Options`] say otherwise, and so does the environment:
//!
//! | environment variable | meaning |
//! |---|---|
//! | `INBOX_CONFORMANCE_SEED` | run the one sequence of this seed, as the failure printed it |
//! | `INBOX_CONFORMANCE_SEQUENCES` | how many sequences to draw, instead of 40 |
//!
//! ```text
//! INBOX_CONFORMANCE_SEED=1234 cargo test --test conformance model::
//! ```
//!
//! # Cost
//! Two cases compare the time of each operation with a history and a backlog of 1,000 messages and of
//! 100,000 ([`SCALE`]), and name what takes more than five times as long. They take minutes, so they
//! are run where they are asked for: by the option `--scale 100000` of a report program, by
//! [`Options::scale`], or by their name through [`test`](fn@test).
//!
//! # Crashes
//! The module `crash` (on Unix) makes a test program of its own, which kills worker processes at
//! every point of their work and checks the history of what they did. Its `proxy` loses replies
//! and cuts connections between a store and its server.

mod cancel;
mod cases;
mod check;
#[cfg(unix)]
pub mod crash;
mod harness;
mod kept;
mod memory;
mod model;
mod needs;
mod options;
mod program;
mod ready;
mod registry;
mod report;
mod run;
pub mod samples;
mod server;
mod test_inbox;
mod time_text;
mod times;
mod transactions;
mod watched;

pub use harness::{Fixture, Harness};
pub use memory::memory_harness;
pub use needs::{
    BoxError, Corruption, Mishap, Need, Offered, Restart, SchemaVariant, Settings, Unable,
};
pub use options::Options;
pub use program::main;
pub use ready::{Fresh, Ready};
pub use registry::{CASES, Case, SCALE};
pub use report::{CaseReport, Report, Verdict};
pub use run::{TestFailure, run, run_with, test};
pub use server::{OwnServer, ServerControl, StartServer};
pub use transactions::{AnyTransaction, AnyTransactions, BusinessWrites, Transactions};
