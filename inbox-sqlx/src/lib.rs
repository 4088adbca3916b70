//! How the SQL stores of the inbox share connections. Made for those stores; applications have no use for it.
//!
//! - [`AtHand`]: connections that go from one operation to the next without going back to sqlx's pool.
//! - [`Spare`]: the connection over which leases are renewed while transactions have all of the pool's.
//! - [`close_all_of`]: how a connection is closed that the driver would give back.

mod at_hand;
mod closing;
mod spare;

pub use at_hand::{AtHand, Held, Limits};
pub use closing::close_all_of;
pub use spare::Spare;
