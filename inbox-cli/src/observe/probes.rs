//! `/healthz` and `/readyz`, for supervisors and load balancers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use inbox::{CancellationToken, Inbox, service::PartHealth};
use tokio::{sync::Mutex, time::timeout};

use super::Parts;

/// For how long an answer of the store counts: everyone may ask, and must not be able to burden it.
const REMEMBERED: Duration = Duration::from_secs(2);

/// How long the store may take.
const PATIENCE: Duration = Duration::from_secs(3);

struct Probes {
    store: Arc<dyn Inbox>,
    token: CancellationToken,
    parts: Parts,
    detail: Detail,
    last: Mutex<Option<(Instant, Answer)>>,
}

type Answer = (StatusCode, &'static str);

pub(super) fn router(
    store: Arc<dyn Inbox>,
    token: CancellationToken,
    parts: Parts,
    detail: Detail,
) -> Router {
    let probes = Probes {
        store,
        token,
        parts,
        detail,
        last: Mutex::new(None),
    };
    Router::new()
        .route("/healthz", get(live))
        .route("/readyz", get(ready))
        .with_state(Arc::new(probes))
}

/// A loop that does not turn any more is mended by a restart; an outage of the store is not.
async fn live(State(probes): State<Arc<Probes>>) -> (StatusCode, String) {
    let parts = probes.parts.health();
    let stuck = parts.iter().filter(|part| !part.is_live);
    let stuck: Vec<String> = stuck
        .map(|part| format!("stuck: {}\n", part.name))
        .collect();
    let text = match (stuck.is_empty(), probes.detail) {
        (true, _) => return (StatusCode::OK, "alive\n".to_owned()),
        (false, Detail::Reasons) => stuck.concat(),
        (false, Detail::Brief) => "stuck\n".to_owned(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

/// How much is told of what does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Each trouble with its reason, which may name hosts and handlers.
    Reasons,
    /// That there is one: for an address that senders reach.
    Brief,
}

/// The answer in the first line, and behind it what does not work at present. That alone is no reason to send no
/// requests here, and it may be in every replica.
async fn ready(State(probes): State<Arc<Probes>>) -> (StatusCode, String) {
    let (status, mut text) = probes.answer().await;
    let troubles: String = probes.parts.health().iter().map(troubles).collect();
    match probes.detail {
        Detail::Reasons => text.push_str(&troubles),
        Detail::Brief if troubles.is_empty() => {}
        Detail::Brief => text.push_str("degraded: the log has the reasons\n"),
    }
    (status, text)
}

fn troubles(part: &PartHealth) -> String {
    // What a broker or a store says may have several lines.
    let one_line = |why: &String| why.split_whitespace().collect::<Vec<_>>().join(" ");
    let degraded = part.degraded.iter();
    degraded
        .map(|why| format!("degraded: {}: {}\n", part.name, one_line(why)))
        .collect()
}

impl Probes {
    async fn answer(&self) -> (StatusCode, String) {
        if self.token.is_cancelled() {
            return (StatusCode::SERVICE_UNAVAILABLE, "ending\n".to_owned());
        }
        let mut last = self.last.lock().await;
        let (status, text) = match *last {
            Some((asked, answer)) if asked.elapsed() < REMEMBERED => answer,
            _ => {
                let answer = ask(&*self.store).await;
                *last = Some((Instant::now(), answer));
                answer
            }
        };
        (status, text.to_owned())
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
