//! The brokers of a configuration: what is received from them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use futures_util::future::join_all;
use inbox::{
    HandlerName, Inbox, Store,
    receiver::{IdFrom, Summary, TextFrom},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use toml::Spanned;

use super::{
    config::Url,
    plan::Plan,
    server::Shared,
    source::{Source, Wrong},
    values::from_text,
    webhooks,
};
use crate::{
    commands::receive::{Broker, Rules, check_is_built},
    interrupt,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiverConfig {
    /// The broker's URL, or where it is if it has a password.
    pub(crate) from: Spanned<Url>,
    #[serde(default = "webhooks::handlers")]
    handlers: Vec<HandlerName>,
    #[serde(default)]
    id_from: Vec<IdPlace>,
    #[serde(default, deserialize_with = "super::values::id_prefix")]
    id_prefix: String,
    #[serde(default)]
    kind_from: Vec<TextPlace>,
    /// An empty list is none at all.
    ordering_key_from: Option<Vec<TextPlace>>,
    keep_rejected: Option<HandlerName>,
    #[serde(default)]
    stop_at_rejected: bool,
    /// Store messages as processed at once.
    #[serde(default)]
    record_only: bool,
}

from_text!(
    /// Where to look for an id.
    IdPlace(IdFrom),
    |text| text.parse().map_err(|unknown: inbox::receiver::UnknownPlace| unknown.to_string())
);

from_text!(
    /// Where to look for a kind or an ordering key.
    TextPlace(TextFrom),
    |text| text.parse().map_err(|unknown: inbox::receiver::UnknownPlace| unknown.to_string())
);

/// A source, and what becomes of what it delivers.
pub(super) struct PlannedReceiver {
    url: String,
    pub(super) rules: Rules,
    /// The source's name.
    pub(super) name: String,
}

impl ReceiverConfig {
    /// The first of the handlers whose messages are final at once that is among these, behind the key that makes them
    /// so. A message is begun before it is final, and of a receiver that is killed in between it is pending.
    fn final_handler_in<'a>(
        &'a self,
        handlers: &BTreeSet<HandlerName>,
    ) -> Option<(&'static str, &'a HandlerName)> {
        let recorded = self.handlers.iter().filter(|_| self.record_only);
        let recorded = recorded.map(|handler| ("record_only", handler));
        let kept = self.keep_rejected.iter();
        let kept = kept.map(|handler| ("keep_rejected", handler));
        recorded
            .chain(kept)
            .find(|(_, handler)| handlers.contains(*handler))
    }

    fn rules(self) -> Rules {
        let texts = |places: Vec<TextPlace>| places.into_iter().map(|place| place.0).collect();
        let ordering_key_from: Vec<_> = texts(self.ordering_key_from.clone().unwrap_or_default());
        Rules {
            handlers: self.handlers,
            id_from: self.id_from.into_iter().map(|place| place.0).collect(),
            id_prefix: self.id_prefix,
            kind_from: texts(self.kind_from),
            unordered: self.ordering_key_from.is_some() && ordering_key_from.is_empty(),
            ordering_key_from,
            keep_rejected: self.keep_rejected,
            stop_at_rejected: self.stop_at_rejected,
            record_only: self.record_only,
            batch: 500,
        }
    }
}

/// Reads what the receivers' configurations name, where these handlers are worked on here.
pub(super) fn plan(
    source: &Source,
    all: Vec<Spanned<ReceiverConfig>>,
    worked_on: &BTreeSet<HandlerName>,
) -> Result<Vec<PlannedReceiver>, Wrong> {
    let mut planned = Vec::new();
    for (index, config) in all.into_iter().enumerate() {
        let key = format!("receivers[{index}]");
        let span = config.span();
        let config = config.into_inner();
        if config.keep_rejected.is_some() && config.stop_at_rejected {
            let message = "rejected deliveries are either kept or stopped at";
            return Err(source.wrong(&format!("{key}.stop_at_rejected"), span, message));
        }
        if let Some((field, handler)) = config.final_handler_in(worked_on) {
            let message = format!(
                "[[handlers]] works on `{handler}`, and would run what a receiver that is killed leaves pending: \
                 name a handler that nothing works on"
            );
            return Err(source.wrong(&format!("{key}.{field}"), span, message));
        }
        let place = config.from.span();
        let wrong = |reason: String| source.wrong(&format!("{key}.from"), place.clone(), reason);
        let url = config.from.get_ref().read().map_err(wrong)?;
        let rules = config.rules();
        rules
            .check_keep_rejected()
            .map_err(|reason| source.wrong(&format!("{key}.keep_rejected"), span, reason))?;
        check_is_built(&url).map_err(|error| wrong(error.to_string()))?;
        let broker = rules
            .mapping()
            .and_then(|mapping| Broker::new(&url, mapping))
            .map_err(wrong)?;
        planned.push(PlannedReceiver {
            name: broker.name().into_owned(),
            url,
            rules,
        });
    }
    Ok(planned)
}

/// What was received.
#[derive(Default)]
pub(super) struct Received {
    /// Of those that came to their end.
    pub(super) summary: Summary,
    pub(super) is_cut_short: bool,
}

/// Receives from all brokers until `token` is cancelled, or one of them fails for good. One that has not ended after
/// `limit` then is dropped: what it has not acknowledged is delivered again.
pub(super) async fn run(
    plan: &Plan,
    shared: &Shared<'_>,
    limit: Duration,
) -> anyhow::Result<Received> {
    let Shared {
        store, token, gate, ..
    } = *shared;
    let receiving = plan.receivers.iter().map(|planned| async {
        let store: Arc<dyn Store> = Arc::<dyn Inbox>::clone(store);
        let mut receiver = planned.rules.receiver(store).drain_limit(plan.grace);
        if let Some(gate) = gate {
            receiver = receiver.backlog_gate(gate.clone());
        }
        let mapping = planned.rules.mapping();
        let broker = mapping.and_then(|mapping| Broker::new(&planned.url, mapping));
        let broker = broker.map_err(|reason| anyhow!("{}: {reason}", planned.name))?;
        let receiver = Arc::new(receiver.build());
        let (asked, name) = (Arc::clone(&receiver), planned.name.clone());
        shared.parts.add(move || {
            let mut health = asked.health();
            health.name.clone_from(&name);
            health
        });
        let running = Box::pin(broker.run(&receiver, token.clone()));
        let Some(ended) = interrupt::within(token, limit, running).await else {
            let name = &planned.name;
            tracing::warn!("{name} has not ended in time; what came from it is not counted");
            return Ok(None);
        };
        if ended.is_err() {
            // The others do not notice by themselves.
            token.cancel();
        }
        let ended = ended.with_context(|| format!("cannot receive from {}", planned.name));
        ended.map(Some)
    });
    let mut all = Received::default();
    for ended in join_all(receiving).await {
        match ended? {
            Some(summary) => all.summary += summary,
            None => all.is_cut_short = true,
        }
    }
    Ok(all)
}
