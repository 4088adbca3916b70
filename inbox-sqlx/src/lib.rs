//! How the SQL stores of the inbox share connections. Made for those stores; applications have no use for it.
//!
//! - [`AtHand`]: connections that go from one operation to the next without going back to sqlx's pool.
//! - [`Spare`]: the connection over which leases are renewed while transactions have all of the pool's.

mod at_hand;
mod spare;

pub use at_hand::{AtHand, Held, Limits};
pub use spare::Spare;
