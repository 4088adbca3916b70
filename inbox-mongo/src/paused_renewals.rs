//! Leases that are not renewed for a while.
//!
//! A transaction sees the documents as they were when it began, and fails if it changes one that was
//! changed since. A renewal in between would be such a change, and the settlement in the transaction
//! would fail each time. So leases are made to last for as long as a transaction may when it is opened
//! for the work on their messages, and are not renewed before its end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use inbox_api::Lease;

use crate::rows::identifier;

/// A lease, by the message's identifier and the token.
type LeaseKey = (String, i64);

/// Until when, in microseconds by the server's clock, and by this process's.
type Until = (i64, Instant);

#[derive(Clone, Debug, Default)]
pub(crate) struct PausedRenewals(Arc<Mutex<HashMap<LeaseKey, Until>>>);

/// Leases that are not renewed as long as this is there.
#[derive(Debug)]
pub(crate) struct Pause {
    leases: Vec<LeaseKey>,
    renewals: PausedRenewals,
}

fn key_of(lease: &Lease) -> LeaseKey {
    (identifier(&lease.key), lease.token.get())
}

impl PausedRenewals {
    pub(crate) fn begin(&self, leases: Vec<(&Lease, i64)>, ends: Instant) -> Pause {
        let mut renewals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = leases
            .into_iter()
            .map(|(lease, until)| (key_of(lease), (until, ends)));
        let entries: Vec<(LeaseKey, Until)> = entries.collect();
        renewals.extend(entries.iter().cloned());
        Pause {
            leases: entries.into_iter().map(|(lease, _)| lease).collect(),
            renewals: self.clone(),
        }
    }

    /// Until when a lease lasts that is not to be renewed now. One with less than a third of
    /// `length` left is: it is better to fail the transaction than to lose the message to another.
    pub(crate) fn until(&self, lease: &Lease, length: Duration) -> Option<i64> {
        let renewals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, ends) = renewals.get(&key_of(lease))?;
        let left = ends.saturating_duration_since(Instant::now());
        (left > length / 3).then_some(*until)
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        let mut renewals = self
            .renewals
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for lease in &self.leases {
            renewals.remove(lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use inbox_api::{FencingToken, HandlerName, Key, MessageId, from_micros};

    use super::*;

    #[test]
    fn renewals_pause_until_the_end_of_the_transaction_or_of_the_lease() {
        let lease = Lease {
            key: Key::new(
                HandlerName::new("orders").unwrap(),
                MessageId::new("a").unwrap(),
            ),
            token: FencingToken::new(7),
            locator: 0,
            until: from_micros(0),
        };
        let renewals = PausedRenewals::default();
        let ends = Instant::now() + Duration::from_secs(60);
        let pause = renewals.begin(vec![(&lease, 5)], ends);
        assert_eq!(renewals.until(&lease, Duration::from_secs(30)), Some(5));
        // Almost over.
        assert_eq!(renewals.until(&lease, Duration::from_secs(300)), None);
        drop(pause);
        assert_eq!(renewals.until(&lease, Duration::from_secs(30)), None);
    }
}
