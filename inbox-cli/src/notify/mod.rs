//! Alerts without Prometheus: a webhook that is told of dead letters, of lag and of the store's outages, and
//! when they are over.

mod watch;

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use inbox::{
    CancellationToken, Filter, HandlerName, Inbox, MessageSummary, OperateExt as _, State,
};
use reqwest::{Client, Url, header::CONTENT_TYPE};
use serde::Serialize;
use tokio::time::{Instant, timeout};

use self::watch::{Change, Event, Look, Watch};
use crate::http_client;

/// How many dead messages are looked at, the newest first, when their number has changed.
const MOST_DEAD: u64 = 5_000;

/// After this they are looked at in any case: as many may have been replayed as have died.
const DEAD_KNOWN_FOR: Duration = Duration::from_secs(60);

/// How many events have a line in the text; the list has all.
const MOST_LINES: usize = 20;

/// How long the store may take for a look, and the receiver for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whom to tell, and of what.
#[derive(Clone)]
pub(crate) struct Notify {
    pub(crate) url: Url,
    /// A lag over this is told of.
    pub(crate) max_lag: Duration,
    /// How often the store is asked.
    pub(crate) interval: Duration,
    /// The least time between two messages; what happens meanwhile goes into the next one.
    pub(crate) pause: Duration,
    /// What messages begin with.
    pub(crate) title: String,
}

/// The body. `text` is what Slack, Mattermost and others show.
#[derive(Serialize)]
struct Body<'a> {
    text: String,
    title: &'a str,
    /// Whether nothing is wrong any more.
    all_clear: bool,
    events: &'a [Event],
}

/// A URL to post to.
pub(crate) fn url(text: &str) -> Result<Url, String> {
    http_client::parse(text).ok_or_else(|| "expected an http or https URL".to_owned())
}

impl Notify {
    pub(crate) const MAX_LAG: Duration = Duration::from_secs(5 * 60);
    pub(crate) const INTERVAL: Duration = Duration::from_secs(15);
    pub(crate) const PAUSE: Duration = Duration::from_secs(60);

    /// Looks and tells until `token` is cancelled.
    pub(crate) async fn run(self, store: Arc<dyn Inbox>, token: CancellationToken) -> Result<()> {
        let client = http_client::build(&self.url, |client| client.timeout(PATIENCE))?;
        let looks = async {
            let mut watch = Watch::new(self.max_lag);
            let mut dead = Dead::default();
            let mut told: Option<Instant> = None;
            loop {
                watch.see(dead.look(&*store).await);
                let news = watch.news();
                let may_tell = told.is_none_or(|told| told.elapsed() >= self.pause);
                if !news.is_empty() && may_tell {
                    told = Some(Instant::now());
                    match self.post(&client, &news, watch.is_all_clear()).await {
                        Ok(()) => watch.tell(&news),
                        // The URL is a secret.
                        Err(error) => {
                            let error = crate::causes(&error);
                            tracing::warn!(
                                error,
                                "a notification was not taken; trying again later"
                            );
                        }
                    }
                }
                tokio::time::sleep(self.interval).await;
            }
        };
        tokio::select! {
            () = token.cancelled() => {}
            () = looks => {}
        }
        Ok(())
    }

    async fn post(&self, client: &Client, events: &[Event], all_clear: bool) -> Result<()> {
        let body = Body {
            text: self.text(events, all_clear),
            title: &self.title,
            all_clear,
            events,
        };
        let request = client.post(self.url.clone());
        let request = request.header(CONTENT_TYPE, "application/json");
        let sent = request.body(serde_json::to_vec(&body)?).send().await;
        let answer = sent.map_err(reqwest::Error::without_url)?;
        answer
            .error_for_status()
            .map_err(reqwest::Error::without_url)?;
        Ok(())
    }

    fn text(&self, events: &[Event], all_clear: bool) -> String {
        let end = if all_clear { " (all clear)" } else { "" };
        let mut text = format!("{}{end}:", harmless(&self.title));
        for event in events.iter().take(MOST_LINES) {
            let mark = match event.state {
                Change::Begun => "•",
                Change::Over => "✓",
            };
            text.push_str(&format!("\n{mark} {}", harmless(&event.text)));
        }
        if let Some(more) = events
            .len()
            .checked_sub(MOST_LINES)
            .filter(|more| *more > 0)
        {
            text.push_str(&format!("\nand {more} more"));
        }
        text
    }
}

/// Text in which chat programs see no links, mentions or markup of their own.
fn harmless(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The dead, which are only read when their number has changed, or when that was long ago.
#[derive(Default)]
struct Dead(Option<Known>);

#[derive(Clone)]
struct Known {
    read: Instant,
    /// How many each handler has.
    numbers: Vec<(HandlerName, u64)>,
    groups: MessageSummary,
}

impl Dead {
    async fn look(&mut self, store: &dyn Inbox) -> Look {
        match timeout(PATIENCE, self.ask(store)).await {
            Ok(Ok(look)) => look,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the store does not tell");
                Look::Nothing
            }
            Err(_) => Look::Nothing,
        }
    }

    async fn ask(&mut self, store: &dyn Inbox) -> inbox::Result<Look> {
        let statistics = store.statistics().await?;
        let handlers = statistics.handlers.iter();
        let numbers: Vec<_> = handlers.map(|h| (h.handler.clone(), h.dead)).collect();
        let is_fresh =
            |known: &&Known| known.numbers == numbers && known.read.elapsed() < DEAD_KNOWN_FOR;
        if let Some(known) = self.0.as_ref().filter(is_fresh) {
            let dead = known.groups.clone();
            return Ok(Look::Seen { statistics, dead });
        }
        let filter = Filter {
            states: vec![State::Dead],
            ..Filter::default()
        };
        let groups = match numbers.iter().any(|(_, dead)| *dead > 0) {
            true => store.summarize(&filter, MOST_DEAD).await?,
            false => MessageSummary {
                is_complete: true,
                ..MessageSummary::default()
            },
        };
        self.0 = Some(Known {
            read: Instant::now(),
            numbers,
            groups: groups.clone(),
        });
        let dead = groups;
        Ok(Look::Seen { statistics, dead })
    }
}

#[cfg(test)]
mod tests {
    use super::{watch::Trouble, *};

    #[test]
    fn texts_are_cut_and_harmless() {
        let notify = Notify {
            url: url("http://localhost/").unwrap(),
            max_lag: Notify::MAX_LAG,
            interval: Notify::INTERVAL,
            pause: Notify::PAUSE,
            title: "Orders".to_owned(),
        };
        let event = Event {
            trouble: Trouble::Lag {
                handler: HandlerName::new("h").unwrap(),
            },
            state: Change::Begun,
            text: "<!channel> & co".to_owned(),
        };
        let text = notify.text(&vec![event; 23], false);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("Orders:"));
        assert_eq!(lines.next(), Some("• &lt;!channel&gt; &amp; co"));
        assert_eq!(lines.last(), Some("and 3 more"));
        assert_eq!(notify.text(&[], true), "Orders (all clear):");
        assert!(url("ftp://h").is_err());
    }
}
