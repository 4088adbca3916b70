//! What the processor logs and counts.

#[cfg(feature = "metrics")]
mod counted;

use std::{sync::Arc, time::Duration};

use inbox::{Context, ErrorKind, Failure, Fallback, Router};
use tracing::Level;

use crate::{logged::Log, processor_support::*};

/// One message of each fate.
async fn eventful() -> (Arc<Spy>, Router) {
    let spy = Arc::new(Spy::new());
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = message_of("ok", "fine", "secret payload")
        .with_header(inbox::headers::TRACEPARENT, traceparent)
        .unwrap()
        .with_header("authorization", "secret header")
        .unwrap();
    let others = [
        message_of("json", "unreadable", r#"{"order": "secret payload"}"#),
        message_of("retry", "failing", "secret payload"),
        message_of("panic", "panicking", "secret payload"),
        message_of("new", "unknown", "secret payload"),
    ];
    spy.receive_all(others.into_iter().chain([traced])).await;
    let router = Router::new(billing())
        .fallback(Fallback::DeadLetter)
        .on("ok", |_: Context| async {
            tracing::info!("from within");
            Ok::<_, Failure>(b"secret result".to_vec())
        })
        .on_json("json", |_: u64, _| async { Ok::<_, Failure>(()) })
        .on("retry", |_: Context| async {
            Err::<(), _>(Failure::retry("try again"))
        })
        .on("panic", |_: Context| async {
            panic!("oh") as Result<(), Failure>
        });
    (spy, router)
}

#[tokio::test]
async fn logs_name_the_message_and_hide_its_content() {
    let (log, _guard) = Log::of(Level::TRACE);
    let (spy, router) = eventful().await;
    spy.corrupt.lock().unwrap().push(inbox::CorruptRow {
        place: "row 7".into(),
        reason: "no such state".into(),
    });
    let summary = until_idle(processor(&spy, router).retry(at_once(2))).await;
    assert_eq!(
        (summary.processed, summary.dead, summary.retried),
        (1, 4, 2)
    );
    let text = log.text();
    assert!(!text.contains("secret"), "{text}");
    let within = text
        .lines()
        .find(|line| line.contains("from within"))
        .unwrap();
    for field in [
        "handle{",
        "handler=\"billing\"",
        "kind=\"ok\"",
        "id=\"fine\"",
        "attempt=1",
        "traceparent=\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"",
    ] {
        assert!(within.contains(field), "{field} in {within}");
    }
    for part in [
        "claimed",
        "settled",
        "row 7",
        "try again",
        "panicked: oh",
        "giving up",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn an_outage_is_logged_once() {
    let (log, _guard) = Log::of(Level::INFO);
    let spy = Arc::new(Spy::new());
    spy.receive_all([message(1)]).await;
    for operation in ["claim", "settle"] {
        spy.disturb(operation, Trouble::Refuse(ErrorKind::Unavailable));
    }
    let router =
        Router::new(billing()).on("order.placed", |_: Context| async { Ok::<_, Failure>(()) });
    let run = until_idle(processor(&spy, router));
    let recovery = async {
        eventually("tried", async || spy.claim_limits.lock().unwrap().len() > 3).await;
        spy.calm("claim");
        eventually("tried", async || spy.settle_sizes.lock().unwrap().len() > 3).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        spy.calm("settle");
    };
    tokio::join!(run, recovery);
    let text = log.text();
    for part in [
        "cannot claim",
        "claiming works",
        "cannot settle",
        "settling works",
    ] {
        assert_eq!(text.matches(part).count(), 1, "{part} in {text}");
    }
}

/// Defect: a line for each look, for as long as it lasted.
#[tokio::test(start_paused = true)]
async fn a_backlog_that_is_not_known_is_logged_once() {
    use crate::faulty::{Fault, FaultyStore, memory};

    let (log, _guard) = Log::of(Level::INFO);
    let store = Arc::new(FaultyStore::new(memory().await));
    store.plan(
        "statistics",
        vec![Fault::Before(ErrorKind::Unavailable); 20],
    );
    let router = Router::new(billing()).on("x", |_: Context| async { Ok::<_, Failure>(()) });
    let second = Duration::from_secs(1);
    let processor = inbox::Processor::builder(store.clone())
        .router(router)
        .backlog_monitor(store, second * 60, second)
        .build()
        .unwrap();
    let shutdown = inbox::CancellationToken::new();
    let stop = async {
        tokio::time::sleep(second * 30).await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), stop);
    summary.unwrap();
    for line in ["backlog not known", "backlog known again"] {
        let told = log.lines(&["inbox::outage", line]);
        assert_eq!(told.len(), 1, "{}", log.text());
    }
}
