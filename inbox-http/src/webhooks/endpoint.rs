//! One path: whose events come there, and who handles them.

use std::time::SystemTime;

use inbox::{HandlerName, Invalid, Message};

use super::{
    answers::Refusal,
    events::{self, Events, is_form, is_json},
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
        })
    }

    /// Keeps events in order that have the same value of this member of the body, by name or by JSON
    /// pointer; of a form a parameter, of CloudEvents an attribute. An event without it is not held up by others.
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
        let ordering_field = self.ordering_field.as_deref();
        let kept_headers = &provider.kept_headers;
        let read = events::read(
            delivery,
            &provider.reading,
            kept_headers,
            ordering_field,
            first,
        );
        read.map_err(Refusal::NotAnEvent)
    }

    /// The copies of an event, one for each handler.
    pub(super) fn copies(&self, message: &Message) -> Vec<Message> {
        let handlers = self.handlers.iter();
        handlers
            .map(|handler| message.for_handler(handler.clone()))
            .collect()
    }
}
