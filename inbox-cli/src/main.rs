//! The `inbox` command: ingest, process, look into and repair an inbox.

#![warn(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic when a pipe is closed or a disk is full; `output` does not"
)]

mod archive;
mod args;
mod commands;
mod exit;
mod handler;
#[cfg(test)]
mod hostile;
mod http_client;
mod input;
mod interrupt;
mod lookup;
#[cfg(feature = "mysql")]
mod mysql_tables;
mod notify;
mod observe;
mod output;
mod progress;
mod retention;
mod store;

use std::{
    fs::File,
    io::IsTerminal,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    process::ExitCode,
};

use anyhow::Result;
use tracing_subscriber::{
    Layer, Registry,
    filter::Targets,
    layer::{Layered, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

use crate::{
    args::{Cli, Command},
    commands::demo::DemoWorker,
    exit::Exit,
};

fn main() -> ExitCode {
    if let Some(worker) = DemoWorker::from_command_line() {
        return run(commands::demo::worker(worker), DEFAULT_LOG);
    }
    match Cli::parse_command_line() {
        Ok(cli) => {
            cli.global.check();
            let log = default_log(&cli.command);
            run(dispatch(cli), log)
        }
        Err(said) => ExitCode::from(output::usage(&said)),
    }
}

fn run(command: impl Future<Output = Result<Exit>>, default_log: &str) -> ExitCode {
    log_to_stderr(default_log);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => {
            output::note(format_args!("inbox: cannot start: {e}"));
            return ExitCode::from(exit::FAILURE);
        }
    };
    let result = runtime.block_on(async {
        let result = command.await;
        store::close_all().await;
        result
    });
    // Not dropped: a read of standard input that still waits would hold the process up.
    runtime.shutdown_background();
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::note(format_args!("inbox: {}", causes(&error)));
            ExitCode::from(exit::FAILURE)
        }
    }
}

/// What was tried, then the causes, in one line. A store's error says in its own words what the
/// driver said, so of what is behind it only the network's own words are added, which tell a host
/// that is not found from a port that nobody listens on.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut causes = error.chain();
    let mut said = Vec::new();
    for cause in causes.by_ref() {
        said.push(cause.to_string());
        if cause.is::<inbox::Error>() {
            break;
        }
    }
    said.extend(causes.find_map(network));
    said.join(": ")
}

/// What the operating system or TLS says, if this is their error.
fn network(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    match cause.downcast_ref() {
        Some(sqlx::Error::Tls(error)) => Some(error.to_string()),
        _ => Some(cause.downcast_ref::<std::io::Error>()?.to_string()),
    }
}

/// Boxes what would make the stack grow.
async fn dispatch(cli: Cli) -> Result<Exit> {
    let global = &cli.global;
    match cli.command {
        Command::Run(args) => Box::pin(commands::run::run(global, args)).await,
        Command::Ingest(args) => commands::ingest::run(global, args).await,
        Command::ImportKeys(args) => Box::pin(commands::import_keys::run(global, args)).await,
        Command::Receive(args) => commands::receive::run(global, args).await,
        Command::Process(args) => Box::pin(commands::process::run(global, args)).await,
        Command::Serve(args) => Box::pin(commands::serve::run(global, args)).await,
        Command::Dashboard(args) => commands::dashboard::run(global, args).await,
        Command::List(args) => commands::list::run(global, args).await,
        Command::Show(args) => commands::show::run(global, args).await,
        Command::Copy(args) => commands::copy::run(global, args).await,
        Command::Health(args) => commands::health::run(global, args).await,
        Command::Stats => commands::stats::run(global).await,
        Command::Dead(args) => commands::dead::run(global, args).await,
        Command::Scheduled(args) => commands::scheduled::run(global, args).await,
        Command::Reschedule(args) => commands::reschedule::run(global, args).await,
        Command::Pause(args) => commands::pause::pause(global, &args).await,
        Command::Resume(args) => commands::pause::resume(global, &args).await,
        Command::Clear(args) => commands::clear::run(global, args).await,
        Command::Replay(args) => commands::replay::run(global, args).await,
        Command::Discard(args) => commands::discard::run(global, args).await,
        Command::Purge(args) => commands::purge::run(global, args).await,
        Command::Schema(command) => commands::schema::run(global, &command).await,
        #[cfg(feature = "conformance")]
        Command::Conformance(args) => commands::conformance::run(global, args).await,
        #[cfg(not(feature = "conformance"))]
        Command::Conformance(_) => Err(store::left_out("run the suite", "conformance")),
        Command::Demo(args) => commands::demo::run(global, args).await,
        Command::Completions { shell } => commands::completions::run(global, shell),
    }
}

/// What is logged unless INBOX_LOG says otherwise: outages and their ends, deliveries that are lost or kept as dead
/// letters, and changes from the dashboard, by the inbox itself and not by drivers too. Failed attempts are not: they
/// are counted at the end, and `inbox list` has them with their errors.
const DEFAULT_LOG: &str = "inbox=warn,inbox::message=error,inbox::outage=info,inbox::audit=info";

/// Without the lines of an input that are refused, each of which the command names by itself.
const DEFAULT_LOG_OF_LINES: &str =
    "inbox=warn,inbox::message=error,inbox::rejected=off,inbox::outage=info,inbox::audit=info";

fn default_log(command: &Command) -> &'static str {
    match command {
        Command::Run(_) | Command::Ingest(_) | Command::ImportKeys(_) => DEFAULT_LOG_OF_LINES,
        _ => DEFAULT_LOG,
    }
}

/// Logs go to standard error, so that standard output stays for results.
fn log_to_stderr(default: &str) {
    let wanted = std::env::var("INBOX_LOG").unwrap_or_default();
    let chosen = if wanted.is_empty() { default } else { &wanted };
    let filter: Targets = chosen.parse().unwrap_or_else(|error| {
        output::note(format_args!("inbox: INBOX_LOG is ignored: {error}"));
        default.parse().unwrap_or_default()
    });
    let is_terminal = std::io::stderr().is_terminal();
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| output::Log)
        .with_ansi(has_colours(is_terminal, is_refused))
        // What cannot be written to standard error cannot be reported there either.
        .log_internal_errors(false);
    let lines: Box<dyn Layer<Layered<Targets, Registry>> + Send + Sync> =
        match has_times(is_terminal, is_to_journal()) {
            true => Box::new(lines),
            false => Box::new(lines.without_time()),
        };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
}

/// As help and errors of the command line have it, too.
fn has_colours(is_terminal: bool, is_refused: bool) -> bool {
    is_terminal && !is_refused
}

/// Whether standard error is the stream that JOURNAL_STREAM names by its device and inode, as systemd documents. What a
/// service starts inherits the variable, also where its standard error is a file.
fn is_to_journal() -> bool {
    let stderr = std::io::stderr().as_fd().try_clone_to_owned();
    let stderr = stderr.and_then(|stderr| File::from(stderr).metadata());
    let place = stderr.map(|stderr| format!("{}:{}", stderr.dev(), stderr.ino()));
    place.is_ok_and(|place| std::env::var("JOURNAL_STREAM") == Ok(place))
}

/// Whether lines of the log begin with their time: not where a person reads them as they come, and not in the journal,
/// which has its own. In a file nothing else tells when an outage began.
fn has_times(is_terminal: bool, is_journal: bool) -> bool {
    !is_terminal && !is_journal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_suits_its_reader() {
        assert!(has_colours(true, false));
        assert!(!has_colours(true, true) && !has_colours(false, false));
        assert!(has_times(false, false));
        assert!(!has_times(true, false) && !has_times(false, true));
    }

    /// A filter that cannot be read would be left out without a word.
    #[test]
    fn what_is_logged_by_default_can_be_read() {
        for log in [DEFAULT_LOG, DEFAULT_LOG_OF_LINES] {
            let filter: Targets = log.parse().unwrap();
            let is_told = |target, level| filter.would_enable(target, &level);
            assert!(is_told("inbox::outage", tracing::Level::INFO));
            assert!(!is_told("inbox::message", tracing::Level::WARN));
            let is_of_lines = log == DEFAULT_LOG_OF_LINES;
            assert_eq!(
                is_told("inbox::rejected", tracing::Level::WARN),
                !is_of_lines
            );
        }
    }
}
