//! `inbox copy`: an inbox from one store to another.

mod step;
mod verify;

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use inbox::{Filter, HandlerName, Inbox, Key, Page, Record, State, Statistics, pace::Slices};
use inbox_dashboard::command_pauses::{self, CommandPause, PausingCommand};
use indicatif::ProgressBar;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::{step::Step, verify::Verification};
use super::own_pauses::{OwnPauses, listed};
use crate::{args::Global, exit::Exit, interrupt, output, progress, store};

pub(crate) const HELP: &str = "\
Messages arrive in the order of their acceptance and in their state: a processed key refuses
copies, a dead message stays dead with its error, a pending one is due when it was. The
fingerprints come too, so that duplicates are judged as before. Pending messages begin again with
their attempts and their time to live, the others with the time that they are kept for. Histories
stay behind.

End the workers of the source before, and what stores messages there; the copy fails while messages
are leased, and at its end when the source has changed meanwhile. Until it is done and compared,
message by message, the target hands nothing out: its handlers are paused. At its end they work
again, but for those that are paused in the source, that were paused in the target before, or that
`inbox pause`, the dashboard or `inbox import-keys` has paused there meanwhile.

If it is cut short, run it again: what is there already is passed over. Or drop the target. `inbox
resume` on the target before that would run again what is done in the source. Until then `inbox
stats` shows one more paused handler for each, inbox-copy-…

Messages of these handlers that are pending in the target alone may have been worked off in the
source since an earlier copy, and purged there. The copy fails then (exit code 4), and the handlers
stay paused: discard those messages in the target, or let --merge say that they are its own.

What is processed or dead in the source, and is behind one of the target's own in its ordering key,
is discarded in the target by --merge: its handler does not run there, and its duplicates are
refused, but its result or error is not there. That copy fails, and names them; the next one with
--merge takes them for done. One that blocks its ordering key has to be discarded in the source,
too.

Have one copy to a target at a time.

Examples:
  inbox copy --from sqlite://inbox.db --to postgres://db.example/shop
  INBOX_COPY_FROM=… INBOX_COPY_TO=… inbox copy";

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// The inbox to copy
    #[arg(long, value_name = "URL", env = "INBOX_COPY_FROM", hide_env = true)]
    pub(crate) from: String,
    /// Where to; set up if there is no inbox
    #[arg(long, value_name = "URL", env = "INBOX_COPY_TO", hide_env = true)]
    pub(crate) to: String,
    /// How many messages are read at a time; fewer where they are large
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) batch: u32,
    /// Messages that are pending in the target alone are its own, and none that an earlier copy left
    #[arg(long)]
    pub(crate) merge: bool,
}

/// What became of the messages.
#[derive(Debug, Default)]
struct Report {
    /// How many are new in the target.
    copied: u64,
    /// How many were there before.
    present: u64,
    /// What cannot be as it was, with the reason.
    problems: Vec<(Key, String)>,
    /// How many of the problems are messages that are still to be worked on in the target, and not in the source.
    only_in_target: u64,
    /// How many are discarded in the target in place of processed or dead, and are left so.
    left_discarded: u64,
    /// Rows of the source that cannot be read.
    corrupt: u64,
    /// How many have an empty payload now, because theirs was dropped.
    without_payload: u64,
    /// Of those in `problems`, the keys that are in the target with another state.
    altered: BTreeSet<Key>,
    /// Handlers that stay paused in the target although all is well.
    paused: Vec<HandlerName>,
    /// Of those, the pauses that are not an operator's.
    of_commands: Vec<CommandPause>,
}

impl Report {
    fn add_only_in_target(&mut self, copy: &Record) {
        let problem = format!("it is {} in the target, and not in the source", copy.state);
        self.problems.push((copy.key.clone(), problem));
        self.only_in_target += 1;
    }

    /// Those of `handlers` that are among all `paused` ones of the target.
    fn add_paused(&mut self, handlers: BTreeSet<HandlerName>, paused: &[HandlerName]) {
        for handler in handlers.into_iter().filter(|h| paused.contains(h)) {
            self.of_commands
                .extend(command_pauses::of_command(paused, &handler));
            self.paused.push(handler);
        }
    }

    /// Those of `paused` that an operator lets work.
    fn paused_by_operators(&self) -> Vec<HandlerName> {
        let is_operators = |handler: &&HandlerName| {
            let mut of_commands = self.of_commands.iter();
            !of_commands.any(|pause| pause.handler == **handler)
        };
        self.paused.iter().filter(is_operators).cloned().collect()
    }

    fn is_good(&self) -> bool {
        self.problems.is_empty() && self.corrupt == 0
    }
}

/// How many problems are named.
const MOST_NAMED: usize = 20;

const SAME: &str = "--from and --to are the same inbox";
const CANNOT_PAUSE: &str = "cannot pause a handler of the target";

pub(crate) async fn run(global: &Global, args: CopyArgs) -> Result<Exit> {
    if args.from == args.to {
        bail!(SAME);
    }
    let from = store::open(&args.from).await?;
    store::warn_if_not_kept(&args.to);
    let to = store::open_or_create(&args.to).await?;
    let before = from.statistics().await?;
    let leased = before.count(State::Leased);
    if leased > 0 {
        bail!(
            "{} of the source are leased: end its workers, and wait until the leases have run out",
            output::messages(leased)
        );
    }
    let token = interrupt::token()?;
    refuse_the_same(&from, &to).await?;
    let total = State::ALL.iter().map(|state| before.count(*state)).sum();
    let bar = progress::bar(global, "messages copied", total);
    let mut pauses = OwnPauses::of(PausingCommand::Copy);
    let copying = copy(&from, &to, &before, &args, &mut pauses, &bar, &token);
    let ended = Box::pin(copying).await;
    bar.finish_and_clear();
    let ended = ended.inspect_err(|_| note_cut_short(&pauses))?;
    let Some((report, has_changed)) = ended else {
        note_cut_short(&pauses);
        return Ok(interrupt::exit(&token, Exit::Ok));
    };
    tell(global, &report, has_changed)?;
    let is_good = report.is_good() && !has_changed;
    Ok(if is_good { Exit::Ok } else { Exit::No })
}

/// Said of a copy that has not come to its end, if it has paused any handlers.
fn note_cut_short(pauses: &OwnPauses) {
    if let Some(names) = pauses.left() {
        output::note(format_args!(
            "cut short: run it again to go on, or drop the target. Handlers of the target stay paused until then: \
             {names}. `inbox resume` would run again what is done in the source"
        ));
    }
}

/// Copies and compares, while the target's handlers are paused. `None`: it was interrupted before the end; otherwise
/// what became of the messages, and whether the source has changed meanwhile.
async fn copy(
    from: &Arc<dyn Inbox>,
    to: &Arc<dyn Inbox>,
    before: &Statistics,
    args: &CopyArgs,
    pauses: &mut OwnPauses,
    bar: &ProgressBar,
    token: &CancellationToken,
) -> Result<Option<(Report, bool)>> {
    let handlers = concerned(before, &to.paused().await?);
    let pausing = pauses.begin(&**to, &handlers).await;
    pausing.context(CANNOT_PAUSE)?;
    let mut report = Report::default();
    let mut slices = Slices::new(args.batch);
    let mut page = Page {
        with_payload: true,
        ..Page::first(slices.size())
    };
    loop {
        page.limit = slices.size();
        let listing = from.list(&Filter::default(), &page).await?;
        slices.saw(&listing.records);
        report.corrupt += listing.corrupt.len() as u64;
        bar.inc(listing.records.len() as u64);
        let step = Step::new(&**from, &**to, args.merge, &listing.records);
        step.run(&mut report).await?;
        page.after = listing.next;
        if page.after.is_none() {
            break;
        }
        if token.is_cancelled() {
            return Ok(None);
        }
    }
    let verification = Verification {
        from: &**from,
        to: &**to,
        handlers: &handlers,
        merge: args.merge,
    };
    if !verification.run(&mut report, token).await? {
        return Ok(None);
    }
    let after = from.statistics().await?;
    let has_changed = numbers(before) != numbers(&after);
    if report.is_good() && !has_changed {
        let carried_over = resume(&**from, &**to, pauses).await?;
        let paused = to.paused().await?;
        let named: BTreeSet<_> = handlers.into_iter().chain(carried_over).collect();
        report.add_paused(named, &paused);
    }
    Ok(Some((report, has_changed)))
}

/// One inbox has many URLs, so that they are not compared: what pauses a handler of the source as well is the source.
/// No handler has this name.
async fn refuse_the_same(from: &Arc<dyn Inbox>, to: &Arc<dyn Inbox>) -> Result<()> {
    let probe = HandlerName::new(format!("inbox-copy-{:016x}", fastrand::u64(..)))?;
    to.pause(&probe).await.context(CANNOT_PAUSE)?;
    let paused = from.paused().await;
    to.resume(&probe).await?;
    if paused?.contains(&probe) {
        bail!(SAME);
    }
    Ok(())
}

/// The handlers of the target work again, but for those that are paused in the source, or that others have paused in
/// the target. What a command has paused in the source is that command's to end in the target, too. Answers which
/// handlers are paused in the source.
async fn resume(
    from: &dyn Inbox,
    to: &dyn Inbox,
    pauses: &mut OwnPauses,
) -> Result<Vec<HandlerName>> {
    let paused = command_pauses::without_stale_marks(&from.paused().await?);
    for handler in &paused {
        match command_pauses::of_command(&paused, handler) {
            Some(_) => to.pause(handler).await?,
            None => command_pauses::pause(to, handler).await?,
        }
    }
    pauses.leave(&PausingCommand::Copy.handlers(&paused));
    pauses.end(to).await?;
    Ok(command_pauses::without_marks(&paused))
}

/// The handlers of the source, and those that a copy to the target has left paused there, of which the source may have
/// no message any more.
fn concerned(source: &Statistics, paused_in_target: &[HandlerName]) -> Vec<HandlerName> {
    let handlers = source.handlers.iter();
    let mut concerned: BTreeSet<HandlerName> = handlers
        .map(|of_handler| of_handler.handler.clone())
        .collect();
    concerned.extend(PausingCommand::Copy.handlers(paused_in_target));
    concerned.into_iter().collect()
}

/// What does not change while nobody works on an inbox.
fn numbers(statistics: &Statistics) -> Vec<(&HandlerName, Vec<u64>)> {
    let handlers = statistics.handlers.iter();
    let of = |of_handler: &inbox::HandlerStatistics| {
        State::ALL
            .iter()
            .map(|state| of_handler.count(*state))
            .collect()
    };
    handlers
        .map(|of_handler| (&of_handler.handler, of(of_handler)))
        .collect()
}

fn tell(global: &Global, report: &Report, has_changed: bool) -> Result<()> {
    let is_good = report.is_good() && !has_changed;
    if global.json {
        return output::json(&json!({
            "copied": report.copied,
            "present": report.present,
            "problems": report.problems.len(),
            "only_in_target": report.only_in_target,
            "left_discarded": report.left_discarded,
            "corrupt": report.corrupt,
            "without_payload": report.without_payload,
            "source_changed": has_changed,
            "verified": is_good,
            "paused": report.paused,
        }));
    }
    for (key, problem) in report.problems.iter().take(MOST_NAMED) {
        let key = output::cell(&key.to_string(), usize::MAX);
        output::note(format_args!("{key}: {problem}"));
    }
    let more = report.problems.len().saturating_sub(MOST_NAMED);
    if more > 0 {
        output::note(format_args!("and {more} more"));
    }
    if report.only_in_target > 0 {
        output::note(format_args!(
            "pending in the target alone: {}. Perhaps an earlier copy brought them, and they were worked off in the \
             source and purged there: `inbox discard` those in the target. If they are its own, run this again with \
             --merge",
            output::messages(report.only_in_target)
        ));
    }
    if report.corrupt > 0 {
        output::note(format_args!(
            "{} of the source cannot be read",
            output::messages(report.corrupt)
        ));
    }
    if has_changed {
        output::note("the source has changed meanwhile: end what works on it, and run this again");
    }
    if !is_good {
        output::note(
            "the target's handlers stay paused; `inbox resume` would run what is pending there, also what is done \
             in the source: run this again when what is named here is mended",
        );
    }
    if global.quiet {
        return Ok(());
    }
    if report.without_payload > 0 {
        output::note(format_args!(
            "{} had no payload any more, and have an empty one: do not replay them without a new one",
            output::messages(report.without_payload)
        ));
    }
    if report.left_discarded > 0 {
        output::note(format_args!(
            "processed or dead in the source, and discarded in the target: {}. Duplicates are refused; their results \
             and errors are not there",
            output::messages(report.left_discarded)
        ));
    }
    let paused = report.paused_by_operators();
    if !paused.is_empty() {
        output::note(format_args!(
            "paused in the target, as in the source or there before: {}. `inbox resume` lets a handler work",
            listed(&paused)
        ));
    }
    for pause in &report.of_commands {
        output::note(format_args!("paused in the target: {}", pause.refusal()));
    }
    let end = match (is_good, report.left_discarded) {
        (true, 0) => "; all are as they were",
        (true, _) => "; all others are as they were",
        (false, _) => "",
    };
    output::line(format!(
        "{} copied, {} already there{end}",
        output::messages(report.copied),
        output::count(report.present)
    ))
}
