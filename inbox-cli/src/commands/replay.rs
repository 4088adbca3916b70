//! `inbox replay`: dead (or other final) messages become pending again.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use inbox::{
    Bytes, Edit, ErrorKind, Filter, Headers, Intervention, Key, Operate, Progress, Slice, State,
};

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
    #[command(flatten)]
    edits: HeaderArgs,
}

/// What becomes of the headers of a single message.
#[derive(Debug, Args)]
struct HeaderArgs {
    /// Set this header, NAME=VALUE, and leave the others; repeat it for several (for a single id)
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header, conflicts_with = "all")]
    headers: Vec<(String, String)>,
    /// Remove this header, if the message has it; repeat it for several (for a single id)
    #[arg(long = "remove-header", value_name = "NAME", conflicts_with = "all")]
    removed: Vec<String>,
}

impl HeaderArgs {
    fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.removed.is_empty()
    }

    /// What the command line changes of a message that has these headers.
    fn edit(&self, mut headers: Headers, payload: Option<Bytes>) -> inbox::Result<Edit> {
        for name in &self.removed {
            headers.remove(name);
        }
        for (name, value) in &self.headers {
            headers.insert(name, value)?;
        }
        Ok(Edit {
            payload,
            headers: (!self.is_empty()).then_some(headers),
        })
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let mut headers = Headers::new();
    let checked = headers.insert(name, value);
    checked.map_err(|invalid| invalid.to_string())?;
    Ok((name.to_owned(), value.to_owned()))
}

const REPLAYED: Verb = Verb {
    done: "replayed",
    would: "would be replayed",
    usual: State::Dead,
    needs_payload: true,
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
    if !args.edits.is_empty() && args.selection.ids.len() != 1 {
        wrong_usage("--header and --remove-header edit a single message: give exactly one id");
    }
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
        async |store: &dyn Operate, key: &Key| -> inbox::Result<Intervention> {
            let is_edited = payload.is_some() || !args.edits.is_empty();
            if !is_edited && replay_as_it_is(store, key, &allowed).await? {
                return Ok(Intervention::Done);
            }
            let headers = match store.get(key).await {
                Ok(None) => return Ok(Intervention::NotFound),
                Ok(Some(record)) if !allowed.contains(&record.state) => {
                    return Ok(Intervention::WrongState(record.state));
                }
                Ok(Some(record)) => record.headers,
                // It may be what an edit mends.
                Err(error) if error.kind() == ErrorKind::Corrupt => Headers::new(),
                Err(error) => return Err(error),
            };
            let edit = args.edits.edit(headers, payload.clone())?;
            store.replay(key, &edit).await
        },
        async |store: &dyn Operate, filter: &Filter, slice: &Slice| -> inbox::Result<Progress> {
            store.replay_slice(filter, slice).await
        },
    )
    .await
}

/// Replays a message if it is in one of these states when it is replayed, not a moment before: others may have
/// replayed it meanwhile, and a worker finished it.
async fn replay_as_it_is(store: &dyn Operate, key: &Key, allowed: &[State]) -> inbox::Result<bool> {
    let filter = Filter {
        states: allowed.to_vec(),
        handler: Some(key.handler.clone()),
        ids: vec![key.id.clone()],
        ..Filter::default()
    };
    let slice = Slice {
        after: None,
        limit: 1,
    };
    let progress = store.replay_slice(&filter, &slice).await?;
    Ok(progress.changed > 0)
}

async fn read(file: &Path) -> Result<Bytes> {
    use tokio::io::AsyncReadExt as _;
    let mut content = Vec::new();
    if file == Path::new("-") {
        tokio::io::stdin().read_to_end(&mut content).await?;
        // What should have written it has failed, most likely, and the payload that is there would be gone.
        ensure!(
            !content.is_empty(),
            "standard input is empty; for an empty payload, give --payload /dev/null"
        );
    } else {
        content = tokio::fs::read(file)
            .await
            .with_context(|| format!("cannot read {}", file.display()))?;
    }
    Ok(content.into())
}
