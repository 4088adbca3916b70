//! How a service does: written by its parts, read by probes.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Serialize, Serializer};

use super::part::Part;
use crate::{
    BacklogGate, Inbox,
    patience::{Patience, answer_of},
    telemetry::OUTAGE,
    vitals::Vitals,
};

/// A loop that has not turned for so long counts as stuck.
const STUCK: Duration = Duration::from_secs(15);

/// How long the store may take to answer a probe.
const PROBE: Duration = Duration::from_secs(10);

/// Tells how a [`Service`](crate::Service) does. Cheap to ask and to clone: it reads what the parts and
/// a background probe of the store have written down, and asks nobody.
///
/// ```text
/// .route("/healthz", get(|| async move { status(health.is_live()) }))  // 200 or 503
/// .route("/readyz", get(|| async move { status(ready.is_ready()) }))
/// ```
#[derive(Clone)]
pub struct Health(Arc<Shared>);

struct Shared {
    parts: Vec<Board>,
    readiness: Mutex<Readiness>,
}

struct Readiness {
    /// Why the service is not ready: it has not begun, it ends, or the store does not answer.
    unready: Option<String>,
    /// From then on no answer of the store makes it ready.
    is_ending: bool,
}

/// How a service does, at one moment. Serialises to what a probe may answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Every loop that runs still turns. When this is false the process should be restarted. An outage
    /// of the store is no reason: restarts do not mend it.
    pub is_live: bool,
    /// The service runs and is not about to end, and the store has answered the latest probe with the
    /// right schema. When this is false no requests should be sent here.
    pub is_ready: bool,
    /// Why it is not ready.
    pub unready: Option<String>,
    /// Whether any part is [degraded](PartHealth::degraded).
    pub is_degraded: bool,
    /// Part by part, in the order in which they were added.
    pub parts: Vec<PartHealth>,
}

/// How one part does, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartHealth {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub stage: Stage,
    /// Whether its loop turns. True of one that does not run.
    pub is_live: bool,
    /// What keeps it from its work at present, and why: an outage, a backlog that holds its source back,
    /// a circuit or pause, a failure after which it is restarted. Empty when all is well.
    pub degraded: Vec<String>,
    /// How long ago its work last went well: a processor's claim was answered, a receiver's batch stored, a
    /// janitor's sweep ended, be it with nothing to do. `None` before that, when it does not run, and of other
    /// parts. As JSON it is `last_success_seconds`.
    #[serde(rename = "last_success_seconds", serialize_with = "seconds")]
    pub last_success: Option<Duration>,
}

/// Where a part stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stage {
    /// It has not begun.
    Waiting,
    /// It runs.
    Running,
    /// It has failed, and begins again soon.
    Restarting,
    /// It has come to its end.
    Ended,
    /// It has failed.
    Failed,
}

fn seconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    duration
        .map(|duration| duration.as_secs_f64())
        .serialize(serializer)
}

impl PartHealth {
    /// Of a part that no service runs.
    pub(crate) fn alone(name: &str, vitals: &Vitals, gate: Option<&BacklogGate>) -> Self {
        let stalled = vitals.stalled();
        Self {
            name: name.to_owned(),
            stage: match stalled {
                Some(_) => Stage::Running,
                None => Stage::Waiting,
            },
            is_live: stalled.is_none_or(turns),
            degraded: degraded(vitals, gate),
            last_success: vitals.last_success(),
        }
    }
}

/// Whether a loop that has not turned for so long still counts as alive.
fn turns(stalled: Duration) -> bool {
    stalled < STUCK
}

fn degraded(vitals: &Vitals, gate: Option<&BacklogGate>) -> Vec<String> {
    let mut degraded = vitals.troubles();
    if gate.is_some_and(|gate| !gate.is_open()) {
        degraded.push("source: held back while the backlog is over its limit".into());
    }
    degraded
}

impl Health {
    pub(super) fn of(parts: &[Part]) -> Self {
        Self(Arc::new(Shared {
            parts: parts.iter().map(Board::of).collect(),
            readiness: Mutex::new(Readiness {
                unready: Some("it has not begun".into()),
                is_ending: false,
            }),
        }))
    }

    /// Everything.
    #[must_use]
    pub fn report(&self) -> Report {
        let parts: Vec<_> = self.0.parts.iter().map(Board::health).collect();
        let unready = self.readiness().unready.clone();
        Report {
            is_live: parts.iter().all(|part| part.is_live),
            is_ready: unready.is_none(),
            unready,
            is_degraded: parts.iter().any(|part| !part.degraded.is_empty()),
            parts,
        }
    }

    /// [`Report::is_live`] alone.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.0.parts.iter().all(Board::is_live)
    }

    /// [`Report::is_ready`] alone.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.readiness().unready.is_none()
    }

    fn readiness(&self) -> MutexGuard<'_, Readiness> {
        let readiness = self.0.readiness.lock();
        readiness.unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn board(&self, index: usize) -> Option<Board> {
        self.0.parts.get(index).cloned()
    }

    /// No requests should come any more.
    pub(super) fn ends(&self, why: &str) {
        *self.readiness() = Readiness {
            unready: Some(why.to_owned()),
            is_ending: true,
        };
    }

    /// Nothing runs any more.
    fn ended(&self) {
        self.ends("it has ended");
        for board in &self.0.parts {
            board.dropped();
        }
    }

    /// Takes note of the store's answer, and returns what was so before.
    fn probed(&self, unready: Option<String>) -> Option<String> {
        let mut readiness = self.readiness();
        if readiness.is_ending {
            return unready;
        }
        std::mem::replace(&mut readiness.unready, unready)
    }

    /// Asks the store once per interval. Never returns.
    pub(super) async fn probe(&self, inbox: &dyn Inbox, interval: Duration) {
        let patience = Patience::new(PROBE);
        loop {
            let answer = match answer_of(patience.within("exists", inbox.exists())).await {
                Ok(true) => None,
                Ok(false) => Some("the inbox is not set up, or not of this version".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            let before = self.probed(answer.clone());
            match (before, answer) {
                (None, Some(why)) => tracing::warn!(target: OUTAGE, why, "not ready"),
                (Some(_), None) => tracing::info!(target: OUTAGE, "ready"),
                _ => {}
            }
            tokio::time::sleep(interval).await;
        }
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Health").field(&self.report()).finish()
    }
}

/// Tells when it is dropped that the service has ended, also where its future is dropped before.
pub(super) struct TellsEnd(pub(super) Health);

impl Drop for TellsEnd {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// Where one part writes how it does.
#[derive(Clone)]
pub(super) struct Board(Arc<Inner>);

struct Inner {
    name: String,
    vitals: Vitals,
    gate: Option<BacklogGate>,
    /// Where it stands, and why it failed last.
    stage: Mutex<(Stage, Option<String>)>,
}

impl Board {
    fn of(part: &Part) -> Self {
        Self(Arc::new(Inner {
            name: part.name.clone(),
            vitals: part.work.vitals(),
            gate: part.work.gate(),
            stage: Mutex::new((Stage::Waiting, None)),
        }))
    }

    pub(super) fn vitals(&self) -> &Vitals {
        &self.0.vitals
    }

    pub(super) fn runs(&self) {
        self.set(Stage::Running, None);
    }

    pub(super) fn ended(&self) {
        self.set(Stage::Ended, None);
    }

    pub(super) fn restarts(&self, why: String) {
        self.set(Stage::Restarting, Some(why));
    }

    pub(super) fn failed(&self, why: String) {
        self.set(Stage::Failed, Some(why));
    }

    /// If it has not come to an end, this is one. A part that is dropped may write once more after that.
    fn dropped(&self) {
        let is_over = matches!(self.stage().0, Stage::Ended | Stage::Failed);
        if !is_over {
            self.ended();
        }
    }

    fn set(&self, stage: Stage, why: Option<String>) {
        let mut present = self.stage();
        if present.0 != Stage::Ended {
            *present = (stage, why);
        }
    }

    fn stage(&self) -> MutexGuard<'_, (Stage, Option<String>)> {
        self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_live(&self) -> bool {
        self.0.vitals.stalled().is_none_or(turns)
    }

    fn health(&self) -> PartHealth {
        let (stage, why) = self.stage().clone();
        let mut degraded = degraded(&self.0.vitals, self.0.gate.as_ref());
        degraded.extend(why.map(|why| format!("failed: {why}")));
        PartHealth {
            name: self.0.name.clone(),
            stage,
            is_live: self.is_live(),
            degraded,
            last_success: self.0.vitals.last_success(),
        }
    }
}
