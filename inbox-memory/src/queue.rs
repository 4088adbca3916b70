//! One handler's messages: the entries, their ids and their indexes, kept in step.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    time::Duration,
};

use inbox_api::{
    Begun, Due, Edit, Extended, FencingToken, HandlerName, HandlerStatistics, Intervention, Lease,
    LeaseTerms, Leased, Message, MessageId, Receipt, Settled, Settlement, State, from_micros,
};

use crate::{
    entry::{Entry, Signature, Standing},
    index::{Head, Index, Moment},
};

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    handler: HandlerName,
    /// By sequence number: the order of acceptance. Boxed, so that inserting moves pointers.
    entries: BTreeMap<i64, Box<Entry>>,
    ids: HashMap<MessageId, i64>,
    index: Index,
    /// The greatest token drawn for any message of this handler, purged ones included.
    token: FencingToken,
    /// Whether something has become claimable since this was last asked.
    has_news: bool,
    is_paused: bool,
}

impl Queue {
    pub(crate) fn new(handler: HandlerName) -> Self {
        Self {
            handler,
            entries: BTreeMap::new(),
            ids: HashMap::new(),
            index: Index::default(),
            token: FencingToken::new(0),
            has_news: false,
            is_paused: false,
        }
    }

    pub(crate) fn handler(&self) -> &HandlerName {
        &self.handler
    }

    /// Whether something has become claimable since the last call.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Empties the queue and ends its pause. Tokens go on growing.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            token: self.token,
            ..Self::new(self.handler.clone())
        };
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(crate) fn pause(&mut self) {
        self.is_paused = true;
    }

    pub(crate) fn resume(&mut self) {
        self.is_paused = false;
        self.has_news = true;
    }

    /// Stores the message unless its id is known. `next_seq` is called only if it is stored.
    pub(crate) fn receive(
        &mut self,
        message: &Message,
        next_seq: impl FnOnce() -> i64,
        now: i64,
    ) -> Receipt {
        if let Some(first) = self.get(message.id()) {
            return Receipt::Duplicate {
                differs: first.fingerprint != message.fingerprint(),
            };
        }
        let seq = next_seq();
        self.ids.insert(message.id().clone(), seq);
        let entry = Box::new(Entry::accept(seq, message, now));
        let head = self.index.put(&entry);
        self.entries.insert(seq, entry);
        self.note(head, now);
        Receipt::Accepted
    }

    /// The entry to claim next: the one that has been claimable for longest, unless the handler is
    /// paused.
    pub(crate) fn next_to_claim(&self, now: i64) -> Option<Moment> {
        self.index.first_claimable(now).filter(|_| !self.is_paused)
    }

    /// Leases an entry that is claimable, and up to `limit` in all with those of its ordering key that
    /// directly follow it.
    pub(crate) fn lease_run(
        &mut self,
        seq: i64,
        limit: usize,
        terms: &LeaseTerms,
        now: i64,
    ) -> Vec<Leased> {
        let mut behind = Vec::new();
        if let Some(first) = self.entries.get(&seq)
            && let Some(key) = &first.ordering_key
            && first.may_be_in_run()
        {
            let mut last = seq;
            while behind.len() + 1 < limit
                && let Some(next) = self.index.behind(key, last)
                && let Some(entry) = self.entries.get(&next)
                && entry.standing == Standing::Pending
                && entry.due_at <= now
                && entry.may_be_in_run()
            {
                behind.push(next);
                last = next;
            }
        }
        let mut run: Vec<_> = self.lease(seq, terms, now).into_iter().collect();
        for seq in behind {
            let token = self.draw_token(now);
            run.extend(self.change(seq, now, |entry| entry.lease_behind(token, terms, now)));
        }
        run
    }

    /// Leases an entry that is claimable.
    fn lease(&mut self, seq: i64, terms: &LeaseTerms, now: i64) -> Option<Leased> {
        self.end_run_behind(seq, now);
        let token = self.draw_token(now);
        self.change(seq, now, |entry| entry.lease(token, terms, now))
    }

    /// Takes the leases of a run away behind one, whose own has run out and is about to be lost.
    fn end_run_behind(&mut self, seq: i64, now: i64) {
        let behind = self
            .entries
            .get(&seq)
            .and_then(|entry| entry.ordering_key.as_ref())
            .map(|key| self.index.leased_behind(key, seq))
            .unwrap_or_default();
        for seq in behind {
            let token = self.draw_token(now);
            let _done = self.change(seq, now, |entry| entry.lose_lease(token, now));
        }
    }

    pub(crate) fn settle(
        &mut self,
        settlement: &Settlement,
        drop_payload: bool,
        now: i64,
    ) -> Settled {
        let Settlement { lease, outcome } = settlement;
        self.leased_entry(lease)
            .and_then(|seq| {
                self.change(seq, now, |entry| {
                    entry.settle(lease.token, outcome, drop_payload, now)
                })
            })
            .unwrap_or(Settled::LeaseLost)
    }

    pub(crate) fn extend(&mut self, lease: &Lease, length: Duration, now: i64) -> Extended {
        self.leased_entry(lease)
            .and_then(|seq| self.change(seq, now, |entry| entry.extend(lease.token, length, now)))
            .unwrap_or(Extended::LeaseLost)
    }

    /// Decides whether the handler of a stored message may run now, and leases it if so. `None`
    /// when the message is not stored.
    pub(crate) fn begin(&mut self, id: &MessageId, terms: &LeaseTerms, now: i64) -> Option<Begun> {
        let entry = self.get(id)?;
        let busy = |until| {
            Some(Begun::Busy {
                until: from_micros(until),
            })
        };
        match entry.standing {
            Standing::Processed { .. } => {
                return Some(Begun::Processed {
                    result: entry.result(),
                });
            }
            Standing::Dead { .. } => {
                return Some(Begun::Dead {
                    reason: entry.last_error.clone().unwrap_or_default(),
                });
            }
            Standing::Discarded { .. } => return Some(Begun::Discarded),
            Standing::Leased { until } if until > now => return busy(until),
            Standing::Pending if entry.due_at > now => return busy(entry.due_at),
            _ if !self.index.is_head(entry) => return Some(Begun::Blocked),
            Standing::Leased { .. } | Standing::Pending => {}
        }
        let seq = entry.seq;
        let leased = self.lease(seq, terms, now)?;
        Some(Begun::Run(Box::new(leased)))
    }

    pub(crate) fn get(&self, id: &MessageId) -> Option<&Entry> {
        self.entries.get(self.ids.get(id)?).map(|entry| &**entry)
    }

    /// The entries behind `after` in order of acceptance, or before it in the opposite order.
    pub(crate) fn walk(
        &self,
        after: Option<i64>,
        newest_first: bool,
    ) -> Box<dyn Iterator<Item = &Entry> + '_> {
        let place = after.map_or(Bound::Unbounded, Bound::Excluded);
        if newest_first {
            let before = self.entries.range((Bound::Unbounded, place));
            Box::new(before.rev().map(|(_, entry)| &**entry))
        } else {
            let behind = self.entries.range((place, Bound::Unbounded));
            Box::new(behind.map(|(_, entry)| &**entry))
        }
    }

    pub(crate) fn replay(
        &mut self,
        id: &MessageId,
        edit: &Edit,
        by: Signature<'_>,
        now: i64,
    ) -> Intervention {
        self.intervene(id, now, |entry| entry.replay(edit, by, now))
    }

    pub(crate) fn reschedule(
        &mut self,
        id: &MessageId,
        due: Due,
        by: Signature<'_>,
        now: i64,
    ) -> Intervention {
        if let Some(entry) = self.get(id)
            && entry.has_run_out(now)
        {
            self.end_run_behind(entry.seq, now);
        }
        let token = self.draw_token(now);
        self.intervene(id, now, |entry| entry.reschedule(due, token, by, now))
    }

    pub(crate) fn discard(&mut self, id: &MessageId, by: Signature<'_>, now: i64) -> Intervention {
        let token = self.draw_token(now);
        self.intervene(id, now, |entry| entry.discard(token, by, now))
    }

    /// The entries that became `state` no later than `cutoff`, the longest-finished first.
    pub(crate) fn finished_by(
        &self,
        state: State,
        cutoff: i64,
    ) -> impl Iterator<Item = (Moment, &Entry)> {
        self.index
            .finished_by(state, cutoff)
            .filter_map(|moment| Some((moment, &**self.entries.get(&moment.1)?)))
    }

    /// Those of them that have a payload or a result.
    pub(crate) fn with_content_by(
        &self,
        state: State,
        cutoff: i64,
    ) -> impl Iterator<Item = (Moment, &Entry)> {
        self.index
            .with_content_by(state, cutoff)
            .filter_map(|moment| Some((moment, &**self.entries.get(&moment.1)?)))
    }

    /// Drops payload and result of a final entry.
    pub(crate) fn drop_content(&mut self, seq: i64, now: i64) {
        let _done = self.change(seq, now, Entry::drop_content);
    }

    /// Deletes an entry and ends the protection of its id, if it became `state` no later than
    /// `cutoff`.
    pub(crate) fn purge(&mut self, id: &MessageId, state: State, cutoff: i64, now: i64) -> bool {
        let expired = self
            .get(id)
            .filter(|entry| {
                entry
                    .final_state()
                    .is_some_and(|(is, at)| is == state && at <= cutoff)
            })
            .map(|entry| entry.seq);
        expired.is_some_and(|seq| self.remove(seq, now))
    }

    /// Deletes an entry, in whatever state, and ends the protection of its id.
    pub(crate) fn clear(&mut self, id: &MessageId, now: i64) -> Intervention {
        match self.ids.get(id).copied() {
            Some(seq) if self.remove(seq, now) => Intervention::Done,
            _ => Intervention::NotFound,
        }
    }

    fn remove(&mut self, seq: i64, now: i64) -> bool {
        let Some(entry) = self.entries.remove(&seq) else {
            return false;
        };
        self.ids.remove(&entry.key.id);
        self.index.take(&entry);
        let head = entry
            .ordering_key
            .as_ref()
            .and_then(|key| self.index.advance(key));
        self.note(head, now);
        true
    }

    /// Counts and lag; `None` without messages.
    pub(crate) fn statistics(&self, now: i64) -> Option<HandlerStatistics> {
        if self.entries.is_empty() {
            return None;
        }
        let finished = |state| self.index.count_finished(state) as u64;
        let leased = (self.index.count_leased() - self.index.count_run_out(now)) as u64;
        let oldest = self.index.first_claimable(now);
        let since =
            |at: i64| Duration::from_micros(u64::try_from(now.saturating_sub(at)).unwrap_or(0));
        let mut statistics = HandlerStatistics {
            paused: self.is_paused,
            due: self
                .index
                .count_claimable(now, HandlerStatistics::DUE_COUNTED),
            leased,
            processed: finished(State::Processed),
            dead: finished(State::Dead),
            discarded: finished(State::Discarded),
            blocking: self.index.count_blocking() as u64,
            lag: oldest.map(|(at, _)| since(at)),
            oldest_due_age: oldest
                .and_then(|(_, seq)| self.entries.get(&seq))
                .map(|entry| since(entry.accepted_at)),
            ..HandlerStatistics::empty(self.handler.clone())
        };
        // Whatever is not counted so far is pending.
        let others: u64 = State::ALL
            .iter()
            .map(|state| statistics.count(*state))
            .sum();
        statistics.pending = self.entries.len() as u64 - others;
        Some(statistics)
    }

    /// The entry that `lease` was drawn for, if it still exists. A new life of the same key is
    /// another entry.
    fn leased_entry(&self, lease: &Lease) -> Option<i64> {
        let seq = i64::try_from(lease.locator).ok()?;
        let entry = self.entries.get(&seq)?;
        (entry.key == lease.key).then_some(seq)
    }

    fn intervene(
        &mut self,
        id: &MessageId,
        now: i64,
        transition: impl FnOnce(&mut Entry) -> Intervention,
    ) -> Intervention {
        self.ids
            .get(id)
            .copied()
            .and_then(|seq| self.change(seq, now, transition))
            .unwrap_or(Intervention::NotFound)
    }

    /// The only way in which a stored entry changes: out of the indexes, through a transition,
    /// and back in.
    fn change<R>(
        &mut self,
        seq: i64,
        now: i64,
        transition: impl FnOnce(&mut Entry) -> R,
    ) -> Option<R> {
        let entry = self.entries.get_mut(&seq)?;
        self.index.take(entry);
        let before = (entry.standing.clone(), entry.due_at);
        let answer = transition(entry);
        let has_changed = before.0 != entry.standing || before.1 != entry.due_at;
        let head = self.index.put(entry);
        // A lease that is extended or settled too late changes nothing, which is no news.
        self.note(head.filter(|head| has_changed || head.is_leased), now);
        Some(answer)
    }

    /// Takes note of the entry whose turn it is in its line: it may be news, or be worked on from now on.
    fn note(&mut self, head: Option<Head>, now: i64) {
        let Some(Head { seq, at, is_leased }) = head else {
            return;
        };
        if !is_leased {
            self.has_news |= at <= now;
        } else if at > now
            && let Some(entry) = self.entries.get_mut(&seq)
        {
            entry.count_start();
        }
    }

    fn draw_token(&mut self, now: i64) -> FencingToken {
        self.token = FencingToken::after(self.token.get(), now);
        self.token
    }
}

#[cfg(test)]
mod tests;
