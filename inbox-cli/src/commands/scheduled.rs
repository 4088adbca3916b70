//! `inbox scheduled`: what is due later, in groups or one by one.

use std::time::Duration;

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
    let mut filter = args.filter.filter(args.handler, [State::Pending]);
    if filter.due_later_than.is_none() {
        filter.due_later_than = Some(Duration::ZERO);
    }
    if args.list {
        return list::list(global, store.as_ref(), &filter, args.page, Told::Due).await;
    }
    summarize(global, store.as_ref(), &filter, args.most, When::Due).await
}
