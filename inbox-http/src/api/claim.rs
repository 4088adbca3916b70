//! `POST /v1/claim`: due messages, waited for if there are none.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::Response,
};
use inbox::{ClaimRequest, HandlerName, Leased, Result, Settled, Store as _, WorkerName};
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
    let body = shared.read(request).await?;
    let asked: ClaimIn = serde_json::from_slice(&body)?;
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
    let (store, request) = (Arc::clone(shared), request.clone());
    let claiming = async move {
        let claims = store.store.claim(&request).await?;
        for row in &claims.corrupt {
            tracing::error!(
                place = row.place,
                reason = row.reason,
                "corrupt row set aside"
            );
        }
        let lease = request.terms.length();
        let (mut leased, mut buried) = (Vec::new(), Vec::new());
        for one in claims.leased {
            match store.reason_to_bury(&one, lease) {
                Some(reason) => buried.push((one, reason)),
                None => leased.push(one),
            }
        }
        // What is too much for one answer is handed back as if it had not been claimed.
        let beyond = leased.split_off(fitting(&leased));
        drop(store.hold(beyond));
        let held = store.hold(leased);
        for (leased, reason) in buried {
            let key = &leased.lease.key;
            match store.bury(&leased, reason.clone()).await {
                Ok(Settled::Done) => tracing::warn!(%key, reason, "message is dead"),
                Ok(_) => {}
                // Its lease runs out, and the next claim tries again.
                Err(error) => tracing::warn!(%key, reason, %error, "dead message not settled"),
            }
        }
        Ok(held)
    };
    shared.without_caller(claiming).await
}

/// How many of these go into one answer: as many as its bytes allow, and one at least.
fn fitting(leased: &[Leased]) -> usize {
    let mut bytes = 0;
    let fits = |leased: &&Leased| {
        bytes += leased.message.payload().len();
        bytes <= MAX_BYTES
    };
    let number = leased.iter().take_while(fits).count();
    number.max(1).min(leased.len())
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        body::{Body, to_bytes},
        http::{Request, header},
    };
    use inbox::{Key, Kind, Message, MessageId, State, StoreExt as _};
    use tower::ServiceExt as _;

    use super::*;
    use crate::api::{Api, Token};

    const TOKEN: &str = "a-token-of-16-characters";

    async fn claim(router: &Router) -> Vec<String> {
        let request = Request::post("/v1/claim")
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(r#"{"handlers":["h"],"limit":10}"#))
            .unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let messages = answer["messages"].as_array().unwrap().iter();
        let id = |message: &serde_json::Value| message["id"].as_str().unwrap().to_owned();
        messages.map(id).collect()
    }

    #[tokio::test]
    async fn an_answer_has_a_limit_of_bytes() {
        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        let handler = HandlerName::new("h").unwrap();
        for id in ["1", "2", "3", "4"] {
            let (id, kind) = (MessageId::new(id).unwrap(), Kind::new("k").unwrap());
            let message = Message::new(handler.clone(), id, kind, vec![0_u8; 12 * 1024 * 1024]);
            let _ = store.receive_one(&message).await.unwrap();
        }
        let token = Token::new(TOKEN).unwrap();
        let api = Api::builder(store.clone()).token(token).build();
        let router = api.router();
        assert_eq!(claim(&router).await, ["1", "2"]);
        api.finish().await;
        // Handed back, as if it had not been claimed.
        for (id, state, attempts) in [
            ("2", State::Leased, 1),
            ("3", State::Pending, 0),
            ("4", State::Pending, 0),
        ] {
            let key = Key::new(handler.clone(), MessageId::new(id).unwrap());
            let record = store.get(&key).await.unwrap().unwrap();
            assert_eq!((record.state, record.attempts.started), (state, attempts));
        }
        assert_eq!(claim(&router).await, ["3", "4"]);
        assert!(claim(&router).await.is_empty());
    }
}
