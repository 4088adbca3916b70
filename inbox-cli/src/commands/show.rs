//! `inbox show`: all about one message.

use anyhow::{Result, bail};
use clap::Args;
use inbox::{HandlerName, PastAttempt, PastIntervention, Record, State};
use inbox_dashboard::{
    text::{crashes, intervention},
    view::WholeView,
};
use serde::Serialize;

use super::waits::{Wait, waits};
use crate::{
    args::{Global, wrong_usage},
    exit::Exit,
    lookup::{Found, Lookup, check_ids, which_one},
    output, store,
};

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The message's id, or HANDLER/ID
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Its handler, where several have a message of that id
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<HandlerName>,
    /// Print the payload alone, byte for byte
    #[arg(long, conflicts_with = "result")]
    pub(crate) payload: bool,
    /// Print the handler's stored result alone, byte for byte
    #[arg(long)]
    pub(crate) result: bool,
}

/// A message, and why it does not run.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    message: WholeView<'a>,
    #[serde(skip_serializing_if = "<[Wait]>::is_empty")]
    waits_for: &'a [Wait],
}

pub(crate) async fn run(global: &Global, args: ShowArgs) -> Result<Exit> {
    if global.json && (args.payload || args.result) {
        wrong_usage("--payload and --result print bytes as they are; --json alone has both");
    }
    let store = store::open(&global.store).await?;
    let url = &global.store;
    let mut lookup = Lookup::new(store.as_ref(), args.handler);
    let found = check_ids(store::waiting(url, lookup.find(&args.id)).await)?;
    let name = match &found {
        Found::One(key) => key.to_string(),
        Found::Nothing => args.id,
        Found::Several(choices) => {
            output::note(which_one(choices));
            return Ok(Exit::No);
        }
    };
    let record = match &found {
        Found::One(key) => store::waiting(url, store.get(key)).await?,
        _ => None,
    };
    let Some(record) = record else {
        output::note(format_args!(
            "no message {}",
            output::cell(&name, usize::MAX)
        ));
        return Ok(Exit::No);
    };
    if args.payload {
        match &record.payload {
            Some(payload) => output::bytes(payload)?,
            None => bail!("its payload was dropped"),
        }
    } else if args.result {
        output::bytes(record.result.as_deref().unwrap_or_default())?;
    } else {
        let waits = store::waiting(url, waits(store.as_ref(), &record)).await?;
        if global.json {
            output::json(&Shown {
                message: WholeView::from(&record),
                waits_for: &waits,
            })?;
        } else {
            print(&record, &waits)?;
        }
    }
    Ok(Exit::Ok)
}

fn print(record: &Record, waits: &[Wait]) -> Result<()> {
    let text = |text: &str| output::cell(text, usize::MAX);
    let mut rows = vec![
        ("handler", text(record.key.handler.as_str())),
        ("id", text(record.key.id.as_str())),
        ("kind", text(record.kind.as_str())),
        ("state", state(record)),
        ("attempts", attempts(record)),
        ("accepted", moment(record.accepted_at)),
    ];
    if !record.state.is_final() {
        rows.push(("due", output::time(record.due_at)));
    }
    rows.extend(waits.iter().map(|wait| ("waits for", wait.text())));
    if let Some(finished) = record.finished_at {
        rows.push(("finished", moment(finished)));
    }
    if let Some(leased) = record.leased_at {
        rows.push(("last leased", moment(leased)));
    }
    if let Some(worker) = &record.worker {
        let label = if record.state == State::Leased {
            "worker"
        } else {
            "last worker"
        };
        rows.push((label, text(worker.as_str())));
    }
    if let Some(error) = &record.last_error {
        rows.push(("last error", text(error)));
    }
    if record.replays > 0 {
        rows.push(("replays", record.replays.to_string()));
    }
    if let Some(key) = &record.ordering_key {
        rows.push(("ordering key", text(key.as_str())));
    }
    if let Some(content_type) = &record.content_type {
        rows.push(("content type", text(content_type.as_str())));
    }
    rows.push((
        "payload",
        record.payload_bytes.map_or_else(
            || "dropped".to_owned(),
            |bytes| format!("{} bytes; print it with --payload", output::count(bytes)),
        ),
    ));
    rows.push(("fingerprint", record.fingerprint.to_string()));
    if let Some(result) = &record.result {
        rows.push((
            "result",
            format!(
                "{} bytes; print it with --result",
                output::count(result.len() as u64)
            ),
        ));
    }
    for (label, value) in rows {
        output::line(format!("{label:<13}{value}"))?;
    }
    for (name, value) in record.headers.iter() {
        output::line(format!("{:<13}{}: {}", "header", text(name), text(value)))?;
    }
    print_history(&record.history)?;
    print_interventions(&record.interventions)
}

/// What became of earlier attempts, if any ended with an error.
fn print_history(history: &[PastAttempt]) -> Result<()> {
    if history.is_empty() {
        return Ok(());
    }
    let mut table = output::table(&[
        "attempt", "replays", "ended", "took", "worker", "end", "error",
    ]);
    for past in history {
        table.add_row([
            past.attempt.to_string(),
            past.replays.to_string(),
            output::time(past.ended_at),
            output::duration(past.took()),
            output::cell(past.worker.as_str(), 40),
            past.end.to_string(),
            output::cell(&past.error, 200),
        ]);
    }
    output::line("")?;
    output::print(table)
}

/// What operators did to it, if they signed.
fn print_interventions(interventions: &[PastIntervention]) -> Result<()> {
    if interventions.is_empty() {
        return Ok(());
    }
    let mut table = output::table(&["operator", "did", "at"]);
    for done in interventions {
        table.add_row([
            output::cell(done.by.as_str(), 40),
            intervention(done.kind).to_owned(),
            output::time(done.at),
        ]);
    }
    output::line("")?;
    output::print(table)
}

fn moment(time: std::time::SystemTime) -> String {
    format!("{} ({})", output::time(time), output::ago(time))
}

fn state(record: &Record) -> String {
    match (record.state, record.lease_until) {
        (State::Leased, Some(until)) => format!("leased until {}", output::time(until)),
        (State::Dead, _) if record.blocks_ordering_key => {
            "dead, blocks its ordering key".to_owned()
        }
        (state, _) => state.to_string(),
    }
}

fn attempts(record: &Record) -> String {
    let crashed = record.attempts.crashed(record.state == State::Leased);
    let started = record.attempts.started;
    if crashed == 0 {
        started.to_string()
    } else {
        format!("{started}, of which {}", crashes(crashed))
    }
}
