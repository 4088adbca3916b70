//! `inbox reschedule`: pending messages become due at another time.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use inbox::{Due, Filter, Intervention, Key, Operate, Progress, Slice, State};
use inbox_dashboard::text::parse_time;

use crate::{
    args::{Global, SelectionArgs, duration, wrong_usage},
    commands::discard::{self, Verb},
    exit::Exit,
    store,
};

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("when").required(true))]
pub(crate) struct RescheduleArgs {
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Due at this moment, such as 2030-01-31T08:00:00Z; at once if it has passed
    #[arg(long, value_name = "MOMENT", group = "when", value_parser = moment)]
    pub(crate) due: Option<SystemTime>,
    /// Due this long from now, such as 90s, 12h or 7d; 0s is now
    #[arg(long, value_name = "TIME", group = "when", value_parser = duration)]
    pub(crate) after: Option<Duration>,
}

/// A moment. A time from now is another option's.
fn moment(text: &str) -> Result<SystemTime, String> {
    parse_time(text).map_err(|expected| match duration(text) {
        Ok(_) => format!("{expected}; `--after {text}` is that long from now"),
        Err(_) => expected,
    })
}

const RESCHEDULED: Verb = Verb {
    done: "rescheduled",
    would: "would be rescheduled",
    usual: State::Pending,
    needs_payload: false,
    wrong_state: |_| "only pending messages can be rescheduled",
};

pub(crate) async fn run(global: &Global, args: RescheduleArgs) -> Result<Exit> {
    args.selection.check(false);
    if args.selection.filter.blocking {
        wrong_usage("only dead messages block their ordering key, and those cannot be rescheduled");
    }
    let due = match (args.due, args.after) {
        (Some(moment), _) => Due::At(moment),
        (None, after) => after.map_or(Due::Now, Due::After),
    };
    let store = store::open(&global.store).await?;
    discard::intervene(
        global,
        store.as_ref(),
        args.selection,
        Vec::<State>::new(),
        &RESCHEDULED,
        async |store: &dyn Operate, key: &Key| -> inbox::Result<Intervention> {
            store.reschedule(key, due).await
        },
        async |store: &dyn Operate, filter: &Filter, slice: &Slice| -> inbox::Result<Progress> {
            store.reschedule_slice(filter, slice, due).await
        },
    )
    .await
}
