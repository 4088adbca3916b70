//! What a check, and the start, warn of: what is taken as it stands, and would be better otherwise.

use std::collections::BTreeSet;

use inbox::{HandlerName, StoreKind};

use super::{
    config::{Config, Url},
    metrics::PlannedMetrics,
    plan::{Plan, of_handler},
};
use crate::output;

/// What the configuration itself should say otherwise.
pub(super) fn of_config(config: &Config) -> Vec<String> {
    let urls = config.urls();
    let warnings = urls
        .filter(|(_, url)| url.is_written_with_password())
        .map(|(key, _)| {
            format!(
                "{key}: the URL has a password; keep it elsewhere: {{ env = \"VARIABLE\" }} or \
                 {{ file = \"PATH\" }}"
            )
        });
    warnings.collect()
}

impl Url {
    /// Whether it stands in the configuration, with a password.
    fn is_written_with_password(&self) -> bool {
        let Self::Url(url) = self else {
            return false;
        };
        let authority = url
            .split_once("://")
            .and_then(|(_, rest)| rest.split(['/', '?']).next());
        let credentials = authority.and_then(|authority| authority.rsplit_once('@'));
        // As a setting, PostgreSQL takes it too.
        let settings = url.split_once('?').map_or("", |(_, settings)| settings);
        let password = settings
            .split('&')
            .find_map(|setting| setting.strip_prefix("password="));
        credentials.is_some_and(|(credentials, _)| credentials.contains(':'))
            || password.is_some_and(|password| !password.is_empty())
    }
}

impl Plan {
    /// What an operator should know, and may want so.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.config_warnings.clone();
        if StoreKind::of(&self.store) == Some(StoreKind::Memory) {
            warnings.push(
                "nothing is kept in memory after this command, also of what senders were told is stored: to keep it, \
                 name another store"
                    .to_owned(),
            );
        }
        if let (Some(api), Some(pages)) = (&self.api, &self.dashboard)
            && api.tokens.iter().any(|token| pages.tokens.contains(token))
        {
            warnings.push(
                "the JSON API and the dashboard take the same token, with which each worker can replay, discard and \
                 clear: give the dashboard one of its own"
                    .to_owned(),
            );
        }
        if self.tls.is_none() && !self.listen.ip().is_loopback() {
            warnings.push(
                "without [tls], tokens and messages are readable on the network; have a proxy in front \
                 that encrypts"
                    .to_owned(),
            );
        }
        if self.metrics.as_ref().is_some_and(PlannedMetrics::is_open)
            && !self.listen.ip().is_loopback()
        {
            warnings.push(
                "all who can reach the service can read /metrics, which names handlers and counts their \
                 messages: set tokens or listen in [metrics]"
                    .to_owned(),
            );
        }
        let worked_on: BTreeSet<_> = self.handlers.iter().map(|h| &h.args.handler).collect();
        if self.api.is_none() {
            let to_be_worked_on = self.receivers.iter().filter(|one| !one.rules.record_only);
            let stored: BTreeSet<_> = self
                .webhooks
                .iter()
                .flat_map(|planned| &planned.webhook.handlers)
                .chain(to_be_worked_on.flat_map(|one| &one.rules.handlers))
                .collect();
            for handler in stored.difference(&worked_on) {
                warnings.push(format!("nothing here works on the messages of `{handler}`"));
            }
        }
        warnings.extend(self.mixed_finals());
        let own: BTreeSet<_> = self.janitor.all_kept().filter_map(|(h, _)| h).collect();
        if self.api.is_none() {
            for handler in own.difference(&self.known_handlers()) {
                warnings.push(format!(
                    "[[janitor.handlers]] has `{handler}`, and nothing here stores or handles messages of that name"
                ));
            }
        }
        for webhook in self.webhooks.iter().map(|planned| &planned.webhook) {
            if let Some(name) = webhook.odd_attribute() {
                warnings.push(format!(
                    "ordering of {} is `{name}`, and names of attributes are of lower-case letters and digits: \
                     events without it are in no order",
                    webhook.path.0
                ));
                continue;
            }
            for (key, field) in webhook.fields() {
                if let Some(pointer) = field.meant_pointer() {
                    warnings.push(format!(
                        "{key} of {} is the name of one member; members of members need a JSON pointer: {pointer}",
                        webhook.path.0
                    ));
                }
            }
        }
        for (handler, kept) in self.janitor.all_kept() {
            let is_kept_so = |name: &HandlerName| match handler {
                Some(handler) => name == handler,
                None => !own.contains(name),
            };
            let windows = self.handlers.iter().map(|planned| &planned.args);
            let windows = windows.filter(|args| is_kept_so(&args.handler));
            let windows = windows.map(|args| args.retry_policy().longest_window());
            // Workers of the API take any handler; one that is worked on here is hardly one of theirs.
            let is_worked_on = handler.is_some_and(|name| worked_on.contains(name));
            let of_api = self.api.iter().filter(|_| !is_worked_on);
            let of_api = of_api.map(|api| api.retry.longest_window());
            let window = windows.chain(of_api).max();
            let window = window.unwrap_or_default();
            if let Some(kept) = kept.processed.filter(|kept| *kept < window) {
                warnings.push(format!(
                    "processed messages{} are kept for {}, less than a handler's retries may take ({})",
                    of_handler(handler),
                    output::duration(kept),
                    output::duration(window)
                ));
            }
        }
        warnings
    }

    /// Handlers for which one receiver stores what is final at once, and another one or a webhook what is to be worked
    /// on. (Those that are worked on here are refused.)
    fn mixed_finals(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let webhooks = self.webhooks.iter();
        let of_webhooks = webhooks.flat_map(|planned| &planned.webhook.handlers);
        let to_be_worked_on = self.receivers.iter().filter(|one| !one.rules.record_only);
        let of_brokers = to_be_worked_on.flat_map(|one| &one.rules.handlers);
        let stored: BTreeSet<_> = of_webhooks.chain(of_brokers).collect();
        for (index, receiver) in self.receivers.iter().enumerate() {
            let recorded = receiver.rules.handlers.iter();
            let recorded = recorded.filter(|_| receiver.rules.record_only);
            let recorded = recorded.map(|handler| ("record_only", handler));
            let kept = receiver.rules.keep_rejected.iter();
            let kept = kept.map(|handler| ("keep_rejected", handler));
            for (field, handler) in recorded.chain(kept) {
                if stored.contains(handler) {
                    warnings.push(format!(
                        "{field} of receivers[{index}]: messages are stored for `{handler}` elsewhere, too, and a worker \
                         of theirs would run what a receiver that is killed leaves pending: name a handler that nothing \
                         works on"
                    ));
                }
            }
        }
        warnings
    }

    /// Of which handlers something is stored or handled here.
    fn known_handlers(&self) -> BTreeSet<&HandlerName> {
        let worked_on = self.handlers.iter().map(|planned| &planned.args.handler);
        let webhooks = self.webhooks.iter();
        let of_webhooks = webhooks.flat_map(|planned| &planned.webhook.handlers);
        let rules = self.receivers.iter().map(|planned| &planned.rules);
        let of_brokers =
            rules.flat_map(|rules| rules.handlers.iter().chain(rules.keep_rejected.iter()));
        worked_on.chain(of_webhooks).chain(of_brokers).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::serve::source::Source;

    use super::*;

    #[test]
    fn a_password_in_the_configuration_is_warned_of() {
        let warnings = |text: &str| {
            let source = Source::File {
                name: "inbox.toml".to_owned(),
                text: text.to_owned(),
            };
            of_config(&source.parse().unwrap())
        };
        let written = "store = \"postgres://app:hunter2@db/shop\"\n\
                       [[receivers]]\nfrom = \"amqp://u:hunter2@h/?queue=q\"";
        let said = warnings(written);
        assert!(
            said[0].starts_with("store: the URL has a password"),
            "{said:?}"
        );
        assert!(said[1].starts_with("receivers[0].from: "), "{said:?}");
        assert!(!said.concat().contains("hunter2"), "{said:?}");
        for setting in ["password=hunter2", "sslmode=require&password=hunter2"] {
            let said = warnings(&format!("store = \"postgres://app@db/shop?{setting}\""));
            assert_eq!(said.len(), 1, "{setting}");
            assert!(!said.concat().contains("hunter2"), "{said:?}");
        }
        for fine in [
            "store = \"postgres://app@db:5432/shop\"",
            "store = \"postgres://app@db/shop?inbox=password\"",
            "store = { env = \"X\" }",
            "",
        ] {
            assert_eq!(warnings(fine), [] as [String; 0], "{fine}");
        }
    }
}
