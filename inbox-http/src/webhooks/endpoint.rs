//! One path: whose events come there, and who handles them.

use std::time::SystemTime;

use inbox::{HandlerName, Invalid, Message};

use super::{
    answers::{MAX_BATCH, Refusal},
    events::{self, Events, Rules, is_form, is_json},
    provider::Provider,
    verify::Delivery,
};

/// Whose events come to a path, and who handles them.
///
/// ```
/// use inbox_http::{Endpoint, Provider};
///
/// # fn main() -> Result<(), inbox::Invalid> {
/// let stripe = Provider::stripe(["whsec_new", "whsec_old"])?;
/// let endpoint = Endpoint::new(stripe, ["billing", "reports"])?
///     .ordering_field("/data/object/customer");
/// # let _ = endpoint;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Endpoint {
    provider: Provider,
    handlers: Vec<HandlerName>,
    ordering_field: Option<String>,
    id_prefix: String,
}

impl Endpoint {
    /// An endpoint for a provider's events, each of which is stored once for each handler.
    ///
    /// # Errors
    /// [`Invalid`] when there is no handler, or one is no handler name.
    pub fn new<T: AsRef<str>>(
        provider: Provider,
        handlers: impl IntoIterator<Item = T>,
    ) -> Result<Self, Invalid> {
        let mut names = Vec::new();
        for handler in handlers {
            let name = HandlerName::new(handler)?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() {
            return Err(Invalid::Empty { what: "handlers" });
        }
        Ok(Self {
            provider,
            handlers: names,
            ordering_field: None,
            id_prefix: String::new(),
        })
    }

    /// Puts this in front of each event's id. A message is known by its handler and id: where a handler gets
    /// events of several senders that number theirs in the same way, order 7 and invoice 7 are one message
    /// without it, and the second is lost.
    #[must_use]
    pub fn id_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.id_prefix = prefix.into();
        self
    }

    /// Keeps events in order that have the same value of this member of the body, by name or by JSON
    /// pointer; of a form a parameter, of CloudEvents an attribute. An event without it, or
    /// with an empty text there, is not held up by others.
    #[must_use]
    pub fn ordering_field(mut self, field: impl Into<String>) -> Self {
        self.ordering_field = Some(field.into());
        self
    }

    pub(super) fn is_ordered(&self) -> bool {
        self.ordering_field.is_some()
    }

    pub(super) fn takes(&self, content_type: Option<&str>) -> bool {
        let provider = &self.provider;
        provider.any_content_type || is_json(content_type) || provider.form && is_form(content_type)
    }

    /// The answer to a provider that checks a new URL.
    pub(super) fn challenge(&self, delivery: Delivery<'_>) -> Option<String> {
        events::challenge(delivery, self.provider.challenge?)
    }

    /// Before the body is read.
    pub(super) fn verify_head(&self, head: Delivery<'_>) -> Result<(), Refusal> {
        let verified = self.provider.verify_head(head, SystemTime::now());
        verified.map_err(Refusal::NotVerified)
    }

    pub(super) fn verify(&self, delivery: Delivery<'_>) -> Result<(), Refusal> {
        let verified = self.provider.verify(delivery, SystemTime::now());
        verified.map_err(Refusal::NotVerified)
    }

    /// The events of a verified request, for the first handler.
    pub(super) fn events(&self, delivery: Delivery<'_>) -> Result<Events, Refusal> {
        let Some(first) = self.handlers.first() else {
            return Err(Refusal::Unavailable);
        };
        let provider = &self.provider;
        let rules = Rules {
            reading: &provider.reading,
            kept_headers: &provider.kept_headers,
            ordering_field: self.ordering_field.as_deref(),
            id_prefix: &self.id_prefix,
            handler: first,
            // Each is stored for every handler.
            most: MAX_BATCH / self.handlers.len(),
        };
        events::read(delivery, &rules).map_err(Refusal::NotAnEvent)
    }

    /// The copies of an event, one for each handler.
    pub(super) fn copies(&self, message: &Message) -> Vec<Message> {
        let handlers = self.handlers.iter();
        handlers
            .map(|handler| message.for_handler(handler.clone()))
            .collect()
    }
}
