//! What a third party writes for a crash run of its store.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use inbox_api::Inbox;

use crate::{
    needs::{BoxError, Need, Offered, Restart, Unable},
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

    /// Restarts what is behind the inbox and returns when it answers again. Offered by stores
    /// that have a server; the orchestrator then kills it now and then, under load.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden; [`Unable::Failed`] fails the run.
    async fn restart(&self, how: Restart) -> Offered<()> {
        let _ = how;
        Err(Unable::NotOffered(Need::Restart))
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
