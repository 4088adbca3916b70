//! What has to be told: what is wrong now, compared with what was told before.

use std::{collections::BTreeMap, time::Duration};

use inbox::{HandlerName, MessageSummary, Statistics};
use serde::Serialize;

use crate::output;

/// Something that may be wrong. Messages of one group are one thing, however many they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "about", rename_all = "snake_case")]
pub(super) enum Trouble {
    /// The store does not answer.
    Store,
    /// A handler is behind.
    Lag { handler: HandlerName },
    /// There are dead letters of this group. Of their error only its type, or its shape without numbers and
    /// names: its text may have what a handler wrote there.
    Dead {
        handler: HandlerName,
        kind: String,
        error: Option<String>,
    },
}

/// A trouble that has begun or is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Event {
    #[serde(flatten)]
    pub(super) trouble: Trouble,
    pub(super) state: Change,
    /// For people, in one line.
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    Begun,
    Over,
}

/// What was seen at one look.
#[derive(Debug)]
pub(super) enum Look {
    /// The store did not answer.
    Nothing,
    Seen {
        statistics: Statistics,
        /// The dead, in groups.
        dead: MessageSummary,
    },
}

/// After so many looks in vain the store counts as away.
const PATIENCE: u32 = 3;

/// Compares looks, and knows what is still to be told.
#[derive(Debug)]
pub(super) struct Watch {
    max_lag: Duration,
    /// What is wrong, as far as was seen.
    present: BTreeMap<Trouble, Seen>,
    /// What was told and is not over, as far as was told; and whether it was told that its handler is paused.
    told: BTreeMap<Trouble, bool>,
    in_vain: u32,
}

/// How a trouble looks.
#[derive(Debug)]
struct Seen {
    text: String,
    /// Its handler was paused after it had begun.
    is_paused: bool,
}

impl Seen {
    fn new(text: String) -> Self {
        let is_paused = false;
        Self { text, is_paused }
    }
}

impl Watch {
    pub(super) fn new(max_lag: Duration) -> Self {
        Self {
            max_lag,
            present: BTreeMap::new(),
            told: BTreeMap::new(),
            in_vain: 0,
        }
    }

    pub(super) fn see(&mut self, look: Look) {
        let (statistics, dead) = match look {
            Look::Nothing => {
                self.in_vain = self.in_vain.saturating_add(1);
                if self.in_vain >= PATIENCE {
                    let seen = Seen::new("the store does not answer".to_owned());
                    self.present.insert(Trouble::Store, seen);
                }
                return;
            }
            Look::Seen { statistics, dead } => (statistics, dead),
        };
        self.in_vain = 0;
        let before = std::mem::take(&mut self.present);
        for of_handler in &statistics.handlers {
            let handler = of_handler.handler.clone();
            let trouble = Trouble::Lag { handler };
            let is_paused = of_handler.paused;
            // So that one that is just at the limit is not told of again and again.
            let limit = match before.contains_key(&trouble) {
                true => self.max_lag / 2,
                // It is behind because an operator wants that.
                false if is_paused => continue,
                false => self.max_lag,
            };
            if let Some(lag) = of_handler.lag.filter(|lag| *lag > limit) {
                let (name, lag) = (&of_handler.handler, output::duration(lag));
                let pause = if is_paused { ", and paused" } else { "" };
                let text = format!("{name} is behind by {lag}{pause}");
                self.present.insert(trouble, Seen { text, is_paused });
            }
        }
        for group in dead.groups {
            let error = group.error_type.map(|error| error.to_string());
            let error = error.or(group.error_shape);
            let text = format!(
                "{}: {} of kind {}{}",
                group.handler,
                output::count_of(group.messages, "dead letter"),
                group.kind,
                error
                    .as_deref()
                    .map_or_else(String::new, |e| format!(", {e}"))
            );
            let trouble = Trouble::Dead {
                handler: group.handler,
                kind: group.kind.to_string(),
                error,
            };
            self.present.insert(trouble, Seen::new(text));
        }
        if dead.is_complete {
            return;
        }
        // There are more than were looked at, so a group that was not found may still be there.
        let has_dead = |name: &HandlerName| {
            let mut all = statistics.handlers.iter();
            all.any(|of_handler| of_handler.handler == *name && of_handler.dead > 0)
        };
        for (trouble, seen) in before {
            if matches!(&trouble, Trouble::Dead { handler, .. } if has_dead(handler)) {
                self.present.entry(trouble).or_insert(seen);
            }
        }
    }

    /// What is to be told. What has begun and was over before it was told is not. A lag is told of once more when its
    /// handler is paused.
    pub(super) fn news(&self) -> Vec<Event> {
        let begun = self.present.iter();
        let begun = begun.filter(|(trouble, seen)| match self.told.get(*trouble) {
            Some(told_as_paused) => seen.is_paused && !told_as_paused,
            None => true,
        });
        let begun = begun.map(|(trouble, seen)| Event {
            trouble: trouble.clone(),
            state: Change::Begun,
            text: seen.text.clone(),
        });
        let over = self.told.keys();
        let over = over.filter(|trouble| !self.present.contains_key(*trouble));
        let over = over.map(|trouble| Event {
            trouble: trouble.clone(),
            state: Change::Over,
            text: over_text(trouble),
        });
        begun.chain(over).collect()
    }

    /// Whether nothing is wrong any more.
    pub(super) fn is_all_clear(&self) -> bool {
        self.present.is_empty()
    }

    /// These were told.
    pub(super) fn tell(&mut self, events: &[Event]) {
        for event in events {
            match event.state {
                Change::Begun => {
                    let seen = self.present.get(&event.trouble);
                    let is_paused = seen.is_some_and(|seen| seen.is_paused);
                    self.told.insert(event.trouble.clone(), is_paused);
                }
                Change::Over => {
                    self.told.remove(&event.trouble);
                }
            }
        }
    }
}

fn over_text(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Store => "the store answers again".to_owned(),
        Trouble::Lag { handler } => format!("{handler} is no longer behind"),
        Trouble::Dead {
            handler,
            kind,
            error,
        } => format!(
            "{handler}: no dead letters of kind {kind}{} are left",
            error
                .as_deref()
                .map_or_else(String::new, |e| format!(", {e},"))
        ),
    }
}

#[cfg(test)]
mod tests {
    use inbox::{HandlerStatistics, OperateExt as _};

    use super::*;

    fn name() -> HandlerName {
        HandlerName::new("billing").unwrap()
    }

    fn with_lag(seconds: u64) -> Look {
        looks(seconds, false)
    }

    fn paused_with_lag(seconds: u64) -> Look {
        looks(seconds, true)
    }

    fn looks(seconds: u64, paused: bool) -> Look {
        let statistics = HandlerStatistics {
            lag: Some(Duration::from_secs(seconds)),
            paused,
            ..HandlerStatistics::empty(name())
        };
        Look::Seen {
            statistics: Statistics {
                handlers: vec![statistics],
            },
            dead: MessageSummary {
                is_complete: true,
                ..MessageSummary::default()
            },
        }
    }

    fn texts(watch: &mut Watch) -> Vec<String> {
        let news = watch.news();
        watch.tell(&news);
        news.into_iter().map(|event| event.text).collect()
    }

    #[test]
    fn a_lag_is_told_once_and_over_once_and_does_not_flap() {
        let mut watch = Watch::new(Duration::from_secs(60));
        watch.see(with_lag(60));
        assert!(texts(&mut watch).is_empty());
        watch.see(with_lag(61));
        assert_eq!(texts(&mut watch), ["billing is behind by 1m 1s"]);
        for seconds in [59, 61, 31] {
            watch.see(with_lag(seconds));
            assert!(texts(&mut watch).is_empty());
        }
        watch.see(with_lag(30));
        assert!(watch.is_all_clear());
        assert_eq!(texts(&mut watch), ["billing is no longer behind"]);
        // Begun and over between two messages.
        watch.see(with_lag(99));
        watch.see(with_lag(0));
        assert!(texts(&mut watch).is_empty());
    }

    #[test]
    fn a_handler_that_is_paused_while_it_is_behind_is_still_behind() {
        let mut watch = Watch::new(Duration::from_secs(60));
        // Paused before, it is behind on purpose.
        watch.see(paused_with_lag(99));
        assert!(watch.is_all_clear());
        watch.see(with_lag(61));
        assert_eq!(texts(&mut watch), ["billing is behind by 1m 1s"]);
        watch.see(paused_with_lag(62));
        assert!(!watch.is_all_clear());
        assert_eq!(
            texts(&mut watch),
            ["billing is behind by 1m 2s, and paused"]
        );
        for look in [paused_with_lag(63), with_lag(64), paused_with_lag(65)] {
            watch.see(look);
            assert!(!watch.is_all_clear());
            assert!(texts(&mut watch).is_empty());
        }
        watch.see(paused_with_lag(0));
        assert!(watch.is_all_clear());
        assert_eq!(texts(&mut watch), ["billing is no longer behind"]);
    }

    #[test]
    fn a_store_that_is_away_for_a_moment_is_no_news_and_hides_nothing() {
        let mut watch = Watch::new(Duration::from_secs(60));
        watch.see(with_lag(61));
        assert_eq!(texts(&mut watch).len(), 1);
        watch.see(Look::Nothing);
        watch.see(Look::Nothing);
        assert!(texts(&mut watch).is_empty());
        watch.see(Look::Nothing);
        assert_eq!(texts(&mut watch), ["the store does not answer"]);
        watch.see(with_lag(61));
        assert_eq!(texts(&mut watch), ["the store answers again"]);
    }

    #[tokio::test]
    async fn groups_are_told_by_type_or_shape_and_not_forgotten_when_there_are_more() {
        use inbox::{
            AfterDead, Begun, Filter, Kind, LeaseTerms, Message, MessageId, Outcome, State,
            StoreExt as _, WorkerName,
        };

        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        let worker = WorkerName::new("w").unwrap();
        let terms = LeaseTerms::new(Duration::from_secs(60), worker).unwrap();
        let bury = async |id: &str, kind: &str| {
            let (id, kind) = (MessageId::new(id).unwrap(), Kind::new(kind).unwrap());
            let message = Message::new(name(), id, kind, "");
            let Begun::Run(leased) = store.begin(&message, &terms).await.unwrap() else {
                panic!("it is new");
            };
            let reason = "no customer 4711".to_owned();
            let after = AfterDead::Continue;
            let outcome = Outcome::Dead { reason, after };
            let _ = store.settle_one(&leased.lease, outcome).await.unwrap();
        };
        let filter = Filter {
            states: vec![State::Dead],
            ..Filter::default()
        };
        let look = async |limit| Look::Seen {
            statistics: store.statistics().await.unwrap(),
            dead: store.summarize(&filter, limit).await.unwrap(),
        };
        let mut watch = Watch::new(Duration::from_secs(60));
        bury("1", "a").await;
        bury("2", "a").await;
        watch.see(look(10).await);
        let told = texts(&mut watch);
        assert_eq!(told, ["billing: 2 dead letters of kind a, no customer #"]);
        bury("3", "b").await;
        // Only the newest is looked at: of the other group nothing is known.
        watch.see(look(1).await);
        let told = texts(&mut watch);
        assert_eq!(told, ["billing: 1 dead letter of kind b, no customer #"]);
        watch.see(look(10).await);
        assert!(texts(&mut watch).is_empty());
    }
}
