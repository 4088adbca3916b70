//! The connection over which leases are renewed while transactions have all of the pool's.

use std::{
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use sqlx::{MySql, MySqlPool, pool::PoolConnection};
use tokio::time::sleep;

/// How long the pool is given before the spare connection is asked for as well: longer than operations
/// keep a connection as a rule, shorter than most leases by far.
const HEAD_START: Duration = Duration::from_millis(50);

/// One connection outside of the pool, made when it is needed. Transactions of handlers occupy a
/// connection each for as long as their work takes. A renewal that waited for those would come after the leases
/// have run out that it was to renew.
#[derive(Default)]
pub(crate) struct Spare(Mutex<Option<MySqlPool>>);

impl Spare {
    /// A connection of `pool`, or the spare one where that is to be had sooner.
    pub(crate) async fn acquire(&self, pool: &MySqlPool) -> sqlx::Result<PoolConnection<MySql>> {
        let mut of_pool = pin!(pool.acquire());
        tokio::select! {
            biased;
            acquired = &mut of_pool => return acquired,
            () = sleep(HEAD_START) => {}
        }
        let spare = self.pool_of_one(pool);
        tokio::select! {
            biased;
            acquired = &mut of_pool => acquired,
            // A server that refuses another connection leaves those of the pool.
            Ok(acquired) = spare.acquire() => Ok(acquired),
        }
    }

    /// With the settings of `pool`, what is done to its connections included.
    fn pool_of_one(&self, pool: &MySqlPool) -> MySqlPool {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let options = pool.options().clone();
            let options = options.max_connections(1).min_connections(0);
            options.connect_lazy_with((*pool.connect_options()).clone())
        };
        spare.get_or_insert_with(make).clone()
    }

    pub(crate) async fn close(&self) {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(spare) = spare {
            spare.close().await;
        }
    }
}
