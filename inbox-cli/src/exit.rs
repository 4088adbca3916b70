//! Exit codes: scripts branch on them, so they are part of the interface.

use std::process::ExitCode;

/// How a command ended when nothing failed outright.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Ok,
    /// The answer is no: not found, does not exist, not all messages ended well.
    No,
    /// Some input was refused and reported; everything else was stored.
    InputRefused,
    /// What was asked about is not well.
    Unhealthy,
    /// The input could not be read to its end; what came before was stored.
    Unread,
    /// Ctrl-C: what was under way was finished or handed back.
    Interrupted,
    /// The same by SIGTERM.
    Terminated,
    /// The same by SIGHUP.
    HungUp,
}

/// Something failed: the store, a file, the network.
pub(crate) const FAILURE: u8 = 1;

/// The command line is wrong, in clap's words or in ours.
pub(crate) const USAGE: u8 = 2;

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            // What supervisors and containers expect of a check.
            Self::Unread | Self::Unhealthy => FAILURE,
            // 2 is clap's for a wrong command line.
            Self::InputRefused => 3,
            Self::No => 4,
            // 128 and the signal's number, as shells have it.
            Self::HungUp => 129,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// For `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done; also `inbox process` that SIGTERM has ended, with its running handlers finished
  1    something failed: the store, reading the input, the network, writing the output, starting the
       handler command or reaching its server at all; also `inbox health` of what is not well
  2    the command line is wrong
  3    some input lines were refused; all others were stored (with --strict, those before the first,
       and of one that only the store refuses the rest of its batch)
  4    the answer is no: not found, not unique, does not exist, messages ended dead
  129  the terminal was closed, or its connection was lost (SIGHUP)
  130  interrupted by Ctrl-C
  143  ended by SIGTERM before everything was done
Ctrl-C, SIGTERM and SIGHUP (unless ignored, as under nohup) let running handlers finish and hand the
other messages back. A second one kills the handlers; their messages run again when the leases run
out. A handler command that such a signal ends too costs its message no attempt; to let it finish
under systemd, set KillMode=mixed.

Environment:
  INBOX_STORE  the store, in place of --store
  INBOX_LOG    what to log to standard error, such as `info` or `inbox=debug`; outages and rejected
               deliveries unless set. Lines have times, but on a terminal and in the journal
  NO_COLOR     if set, nothing is coloured";
