//! The command line.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, error::ErrorKind};
use inbox::{HandlerName, Kind, OrderingKey, State};

use crate::{exit, output};

/// Ends the program as clap does for a wrong command line: for rules that clap cannot express.
pub(crate) fn wrong_usage(problem: impl std::fmt::Display) -> ! {
    let error = Cli::command().error(ErrorKind::ValueValidation, problem);
    std::process::exit(output::usage(&error).into())
}

/// What stands below the commands in `inbox --help`.
fn help() -> String {
    let stores = [
        ("sqlite://FILE", true, ""),
        (
            "postgres://USER@HOST/DATABASE",
            cfg!(feature = "postgres"),
            "postgres",
        ),
        (
            "mysql://USER@HOST/DATABASE",
            cfg!(feature = "mysql"),
            "mysql",
        ),
        (
            "mongodb://USER@HOST/DATABASE",
            cfg!(feature = "mongodb"),
            "mongodb",
        ),
        (
            "redis://HOST, redis+cluster://HOST,HOST",
            cfg!(feature = "redis"),
            "redis",
        ),
    ];
    let mut text = "Stores:\n".to_owned();
    for (url, is_built, feature) in stores {
        let note = if is_built {
            String::new()
        } else {
            format!("  (not in this build: needs the feature `{feature}`)")
        };
        text.push_str(&format!("  {url}{note}\n"));
    }
    text.push_str(
        "Settings follow after a `?`, such as inbox=NAME. In user and password, write characters \
         such as\n# ? @ as %XX.\n\n",
    );
    text.push_str(exit::HELP);
    text
}

/// Handle each message once: ingest deliveries, process them, look after what went wrong.
#[derive(Debug, Parser)]
#[command(name = "inbox", version, after_help = help(), max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Where the inbox is; `inbox --help` lists the URLs
    #[arg(
        long,
        global = true,
        env = "INBOX_STORE",
        hide_env = true,
        default_value = "sqlite://inbox.db",
        value_name = "URL"
    )]
    pub(crate) store: String,
    /// Print results as JSON, one value on each line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Leave out summaries, notes and progress
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

impl Global {
    /// Ends the program when no store is named. Not left to clap, which would look at the variable
    /// even where --store overrides it, and say nothing of a variable.
    pub(crate) fn check(&self) {
        if !self.store.is_empty() {
            return;
        }
        if std::env::var_os("INBOX_STORE").is_some_and(|value| value.is_empty()) {
            wrong_usage(
                "the environment variable INBOX_STORE is empty: unset it, or name a store in it",
            );
        }
        wrong_usage("--store is empty: name a store, such as sqlite://inbox.db");
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ingest a file or standard input and process until nothing is left. Sets the inbox up if there
    /// is none
    #[command(
        after_help = RUN_EXAMPLES,
        override_usage = "inbox run [OPTIONS] <FILE> <--post <URL>|-- <COMMAND>...>"
    )]
    Run(RunArgs),
    /// Store the messages of a file or of standard input. Sets the inbox up if there is none
    Ingest(IngestArgs),
    /// Process stored messages with a command or by HTTP
    #[command(
        after_help = HANDLER_HELP,
        override_usage = "inbox process [OPTIONS] <--post <URL>|-- <COMMAND>...>"
    )]
    Process(ProcessCommandArgs),
    /// List messages
    List(ListArgs),
    /// Show one message
    Show(ShowArgs),
    /// Count messages by handler and state, and show how far behind each handler is
    #[command(after_help = STATS_HELP)]
    Stats,
    /// Make dead (or other final) messages pending again
    Replay(ReplayArgs),
    /// Give messages up: they are not worked on, and duplicates are still refused
    Discard(DiscardArgs),
    /// Delete final messages older than a given age, and with them their protection
    Purge(PurgeArgs),
    /// Set the inbox up, or check that it is
    #[command(subcommand)]
    Schema(SchemaCommand),
    /// Check the store against the inbox contract, case by case (in builds with the feature
    /// `conformance`)
    #[command(after_help = CONFORMANCE_HELP)]
    Conformance(ConformanceArgs),
    /// Watch an inbox survive duplicates, failures and killed workers, on real webhooks
    #[command(after_help = DEMO_HELP)]
    Demo(DemoArgs),
    /// Print shell completions
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

const RUN_EXAMPLES: &str = "\
Examples:
  inbox run events.ndjson -- ./charge-card
  cat events.ndjson | inbox run - --post http://localhost:8080/hook

See `inbox process --help` for what a handler is given and how it answers.";

const HANDLER_HELP: &str = "\
A command is run once per message, with the payload on its standard input and in its environment:
  INBOX_ID, INBOX_HANDLER, INBOX_KIND, INBOX_ATTEMPT, INBOX_FENCING_TOKEN,
  INBOX_CONTENT_TYPE and INBOX_ORDERING_KEY (if any), INBOX_HEADER_<NAME> for each header
<NAME> is in upper case, with _ for what is neither letter nor digit. Where several headers have the
same <NAME>, as a-b and a_b, the first of them in the order of their bytes counts.
Its exit code is its answer:
  0   processed
  65  dead at once (the message is bad, do not try again)
  any other, or a signal: try again later; the end of its standard error is kept as the error
Its standard output is discarded. On a time-out it is killed, with all processes it has started.

A worker that is killed itself (SIGKILL, out of memory) cannot end its commands. They go on, and
their messages run again when the leases have run out, even while the first runs still go on. To have
the system end a command together with its worker, start it by `setpriv` (util-linux, Linux only):
  inbox process -- setpriv --pdeathsig TERM -- ./charge-card
That ends the command itself, not what it has started: of a shell script, begin the last line with
`exec`. Where two runs of a message must never both have their effect, keep INBOX_FENCING_TOKEN with
the effect, and refuse one that comes with a lower token.

A URL gets an HTTP POST with the payload as its body, the same facts as headers (inbox-id, …; the
message's own headers as inbox-header-<name>, the first of those that differ in case only) and an
idempotency-key:
  2xx                      processed
  400, 410, 413, 415, 422  dead at once
  any other, or no answer: try again later, after Retry-After if given";

const STATS_HELP: &str = "\
blocking  dead messages that hold up the later ones of their ordering key. Those wait, and are not
          behind, until the dead one is replayed, discarded or purged
behind    how long the longest-due message has been due";

const CONFORMANCE_HELP: &str = "\
Every case works on a fresh inbox of its own, and what --store names is not touched: for SQLite in
a file in the same folder; for MongoDB in a database named inbox_conformance_…; for PostgreSQL in a
schema named inbox_conformance_…, in that database, in which --store's user must be allowed to
create schemas; for MySQL and MariaDB in tables named inbox_conformance_…, in that database, in
which the user must be allowed to create and drop tables; for Redis in inboxes named conf…, on that
server or cluster. All are removed in the end.
Exit code 4 means that the store does not conform.";

const DEMO_HELP: &str = "\
It plays on SQLite, in a temporary folder; with --store postgres://… in a new schema of that
database, with --store mysql://… in new tables. They are dropped in the end, and the user must be
allowed to create and drop them. It does not play on Redis, which has no transactions, nor on
MongoDB.";

#[derive(Debug, Args)]
#[cfg_attr(
    not(feature = "conformance"),
    allow(dead_code, reason = "told to install another build")
)]
pub(crate) struct ConformanceArgs {
    /// Only cases whose name contains this, such as `ordering` or `purge`
    #[arg(value_name = "CASE", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// How many cases run at a time; most of them wait more than they work
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) jobs: NonZeroUsize,
    /// Compare the time of each operation with so many messages too, 100000 say, and with a hundredth
    /// of them; takes minutes
    #[arg(long, value_name = "N")]
    pub(crate) scale: Option<NonZeroUsize>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) processing: ProcessingArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IngestArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Store each message for this handler; repeat it to store each for several
    #[arg(long = "handler", value_name = "NAME", default_value = "default")]
    pub(crate) handlers: Vec<HandlerName>,
}

#[derive(Debug, Args)]
pub(crate) struct ProcessCommandArgs {
    #[command(flatten)]
    pub(crate) processing: ProcessingArgs,
    /// End when no message is pending or leased any more, rather than wait for new ones
    #[arg(long)]
    pub(crate) drain: bool,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// NDJSON: CloudEvents 1.0, or anything with --id-field and --kind-field; - is standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Take the message id from this field rather than from CloudEvents `id`. A field name, or a
    /// JSON pointer such as /order/id. Repeat it to join several with `#` (one within a field
    /// becomes `\#`): where several producers may use the same ids, `--id-field source --id-field
    /// id` tells their events apart
    #[arg(long = "id-field", value_name = "FIELD")]
    pub(crate) id_fields: Vec<String>,
    /// Lines are any JSON rather than CloudEvents: take the kind from this field, and the whole line
    /// as payload (needs --id-field too)
    #[arg(long, value_name = "FIELD", requires = "id_fields")]
    pub(crate) kind_field: Option<String>,
    /// Keep messages with the same value of this field in order. A dead one lets the next pass
    #[arg(long, value_name = "FIELD")]
    pub(crate) ordering_field: Option<String>,
    /// Stop at the first bad line, rather than report it and go on
    #[arg(long)]
    pub(crate) strict: bool,
    /// Store up to this many messages at a time
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false, id = "target")]
pub(crate) struct TargetArgs {
    /// POST each message to this URL
    #[arg(long, value_name = "URL", group = "target")]
    pub(crate) post: Option<String>,
    /// Run this command for each message
    #[arg(last = true, value_name = "COMMAND", group = "target")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ProcessingArgs {
    /// Process messages of this handler
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) handler: HandlerName,
    /// Run at most this many handlers at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,
    /// How long a message stays with a worker that has vanished
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = lease)]
    pub(crate) lease: Duration,
    /// End a handler that runs longer than this, and try again later; `none` for no limit [default:
    /// 30s with --post, 1h with a command]
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    pub(crate) timeout: Option<TimeLimit>,
    /// Dead-letter a message after this many attempts
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: u32,
    /// Wait this long before the first retry, then twice as long each time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub(crate) retry_delay: Duration,
    /// When told to end, let running handlers go on for this long. The rest of the end takes a few
    /// seconds more: keep it below what a supervisor waits for (30 s in Kubernetes)
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    pub(crate) grace: Duration,
}

/// How long a handler may run; `None` means for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeLimit(Option<Duration>);

impl ProcessingArgs {
    /// How long a handler of `target` may run. There is a limit unless `none` is given: a
    /// server that never answers would hold its slot for ever, and with it a message whose lease is
    /// always renewed.
    pub(crate) fn time_limit(&self, target: &TargetArgs) -> Option<Duration> {
        let default = if target.post.is_some() {
            Duration::from_secs(30)
        } else {
            Duration::from_secs(60 * 60)
        };
        self.timeout.unwrap_or(TimeLimit(Some(default))).0
    }
}

/// Which messages a command means.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    /// Only messages of this kind
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<Kind>,
    /// Only messages with this ordering key
    #[arg(long, value_name = "KEY")]
    pub(crate) ordering_key: Option<OrderingKey>,
    /// Only messages accepted at least this long ago, such as 90s, 12h or 7d
    #[arg(long, value_name = "AGE", value_parser = duration)]
    pub(crate) older_than: Option<Duration>,
    /// Only messages accepted less than this long ago
    #[arg(long, value_name = "AGE", value_parser = duration)]
    pub(crate) newer_than: Option<Duration>,
    /// Only messages whose last error contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) error: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only messages of this handler
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<HandlerName>,
    /// Only messages in this state; repeat it for several
    #[arg(long = "state", value_name = "STATE")]
    pub(crate) states: Vec<StateArg>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Print at most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// Continue after this place, as printed at the end of an earlier list
    #[arg(long, value_name = "PLACE")]
    pub(crate) after: Option<String>,
    /// Latest accepted first
    #[arg(long)]
    pub(crate) newest: bool,
    /// Say how many match in all, even if every message has to be looked at for it
    #[arg(long)]
    pub(crate) total: bool,
}

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

/// Messages by id, or all that a filter means.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub(crate) struct SelectionArgs {
    /// The messages' ids, or HANDLER/ID
    #[arg(value_name = "ID", group = "which")]
    pub(crate) ids: Vec<String>,
    /// All messages that match the filters; dead ones, unless --state says otherwise
    #[arg(long, group = "which")]
    pub(crate) all: bool,
    /// The handler of the ids, where several have a message of such an id; with --all: only messages
    /// of this handler
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<HandlerName>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Change nothing, and say how many messages it would be (with --all)
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl SelectionArgs {
    /// Ends the program when options that belong to --all come with ids: ignoring a filter would
    /// change messages that it was meant to spare. (Clap drops `requires` where its target
    /// conflicts with something that is there.)
    pub(crate) fn check(&self, has_states: bool) {
        let filter = &self.filter;
        let narrowed = has_states
            || filter.kind.is_some()
            || filter.ordering_key.is_some()
            || filter.older_than.is_some()
            || filter.newer_than.is_some()
            || filter.error.is_some();
        if !self.all && (self.dry_run || narrowed) {
            wrong_usage("filters and --dry-run go with --all, not with ids");
        }
    }
}

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

#[derive(Debug, Args)]
pub(crate) struct DiscardArgs {
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Only messages in this state; repeat it for several
    #[arg(long = "state", value_name = "STATE")]
    pub(crate) states: Vec<OpenStateArg>,
}

#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// Delete messages that became final at least this long ago, such as 12h or 30d
    #[arg(long, value_name = "AGE", value_parser = duration)]
    pub(crate) older_than: Duration,
    /// Which messages; repeat it for several
    #[arg(long = "state", value_name = "STATE", default_value = "processed")]
    pub(crate) states: Vec<FinalStateArg>,
    /// Append them to this NDJSON file first, payloads as base64; nothing is deleted that is not
    /// on disk there. - is standard output; what was written to a pipe counts as archived, whatever
    /// its reader does with it
    #[arg(long, value_name = "FILE")]
    pub(crate) archive: Option<PathBuf>,
    /// Delete up to this many at a time
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) slice: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SchemaCommand {
    /// Print the statements that set the inbox up
    Ddl,
    /// Check that a complete inbox of this version is there (exit code 4 if not)
    Exists,
    /// Set the inbox up if there is none
    Create,
    /// Bring the inbox to this version, or set it up
    Migrate,
    /// Print the version of the inbox
    Version,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How many worker processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) workers: u32,
    /// How many of them to kill while they work
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) kills: u32,
    /// Repeat an earlier run's order of deliveries and kills
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Keep the SQLite database here, rather than in a temporary folder
    #[arg(long, value_name = "FILE")]
    pub(crate) keep: Option<PathBuf>,
}

/// The word that makes this program a worker of the demo. Not one of the commands, so that neither
/// help nor completions offer it.
pub(crate) const DEMO_WORKER: &str = "demo-worker";

/// A worker process of the demo, which only the demo starts.
#[derive(Debug, Parser)]
#[command(name = "inbox demo-worker")]
pub(crate) struct DemoWorker {
    /// The file of an inbox on SQLite
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// The database of an inbox on a server. Not an argument: it may hold a password
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    #[arg(skip = std::env::var("INBOX_STORE").ok())]
    pub(crate) store: Option<String>,
    /// The schema of an inbox on PostgreSQL, in that database
    #[cfg(feature = "postgres")]
    #[arg(long)]
    pub(crate) schema: Option<String>,
    /// The name of an inbox on MySQL, in that database
    #[cfg(feature = "mysql")]
    #[arg(long)]
    pub(crate) inbox: Option<inbox::InboxName>,
}

impl DemoWorker {
    /// What this process was started as, if that is a worker of the demo.
    pub(crate) fn from_command_line() -> Option<Self> {
        let mut arguments = std::env::args_os().skip(1);
        if arguments.next()? != DEMO_WORKER {
            return None;
        }
        Some(Self::parse_from(
            std::iter::once(DEMO_WORKER.into()).chain(arguments),
        ))
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StateArg {
    Pending,
    Leased,
    Processed,
    Dead,
    Discarded,
}

impl From<StateArg> for State {
    fn from(arg: StateArg) -> Self {
        match arg {
            StateArg::Pending => Self::Pending,
            StateArg::Leased => Self::Leased,
            StateArg::Processed => Self::Processed,
            StateArg::Dead => Self::Dead,
            StateArg::Discarded => Self::Discarded,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FinalStateArg {
    Processed,
    Dead,
    Discarded,
}

impl From<FinalStateArg> for State {
    fn from(arg: FinalStateArg) -> Self {
        match arg {
            FinalStateArg::Processed => Self::Processed,
            FinalStateArg::Dead => Self::Dead,
            FinalStateArg::Discarded => Self::Discarded,
        }
    }
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

/// A duration as people write it: `500ms`, `30s`, `12h`, `7d`. A bare number is refused, since
/// it does not say its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let span: jiff::Span = text
        .parse()
        .map_err(|_| "expected a time such as 500ms, 30s, 12h or 7d".to_owned())?;
    // Days and weeks are 24 hours and 7 days here: ages, not calendar arithmetic.
    let exact = span
        .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
        .map_err(|_| "months and years have no fixed length; use days".to_owned())?;
    Duration::try_from(exact).map_err(|_| "a time cannot be negative".to_owned())
}

fn time_limit(text: &str) -> Result<TimeLimit, String> {
    if text == "none" {
        return Ok(TimeLimit(None));
    }
    match duration(text)? {
        Duration::ZERO => Err("no handler could run; for no limit, say `none`".to_owned()),
        limit => Ok(TimeLimit(Some(limit))),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    inbox::LeaseTerms::check_length(length).map_err(|e| e.to_string())?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert!(duration("30").is_err());
        assert!(duration("-5s").is_err());
        assert!(duration("1y").is_err());
    }

    #[test]
    fn a_handler_has_a_time_limit_unless_told_otherwise() {
        let limit = |arguments: &[&str]| {
            let line = ["inbox", "process"].iter().chain(arguments);
            match Cli::try_parse_from(line).unwrap().command {
                Command::Process(args) => args.processing.time_limit(&args.target),
                other => panic!("{other:?}"),
            }
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(limit(&["--post", "http://h"]), seconds(30));
        assert_eq!(limit(&["--", "true"]), seconds(3600));
        assert_eq!(limit(&["--timeout", "7s", "--", "true"]), seconds(7));
        assert_eq!(limit(&["--timeout", "none", "--post", "http://h"]), None);
        assert!(time_limit("0s").is_err());
        assert!(time_limit("soon").is_err());
    }

    #[test]
    fn a_handler_needs_exactly_one_target() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).is_ok();
        assert!(parse(&["inbox", "process", "--", "true"]));
        assert!(parse(&["inbox", "process", "--post", "http://localhost"]));
        assert!(!parse(&["inbox", "process"]));
        assert!(!parse(&[
            "inbox",
            "process",
            "--post",
            "http://localhost",
            "--",
            "true"
        ]));
    }

    #[test]
    fn interventions_need_ids_or_all() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).is_ok();
        assert!(parse(&["inbox", "replay", "a", "b"]));
        assert!(parse(&["inbox", "replay", "--all"]));
        assert!(!parse(&["inbox", "replay"]));
        assert!(!parse(&["inbox", "replay", "a", "--all"]));
    }
}
