//! Who sends webhooks: how they are signed, and where an event's id and kind are.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderName, header};
use inbox::Invalid;
use subtle::ConstantTimeEq as _;

use super::{
    events::{Place, Reading},
    signature::{Part, Signature},
    standard::{self, Standard},
    twilio::Twilio,
    verify::{Delivery, Secrets, Verify, VerifyError},
};

/// Who sends webhooks: how they are signed, and where an event's id and kind are.
///
/// Each constructor takes the secrets that count at present, of which one has to fit. An id or a kind that is an empty
/// text is not there: the next place that it may be in counts, and an event without one is refused.
#[derive(Clone)]
pub struct Provider {
    name: &'static str,
    verify: Arc<dyn Verify>,
    pub(super) reading: Reading,
    pub(super) challenge: Option<&'static str>,
    pub(super) form: bool,
    pub(super) any_content_type: bool,
    pub(super) kept_headers: Vec<HeaderName>,
}

impl Provider {
    /// A provider of one's own, whose requests `verify` tells from others: a [`Signature`], or what
    /// implements [`Verify`]. Bodies are JSON; the id is its member `id` and the kind its member `type`, unless set.
    pub fn new(name: &'static str, verify: impl Verify) -> Self {
        let reading = Reading::Places {
            id: vec![Place::Field("id".into())],
            kind: vec![Place::Field("type".into())],
        };
        Self {
            name,
            verify: Arc::new(verify),
            reading,
            challenge: None,
            form: false,
            any_content_type: false,
            kept_headers: vec![HeaderName::from_static("traceparent")],
        }
    }

    /// [Standard Webhooks](https://www.standardwebhooks.com), which many providers follow. Secrets are base64, after `whsec_` as
    /// a rule. The kind is the body's `type`, or `webhook`.
    ///
    /// # Errors
    /// [`Invalid`] when there is no secret, or one is no base64.
    pub fn standard_webhooks<T: AsRef<str>>(
        secrets: impl IntoIterator<Item = T>,
    ) -> Result<Self, Invalid> {
        let provider = Self::new("standard-webhooks", Standard::new(secrets)?);
        Ok(provider
            .id([Place::Header(standard::ID)])
            .kind([Place::Field("type".into()), Place::Fixed("webhook")]))
    }

    /// GitHub: `X-Hub-Signature-256`; the id is the delivery's, the kind the event (`push`). Choose the content
    /// type `application/json` there.
    ///
    /// # Errors
    /// [`Invalid`] when there is no secret, or one is empty; so with the others.
    pub fn github<T: AsRef<[u8]>>(secrets: impl IntoIterator<Item = T>) -> Result<Self, Invalid> {
        let signature = Signature::sha256(HeaderName::from_static("x-hub-signature-256"))
            .prefix("sha256=")
            .secrets(secrets)?;
        Ok(Self::new("github", signature)
            .id([Place::header("x-github-delivery")])
            .kind([Place::header("x-github-event")])
            .with_forms())
    }

    /// Stripe: `Stripe-Signature`; the id and the kind (`charge.succeeded`) are the event's.
    ///
    /// # Errors
    /// As [`github`](Self::github).
    pub fn stripe<T: AsRef<[u8]>>(secrets: impl IntoIterator<Item = T>) -> Result<Self, Invalid> {
        let signature = Signature::sha256(HeaderName::from_static("stripe-signature"))
            .listed("t", "v1")
            .over([Part::Timestamp, Part::Text("."), Part::Body])
            .secrets(secrets)?;
        Ok(Self::new("stripe", signature))
    }

    /// Slack: `X-Slack-Signature`. The id is the event's, a trigger's, or else a digest of the body; the kind is the event's type, a
    /// command, or `slack`. The check of a new URL is answered, and not stored.
    ///
    /// # Errors
    /// As [`github`](Self::github).
    pub fn slack<T: AsRef<[u8]>>(secrets: impl IntoIterator<Item = T>) -> Result<Self, Invalid> {
        let signature = Signature::sha256(HeaderName::from_static("x-slack-signature"))
            .prefix("v0=")
            .timestamp_header(HeaderName::from_static("x-slack-request-timestamp"))
            .over([
                Part::Text("v0:"),
                Part::Timestamp,
                Part::Text(":"),
                Part::Body,
            ])
            .secrets(secrets)?;
        let field = |field: &str| Place::Field(field.into());
        let mut provider = Self::new("slack", signature)
            .id([field("event_id"), field("trigger_id"), Place::BodyDigest])
            .kind([
                field("/event/type"),
                field("command"),
                Place::Fixed("slack"),
            ])
            .with_forms();
        provider.challenge = Some("url_verification");
        Ok(provider)
    }

    /// Shopify: `X-Shopify-Hmac-SHA256`; the id is the event's with the topic, or else the webhook's; the kind is
    /// the topic (`orders/create`). The shop, the API's version and the time are headers of the message.
    ///
    /// # Errors
    /// As [`github`](Self::github).
    pub fn shopify<T: AsRef<[u8]>>(secrets: impl IntoIterator<Item = T>) -> Result<Self, Invalid> {
        let signature = Signature::sha256(HeaderName::from_static("x-shopify-hmac-sha256"))
            .base64()
            .secrets(secrets)?;
        Ok(Self::new("shopify", signature)
            .id([
                // What happened once may be told on several topics.
                Place::Headers([
                    HeaderName::from_static("x-shopify-event-id"),
                    HeaderName::from_static("x-shopify-topic"),
                ]),
                Place::header("x-shopify-webhook-id"),
            ])
            .kind([Place::header("x-shopify-topic")])
            .keep_headers([
                HeaderName::from_static("x-shopify-shop-domain"),
                HeaderName::from_static("x-shopify-api-version"),
                HeaderName::from_static("x-shopify-triggered-at"),
            ]))
    }

    /// Twilio: `X-Twilio-Signature`, over forms and JSON. `origin` is what comes before the path in the URL that
    /// Twilio calls, such as `https://hooks.example.com`. The id is that of Twilio's retries, or else a digest of
    /// the body; the kind is an event's type, a message's or call's status, or `twilio`. A form
    /// of more than 1,000 parameters is refused, as one without a signature.
    ///
    /// # Errors
    /// As [`github`](Self::github), and when `origin` is not an http or https URL.
    pub fn twilio<T: AsRef<[u8]>>(
        auth_tokens: impl IntoIterator<Item = T>,
        origin: &str,
    ) -> Result<Self, Invalid> {
        let field = |field: &str| Place::Field(field.into());
        Ok(Self::new("twilio", Twilio::new(auth_tokens, origin)?)
            .id([
                Place::header("i-twilio-idempotency-token"),
                Place::BodyDigest,
            ])
            .kind([
                field("EventType"),
                field("MessageStatus"),
                field("CallStatus"),
                Place::Fixed("twilio"),
            ])
            .with_forms())
    }

    /// CloudEvents 1.0 over HTTP, structured, binary or batched, with one of these bearer tokens. The id is the
    /// event's source and id; its attributes are headers of the message.
    ///
    /// # Errors
    /// As [`github`](Self::github), and when a token cannot stand in a header.
    pub fn cloud_events<T: AsRef<[u8]>>(
        tokens: impl IntoIterator<Item = T>,
    ) -> Result<Self, Invalid> {
        let tokens = Secrets::new(tokens)?;
        let can_be_sent = |token: &[u8]| {
            let is_ascii = token.iter().all(|byte| matches!(byte, b' '..=b'~'));
            is_ascii && token.trim_ascii() == token
        };
        if !tokens.iter().all(can_be_sent) {
            return Err(Invalid::Malformed {
                what: "bearer token",
                expected: "visible ASCII characters, without spaces around them",
            });
        }
        Ok(Self::new("cloudevents", Bearer(tokens)).reading_cloud_events())
    }

    /// The same from anybody, for a network that lets nobody else in.
    #[must_use]
    pub fn cloud_events_from_anybody() -> Self {
        Self::new("cloudevents", Anybody).reading_cloud_events()
    }

    fn reading_cloud_events(mut self) -> Self {
        self.reading = Reading::CloudEvents;
        self.any_content_type = true;
        self
    }

    /// How far a signature's time may be from this machine's; five minutes unless set.
    ///
    /// # Errors
    /// [`Invalid`] when the provider's signatures have no time, as those of GitHub, Shopify and Twilio, and
    /// tokens.
    pub fn tolerance(mut self, tolerance: Duration) -> Result<Self, Invalid> {
        let verify = self.verify.with_tolerance(tolerance);
        self.verify = verify.ok_or(Invalid::OutOfRange {
            what: "tolerance of time",
            expected: "left out: this provider signs no time",
        })?;
        Ok(self)
    }

    /// The id is in this header.
    #[must_use]
    pub fn id_header(self, header: HeaderName) -> Self {
        self.id([Place::Header(header)])
    }

    /// The id is this member of the body, by name or by JSON pointer.
    #[must_use]
    pub fn id_field(self, field: impl Into<String>) -> Self {
        self.id([Place::Field(field.into())])
    }

    /// The kind is in this header.
    #[must_use]
    pub fn kind_header(self, header: HeaderName) -> Self {
        self.kind([Place::Header(header)])
    }

    /// The kind is this member of the body, by name or by JSON pointer.
    #[must_use]
    pub fn kind_field(self, field: impl Into<String>) -> Self {
        self.kind([Place::Field(field.into())])
    }

    /// All events are of this kind.
    #[must_use]
    pub fn with_kind(self, kind: &'static str) -> Self {
        self.kind([Place::Fixed(kind)])
    }

    /// Takes forms as well as JSON. Their parameters are what members are in JSON.
    #[must_use]
    pub fn with_forms(mut self) -> Self {
        self.form = true;
        self
    }

    /// Takes bodies of any content type, or none.
    #[must_use]
    pub fn with_any_content_type(mut self) -> Self {
        self.any_content_type = true;
        self
    }

    /// Keeps these headers of a request as headers of its message, in addition to `traceparent`.
    #[must_use]
    pub fn keep_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.kept_headers.extend(names);
        self
    }

    fn id(mut self, places: impl IntoIterator<Item = Place>) -> Self {
        if let Reading::Places { id, .. } = &mut self.reading {
            *id = places.into_iter().collect();
        }
        self
    }

    fn kind(mut self, places: impl IntoIterator<Item = Place>) -> Self {
        if let Reading::Places { kind, .. } = &mut self.reading {
            *kind = places.into_iter().collect();
        }
        self
    }

    pub(super) fn verify_head(
        &self,
        head: Delivery<'_>,
        now: SystemTime,
    ) -> Result<(), VerifyError> {
        self.verify.verify_head(head, now)
    }

    pub(super) fn verify(
        &self,
        delivery: Delivery<'_>,
        now: SystemTime,
    ) -> Result<(), VerifyError> {
        self.verify.verify(delivery, now)
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A token that the sender was given.
struct Bearer(Secrets);

impl Verify for Bearer {
    fn verify_head(&self, head: Delivery<'_>, now: SystemTime) -> Result<(), VerifyError> {
        self.verify(head, now)
    }

    fn verify(&self, delivery: Delivery<'_>, _: SystemTime) -> Result<(), VerifyError> {
        let header = delivery.header(&header::AUTHORIZATION);
        let (scheme, token) = header
            .and_then(|value| value.split_once(' '))
            .ok_or(VerifyError::Missing)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(VerifyError::Missing);
        }
        let fits = |known: &[u8]| bool::from(known.ct_eq(token.trim().as_bytes()));
        if self.0.iter().any(fits) {
            Ok(())
        } else {
            Err(VerifyError::Wrong)
        }
    }
}

struct Anybody;

impl Verify for Anybody {
    fn verify(&self, _: Delivery<'_>, _: SystemTime) -> Result<(), VerifyError> {
        Ok(())
    }
}
