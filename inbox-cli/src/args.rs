//! The command line: what all commands have. What one has is in its own module.

use std::{net::SocketAddr, num::NonZeroUsize, time::Duration};

use clap::{
    Args, CommandFactory, FromArgMatches as _, Parser, Subcommand, ValueEnum,
    builder::NonEmptyStringValueParser, error::ErrorKind, parser::ValueSource,
};
use inbox::{
    ErrorType, Filter, HandlerName, Kind, MessageId, OperatorName, OrderingKey, State, StoreKind,
};
pub(crate) use inbox_dashboard::text::parse_duration as duration;

use crate::{
    commands::{
        clear::ClearArgs,
        copy::{self, CopyArgs},
        dashboard::{self, DashboardArgs},
        demo::{self, DemoArgs},
        discard::DiscardArgs,
        health::{self, HealthArgs},
        import_keys::{self, ImportKeysArgs},
        ingest::{self, IngestArgs},
        list::ListArgs,
        pause::{PauseArgs, ResumeArgs},
        process::ProcessCommandArgs,
        purge::PurgeArgs,
        receive::{self, ReceiveArgs},
        replay::ReplayArgs,
        reschedule::RescheduleArgs,
        run::{self, RunArgs},
        schema::SchemaCommand,
        serve::{self, ServeArgs},
        show::ShowArgs,
        stats,
        summary::SummaryArgs,
    },
    exit, handler, output,
};

/// Ends the program as clap does for a wrong command line: for rules that clap cannot express.
pub(crate) fn wrong_usage(problem: impl std::fmt::Display) -> ! {
    let error = Cli::command().error(ErrorKind::ValueValidation, problem);
    std::process::exit(output::usage(&error).into())
}

/// What stands below the commands in `inbox --help`.
fn help() -> String {
    let stores = [
        ("sqlite://FILE", StoreKind::Sqlite),
        ("postgres://USER@HOST/DATABASE", StoreKind::Postgres),
        ("mysql://USER@HOST/DATABASE", StoreKind::MySql),
        ("mongodb://USER@HOST/DATABASE", StoreKind::Mongo),
        ("redis://HOST, redis+cluster://HOST,HOST", StoreKind::Redis),
    ];
    let mut text = "Stores:\n".to_owned();
    for (url, kind) in stores {
        let note = if kind.is_built() {
            String::new()
        } else {
            let feature = kind.feature();
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

impl Cli {
    /// What the arguments of this process say.
    pub(crate) fn parse_command_line() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let mut cli = Self::from_arg_matches(&matches)?;
        // Options that all commands have count behind a command, too.
        let of_command = matches.subcommand().map(|(_, matches)| matches);
        let source = of_command.unwrap_or(&matches).value_source("store");
        cli.global.is_default_store = source == Some(ValueSource::DefaultValue);
        Ok(cli)
    }
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
    /// Whether neither the command line nor the environment names one.
    #[arg(skip)]
    pub(crate) is_default_store: bool,
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
        after_help = run::EXAMPLES,
        override_usage = "inbox run [OPTIONS] <FILE> <--post <URL>|-- <COMMAND>...>"
    )]
    Run(RunArgs),
    /// Store the messages of a file or of standard input. Sets the inbox up if there is none
    #[command(after_help = ingest::HELP)]
    Ingest(IngestArgs),
    /// Record ids as processed, one on each line: what was handled before there was an inbox. Sets the inbox up if
    /// there is none
    #[command(after_help = import_keys::HELP)]
    ImportKeys(ImportKeysArgs),
    /// Store the messages of a broker, and acknowledge them. Sets the inbox up if there is none
    #[command(after_help = receive::help())]
    Receive(ReceiveArgs),
    /// Process stored messages with a command or by HTTP
    #[command(
        after_help = handler::HELP,
        override_usage = "inbox process [OPTIONS] <--post <URL>|-- <COMMAND>...>"
    )]
    Process(ProcessCommandArgs),
    /// Receive webhooks, serve a JSON API to workers in any language, and process messages, as a
    /// service. Sets the inbox up if there is none
    #[command(
        after_help = serve::HELP,
        override_usage = "inbox serve [OPTIONS] --config <FILE>\n       inbox serve [OPTIONS] \
                          [--token-env <VARIABLE>] [--webhook <PATH>] [--post <URL>|-- <COMMAND>...]"
    )]
    Serve(ServeArgs),
    /// Serve pages to look at messages and to mend them, and an admin API
    #[command(after_help = dashboard::HELP)]
    Dashboard(DashboardArgs),
    /// List messages
    List(ListArgs),
    /// Show one message, and what it waits for
    Show(ShowArgs),
    /// Count messages by handler and state, and show how far behind each handler is
    #[command(after_help = stats::HELP)]
    Stats,
    /// Tell whether the inbox, or a process that works on it, is well
    #[command(after_help = health::HELP)]
    Health(HealthArgs),
    /// Summarise dead messages by handler, kind and type of error, or list them
    Dead(SummaryArgs),
    /// Summarise what is due later, or list it
    Scheduled(SummaryArgs),
    /// Make dead (or other final) messages pending again
    Replay(ReplayArgs),
    /// Make pending messages due at another time
    Reschedule(RescheduleArgs),
    /// Stop handing out a handler's messages, for all workers
    Pause(PauseArgs),
    /// End a pause
    Resume(ResumeArgs),
    /// Give messages up: they are not worked on, and duplicates are still refused
    Discard(DiscardArgs),
    /// Delete final messages older than a given age, and with them their protection
    Purge(PurgeArgs),
    /// Delete all messages of a handler but leased ones, and with them their protection
    Clear(ClearArgs),
    /// Copy an inbox from one store to another, and compare the two
    #[command(after_help = copy::HELP)]
    Copy(CopyArgs),
    /// Set the inbox up, or check that it is
    #[command(subcommand)]
    Schema(SchemaCommand),
    /// Check the store against the inbox contract, case by case (in builds with the feature
    /// `conformance`)
    #[command(after_help = CONFORMANCE_HELP)]
    Conformance(ConformanceArgs),
    /// Watch an inbox survive duplicates, failures and killed workers, on real webhooks
    #[command(after_help = demo::HELP)]
    Demo(DemoArgs),
    /// Print shell completions
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

const CONFORMANCE_HELP: &str = "\
Every case works on its own fresh inbox, and what --store names is not touched: for SQLite in
a file in the same folder; for MongoDB in a database named inbox_conformance_…; for PostgreSQL in a
schema named inbox_conformance_…, in that database, in which --store's user must be allowed to
create schemas; for MySQL and MariaDB in tables named inbox_conformance_…, in that database, in
which the user must be allowed to create and drop tables; for Redis in inboxes named conf…, on that
server or cluster, whose keys are listed after each case by a user who may run EVAL and KEYS. All
are removed in the end.
Exit code 4 means that the store does not conform.";

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

/// Which messages a command means.
#[derive(Clone, Debug, Args)]
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
    /// Only messages whose last error contains this text. Where `inbox dead` prints # for numbers, give a part
    /// without them
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) error: Option<String>,
    /// Only messages whose last error is of this type, as `inbox dead` prints it in front of the text of a sample;
    /// where it prints a text alone, --error takes a part of that
    #[arg(long, value_name = "TYPE", value_parser = error_type)]
    pub(crate) error_type: Option<ErrorType>,
    /// Only messages with this id, of whichever handler; repeat it for several
    #[arg(long = "id", value_name = "ID")]
    pub(crate) only_ids: Vec<MessageId>,
    /// Only messages with this value of the header correlation-id
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) correlation_id: Option<String>,
    /// Only messages that became final at least this long ago
    #[arg(long, value_name = "AGE", value_parser = duration)]
    pub(crate) finished_longer_ago: Option<Duration>,
    /// Only messages that became final less than this long ago
    #[arg(long, value_name = "AGE", value_parser = duration)]
    pub(crate) finished_within: Option<Duration>,
    /// Only messages that are due more than this from now; 0s is what is scheduled
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) due_later_than: Option<Duration>,
    /// Only messages that are due no later than this from now; with --state pending, 0s is what is due
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) due_within: Option<Duration>,
    /// Only messages with at least this many attempts
    #[arg(long, value_name = "N")]
    pub(crate) min_attempts: Option<u32>,
    /// Only messages with at most this many attempts
    #[arg(long, value_name = "N")]
    pub(crate) max_attempts: Option<u32>,
    /// Only dead messages that hold up the later ones of their ordering key
    #[arg(long)]
    pub(crate) blocking: bool,
}

impl FilterArgs {
    /// The filter for these states of a handler.
    pub(crate) fn filter(
        self,
        handler: Option<HandlerName>,
        states: impl IntoIterator<Item = impl Into<State>>,
    ) -> Filter {
        Filter {
            states: states.into_iter().map(Into::into).collect(),
            handler,
            ids: self.only_ids,
            kind: self.kind,
            ordering_key: self.ordering_key,
            correlation_id: self.correlation_id,
            older_than: self.older_than,
            newer_than: self.newer_than,
            finished_longer_ago: self.finished_longer_ago,
            finished_within: self.finished_within,
            due_later_than: self.due_later_than,
            due_within: self.due_within,
            min_started: self.min_attempts,
            max_started: self.max_attempts,
            blocking: self.blocking,
            error_contains: self.error,
            error_type: self.error_type,
        }
    }
}

/// Messages by id, or all that a filter means.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub(crate) struct SelectionArgs {
    /// The messages' ids, or HANDLER/ID
    #[arg(value_name = "ID", group = "which")]
    pub(crate) ids: Vec<String>,
    /// All messages that match the filters: dead ones, unless --state says otherwise, or pending ones to be rescheduled
    #[arg(long, group = "which")]
    pub(crate) all: bool,
    /// The handler of the ids, where several have a message of such an id; with --all: only messages
    /// of this handler
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<HandlerName>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Change nothing, and say how many messages it would be (with --all). A replay passes over those whose
    /// payload was dropped
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Who does this, for the note that each changed message keeps [default: the value of USER, or `unknown`]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<OperatorName>,
}

impl SelectionArgs {
    /// Who signs the changes.
    pub(crate) fn operator(&self) -> Option<OperatorName> {
        let user = || OperatorName::new(std::env::var("USER").ok()?).ok();
        let unknown = || OperatorName::new("unknown").ok();
        self.by.clone().or_else(user).or_else(unknown)
    }

    /// Ends the program when options that belong to --all come with ids: ignoring a filter would
    /// change messages that it was meant to spare. (Clap drops `requires` where its target
    /// conflicts with something that is there.)
    pub(crate) fn check(&self, has_states: bool) {
        let filter = self.filter.clone().filter(None, [] as [State; 0]);
        let narrowed = has_states || filter != Filter::default();
        if !self.all && (self.dry_run || narrowed) {
            wrong_usage("filters and --dry-run go with --all, not with ids");
        }
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

fn error_type(text: &str) -> Result<ErrorType, String> {
    ErrorType::new(text).map_err(|invalid| {
        format!("{invalid}; for an error that is a text, --error takes a part of it")
    })
}

/// An address to listen at. A name is none: it may have several, of which one would be a guess.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let expected = "expected an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080";
        expected.to_owned()
    })
}

pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    inbox::LeaseTerms::check_length(length).map_err(|e| e.to_string())?;
    Ok(length)
}

/// What each id begins with. One that no id can follow would have each message refused, and its sender would give up.
pub(crate) fn id_prefix(text: &str) -> Result<String, String> {
    const SHORTEST: &str = "1";
    match MessageId::new(format!("{text}{SHORTEST}")) {
        Ok(_) => Ok(text.to_owned()),
        Err(invalid) => Err(format!("no id can begin so: {invalid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
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

    /// A line that is longer than the help is wide is broken where no sentence is.
    #[test]
    fn no_line_of_a_help_is_too_long() {
        let mut long = Vec::new();
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            for line in help.unwrap_or_default().lines() {
                if line.chars().count() > 100 {
                    long.push(format!("{}: {line}", command.get_name()));
                }
            }
        }
        assert_eq!(long, [] as [String; 0]);
    }

    #[test]
    fn interventions_need_ids_or_all() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).is_ok();
        assert!(parse(&["inbox", "replay", "a", "b"]));
        assert!(parse(&["inbox", "replay", "--all"]));
        assert!(!parse(&["inbox", "replay"]));
        assert!(!parse(&["inbox", "replay", "a", "--all"]));
    }

    /// Defect: an empty text, as that of a variable that is not set, is in every error, so that all messages with one
    /// were meant.
    #[test]
    fn what_says_nothing_is_no_filter() {
        for option in ["--error", "--correlation-id", "--id", "--kind", "--handler"] {
            let parse = |text| Cli::try_parse_from(["inbox", "discard", "--all", option, text]);
            assert!(parse("x").is_ok() && parse("").is_err(), "{option}");
        }
    }
}
