//! `[notify]`: a webhook that is told of dead letters and of lag.

use serde::Deserialize;
use toml::Spanned;

use super::{
    config::Url,
    source::{Source, Wrong},
    values::Time,
};
use crate::notify::{self, Notify};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NotifyConfig {
    /// Where to post, or where that is if it is a secret.
    pub(super) webhook: Spanned<Url>,
    #[serde(default = "max_lag")]
    max_lag: Time,
    #[serde(default = "interval")]
    interval: Time,
    #[serde(default = "at_most_every")]
    at_most_every: Time,
    #[serde(default = "title")]
    title: String,
}

fn max_lag() -> Time {
    Time(Notify::MAX_LAG)
}

fn interval() -> Time {
    Time(Notify::INTERVAL)
}

fn at_most_every() -> Time {
    Time(Notify::PAUSE)
}

fn title() -> String {
    "Inbox".to_owned()
}

pub(super) fn plan(source: &Source, config: NotifyConfig) -> Result<Notify, Wrong> {
    let place = config.webhook.span();
    let url = config.webhook.get_ref().read();
    let url = url.and_then(|url| notify::url(&url));
    let url = url.map_err(|reason| source.wrong("notify.webhook", place.clone(), reason))?;
    if config.interval.0.is_zero() {
        let message = "expected a time above 0 such as 15s";
        return Err(source.wrong("notify.interval", place, message));
    }
    Ok(Notify {
        url,
        max_lag: config.max_lag.0,
        interval: config.interval.0,
        pause: config.at_most_every.0,
        title: config.title,
    })
}
