//! What a consumer runs, and what it has finished and the store does not know of.
//!
//! A lease that ran out during an outage would let a redelivery run what runs here already, or
//! has just been done. Other processes cannot know; this one can.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use bytes::Bytes;

use crate::{FencingToken, Key, Lease};

/// So many completions are kept for their next delivery, and so many bytes of their results. The
/// oldest go first. A result that goes leaves its completion: the work is not done again for it.
const MOST: usize = 10_000;
const MOST_BYTES: usize = 64 << 20;

#[derive(Clone, Default)]
pub(super) struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Under which token, and until when by the store's clock.
    running: HashMap<Key, (FencingToken, SystemTime)>,
    /// A lock for each message whose copies ask the store: one copy at a time does.
    turns: HashMap<Key, Arc<tokio::sync::Mutex<()>>>,
    completions: Completions<Key>,
}

/// What was finished under a lease.
#[derive(Clone)]
pub(super) struct Unrecorded {
    pub(super) lease: Lease,
    pub(super) result: Option<Bytes>,
}

impl Unrecorded {
    fn bytes(&self) -> usize {
        self.result.as_ref().map_or(0, Bytes::len)
    }
}

/// Completions that could not be recorded, of each message the newest: its lease has ended all earlier ones. After an
/// outage each delivery asks for its own, so what that costs must not grow with their number.
struct Completions<K> {
    /// With their numbers.
    kept: HashMap<K, (u64, Unrecorded)>,
    /// By number, and so the oldest first.
    keys: BTreeMap<u64, K>,
    next: u64,
    /// Those of lower numbers have let go of their results.
    with_results: u64,
    /// Of all results.
    bytes: usize,
}

impl<K> Default for Completions<K> {
    fn default() -> Self {
        Self {
            kept: HashMap::new(),
            keys: BTreeMap::new(),
            next: 0,
            with_results: 0,
            bytes: 0,
        }
    }
}

impl<K: Clone + Eq + Hash> Completions<K> {
    fn add(&mut self, key: K, unrecorded: Unrecorded) {
        self.remove(&key);
        self.bytes += unrecorded.bytes();
        self.keys.insert(self.next, key.clone());
        self.kept.insert(key, (self.next, unrecorded));
        self.next += 1;
        if self.kept.len() > MOST
            && let Some((_, oldest)) = self.keys.pop_first()
        {
            self.remove(&oldest);
        }
        self.shed_results();
    }

    fn get(&self, key: &K) -> Option<&Unrecorded> {
        self.kept.get(key).map(|(_, unrecorded)| unrecorded)
    }

    fn remove(&mut self, key: &K) {
        if let Some((number, unrecorded)) = self.kept.remove(key) {
            self.keys.remove(&number);
            self.bytes -= unrecorded.bytes();
        }
    }

    /// Lets go of the oldest results until the others are few enough.
    fn shed_results(&mut self) {
        while self.bytes > MOST_BYTES
            && let Some((number, key)) = self.keys.range(self.with_results..).next()
        {
            self.with_results = number + 1;
            if let Some((_, unrecorded)) = self.kept.get_mut(key) {
                self.bytes -= unrecorded.bytes();
                unrecorded.result = None;
            }
        }
    }
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when a message is leased that runs here.
    pub(super) fn running(&self, key: &Key) -> Option<SystemTime> {
        self.state().running.get(key).map(|(_, until)| *until)
    }

    /// Waits until no other copy of the message asks the store whether it may run. Such a call may take the lease
    /// long after it was made.
    pub(super) async fn turn(&self, key: &Key) -> Turn {
        let lock = self.state().turns.entry(key.clone()).or_default().clone();
        let mut turn = Turn {
            memory: self.clone(),
            key: key.clone(),
            held: None,
        };
        turn.held = Some(lock.lock_owned().await);
        turn
    }

    /// Takes note that a message runs here, for as long as the answer lives.
    pub(super) fn run(&self, lease: &Lease) -> Running {
        let held = (lease.token, lease.until);
        self.state().running.insert(lease.key.clone(), held);
        Running {
            memory: self.clone(),
            key: lease.key.clone(),
            token: lease.token,
        }
    }

    /// Keeps a completion that could not be recorded.
    pub(super) fn keep(&self, lease: &Lease, result: Option<Bytes>) {
        let unrecorded = Unrecorded {
            lease: lease.clone(),
            // One that is too large by itself is no reason to forget the others.
            result: result.filter(|result| result.len() <= MOST_BYTES),
        };
        self.state().completions.add(lease.key.clone(), unrecorded);
    }

    /// The completion of a message that could not be recorded.
    pub(super) fn unrecorded(&self, key: &Key) -> Option<Unrecorded> {
        self.state().completions.get(key).cloned()
    }

    /// The completion under this lease is recorded, or was overtaken.
    pub(super) fn forget(&self, lease: &Lease) {
        let mut state = self.state();
        let completions = &mut state.completions;
        let kept = completions.get(&lease.key);
        if kept.is_some_and(|kept| kept.lease.token == lease.token) {
            completions.remove(&lease.key);
        }
    }
}

/// The turn of one copy of a message.
pub(super) struct Turn {
    memory: Memory,
    key: Key,
    held: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.memory.state();
        // Who has the lock counts, and who waits for it.
        self.held = None;
        let lock = state.turns.get(&self.key);
        if lock.is_some_and(|lock| Arc::strong_count(lock) == 1) {
            state.turns.remove(&self.key);
        }
    }
}

/// A message that runs here.
pub(super) struct Running {
    memory: Memory,
    key: Key,
    token: FencingToken,
}

impl Running {
    pub(super) fn renewed(&self, until: SystemTime) {
        if let Some(held) = self.memory.state().running.get_mut(&self.key)
            && held.0 == self.token
        {
            held.1 = until;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.memory.state();
        if let Some((token, _)) = state.running.get(&self.key)
            && *token == self.token
        {
            state.running.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, hash::Hasher};

    use super::*;
    use crate::{HandlerName, MessageId};

    fn lease(id: usize, token: i64) -> Lease {
        let id = MessageId::new(id.to_string()).unwrap();
        Lease {
            key: Key::new(HandlerName::new("h").unwrap(), id),
            token: FencingToken::new(token),
            locator: 0,
            until: SystemTime::UNIX_EPOCH,
        }
    }

    #[tokio::test]
    async fn turns_of_a_key_are_taken_one_after_the_other_and_leave_nothing() {
        let memory = Memory::default();
        let key = lease(1, 1).key;
        let first = memory.turn(&key).await;
        let mut second = Box::pin(memory.turn(&key));
        let mut third = Box::pin(memory.turn(&key));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(futures_util::poll!(&mut third).is_pending());
        drop(third);
        drop(first);
        drop(second.await);
        assert!(memory.state().turns.is_empty());
    }

    #[test]
    fn what_is_kept_is_bounded_by_number_and_bytes() {
        let memory = Memory::default();
        for n in 0..MOST + 5 {
            memory.keep(&lease(n, 1), None);
        }
        assert!(memory.unrecorded(&lease(4, 1).key).is_none());
        assert!(memory.unrecorded(&lease(5, 1).key).is_some());
        let large = Bytes::from(vec![0; MOST_BYTES / 2]);
        for n in [1, 2, 3] {
            memory.keep(&lease(2 * MOST + n, 2), Some(large.clone()));
        }
        let kept = [1, 2, 3].map(|n| {
            let kept = memory.unrecorded(&lease(2 * MOST + n, 2).key);
            kept.map(|kept| kept.result.is_some())
        });
        assert_eq!(kept, [Some(false), Some(true), Some(true)]);
        assert_eq!(memory.state().completions.kept.len(), MOST);
        for n in [1, 2, 3] {
            memory.forget(&lease(2 * MOST + n, 2));
        }
        let state = memory.state();
        let completions = &state.completions;
        let left = (completions.kept.len(), completions.keys.len());
        assert_eq!((left, completions.bytes), ((MOST - 3, MOST - 3), 0));
    }

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// A key that counts how often one is looked at.
    #[derive(Clone)]
    struct Counted(usize);

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Counted {}

    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    /// So that what each delivery after an outage costs does not grow with their number.
    #[test]
    fn of_the_completions_few_are_looked_at_to_keep_to_find_and_to_forget_one() {
        let mut completions = Completions::default();
        // Of most of them the results are let go.
        let result = Bytes::from(vec![0; MOST_BYTES / 100]);
        for n in 0..MOST {
            let unrecorded = Unrecorded {
                lease: lease(n, 1),
                result: Some(result.clone()),
            };
            completions.add(Counted(n), unrecorded);
        }
        for n in 0..MOST {
            assert!(completions.get(&Counted(n)).is_some());
        }
        for n in (0..MOST).rev() {
            completions.remove(&Counted(n));
        }
        assert_eq!((completions.kept.len(), completions.bytes), (0, 0));
        // One for each that is found, and few that only look alike.
        let (compared, calls) = (COMPARED.get(), 3 * MOST);
        assert!(compared < 3 * calls, "{compared} in {calls} calls");
    }

    #[test]
    fn of_a_message_the_newest_completion_is_kept() {
        let memory = Memory::default();
        memory.keep(&lease(1, 1), Some(Bytes::from_static(b"first")));
        memory.keep(&lease(1, 2), Some(Bytes::from_static(b"2nd")));
        let kept = memory.unrecorded(&lease(1, 1).key).unwrap();
        assert_eq!(kept.lease.token, FencingToken::new(2));
        assert_eq!(memory.state().completions.bytes, 3);
    }

    #[test]
    fn a_lease_is_forgotten_by_its_token_only() {
        let memory = Memory::default();
        memory.keep(&lease(1, 1), None);
        memory.forget(&lease(1, 2));
        assert!(memory.unrecorded(&lease(1, 1).key).is_some());
        let first = memory.run(&lease(1, 1));
        let second = memory.run(&lease(1, 2));
        drop(first);
        assert!(memory.running(&lease(1, 1).key).is_some());
        drop(second);
        assert!(memory.running(&lease(1, 1).key).is_none());
    }
}
