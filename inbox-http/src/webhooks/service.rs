//! The service of all endpoints.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header, request::Parts};
use http_body::Body;
use http_body_util::Full;
use inbox::Message;
use tokio::time::timeout;
use tower_service::Service;

use super::{
    Endpoint, Intake, WebhookReceiver,
    answers::{self, Fate, Refusal},
    events::{Events, content_type},
    verify::Delivery,
};
use crate::{budget::Share, linger::Lingering, telemetry, uri};

/// Receives webhooks on the paths of a [`WebhookReceiver`]. Always ready. Cloning is cheap.
#[derive(Clone)]
pub struct WebhookService {
    receiver: Arc<WebhookReceiver>,
    intake: Intake,
}

impl WebhookService {
    pub(super) fn new(receiver: WebhookReceiver) -> Self {
        Self {
            intake: Intake::new(receiver.store.clone()),
            receiver: Arc::new(receiver),
        }
    }

    async fn answer<B>(self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body + Send + 'static,
        B::Data: Send,
    {
        let (parts, body) = request.into_parts();
        let body = Lingering::new(parts.version, &parts.headers, body);
        let path = parts.uri.path();
        let found = self.receiver.endpoints.get_key_value(path);
        let Some((path, endpoint)) = found else {
            return refuse("unknown", Refusal::UnknownEndpoint);
        };
        match self.receive(endpoint, path, &parts, body).await {
            Ok(response) => response,
            Err(refusal) => refuse(path, refusal),
        }
    }

    async fn receive(
        &self,
        endpoint: &Endpoint,
        path: &str,
        parts: &Parts,
        body: impl Body,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let receiver = &self.receiver;
        if parts.method != Method::POST {
            return Err(Refusal::MethodNotAllowed);
        }
        if receiver.gate.as_ref().is_some_and(|gate| !gate.is_open()) {
            return Err(Refusal::BacklogFull);
        }
        if !endpoint.takes(content_type(&parts.headers)) {
            return Err(Refusal::WrongContentType);
        }
        if is_encoded(&parts.headers) {
            return Err(Refusal::Encoded);
        }
        let head = Delivery {
            uri: uri::sent(parts),
            headers: &parts.headers,
            body: &Bytes::new(),
        };
        endpoint.verify_head(head)?;
        // Counts until the answer, or until it is stored.
        let (body, share) = receiver.reading.read(body).await?.into_parts();
        let delivery = Delivery {
            body: &body,
            ..head
        };
        endpoint.verify(delivery)?;
        if let Some(challenge) = endpoint.challenge(delivery) {
            telemetry::webhook(path, "challenge");
            return Ok(plain(challenge));
        }
        match endpoint.events(delivery)? {
            Events::One(message) => {
                let fates = self.store(endpoint, vec![Ok(message)], share).await?;
                let fate = fates.into_iter().next().ok_or(Refusal::Unavailable)?;
                telemetry::webhook(path, fate.outcome());
                Ok(fate.response())
            }
            Events::TooMany(most) => Err(Refusal::BatchTooLarge(most)),
            Events::Batch(events) => {
                let fates = self.store(endpoint, events, share).await?;
                for fate in &fates {
                    telemetry::webhook(path, fate.outcome());
                }
                Ok(answers::batch(&fates))
            }
        }
    }

    /// Stores events for every handler, and says what became of each, in their order.
    async fn store(
        &self,
        endpoint: &Endpoint,
        events: Vec<Result<Message, String>>,
        share: Share,
    ) -> Result<Vec<Fate>, Refusal> {
        let mut copies = Vec::new();
        let mut places = Vec::with_capacity(events.len());
        for event in events {
            places.push(event.map(|message| {
                let start = copies.len();
                copies.extend(endpoint.copies(&message));
                start..copies.len()
            }));
        }
        let storing = self.intake.store(copies, share);
        let storing = timeout(self.receiver.answer_timeout, storing).await;
        let Ok(Ok(receipts)) = storing else {
            return Err(Refusal::Unavailable);
        };
        let fate = |place| match place {
            Ok(range) => Fate::of(
                receipts
                    .get::<std::ops::Range<usize>>(range)
                    .unwrap_or_default(),
            ),
            Err(reason) => Fate::Malformed(reason),
        };
        Ok(places.into_iter().map(fate).collect())
    }
}

fn refuse(endpoint: &str, refusal: Refusal) -> Response<Full<Bytes>> {
    let problem = refusal.problem();
    telemetry::webhook(endpoint, problem.code());
    tracing::debug!(endpoint, code = problem.code(), "webhook refused");
    problem.response()
}

/// Whether a body is compressed, say. Nothing is left of that in a message, and so it could not be read.
fn is_encoded(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn plain(text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    let no_sniff = HeaderValue::from_static("nosniff");
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, no_sniff);
    response
}

impl<B> Service<Request<B>> for WebhookService
where
    B: Body + Send + 'static,
    B::Data: Send,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.answer(request).await) })
    }
}

impl fmt::Debug for WebhookService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WebhookService")
            .field(&self.receiver)
            .finish()
    }
}
