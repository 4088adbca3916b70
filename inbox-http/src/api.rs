//! The JSON API, by which programs in any language use an inbox over HTTP: they send messages, and
//! work on them under leases and fencing tokens.
//!
//! | `POST` to | does | as |
//! |---|---|---|
//! | `/v1/messages` | stores a message, or many | [`Store::receive`] |
//! | `/v1/claim` | hands out due messages, waiting for some if asked to | [`Store::claim`] |
//! | `/v1/settle` | ends leases | [`Store::settle`] |
//! | `/v1/extend` | renews leases | [`Store::extend`] |
//! | `/v1/begin` | asks whether a message may be handled now | [`Store::begin`] |
//!
//! `GET /v1/openapi.json` is their description (OpenAPI 3.1), and the reference. All but that needs a
//! [`Token`]. What is wrong with a request is a problem document (RFC 9457): its `type` and status
//! tell an outage, which is worth a repetition, from a request that never succeeds and from an inbox
//! that has to be set up. What is wrong with one message of many is that message's answer, and the
//! others go through.
//!
//! # What happens to messages whose worker goes away
//! - A claim whose caller has gone before it was answered takes nothing, or hands back what it took:
//!   no attempt is lost. That is so up to the moment at which the answer is written, where the server
//!   gives each request its [`Connection`]. What has been written counts as delivered: whether it waits in
//!   a buffer of the system or of the network when the caller closes the connection cannot be known. If
//!   it does not arrive, the lease runs out and the attempt counts, as that of a worker that was
//!   killed. Over HTTP/2 a request that is cancelled alone is noticed when the server reads that.
//! - A lease that may have run out by the time at which the store has answered is renewed before its message is
//!   handed out. What another worker has taken by then is not: a claim leaves it out, and `begin` answers `busy`.
//! - A message whose attempts are used up is dead rather than handed out again, so that one that kills
//!   its workers comes to an end. Whether it then holds up the later messages of its ordering key is the
//!   API's [setting](ApiBuilder::after_dead).
//!
//! # Load
//! Of the claims that wait for the same handlers, one at a time looks for messages, and the next one
//! when that has found some: a thousand waiting workers ask the store no more often than one.
//!
//! An answer has up to 32 MiB of payloads. A claim learns their sizes as it goes: it takes ten messages first, or
//! fewer if those of the last claim were large, then as many as will fit, but no more than four times as many
//! as before. So one of 100 small messages is three round trips to the store, one of ten is one, and what
//! was read in vain is handed back as if it had not been claimed.
//!
//! ```
//! use inbox::CancellationToken;
//! use inbox_http::api::{Api, Token};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = inbox::connect("memory://").await?;
//! store.migrate().await?;
//! let token = Token::new(&std::env::var("INBOX_TOKEN")?)?;
//! let shutdown = CancellationToken::new(); // cancel it to end claims that wait
//! let api = Api::builder(store).token(token).shutdown(shutdown).build();
//! let router: axum::Router = api.router();
//! # let _ = router;
//! # Ok(())
//! # }
//! ```
//!
//! [`Store::receive`]: inbox::Store::receive
//! [`Store::claim`]: inbox::Store::claim
//! [`Store::settle`]: inbox::Store::settle
//! [`Store::extend`]: inbox::Store::extend
//! [`Store::begin`]: inbox::Store::begin

mod begin;
mod body;
mod claim;
mod connection;
#[cfg(feature = "metrics")]
mod counting;
mod extend;
mod held;
mod messages;
mod openapi;
mod problem;
mod settle;
mod turns;
mod wire;

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get, post},
};
use inbox::{AfterDead, BacklogGate, CancellationToken, RetryPolicy, Store, pace::Pace};
use tokio_util::task::TaskTracker;

pub use self::connection::{Connection, WatchedStream};
use self::{
    problem::{Problem, ProblemType},
    turns::Turns,
};
pub use crate::Token;
use crate::{BodyBudget, Guard, body::Reading, linger::lingering};

/// How long a body may take to arrive.
const READ_TIME: Duration = Duration::from_secs(30);

/// The largest body of a request unless set: 32 MiB.
pub const BODY_LIMIT: usize = 32 * 1024 * 1024;

/// The most messages, settlements or leases in one request.
const MAX_BATCH: usize = 1000;

/// The JSON API on a store. See the [module](self).
pub struct Api {
    shared: Arc<Shared>,
}

/// Sets up an [`Api`]; from [`Api::builder`].
pub struct ApiBuilder {
    store: Arc<dyn Store>,
    guard: Guard,
    retry: RetryPolicy,
    after_dead: AfterDead,
    reading: Reading,
    gate: Option<BacklogGate>,
    shutdown: CancellationToken,
}

/// What all requests have in common.
struct Shared {
    store: Arc<dyn Store>,
    guard: Guard,
    retry: RetryPolicy,
    after_dead: AfterDead,
    reading: Reading,
    gate: Option<BacklogGate>,
    shutdown: CancellationToken,
    turns: Turns,
    pace: Pace,
    /// Work that goes on without its caller.
    under_way: TaskTracker,
}

impl Api {
    /// An API on `store`. It refuses every caller until a [token](ApiBuilder::token) is added.
    #[must_use]
    pub fn builder(store: Arc<impl Store + ?Sized>) -> ApiBuilder {
        ApiBuilder {
            // An Arc of a store is a store itself; the second Arc erases its type.
            store: Arc::new(store),
            guard: Guard::default(),
            retry: RetryPolicy::default(),
            after_dead: AfterDead::default(),
            reading: Reading {
                limit: BODY_LIMIT,
                time: READ_TIME,
                budget: BodyBudget::default(),
            },
            gate: None,
            shutdown: CancellationToken::new(),
        }
    }

    /// The paths under `/v1`.
    pub fn router(&self) -> Router {
        let shared = Arc::clone(&self.shared);
        let mut router = Router::new();
        for (path, route) in routes() {
            router = router.route(path, route.fallback(method_not_allowed));
        }
        router
            .layer(middleware::from_fn_with_state(
                Arc::clone(&shared),
                require_token,
            ))
            .route(
                openapi::PATH,
                get(openapi::document).fallback(method_not_allowed),
            )
            .route_layer(middleware::map_request(lingering))
            .with_state(shared)
    }

    /// Waits for what goes on without its callers: claims that were under way when they went, and
    /// the handing back of what those took. To be called once the server has ended.
    pub async fn finish(&self) {
        self.shared.under_way.close();
        self.shared.under_way.wait().await;
    }
}

/// All that need a token.
fn routes() -> [(&'static str, MethodRouter<Arc<Shared>>); 5] {
    [
        ("/v1/messages", post(messages::receive)),
        ("/v1/claim", post(claim::claim)),
        ("/v1/settle", post(settle::settle)),
        ("/v1/extend", post(extend::extend)),
        ("/v1/begin", post(begin::begin)),
    ]
}

/// Before anything of the body is read.
async fn require_token(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    if shared.guard.shows_token(request.headers()) {
        next.run(request).await
    } else {
        let detail = "send a valid token: `Authorization: Bearer …`";
        Problem::new(ProblemType::Unauthorized, detail).into_response()
    }
}

async fn method_not_allowed() -> Problem {
    Problem::new(
        ProblemType::MethodNotAllowed,
        "operations are POST, the description is GET",
    )
}

/// The answer of a service that serves an [`Api`] to paths that it does not have: a problem document,
/// with status 404.
pub async fn not_found() -> Response {
    Problem::new(
        ProblemType::NotFound,
        "the API's paths are in /v1/openapi.json, if it is served here",
    )
    .into_response()
}

impl ApiBuilder {
    /// Adds a token that callers may show. Several are for rotation: add the new one, change the
    /// callers, remove the old one.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.guard.add_token(token);
        self
    }

    /// Sets after how many attempts a message is dead, and how long it waits for the next one where
    /// its worker does not say. Default: [`RetryPolicy::default`].
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sets what becomes of the later messages of an ordering key when one of it is dead, where its worker does not
    /// say: also when its attempts were used up by workers that went away. One that has expired never holds
    /// others up. Default: they go on.
    #[must_use]
    pub fn after_dead(mut self, after: AfterDead) -> Self {
        self.after_dead = after;
        self
    }

    /// Sets the largest body of a request, in bytes. Default: 32 MiB, enough for a payload at the
    /// stores' own default limit as base64. It bounds a request as a whole: the store's limit is that
    /// of each payload. Half of the [budget](Self::body_budget) is the most.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.reading.limit = bytes;
        self
    }

    /// Sets how many bytes of bodies may be in memory at one time, and who shares that; a budget of its own
    /// unless set.
    #[must_use]
    pub fn body_budget(mut self, budget: BodyBudget) -> Self {
        self.reading.budget = budget;
        self
    }

    /// Answers new messages (`/v1/messages`) with 503 and `Retry-After`, and stores none, while the gate is
    /// shut, that is, while the backlog is over a limit. What makes the backlog smaller is served as always.
    #[must_use]
    pub fn backlog_gate(mut self, gate: BacklogGate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Sets what ends the claims that wait: they are answered at once, with no messages. Those that
    /// come later are too, after a second at most. A server that waits for its requests at its end
    /// needs it.
    #[must_use]
    pub fn shutdown(mut self, shutdown: CancellationToken) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// Builds the API. No I/O happens yet.
    #[must_use]
    pub fn build(self) -> Api {
        #[cfg(feature = "metrics")]
        let store: Arc<dyn Store> = Arc::new(counting::Counting(self.store));
        #[cfg(not(feature = "metrics"))]
        let store = self.store;
        let shared = Shared {
            store,
            guard: self.guard,
            retry: self.retry,
            after_dead: self.after_dead,
            reading: self.reading,
            gate: self.gate,
            shutdown: self.shutdown,
            turns: Turns::default(),
            pace: Pace::default(),
            under_way: TaskTracker::new(),
        };
        Api {
            shared: Arc::new(shared),
        }
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("tokens", &self.shared.guard.tokens())
            .field("retry", &self.shared.retry)
            .field("reading", &self.shared.reading)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ApiBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiBuilder")
            .field("tokens", &self.guard.tokens())
            .field("retry", &self.retry)
            .field("reading", &self.reading)
            .finish_non_exhaustive()
    }
}
