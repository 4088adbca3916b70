//! `/healthz` and `/readyz`, for supervisors and load balancers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use inbox::{CancellationToken, Inbox};
use tokio::{sync::Mutex, time::timeout};

/// For how long an answer of the store counts: everyone may ask, and must not be able to burden it.
const REMEMBERED: Duration = Duration::from_secs(2);

/// How long the store may take.
const PATIENCE: Duration = Duration::from_secs(3);

struct Readiness {
    store: Arc<dyn Inbox>,
    token: CancellationToken,
    last: Mutex<Option<(Instant, Answer)>>,
}

type Answer = (StatusCode, &'static str);

pub(super) fn router(store: Arc<dyn Inbox>, token: CancellationToken) -> Router {
    let readiness = Readiness {
        store,
        token,
        last: Mutex::new(None),
    };
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .with_state(Arc::new(readiness))
}

async fn ready(State(readiness): State<Arc<Readiness>>) -> Answer {
    if readiness.token.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "ending\n");
    }
    let mut last = readiness.last.lock().await;
    match *last {
        Some((asked, answer)) if asked.elapsed() < REMEMBERED => answer,
        _ => {
            let answer = ask(&*readiness.store).await;
            *last = Some((Instant::now(), answer));
            answer
        }
    }
}

async fn ask(store: &dyn Inbox) -> Answer {
    match timeout(PATIENCE, store.exists()).await {
        Ok(Ok(true)) => (StatusCode::OK, "ready\n"),
        Ok(Ok(false)) => (StatusCode::SERVICE_UNAVAILABLE, "the inbox is not set up\n"),
        Ok(Err(_)) | Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the store is unavailable\n",
        ),
    }
}
