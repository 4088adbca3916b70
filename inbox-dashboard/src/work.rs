//! Doing a change, message by message or slice by slice.

use inbox::{
    Cursor, Due, Edit, ErrorKind, Filter, Inbox, Intervention, Key, Operate, Page, Progress, Slice,
    State,
};

use crate::{
    fault::Fault,
    jobs::{Action, Job, Target, Verb},
    query::Selection,
    reading::{self, Matching},
    replaying,
};

/// How many messages one step changes.
pub(crate) const SLICE: u32 = 500;

/// A change that was checked.
#[derive(Debug)]
pub(crate) enum Work {
    /// These messages are replayed as they are.
    Replay {
        keys: Vec<Key>,
        also_processed: bool,
    },
    /// These are changed one by one.
    Each { keys: Vec<Key>, change: Change },
    All {
        action: Action,
        selection: Box<Selection>,
    },
}

/// What is done to one message.
#[derive(Debug)]
pub(crate) enum Change {
    Edit { edit: Edit, also_processed: bool },
    Discard,
    Reschedule(Due),
}

impl Work {
    pub(crate) fn new(action: Action, target: &Target) -> Result<Self, Fault> {
        let (keys, also_processed) = match target {
            Target::Keys {
                keys,
                also_processed,
            } => (keys.clone(), *also_processed),
            Target::All(wanted) => {
                let selection = selection(&action, wanted.selection()?)?;
                return Ok(Self::All {
                    action,
                    selection: Box::new(selection),
                });
            }
        };
        let change = match action {
            Action::Replay => {
                return Ok(Self::Replay {
                    keys,
                    also_processed,
                });
            }
            Action::Edit(edit) => Change::Edit {
                edit,
                also_processed,
            },
            Action::Discard => Change::Discard,
            Action::Reschedule(due) => Change::Reschedule(due),
        };
        Ok(Self::Each { keys, change })
    }
}

/// The states in which it can be done to messages, the usual one first.
fn states(verb: Verb) -> &'static [State] {
    match verb {
        Verb::Replay | Verb::Edit => &[State::Dead, State::Discarded, State::Processed],
        Verb::Discard => &[State::Dead, State::Pending],
        Verb::Reschedule => &[State::Pending],
    }
}

/// In which state the messages are that it is done to, where none is said.
pub(crate) fn usual_state(verb: Verb) -> Option<State> {
    states(verb).first().copied()
}

/// What of a selection can be changed so: of no state in particular, the usual one.
pub(crate) fn selection(action: &Action, mut selection: Selection) -> Result<Selection, Fault> {
    let verb = action.verb();
    let allowed = states(verb);
    let states = &mut selection.filter.states;
    if states.is_empty() {
        states.extend(usual_state(verb));
    }
    if let Some(state) = states.iter().find(|state| !allowed.contains(state)) {
        let reason = format!("{state} messages cannot be {}", verb.done());
        return Err(Fault::invalid(reason));
    }
    Ok(selection)
}

pub(crate) async fn run(store: &dyn Inbox, job: &Job, work: Work) -> inbox::Result<()> {
    let signing = job.operator.signature().map(|by| store.signed_by(&by));
    let operate: &dyn Operate = match &signing {
        Some(signing) => signing.as_ref(),
        None => store,
    };
    match work {
        Work::Replay {
            keys,
            also_processed,
        } => {
            job.expect(Matching::exactly(keys.len() as u64));
            replaying::replay_named(operate, job, keys, also_processed).await
        }
        Work::Each { keys, change } => {
            job.expect(Matching::exactly(keys.len() as u64));
            each(operate, job, &keys, &change).await
        }
        Work::All { action, selection } => {
            job.expect(reading::count(store, &selection).await?);
            if selection.beyond.is_some() {
                all_beyond(store, operate, job, &action, &selection).await
            } else {
                all(operate, job, &action, &selection.filter, None).await?;
                Ok(())
            }
        }
    }
}

async fn each(store: &dyn Operate, job: &Job, keys: &[Key], change: &Change) -> inbox::Result<()> {
    for key in keys {
        if job.stop.is_cancelled() {
            break;
        }
        match one(store, change, key).await {
            Ok(Intervention::Done) => job.add_changed(1),
            Ok(refusal) => job.refuse(key, reason(job.verb, refusal)),
            Err(error) if error.kind() == ErrorKind::Invalid => {
                job.refuse(key, error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn one(store: &dyn Operate, change: &Change, key: &Key) -> inbox::Result<Intervention> {
    let (edit, also_processed) = match change {
        Change::Discard => return store.discard(key).await,
        Change::Reschedule(due) => return store.reschedule(key, *due).await,
        Change::Edit {
            edit,
            also_processed,
        } => (edit, *also_processed),
    };
    if !also_processed {
        match store.get(key).await {
            Ok(Some(record)) if record.state == State::Processed => {
                return Ok(Intervention::WrongState(record.state));
            }
            // A row that cannot be read may be what an edit mends.
            Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
            _ => {}
        }
    }
    store.replay(key, edit).await
}

/// Why a message was not changed.
pub(crate) fn reason(verb: Verb, refusal: Intervention) -> String {
    match refusal {
        Intervention::Done => String::new(),
        Intervention::NotFound => "there is no such message".to_owned(),
        Intervention::PayloadDropped => {
            "its payload was dropped; it can be replayed with a new one only".to_owned()
        }
        Intervention::WrongState(State::Processed) if matches!(verb, Verb::Replay | Verb::Edit) => {
            "it is processed: its effect would happen a second time, so that has to be asked for"
                .to_owned()
        }
        Intervention::WrongState(state) => {
            format!("it is {state}, and cannot be {}", verb.done())
        }
    }
}

async fn step(
    store: &dyn Operate,
    action: &Action,
    filter: &Filter,
    slice: &Slice,
) -> inbox::Result<Progress> {
    match action {
        Action::Replay | Action::Edit(_) => store.replay_slice(filter, slice).await,
        Action::Discard => store.discard_slice(filter, slice).await,
        Action::Reschedule(due) => store.reschedule_slice(filter, slice, *due).await,
    }
}

/// Changes all messages that `filter` means, from a place on; answers how many.
pub(crate) async fn all(
    store: &dyn Operate,
    job: &Job,
    action: &Action,
    filter: &Filter,
    after: Option<Cursor>,
) -> inbox::Result<u64> {
    // With one more than there can be, the first step comes to the end.
    let limit = match u32::try_from(filter.ids.len()) {
        Ok(named @ 1..=SLICE) => named + 1,
        _ => SLICE,
    };
    let mut slice = Slice { after, limit };
    let mut changed = 0;
    while !job.stop.is_cancelled() {
        let progress = step(store, action, filter, &slice).await?;
        job.add_changed(progress.changed);
        changed += progress.changed;
        if progress.next.is_none() {
            break;
        }
        slice.after = progress.next;
    }
    Ok(changed)
}

/// The same for what goes beyond filters: those of a page that belong to it, by their ids.
async fn all_beyond(
    store: &dyn Inbox,
    operate: &dyn Operate,
    job: &Job,
    action: &Action,
    selection: &Selection,
) -> inbox::Result<()> {
    let mut page = Page::first(SLICE);
    while !job.stop.is_cancelled() {
        let listing = reading::list(store, selection, &page).await?;
        // An id may be there once for each handler.
        let mut handlers: Vec<_> = listing.records.iter().map(|r| &r.key.handler).collect();
        handlers.sort_unstable();
        handlers.dedup();
        for handler in handlers {
            let records = listing.records.iter();
            let own = records.filter(|record| record.key.handler == *handler);
            let filter = Filter {
                handler: Some(handler.clone()),
                ids: own.map(|record| record.key.id.clone()).collect(),
                ..selection.filter.clone()
            };
            // Nothing of the page is before the place at which it begins.
            all(operate, job, action, &filter, page.after.clone()).await?;
        }
        if listing.next.is_none() {
            break;
        }
        page.after = listing.next;
    }
    Ok(())
}
