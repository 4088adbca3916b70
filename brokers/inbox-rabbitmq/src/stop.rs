//! What ends a source for good.

use inbox_source::SourceError;
use tokio::sync::watch;

/// Why a source stops, once it does. It outlives connections.
#[derive(Debug)]
pub(crate) struct Stop(watch::Sender<Option<String>>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Stop {
    /// Stops the source. The first reason stays.
    pub(crate) fn set(&self, reason: String) {
        self.0.send_if_modified(|stop| {
            let is_first = stop.is_none();
            stop.get_or_insert(reason);
            is_first
        });
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }

    pub(crate) fn error(&self) -> Option<SourceError> {
        self.0.borrow().clone().map(SourceError::permanent)
    }

    pub(crate) async fn wait(&self) {
        // The sender is this value's own, so it cannot be gone.
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }
}
