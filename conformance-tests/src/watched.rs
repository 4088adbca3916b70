//! The inboxes that a case made, and the check of what each keeps once the case is done with it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{Inbox, Key};

use crate::{
    check::{CaseResult, Unmet},
    harness::Fixture,
    needs::{Corruption, Offered, Restart, Unable},
    server::ServerControl,
    transactions::AnyTransactions,
};

/// How an inbox was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// With an inbox that is set up.
    Fresh,
    /// Perhaps with something else, or with nothing.
    Variant,
}

/// A fixture that remembers what a case did to it.
pub(crate) struct Watched {
    fixture: Box<dyn Fixture>,
    made: Made,
    /// Whether the store is kept from answering.
    is_away: AtomicBool,
    /// Whether what is stored need not agree any more, or cannot be asked.
    is_harmed: AtomicBool,
}

impl Watched {
    /// Fails if the store's own tables do not agree. Not of one that a case has harmed: what it finds
    /// there is the case's doing.
    async fn check(&self) -> CaseResult {
        if self.is_away.load(Ordering::SeqCst) || self.is_harmed.load(Ordering::SeqCst) {
            return Ok(());
        }
        if self.made == Made::Variant && !matches!(self.inbox().exists().await, Ok(true)) {
            return Ok(());
        }
        match self.check_invariants().await {
            Err(Unable::NotOffered(_)) => Ok(()),
            findings => judge("after the case", &findings?),
        }
    }
}

/// Fails with what a check found.
pub(crate) fn judge(when: &str, findings: &[String]) -> CaseResult {
    if findings.is_empty() {
        return Ok(());
    }
    Err(Unmet::Failed(format!(
        "the store's own tables do not agree {when}: {}",
        findings.join("; ")
    )))
}

#[async_trait]
impl Fixture for Watched {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.fixture.inbox()
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        self.fixture.check_invariants().await
    }

    async fn keep(&self) -> Offered<()> {
        self.fixture.keep().await
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.fixture.advance_clock(by).await
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        self.fixture.second_connection().await
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        self.is_harmed.store(true, Ordering::SeqCst);
        self.fixture.corrupt(key, corruption).await
    }

    async fn silence(&self) -> Offered<()> {
        self.is_harmed.store(true, Ordering::SeqCst);
        self.fixture.silence().await
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        self.fixture.transactions()
    }

    fn server(&self) -> &dyn ServerControl {
        self
    }
}

#[async_trait]
impl ServerControl for Watched {
    async fn begin_outage(&self) -> Offered<()> {
        self.is_away.store(true, Ordering::SeqCst);
        self.fixture.server().begin_outage().await
    }

    async fn end_outage(&self) -> Offered<()> {
        self.fixture.server().end_outage().await?;
        self.is_away.store(false, Ordering::SeqCst);
        Ok(())
    }

    async fn begin_outage_after(&self, writes: u32) -> Offered<()> {
        self.is_away.store(true, Ordering::SeqCst);
        self.fixture.server().begin_outage_after(writes).await
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        self.fixture.server().restart(how).await
    }

    async fn lose_power(&self) -> Offered<()> {
        self.is_harmed.store(true, Ordering::SeqCst);
        self.fixture.server().lose_power().await
    }
}

/// The inboxes that a case made.
#[derive(Default)]
pub(crate) struct Inboxes(Mutex<Vec<Arc<Watched>>>);

impl Inboxes {
    pub(crate) fn add(&self, fixture: Box<dyn Fixture>, made: Made) -> Arc<dyn Fixture> {
        let watched = Arc::new(Watched {
            fixture,
            made,
            is_away: AtomicBool::new(false),
            is_harmed: AtomicBool::new(false),
        });
        self.list().push(Arc::clone(&watched));
        watched
    }

    /// Checks, and gives up, those that the case is done with, so that a case of many inboxes does not
    /// keep all of them.
    pub(crate) async fn check_left(&self) -> CaseResult {
        let is_left = |inbox: &mut Arc<Watched>| Arc::strong_count(inbox) == 1;
        let left: Vec<_> = self.list().extract_if(.., is_left).collect();
        check(left).await
    }

    /// Checks all of them, at the end of a case.
    pub(crate) async fn check_all(&self) -> CaseResult {
        let all = std::mem::take(&mut *self.list());
        check(all).await
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Watched>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn check(inboxes: Vec<Arc<Watched>>) -> CaseResult {
    for inbox in inboxes {
        inbox.check().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is done to it, its tables do not agree.
    struct Odd;

    #[async_trait]
    impl Fixture for Odd {
        fn inbox(&self) -> Arc<dyn Inbox> {
            Arc::new(inbox_memory::MemoryStore::new())
        }

        async fn check_invariants(&self) -> Offered<Vec<String>> {
            Ok(vec!["a row too many".into()])
        }

        async fn corrupt(&self, _: &Key, _: Corruption) -> Offered<()> {
            Ok(())
        }

        async fn silence(&self) -> Offered<()> {
            Ok(())
        }

        fn server(&self) -> &dyn ServerControl {
            self
        }
    }

    #[async_trait]
    impl ServerControl for Odd {
        async fn begin_outage(&self) -> Offered<()> {
            Ok(())
        }

        async fn begin_outage_after(&self, _: u32) -> Offered<()> {
            Ok(())
        }

        async fn end_outage(&self) -> Offered<()> {
            Ok(())
        }

        async fn lose_power(&self) -> Offered<()> {
            Ok(())
        }
    }

    fn finding() -> CaseResult {
        judge("after the case", &["a row too many".to_owned()])
    }

    #[tokio::test]
    async fn what_a_case_has_harmed_is_not_judged() {
        let inboxes = Inboxes::default();
        let key = crate::test_inbox::message("1").unwrap().key().clone();
        for harm in 0..4 {
            let inbox = inboxes.add(Box::new(Odd), Made::Fresh);
            match harm {
                0 => inbox.corrupt(&key, Corruption::Headers).await.unwrap(),
                1 => inbox.server().begin_outage().await.unwrap(),
                2 => inbox.silence().await.unwrap(),
                _ => inbox.server().lose_power().await.unwrap(),
            }
            assert_eq!(inboxes.check_all().await, Ok(()), "{harm}");
        }
        for of_writes in [false, true] {
            let inbox = inboxes.add(Box::new(Odd), Made::Fresh);
            match of_writes {
                false => inbox.server().begin_outage().await.unwrap(),
                true => inbox.server().begin_outage_after(3).await.unwrap(),
            }
            inbox.server().end_outage().await.unwrap();
            assert_eq!(
                inboxes.check_all().await,
                finding(),
                "an outage that is over"
            );
        }
    }

    #[tokio::test]
    async fn an_inbox_is_judged_when_its_case_lets_go_of_it() {
        let inboxes = Inboxes::default();
        let inbox = inboxes.add(Box::new(Odd), Made::Fresh);
        assert_eq!(inboxes.check_left().await, Ok(()), "still in use");
        drop(inbox);
        assert_eq!(inboxes.check_left().await, finding());
        assert_eq!(inboxes.check_all().await, Ok(()), "once");
    }
}
