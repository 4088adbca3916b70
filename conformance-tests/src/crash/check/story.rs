//! The history sorted by message.

use std::{
    collections::{BTreeMap, HashMap},
    ops::{Range, RangeInclusive},
};

use inbox_api::{HandlerName, Key, OrderingKey, Record, State};

use super::{clock::Clock, purges::Purge, runs::InRun};
use crate::crash::history::{
    Answered, Asked, Beginning, Call, Change, Ending, Granted, History, Kept, Received,
};

/// A statement of a killed client may be carried out by a server so much later, in microseconds.
pub(super) const AFTERLIFE: u64 = 10_000_000;

/// A message of a receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    /// Which call.
    pub(super) call: usize,
    pub(super) start: u64,
    /// When it was answered with what; `None` when the outcome is unknown.
    pub(super) answer: Option<(u64, Received)>,
    /// It failed, and certainly changed nothing.
    pub(super) has_no_effect: bool,
}

/// A begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub(super) start: u64,
    /// When it was answered, and with which final state, if with any; `None` when the outcome is unknown.
    pub(super) answer: Option<(u64, Option<State>)>,
    /// It failed, and certainly changed nothing.
    pub(super) has_no_effect: bool,
}

/// A message that a claim or a begin got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) length: u64,
    pub(super) token: i64,
    pub(super) started: u32,
    pub(super) finished: u32,
    pub(super) replays: u32,
    /// Where it stands among others of its ordering key that the same claim got.
    pub(super) in_run: Option<InRun>,
}

/// A settlement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settle {
    pub(super) start: u64,
    pub(super) token: i64,
    pub(super) ending: Ending,
    pub(super) answer: Option<(u64, Kept)>,
}

impl Settle {
    /// It has, or may have, ended the lease.
    pub(super) fn may_be_done(&self) -> bool {
        matches!(self.answer, None | Some((_, Kept::Done)))
    }

    /// When it had ended the lease for certain.
    pub(super) fn done(&self) -> Option<u64> {
        match self.answer {
            Some((end, Kept::Done)) => Some(end),
            _ => None,
        }
    }
}

/// What an operator asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Intervention {
    pub(super) start: u64,
    pub(super) change: Change,
    /// When it was answered, and whether the message was changed; `None` when the outcome is unknown.
    pub(super) answer: Option<(u64, bool)>,
}

impl Intervention {
    /// It has, or may have, changed the message.
    pub(super) fn may_be_made(&self) -> bool {
        self.answer.is_none_or(|(_, changed)| changed)
    }

    /// When it had changed the message for certain.
    pub(super) fn made(&self) -> Option<u64> {
        self.answer
            .filter(|(_, changed)| *changed)
            .map(|(end, _)| end)
    }
}

/// An extension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    pub(super) start: u64,
    pub(super) token: i64,
    pub(super) length: u64,
    pub(super) answer: Option<(u64, Kept)>,
}

/// All that happened to one message.
#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    pub(super) receives: Vec<Receive>,
    pub(super) begins: Vec<Begin>,
    pub(super) grants: Vec<Grant>,
    pub(super) settles: Vec<Settle>,
    pub(super) extensions: Vec<Extension>,
    pub(super) interventions: Vec<Intervention>,
    pub(super) ordering_key: Option<OrderingKey>,
    /// Its place in the listing.
    pub(super) listed: Option<usize>,
}

impl Story {
    /// When it was stored for certain: the first answer that says so.
    pub(super) fn stored(&self) -> Option<u64> {
        let received = self
            .receives
            .iter()
            .filter_map(|receive| match receive.answer {
                Some((end, Received::Accepted | Received::Duplicate)) => Some(end),
                _ => None,
            });
        let begun = self.begins.iter().filter_map(|begin| begin.answer);
        let begun = begun.map(|(end, _)| end);
        received
            .chain(begun)
            .chain(self.grants.iter().map(|grant| grant.end))
            .min()
    }

    /// When it was first sent: before that, it cannot have been stored.
    pub(super) fn sent(&self) -> Option<u64> {
        let received = self.receives.iter().map(|receive| receive.start);
        let begun = self.begins.iter().map(|begin| begin.start);
        received.chain(begun).min()
    }

    /// Whether anything of the message was told that began after this moment.
    pub(super) fn is_told_of_after(&self, moment: u64) -> bool {
        let received = self.receives.iter().any(|receive| {
            let told = matches!(
                receive.answer,
                Some((_, Received::Accepted | Received::Duplicate))
            );
            receive.start > moment && told
        });
        let mut begins = self.begins.iter();
        received
            || begins.any(|begin| begin.start > moment && begin.answer.is_some())
            || self.grants.iter().any(|grant| grant.start > moment)
    }

    /// When the lease of this token may first have been settled.
    pub(super) fn first_settled(&self, token: i64) -> u64 {
        let settles = self.settles.iter();
        let of_token = settles.filter(|settle| settle.token == token);
        of_token.map(|settle| settle.start).min().unwrap_or(0)
    }

    /// A lease with a greater token that had been given out before.
    pub(super) fn newer_grant(&self, token: i64, before: u64) -> Option<&Grant> {
        let mut grants = self.grants.iter();
        grants.find(|grant| grant.token > token && grant.end < before)
    }

    /// When the begins began of which nobody knows whether they got it.
    pub(super) fn unknown_begins(&self) -> impl Iterator<Item = u64> {
        let begins = self.begins.iter();
        let unknown = begins.filter(|begin| begin.answer.is_none() && !begin.has_no_effect);
        unknown.map(|begin| begin.start)
    }

    /// Whether an operator may have made this change between these moments.
    pub(super) fn may_be_changed(&self, between: Range<u64>, change: Change) -> bool {
        self.interventions.iter().any(|other| {
            let ended_before = other.answer.is_some_and(|(end, _)| end < between.start);
            let begins_before = other.start < between.end;
            other.change == change && other.may_be_made() && !ended_before && begins_before
        })
    }
}

/// A claim of which nobody knows what it got.
#[derive(Clone, Debug)]
pub(super) struct UnknownClaim {
    pub(super) start: u64,
    pub(super) handlers: Vec<HandlerName>,
}

#[derive(Debug, Default)]
pub(super) struct Stories<'a> {
    pub(super) by_key: BTreeMap<&'a Key, Story>,
    /// Those that may have been accepted again behind a purge, which no rule about one message judges.
    pub(super) set_aside: BTreeMap<&'a Key, Story>,
    pub(super) purges: Vec<Purge<'a>>,
    pub(super) unknown_claims: Vec<UnknownClaim>,
    /// Those of more than one message, in the order in which the claim answered.
    pub(super) runs: Vec<Vec<&'a Granted>>,
}

impl<'a> Stories<'a> {
    pub(super) fn new(history: &'a History, listing: &'a [Record], clock: &Clock) -> Self {
        let mut stories = Self::default();
        for (index, call) in history.calls.iter().enumerate() {
            stories.add(index, call);
        }
        let places: HashMap<&Key, usize> = listing
            .iter()
            .enumerate()
            .map(|(place, record)| (&record.key, place))
            .collect();
        for (key, place) in places {
            stories.of(key).listed = Some(place);
        }
        stories.set_aside(clock);
        stories
    }

    /// The message's story, also one that was set aside.
    pub(super) fn any(&self, key: &Key) -> Option<&Story> {
        self.by_key.get(key).or_else(|| self.set_aside.get(key))
    }

    /// Whether others than these two leases may have been given out on the message between these moments.
    pub(super) fn may_be_leased(
        &self,
        key: &Key,
        story: &Story,
        tokens: [i64; 2],
        between: RangeInclusive<u64>,
    ) -> bool {
        let (from, until) = between.into_inner();
        story.grants.iter().any(|grant| {
            !tokens.contains(&grant.token) && grant.start <= until && grant.end >= from
        }) || self.may_be_claimed(key, from, until)
    }

    /// Whether a claim or begin of which nobody knows what it got may have got the message between these moments.
    pub(super) fn may_be_claimed(&self, key: &Key, from: u64, until: u64) -> bool {
        let possible = from.saturating_sub(AFTERLIFE)..=until;
        let mut claims = self.unknown_claims.iter();
        let begins = self.by_key.get(key).map(Story::unknown_begins);
        claims.any(|claim| claim.handlers.contains(&key.handler) && possible.contains(&claim.start))
            || begins.is_some_and(|mut begins| begins.any(|start| possible.contains(&start)))
    }

    fn of(&mut self, key: &'a Key) -> &mut Story {
        self.by_key.entry(key).or_default()
    }

    fn add(&mut self, index: usize, call: &'a Call) {
        let start = call.start;
        let answered = call.answered.as_ref().zip(call.end);
        let has_no_effect = matches!(call.answered, Some(Answered::Failed { unknown: false, .. }));
        // As if it had not been. A receive or a begin tells at least of its message. A purge goes by slices, and its
        // error may be that of the last one only.
        let is_nothing = matches!(
            call.asked,
            Asked::Claim { .. }
                | Asked::Settle { .. }
                | Asked::Extend { .. }
                | Asked::Change { .. }
        );
        if has_no_effect && is_nothing {
            return;
        }
        match &call.asked {
            Asked::Receive { messages, .. } => {
                for (place, sent) in messages.iter().enumerate() {
                    let answer = match answered {
                        Some((Answered::Receipts(answers), end)) => {
                            answers.get(place).map(|answer| (end, *answer))
                        }
                        _ => None,
                    };
                    let story = self.of(&sent.key);
                    story.ordering_key.clone_from(&sent.ordering_key);
                    story.receives.push(Receive {
                        call: index,
                        start,
                        answer,
                        has_no_effect,
                    });
                }
            }
            Asked::Begin { message, length } => {
                let begun = match answered {
                    Some((Answered::Begun(begun), end)) => Some((end, begun)),
                    _ => None,
                };
                let state = |begun: &Beginning| match begun {
                    Beginning::Processed => Some(State::Processed),
                    Beginning::Dead => Some(State::Dead),
                    Beginning::Discarded => Some(State::Discarded),
                    Beginning::Run(_) | Beginning::Busy | Beginning::Blocked => None,
                };
                let story = self.of(&message.key);
                story.ordering_key.clone_from(&message.ordering_key);
                story.begins.push(Begin {
                    start,
                    answer: begun.map(|(end, begun)| (end, state(begun))),
                    has_no_effect,
                });
                if let Some((end, Beginning::Run(granted))) = begun {
                    let grant = grant(granted, start..=end, *length);
                    story.grants.push(grant);
                }
            }
            Asked::Claim {
                handlers, length, ..
            } => match answered {
                Some((Answered::Claims { granted, .. }, end)) => {
                    for (granted, in_run) in granted.iter().zip(self.add_runs(granted)) {
                        let grant = grant(granted, start..=end, *length);
                        let grant = Grant { in_run, ..grant };
                        self.of(&granted.held.key).grants.push(grant);
                    }
                }
                _ => self.unknown_claims.push(UnknownClaim {
                    start,
                    handlers: handlers.clone(),
                }),
            },
            Asked::Settle { endings, .. } => {
                if call.answered == Some(Answered::RolledBack) {
                    return;
                }
                for (place, ended) in endings.iter().enumerate() {
                    let answer = match answered {
                        Some((Answered::Settled(answers), end)) => {
                            answers.get(place).map(|answer| (end, *answer))
                        }
                        _ => None,
                    };
                    self.of(&ended.held.key).settles.push(Settle {
                        start,
                        token: ended.held.token,
                        ending: ended.ending,
                        answer,
                    });
                }
            }
            Asked::List { .. } => {}
            Asked::Purge {
                state,
                older_than,
                handler,
                limit,
                ..
            } => {
                let answer = match answered {
                    Some((Answered::Purged(deleted), end)) => Some((end, *deleted)),
                    _ => None,
                };
                self.purges.push(Purge {
                    start,
                    state: *state,
                    older_than: *older_than,
                    handler,
                    limit: *limit,
                    answer,
                });
            }
            Asked::Change { key, change } => {
                let answer = match answered {
                    Some((Answered::Changed(changed), end)) => Some((end, *changed > 0)),
                    _ => None,
                };
                self.of(key).interventions.push(Intervention {
                    start,
                    change: *change,
                    answer,
                });
            }
            Asked::Extend { leases, length } => {
                for (place, held) in leases.iter().enumerate() {
                    let answer = match answered {
                        Some((Answered::Extended(answers), end)) => {
                            answers.get(place).map(|answer| (end, *answer))
                        }
                        _ => None,
                    };
                    self.of(&held.key).extensions.push(Extension {
                        start,
                        token: held.token,
                        length: *length,
                        answer,
                    });
                }
            }
        }
    }
}

fn grant(granted: &Granted, when: RangeInclusive<u64>, length: u64) -> Grant {
    Grant {
        start: *when.start(),
        end: *when.end(),
        length,
        token: granted.held.token,
        started: granted.started,
        finished: granted.finished,
        replays: granted.replays,
        in_run: None,
    }
}
