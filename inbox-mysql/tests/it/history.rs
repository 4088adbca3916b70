//! Histories of attempts, which both servers write as JSON, each in its way.

use std::time::Duration;

use inbox_api::{
    AttemptEnd, ErrorKind, LeaseTerms, Operate as _, Outcome, PastAttempt, Store as _,
    StoreExt as _, WorkerName,
};

use crate::common::{LEASE, accept, claim, key, message, on_each, settle};

fn retry(error: &str) -> Outcome {
    Outcome::Retry {
        after: Duration::ZERO,
        error: error.into(),
    }
}

#[test]
fn texts_come_back_whatever_is_in_them() {
    const WORKER: &str = "w'\"\\ä";
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        let long = format!("x{}", "ä".repeat(2000));
        let errors = [
            "",
            "'\"\\/",
            "\n\t\u{1}\u{7f}",
            "\0",
            "{\"a\":[1]}",
            "🦀",
            &long,
        ];
        let terms = LeaseTerms::new(LEASE, WorkerName::new(WORKER).unwrap()).unwrap();
        for error in errors {
            match store.begin(&message("1"), &terms).await.unwrap() {
                inbox_api::Begun::Run(leased) => settle(&store, &leased.lease, retry(error)).await,
                other => panic!("{other:?}"),
            }
        }
        let history = store.get(&key("1")).await.unwrap().unwrap().history;
        assert_eq!(history.len(), errors.len());
        for (n, (past, error)) in history.iter().zip(errors).enumerate() {
            assert_eq!(past.error, PastAttempt::error_text(error));
            assert_eq!(past.worker.as_str(), WORKER);
            assert_eq!(past.attempt as usize, n + 1);
            assert_eq!(past.end, AttemptEnd::Retried);
            assert!(past.leased_at <= past.ended_at);
        }
    });
}

#[test]
fn one_that_cannot_be_read_is_reported_and_stops_nothing() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(&store, &[message("1"), message("2")]).await;
        inbox
            .run("UPDATE inbox_work SET history = x'ff' WHERE seq = (SELECT MIN(seq) FROM inbox_message)")
            .await
            .unwrap();
        for leased in claim(&store, 10).await {
            let _ = store
                .settle_one(&leased.lease, retry("failed"))
                .await
                .unwrap();
        }
        let corrupt = store.get(&key("1")).await.unwrap_err();
        assert_eq!(corrupt.kind(), ErrorKind::Corrupt);
        let other = store.get(&key("2")).await.unwrap().unwrap();
        assert_eq!(other.history.len(), 1);
    });
}
