//! What a layer is told.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use inbox::HandlerName;

use crate::{BodyBudget, body::Reading};

/// Whether requests have to have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// One without is refused.
    Required,
    /// One without passes, as if the layer were not there.
    Optional,
    /// All pass, and a key means nothing.
    Ignored,
}

/// What becomes of a copy that comes while the first request is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// It is told to come again, with 409 and `Retry-After`.
    Refuse,
    /// It waits for the first one's response, for up to so long, and then is told to come again.
    Wait(Duration),
}

type Caller = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;
type Fingerprint = Arc<dyn Fn(&Parts, &Bytes) -> Vec<u8> + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) handler: HandlerName,
    pub(super) methods: HashMap<Method, Demand>,
    pub(super) routes: HashMap<(Method, String), Demand>,
    pub(super) caller: Option<Caller>,
    pub(super) fingerprint_headers: Vec<HeaderName>,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) keep_status: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
    pub(super) keep_header: Arc<dyn Fn(&HeaderName) -> bool + Send + Sync>,
    pub(super) reading: Reading,
    pub(super) response_limit: usize,
    /// The URL, and the header that points to it.
    pub(super) documentation: Option<(String, HeaderValue)>,
    /// The status of another request with the same key.
    pub(super) key_reused: StatusCode,
    /// The header that marks a replay.
    pub(super) marker: HeaderName,
}

const DRAFT_MARKER: HeaderName = HeaderName::from_static("idempotency-replayed");
const STRIPE_MARKER: HeaderName = HeaderName::from_static("idempotent-replayed");

impl Settings {
    pub(super) fn draft(handler: HandlerName) -> Self {
        let mut settings = Self {
            handler,
            methods: HashMap::new(),
            routes: HashMap::new(),
            caller: None,
            fingerprint_headers: Vec::new(),
            fingerprint: None,
            keep_status: Arc::new(|_| true),
            // Cookies are credentials.
            keep_header: Arc::new(|name| !matches!(*name, header::DATE | header::SET_COOKIE)),
            reading: Reading {
                limit: 2 * 1024 * 1024,
                time: Duration::from_secs(30),
                budget: BodyBudget::default(),
            },
            response_limit: 1024 * 1024,
            documentation: None,
            key_reused: StatusCode::UNPROCESSABLE_ENTITY,
            marker: DRAFT_MARKER,
        };
        settings.follow_draft();
        settings
    }

    pub(super) fn follow_draft(&mut self) {
        let methods = [Method::POST, Method::PATCH];
        self.methods = methods.map(|method| (method, Demand::Required)).into();
        self.keep_status = Arc::new(|status| {
            let asks_for_another = matches!(status.as_u16(), 408 | 425 | 429);
            !status.is_server_error() && !asks_for_another
        });
        self.key_reused = StatusCode::UNPROCESSABLE_ENTITY;
        self.marker = DRAFT_MARKER;
    }

    pub(super) fn follow_stripe(&mut self) {
        self.methods = [(Method::POST, Demand::Optional)].into();
        self.keep_status = Arc::new(|status| !matches!(status.as_u16(), 400 | 401 | 409 | 429));
        self.key_reused = StatusCode::BAD_REQUEST;
        self.marker = STRIPE_MARKER;
    }

    pub(super) fn demand_of(&mut self, methods: impl IntoIterator<Item = Method>, demand: Demand) {
        let demands = methods.into_iter().map(|method| (method, demand));
        self.methods.extend(demands);
    }

    pub(super) fn demand(&self, method: &Method, route: &str) -> Demand {
        let exception = if self.routes.is_empty() {
            None
        } else {
            self.routes.get(&(method.clone(), route.to_owned()))
        };
        let demand = exception.or_else(|| self.methods.get(method));
        demand.copied().unwrap_or(Demand::Ignored)
    }
}
