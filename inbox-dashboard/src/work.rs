//! Doing a change, message by message or slice by slice.

use inbox::{
    Edit, ErrorKind, Filter, Inbox, Intervention, Key, Operate, Page, Progress, Slice, State,
};

use crate::{
    fault::Fault,
    jobs::{Action, Job, Target},
    query::Selection,
    reading::{self, Matching},
};

/// How many messages one step changes.
const SLICE: u32 = 500;

/// A change that was checked.
#[derive(Debug)]
pub(crate) enum Work {
    Each {
        keys: Vec<Key>,
        also_processed: bool,
    },
    All(Box<Selection>),
}

impl Work {
    pub(crate) fn new(action: &Action, target: &Target) -> Result<Self, Fault> {
        match target {
            Target::Keys {
                keys,
                also_processed,
            } => Ok(Self::Each {
                keys: keys.clone(),
                also_processed: *also_processed,
            }),
            Target::All(wanted) => {
                let selection = selection(action, wanted.selection()?)?;
                Ok(Self::All(Box::new(selection)))
            }
        }
    }
}

/// The states in which messages can be changed so, the usual one first.
fn states(action: &Action) -> &'static [State] {
    match action {
        Action::Replay | Action::Edit(_) => &[State::Dead, State::Discarded, State::Processed],
        Action::Discard => &[State::Dead, State::Pending],
        Action::Reschedule(_) => &[State::Pending],
    }
}

/// What of a selection can be changed so: of no state in particular, the usual one.
pub(crate) fn selection(action: &Action, mut selection: Selection) -> Result<Selection, Fault> {
    let allowed = states(action);
    let states = &mut selection.filter.states;
    if states.is_empty() {
        states.extend(allowed.first());
    }
    if let Some(state) = states.iter().find(|state| !allowed.contains(state)) {
        let reason = format!("{state} messages cannot be {}", action.done());
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
        Work::Each {
            keys,
            also_processed,
        } => {
            job.expect(Matching::exactly(keys.len() as u64));
            for key in keys {
                if job.stop.is_cancelled() {
                    break;
                }
                match one(operate, &job.action, &key, also_processed).await {
                    Ok(Intervention::Done) => job.add_changed(1),
                    Ok(refusal) => job.refuse(&key, reason(&job.action, refusal)),
                    Err(error) if error.kind() == ErrorKind::Invalid => {
                        job.refuse(&key, error.to_string());
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        }
        Work::All(selection) => {
            job.expect(reading::count(store, &selection).await?);
            if selection.beyond.is_some() {
                all_beyond(store, operate, job, &selection).await
            } else {
                all(operate, job, &selection.filter).await
            }
        }
    }
}

async fn one(
    store: &dyn Operate,
    action: &Action,
    key: &Key,
    also_processed: bool,
) -> inbox::Result<Intervention> {
    let edit = match action {
        Action::Discard => return store.discard(key).await,
        Action::Reschedule(due) => return store.reschedule(key, *due).await,
        Action::Replay => &Edit::default(),
        Action::Edit(edit) => edit,
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
fn reason(action: &Action, refusal: Intervention) -> String {
    match refusal {
        Intervention::Done => String::new(),
        Intervention::NotFound => "there is no such message".to_owned(),
        Intervention::PayloadDropped => {
            "its payload was dropped; it can be replayed with a new one only".to_owned()
        }
        Intervention::WrongState(State::Processed)
            if matches!(action, Action::Replay | Action::Edit(_)) =>
        {
            "it is processed: its effect would happen a second time, so that has to be asked for"
                .to_owned()
        }
        Intervention::WrongState(state) => {
            format!("it is {state}, and cannot be {}", action.done())
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

async fn all(store: &dyn Operate, job: &Job, filter: &Filter) -> inbox::Result<()> {
    let mut slice = Slice {
        after: None,
        limit: SLICE,
    };
    while !job.stop.is_cancelled() {
        let progress = step(store, &job.action, filter, &slice).await?;
        job.add_changed(progress.changed);
        if progress.next.is_none() {
            break;
        }
        slice.after = progress.next;
    }
    Ok(())
}

/// The same for what goes beyond filters: those of a page that belong to it, by their ids.
async fn all_beyond(
    store: &dyn Inbox,
    operate: &dyn Operate,
    job: &Job,
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
            all(operate, job, &filter).await?;
        }
        if listing.next.is_none() {
            break;
        }
        page.after = listing.next;
    }
    Ok(())
}
