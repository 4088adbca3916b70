//! `inbox dead`: what has died, in groups or one by one.

use anyhow::Result;
use inbox::State;

use crate::{
    args::Global,
    commands::{
        list::{self, Told},
        summary::{SummaryArgs, When, summarize},
    },
    exit::Exit,
    store,
};

pub(crate) async fn run(global: &Global, args: SummaryArgs) -> Result<Exit> {
    args.check();
    let store = store::open(&global.store).await?;
    let filter = args.filter.filter(args.handler, [State::Dead]);
    if args.list {
        return list::list(global, store.as_ref(), &filter, args.page, Told::Note).await;
    }
    summarize(global, store.as_ref(), &filter, args.most, When::Finished).await
}
