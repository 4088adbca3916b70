//! `inbox replay`: dead (or other final) messages become pending again.

use std::path::Path;

use anyhow::{Context, Result};
use inbox::{Bytes, Inbox, Intervention, Key, Progress, Slice};

use crate::{
    args::{Global, ReplayArgs, wrong_usage},
    commands::discard::{self, Verb},
    exit::Exit,
    store,
};

const REPLAYED: Verb = Verb {
    done: "replayed",
    would: "would be replayed",
    wrong_state: "only processed, dead and discarded messages can be replayed",
};

pub(crate) async fn run(global: &Global, args: ReplayArgs) -> Result<Exit> {
    args.selection.check(!args.states.is_empty());
    let payload = match &args.payload {
        None => None,
        Some(_) if args.selection.ids.len() != 1 => {
            wrong_usage("--payload replaces the payload of a single message: give exactly one id")
        }
        Some(file) => Some(read(file).await?),
    };
    let store = store::open(&global.store).await?;
    discard::intervene(
        global,
        store.as_ref(),
        args.selection,
        args.states,
        &REPLAYED,
        async |store: &dyn Inbox, key: &Key| -> inbox::Result<Intervention> {
            store.replay(key, payload.clone()).await
        },
        async |store: &dyn Inbox,
               filter: &inbox::Filter,
               slice: &Slice|
               -> inbox::Result<Progress> { store.replay_slice(filter, slice).await },
    )
    .await
}

async fn read(file: &Path) -> Result<Bytes> {
    use tokio::io::AsyncReadExt as _;
    let mut content = Vec::new();
    if file == Path::new("-") {
        tokio::io::stdin().read_to_end(&mut content).await?;
    } else {
        content = tokio::fs::read(file)
            .await
            .with_context(|| format!("cannot read {}", file.display()))?;
    }
    Ok(content.into())
}
