//! Servers that take no writes. An address may move to a new primary while the former one lives on and only reads:
//! no connection that was made before leads to the new one.

use std::time::Instant;

use sqlx::{Row as _, postgres::PgRow};
use tokio::sync::watch;

/// Asks whether the server only reads, whatever the transaction around it says of itself.
pub(crate) const ONLY_READS: &str = "SELECT pg_catalog.pg_is_in_recovery() OR \
     pg_catalog.current_setting('default_transaction_read_only')::pg_catalog.bool";

/// The answer to [`ONLY_READS`].
pub(crate) fn only_reads(answer: &[PgRow]) -> bool {
    let first = answer.first();
    first.is_some_and(|row| row.try_get(0).unwrap_or(false))
}

/// When a server last refused to write. What was connected before then is not used again.
#[derive(Debug)]
pub(crate) struct RefusedWrites(watch::Sender<Option<Instant>>);

impl Default for RefusedWrites {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl RefusedWrites {
    /// A server has refused to write now.
    pub(crate) fn note(&self) {
        self.0.send_modify(|last| *last = Some(Instant::now()));
    }

    /// Whether a connection that was made then may be to a server that has refused since.
    pub(crate) fn concern(&self, connected_at: Option<Instant>) -> bool {
        let last = *self.0.borrow();
        last.is_some() && connected_at <= last
    }

    /// Changes with each refusal.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Instant>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_connected_before_a_refusal_is_concerned() {
        let refused = RefusedWrites::default();
        let before = Instant::now();
        assert!(!refused.concern(Some(before)));
        assert!(!refused.concern(None));
        refused.note();
        assert!(refused.concern(Some(before)));
        assert!(refused.concern(None));
        let after = Instant::now() + Duration::from_secs(1);
        assert!(!refused.concern(Some(after)));
    }
}
