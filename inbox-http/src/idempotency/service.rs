//! The service behind the layer: decides, runs in a task, keeps and replays.

use std::{
    fmt,
    future::poll_fn,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body::Body;
use inbox::{
    CancellationToken, Error, ErrorKind, Kind, Leased, Message, MessageId,
    inline::{Cause, ConsumeError, Consumed},
};
use tower_service::Service;
use tracing::Instrument as _;

use super::{
    IdempotencyLayer,
    fingerprint::{fingerprint, route, scope},
    kept::Kept,
    key::{self, IdempotencyKey},
    refusals::Refusal,
    settings::Demand,
    unit::{Unit, Untied},
};
use crate::{
    body::{BoxError, ReplyBody, Taken, take},
    linger::Lingering,
    telemetry::{self, OUTAGE},
};

/// The message's headers that are the layer's.
const FINGERPRINT: &str = "request-fingerprint";
const KEY: &str = "idempotency-key";

/// How long a response's body is waited for that is to be kept.
const RESPONSE_TIME: Duration = Duration::from_secs(30);

/// A service behind an [`IdempotencyLayer`]. It is ready when the inner service is.
pub struct IdempotencyService<S, U = Untied> {
    inner: S,
    layer: IdempotencyLayer<U>,
}

impl<S, U> IdempotencyService<S, U> {
    pub(super) fn new(inner: S, layer: IdempotencyLayer<U>) -> Self {
        Self { inner, layer }
    }
}

impl<S: Clone, U: Clone> Clone for IdempotencyService<S, U> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S, U> fmt::Debug for IdempotencyService<S, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}

impl<S, U, B, R> Service<Request<B>> for IdempotencyService<S, U>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: fmt::Display + Send + 'static,
    U: Unit,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Unpin + Send + 'static,
{
    type Response = Response<ReplyBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The inner service that was polled ready has to be the one that is called; a fresh
        // clone takes its place here.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        let (parts, body) = request.into_parts();
        let demand = layer.settings.demand(&parts.method, route(&parts));
        let key = match demand {
            Demand::Ignored => Ok(None),
            Demand::Required | Demand::Optional => key::read(&parts.headers),
        };
        let refusal = match key {
            Ok(Some(key)) => {
                return Box::pin(async move {
                    let answer = layer.answer(inner, parts, body, key).await;
                    answer.or_else(|failure| failure.response(&layer))
                });
            }
            Ok(None) if demand == Demand::Required => Refusal::KeyMissing,
            Ok(None) => {
                let passing = inner.call(Request::from_parts(parts, body));
                return Box::pin(async move { Ok(passing.await?.map(ReplyBody::streamed)) });
            }
            Err(detail) => Refusal::KeyMalformed(detail),
        };
        // The client may still be sending.
        drop(Lingering::new(parts.version, &parts.headers, body));
        let response = layer.refuse(refusal);
        Box::pin(async move { Ok(response) })
    }
}

/// Why a request has no response of the service's to be answered with.
enum Failure<E> {
    Refused(Refusal),
    Service(E),
}

impl<E> From<Refusal> for Failure<E> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl<E> Failure<E> {
    fn response<U, R>(self, layer: &IdempotencyLayer<U>) -> Result<Response<ReplyBody<R>>, E> {
        match self {
            Self::Refused(refusal) => Ok(layer.refuse(refusal)),
            Self::Service(error) => Err(error),
        }
    }
}

/// Why an attempt did not come to a response that is kept.
enum Unkept<E> {
    OtherRequest,
    Status(StatusCode),
    Service(E),
    /// The text of a panic may have something of the request in it, and is not repeated.
    Panicked,
    BrokenResponse,
    /// The store could not be asked for a transaction, or has to be asked again.
    Store(Error),
    /// The transaction cannot be committed, and the next attempt's may fare no better.
    Uncommitted(Error),
}

impl<E: fmt::Display> fmt::Display for Unkept<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherRequest => f.write_str("another request came with the same key"),
            Self::Status(status) => write!(f, "status {}", status.as_u16()),
            Self::Service(error) => error.fmt(f),
            Self::Panicked => f.write_str("the service panicked"),
            Self::BrokenResponse => f.write_str("the response's body broke off"),
            Self::Store(error) | Self::Uncommitted(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Display> Unkept<E> {
    /// What is kept with the message. A commit whose end is not known may have taken place; the consumer sees that by
    /// the store's error.
    fn describe(&self) -> inbox::Failure {
        match self {
            Self::Store(error) | Self::Uncommitted(error) => copy_without_source(error).into(),
            _ => self.to_string().into(),
        }
    }
}

fn copy_without_source(error: &Error) -> Error {
    let context = error.context().to_owned();
    let copy = Error::new(error.kind(), context).with_effect(error.effect());
    match error.operation() {
        Some(operation) => copy.in_operation(operation),
        None => copy,
    }
}

impl<U> IdempotencyLayer<U> {
    fn refuse<R>(&self, refusal: Refusal) -> Response<ReplyBody<R>> {
        let problem = refusal.problem(&self.settings);
        telemetry::idempotent(problem.code());
        problem.response()
    }
}

impl<U: Unit> IdempotencyLayer<U> {
    async fn answer<S, B, R>(
        &self,
        inner: S,
        mut parts: Parts,
        body: B,
        key: IdempotencyKey,
    ) -> Result<Response<ReplyBody<R>>, Failure<S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: fmt::Display + Send + 'static,
        B: Body + From<Bytes> + Send + 'static,
        B::Data: Send,
        R: Body<Data = Bytes> + Unpin + Send + 'static,
    {
        let settings = &self.settings;
        let body = Lingering::new(parts.version, &parts.headers, body);
        let body = settings.reading.read(body).await;
        let (body, share) = body.map_err(Refusal::from)?.into_parts();
        let fingerprint = fingerprint(settings, &parts, &body);
        let message = self.message(&parts, &key, &fingerprint);
        let message = message.map_err(|error| {
            tracing::error!(%error, "request not let through: it cannot be kept");
            Refusal::Unavailable
        })?;
        parts.extensions.insert(key);
        let request = Request::from_parts(parts, B::from(body));
        // In a task: what has begun goes on when the client leaves and this future is dropped. Only the
        // wait for another copy ends then.
        let gone = CancellationToken::new();
        let mut layer = self.clone();
        layer.consumer = layer.consumer.caller_gone(gone.clone());
        let _leaves = gone.drop_guard();
        let task = async move {
            let _counts_until_the_end = share;
            layer.run(inner, request, message, fingerprint).await
        };
        let task = tokio::spawn(task.in_current_span());
        task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "request not finished");
            Err(Refusal::Unavailable.into())
        })
    }

    fn message(
        &self,
        parts: &Parts,
        key: &IdempotencyKey,
        fingerprint: &str,
    ) -> Result<Message, inbox::Invalid> {
        let kind = format!("{} {}", parts.method, route(parts));
        // A path may have bytes that a kind may not. What tells requests apart is the id.
        let mut kind = kind.replace(char::is_control, "\u{fffd}");
        kind.truncate(kind.floor_char_boundary(255));
        let handler = self.settings.handler.clone();
        let id = MessageId::new(scope(&self.settings, parts, key))?;
        Message::new(handler, id, Kind::new(kind)?, Bytes::new())
            .with_header(KEY, key.as_str())?
            .with_header(FINGERPRINT, fingerprint)
    }

    async fn run<S, B, R>(
        self,
        mut inner: S,
        mut request: Request<B>,
        message: Message,
        fingerprint: String,
    ) -> Result<Response<ReplyBody<R>>, Failure<S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Error: fmt::Display,
        R: Body<Data = Bytes> + Unpin,
    {
        let mut response = None;
        let slot = &mut response;
        let attempt = async |leased: Leased| {
            if leased.message.headers().get(FINGERPRINT) != Some(&fingerprint) {
                return Err(Unkept::OtherRequest);
            }
            let opened = self
                .unit
                .open(&leased.lease, request.extensions_mut())
                .await;
            let opened = opened.map_err(Unkept::Store)?;
            let answering = async {
                match inner.call(request).await {
                    Ok(answered) => self.keep(answered, &fingerprint).await,
                    Err(error) => Err((Unkept::Service(error), None)),
                }
            };
            let answered = unless_it_panics(answering).await;
            match answered.unwrap_or(Err((Unkept::Panicked, None))) {
                Ok((answered, kept)) => {
                    let mark = || Kept::without_response(&fingerprint, kept.status).encode();
                    let mut result = kept.encode();
                    if result.len() > self.store.capabilities().payload_limit {
                        result = mark();
                    }
                    let completing =
                        self.unit
                            .complete(opened, &leased.lease, result.clone(), mark);
                    completing.await.map_err(|error| {
                        if error.is_retryable() {
                            Unkept::Store(error)
                        } else {
                            Unkept::Uncommitted(error)
                        }
                    })?;
                    *slot = Some(answered);
                    Ok(Some(result))
                }
                Err((unkept, answered)) => {
                    self.unit.abandon(opened).await;
                    *slot = answered;
                    Err(unkept)
                }
            }
        };
        let consumer = &self.consumer;
        let consumed = if U::SETTLES {
            consumer
                .consume_settling(&message, attempt, Unkept::<S::Error>::describe)
                .await
        } else {
            consumer
                .consume_with(&message, attempt, Unkept::<S::Error>::describe)
                .await
        };
        self.conclude(consumed, response, &fingerprint)
    }

    /// The service's response with what is to be kept of it, or why nothing is.
    #[allow(clippy::type_complexity, reason = "named where it is used, once")]
    async fn keep<R, E>(
        &self,
        response: Response<R>,
        fingerprint: &str,
    ) -> Result<(Response<ReplyBody<R>>, Kept), (Unkept<E>, Option<Response<ReplyBody<R>>>)>
    where
        R: Body<Data = Bytes> + Unpin,
    {
        let settings = &self.settings;
        let status = response.status();
        if !(settings.keep_status)(status) {
            let response = response.map(ReplyBody::streamed);
            return Err((Unkept::Status(status), Some(response)));
        }
        let (head, body) = response.into_parts();
        let limit = settings.response_limit;
        let taken = if is_stream(&head.headers) {
            Taken::Passing(ReplyBody::streamed(body))
        } else {
            take(body, limit, RESPONSE_TIME).await
        };
        match taken {
            Taken::Whole(body, bytes) => {
                let kept = Kept::of(settings, fingerprint, status, &head.headers, bytes);
                Ok((Response::from_parts(head, body), kept))
            }
            Taken::Passing(body) => {
                let kept = Kept::without_response(fingerprint, status);
                Ok((Response::from_parts(head, body), kept))
            }
            Taken::Broken => Err((Unkept::BrokenResponse, None)),
        }
    }

    /// The answer to the client.
    fn conclude<R, E: fmt::Display>(
        &self,
        consumed: Result<Consumed, ConsumeError<Unkept<E>>>,
        response: Option<Response<ReplyBody<R>>>,
        fingerprint: &str,
    ) -> Result<Response<ReplyBody<R>>, Failure<E>> {
        let refusal = match consumed {
            Ok(Consumed::Duplicate { result }) => match self.replay(result, fingerprint) {
                Ok(replay) => {
                    telemetry::idempotent("replayed");
                    return Ok(replay);
                }
                Err(refusal) => refusal,
            },
            Ok(Consumed::Busy { .. } | Consumed::Blocked)
            | Err(ConsumeError::Busy { .. } | ConsumeError::Blocked | ConsumeError::LeaseLost) => {
                Refusal::InProgress
            }
            Ok(Consumed::Dead { .. } | Consumed::Discarded) => Refusal::Closed,
            Err(
                ConsumeError::Handler(Unkept::Service(error))
                | ConsumeError::Dead(Cause::Failed(Unkept::Service(error))),
            ) => {
                telemetry::idempotent("failed");
                return Err(Failure::Service(error));
            }
            Err(
                ConsumeError::Handler(Unkept::OtherRequest)
                | ConsumeError::Dead(Cause::Failed(Unkept::OtherRequest)),
            ) => Refusal::KeyReused,
            Err(ConsumeError::Store(error) | ConsumeError::Handler(Unkept::Store(error))) => {
                let what = "request not let through, or not committed";
                match error.kind() {
                    // The consumer tells of an outage, once.
                    ErrorKind::Unavailable => tracing::debug!(target: OUTAGE, %error, "{what}"),
                    _ => tracing::warn!(%error, "{what}"),
                }
                Refusal::Unavailable
            }
            Err(ConsumeError::Handler(Unkept::Uncommitted(error))) => {
                tracing::error!(%error, "request failed: its transaction cannot be committed");
                Refusal::Failed
            }
            // Another worker has run it meanwhile, or does. The response that counts is that one's.
            Err(ConsumeError::Unrecorded(None)) => {
                tracing::warn!(
                    "response not given: the request's lease was lost, and it ran again"
                );
                Refusal::InProgress
            }
            Err(ConsumeError::Stopped) => Refusal::Unavailable,
            Err(ConsumeError::Handler(Unkept::Panicked) | ConsumeError::Panicked(_)) => {
                tracing::error!("request failed: its service panicked");
                Refusal::Failed
            }
            other => {
                if let Err(ConsumeError::Unrecorded(Some(error))) = &other {
                    tracing::warn!(%error, "response not recorded; the request may run again");
                }
                if let Some(response) = response {
                    let is_done = matches!(other, Ok(Consumed::Ran { .. }));
                    telemetry::idempotent(if is_done { "ran" } else { "failed" });
                    return Ok(response);
                }
                Refusal::Failed
            }
        };
        Err(refusal.into())
    }

    /// The response that was kept, if it is one to the same request.
    fn replay<R>(
        &self,
        result: Option<Bytes>,
        fingerprint: &str,
    ) -> Result<Response<ReplyBody<R>>, Refusal> {
        let kept = result.as_ref().and_then(Kept::decode);
        let kept = kept.ok_or(Refusal::ResponseNotKept(None))?;
        if kept.fingerprint != fingerprint {
            return Err(Refusal::KeyReused);
        }
        let body = kept
            .body
            .ok_or(Refusal::ResponseNotKept(Some(kept.status)))?;
        let mut response = Response::new(ReplyBody::from(body));
        *response.status_mut() = kept.status;
        *response.headers_mut() = kept.headers;
        let marker = self.settings.marker.clone();
        response
            .headers_mut()
            .insert(marker, HeaderValue::from_static("true"));
        Ok(response)
    }
}

/// What comes of this; `None` when it panics.
async fn unless_it_panics<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}

/// Whether a response goes on for as long as the client listens.
fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|content_type| {
        let event_stream = b"text/event-stream";
        let essence = content_type.get(..event_stream.len());
        essence.is_some_and(|essence| essence.eq_ignore_ascii_case(event_stream))
    })
}
