//! A tower layer that lets each request through to its service once.
//!
//! An [`InboxLayer`] puts an [`InlineConsumer`] in front of any [`tower_service::Service`]. An
//! [`Exchange`], which the application writes, turns requests into messages and the inbox's
//! answers into responses. Of two identical requests, at the same time or not, one reaches the
//! service.
//!
//! A request whose message is busy, with another copy or waiting for its retry after a failure,
//! waits for up to ten seconds unless the consumer says otherwise: choose
//! [`OnBusy::Error`](crate::inline::OnBusy::Error) where callers should come back instead.
//!
//! ```
//! use std::{convert::Infallible, time::Duration};
//!
//! use inbox::inline::{InlineConsumer, OnDuplicate};
//! use inbox::layer::{Answer, Conclusion, Exchange, InboxLayer, Opened};
//! use inbox::{Bytes, HandlerName, Kind, LeaseTerms, Message, MessageId, WorkerName};
//! use tower::{Layer as _, ServiceExt as _};
//!
//! struct Request {
//!     idempotency_key: Option<String>,
//!     body: Bytes,
//! }
//!
//! #[derive(Debug, PartialEq)]
//! struct Response {
//!     status: u16,
//!     body: Bytes,
//! }
//!
//! struct Payments {
//!     handler: HandlerName,
//!     kind: Kind,
//! }
//!
//! impl Exchange<Request> for Payments {
//!     type Response = Response;
//!
//!     async fn open(&self, request: Request) -> Opened<Request, Response> {
//!         let Some(key) = &request.idempotency_key else {
//!             return Opened::Pass(request);
//!         };
//!         match MessageId::new(key) {
//!             Ok(id) => {
//!                 let (handler, kind) = (self.handler.clone(), self.kind.clone());
//!                 let message = Message::new(handler, id, kind, request.body.clone());
//!                 Opened::Once(message, request)
//!             }
//!             Err(_) => Opened::Refuse(Response { status: 400, body: Bytes::new() }),
//!         }
//!     }
//!
//!     async fn complete(&self, response: Response) -> (Response, Conclusion) {
//!         let conclusion = match response.status {
//!             500.. => Conclusion::Retry(format!("status {}", response.status)),
//!             _ => Conclusion::Done(Some(response.body.clone())),
//!         };
//!         (response, conclusion)
//!     }
//!
//!     fn answer(&self, answer: Answer) -> Response {
//!         let (status, body) = match answer {
//!             Answer::Duplicate { result } => (200, result.unwrap_or_default()),
//!             Answer::Busy { .. } | Answer::Blocked => (409, Bytes::new()),
//!             Answer::Dead { .. } | Answer::Discarded => (422, Bytes::new()),
//!             Answer::LeaseLost | Answer::Unavailable(_) => (503, Bytes::new()),
//!         };
//!         Response { status, body }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let inbox = inbox::connect("memory://").await?;
//! inbox.create().await?;
//! let terms = LeaseTerms::new(Duration::from_secs(30), WorkerName::new("web-1")?)?;
//! let consumer = InlineConsumer::new(inbox, terms).on_duplicate(OnDuplicate::ReturnResult);
//! let payments = Payments {
//!     handler: HandlerName::new("payments")?,
//!     kind: Kind::new("POST /payments")?,
//! };
//! let service = InboxLayer::new(consumer.clone(), payments).layer(tower::service_fn(
//!     async |_: Request| Ok::<_, Infallible>(Response { status: 200, body: "paid".into() }),
//! ));
//! for _ in 0..2 {
//!     let key = Some("order-7".to_owned());
//!     let request = Request { idempotency_key: key, body: Bytes::new() };
//!     let response = service.clone().oneshot(request).await?;
//!     assert_eq!(response, Response { status: 200, body: "paid".into() });
//! }
//!
//! // Before the process ends, when the server has shut down: requests whose clients have left go on.
//! consumer.drain(Duration::from_secs(20)).await;
//! # Ok(())
//! # }
//! ```

use std::{
    fmt,
    panic::resume_unwind,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::SystemTime,
};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use crate::{
    Error, ErrorKind, Message,
    inline::{Cause, ConsumeError, Consumed, InlineConsumer},
};

/// Translates between a service's requests and responses and the inbox.
pub trait Exchange<Request>: Send + Sync + 'static {
    /// The service's response.
    type Response;

    /// Decides what a request is. Asynchronous so that it can read a streamed body, and by value
    /// so that it can put the body back.
    fn open(
        &self,
        request: Request,
    ) -> impl Future<Output = Opened<Request, Self::Response>> + Send;

    /// Decides what a response means, and what to keep of it for later duplicates.
    fn complete(
        &self,
        response: Self::Response,
    ) -> impl Future<Output = (Self::Response, Conclusion)> + Send;

    /// The response to the request whose failure, for this reason, made its message dead: there
    /// is no attempt left. Provided: the service's own response.
    fn gave_up(&self, response: Self::Response, reason: &str) -> Self::Response {
        let _ = reason;
        response
    }

    /// The response to a request that did not run.
    fn answer(&self, answer: Answer) -> Self::Response;
}

/// What [`Exchange::open`] made of a request.
#[derive(Debug)]
pub enum Opened<Request, Response> {
    /// Not deduplicated: goes straight to the service.
    Pass(Request),
    /// Runs once for this message's key.
    Once(Message, Request),
    /// Not acceptable: this is the response.
    Refuse(Response),
}

/// What [`Exchange::complete`] made of a response.
#[derive(Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// The work is done. Later duplicates are answered with these bytes, if any.
    Done(Option<Bytes>),
    /// The response reports a failure, for this reason: a later copy of the request may run
    /// again, after the consumer's retry delay.
    Retry(String),
}

impl fmt::Debug for Conclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(result) => f
                .debug_struct("Done")
                .field("result_bytes", &result.as_ref().map(Bytes::len))
                .finish(),
            Self::Retry(reason) => f.debug_tuple("Retry").field(reason).finish(),
        }
    }
}

/// Why a request did not run to a response.
#[derive(Debug)]
pub enum Answer {
    /// It was processed before.
    Duplicate {
        /// What was kept of the first response, with
        /// [`OnDuplicate::ReturnResult`](crate::inline::OnDuplicate::ReturnResult).
        result: Option<Bytes>,
    },
    /// Another copy is running, or it waits for its retry.
    Busy {
        /// No sooner than this, by the store's clock.
        until: SystemTime,
    },
    /// An earlier message of its ordering key is not finished.
    Blocked,
    /// It failed for good.
    Dead {
        /// Why.
        reason: String,
    },
    /// An operator discarded it.
    Discarded,
    /// It ran too long without renewing its lease, and another copy took over.
    LeaseLost,
    /// The inbox could not be asked, or the process shuts down; nothing ran for this copy to its end. (An earlier one may have run here
    /// that could not be recorded: that is tried first.)
    Unavailable(Error),
}

/// Wraps services so that each request reaches them once. See the [module](crate::layer).
pub struct InboxLayer<X> {
    consumer: InlineConsumer,
    exchange: Arc<X>,
}

impl<X> InboxLayer<X> {
    /// A layer that decides through `consumer` and translates through `exchange`.
    #[must_use]
    pub fn new(consumer: InlineConsumer, exchange: X) -> Self {
        Self {
            consumer,
            exchange: Arc::new(exchange),
        }
    }
}

impl<X> Clone for InboxLayer<X> {
    fn clone(&self) -> Self {
        Self {
            consumer: self.consumer.clone(),
            exchange: self.exchange.clone(),
        }
    }
}

impl<X> fmt::Debug for InboxLayer<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxLayer")
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

impl<S, X> Layer<S> for InboxLayer<X> {
    type Service = InboxService<S, X>;

    fn layer(&self, inner: S) -> Self::Service {
        InboxService {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind an [`InboxLayer`].
///
/// A request that has reached the inner service is finished and recorded even when its caller
/// disconnects meanwhile: it runs in a task of the present Tokio runtime. A server that has shut down
/// gracefully does not wait for such requests; [`InlineConsumer::drain`] does.
///
/// It is ready when the inner service is. A request that turns out to be a duplicate gives the
/// readiness back unused. An error of the inner service is recorded as a failed attempt and
/// returned; a panic is recorded and goes on. So it is at the last attempt, too: an error has the
/// service's type, and cannot say more; the next copy is answered with [`Answer::Dead`]. Where
/// callers are to know at once, answer failures by a response: see [`Exchange::gave_up`]. A response whose completion could not be recorded
/// is returned all the same, and a warning logged: the next copy of the request may run again.
pub struct InboxService<S, X> {
    inner: S,
    layer: InboxLayer<X>,
}

impl<S: Clone, X> Clone for InboxService<S, X> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S, X> fmt::Debug for InboxService<S, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxService")
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}

impl<S, X, Request> Service<Request> for InboxService<S, X>
where
    S: Service<Request> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send + 'static,
    S::Error: fmt::Display + Send + 'static,
    X: Exchange<Request, Response = S::Response>,
    Request: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // The inner service that was polled ready has to be the one that is called; a fresh
        // clone takes its place here.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        Box::pin(async move { layer.handle(inner, request).await })
    }
}

/// Why the handler, as the inline consumer sees it, failed.
enum Failure<E> {
    /// The service's error.
    Service(E),
    /// The response says so; it is returned to the caller all the same.
    Response(String),
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(error) => error.fmt(f),
            Self::Response(reason) => f.write_str(reason),
        }
    }
}

impl<X> InboxLayer<X> {
    async fn handle<S, Request>(
        &self,
        mut inner: S,
        request: Request,
    ) -> Result<S::Response, S::Error>
    where
        S: Service<Request> + Send + 'static,
        S::Future: Send,
        S::Response: Send + 'static,
        S::Error: fmt::Display + Send + 'static,
        X: Exchange<Request, Response = S::Response>,
        Request: Send + 'static,
    {
        let (message, request) = match self.exchange.open(request).await {
            Opened::Pass(request) => return inner.call(request).await,
            Opened::Refuse(response) => return Ok(response),
            Opened::Once(message, request) => (message, request),
        };
        // In its own task: what has begun goes on when the client disconnects and this future
        // is dropped. Only the wait for another copy ends then.
        let gone = CancellationToken::new();
        let consumer = self.consumer.clone().caller_gone(gone.clone());
        let _leaves = gone.drop_guard();
        let exchange = self.exchange.clone();
        let task = async move {
            let mut response = None;
            let slot = &mut response;
            let run = |_| async move {
                let answered = inner.call(request).await.map_err(Failure::Service)?;
                let (answered, conclusion) = exchange.complete(answered).await;
                *slot = Some(answered);
                match conclusion {
                    Conclusion::Done(result) => Ok(result),
                    Conclusion::Retry(reason) => Err(Failure::Response(reason)),
                }
            };
            let describe = |failure: &Failure<_>| crate::Failure::from(format!("{failure:#}"));
            let consumed = consumer.consume_with(&message, run, describe).await;
            if let Err(ConsumeError::Unrecorded(error)) = &consumed {
                let error = error.as_ref().map(ToString::to_string);
                let key = message.key();
                tracing::warn!(%key, error, "response not recorded; it may run again");
            }
            (response, consumed)
        };
        let (response, consumed) = match self.consumer.spawn(task.in_current_span()).await {
            Ok(ended) => ended,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => {
                    let error = Error::new(ErrorKind::Other, "the runtime shuts down")
                        .in_operation("consume");
                    return Ok(self.exchange.answer(Answer::Unavailable(error)));
                }
            },
        };
        if let Some(response) = response {
            return Ok(match &consumed {
                Err(ConsumeError::Dead(cause)) => {
                    self.exchange.gave_up(response, &cause.to_string())
                }
                _ => response,
            });
        }
        let answer = match consumed {
            Err(
                ConsumeError::Handler(Failure::Service(error))
                | ConsumeError::Dead(Cause::Failed(Failure::Service(error))),
            ) => return Err(error),
            Err(ConsumeError::Panicked(panic) | ConsumeError::Dead(Cause::Panicked(panic))) => {
                panic.resume()
            }
            Ok(Consumed::Duplicate { result } | Consumed::Ran { result }) => {
                Answer::Duplicate { result }
            }
            Err(ConsumeError::Duplicate) => Answer::Duplicate { result: None },
            Ok(Consumed::Busy { until }) | Err(ConsumeError::Busy { until }) => {
                Answer::Busy { until }
            }
            Ok(Consumed::Blocked) | Err(ConsumeError::Blocked) => Answer::Blocked,
            Ok(Consumed::Dead { reason }) => Answer::Dead { reason },
            Ok(Consumed::Discarded) => Answer::Discarded,
            Err(ConsumeError::Store(error)) => Answer::Unavailable(error),
            Err(ConsumeError::Stopped) => {
                let context = "the process shuts down";
                Answer::Unavailable(
                    Error::new(ErrorKind::Unavailable, context).in_operation("consume"),
                )
            }
            // The other two come with a response, which is returned above.
            Err(
                ConsumeError::LeaseLost
                | ConsumeError::Unrecorded(_)
                | ConsumeError::Handler(Failure::Response(_))
                | ConsumeError::Dead(Cause::Failed(Failure::Response(_))),
            ) => Answer::LeaseLost,
        };
        Ok(self.exchange.answer(answer))
    }
}
