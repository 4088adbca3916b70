//! `POST /v1/claim`: due messages, waited for if there are none.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::Response,
};
use inbox::{
    ClaimRequest, Claims, HandlerName, Leased, Outcome, Result, Settled, Settlement, Store as _,
    WorkerName, pace::next,
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    MAX_BATCH, Shared,
    connection::Connection,
    held::{Held, json},
    problem::Problem,
    wire::{LeasedView, seconds, terms},
};

/// The most messages in one answer.
const MAX_CLAIM: u32 = 100;

/// The most bytes of payload in one answer, unless the first message alone has more.
const MAX_BYTES: usize = 32 * 1024 * 1024;

/// The longest wait: what proxies leave a request without an answer.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// How often a claim that waits looks for messages in addition to the store's wake-ups: soon after
/// the last one, then less and less often.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long a claim waits at most that comes after the shutdown, for nothing: its worker may ask
/// again at once.
const ENDING: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimIn {
    handlers: Vec<HandlerName>,
    #[serde(default = "one")]
    limit: u32,
    lease_seconds: Option<f64>,
    worker: Option<WorkerName>,
    #[serde(default)]
    wait_seconds: f64,
    #[serde(default)]
    base64: bool,
}

fn one() -> u32 {
    1
}

#[derive(Serialize)]
struct ClaimOut<'a> {
    messages: Vec<LeasedView<'a>>,
}

pub(super) async fn claim(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let connection = request.extensions().get::<Connection>().cloned();
    let asked: ClaimIn = serde_json::from_slice(&shared.read(request).await?)?;
    let wait = seconds("wait_seconds", asked.wait_seconds)?;
    if wait > MAX_WAIT {
        return Err(Problem::invalid("wait_seconds may be up to 60"));
    }
    if asked.handlers.is_empty() || asked.handlers.len() > MAX_BATCH {
        return Err(Problem::invalid("handlers must name 1 to 1000 handlers"));
    }
    if asked.limit == 0 || asked.limit > MAX_CLAIM {
        return Err(Problem::invalid("limit must be within 1 and 100"));
    }
    let request = ClaimRequest {
        handlers: asked.handlers,
        limit: asked.limit,
        terms: terms(asked.lease_seconds, asked.worker)?,
        run_limit: 1,
    };
    let deadline = Instant::now() + wait;
    let held = if shared.shutdown.is_cancelled() {
        sleep(wait.min(ENDING)).await;
        shared.hold(Vec::new())
    } else {
        let held = take(&shared, &request).await?;
        if held.is_empty() && !wait.is_zero() {
            wait_and_take(&shared, &request, deadline).await?
        } else {
            held
        }
    };
    let view = |leased| LeasedView::new(leased, asked.base64);
    let messages = held.leased().iter().map(view).collect();
    let bytes = json(&ClaimOut { messages })?;
    Ok(held.respond(bytes, connection))
}

/// Waits for its turn, and then for messages. Dropped with the caller's connection.
async fn wait_and_take(
    shared: &Arc<Shared>,
    request: &ClaimRequest,
    deadline: Instant,
) -> Result<Held, Problem> {
    let line = shared.turns.line(&request.handlers);
    let looking = async {
        let mut watch = line.lock().await;
        // Before looking, so that nothing can come between.
        watch.begin(&*shared.store, &request.handlers).await;
        let (mut pause, longest) = POLL;
        loop {
            let held = take(shared, request).await?;
            if !held.is_empty() {
                return Ok(held);
            }
            tokio::select! {
                () = watch.woken() => pause = POLL.0,
                () = sleep(pause) => pause = (pause * 2).min(longest),
            }
        }
    };
    tokio::select! {
        biased;
        held = looking => held,
        () = shared.shutdown.cancelled() => Ok(shared.hold(Vec::new())),
        () = sleep_until(deadline) => Ok(shared.hold(Vec::new())),
    }
}

/// Claims once, for a caller who may go away meanwhile.
async fn take(shared: &Arc<Shared>, request: &ClaimRequest) -> Result<Held, Problem> {
    let claiming = take_in_steps(Arc::clone(shared), request.clone());
    shared.without_caller(claiming).await
}

/// No more at a time than will fit into the answer, as far as that can be known.
async fn take_in_steps(shared: Arc<Shared>, request: ClaimRequest) -> Result<Held> {
    let (asked, length) = (Instant::now(), request.terms.length());
    let (mut held, mut room, mut largest) = (shared.hold(Vec::new()), MAX_BYTES, 0);
    let mut step = shared.pace.first(request.limit, room);
    while step > 0 {
        let part = ClaimRequest {
            limit: step,
            ..request.clone()
        };
        let claims = match shared.store.claim(&part).await {
            Ok(claims) => claims,
            Err(error) if held.is_empty() => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "what was claimed before is handed out");
                break;
            }
        };
        let is_last = claims.leased.len() + claims.corrupt.len() < step as usize;
        largest = claims.leased.iter().map(size).fold(largest, usize::max);
        let (mut leased, dead) = sift(&shared, claims, length);
        if !dead.is_empty() {
            let burying = shared.under_way.spawn(bury(Arc::clone(&shared), dead));
            // It may take longer than a lease. Where none runs out meanwhile, the next claim is to find what the
            // dead ones have held up.
            if held.is_empty() && leased.is_empty() {
                let _ = burying.await;
            }
        }
        // What is too much for one answer is handed back as if it had not been claimed.
        let beyond = leased.split_off(fitting(&leased, room, held.is_empty()));
        let is_full = !beyond.is_empty();
        drop(shared.hold(beyond));
        room = room.saturating_sub(leased.iter().map(size).sum());
        held.add(leased);
        if is_last || is_full {
            break;
        }
        let taken = u32::try_from(held.leased().len()).unwrap_or(u32::MAX);
        step = next(step, largest, room).min(request.limit.saturating_sub(taken));
    }
    if largest > 0 {
        shared.pace.saw(largest);
    }
    held.confirm(asked, length).await?;
    Ok(held)
}

/// What may be handed out of a claim, and the ends of all others.
fn sift(shared: &Shared, claims: Claims, lease: Duration) -> (Vec<Leased>, Vec<Settlement>) {
    for row in &claims.corrupt {
        tracing::error!(
            place = row.place,
            reason = row.reason,
            "corrupt row set aside"
        );
    }
    let (mut good, mut dead) = (Vec::new(), Vec::new());
    for leased in claims.leased {
        match shared.reason_to_bury(&leased, lease) {
            None => good.push(leased),
            Some((reason, after)) => dead.push(Settlement {
                lease: leased.lease,
                outcome: Outcome::Dead { reason, after },
            }),
        }
    }
    (good, dead)
}

async fn bury(shared: Arc<Shared>, dead: Vec<Settlement>) {
    let settled = match shared.settle_patiently(&dead).await {
        Ok(settled) => settled,
        Err(error) => {
            // Their leases run out, and the next claim tries again.
            tracing::warn!(%error, messages = dead.len(), "dead messages not settled");
            return;
        }
    };
    for (settlement, settled) in dead.iter().zip(settled) {
        if let (Outcome::Dead { reason, .. }, Settled::Done) = (&settlement.outcome, settled) {
            tracing::warn!(key = %settlement.lease.key, reason, "message is dead");
        }
    }
}

fn size(leased: &Leased) -> usize {
    leased.message.payload().len()
}

/// How many of these go into what is left of an answer: as many as its bytes allow, and one at least if it
/// is the first.
fn fitting(leased: &[Leased], room: usize, is_first: bool) -> usize {
    let mut bytes = 0;
    let fits = |leased: &&Leased| {
        bytes += size(leased);
        bytes <= room
    };
    let number = leased.iter().take_while(fits).count();
    number.max(usize::from(is_first)).min(leased.len())
}

#[cfg(test)]
mod tests;
