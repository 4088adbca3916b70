//! Histories by hand.

use std::{
    collections::{BTreeSet, HashMap},
    time::SystemTime,
};

use inbox_api::{
    Attempts, Cursor, Fingerprint, HandlerName, Headers, Key, Kind, MessageId, OrderingKey, Record,
    State,
};

use super::super::{Evidence, Findings, Rule, check};
use crate::crash::history::{
    Answered, Asked, Beginning, Call, Change, Ended,
    Ending::{self, Dead, Processed},
    Granted, Held, History,
    Kept::{self, Done},
    Received::{self, Accepted},
    Sent,
};

/// The length of every lease, in milliseconds.
pub(super) const LEASE: u64 = 500;

/// A run, as text. Times are in milliseconds; an end of 0 means that there was
/// none.
#[derive(Default)]
pub(super) struct Run {
    pub(super) history: History,
    pub(super) listing: Vec<Record>,
    pub(super) effects: Option<HashMap<String, u64>>,
    pub(super) ordering_key: Option<OrderingKey>,
}

pub(super) fn handler() -> HandlerName {
    HandlerName::new("h").unwrap()
}

pub(super) fn key(id: &str) -> Key {
    Key::new(handler(), MessageId::new(id).unwrap())
}

pub(super) fn held(id: &str, token: i64) -> Held {
    Held {
        key: key(id),
        token,
    }
}

impl Run {
    /// All messages share an ordering key.
    pub(super) fn ordered() -> Self {
        Self {
            ordering_key: Some(OrderingKey::new("o").unwrap()),
            ..Self::default()
        }
    }

    pub(super) fn call(
        mut self,
        start: u64,
        end: u64,
        asked: Asked,
        answered: Option<Answered>,
    ) -> Self {
        self.history.calls.push(Call {
            worker: 1,
            pid: 4711,
            start: start * 1000,
            end: (end > 0).then_some(end * 1000),
            asked,
            answered: answered.filter(|_| end > 0),
        });
        self
    }

    /// A call of a small store's, at the microsecond `now`; whether its answer arrives, which it does if it is
    /// `needed`, and else but for one call of so many. The store decides what it does then.
    pub(super) fn call_at(
        &mut self,
        random: &mut fastrand::Rng,
        now: u64,
        (asked, answered): (Asked, Answered),
        needed: bool,
        lost_of: u8,
    ) -> bool {
        let arrives = needed || random.u8(..lost_of) > 0;
        let end = now + random.u64(..3_000);
        self.history.calls.push(Call {
            worker: 1,
            pid: 4711,
            start: now - random.u64(..3_000),
            end: arrives.then_some(end),
            asked,
            answered: arrives.then_some(answered),
        });
        arrives
    }

    pub(super) fn receive_all(
        self,
        start: u64,
        end: u64,
        ids: &[&str],
        answers: &[Received],
    ) -> Self {
        let asked = Asked::Receive {
            messages: ids
                .iter()
                .map(|id| Sent {
                    key: key(id),
                    ordering_key: self.ordering_key.clone(),
                })
                .collect(),
            transaction: false,
        };
        self.call(
            start,
            end,
            asked,
            Some(Answered::Receipts(answers.to_vec())),
        )
    }

    pub(super) fn receive(self, start: u64, end: u64, id: &str, answer: Received) -> Self {
        self.receive_all(start, end, &[id], &[answer])
    }

    pub(super) fn asked_to_claim() -> Asked {
        Asked::Claim {
            handlers: vec![handler()],
            limit: 10,
            run_limit: 3,
            length: LEASE * 1000,
        }
    }

    /// How often an operator has replayed the message until then, in milliseconds.
    fn replays(&self, id: &str, until: u64) -> u32 {
        let calls = self.history.calls.iter().filter(|call| {
            let replayed = Asked::Change {
                key: key(id),
                change: Change::Replay,
            };
            let is_made = matches!(call.answered, Some(Answered::Changed(1)));
            call.asked == replayed && is_made && call.end.is_some_and(|end| end <= until * 1000)
        });
        calls.count().try_into().unwrap()
    }

    fn granted(
        &self,
        start: u64,
        id: &str,
        token: i64,
        (started, finished): (u32, u32),
    ) -> Granted {
        Granted {
            replays: self.replays(id, start),
            held: held(id, token),
            ordering_key: self.ordering_key.clone(),
            started,
            finished,
            altered: None,
        }
    }

    /// A claim whose message reports `started` and `finished` attempts.
    pub(super) fn claim(
        self,
        start: u64,
        end: u64,
        id: &str,
        token: i64,
        attempts: (u32, u32),
    ) -> Self {
        let answer = Answered::Claims {
            granted: vec![self.granted(start, id, token, attempts)],
            corrupt: 0,
        };
        self.call(start, end, Self::asked_to_claim(), Some(answer))
    }

    /// A claim whose messages, with their tokens and the attempts that they report, are a run.
    pub(super) fn claim_run(
        self,
        start: u64,
        end: u64,
        messages: &[(&str, i64, (u32, u32))],
    ) -> Self {
        self.claim_asked(start, end, Self::asked_to_claim(), messages)
    }

    /// A claim that asks for this, and gets those.
    pub(super) fn claim_asked(
        self,
        start: u64,
        end: u64,
        asked: Asked,
        messages: &[(&str, i64, (u32, u32))],
    ) -> Self {
        let granted = messages.iter();
        let granted =
            granted.map(|(id, token, attempts)| self.granted(start, id, *token, *attempts));
        let answer = Answered::Claims {
            granted: granted.collect(),
            corrupt: 0,
        };
        self.call(start, end, asked, Some(answer))
    }

    pub(super) fn asked_to_begin(&self, id: &str) -> Asked {
        Asked::Begin {
            message: Sent {
                key: key(id),
                ordering_key: self.ordering_key.clone(),
            },
            length: LEASE * 1000,
        }
    }

    /// A begin that may run the message.
    pub(super) fn begin(
        self,
        (start, end): (u64, u64),
        id: &str,
        token: i64,
        attempts: (u32, u32),
    ) -> Self {
        let granted = self.granted(start, id, token, attempts);
        self.told((start, end), id, Beginning::Run(granted))
    }

    /// A begin that was told this.
    pub(super) fn told(self, (start, end): (u64, u64), id: &str, told: Beginning) -> Self {
        let asked = self.asked_to_begin(id);
        self.call(start, end, asked, Some(Answered::Begun(told)))
    }

    pub(super) fn unknown_claim(self, start: u64) -> Self {
        self.call(start, 0, Self::asked_to_claim(), None)
    }

    pub(super) fn settle_as(
        self,
        (start, end): (u64, u64),
        (id, token): (&str, i64),
        ending: Ending,
        answer: Answered,
    ) -> Self {
        let asked = Asked::Settle {
            endings: vec![Ended {
                held: held(id, token),
                ending,
            }],
            transaction: false,
        };
        self.call(start, end, asked, Some(answer))
    }

    pub(super) fn settle(
        self,
        times: (u64, u64),
        lease: (&str, i64),
        ending: Ending,
        answer: Kept,
    ) -> Self {
        self.settle_as(times, lease, ending, Answered::Settled(vec![answer]))
    }

    /// Several in one call, each with its answer.
    pub(super) fn settle_all(
        self,
        (start, end): (u64, u64),
        endings: &[((&str, i64), Ending, Kept)],
    ) -> Self {
        let ended = |((id, token), ending, _): &((&str, i64), Ending, Kept)| Ended {
            held: held(id, *token),
            ending: *ending,
        };
        let asked = Asked::Settle {
            endings: endings.iter().map(ended).collect(),
            transaction: false,
        };
        let answers = endings.iter().map(|(_, _, answer)| *answer).collect();
        self.call(start, end, asked, Some(Answered::Settled(answers)))
    }

    pub(super) fn extend(
        self,
        start: u64,
        end: u64,
        (id, token): (&str, i64),
        length: u64,
    ) -> Self {
        let asked = Asked::Extend {
            leases: vec![held(id, token)],
            length: length * 1000,
        };
        self.call(start, end, asked, Some(Answered::Extended(vec![Done])))
    }

    /// Of several leases in one call, each with its answer.
    pub(super) fn extend_all(
        self,
        (start, end): (u64, u64),
        leases: &[((&str, i64), Kept)],
        length: u64,
    ) -> Self {
        let held = |((id, token), _): &((&str, i64), Kept)| held(id, *token);
        let asked = Asked::Extend {
            leases: leases.iter().map(held).collect(),
            length: length * 1000,
        };
        let answers = leases.iter().map(|(_, answer)| *answer).collect();
        self.call(start, end, asked, Some(Answered::Extended(answers)))
    }

    /// An operator's change, which changed so many; with an end of 0 nobody knows.
    pub(super) fn change(
        self,
        (start, end): (u64, u64),
        id: &str,
        change: Change,
        changed: u64,
    ) -> Self {
        let key = key(id);
        let asked = Asked::Change { key, change };
        self.call(start, end, asked, Some(Answered::Changed(changed)))
    }

    /// A purge of what has been in this state for a second, which deleted so many; with an end of 0 nobody knows.
    pub(super) fn purge(self, (start, end): (u64, u64), state: State, deleted: u64) -> Self {
        let asked = Asked::Purge {
            state,
            older_than: 1_000_000,
            handler: handler(),
            limit: 10,
            archived: false,
        };
        self.call(start, end, asked, Some(Answered::Purged(deleted)))
    }

    /// Accepted, claimed with token 1, and settled as dead.
    pub(super) fn dead(self, id: &str) -> Self {
        self.receive(0, 1, id, Accepted)
            .claim(2, 3, id, 1, (1, 0))
            .settle((4, 5), (id, 1), Dead, Done)
    }

    /// Accepted, claimed with token 1, and settled as processed.
    pub(super) fn whole(self, from: u64, id: &str) -> Self {
        self.receive(from, from + 1, id, Accepted)
            .claim(from + 2, from + 3, id, 1, (1, 0))
            .settle((from + 4, from + 5), (id, 1), Processed, Done)
    }

    pub(super) fn listed(mut self, id: &str, state: State, started: u32, finished: u32) -> Self {
        let place = self.listing.len() as i64 + 1;
        self.listing.push(Record {
            key: key(id),
            kind: Kind::new("k").unwrap(),
            content_type: None,
            headers: Headers::new(),
            ordering_key: self.ordering_key.clone(),
            payload: None,
            payload_bytes: Some(0),
            fingerprint: Fingerprint::new(0),
            state,
            attempts: Attempts { started, finished },
            replays: self.replays(id, u64::MAX / 1000),
            accepted_at: SystemTime::UNIX_EPOCH,
            due_at: SystemTime::UNIX_EPOCH,
            lease_until: None,
            leased_at: None,
            worker: None,
            finished_at: None,
            last_error: None,
            history: Vec::new(),
            interventions: Vec::new(),
            blocks_ordering_key: state == State::Dead && self.is_to_block(id),
            result: None,
            cursor: Cursor::from(place),
        });
        self
    }

    /// The last claim told of so many replays.
    pub(super) fn told_last_claim(&mut self, replays: u32) {
        self.last_granted().replays = replays;
    }

    /// What the last claim got has another payload than was sent.
    pub(super) fn altered_by_last_claim(&mut self) {
        self.last_granted().altered = Some("payload".into());
    }

    fn last_granted(&mut self) -> &mut Granted {
        let mut answers = self.history.calls.iter_mut().rev();
        let granted = answers.find_map(|call| match &mut call.answered {
            Some(Answered::Claims { granted, .. }) => granted.last_mut(),
            _ => None,
        });
        granted.unwrap()
    }

    /// Whether the record that was listed last blocks its ordering key, whatever it was settled as.
    pub(super) fn blocks(mut self, blocks: bool) -> Self {
        let last = self.listing.last_mut().unwrap();
        last.blocks_ordering_key = blocks;
        self
    }

    /// Whether the last settlement of the message was to block its ordering key.
    fn is_to_block(&self, id: &str) -> bool {
        let settles = self
            .history
            .calls
            .iter()
            .filter_map(|call| match &call.asked {
                Asked::Settle { endings, .. } => Some(endings),
                _ => None,
            });
        let mut of_message = settles.flatten().filter(|one| one.held.key == key(id));
        let last = of_message.next_back();
        self.ordering_key.is_some() && last.is_some_and(|one| one.ending == Ending::Block)
    }

    /// An operator's list of what is dead, or blocks its ordering key too.
    pub(super) fn list(self, (start, end): (u64, u64), blocking: bool, ids: &[&str]) -> Self {
        let asked = Asked::List {
            handler: Some(handler()),
            blocking,
            limit: 3,
        };
        let answer = Answered::Listed {
            keys: ids.iter().map(|id| key(id)).collect(),
            whole: ids.len() < 3,
            corrupt: 0,
        };
        self.call(start, end, asked, Some(answer))
    }

    pub(super) fn effects(mut self, effects: &[(&str, u64)]) -> Self {
        let effects = effects.iter().map(|(note, n)| ((*note).to_owned(), *n));
        self.effects = Some(effects.collect());
        self
    }

    pub(super) fn findings(&self) -> Findings {
        check(&Evidence {
            history: &self.history,
            listing: &self.listing,
            effects: self.effects.as_ref(),
        })
    }

    #[track_caller]
    pub(super) fn keeps_all(self) {
        let findings = self.findings();
        assert!(findings.violations.is_empty(), "{}", findings.violations[0]);
    }

    /// This rule, and no other, is broken.
    #[track_caller]
    pub(super) fn breaks(self, rule: Rule) {
        self.breaks_all(&[rule]);
    }

    /// These rules, and no others, are broken.
    #[track_caller]
    pub(super) fn breaks_all(self, rules: &[Rule]) {
        let findings = self.findings();
        let broken: BTreeSet<&str> = findings
            .violations
            .iter()
            .map(|violation| violation.rule.as_str())
            .collect();
        assert_eq!(broken, rules.iter().map(|rule| rule.as_str()).collect());
        assert!(rules.iter().all(|rule| findings.occasions[rule] > 0));
    }
}

pub(super) fn failed(retryable: bool) -> Answered {
    Answered::Failed {
        error: "store unavailable (settle): gone".into(),
        retryable,
        unknown: true,
    }
}

/// What certainly changed nothing.
pub(super) fn without_effect() -> Answered {
    Answered::Failed {
        error: "store unavailable: refused".into(),
        retryable: true,
        unknown: false,
    }
}
