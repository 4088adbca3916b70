//! Idempotent endpoints, by the `Idempotency-Key` header of requests.
//!
//! An [`IdempotencyLayer`] follows [draft-ietf-httpapi-idempotency-key-header-07][draft] unless set
//! otherwise:
//!
//! | request | answer |
//! |---|---|
//! | the first with its key | the service's; kept, if its status is to be kept |
//! | the same again | the kept response, byte for byte, marked by `idempotency-replayed: true` |
//! | another with the same key | 422 `key-reused` |
//! | the same while the first is under way | 409 `in-progress` with `Retry-After`; or it [waits](OnConflict::Wait) |
//! | without a key where one is required | 400 `key-missing` |
//! | with a key that is malformed, empty, longer than 255 bytes, or there twice | 400 `key-malformed` |
//! | with a body over the limit, too slow, or cut off | 413 `request-too-large`, 408 `request-too-slow`, 400 `request-broken` |
//! | while too many [bodies](crate::BodyBudget) are in memory | 503 `no-room` with `Retry-After` |
//! | while the store is away | 503 `store-unavailable` with `Retry-After`; the service is not called |
//! | for a response that was too large to be kept, or a stream | 410 `response-not-kept` |
//! | whose service panicked, or broke its response off | 500 `failed`; the next copy runs |
//! | whose transaction cannot be committed | 500 `failed`, nothing is kept, and the next copy runs; 503 where the store asks for another try |
//! | whose message an operator discarded or made dead, or the janitor gave up | 409 `key-closed`, until it is purged |
//!
//! Errors are problem documents (RFC 9457) with a member `code`.
//!
//! # What is the same
//! A **key** is a structured-field string (`"8e03978e"`); a bare token is taken too, and is the same key.
//! It counts for one method, route and [caller](IdempotencyLayer::caller). The route is axum's matched
//! path (`/orders/{id}`, whatever its parameters are called) where there is one, and the path otherwise, as in fallbacks
//! and nested services. Paths are whole, as the client sent them, within nested routers too.
//!
//! **A deployment that changes what a key counts for makes all keys new**: another handler name, another path of a
//! route, a caller where there was none or one of another form. A copy of a request that was made before runs once more
//! then. Let clients come to the end of their tries first.
//!
//! A request that is corrected after a 400 or 422 is another one, and needs a new key: with the old one it
//! gets 422 `key-reused`.
//!
//! A **request** is the same when method, path, query and body are, byte for byte, and the
//! [headers](IdempotencyLayer::fingerprint_headers) that count, or what is chosen
//! [instead](IdempotencyLayer::fingerprint). Of all that, a SHA-256 is kept.
//!
//! Without a [caller](IdempotencyLayer::caller) the header `Authorization` counts in either case: another user's key
//! gets 422 rather than the other user's response. It is the only one. `Cookie` does not count, since cookies change
//! between tries, nor do headers such as `X-Api-Key`: where users are told apart by those, set a caller, or
//! one who repeats another's request and key gets that one's response.
//!
//! # What is kept
//! Responses of any status but 5xx, 408, 425 and 429, which say *try again*: after those the next copy runs.
//! A 400, 401 or 404 is kept like a 201; [`keep_status`](IdempotencyLayer::keep_status) says otherwise.
//! Of the headers all but those of the connection, with all that `Connection` names, `Date`, `Set-Cookie` and
//! `Content-Length` (which follows from the body). A body is read whole before the client gets it. One that is longer than
//! [`response_limit`](IdempotencyLayer::response_limit), takes longer than 30 seconds, or is
//! `text/event-stream`, goes on to the client as it comes; it is recorded that the request is done, and copies
//! get 410. Trailers are not kept. Bodies of requests are read whole before the service is called.
//!
//! # Where to put it
//! With axum, by `route_layer`. By `layer` it covers paths without a route, too: they demand a key, and their
//! 404 is kept. A method that a route does not have is answered 405 behind either; that is kept, and counts for
//! this method only.
//!
//! Authentication goes outside, that is, into a `layer` that is added after this one: inside, a 401 would be
//! kept for the key. What it finds out is in the request's extensions then, for
//! [`caller`](IdempotencyLayer::caller) to see.
//!
//! ```
//! # use axum::{Router, extract::Request, middleware::{self, Next}, response::Response, routing::post};
//! # async fn pay() {}
//! # async fn authenticate(request: Request, next: Next) -> Response { next.run(request).await }
//! # fn app(layer: inbox_http::IdempotencyLayer) -> Router {
//! Router::new()
//!     .route("/payments", post(pay))
//!     .route_layer(layer)
//!     .layer(middleware::from_fn(authenticate)) // runs first
//! # }
//! ```
//!
//! # How often it runs
//! The service runs in a task of the present Tokio runtime. A client that disconnects neither
//! cancels it nor leaves the key busy: its retry gets the answer. A copy that only [waits](OnConflict::Wait) goes with
//! its client, and does not run. The lease is renewed meanwhile. After a
//! panic or a status that is not kept, the next copy runs at once; when the process dies, it runs
//! when the lease has run out, and effects that were made before can be made again. Where that must
//! not be, and effects are writes to the store's own database, use
//! [`IdempotencyLayer::in_transaction`]: they commit together with the response, or not at all.
//!
//! When the store is away as the service ends, the client still gets its response, since asking it to try again
//! would bring the second run about: this process knows the response, and records and replays it when a copy
//! comes; another process may run the request again when the lease has run out. When that has happened by the time the
//! service ends, the client gets 409, and then the other run's response. In a transaction nothing
//! has happened then, and the client gets 503. When the store's answer to a first request is lost in an outage, its
//! key may be leased though nothing runs: copies get 409 until that lease has run out, and then one of them runs.
//!
//! A copy that comes with another request while the first is under way gets 409, and 422 afterwards.
//! Keys live until a [`Janitor`](inbox::Janitor) purges them: let it
//! keep processed messages for as long as clients may try again, 24 hours or more. Failed ones wait for a
//! copy that may never come; [`give_up_after`](inbox::JanitorBuilder::give_up_after) ends them. Until then they count as
//! backlog: leave the layer's handler out of a [`BacklogGate`](inbox::BacklogGate). No processor may serve
//! the layer's handler name. A janitor that drops payloads before keys
//! ([`keep_payloads`](inbox::JanitorBuilder::keep_payloads)) drops the kept responses: copies get 410 from then on.
//!
//! [draft]: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07

mod fingerprint;
mod kept;
mod key;
mod refusals;
mod service;
mod settings;
mod unit;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, request::Parts};
use inbox::{
    HandlerName, InlineConsumer, Invalid, LeaseTerms, RetryPolicy, Store, Transactional,
    WorkerName,
    inline::{OnBusy, OnDuplicate},
};
use tower_layer::Layer;

pub use key::IdempotencyKey;
pub use service::IdempotencyService;
pub use settings::{Demand, OnConflict};
pub use unit::{InTransaction, Tx, Unit, Untied};

use settings::Settings;

use crate::BodyBudget;

/// Lets each request with an `Idempotency-Key` reach a service once, and replays its response. See the
/// [module](crate::idempotency).
///
/// For services of `http::Request<B>` whose bodies can be made from bytes, such as axum's. Cloning is
/// cheap; use clones of one layer in a process, which know of each other's requests when the store
/// was away.
#[derive(Clone)]
pub struct IdempotencyLayer<U = Untied> {
    store: Arc<dyn Store>,
    consumer: InlineConsumer,
    settings: Arc<Settings>,
    unit: U,
}

/// How long a lease is unless set.
const LEASE: Duration = Duration::from_secs(30);

impl IdempotencyLayer {
    /// A layer that follows the draft: a key is required of POST and PATCH, and other methods pass.
    ///
    /// `handler` is the handler name under which requests are kept in the inbox.
    ///
    /// # Errors
    /// [`Invalid`] when `handler` is no handler name.
    pub fn new(store: Arc<dyn Store>, handler: impl AsRef<str>) -> Result<Self, Invalid> {
        Self::of(store, handler, Untied)
    }
}

impl<S> IdempotencyLayer<InTransaction<S>>
where
    S: Transactional + Clone,
    S::Transaction: 'static,
{
    /// The same with a transaction of `store` for each request. The handler takes it as [`Tx`], and what
    /// it writes commits together with the response that is kept, or not at all: exactly once,
    /// whatever crashes.
    ///
    /// **A response that is kept commits, a 4xx too.** What the handler wrote before it refused is durable
    /// then. To undo that, roll back to a savepoint, or answer a status that is not kept: such a response rolls
    /// back, and so does a panic.
    ///
    /// The transaction is open while the service runs, and occupies a connection. Where the database gives it up
    /// in favour of another one, the answer is 503 with `Retry-After`.
    ///
    /// **On PostgreSQL a statement that fails dooms its transaction**: the response cannot be kept either, and the
    /// client gets 500 `failed`, whatever the handler answers. Where a failure is expected, as a row that is
    /// there already, use `ON CONFLICT` or a savepoint. On MongoDB a write that fails does the same; its server
    /// may call that a conflict, and the answer is 503 then: look before you write.
    ///
    /// ```
    /// # mod example {
    /// use axum::{Router, extract::Path, http::StatusCode, routing::post};
    /// use inbox::sqlite::{SqliteStore, sqlx};
    /// use inbox_http::{IdempotencyLayer, idempotency::Tx};
    ///
    /// async fn book(Path(seat): Path<u32>, mut tx: Tx<SqliteStore>) -> StatusCode {
    ///     let booking = sqlx::query("INSERT INTO booking (seat) VALUES (?)").bind(seat);
    ///     match booking.execute(&mut **tx).await {
    ///         Ok(_) => StatusCode::CREATED,
    ///         Err(_) => StatusCode::INTERNAL_SERVER_ERROR, // rolls back
    ///     }
    /// }
    ///
    /// fn app(store: &SqliteStore) -> Result<Router, inbox::Invalid> {
    ///     let layer = IdempotencyLayer::in_transaction(store.clone(), "bookings")?;
    ///     Ok(Router::new().route("/bookings/{seat}", post(book)).route_layer(layer))
    /// }
    /// # }
    /// ```
    ///
    /// The same on PostgreSQL, with a 409 that is kept:
    ///
    /// ```
    /// # mod example {
    /// use axum::{Router, extract::Path, http::StatusCode, routing::post};
    /// use inbox::Schema as _; // `migrate` of a store by its own type
    /// use inbox::postgres::{PostgresOptions, PostgresStore, sqlx};
    /// use inbox_http::{IdempotencyLayer, idempotency::Tx};
    ///
    /// async fn book(Path(seat): Path<i32>, mut tx: Tx<PostgresStore>) -> StatusCode {
    ///     let insert = "INSERT INTO booking (seat) VALUES ($1) ON CONFLICT DO NOTHING";
    ///     match sqlx::query(insert).bind(seat).execute(&mut **tx).await {
    ///         Ok(done) if done.rows_affected() == 0 => StatusCode::CONFLICT,
    ///         Ok(_) => StatusCode::CREATED,
    ///         Err(_) => StatusCode::INTERNAL_SERVER_ERROR, // rolls back
    ///     }
    /// }
    ///
    /// async fn app(url: &str) -> Result<Router, inbox::Error> {
    ///     let store = PostgresStore::connect(PostgresOptions::from_url(url)?).await?;
    ///     store.migrate().await?;
    ///     let layer = IdempotencyLayer::in_transaction(store, "bookings")?;
    ///     Ok(Router::new().route("/bookings/{seat}", post(book)).route_layer(layer))
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`new`](IdempotencyLayer::new), and when the store's server has no transactions, as a MongoDB
    /// without replica set.
    pub fn in_transaction(store: S, handler: impl AsRef<str>) -> Result<Self, Invalid> {
        if !store.capabilities().transactions {
            return Err(Invalid::OutOfRange {
                what: "idempotency layer in a transaction",
                expected: "replaced by one without: this server has no transactions",
            });
        }
        let unit = InTransaction::new(store.clone());
        Self::of(Arc::new(store), handler, unit)
    }

    /// Sets how many transactions are open at one time; 8 unless set. Other requests wait for up to ten seconds,
    /// their keys leased, and then get 503.
    ///
    /// Each has a connection of the store's pool until its service has run. Keep this below its number of
    /// connections, by two for a start, and lower where others use it too: keys are looked up and leased over the same
    /// pool. Leases are renewed in any case, over a connection more where the pool has none left. PostgreSQL and MySQL
    /// have 10 connections unless set (`max_connections`). SQLite has one writer: 1 is right there where
    /// services are slow, since renewals wait behind all transactions that wait for it.
    #[must_use]
    pub fn max_transactions(mut self, transactions: usize) -> Self {
        self.unit.set_most(transactions);
        self
    }
}

impl<U: Unit> IdempotencyLayer<U> {
    fn of(store: Arc<dyn Store>, handler: impl AsRef<str>, unit: U) -> Result<Self, Invalid> {
        let settings = Settings::draft(HandlerName::new(handler)?);
        Ok(Self {
            consumer: consumer(store.clone(), LEASE)?,
            settings: Arc::new(settings),
            store,
            unit,
        })
    }

    /// Behaves as the draft says, as it does from the beginning.
    #[must_use]
    pub fn draft(self) -> Self {
        self.set(Settings::follow_draft)
    }

    /// Behaves as [Stripe documents of its API](https://docs.stripe.com/api/idempotent_requests): a key is optional, and
    /// for POST only; another request with the same key gets 400; responses are kept whatever their
    /// status, 500 included, but for those of requests that did not begin to run (400, 401, 409, 429); a replay is marked by
    /// `idempotent-replayed: true`.
    ///
    /// **[In a transaction](IdempotencyLayer::in_transaction) a 500 commits then**, with all that was written before
    /// it, and is replayed. A handler that answers one for its writes to be undone has to roll back to a savepoint,
    /// or needs a [`keep_status`](Self::keep_status), set after this, that does not keep it.
    #[must_use]
    pub fn stripe(self) -> Self {
        self.set(Settings::follow_stripe)
    }

    /// Requires a key of these methods, on all routes but those set by [`route`](Self::route).
    #[must_use]
    pub fn required(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.demand_of(methods, Demand::Required))
    }

    /// Takes a key with these methods, and lets requests without one pass.
    #[must_use]
    pub fn optional(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set(|settings| settings.demand_of(methods, Demand::Optional))
    }

    /// Sets what is demanded of one method on one route, whatever holds for the method elsewhere.
    /// `route` is axum's, such as `/orders/{id}`, or a path; with what nesting has put before it.
    #[must_use]
    pub fn route(self, method: Method, route: impl Into<String>, demand: Demand) -> Self {
        self.set(|settings| {
            settings.routes.insert((method, route.into()), demand);
        })
    }

    /// Sets who calls: a user, a tenant, an API key. One caller's keys are not another's. `None`
    /// is a caller of its kind, too. The header `Authorization` does not count any more then.
    ///
    /// What it answers must stay the same over a client's retries: not a token that is renewed.
    #[must_use]
    pub fn caller(self, caller: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.caller = Some(Arc::new(caller)))
    }

    /// Sets headers that are a part of what makes two requests the same; none unless set.
    #[must_use]
    pub fn fingerprint_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.set(|settings| settings.fingerprint_headers = names.into_iter().collect())
    }

    /// Sets what makes two requests the same, in place of method, path, query, headers and body. Its
    /// SHA-256 is kept. Without a [`caller`](Self::caller) the header `Authorization` counts as well.
    ///
    /// Within a nested axum router the URI has lost its beginning; the extension `OriginalUri` is whole.
    #[must_use]
    pub fn fingerprint(
        self,
        fingerprint: impl Fn(&Parts, &Bytes) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.fingerprint = Some(Arc::new(fingerprint)))
    }

    /// Sets what becomes of a copy while the first request is under way.
    #[must_use]
    pub fn on_conflict(mut self, on_conflict: OnConflict) -> Self {
        self.consumer = self.consumer.on_busy(match on_conflict {
            OnConflict::Refuse => OnBusy::Error,
            OnConflict::Wait(limit) => OnBusy::Wait(limit),
        });
        self
    }

    /// Sets which responses are kept, by their status. After any other one, the next copy runs.
    #[must_use]
    pub fn keep_status(self, keep: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.keep_status = Arc::new(keep))
    }

    /// Sets which headers of a response are kept. Those of the connection never are.
    #[must_use]
    pub fn keep_headers(self, keep: impl Fn(&HeaderName) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.keep_header = Arc::new(keep))
    }

    /// Sets the longest body of a request with a key, in bytes; 2 MiB unless set. axum's extractors have a
    /// limit of their own, also 2 MB: to take more, raise `DefaultBodyLimit` too. Half of the
    /// [budget](Self::body_budget) is the most.
    #[must_use]
    pub fn request_limit(self, bytes: usize) -> Self {
        self.set(|settings| settings.reading.limit = bytes)
    }

    /// Sets how many bytes of bodies of requests with a key may be in memory at one time, and who shares that; a
    /// budget of its own unless set. A body counts until its request has run.
    #[must_use]
    pub fn body_budget(self, budget: BodyBudget) -> Self {
        self.set(|settings| settings.reading.budget = budget)
    }

    /// Sets for how long a client may take to send the body; 30 seconds unless set.
    #[must_use]
    pub fn read_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.reading.time = limit)
    }

    /// Sets the longest body of a response that is kept, in bytes; 1 MiB unless set.
    #[must_use]
    pub fn response_limit(self, bytes: usize) -> Self {
        self.set(|settings| settings.response_limit = bytes)
    }

    /// Sets where clients read how keys are used here, a URL: the `type` of problem documents, and a link
    /// in their header.
    ///
    /// # Errors
    /// [`Invalid::Malformed`] when it cannot stand in a header.
    pub fn documentation(self, url: impl AsRef<str>) -> Result<Self, Invalid> {
        let url = url.as_ref();
        let link = HeaderValue::try_from(format!("<{url}>; rel=\"describedby\""));
        let is_plain = !url.contains(['<', '>', '"', ' ']);
        let link = link.ok().filter(|_| is_plain).ok_or(Invalid::Malformed {
            what: "documentation",
            expected: "a URL",
        })?;
        Ok(self.set(|settings| settings.documentation = Some((url.to_owned(), link))))
    }

    /// Sets the length of the lease, after which the key of a process that died is free; 30 seconds
    /// unless set. It is renewed while the service runs.
    ///
    /// Until it ends, copies get 409 `in-progress`: choose what clients may be made to wait after a crash. One
    /// that is shorter than the store may be away, or the process may stall, lets a copy run while the first
    /// one still does.
    ///
    /// Sets [`on_conflict`](Self::on_conflict) back to refusing, so call this first.
    ///
    /// # Errors
    /// [`Invalid::OutOfRange`] as for [`LeaseTerms::new`].
    pub fn lease(mut self, length: Duration) -> Result<Self, Invalid> {
        self.consumer = consumer(self.store.clone(), length)?;
        Ok(self)
    }

    /// Waits for requests whose clients have left, up to `limit`: see
    /// [`InlineConsumer::drain`]. To be called when the server has shut down.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.consumer.drain(limit).await
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

fn consumer(store: Arc<dyn Store>, lease: Duration) -> Result<InlineConsumer, Invalid> {
    let worker = WorkerName::new(format!("http-{}", std::process::id()))?;
    // How often a request is tried again, and when, is for its client to decide.
    let retry = RetryPolicy::schedule([]).with_max_attempts(u32::MAX);
    let consumer = InlineConsumer::new(store, LeaseTerms::new(lease, worker)?)
        .retry(retry)
        .on_duplicate(OnDuplicate::ReturnResult)
        .on_busy(OnBusy::Error);
    Ok(consumer)
}

impl<U> fmt::Debug for IdempotencyLayer<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("handler", &self.settings.handler)
            .finish_non_exhaustive()
    }
}

impl<S, U: Unit> Layer<S> for IdempotencyLayer<U> {
    type Service = IdempotencyService<S, U>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, self.clone())
    }
}
