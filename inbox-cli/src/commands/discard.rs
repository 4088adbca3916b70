//! `inbox discard`, and what it shares with `inbox replay` and `inbox reschedule`: going over ids or a whole filter.

use anyhow::Result;
use clap::{Args, ValueEnum};
use inbox::{Filter, Inbox, Intervention, Key, Operate, Page, Progress, Slice, State};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::known_handlers;
use crate::{
    args::{Global, SelectionArgs},
    exit::Exit,
    interrupt,
    lookup::{Found, Lookup, check_ids, which_one},
    output, store,
};

#[derive(Debug, Args)]
pub(crate) struct DiscardArgs {
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Only messages in this state; repeat it for several
    #[arg(long = "state", value_name = "STATE")]
    pub(crate) states: Vec<OpenStateArg>,
}

/// The states that a message can be discarded in.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OpenStateArg {
    Pending,
    Dead,
}

impl From<OpenStateArg> for State {
    fn from(arg: OpenStateArg) -> Self {
        match arg {
            OpenStateArg::Pending => Self::Pending,
            OpenStateArg::Dead => Self::Dead,
        }
    }
}

/// How many messages one step changes.
const SLICE: u32 = 1000;

/// The words for what is done.
pub(crate) struct Verb {
    pub(crate) done: &'static str,
    pub(crate) would: &'static str,
    /// What a filter without states means.
    pub(crate) usual: State,
    /// Whether a message whose payload was dropped is passed over.
    pub(crate) needs_payload: bool,
    /// Why not, of a message in this state.
    pub(crate) wrong_state: fn(State) -> &'static str,
}

impl Verb {
    /// The filter with the states that it means.
    fn all(&self, mut filter: Filter) -> Filter {
        if filter.states.is_empty() {
            filter.states.push(self.usual);
        }
        filter
    }
}

const DISCARDED: Verb = Verb {
    done: "discarded",
    would: "would be discarded",
    usual: State::Dead,
    needs_payload: false,
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
        async |store: &dyn Operate, key: &Key| -> inbox::Result<Intervention> {
            store.discard(key).await
        },
        async |store: &dyn Operate, filter: &Filter, slice: &Slice| -> inbox::Result<Progress> {
            store.discard_slice(filter, slice).await
        },
    )
    .await
}

/// Does `one` to each id, or `many` slice by slice to all that the filter means. The first signal
/// ends it behind the step under way.
pub(crate) async fn intervene(
    global: &Global,
    store: &dyn Inbox,
    selection: SelectionArgs,
    states: Vec<impl Into<State>>,
    verb: &Verb,
    one: impl AsyncFn(&dyn Operate, &Key) -> inbox::Result<Intervention>,
    many: impl AsyncFn(&dyn Operate, &Filter, &Slice) -> inbox::Result<Progress>,
) -> Result<Exit> {
    let handler = selection.handler.clone().filter(|_| selection.all);
    let found_nothing = async || {
        if let Some(handler) = &handler {
            known_handlers::note_unknown(global, store, handler).await;
        }
    };
    if selection.all && selection.dry_run {
        let filter = verb.all(selection.filter.filter(selection.handler, states));
        let number = store::waiting(&global.store, store.count(&filter)).await?;
        if global.json {
            output::json(&json!({ "dry_run": true, verb.done: number }))?;
        } else {
            output::line(output::dry_run(number, verb.needs_payload, verb.would))?;
        }
        if number == 0 {
            found_nothing().await;
        }
        return Ok(Exit::Ok);
    }
    let mut work = Work {
        global,
        token: interrupt::token()?,
        changed: 0,
        without_payload: None,
        refusals: Vec::new(),
    };
    let signing = selection.operator().map(|by| store.signed_by(&by));
    let operate: &dyn Operate = match &signing {
        Some(signing) => signing.as_ref(),
        None => store,
    };
    let ended = if selection.all {
        let filter = selection.filter.filter(selection.handler, states);
        let ended = work
            .all(async |slice: &Slice| many(operate, &filter, slice).await)
            .await;
        match ended {
            Ok(()) if verb.needs_payload => work.count_left(store, &verb.all(filter)).await,
            ended => ended,
        }
    } else {
        let lookup = Lookup::new(store, selection.handler);
        let one = async |key: &Key| one(operate, key).await;
        work.each(selection.ids, lookup, verb, one).await
    };
    // What is changed is changed, also if the rest has failed.
    if ended.is_ok() || work.changed > 0 {
        work.report(verb)?;
    }
    check_ids(ended)?;
    if work.changed == 0 && !work.token.is_cancelled() {
        found_nothing().await;
    }
    let exit = if work.refusals.is_empty() {
        Exit::Ok
    } else {
        Exit::No
    };
    Ok(interrupt::exit(&work.token, exit))
}

/// What was done so far.
struct Work<'a> {
    global: &'a Global,
    token: CancellationToken,
    changed: u64,
    /// How many were passed over since their payload was dropped, where that was counted.
    without_payload: Option<u64>,
    refusals: Vec<serde_json::Value>,
}

impl Work<'_> {
    /// Waits for the store; `None` when a signal has come.
    async fn step<T, E: Into<anyhow::Error>>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<Option<T>> {
        if self.token.is_cancelled() {
            return Ok(None);
        }
        let call = store::waiting(&self.global.store, call);
        match interrupt::unless_given_up(&self.token, call).await {
            Some(answer) => answer.map(Some).map_err(Into::into),
            None => {
                output::note("the store does not answer: the last step may have been done or not");
                Ok(None)
            }
        }
    }

    async fn all(&mut self, many: impl AsyncFn(&Slice) -> inbox::Result<Progress>) -> Result<()> {
        let mut slice = Slice {
            after: None,
            limit: SLICE,
        };
        while let Some(progress) = self.step(many(&slice)).await? {
            self.changed += progress.changed;
            if progress.next.is_none() {
                break;
            }
            slice.after = progress.next;
        }
        Ok(())
    }

    /// Counts those that the filter still means and that have no payload.
    async fn count_left(&mut self, store: &dyn Inbox, filter: &Filter) -> Result<()> {
        let mut page = Page::first(SLICE);
        let mut number = 0;
        while let Some(listing) = self.step(store.list(filter, &page)).await? {
            let records = listing.records.iter();
            number += records.filter(|r| r.payload_bytes.is_none()).count() as u64;
            page.after = listing.next;
            if page.after.is_none() {
                self.without_payload = Some(number);
                break;
            }
        }
        Ok(())
    }

    async fn each(
        &mut self,
        ids: Vec<String>,
        mut lookup: Lookup<'_>,
        verb: &Verb,
        one: impl AsyncFn(&Key) -> inbox::Result<Intervention>,
    ) -> Result<()> {
        for id in ids {
            let Some(found) = self.step(lookup.find(&id)).await? else {
                break;
            };
            let outcome = match found {
                Found::One(key) => match self.step(one(&key)).await? {
                    Some(outcome) => problem(verb, outcome),
                    None => break,
                },
                Found::Nothing => problem(verb, Intervention::NotFound),
                Found::Several(choices) => Err(which_one(&choices)),
            };
            match outcome {
                Ok(()) => self.changed += 1,
                Err(problem) => {
                    let id_as_text = output::cell(&id, usize::MAX);
                    output::note(format_args!("{id_as_text}: {problem}"));
                    self.refusals.push(json!({ "id": id, "reason": problem }));
                }
            }
        }
        Ok(())
    }

    fn report(&self, verb: &Verb) -> Result<()> {
        let Self {
            global,
            changed,
            without_payload,
            refusals,
            ..
        } = self;
        if global.json {
            let mut figures = json!({
                verb.done: changed,
                "refused": refusals.len(),
                "refusals": refusals,
            });
            if let Some(number) = without_payload {
                figures["without_payload"] = (*number).into();
            }
            output::json(&figures)?;
        } else if !global.quiet {
            output::line(format!("{} {}", output::messages(*changed), verb.done))?;
        }
        match without_payload {
            Some(number @ 1..) if !global.quiet => output::note(format_args!(
                "{} passed over, as the payload was dropped: replay them one by one with --payload",
                output::messages(*number)
            )),
            _ => {}
        }
        Ok(())
    }
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
            "its payload was dropped; give a new one with --payload".to_owned()
        }
    })
}
