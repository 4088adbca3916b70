//! What has to be told: what is wrong now, compared with what was told before.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use inbox::{HandlerName, MessageGroup, MessageSummary, Statistics};
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
    /// A handler has dead letters of more groups than are told apart.
    MoreDead { handler: HandlerName },
}

impl Trouble {
    /// Whose dead letters it is about.
    fn dead_of(&self) -> Option<&HandlerName> {
        match self {
            Self::Dead { handler, .. } | Self::MoreDead { handler } => Some(handler),
            Self::Store | Self::Lag { .. } => None,
        }
    }
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

/// The most groups of a handler's dead letters that are told apart.
const MOST_GROUPS: usize = 100;

/// For how long a group is remembered that is not found any more, while there are more dead letters than are looked at.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);

/// Compares looks, and knows what is still to be told.
#[derive(Debug)]
pub(super) struct Watch {
    max_lag: Duration,
    /// What is wrong, as far as was seen.
    present: BTreeMap<Trouble, Seen>,
    /// What was told and is not over, as far as was told; and whether it was told that its handler is paused.
    told: BTreeMap<Trouble, bool>,
    /// Handlers that may have dead letters which were not looked at.
    unseen: BTreeSet<HandlerName>,
    in_vain: u32,
}

/// How a trouble looks.
#[derive(Debug)]
struct Seen {
    text: String,
    /// Its handler was paused after it had begun.
    is_paused: bool,
    /// When it was seen last.
    at: Instant,
}

impl Seen {
    fn new(text: String, at: Instant) -> Self {
        let is_paused = false;
        Self {
            text,
            is_paused,
            at,
        }
    }
}

impl Watch {
    pub(super) fn new(max_lag: Duration) -> Self {
        Self {
            max_lag,
            present: BTreeMap::new(),
            told: BTreeMap::new(),
            unseen: BTreeSet::new(),
            in_vain: 0,
        }
    }

    pub(super) fn see(&mut self, look: Look) {
        self.see_at(look, Instant::now());
    }

    fn see_at(&mut self, look: Look, now: Instant) {
        let (statistics, dead) = match look {
            Look::Nothing => {
                self.in_vain = self.in_vain.saturating_add(1);
                if self.in_vain >= PATIENCE {
                    let seen = Seen::new("the store does not answer".to_owned(), now);
                    self.present.insert(Trouble::Store, seen);
                }
                return;
            }
            Look::Seen { statistics, dead } => (statistics, dead),
        };
        self.in_vain = 0;
        let before = std::mem::take(&mut self.present);
        self.see_lag(&statistics, &before, now);
        self.unseen.clear();
        if !dead.is_complete {
            let with_dead = statistics.handlers.into_iter().filter(|h| h.dead > 0);
            self.unseen.extend(with_dead.map(|h| h.handler));
        }
        self.see_dead(dead.groups, before, now);
    }

    fn see_lag(&mut self, statistics: &Statistics, before: &BTreeMap<Trouble, Seen>, now: Instant) {
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
                let mut seen = Seen::new(format!("{name} is behind by {lag}{pause}"), now);
                seen.is_paused = is_paused;
                self.present.insert(trouble, seen);
            }
        }
    }

    /// Where a handler has too many groups, those that were known before come first: each is told of once.
    fn see_dead(
        &mut self,
        groups: Vec<MessageGroup>,
        before: BTreeMap<Trouble, Seen>,
        now: Instant,
    ) {
        let groups = groups.into_iter().map(|group| dead(group, now));
        let (known, new): (Vec<_>, Vec<_>) =
            groups.partition(|(trouble, _)| before.contains_key(trouble));
        self.present.extend(known);
        for (trouble, seen) in before {
            let is_unseen = trouble
                .dead_of()
                .is_some_and(|handler| self.unseen.contains(handler));
            if is_unseen && now.saturating_duration_since(seen.at) < REMEMBERED {
                self.present.entry(trouble).or_insert(seen);
            }
        }
        let mut numbers = BTreeMap::<HandlerName, usize>::new();
        for trouble in self.present.keys() {
            if let Trouble::Dead { handler, .. } = trouble {
                *numbers.entry(handler.clone()).or_default() += 1;
            }
        }
        for (trouble, seen) in new {
            let Some(handler) = trouble.dead_of().cloned() else {
                continue;
            };
            let number = numbers.entry(handler.clone()).or_default();
            if *number < MOST_GROUPS {
                *number += 1;
                self.present.insert(trouble, seen);
            } else {
                let (more, seen) = more_dead(handler, now);
                self.present.insert(more, seen);
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
            text: self.over_text(trouble),
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

    fn over_text(&self, trouble: &Trouble) -> String {
        match trouble {
            Trouble::Store => "the store answers again".to_owned(),
            Trouble::Lag { handler } => format!("{handler} is no longer behind"),
            Trouble::Dead {
                handler,
                kind,
                error,
            } => {
                let error = error
                    .as_deref()
                    .map_or_else(String::new, |e| format!(", {e},"));
                if self.unseen.contains(handler) {
                    format!(
                        "{handler}: dead letters of kind {kind}{error} were not among the newest for an hour; \
                         older ones may be left"
                    )
                } else {
                    format!("{handler}: no dead letters of kind {kind}{error} are left")
                }
            }
            Trouble::MoreDead { handler } => {
                format!("{handler}: all groups of dead letters are told of one by one again")
            }
        }
    }
}

/// A group of dead letters.
fn dead(group: MessageGroup, now: Instant) -> (Trouble, Seen) {
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
    (trouble, Seen::new(text, now))
}

fn more_dead(handler: HandlerName, now: Instant) -> (Trouble, Seen) {
    let text = format!(
        "{handler}: dead letters of more than {MOST_GROUPS} groups; the others are not told of one by one"
    );
    (Trouble::MoreDead { handler }, Seen::new(text, now))
}

#[cfg(test)]
mod tests {
    use std::{ops::Range, time::SystemTime};

    use inbox::{HandlerStatistics, Key, Kind, MessageId, OperateExt as _, Span};

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

    /// A look at dead letters with errors of these shapes, of which there are more than were looked at or not.
    fn with_dead(errors: Range<u32>, is_complete: bool) -> Look {
        let dead = HandlerStatistics {
            dead: 9000,
            ..HandlerStatistics::empty(name())
        };
        let time = Span {
            first: SystemTime::UNIX_EPOCH,
            last: SystemTime::UNIX_EPOCH,
        };
        let group = |number: u32| MessageGroup {
            handler: name(),
            kind: Kind::new("k").unwrap(),
            error_type: None,
            error_shape: Some(format!("text {number:04}")),
            messages: 1,
            accepted: time,
            due: time,
            finished: None,
            sample: Key {
                handler: name(),
                id: MessageId::new("1").unwrap(),
            },
            sample_error: None,
        };
        Look::Seen {
            statistics: Statistics {
                handlers: vec![dead],
            },
            dead: MessageSummary {
                groups: errors.map(group).collect(),
                is_complete,
                ..MessageSummary::default()
            },
        }
    }

    /// Defect: with another text in each dead letter, all were told one by one and remembered for ever.
    #[test]
    fn groups_of_dead_letters_are_told_up_to_a_bound_and_forgotten_in_time() {
        let begin = Instant::now();
        let mut watch = Watch::new(Duration::from_secs(60));
        watch.see_at(with_dead(0..150, false), begin);
        let told = texts(&mut watch);
        assert_eq!(told.len(), MOST_GROUPS + 1);
        assert_eq!(told[0], "billing: 1 dead letter of kind k, text 0000");
        assert_eq!(
            told[MOST_GROUPS],
            "billing: dead letters of more than 100 groups; the others are not told of one by one"
        );
        // Others are among the newest, again and again.
        for look in 1..10 {
            let errors = look * 150..(look + 1) * 150;
            watch.see_at(with_dead(errors, false), begin);
            assert_eq!(texts(&mut watch), Vec::<String>::new());
            assert_eq!(watch.present.len(), MOST_GROUPS + 1);
        }
        let later = begin + REMEMBERED;
        watch.see_at(with_dead(2000..2001, false), later);
        let told = texts(&mut watch);
        assert_eq!(told.len(), MOST_GROUPS + 2);
        assert_eq!(told[0], "billing: 1 dead letter of kind k, text 2000");
        assert_eq!(
            told[1],
            "billing: dead letters of kind k, text 0000, were not among the newest for an hour; older ones may be left"
        );
        assert_eq!(
            told[MOST_GROUPS + 1],
            "billing: all groups of dead letters are told of one by one again"
        );
        assert_eq!((watch.present.len(), watch.told.len()), (1, 1));
        watch.see_at(with_dead(0..0, true), later);
        let told = texts(&mut watch);
        assert_eq!(
            told,
            ["billing: no dead letters of kind k, text 2000, are left"]
        );
        assert!(watch.is_all_clear());
    }

    #[tokio::test]
    async fn groups_are_told_by_type_or_shape_and_not_forgotten_when_there_are_more() {
        use inbox::{
            AfterDead, Begun, Filter, LeaseTerms, Message, Outcome, State, StoreExt as _,
            WorkerName,
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
