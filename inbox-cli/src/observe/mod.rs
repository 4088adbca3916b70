//! What a command that goes on tells of itself over HTTP: `/metrics`, `/healthz` and `/readyz`.

mod metrics;
mod probes;

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::Router;
use inbox::{CancellationToken, Inbox, service::PartHealth};
use inbox_http::Guard;

pub(crate) use self::{metrics::Metrics, probes::Detail};

/// Asks a part of this process how it does.
type Ask = Box<dyn Fn() -> PartHealth + Send + Sync>;

/// All parts of this process that run. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Parts(Arc<Mutex<Vec<Ask>>>);

impl Parts {
    pub(crate) fn add(&self, ask: impl Fn() -> PartHealth + Send + Sync + 'static) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Box::new(ask));
    }

    fn health(&self) -> Vec<PartHealth> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|ask| ask()).collect()
    }
}

/// `/healthz` and `/readyz`. A cancelled `token` means that the process ends.
pub(crate) fn probes(
    store: &Arc<dyn Inbox>,
    token: &CancellationToken,
    parts: &Parts,
    detail: Detail,
) -> Router {
    probes::router(Arc::clone(store), token.clone(), parts.clone(), detail)
}

/// All three for all who can reach the address.
pub(crate) fn everything(
    store: &Arc<dyn Inbox>,
    token: &CancellationToken,
    parts: Parts,
) -> Result<Router> {
    let metrics = Metrics::begin(store, token)?;
    let probes = probes(store, token, &parts, Detail::Reasons);
    Ok(metrics.router(Guard::default()).merge(probes))
}
