//! Webhooks: verify, store, then answer.
//!
//! A [`WebhookReceiver`] has an [`Endpoint`] per path: a [`Provider`], which says how requests are signed and
//! where the event's id and kind are, and the names of the handlers that get each event. A
//! [`Processor`](inbox::Processor) works on what is stored, whenever.
//!
//! | request | answer |
//! |---|---|
//! | a new event | 202, when the store has it for every handler |
//! | an event that the store has | 200 |
//! | a batch of CloudEvents | 202, or 200 when all are known, with a JSON array that has an answer for each; 207 when some are refused, 422 when all are |
//! | a batch of more than 10,000 events | 413 `batch-too-large` |
//! | to a path without an endpoint | 404 `unknown-endpoint` of the [service](WebhookReceiver::into_service); of a [router](WebhookReceiver::into_router) the application's own 404 |
//! | other than POST | 405 `method-not-allowed` |
//! | of another content type | 415 `wrong-content-type` |
//! | compressed, by `Content-Encoding` | 415 `encoded` |
//! | over the limit, too slow, or cut off | 413 `too-large`, 408 `too-slow`, 400 `broken` |
//! | without a signature, with more than 32, with a wrong one, with a time out of tolerance | 401 `signature-missing`, `wrong-signature`, `out-of-time`; before the body is read, where the headers show it |
//! | signed, and no event, or refused by the store | 422 `not-an-event`, `refused` |
//! | while the [gate](WebhookReceiver::backlog_gate) is shut, too many [bodies](crate::BodyBudget) are in memory, or the store is away | 503 `backlog-full`, `no-room`, `store-unavailable`, with `Retry-After` |
//!
//! What a client still sends when it is refused is read and thrown away for up to five seconds, since most read no
//! answer before they have sent everything.
//!
//! A body is stored as it came. **At GitHub, choose the content type `application/json`**: a form is taken too, but
//! is a form then to handlers, and its event is one text in it, in which no ordering field is found.
//!
//! Errors are problem documents (RFC 9457) with a member `code`; whatever is answered with one was not stored,
//! but for `store-unavailable`, of which it is not known, and `refused`, which may be about one of several
//! handlers. The provider sends it again, and a copy changes nothing.
//!
//! Signatures are compared in constant time, over the bytes of the body as they came, with each of the secrets: to
//! change one, add the new one, change it at the provider, and remove the old one. Requests that come at
//! the same time are stored together, in one call.
//!
//! An event whose signature does not cover its id (GitHub, Shopify, Twilio) could be stored twice by
//! one who has seen a signed request: TLS is what keeps that from others.

mod answers;
mod endpoint;
mod events;
mod intake;
mod provider;
mod service;
mod signature;
mod standard;
mod twilio;
#[cfg(test)]
mod vectors;
mod verify;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use inbox::{BacklogGate, Invalid, Store};

pub use endpoint::Endpoint;
pub use provider::Provider;
pub use service::WebhookService;
pub use signature::{Part, Signature};
pub use verify::{Delivery, Verify, VerifyError};

use intake::Intake;

use crate::{BodyBudget, body::Reading};

/// Receives webhooks: verifies them, stores them, and only then answers. See the
/// [module](crate::webhooks).
#[derive(Clone)]
pub struct WebhookReceiver {
    store: Arc<dyn Store>,
    endpoints: BTreeMap<String, Arc<Endpoint>>,
    gate: Option<BacklogGate>,
    reading: Reading,
    answer_timeout: Duration,
}

impl WebhookReceiver {
    /// A receiver that stores in `store`, and has no endpoint yet.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            endpoints: BTreeMap::new(),
            gate: None,
            reading: Reading {
                limit: 2 * 1024 * 1024,
                time: Duration::from_secs(10),
                budget: BodyBudget::default(),
            },
            answer_timeout: Duration::from_secs(5),
        }
    }

    /// Adds an endpoint at `path`, such as `/webhooks/github`.
    ///
    /// # Errors
    /// [`Invalid`] when the path is none or taken, or when the endpoint keeps events in order and the store
    /// cannot.
    pub fn endpoint(
        mut self,
        path: impl Into<String>,
        endpoint: Endpoint,
    ) -> Result<Self, Invalid> {
        let path = path.into();
        if !is_plain(&path) {
            return Err(Invalid::Malformed {
                what: "path of a webhook",
                expected: "a path that begins with a slash, without parameters",
            });
        }
        if endpoint.is_ordered() && !self.store.capabilities().ordering {
            return Err(Invalid::OutOfRange {
                what: "ordering field",
                expected: "left out: this store keeps no order",
            });
        }
        if self.endpoints.insert(path, Arc::new(endpoint)).is_some() {
            return Err(Invalid::Malformed {
                what: "path of a webhook",
                expected: "one that no other webhook has",
            });
        }
        Ok(self)
    }

    /// Answers 503 with `Retry-After` while the gate is shut, that is, while the backlog is over a limit.
    #[must_use]
    pub fn backlog_gate(mut self, gate: BacklogGate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Sets the longest body, in bytes; 2 MiB unless set. GitHub's are up to 25 MB. Keep it below the
    /// store's payload limit: above that the store refuses the event, with 422. Half of the
    /// [budget](Self::body_budget) is the most.
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

    /// Sets for how long a client may take to send the body; 10 seconds unless set.
    #[must_use]
    pub fn read_timeout(mut self, limit: Duration) -> Self {
        self.reading.time = limit;
        self
    }

    /// Sets for how long the store is waited for before the answer is 503; 5 seconds unless set. Slack
    /// waits for 3 seconds, Shopify for 5, GitHub for 10.
    #[must_use]
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit;
        self
    }

    /// A service of all endpoints, for any server. It stores by a task of the runtime that it is first called in.
    #[must_use]
    pub fn into_service(self) -> WebhookService {
        WebhookService::new(self)
    }

    /// A router with a route for each endpoint, to be merged into an application's.
    #[cfg(feature = "axum")]
    pub fn into_router<S: Clone + Send + Sync + 'static>(self) -> axum::Router<S> {
        let paths: Vec<String> = self.endpoints.keys().cloned().collect();
        let service = self.into_service();
        let add =
            |router: axum::Router<S>, path: String| router.route_service(&path, service.clone());
        paths.into_iter().fold(axum::Router::new(), add)
    }
}

/// Whether a request can have this path, and a router takes it for nothing but itself. One with a colon or an
/// asterisk in front of a segment it refuses with a panic, since that was a parameter once.
fn is_plain(path: &str) -> bool {
    let is_sent = |c: char| !c.is_control() && !" {}*?#".contains(c);
    path.starts_with('/') && path.chars().all(is_sent) && !path.contains("/:")
}

impl fmt::Debug for WebhookReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookReceiver")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}
