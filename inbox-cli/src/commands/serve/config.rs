//! The configuration: what may stand in `inbox.toml`.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use inbox::HandlerName;
use serde::Deserialize;
use toml::Spanned;

use super::{
    dashboard::Dashboard,
    metrics::Metrics,
    notify::NotifyConfig,
    receivers::ReceiverConfig,
    secret::Secret,
    values::{
        Command, Concurrency, Hours, KeyRetention, Lease, Limit, Listen, PostUrl, Retention, Time,
    },
    webhooks::Webhook,
};
use crate::{commands::process::ProcessingArgs, retention::Keep};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) listen: Option<Listen>,
    pub(crate) store: Option<Spanned<Url>>,
    /// How long requests and handlers may go on at the end.
    pub(crate) grace: Option<Time>,
    pub(crate) tls: Option<Tls>,
    pub(crate) api: Option<Spanned<Api>>,
    pub(crate) dashboard: Option<Spanned<Dashboard>>,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) notify: Option<NotifyConfig>,
    /// While more messages than this wait, no new ones are taken.
    pub(crate) backlog_limit: Option<u64>,
    /// How many bytes of requests may be in memory at one time.
    pub(crate) body_budget_bytes: Option<Spanned<NonZeroU32>>,
    #[serde(default)]
    pub(crate) webhooks: Vec<Spanned<Webhook>>,
    /// What is received from brokers.
    #[serde(default)]
    pub(crate) receivers: Vec<Spanned<ReceiverConfig>>,
    #[serde(default)]
    pub(crate) handlers: Vec<Spanned<HandlerConfig>>,
    #[serde(default)]
    pub(crate) janitor: Janitor,
}

/// A URL, or where it is if it has a password.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a URL, or { env = \"VARIABLE\" } or { file = \"PATH\" } if it has a password"
)]
pub(crate) enum Url {
    Url(String),
    Secret(Secret),
}

impl Url {
    /// The URL. The error names the place of a secret, and nothing of what is there.
    pub(crate) fn read(&self) -> Result<String, String> {
        match self {
            Self::Url(url) => Ok(url.clone()),
            Self::Secret(secret) => secret.read(),
        }
    }

    fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Url(_) => None,
            Self::Secret(secret) => Some(secret),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    /// The chain, in PEM.
    pub(crate) certificate: Spanned<PathBuf>,
    /// The private key, in PEM.
    pub(crate) key: Spanned<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Api {
    #[serde(default, deserialize_with = "super::secret::list")]
    pub(crate) tokens: Vec<Spanned<Secret>>,
    #[serde(default = "max_attempts")]
    pub(crate) max_attempts: NonZeroU32,
    #[serde(default = "retry_delay")]
    pub(crate) retry_delay: Time,
    #[serde(default)]
    pub(crate) after_dead: AfterDeadName,
    pub(crate) max_body_bytes: Option<NonZeroU32>,
}

/// What becomes of the later messages of an ordering key of which one is dead.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AfterDeadName {
    #[default]
    Continue,
    Block,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandlerConfig {
    pub(crate) name: HandlerName,
    pub(crate) command: Option<Command>,
    pub(crate) post: Option<PostUrl>,
    #[serde(default = "concurrency")]
    pub(crate) concurrency: Concurrency,
    #[serde(default = "lease")]
    pub(crate) lease: Lease,
    pub(crate) timeout: Option<Limit>,
    #[serde(default = "max_attempts")]
    pub(crate) max_attempts: NonZeroU32,
    #[serde(default = "retry_delay")]
    pub(crate) retry_delay: Time,
}

impl Config {
    /// The environment variables that are named as secrets.
    pub(crate) fn secret_variables(&self) -> Vec<String> {
        let urls = self.urls().map(|(_, url)| url);
        let tokens = self.api.iter().flat_map(|api| &api.get_ref().tokens);
        let dashboard = self.dashboard.iter();
        let dashboard = dashboard.flat_map(|pages| &pages.get_ref().tokens);
        let metrics = self.metrics.iter().flat_map(|metrics| &metrics.tokens);
        let webhooks = self.webhooks.iter();
        let secrets = webhooks.flat_map(|webhook| &webhook.get_ref().secrets);
        let all = urls.filter_map(Url::secret).chain(
            tokens
                .chain(dashboard)
                .chain(metrics)
                .chain(secrets)
                .map(Spanned::get_ref),
        );
        all.filter_map(Secret::variable)
            .map(str::to_owned)
            .collect()
    }

    /// Each URL that may be a secret, with its key.
    pub(super) fn urls(&self) -> impl Iterator<Item = (String, &Url)> {
        let store = self.store.iter();
        let store = store.map(|store| ("store".to_owned(), store.get_ref()));
        let receivers = self.receivers.iter().enumerate();
        let receivers = receivers.map(|(index, receiver)| {
            let from = receiver.get_ref().from.get_ref();
            (format!("receivers[{index}].from"), from)
        });
        let notify = self.notify.iter();
        let notify = notify.map(|notify| ("notify.webhook".to_owned(), notify.webhook.get_ref()));
        store.chain(receivers).chain(notify)
    }
}

impl Api {
    pub(crate) fn new(tokens: Vec<Spanned<Secret>>) -> Self {
        Self {
            tokens,
            max_attempts: max_attempts(),
            retry_delay: retry_delay(),
            after_dead: AfterDeadName::default(),
            max_body_bytes: None,
        }
    }
}

impl HandlerConfig {
    pub(crate) fn new(name: HandlerName) -> Self {
        Self {
            name,
            command: None,
            post: None,
            concurrency: concurrency(),
            lease: lease(),
            timeout: None,
            max_attempts: max_attempts(),
            retry_delay: retry_delay(),
        }
    }

    /// As `inbox process` takes it from the command line.
    pub(crate) fn into_args(self, grace: Duration) -> ProcessingArgs {
        ProcessingArgs {
            handler: self.name,
            concurrency: self.concurrency.0,
            lease: self.lease.0,
            timeout: self.timeout.map(|limit| limit.0),
            max_attempts: self.max_attempts.get(),
            retry_delay: self.retry_delay.0,
            grace,
            // The service's janitor sees to all handlers.
            keep_processed: Keep::FOREVER,
        }
    }
}

/// How long final messages are kept, and when the others are deleted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Janitor {
    pub(crate) keep_processed: KeyRetention,
    pub(crate) keep_dead: Retention,
    pub(crate) keep_discarded: Retention,
    /// Payloads and results of processed messages, whose keys stay.
    pub(crate) keep_payloads: Retention,
    /// At any time unless set.
    pub(crate) hours: Option<Hours>,
    pub(crate) handlers: Vec<Spanned<OwnRetention>>,
}

/// What is otherwise for one handler; the rest is as for all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnRetention {
    pub(crate) name: HandlerName,
    keep_processed: Option<KeyRetention>,
    keep_dead: Option<Retention>,
    keep_discarded: Option<Retention>,
    keep_payloads: Option<Retention>,
}

/// How long messages are kept, of one handler or of all others. `None` is for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) processed: Option<Duration>,
    pub(crate) dead: Option<Duration>,
    pub(crate) discarded: Option<Duration>,
    pub(crate) payloads: Option<Duration>,
}

impl Janitor {
    /// Of the handlers that have nothing of their own.
    pub(crate) fn kept(&self) -> Kept {
        Kept {
            processed: self.keep_processed.0,
            dead: self.keep_dead.0,
            discarded: self.keep_discarded.0,
            payloads: self.keep_payloads.0,
        }
    }

    pub(crate) fn kept_for(&self, own: &OwnRetention) -> Kept {
        let or = |own: &Option<Retention>, common: &Retention| own.as_ref().unwrap_or(common).0;
        let processed = own.keep_processed.as_ref();
        Kept {
            processed: processed.unwrap_or(&self.keep_processed).0,
            dead: or(&own.keep_dead, &self.keep_dead),
            discarded: or(&own.keep_discarded, &self.keep_discarded),
            payloads: or(&own.keep_payloads, &self.keep_payloads),
        }
    }

    /// Each retention, with its handler; the common one comes first and has none.
    pub(crate) fn all_kept(&self) -> impl Iterator<Item = (Option<&HandlerName>, Kept)> {
        let own = self.handlers.iter().map(Spanned::get_ref);
        let own = own.map(|own| (Some(&own.name), self.kept_for(own)));
        std::iter::once((None, self.kept())).chain(own)
    }
}

impl From<Kept> for inbox::Retention {
    fn from(kept: Kept) -> Self {
        let mut retention = Self::new();
        if let Some(time) = kept.processed {
            retention = retention.keep_processed(time);
        }
        if let Some(time) = kept.dead {
            retention = retention.keep_dead(time);
        }
        if let Some(time) = kept.discarded {
            retention = retention.keep_discarded(time);
        }
        if let Some(time) = kept.payloads {
            retention = retention.keep_payloads(time);
        }
        retention
    }
}

impl Default for Janitor {
    fn default() -> Self {
        const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);
        Self {
            keep_processed: KeyRetention(Some(MONTH)),
            keep_dead: Retention(None),
            keep_discarded: Retention(Some(MONTH)),
            keep_payloads: Retention(None),
            hours: None,
            handlers: Vec::new(),
        }
    }
}

fn concurrency() -> Concurrency {
    Concurrency(4)
}

fn lease() -> Lease {
    Lease(Duration::from_secs(60))
}

fn max_attempts() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(7)
}

fn retry_delay() -> Time {
    Time(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args, commands::serve::source::Source};

    fn file(text: &str) -> Source {
        Source::File {
            name: "inbox.toml".to_owned(),
            text: text.to_owned(),
        }
    }

    fn complaint(text: &str) -> String {
        file(text).parse().unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line_with_key_and_place() {
        let handler = "[[handlers]]\nname = \"a\"\n";
        for (text, place, reason) in [
            (
                "listne = \"127.0.0.1:80\"",
                "inbox.toml:1:1: listne: ",
                "unknown field `listne`",
            ),
            (
                "listen = \"localhost:8080\"",
                "inbox.toml:1:10: listen: ",
                "expected an IP address and a port, such as 127.0.0.1:8080",
            ),
            ("listen = ", "inbox.toml:1:10: ", ""),
            (
                "[tls]\nkey = \"k\"",
                "inbox.toml:1:1: tls: ",
                "missing field `certificate`",
            ),
            (
                &format!("{handler}lease = \"5\""),
                "inbox.toml:3:9: handlers[0].lease: ",
                "such as",
            ),
            (
                &format!("{handler}timeout = 30"),
                "inbox.toml:3:11: handlers[0].timeout: ",
                "30s",
            ),
            (
                &format!("{handler}post = true"),
                "inbox.toml:3:8: handlers[0].post: ",
                "expected a string",
            ),
            (
                &format!("{handler}concurrency = 0"),
                "inbox.toml:3:15: handlers[0].concurrency: ",
                "1 to",
            ),
            (
                &format!("{handler}post = \"ftp://x\""),
                "inbox.toml:3:8: handlers[0].post: ",
                "http",
            ),
            (
                &format!("{handler}retries = 3"),
                "inbox.toml:3:1: ",
                "unknown field `retries`",
            ),
            (
                "[[handlers]]\nname = \"\"",
                "inbox.toml:2:8: handlers[0].name: ",
                "empty",
            ),
            (
                "[janitor]\nkeep_processed = \"1 year\"",
                "inbox.toml:2:18: janitor.keep_processed: ",
                "days",
            ),
            (
                "[janitor]\nkeep_processed = \"0s\"",
                "inbox.toml:2:18: janitor.keep_processed: ",
                "nothing would refuse duplicates",
            ),
            (
                "[[janitor.handlers]]\nname = \"a\"\nkeep_processed = \"0s\"",
                "inbox.toml:3:18: janitor.handlers[0].keep_processed: ",
                "nothing would refuse duplicates",
            ),
            (
                &format!("{handler}command = \"curl -H hunter2\""),
                "inbox.toml:3:11: handlers[0].command: ",
                "a list of a program and its arguments",
            ),
            (
                "[janitor]\nhours = \"4-4\"",
                "inbox.toml:2:9: janitor.hours: ",
                "such as 22-4",
            ),
            (
                "[[janitor.handlers]]\nname = \"a\"\nkeep = \"7d\"",
                "inbox.toml:3:1: ",
                "unknown field `keep`",
            ),
            (
                "[api]\ntokens = [\"hunter2\"]",
                "inbox.toml:2:11: api.tokens[0]: ",
                "not written",
            ),
            (
                "[api]\ntoken = \"hunter2\"",
                "inbox.toml:2:1: ",
                "unknown field `token`",
            ),
            (
                "[[webhooks]]\npath = \"/v1/x\"\nprovider = \"github\"",
                "inbox.toml:2:8: webhooks[0].path: ",
                "own",
            ),
            (
                "[[webhooks]]\npath = \"/x\"\nprovider = \"gitlab\"",
                "inbox.toml:3:12: webhooks[0].provider: ",
                "unknown provider",
            ),
        ] {
            let said = complaint(text);
            assert!(said.starts_with(place), "{said}");
            assert!(said.contains(reason), "{said}");
            assert!(!said.contains('\n') && !said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn nothing_need_be_said() {
        let config = file("").parse().unwrap();
        assert_eq!(
            config.janitor.keep_processed.0,
            Some(Duration::from_secs(30 * 86_400))
        );
        assert_eq!(config.janitor.keep_dead.0, None);
        assert_eq!(config.janitor.keep_payloads.0, None);
    }

    #[test]
    fn a_handler_keeps_as_all_do_what_it_does_not_say() {
        let text = "[janitor]\nkeep_processed = \"10d\"\nkeep_dead = \"20d\"\nhours = \"22-24\"\n\
                    [[janitor.handlers]]\nname = \"a\"\nkeep_processed = \"forever\"\nkeep_payloads = \"1d\"";
        let janitor = file(text).parse().unwrap().janitor;
        let days = |days: u64| Some(Duration::from_secs(days * 86_400));
        let kept: Vec<_> = janitor
            .all_kept()
            .map(|(name, kept)| {
                let name = name.map(HandlerName::as_str);
                (
                    name,
                    kept.processed,
                    kept.dead,
                    kept.discarded,
                    kept.payloads,
                )
            })
            .collect();
        assert_eq!(
            kept,
            [
                (None, days(10), days(20), days(30), None),
                (Some("a"), None, days(20), days(30), days(1)),
            ]
        );
        assert_eq!(janitor.hours.unwrap().0, (22, 24));
    }

    #[test]
    fn configurations_of_any_bytes_are_taken_or_refused() {
        let corpus = include_str!("../../../../hostile/corpus/configuration.txt");
        let target = hostile::Target::new("configuration", corpus, |input| {
            let text = &*String::from_utf8_lossy(input);
            let _ = args::address(text);
            match file(text).parse() {
                Ok(config) => drop(format!("{config:?}")),
                Err(wrong) if wrong.to_string().contains('\n') => {
                    return Err(format!("what is wrong is more than a line\n{wrong}"));
                }
                Err(_) => {}
            }
            Ok(())
        });
        hostile::hold(&target.limit(512, 64 * 1024));
    }
}
