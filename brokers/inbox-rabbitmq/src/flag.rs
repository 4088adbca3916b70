//! What happens once and is waited for.

use tokio::sync::watch;

/// Set once and for all.
#[derive(Debug)]
pub(crate) struct Flag(watch::Sender<bool>);

impl Default for Flag {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Flag {
    pub(crate) fn set(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn wait(&self) {
        // The sender is this value's own, so it cannot be gone.
        let _ = self.0.subscribe().wait_for(|set| *set).await;
    }
}
