//! What a third party writes for a crash run of its store.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use inbox_api::Inbox;

use super::fault::Fault;
use crate::{
    needs::{BoxError, Need, Offered, Unable},
    transactions::AnyTransactions,
};

/// A store under test, in a program that is the orchestrator and all of its workers.
#[async_trait]
pub trait Target: Send + Sync + 'static {
    /// What the report calls the store.
    fn name(&self) -> String;

    /// Makes a fresh place with an inbox that is set up and empty; what it holds is cleaned up
    /// when the returned value is dropped. Called once per mode, by the orchestrator.
    ///
    /// # Errors
    /// Whatever keeps it from doing so; the run fails.
    async fn fresh(&self) -> Result<Box<dyn Site>, BoxError>;

    /// Opens the inbox at `address`, which is what [`Site::address`] gave. Called once by every
    /// worker process and by the orchestrator.
    ///
    /// # Errors
    /// As [`fresh`](Self::fresh).
    async fn open(&self, address: &str) -> Result<Opened, BoxError>;
}

/// One place with an inbox. Dropping it cleans up.
#[async_trait]
pub trait Site: Send + Sync + 'static {
    /// Where it is: a path, a URL, whatever [`Target::open`] understands. It reaches the workers
    /// through their environment and is never printed.
    fn address(&self) -> String;

    /// The faults that [`harm`](Self::harm) can do: none unless overridden, as for a store without a server.
    fn faults(&self) -> &[Fault] {
        &[]
    }

    /// Does this to what is behind the inbox, under load, ends it, and returns when the server answers again.
    /// Only [`faults`](Self::faults) are asked for, each about as often as the others. [`Fault::ClockMoved`] is
    /// asked for by [`move_clock`](Self::move_clock).
    ///
    /// # Errors
    /// [`Unable::NotOffered`] when it turns out that the fault is not possible here; it is not asked for again.
    /// [`Unable::Failed`] fails the run.
    async fn harm(&self, fault: Fault) -> Offered<()> {
        let _ = fault;
        Err(Unable::NotOffered(Need::Restart))
    }

    /// Lets the clock by which the inbox judges leases and due times be ahead of the true time by so many
    /// microseconds, or behind it by a negative number, and returns when it is. It jumps, and goes on at the usual speed;
    /// the clocks of the workers stay as they are.
    ///
    /// # Errors
    /// As [`harm`](Self::harm).
    async fn move_clock(&self, ahead_micros: i64) -> Offered<()> {
        let _ = ahead_micros;
        Err(Unable::NotOffered(Need::Clock))
    }
}

/// An inbox that a process has opened.
#[derive(Clone)]
pub struct Opened {
    /// The inbox.
    pub inbox: Arc<dyn Inbox>,
    /// Its transactions with business writes, if it has any: one value of
    /// [`Transactions`](crate::Transactions). The run then has a transactional mode.
    pub transactions: Option<Arc<dyn AnyTransactions>>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("transactions", &self.transactions.is_some())
            .finish_non_exhaustive()
    }
}
