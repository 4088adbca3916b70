//! Installs, lists and runs servers for tests.

mod install;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::thread;

use clap::{Parser, Subcommand};
use test_servers::{Kind, find, locate};

/// Real servers for the tests of inbox stores.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install the servers that need no Docker, as root on Debian or Ubuntu.
    Install,
    /// Show for each kind of server where tests would get one.
    List,
    /// Start a server, print its URL, and run it until Ctrl-C.
    Run {
        /// One of those that `list` shows.
        kind: Kind,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Install => install::install(),
        Task::List => list(),
        Task::Run { kind } => run(kind),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "test-servers: {error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn list() -> Outcome {
    let mut table = String::new();
    for kind in Kind::ALL {
        match locate(kind) {
            Ok(origin) => writeln!(table, "{kind:16} {origin}")?,
            Err(skipped) => writeln!(table, "{kind:16} none: {skipped}")?,
        }
    }
    io::stdout().write_all(table.as_bytes())?;
    Ok(())
}

fn run(kind: Kind) -> Outcome {
    let server = find(kind)?;
    writeln!(io::stdout(), "{}", server.url())?;
    let mut about = format!("{kind} from {}", server.origin());
    if let Some(directory) = server.directory() {
        write!(about, " in {}", directory.display())?;
    }
    writeln!(io::stderr(), "{about}; Ctrl-C ends it")?;
    // Ctrl-C ends this process like any other; the watchdog then ends the server.
    loop {
        thread::park();
    }
}
