//! Changes of messages: each is a job with an operator, a progress and an end, told in the audit log.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use inbox::{CancellationToken, Due, Edit, Error, ErrorKind, Inbox, Key};
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    access::Operator,
    fault::Fault,
    query::Wanted,
    reading::Matching,
    text,
    work::{self, Work},
};

/// How many changes may be under way at one time.
const MOST_RUNNING: usize = 16;

/// How many are remembered.
const KEPT: usize = 200;

/// How many refusals of one job are remembered.
const REFUSALS: usize = 100;

/// How many keys the audit log has in one line.
const KEYS_OF_A_LINE: usize = 50;

/// Why a change has no other end.
pub(crate) const BROKE_OFF: &str = "the change broke off; the log may say why";

/// What is done to messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Replay,
    /// Of one message.
    Edit(Edit),
    Discard,
    Reschedule(Due),
}

impl Action {
    pub(crate) fn verb(&self) -> Verb {
        match self {
            Self::Replay => Verb::Replay,
            Self::Edit(_) => Verb::Edit,
            Self::Discard => Verb::Discard,
            Self::Reschedule(_) => Verb::Reschedule,
        }
    }
}

/// What is done, without what it is done with: a payload is not kept for as long as its change is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Replay,
    Edit,
    Discard,
    Reschedule,
}

impl Verb {
    /// The verb, as a path and as the audit log has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Edit => "edit and replay",
            Self::Discard => "discard",
            Self::Reschedule => "reschedule",
        }
    }

    /// What has become of the messages.
    pub(crate) fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Edit => "edited and replayed",
            Self::Discard => "discarded",
            Self::Reschedule => "rescheduled",
        }
    }
}

/// Which messages it is done to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// These. Processed ones are replayed only if that is said: their effect happens a second time.
    Keys {
        keys: Vec<Key>,
        also_processed: bool,
    },
    /// All that are selected.
    All(Box<Wanted>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys { keys, .. } => match keys.as_slice() {
                [key] => f.write_str(&text::one_line(&key.to_string(), 400)),
                keys => f.write_str(&text::messages(keys.len() as u64)),
            },
            Self::All(wanted) if wanted.pairs().is_empty() => f.write_str("all messages"),
            Self::All(wanted) => write!(f, "all messages with {}", wanted.words()),
        }
    }
}

/// How far a job is.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Progress {
    /// How many messages there are to be, if that was cheap to say.
    pub(crate) expected: Option<u64>,
    pub(crate) changed: u64,
    pub(crate) refused: u64,
    /// The first of those that were refused, each with its reason.
    pub(crate) refusals: Vec<(String, String)>,
    #[serde(skip)]
    pub(crate) ended: Option<SystemTime>,
    /// Whether it was stopped before its end.
    pub(crate) is_stopped: bool,
    /// Why it failed. What is changed by then is changed.
    pub(crate) error: Option<String>,
}

/// One change, under way or over.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) operator: Operator,
    pub(crate) verb: Verb,
    pub(crate) target: Target,
    pub(crate) begun: SystemTime,
    progress: Mutex<Progress>,
    pub(crate) stop: CancellationToken,
    over: CancellationToken,
}

impl Job {
    pub(crate) fn progress(&self) -> Progress {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn expect(&self, matching: Matching) {
        self.lock().expected = matching.is_exact.then_some(matching.number);
    }

    pub(crate) fn add_changed(&self, number: u64) {
        self.lock().changed += number;
    }

    pub(crate) fn refuse(&self, key: &Key, reason: String) {
        let mut progress = self.lock();
        progress.refused += 1;
        if progress.refusals.len() < REFUSALS {
            progress.refusals.push((key.to_string(), reason));
        }
    }

    /// Waits until it is over, or for so long.
    pub(crate) async fn wait(&self, time: Duration) {
        let _ = timeout(time, self.over.cancelled()).await;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// The audit log: who, what, and what became of it. Never a payload.
    fn tell(&self, event: &'static str) {
        let progress = self.progress();
        tracing::info!(
            target: "inbox::audit",
            job = self.id,
            operator = %self.operator,
            action = self.verb.name(),
            messages = %self.messages(),
            changed = progress.changed,
            refused = progress.refused,
            is_stopped = progress.is_stopped,
            error = progress.error,
            "{event}"
        );
    }

    /// Which messages are meant. Where no state is said, that is one by the verb, which the log has to tell.
    fn messages(&self) -> String {
        match (&self.target, work::usual_state(self.verb)) {
            (Target::All(wanted), Some(state)) if wanted.state.is_empty() => {
                let wanted = Wanted::clone(wanted).in_state(state);
                Target::All(Box::new(wanted)).to_string()
            }
            (target, _) => target.to_string(),
        }
    }

    /// Which messages these are, if several are named: as many lines of the audit log as that takes.
    fn tell_keys(&self) {
        let Target::Keys { keys, .. } = &self.target else {
            return;
        };
        if keys.len() < 2 {
            return;
        }
        for keys in keys.chunks(KEYS_OF_A_LINE) {
            let keys = keys.iter().map(|key| text::one_line(&key.to_string(), 400));
            let keys: Vec<String> = keys.collect();
            tracing::info!(
                target: "inbox::audit",
                job = self.id,
                operator = %self.operator,
                action = self.verb.name(),
                ?keys,
                "meant"
            );
        }
    }

    fn end(&self, worked: inbox::Result<()>) {
        {
            let mut progress = self.lock();
            progress.error = worked.err().map(|error| error.to_string());
            progress.is_stopped = self.stop.is_cancelled() && progress.error.is_none();
            progress.ended = Some(SystemTime::now());
        }
        self.tell("ended");
        self.over.cancel();
    }
}

/// Ends a job whose task goes away, too: with its runtime, or in a panic of the store.
struct Ending(Arc<Job>);

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.0.is_over() {
            self.0.end(Err(Error::new(ErrorKind::Other, BROKE_OFF)));
        }
    }
}

/// The changes of late, of this process.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    next: AtomicU64,
    all: Mutex<VecDeque<Arc<Job>>>,
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Job>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a change, which goes on whatever becomes of the request.
    pub(crate) fn begin(
        &self,
        store: &Arc<dyn Inbox>,
        operator: Operator,
        action: Action,
        target: Target,
    ) -> Result<Arc<Job>, Fault> {
        let verb = action.verb();
        let work = Work::new(action, &target)?;
        let job = {
            let mut all = self.lock();
            if all.iter().filter(|job| !job.is_over()).count() >= MOST_RUNNING {
                return Err(Fault::busy());
            }
            let job = Arc::new(Job {
                id: self.next.fetch_add(1, Ordering::Relaxed) + 1,
                operator,
                verb,
                target,
                begun: SystemTime::now(),
                progress: Mutex::default(),
                stop: CancellationToken::new(),
                over: CancellationToken::new(),
            });
            let surplus = (all.len() + 1).saturating_sub(KEPT);
            let over: Vec<_> = all
                .iter()
                .filter(|job| job.is_over())
                .take(surplus)
                .collect();
            let over: Vec<_> = over.into_iter().map(|job| job.id).collect();
            all.retain(|job| !over.contains(&job.id));
            all.push_back(Arc::clone(&job));
            job
        };
        job.tell("begun");
        job.tell_keys();
        let (store, ending) = (Arc::clone(store), Ending(Arc::clone(&job)));
        tokio::spawn(async move {
            let worked = work::run(store.as_ref(), &ending.0, work).await;
            ending.0.end(worked);
        });
        Ok(job)
    }

    /// All that are remembered, the latest first.
    pub(crate) fn all(&self) -> Vec<Arc<Job>> {
        self.lock().iter().rev().cloned().collect()
    }

    /// Asks a change to end behind the step that it is at.
    pub(crate) fn stop(&self, id: u64, operator: &Operator) -> Result<Arc<Job>, Fault> {
        let job = self.find(id)?;
        tracing::info!(target: "inbox::audit", job = id, %operator, action = "stop", "begun");
        job.stop.cancel();
        Ok(job)
    }

    pub(crate) fn find(&self, id: u64) -> Result<Arc<Job>, Fault> {
        let job = self.lock().iter().find(|job| job.id == id).cloned();
        job.ok_or_else(|| {
            Fault::not_found("there is no such change; each process remembers its own, the latest")
        })
    }
}

#[cfg(test)]
mod tests {
    use inbox::{Bytes, HandlerName, MessageId};

    use super::*;

    /// Defect: "all messages with all", whatever the verb means by that.
    #[tokio::test]
    async fn the_log_tells_which_messages_all_are() {
        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        let all = Target::All(Box::default());
        assert_eq!(all.to_string(), "all messages");
        let operator = Operator::new("ada");
        let jobs = Jobs::default();
        let job = jobs.begin(&store, operator, Action::Discard, all).unwrap();
        job.over.cancelled().await;
        assert_eq!(job.messages(), "all messages with state dead");
    }

    #[tokio::test]
    async fn an_edit_is_not_kept_with_its_change() {
        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        let payload = Bytes::from(b"large".to_vec());
        let edit = Edit {
            payload: Some(payload.clone()),
            headers: None,
        };
        let handler = HandlerName::new("h").unwrap();
        let target = Target::Keys {
            keys: vec![Key::new(handler, MessageId::new("nowhere").unwrap())],
            also_processed: false,
        };
        let jobs = Jobs::default();
        let operator = Operator::new("ada");
        let job = jobs
            .begin(&store, operator, Action::Edit(edit), target)
            .unwrap();
        assert!(!payload.is_unique());
        job.over.cancelled().await;
        assert_eq!(job.progress().refused, 1);
        assert!(payload.is_unique());
        assert_eq!(jobs.all().len(), 1);
    }
}
