//! The store under a run: in memory, or SQLite.

mod sqlite;

use std::{sync::Arc, time::Duration};

use inbox::{Clock, Extended, Operate, Result, Settled, Settlement, Store};
use inbox_memory::{MemoryOptions, MemoryStore};

use crate::{scenario::Kind, world::LIMIT};

use sqlite::{Sqlite, SqliteTransaction};

/// Where the messages are.
#[derive(Clone)]
pub(crate) enum Database {
    Memory(MemoryStore),
    Sqlite(Sqlite),
}

impl Database {
    pub(crate) fn new(kind: Kind, clock: Clock) -> std::result::Result<Self, String> {
        match kind {
            Kind::Memory => {
                let options = MemoryOptions::new().clock(clock).payload_limit(LIMIT);
                Ok(Self::Memory(MemoryStore::with(options)))
            }
            Kind::Sqlite => Sqlite::new(clock).map(Self::Sqlite),
        }
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::new(store.clone()),
            Self::Sqlite(store) => Arc::new(store.clone()),
        }
    }

    pub(crate) fn operate(&self) -> Arc<dyn Operate> {
        match self {
            Self::Memory(store) => Arc::new(store.clone()),
            Self::Sqlite(store) => Arc::new(store.clone()),
        }
    }
}

/// The inbox as an open transaction sees it. It is rolled back when it is dropped.
pub(crate) enum Tried {
    /// The memory store has no transactions: what is settled is tried on a fork, and done at the commit.
    Memory(MemoryStore, Option<MemoryStore>),
    Sqlite(SqliteTransaction),
}

impl Database {
    pub(crate) async fn open(&self) -> Result<Tried> {
        match self {
            Self::Memory(store) => Ok(Tried::Memory(store.clone(), None)),
            Self::Sqlite(store) => store.open().await.map(Tried::Sqlite),
        }
    }
}

impl Tried {
    pub(crate) async fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let fork = match self {
            Self::Sqlite(transaction) => return transaction.settle(settlements),
            Self::Memory(store, fork) => fork.get_or_insert_with(|| store.fork()),
        };
        // Unlike a settlement by itself, one that is repeated finds no lease.
        let leases: Vec<_> = settlements.iter().map(|one| one.lease.clone()).collect();
        let stand = fork.extend(&leases, Duration::from_secs(1)).await?;
        let mut settled = fork.settle(settlements).await?;
        for (settled, stands) in settled.iter_mut().zip(stand) {
            if stands == Extended::LeaseLost {
                *settled = Settled::LeaseLost;
            }
        }
        Ok(settled)
    }

    /// Whether a settlement counts from when it was asked for, rather than from the commit.
    pub(crate) fn keeps_time(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// With the settlements that were done in it. Those of the memory store come true in `store`.
    pub(crate) async fn commit(
        &mut self,
        store: &dyn Store,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        match self {
            Self::Memory(..) => store.settle(settlements).await,
            Self::Sqlite(transaction) => {
                transaction.commit()?;
                Ok(vec![Settled::Done; settlements.len()])
            }
        }
    }
}
