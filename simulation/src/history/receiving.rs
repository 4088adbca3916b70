//! What is accepted, and what of it is acknowledged.

use inbox::{Begun, Key, Message, Receipt, receiver::Rejection};

use super::{Accepted, History, PartId};
use crate::world::{AUDIT, LIMIT, REJECTED};

impl History {
    pub(super) fn accept(&mut self, key: &Key, is_orphan: bool) {
        let (store_now, retention) = (self.store_now, self.terms.retention);
        let is_gone = self.current(key).is_none_or(|message| {
            let finished = message.finished;
            finished.is_some_and(|finished| store_now - finished >= retention)
        });
        self.check("accepted once", is_gone, || format!("{key} again"));
        self.accepted += 1;
        let order = self.accepted;
        self.messages
            .entry(key.clone())
            .or_default()
            .push(Accepted {
                order,
                grants: Vec::new(),
                was_replayed: false,
                replayed_after: 0,
                changed_after: 0,
                changed_at: i64::MIN,
                changed_when: None,
                due: store_now,
                finished: None,
                is_orphan,
                has_effect: false,
                blocks: false,
            });
    }

    /// What a call has done, whose caller may have given up before.
    pub(crate) fn received(
        &mut self,
        part: &PartId,
        messages: &[Message],
        receipts: &[Receipt],
        is_orphan: bool,
    ) {
        for (message, receipt) in messages.iter().zip(receipts) {
            let key = message.key();
            self.trace(|| format!("{part} receives {key}: {receipt:?}"));
            match receipt {
                Receipt::Accepted => {
                    self.comes_in_order(part, key);
                    self.accept(key, is_orphan);
                }
                Receipt::Duplicate { .. } => {
                    let is_known = self.messages.contains_key(key);
                    self.check("no false duplicate", is_known, || format!("{key}"));
                }
                Receipt::Refused(invalid) => {
                    let is_too_large = message.payload().len() > LIMIT;
                    self.check("nothing is refused", is_too_large, || {
                        format!("{key}: {invalid}")
                    });
                }
            }
        }
    }

    /// What came later from a broker that keeps order is not stored before what came earlier.
    fn comes_in_order(&mut self, part: &PartId, key: &Key) {
        let mut earlier = self.terms.earlier.get(key).into_iter().flatten();
        let is_missing = |earlier: &&Key| {
            !self.messages.contains_key(*earlier) && !self.passed_over.contains(*earlier)
        };
        // Once it has been stored, a copy may come at any time.
        let is_new = !self.messages.contains_key(key);
        if let Some(missing) = earlier.find(|key| is_new && is_missing(key)).cloned() {
            let what = format!("{part} stored {key} before {missing}");
            self.violated("stored in the broker's order", what);
        }
    }

    pub(crate) fn told_receipts(
        &mut self,
        part: &PartId,
        messages: &[Message],
        receipts: &[Receipt],
    ) {
        let counts = self.counts.entry(part.clone()).or_default();
        for (message, receipt) in messages.iter().zip(receipts) {
            let handler = message.handler().as_str();
            match receipt {
                // Told otherwise.
                _ if handler == REJECTED => {}
                // It is not final yet.
                Receipt::Accepted if handler == AUDIT => {}
                Receipt::Accepted => counts.accepted += 1,
                Receipt::Duplicate { .. } => counts.duplicates += 1,
                Receipt::Refused(_) => {}
            }
        }
    }

    /// A delivery of it is not to be stored.
    pub(crate) fn passed_over(&mut self, key: &Key) {
        self.passed_over.insert(key.clone());
    }

    pub(crate) fn rejected(&mut self, part: &PartId, number: usize, rejection: &Rejection) {
        self.trace(|| format!("{part} rejects delivery {number}: {rejection}"));
        self.counts.entry(part.clone()).or_default().rejected += 1;
    }

    /// The dead letter of a delivery.
    pub(crate) fn letter(&self, number: usize) -> Option<Key> {
        self.letters.get(&number).cloned()
    }

    pub(crate) fn is_finished(&self, key: &Key) -> bool {
        let lives = self.messages.get(key);
        lives.is_some_and(|lives| lives.iter().any(|life| life.finished.is_some()))
    }

    /// Whether it was final, was purged, and has been stored again for another delivery, or by a call whose caller
    /// had given up. What is left so is stuck.
    pub(crate) fn is_in_a_later_life(&self, key: &Key) -> bool {
        let lives = self.messages.get(key).map(Vec::as_slice);
        matches!(lives, Some([_, .., last]) if last.finished.is_none())
    }

    pub(crate) fn acknowledged(&mut self, part: &PartId, key: &Key) {
        self.trace(|| format!("{part} acknowledges {key}"));
        let is_stored = self.messages.contains_key(key);
        self.check("stored before it is acknowledged", is_stored, || {
            key.to_string()
        });
    }

    /// As [`received`](Self::received).
    pub(crate) fn begun(
        &mut self,
        part: &PartId,
        message: &Message,
        begun: &Begun,
        is_orphan: bool,
    ) {
        let key = message.key();
        self.looks_are_over(part, key);
        self.trace(|| format!("{part} begins {key}: {}", began(begun)));
        if key.handler.as_str() == REJECTED {
            let text = String::from_utf8_lossy(message.payload()).into_owned();
            let number = text
                .split(' ')
                .next()
                .and_then(|number| number.parse().ok());
            self.letters
                .extend(number.map(|number| (number, key.clone())));
        }
        let (store_now, retention) = (self.store_now, self.terms.retention);
        let is_new = self.current(key).is_none_or(|known| {
            let finished = known.finished;
            finished.is_some_and(|finished| store_now - finished >= retention)
        });
        // Beginning a message stores it, also when it is not its turn.
        let is_open = matches!(begun, Begun::Run(_) | Begun::Busy { .. } | Begun::Blocked);
        if is_new && is_open {
            self.accept(key, is_orphan);
        }
        if let Begun::Run(leased) = begun {
            self.granted(part, leased);
        }
    }
}

fn began(begun: &Begun) -> &'static str {
    match begun {
        Begun::Run(_) => "run",
        Begun::Processed { .. } => "processed",
        Begun::Busy { .. } => "busy",
        Begun::Blocked => "blocked",
        Begun::Dead { .. } => "dead",
        Begun::Discarded => "discarded",
    }
}
