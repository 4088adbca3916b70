//! The connection over which leases are renewed while transactions have all of the pool's.

use std::{
    fmt,
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use sqlx::{Database, Pool};
use tokio::time::sleep;

use crate::at_hand::{AtHand, Held};

/// How long the pool is given before the spare connection is asked for as well: longer than operations
/// keep a connection as a rule, shorter than most leases by far.
const HEAD_START: Duration = Duration::from_millis(50);

/// One connection outside of the pool, made when it is needed. Transactions of handlers occupy a
/// connection each for as long as their work takes. A renewal that waited for those would come after the leases
/// have run out that it was to renew.
pub struct Spare<DB: Database>(Mutex<Option<Pool<DB>>>);

impl<DB: Database> fmt::Debug for Spare<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spare").finish_non_exhaustive()
    }
}

impl<DB: Database> Default for Spare<DB> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<DB: Database> Spare<DB> {
    /// A connection of the pool, or the spare one where that is free sooner. Safe to drop.
    ///
    /// # Errors
    /// As those of [`Pool::acquire`].
    pub async fn acquire(&self, connections: &AtHand<DB>) -> sqlx::Result<Held<DB>> {
        let mut of_pool = pin!(connections.acquire());
        tokio::select! {
            biased;
            acquired = &mut of_pool => return acquired,
            () = sleep(HEAD_START) => {}
        }
        let spare = self.pool_of_one(connections.pool());
        tokio::select! {
            biased;
            acquired = &mut of_pool => acquired,
            // A server that refuses another connection leaves those of the pool.
            Ok(acquired) = spare.acquire() => Ok(Held::once(acquired)),
        }
    }

    /// With the settings of `pool`, what is done to its connections included.
    fn pool_of_one(&self, pool: &Pool<DB>) -> Pool<DB> {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let options = pool.options().clone();
            let options = options.max_connections(1).min_connections(0);
            options.connect_lazy_with((*pool.connect_options()).clone())
        };
        spare.get_or_insert_with(make).clone()
    }

    /// Closes the spare connection, if there is one.
    pub async fn close(&self) {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(spare) = spare {
            spare.close().await;
        }
    }
}
