//! The protocol of an inbox as a model: every order of steps, crashes, lost answers and lapses of leases, within bounds,
//! is tried, and each state is held against the rules.
//!
//! - [`protocol`]: what every store promises, with one atomic step for each operation.
//! - [`marks`]: how MongoDB keeps the order of a key in several requests, each a step of its own that a crash may
//!   follow.
//!
//! Each has *flaws*, ways in which a store could be wrong, and for each the checker finds a way to break a rule, told
//! as a [story](story()). So the rules are known to see what they are for.
//!
//! ```text
//! cargo run --release -p model -- protocol --messages 3 --workers 3 --crashes 2
//! ```

pub mod marks;
pub mod protocol;
mod story;

pub use story::{Tell, Told, story};
