//! Leases that were taken for a caller, who may be gone before they reach it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header::CONTENT_TYPE},
    response::Response,
};
use backon::{ExponentialBuilder, Retryable as _};
use http_body::{Frame, SizeHint};
use inbox::{
    AfterDead, Error, Extended, Lease, Leased, Outcome, Result, Settled, Settlement, Store as _,
    StoreExt as _, expiry_reason,
};
use serde::Serialize;
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{
    Shared,
    connection::Connection,
    problem::{Problem, ProblemType},
};

/// Messages under leases, which are handed back when this is dropped before they were sent: the
/// attempt is not counted, and another worker gets them at once.
pub(super) struct Held {
    shared: Arc<Shared>,
    leased: Vec<Leased>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.leased.is_empty()
    }

    pub(super) fn leased(&self) -> &[Leased] {
        &self.leased
    }

    pub(super) fn add(&mut self, leased: Vec<Leased>) {
        self.leased.extend(leased);
    }

    /// Renews the leases if they may have run out: as much time as they are long has passed since before they were
    /// asked for. What other workers have taken meanwhile, and are done with perhaps, is no longer held then.
    pub(super) async fn confirm(&mut self, asked: Instant, length: Duration) -> Result<()> {
        if self.leased.is_empty() || asked.elapsed() < length {
            return Ok(());
        }
        let leases = self.leased.iter().map(|leased| leased.lease.clone());
        let leases: Vec<Lease> = leases.collect();
        let extended = self.shared.store.extend(&leases, length).await?;
        let mut extended = extended.into_iter();
        self.leased.retain_mut(|leased| match extended.next() {
            Some(Extended::Until(until)) => {
                leased.lease.until = until;
                true
            }
            Some(Extended::LeaseLost) | None => false,
        });
        Ok(())
    }

    /// An answer with these bytes, which holds on to the leases until all of them are with the
    /// server's connection. If the caller has closed that before, they are not written.
    pub(super) fn respond(self, bytes: Vec<u8>, connection: Option<Connection>) -> Response {
        let body = HeldBody {
            bytes: Some(bytes.into()),
            held: self,
            connection,
        };
        let mut response = Response::new(Body::new(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let leased = std::mem::take(&mut self.leased);
        if let (false, Ok(runtime)) = (leased.is_empty(), Handle::try_current()) {
            let shared = Arc::clone(&self.shared);
            let releasing = async move { shared.release(&leased).await };
            self.shared.under_way.spawn_on(releasing, &runtime);
        }
    }
}

struct HeldBody {
    bytes: Option<Bytes>,
    held: Held,
    connection: Option<Connection>,
}

/// Ends the connection, whose caller has ended it already.
#[derive(Debug, thiserror::Error)]
#[error("the caller has gone")]
struct Gone;

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = Gone;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Gone>>> {
        let Some(bytes) = self.bytes.take() else {
            return Poll::Ready(None);
        };
        // The server writes what it is given here at once, so that there is no later moment to ask.
        if self.connection.as_ref().is_some_and(Connection::is_closed) {
            return Poll::Ready(Some(Err(Gone)));
        }
        self.held.leased.clear();
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// Writes an answer.
pub(super) fn json(answer: &impl Serialize) -> Result<Vec<u8>, Problem> {
    serde_json::to_vec(answer)
        .map_err(|_| Problem::new(ProblemType::Failed, "the answer cannot be written as JSON"))
}

impl Shared {
    pub(super) fn hold(self: &Arc<Self>, leased: Vec<Leased>) -> Held {
        Held {
            shared: Arc::clone(self),
            leased,
        }
    }

    /// Does `work` to its end, whether the caller waits for it or not: a claim that is given up half
    /// way may have taken messages. What it comes to is dropped then.
    pub(super) async fn without_caller<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T, Problem> {
        let (sender, done) = oneshot::channel();
        self.under_way.spawn(async move {
            // What nobody waits for is dropped here, so that its leases are on their way back
            // before this ends.
            let _ = sender.send(work.await);
        });
        match done.await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Problem::new(ProblemType::Failed, "the work did not end")),
        }
    }

    /// Why a message that was leased just now, for `lease`, is dead rather than handed out, and what that means
    /// for those behind it: its attempts were used up before this one, or it has expired.
    pub(super) fn reason_to_bury(
        &self,
        leased: &Leased,
        lease: Duration,
    ) -> Option<(String, AfterDead)> {
        if leased.attempts.started > self.retry.max_attempts() {
            return Some((self.retry.used_up(leased.attempts), self.after_dead));
        }
        Some((expiry_reason(leased, lease)?, AfterDead::Continue))
    }

    pub(super) async fn bury(
        &self,
        leased: &Leased,
        reason: String,
        after: AfterDead,
    ) -> Result<Settled> {
        let outcome = Outcome::Dead { reason, after };
        (|| self.store.settle_one(&leased.lease, outcome.clone()))
            .retry(ExponentialBuilder::default())
            .when(Error::is_retryable)
            .await
    }

    async fn release(&self, leased: &[Leased]) {
        let release = |leased: &Leased| Settlement {
            lease: leased.lease.clone(),
            outcome: Outcome::Release,
        };
        let settlements: Vec<_> = leased.iter().map(release).collect();
        if let Err(error) = self.settle_patiently(&settlements).await {
            let messages = leased.len();
            tracing::warn!(%error, messages, "claimed for a caller that has gone, and not handed back");
        }
    }

    /// Settles, and tries again for some seconds if the store cannot.
    pub(super) async fn settle_patiently(
        &self,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        (|| self.store.settle(settlements))
            .retry(ExponentialBuilder::default())
            .when(Error::is_retryable)
            .await
    }
}

#[cfg(test)]
mod tests;
