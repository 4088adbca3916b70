//! When the suite asks a fixture whether its tables agree, and what becomes of the answer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use conformance_tests::{Fixture, Harness, Need, Offered, Report, Settings, Unable, Verdict, run};
use inbox_api::Inbox;
use inbox_memory::MemoryStore;

type Answer = fn() -> Offered<Vec<String>>;

/// A sound store of which a check says what it is told to.
struct Checked {
    answer: Answer,
    made: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
}

impl Checked {
    fn new(answer: Answer) -> Self {
        Self {
            answer,
            made: Arc::default(),
            asked: Arc::default(),
        }
    }
}

#[async_trait]
impl Harness for Checked {
    fn name(&self) -> String {
        "checked".into()
    }

    async fn fresh(&self, _: &Settings) -> Offered<Box<dyn Fixture>> {
        self.made.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Asked {
            store: MemoryStore::new(),
            answer: self.answer,
            asked: Arc::clone(&self.asked),
        }))
    }
}

/// An inbox about which it is counted how often it was asked.
struct Asked {
    store: MemoryStore,
    answer: Answer,
    asked: Arc<AtomicUsize>,
}

#[async_trait]
impl Fixture for Asked {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.store.clone())
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        (self.answer)()
    }
}

fn two_things() -> Offered<Vec<String>> {
    Ok(vec!["one thing".into(), "another".into()])
}

async fn verdicts(harness: Checked, filter: &str) -> Report {
    run(Arc::new(harness), filter).await
}

const ID: &str = "identity::two_inboxes_are_independent";

#[tokio::test]
async fn what_does_not_agree_fails_a_case_that_passed() {
    let report = verdicts(Checked::new(two_things), ID).await;
    let Verdict::Failed { seen } = &report.cases[0].verdict else {
        panic!("{report}");
    };
    let expected = "the store's own tables do not agree after the case: one thing; another";
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_check_that_fails_is_no_excuse() {
    let report = verdicts(Checked::new(|| Err(Unable::failed("no route"))), ID).await;
    let Verdict::Failed { seen } = &report.cases[0].verdict else {
        panic!("{report}");
    };
    assert_eq!(seen, "the harness failed: no route");
}

#[tokio::test]
async fn every_inbox_of_a_case_is_asked_about_once() {
    let harness = Checked::new(|| Ok(Vec::new()));
    let (made, asked) = (Arc::clone(&harness.made), Arc::clone(&harness.asked));
    let report = verdicts(harness, "identity::").await;
    assert_eq!(report.failed, 0, "{report}");
    let counts = (made.load(Ordering::SeqCst), asked.load(Ordering::SeqCst));
    assert_eq!(counts.0, counts.1);
    assert!(counts.0 > 10, "{report}");
}

#[tokio::test]
async fn without_a_check_only_its_own_case_is_not_checked() {
    let lacking = || Err(Unable::NotOffered(Need::Invariants));
    let report = verdicts(Checked::new(lacking), ID).await;
    assert_eq!((report.passed, report.failed), (1, 0), "{report}");
    let report = verdicts(Checked::new(lacking), "invariants::").await;
    assert_eq!((report.not_checked, report.failed), (1, 0), "{report}");
}
