//! How a part does while it runs: when its loop last turned, and what troubles it.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, timeout};

/// How often a loop says that it turns.
const BEAT: Duration = Duration::from_secs(1);

/// Written by the part, read by a [`Service`](crate::Service). Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vitals(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// None while nothing runs.
    turned: Option<Instant>,
    /// When its work last went well.
    succeeded: Option<Instant>,
    /// What for, and why. They are few: one per handler at most.
    troubles: BTreeMap<Cow<'static, str>, Trouble>,
}

#[derive(Debug)]
struct Trouble {
    why: String,
    /// From when on it is taken for over, if nothing is heard of it. `None`: only when that is said.
    until: Option<Instant>,
}

impl Trouble {
    fn is_present(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

impl Vitals {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a loop, and takes note that its task turns.
    pub(crate) async fn watch<T>(&self, running: impl Future<Output = T>) -> T {
        let mut running = pin!(running);
        let _ends = Ends(self);
        loop {
            self.state().turned = Some(Instant::now());
            if let Ok(ended) = timeout(BEAT, &mut running).await {
                return ended;
            }
        }
    }

    /// Says that something does not work, for as long as it is not [`over`](Self::over). `true`: that is new.
    pub(crate) fn trouble(
        &self,
        what: impl Into<Cow<'static, str>>,
        why: impl Into<String>,
    ) -> bool {
        self.note(what.into(), why.into(), None)
    }

    /// The same of something that may never be tried again, so that nobody says that it is over.
    pub(crate) fn trouble_for(
        &self,
        what: &'static str,
        why: impl Into<String>,
        lasts: Duration,
    ) -> bool {
        let until = Instant::now().checked_add(lasts);
        self.note(what.into(), why.into(), until)
    }

    fn note(&self, what: Cow<'static, str>, why: String, until: Option<Instant>) -> bool {
        let trouble = Trouble { why, until };
        let known = self.state().troubles.insert(what, trouble);
        known.is_none_or(|known| !known.is_present())
    }

    /// Says that something works again. `false`: it was not known that it did not.
    pub(crate) fn over(&self, what: &str) -> bool {
        self.state().troubles.remove(what).is_some()
    }

    /// Says that a round of its work has gone well.
    pub(crate) fn success(&self) {
        self.state().succeeded = Some(Instant::now());
    }

    /// How long ago a round of its work went well; `None` before the first.
    pub(crate) fn last_success(&self) -> Option<Duration> {
        self.state().succeeded.map(|at| at.elapsed())
    }

    /// For how long the loop has not turned; `None` while nothing runs.
    pub(crate) fn stalled(&self) -> Option<Duration> {
        let turned = self.state().turned;
        turned.map(|turned| turned.elapsed().saturating_sub(BEAT))
    }

    /// What does not work at present, and why.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let state = self.state();
        let troubles = state.troubles.iter();
        let present = troubles.filter(|(_, trouble)| trouble.is_present());
        present
            .map(|(what, Trouble { why, .. })| format!("{what}: {why}"))
            .collect()
    }
}

/// At the end of a run nothing is told of it any more.
struct Ends<'a>(&'a Vitals);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.0.state() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_turn_is_seen() {
        let vitals = Vitals::default();
        assert_eq!(vitals.stalled(), None);
        let mut watching = Box::pin(vitals.watch(std::future::pending::<()>()));
        assert!(poll!(&mut watching).is_pending());
        // As if its thread were blocked: nothing polls it.
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(vitals.stalled(), Some(Duration::from_secs(19)));
        assert!(poll!(&mut watching).is_pending());
        assert_eq!(vitals.stalled(), Some(Duration::ZERO));
        vitals.trouble("source", "away");
        assert!(vitals.trouble_for("a", "b", Duration::from_secs(1)));
        assert!(!vitals.trouble_for("a", "c", Duration::from_secs(1)));
        assert_eq!(vitals.troubles(), ["a: c", "source: away"]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(vitals.troubles(), ["source: away"]);
        assert!(vitals.trouble_for("a", "d", Duration::ZERO));
        assert_eq!(vitals.last_success(), None);
        vitals.success();
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(vitals.last_success(), Some(Duration::from_secs(2)));
        drop(watching);
        assert_eq!(vitals.stalled(), None);
        assert_eq!(vitals.last_success(), None);
        assert_eq!(vitals.troubles(), Vec::<String>::new());
    }
}
