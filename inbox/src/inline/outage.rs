//! What is told of a store that is away: its outage, not each message that meets it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{Error, ErrorKind, Key, telemetry::OUTAGE};

/// What fails again before it was back for so long has not been back: where a store takes some calls and not others,
/// each of them would be told.
const BACK_FOR_GOOD: Duration = Duration::from_secs(10);

/// Whether the store is away, as far as a consumer and its clones know.
#[derive(Clone, Default)]
pub(super) struct Outage(Arc<Mutex<Option<Present>>>);

struct Present {
    began: Instant,
    /// Since when the store answers again.
    back: Option<Instant>,
}

impl Present {
    fn is_over(&self) -> bool {
        self.back
            .is_some_and(|since| since.elapsed() >= BACK_FOR_GOOD)
    }
}

impl Outage {
    /// Takes note that the store has not done `what` for a message. Of other errors than that it is away, each is told.
    pub(super) fn not_done(&self, key: &Key, error: &Error, what: &'static str) {
        if error.kind() != ErrorKind::Unavailable {
            tracing::warn!(%key, %error, "{what}");
            return;
        }
        self.met(error);
        tracing::debug!(target: OUTAGE, %key, %error, "{what}");
    }

    /// Takes note of an error of the store's, if it says that the store is away.
    pub(super) fn met(&self, error: &Error) {
        if error.kind() != ErrorKind::Unavailable {
            return;
        }
        let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let began = present.take_if(|present| !present.is_over());
        let began = began.map(|present| present.began);
        let is_new = began.is_none();
        *present = Some(Present {
            began: began.unwrap_or_else(Instant::now),
            back: None,
        });
        drop(present);
        if is_new {
            tracing::warn!(target: OUTAGE,
                %error,
                "store unavailable; messages are not run, or not recorded, until it is back"
            );
        }
    }

    /// Takes note that the store has answered.
    pub(super) fn over(&self) {
        let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(present) = &mut *present {
            present.back.get_or_insert_with(Instant::now);
        }
        let ended = present.take_if(|present| present.is_over());
        drop(present);
        if let Some(Present { began, .. }) = ended {
            tracing::info!(target: OUTAGE, after = ?began.elapsed(), "store available again");
        }
    }
}
