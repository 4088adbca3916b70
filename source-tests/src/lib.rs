//! Conformance suite for inbox sources and publishers: the rules of [`Source`](inbox::receiver::Source) and
//! [`Delivery`](inbox::receiver::Delivery), each a case ([`CASES`]) that drives the source under test
//! through a real [`Receiver`](inbox::Receiver), into a store that blocks, fails, answers late, or loses
//! its answer, from a real broker that is killed, paused and cut off; and those of
//! [`Publisher`](inbox::receiver::Publisher), to the same broker.
//!
//! # For a source of your own
//! Add this crate as a dev-dependency and implement [`Broker`]: how to make a channel, send to it, open a
//! source, count what is outstanding, and harm the broker. Then one line in a test makes a
//! test of each case. The whole of it, for a broker that is there already:
//!
//! ```
//! use source_tests::{MemoryBroker, MemoryKind};
//!
//! source_tests::cases!(async || Ok(Some(MemoryBroker::new(MemoryKind::Queue))));
//! # fn main() {}
//! ```
//!
//! The closure returns `None` where there is no such server: the tests are skipped then, and say so. It is called
//! once for all cases that leave the broker alone, and once more for those that harm it, which take turns;
//! after one of these has failed, again. All tests of a program run on one runtime, so a broker may
//! keep its clients.
//!
//! - A case gets a [`channel`](Broker::create) of its own, whose name has small letters, digits and hyphens, at
//!   most 50 of them.
//! - Say honestly what the broker can do ([`Abilities`]): a case that does not apply says so on standard error
//!   (`NOT CHECKED`), and so does one whose harm answers [`NotOffered`]. Connections are
//!   cut by a [`Proxy`] in front of the broker.
//! - [`Broker::publish`] returns when the broker has the messages; otherwise the cases of order and loss mean nothing.
//! - [`Broker::outstanding`] counts what is delivered and not acknowledged, too: the cases that look for
//!   acknowledgements that come too early go by it.
//! - Without a publisher, [`Broker::Publisher`] is [`NoPublisher`], and the cases of the group `publishing` are not checked.
//! - [`Abilities::redelivery`] should be short, a second or two, as cases wait for it.
//! - With [`Broker::address`] and [`Broker::attach`], parts of a run are processes of their own, which are killed:
//!   [`chaos`], [`outbox`].
//!
//! To run one case by a program instead of a test runner, call [`run`].

mod broker;
mod case;
mod cases;
pub mod chaos;
mod context;
mod counted;
mod database;
mod list;
mod memory;
pub mod outbox;
mod process;
mod proxy;
mod shelf;

pub use broker::{Abilities, Broker, Failure, Harm, NoPublisher, NotOffered};
pub use case::{Brokers, Case, Need, TestFailure, Verdict, run, test};
pub use context::PATIENCE;
pub use list::CASES;
pub use memory::{MemoryBroker, MemoryDelivery, MemoryKind, MemoryPublisher, MemorySource};
pub use proxy::Proxy;
