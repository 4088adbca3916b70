//! `inbox discard`, and what it shares with `inbox replay`: going over ids or a whole filter.

use anyhow::Result;
use inbox::{Filter, Inbox, Intervention, Key, Progress, Slice, State};
use serde_json::json;

use crate::{
    args::{DiscardArgs, Global, SelectionArgs},
    commands::list,
    exit::Exit,
    lookup::{Found, Lookup, which_one},
    output, store,
};

/// How many messages one step changes.
const SLICE: u32 = 1000;

/// The words for what is done.
pub(crate) struct Verb {
    pub(crate) done: &'static str,
    pub(crate) would: &'static str,
    /// Why not, of a message in this state.
    pub(crate) wrong_state: fn(State) -> &'static str,
}

const DISCARDED: Verb = Verb {
    done: "discarded",
    would: "would be discarded",
    wrong_state: |_| "only pending and dead messages can be discarded",
};

pub(crate) async fn run(global: &Global, args: DiscardArgs) -> Result<Exit> {
    args.selection.check(!args.states.is_empty());
    let store = store::open(&global.store).await?;
    intervene(
        global,
        store.as_ref(),
        args.selection,
        args.states,
        &DISCARDED,
        async |store: &dyn Inbox, key: &Key| -> inbox::Result<Intervention> {
            store.discard(key).await
        },
        async |store: &dyn Inbox, filter: &Filter, slice: &Slice| -> inbox::Result<Progress> {
            store.discard_slice(filter, slice).await
        },
    )
    .await
}

/// Does `one` to each id, or `many` slice by slice to all that the filter means.
pub(crate) async fn intervene(
    global: &Global,
    store: &dyn Inbox,
    selection: SelectionArgs,
    states: Vec<impl Into<State>>,
    verb: &Verb,
    one: impl AsyncFn(&dyn Inbox, &Key) -> inbox::Result<Intervention>,
    many: impl AsyncFn(&dyn Inbox, &Filter, &Slice) -> inbox::Result<Progress>,
) -> Result<Exit> {
    let mut changed = 0;
    let mut refusals = Vec::new();
    if selection.all {
        let mut filter = list::filter(selection.handler, states, selection.filter);
        if selection.dry_run {
            if filter.states.is_empty() {
                filter.states.push(State::Dead);
            }
            let number = store.count(&filter).await?;
            if global.json {
                output::json(&json!({ "dry_run": true, verb.done: number }))?;
            } else {
                output::line(format!("{} {}", output::messages(number), verb.would))?;
            }
            return Ok(Exit::Ok);
        }
        let mut slice = Slice {
            after: None,
            limit: SLICE,
        };
        loop {
            let progress = many(store, &filter, &slice).await?;
            changed += progress.changed;
            if progress.next.is_none() {
                break;
            }
            slice.after = progress.next;
        }
    } else {
        let mut lookup = Lookup::new(store, selection.handler);
        for id in selection.ids {
            let outcome = match lookup.find(&id).await? {
                Found::One(key) => problem(verb, one(store, &key).await?),
                Found::Nothing => problem(verb, Intervention::NotFound),
                Found::Several(choices) => Err(which_one(&choices)),
            };
            match outcome {
                Ok(()) => changed += 1,
                Err(problem) => {
                    let id_as_text = output::cell(&id, usize::MAX);
                    output::note(format_args!("{id_as_text}: {problem}"));
                    refusals.push(json!({ "id": id, "reason": problem }));
                }
            }
        }
    }
    if global.json {
        output::json(&json!({
            verb.done: changed,
            "refused": refusals.len(),
            "refusals": refusals,
        }))?;
    } else if !global.quiet {
        output::line(format!("{} {}", output::messages(changed), verb.done))?;
    }
    Ok(if refusals.is_empty() {
        Exit::Ok
    } else {
        Exit::No
    })
}

/// Why an intervention was not made, if it was not.
fn problem(verb: &Verb, outcome: Intervention) -> Result<(), String> {
    Err(match outcome {
        Intervention::Done => return Ok(()),
        Intervention::NotFound => "there is no such message".to_owned(),
        Intervention::WrongState(state) => {
            format!("it is {state}; {}", (verb.wrong_state)(state))
        }
        Intervention::PayloadDropped => {
            "its payload was dropped after processing; give a new one with --payload".to_owned()
        }
    })
}
