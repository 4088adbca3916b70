//! `inbox discard`, and what it shares with `inbox replay`: going over ids or a whole filter.

use anyhow::Result;
use inbox::{Filter, HandlerName, Inbox, Intervention, Key, MessageId, Progress, Slice, State};
use serde_json::json;

use crate::{
    args::{DiscardArgs, Global, SelectionArgs},
    commands::list,
    exit::Exit,
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
    let mut refused = 0;
    if selection.all {
        let mut filter = list::filter(selection.handler, states, selection.filter);
        if selection.dry_run {
            if filter.states.is_empty() {
                filter.states.push(State::Dead);
            }
            let number = store.count(&filter).await?;
            output::line(format!("{} {}", output::messages(number), verb.would))?;
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
        let handler = match selection.handler {
            Some(handler) => handler,
            None => HandlerName::new("default")?,
        };
        for id in &selection.ids {
            let key = Key::new(handler.clone(), MessageId::new(id)?);
            let problem = match one(store, &key).await? {
                Intervention::Done => {
                    changed += 1;
                    continue;
                }
                Intervention::NotFound => "there is no such message".to_owned(),
                Intervention::WrongState(state) => {
                    format!("it is {state}; {}", (verb.wrong_state)(state))
                }
                Intervention::PayloadDropped => {
                    "its payload was dropped after processing; give a new one with --payload"
                        .to_owned()
                }
            };
            refused += 1;
            output::note(format_args!(
                "{}: {problem}",
                output::cell(&key.to_string(), usize::MAX)
            ));
        }
    }
    if global.json {
        output::json(&json!({ verb.done: changed, "refused": refused }))?;
    } else if !global.quiet {
        output::line(format!("{} {}", output::messages(changed), verb.done))?;
    }
    Ok(if refused == 0 { Exit::Ok } else { Exit::No })
}
