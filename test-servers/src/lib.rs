//! Real servers for the tests of inbox stores.
//!
//! A test asks for a server of a [`Kind`] and gets one that is empty, its own and gone afterwards.
//! It comes from the first of these that is there:
//! 1. a URL in the environment, such as `INBOX_TEST_POSTGRES_URL` ([`Kind::url_variable`]). That
//!    server is shared: isolation is then the test's business ([`Server::is_shared`]);
//! 2. Docker;
//! 3. a server program installed on the machine. `cargo run -p test-servers -- install` installs
//!    those that Debian and Ubuntu have, and adds newer versions below [`ADDED`], from Debian's
//!    suites `testing` and `unstable`; those run in their own root directory, which needs root. FerretDB
//!    and the newest NATS are built by Go, and Kafka and ElasticMQ come from Maven Central.
//!
//! Where there is none, the test is skipped, with a line on standard error that says why.
//! `INBOX_TEST_REQUIRE=postgres,redis` (or `all`) turns that into a failure, for CI.
//!
//! # In a store's tests
//! One server for all tests of a binary, each in its own database:
//!
//! ```no_run
//! use std::sync::LazyLock;
//! use test_servers::{Error, Kind, Server, require_or_skip};
//!
//! static SERVER: LazyLock<Result<Option<Server>, Error>> =
//!     LazyLock::new(|| require_or_skip(Kind::Postgres));
//!
//! fn a_test() -> Result<(), &'static Error> {
//!     let Some(server) = SERVER.as_ref()? else {
//!         return Ok(()); // reported as skipped
//!     };
//!     let url = server.url(); // create a database, connect, test
//! #   let _ = url;
//!     Ok(())
//! }
//! ```
//!
//! A separate server for a test that harms it:
//!
//! ```no_run
//! # use test_servers::{Error, Kind, require_or_skip};
//! fn a_crash_test() -> Result<(), Error> {
//!     let Some(mut server) = require_or_skip(Kind::Redis)? else {
//!         return Ok(());
//!     };
//!     if server.is_shared() {
//!         return Ok(()); // not ours to kill
//!     }
//!     server.kill()?;
//!     server.start()?; // same data, same URL
//!     server.pause()?;
//!     server.resume()
//! }
//! ```
//!
//! Beyond that: a server with settings of its own ([`find_own`]), behind a PgBouncer
//! ([`Server::pgbouncer`]), with a standby to fail over to ([`Server::standby`]), or of several nodes
//! of which one is killed ([`Server::kill_node`]).
//!
//! # What a server is like
//! Durable, so that a crash test may rely on whatever was acknowledged (`fsync`,
//! `appendfsync always`, `innodb_flush_log_at_trx_commit=1`, a journal), but small, and reachable
//! from this machine only. Started by root, a server that refuses root runs as a system user.
//! Everything it writes is in a temporary directory; nothing of it survives the process that asked
//! for it, not even if that is killed: a watchdog process ends the server when a pipe from its
//! owner closes.
//!
//! Linux is where all of this holds. On other Unix systems a paused or killed PostgreSQL server is
//! only its main process.

mod clocks;
pub mod control;
mod debian;
mod disk;
mod docker;
mod error;
mod find;
mod harmed;
mod installed;
mod kind;
mod kinds;
mod port;
mod process;
mod program;
mod server;
mod start_up;
mod watchdog;
mod wire;

pub use clocks::clocks_can_be_changed;
pub use debian::ADDED;
pub use disk::SmallDisk;
pub use error::{Error, NoServer, Skipped};
pub use find::{
    REQUIRE, find, find_own, find_own_to_harm, find_own_with_clocks, locate, or_skip,
    require_or_skip,
};
pub use harmed::HarmedServer;
pub use kind::{Kind, UnknownKind};
pub use server::{Origin, Server};
pub use start_up::START_LIMIT;

/// Whether a Docker engine answers, so that every kind can be had without installing anything.
#[must_use]
pub fn docker_answers() -> bool {
    docker::answers().is_ok()
}
