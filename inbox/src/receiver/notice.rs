//! What happens to single deliveries, is no outage, and has to be looked into.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How long nothing more is told of it.
const PAUSE: Duration = Duration::from_secs(60);

/// Told when it happens first, then once a minute at most, however often it happens. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notice(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    told: Option<Instant>,
    untold: u64,
}

impl Notice {
    /// Counts so many more. Answers how many are to be told of now, if any are.
    pub(crate) fn add(&self, more: u64) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.untold += more;
        let is_early = state.told.is_some_and(|told| told.elapsed() < PAUSE);
        if is_early || state.untold == 0 {
            return None;
        }
        state.told = Some(Instant::now());
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_told_once_a_minute_with_what_came_meanwhile() {
        let notice = Notice::default();
        assert_eq!(notice.add(0), None);
        assert_eq!(notice.add(3), Some(3));
        assert_eq!((notice.add(2), notice.clone().add(5)), (None, None));
        tokio::time::advance(PAUSE).await;
        assert_eq!(notice.add(0), Some(7));
        assert_eq!(notice.add(1), None);
        tokio::time::advance(PAUSE * 2).await;
        assert_eq!(notice.add(1), Some(2));
    }
}
