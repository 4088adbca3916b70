//! Messages that have outlived their time to live.

use std::time::Duration;

use crate::Leased;

/// Why a message is not to be run that was leased just now, for `lease`: it has a [time to
/// live](crate::Message::with_time_to_live) and has outlived it. `None` when it is in time.
///
/// By the store's clock, which says when it was accepted, and now: a lease is measured from when it is
/// handed out. Processors and inline consumers ask by themselves; this is for loops of your own, which then
/// settle the message as [dead](crate::Outcome::Dead).
#[must_use]
pub fn expiry_reason(leased: &Leased, lease: Duration) -> Option<String> {
    let alive = leased.message.time_to_live()?;
    let now = leased.lease.until.checked_sub(lease)?;
    let age = now.duration_since(leased.accepted_at).unwrap_or_default();
    (age >= alive)
        .then(|| format!("expired: older than its {alive:?} to live when an attempt was due"))
}
