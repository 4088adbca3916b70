//! `[dashboard]`: the pages and the admin API of `inbox dashboard`, at a path of the service.

use inbox_dashboard::TraceLink;
use serde::{Deserialize, Deserializer, de::Error as _};
use toml::Spanned;

use super::{
    plan::tokens,
    secret::Secret,
    source::{Source, Wrong},
};
use crate::commands::dashboard::Pages;

/// Where it is.
pub(super) const PATH: &str = "/dashboard";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dashboard {
    #[serde(default, deserialize_with = "super::secret::list")]
    pub(super) tokens: Vec<Spanned<Secret>>,
    #[serde(default = "title")]
    title: String,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    hide_payloads: bool,
    #[serde(default, deserialize_with = "trace_link")]
    trace_link: Option<TraceLink>,
}

fn title() -> String {
    "Inbox".to_owned()
}

fn trace_link<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TraceLink>, D::Error> {
    let link = String::deserialize(deserializer)?.parse();
    link.map(Some).map_err(D::Error::custom)
}

pub(super) fn plan(source: &Source, config: Spanned<Dashboard>) -> Result<Pages, Wrong> {
    let span = config.span();
    let config = config.into_inner();
    if config.tokens.is_empty() {
        let message = "the dashboard is not served without a token: tokens = [{ env = \"INBOX_ADMIN_TOKEN\" }]";
        return Err(source.wrong("dashboard.tokens", span, message));
    }
    Ok(Pages {
        tokens: tokens(source, "dashboard.tokens", &config.tokens)?,
        title: config.title,
        read_only: config.read_only,
        hide_payloads: config.hide_payloads,
        trace_link: config.trace_link,
    })
}
