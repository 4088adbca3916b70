//! What a harness can do to the server that an inbox is on, or to the file.

use std::sync::Arc;

use async_trait::async_trait;

use crate::needs::{Need, Offered, Restart, Unable};

/// What a harness can do to the server that one inbox is on, or to the file or disk of a store
/// without one. Each method that is overridden lets more cases be checked.
#[async_trait]
pub trait ServerControl: Send + Sync + 'static {
    /// Makes the store unable to answer, until [`end_outage`](Self::end_outage): the server
    /// stopped, the network cut, the file locked.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn begin_outage(&self) -> Offered<()> {
        Err(Unable::NotOffered(Need::Outage))
    }

    /// Ends what [`begin_outage`](Self::begin_outage) began.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn end_outage(&self) -> Offered<()> {
        Err(Unable::NotOffered(Need::Outage))
    }

    /// As [`begin_outage`](Self::begin_outage), but the next `writes` writes to the disk succeed:
    /// the store stops in the middle of what it does. Behind it, the case ends the outage and restarts
    /// the store as [`Restart::Killed`]. For stores within the process, whose writes a harness can
    /// count.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn begin_outage_after(&self, writes: u32) -> Offered<()> {
        let _ = writes;
        Err(Unable::NotOffered(Need::OutageAmidWrites))
    }

    /// Restarts what is behind the inbox, and returns when it answers again. The value that
    /// [`Fixture::inbox`](crate::Fixture::inbox) returned before must go on working, or `inbox` return
    /// a new one.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn restart(&self, how: Restart) -> Offered<()> {
        let _ = how;
        Err(Unable::NotOffered(Need::Restart))
    }

    /// Takes the machine's power away, and returns when the store is there again: gone is what was
    /// written and not yet made durable. A kill is not that: the operating system outlives it, and so
    /// does what it has not written to the disk yet. As for [`restart`](Self::restart),
    /// [`Fixture::inbox`](crate::Fixture::inbox) may return a new value.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn lose_power(&self) -> Offered<()> {
        Err(Unable::NotOffered(Need::PowerLoss))
    }
}

/// Can do nothing.
impl ServerControl for () {}

/// A server that one case may harm: nothing else uses it, and it ends when this is dropped.
pub struct OwnServer {
    /// The URL of the server's database, as the store reads it.
    pub url: String,
    /// What can be done to it.
    pub control: Box<dyn ServerControl>,
}

impl std::fmt::Debug for OwnServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may have a password.
        f.debug_struct("OwnServer").finish_non_exhaustive()
    }
}

/// Starts servers, each for one case that may harm it.
#[derive(Clone)]
pub struct StartServer(Arc<dyn Fn() -> Offered<OwnServer> + Send + Sync>);

impl StartServer {
    /// By `start`, which may block until the server answers.
    pub fn by(start: impl Fn() -> Offered<OwnServer> + Send + Sync + 'static) -> Self {
        Self(Arc::new(start))
    }

    /// Starts one.
    ///
    /// # Errors
    /// [`Unable`], when no server can be started.
    pub async fn start(&self) -> Offered<OwnServer> {
        let start = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || start())
            .await
            .map_err(Unable::failed)?
    }
}

impl std::fmt::Debug for StartServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartServer").finish_non_exhaustive()
    }
}
