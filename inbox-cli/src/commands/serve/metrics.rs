//! `[metrics]`: where Prometheus reads, and who may.

use std::net::SocketAddr;

use inbox_http::{Guard, Token};
use serde::Deserialize;
use toml::Spanned;

use super::{
    plan::tokens,
    secret::Secret,
    source::{Source, Wrong},
    values::Listen,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metrics {
    /// An address of their own; the service's unless set.
    listen: Option<Listen>,
    #[serde(default, deserialize_with = "super::secret::list")]
    pub(super) tokens: Vec<Spanned<Secret>>,
}

#[derive(Debug, Default)]
pub(super) struct PlannedMetrics {
    pub(super) listen: Option<SocketAddr>,
    tokens: Vec<Token>,
}

pub(super) fn plan(source: &Source, config: &Metrics) -> Result<PlannedMetrics, Wrong> {
    Ok(PlannedMetrics {
        listen: config.listen.as_ref().map(|listen| listen.0),
        tokens: tokens(source, "metrics.tokens", &config.tokens)?,
    })
}

impl PlannedMetrics {
    pub(super) fn guard(&self) -> Guard {
        let mut guard = Guard::default();
        for token in &self.tokens {
            guard.add_token(token.clone());
        }
        guard
    }

    /// Whether all who reach the service itself may read them.
    pub(super) fn is_open(&self) -> bool {
        self.listen.is_none() && self.tokens.is_empty()
    }
}
