//! `inbox replay`: dead (or other final) messages become pending again.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use inbox::{Bytes, ErrorKind, Inbox, Intervention, Key, Progress, Slice, State};

use crate::{
    args::{FinalStateArg, Global, SelectionArgs, wrong_usage},
    commands::discard::{self, Verb},
    exit::Exit,
    store,
};

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Only messages in this state; repeat it for several. Without it: dead ones, and by id also
    /// discarded ones
    #[arg(long = "state", value_name = "STATE")]
    pub(crate) states: Vec<FinalStateArg>,
    /// Replace the payload by this file's bytes (for a single id); - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    pub(crate) payload: Option<PathBuf>,
}

const REPLAYED: Verb = Verb {
    done: "replayed",
    would: "would be replayed",
    wrong_state: |state| match state {
        State::Processed => {
            "its effect would happen a second time; with --state processed it is replayed all the same"
        }
        State::Dead | State::Discarded => "--state names other states",
        _ => "only dead, discarded and processed messages can be replayed",
    },
};

pub(crate) async fn run(global: &Global, args: ReplayArgs) -> Result<Exit> {
    args.selection.check(false);
    let payload = match &args.payload {
        None => None,
        Some(_) if args.selection.ids.len() != 1 => {
            wrong_usage("--payload replaces the payload of a single message: give exactly one id")
        }
        Some(file) => Some(read(file).await?),
    };
    let mut allowed: Vec<State> = args.states.iter().copied().map(Into::into).collect();
    if allowed.is_empty() {
        // A processed message has had its effect: a second one has to be asked for.
        allowed = vec![State::Dead, State::Discarded];
    }
    let store = store::open(&global.store).await?;
    discard::intervene(
        global,
        store.as_ref(),
        args.selection,
        args.states,
        &REPLAYED,
        async |store: &dyn Inbox, key: &Key| -> inbox::Result<Intervention> {
            match store.get(key).await {
                Ok(None) => return Ok(Intervention::NotFound),
                Ok(Some(record)) if !allowed.contains(&record.state) => {
                    return Ok(Intervention::WrongState(record.state));
                }
                Ok(Some(_)) => {}
                // It may be what a new payload mends.
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                Err(error) => return Err(error),
            }
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
