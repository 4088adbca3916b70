//! The webhooks of a configuration: on which paths, and who sends them.

use inbox::HandlerName;
use inbox_http::webhooks::Provider;
use serde::{Deserialize, Deserializer, de::Error as _};
use toml::Spanned;

use super::{
    custom::Custom,
    plan::read_all,
    secret::Secret,
    source::{Source, Wrong},
    values::{Time, from_text},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Webhook {
    pub(crate) path: Path,
    pub(crate) provider: ProviderName,
    #[serde(default, deserialize_with = "super::secret::list")]
    pub(crate) secrets: Vec<Spanned<Secret>>,
    #[serde(default = "handlers")]
    pub(crate) handlers: Vec<HandlerName>,
    /// Where that is which orders messages.
    pub(crate) ordering: Option<Field>,
    /// Goes before each id, where senders number theirs in the same way.
    #[serde(default, deserialize_with = "super::values::id_prefix")]
    pub(crate) id_prefix: String,
    /// What comes before the path in the address that the provider was given, where its signature
    /// covers that.
    pub(crate) origin: Option<String>,
    /// How far a signature's time may be from the service's.
    pub(crate) tolerance: Option<Time>,
    /// How a provider signs that has no name here.
    pub(crate) custom: Option<Custom>,
}

/// Whose webhooks they are, which says how they are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProviderName {
    Github,
    Stripe,
    Slack,
    Shopify,
    Twilio,
    StandardWebhooks,
    Cloudevents,
    Custom,
}

impl ProviderName {
    const ALL: [Self; 8] = [
        Self::Github,
        Self::Stripe,
        Self::Slack,
        Self::Shopify,
        Self::Twilio,
        Self::StandardWebhooks,
        Self::Cloudevents,
        Self::Custom,
    ];

    /// The provider that the configuration calls so.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|provider| provider.as_str() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|provider| provider.as_str()).collect();
            format!("unknown provider, expected one of {}", names.join(", "))
        })
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Stripe => "stripe",
            Self::Slack => "slack",
            Self::Shopify => "shopify",
            Self::Twilio => "twilio",
            Self::StandardWebhooks => "standard-webhooks",
            Self::Cloudevents => "cloudevents",
            Self::Custom => "custom",
        }
    }
}

impl<'de> Deserialize<'de> for ProviderName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Whose messages they are unless it is said.
pub(super) fn handlers() -> Vec<HandlerName> {
    HandlerName::new("default").into_iter().collect()
}

from_text!(
    /// A path that requests may have, and that is not one of the service's own.
    Path(String),
    |text| {
        let is_plain = text.starts_with('/')
            && text.len() > 1
            && !text.ends_with('/')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte));
        if !is_plain {
            return Err("a path is such as /webhooks/github, of letters, digits and - _ . ~ /".to_owned());
        }
        let is_taken = ["/healthz", "/readyz", "/metrics", "/dashboard"].contains(&text)
            || text.starts_with("/v1/")
            || text.starts_with("/dashboard/");
        if is_taken {
            return Err("/healthz, /readyz, /metrics, /dashboard and what begins with /v1/ or /dashboard/ are the service's own".to_owned());
        }
        Ok(text.to_owned())
    }
);

from_text!(
    /// A member of the body: a JSON pointer (RFC 6901), or a name.
    Field(String),
    |text| {
        let mut escapes = text.split('~').skip(1);
        if text.is_empty() {
            Err("expected a JSON pointer such as /order/id, or a name".to_owned())
        } else if text.starts_with('/') && escapes.any(|rest| !rest.starts_with(['0', '1'])) {
            Err("in a JSON pointer, ~ is written ~0".to_owned())
        } else {
            Ok(text.to_owned())
        }
    }
);

impl Field {
    /// The JSON pointer that is meant where this looks like the path to a member and is the name of one.
    pub(super) fn meant_pointer(&self) -> Option<String> {
        let name = self.0.as_str();
        let looks_like_a_path = !name.starts_with('/') && name.contains(['.', '/']);
        looks_like_a_path.then(|| format!("/{}", name.replace('.', "/")))
    }
}

impl Webhook {
    /// The attribute that orders CloudEvents, if none can have that name by their specification.
    pub(super) fn odd_attribute(&self) -> Option<&str> {
        let field = self
            .ordering
            .as_ref()
            .filter(|_| self.provider == ProviderName::Cloudevents)?;
        let name = field.0.trim_start_matches('/');
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        (!name.bytes().all(is_plain)).then_some(name)
    }

    /// Where something is in the body, by key.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'static str, &Field)> {
        let custom = self.custom.as_ref();
        let fields = [
            ("ordering", self.ordering.as_ref()),
            (
                "custom.id_field",
                custom.and_then(|custom| custom.id_field.as_ref()),
            ),
            (
                "custom.kind_field",
                custom.and_then(|custom| custom.kind_field.as_ref()),
            ),
        ];
        fields
            .into_iter()
            .filter_map(|(key, field)| Some((key, field?)))
    }
}

pub(super) struct PlannedWebhook {
    pub(super) webhook: Webhook,
    pub(super) provider: Provider,
}

/// Reads what the webhooks' configurations name.
pub(super) fn plan(
    source: &Source,
    all: Vec<Spanned<Webhook>>,
) -> Result<Vec<PlannedWebhook>, Wrong> {
    let mut planned: Vec<PlannedWebhook> = Vec::new();
    for (index, webhook) in all.into_iter().enumerate() {
        let (key, span) = (format!("webhooks[{index}]"), webhook.span());
        let webhook = webhook.into_inner();
        if planned
            .iter()
            .any(|other| other.webhook.path.0 == webhook.path.0)
        {
            let path = &webhook.path.0;
            return Err(source.wrong(
                &format!("{key}.path"),
                span,
                format!("{path} is there twice"),
            ));
        }
        if webhook.secrets.is_empty() {
            let message = "webhooks are not received without a secret: secrets = [{ env = \"…\" }]";
            return Err(source.wrong(&format!("{key}.secrets"), span, message));
        }
        if webhook.handlers.is_empty() {
            return Err(source.wrong(&format!("{key}.handlers"), span, "name a handler at least"));
        }
        let tolerance = webhook.tolerance.as_ref();
        if tolerance.is_some_and(|limit| limit.0.is_zero()) {
            // Checked a moment later, each signature is too old.
            let message = "expected a time above 0 such as 5m";
            return Err(source.wrong(&format!("{key}.tolerance"), span, message));
        }
        if let Some(problem) = ordering_problem(&webhook) {
            return Err(source.wrong(&format!("{key}.ordering"), span, problem));
        }
        if let Some(problem) = planned
            .iter()
            .find_map(|other| mixed_ids(&other.webhook, &webhook))
        {
            return Err(source.wrong(&format!("{key}.id_prefix"), span, problem));
        }
        let secrets = read_all(source, &format!("{key}.secrets"), &webhook.secrets)?;
        let provider =
            provider(&webhook, secrets).map_err(|error| source.wrong(&key, span, error))?;
        planned.push(PlannedWebhook { webhook, provider });
    }
    Ok(planned)
}

/// An attribute of a CloudEvent and a parameter of a form have no members, and the data of a CloudEvent are no attribute.
fn ordering_problem(webhook: &Webhook) -> Option<&'static str> {
    let field = webhook.ordering.as_ref()?.0.as_str();
    let has_steps = field.get(1..).is_some_and(|rest| rest.contains('/'));
    let is_data = matches!(field.trim_start_matches('/'), "data" | "data_base64");
    match webhook.provider {
        ProviderName::Cloudevents if has_steps || is_data => {
            Some("expected the name of an attribute, such as partitionkey, subject or source")
        }
        ProviderName::Twilio if has_steps => {
            Some("expected the name of a parameter, such as CallSid")
        }
        _ => None,
    }
}

/// Providers with names here have ids that no other one has; others may count from 1.
fn mixed_ids(one: &Webhook, other: &Webhook) -> Option<String> {
    let is_custom = [one, other].map(|webhook| webhook.provider == ProviderName::Custom);
    if !is_custom.contains(&true) || one.id_prefix != other.id_prefix {
        return None;
    }
    let shared = other
        .handlers
        .iter()
        .find(|name| one.handlers.contains(name))?;
    Some(format!(
        "`{shared}` gets what comes to {} too, and an id that both use would be one message: set a prefix, \
         such as id_prefix = \"orders/\"",
        one.path.0
    ))
}

/// What tells the provider's requests from others.
fn provider(webhook: &Webhook, secrets: Vec<String>) -> Result<Provider, String> {
    let provider = match (webhook.provider, &webhook.origin) {
        (ProviderName::Twilio, Some(origin)) => Provider::twilio(secrets, origin),
        (ProviderName::Twilio, None) => {
            let missing =
                "twilio signs the address that it calls: origin = \"https://hooks.example.com\"";
            return Err(missing.to_owned());
        }
        (_, Some(_)) => return Err("origin is for twilio only".to_owned()),
        (ProviderName::Github, None) => Provider::github(secrets),
        (ProviderName::Stripe, None) => Provider::stripe(secrets),
        (ProviderName::Slack, None) => Provider::slack(secrets),
        (ProviderName::Shopify, None) => Provider::shopify(secrets),
        (ProviderName::StandardWebhooks, None) => Provider::standard_webhooks(secrets),
        (ProviderName::Cloudevents, None) => Provider::cloud_events(secrets),
        (ProviderName::Custom, None) => match &webhook.custom {
            Some(custom) => custom.provider(secrets),
            None => return Err("say how it signs, in [webhooks.custom]".to_owned()),
        },
    };
    if webhook.custom.is_some() && webhook.provider != ProviderName::Custom {
        return Err("[webhooks.custom] is for provider = \"custom\" only".to_owned());
    }
    let provider = provider.map_err(|error| error.to_string())?;
    match &webhook.tolerance {
        None => Ok(provider),
        Some(tolerance) => {
            let provider = provider.tolerance(tolerance.0);
            provider.map_err(|error| error.to_string())
        }
    }
}
