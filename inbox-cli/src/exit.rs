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
    /// Ctrl-C or SIGTERM: what was under way was finished or handed back.
    Interrupted,
}

/// Something failed: the store, a file, the network.
pub(crate) const FAILURE: u8 = 1;

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Ok => 0,
            // 2 is clap's for a wrong command line.
            Exit::InputRefused => 3,
            Exit::No => 4,
            Exit::Interrupted => 130,
        })
    }
}

/// For `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done
  1    something failed: the store, a file, the network
  2    the command line is wrong
  3    some input lines were refused; all others were stored
  4    the answer is no: not found, does not exist, messages ended dead
  130  interrupted. Once: running work was finished or handed back. Twice: handlers were killed,
       and their messages run again when the leases run out

Environment:
  INBOX_STORE  the store, in place of --store
  INBOX_LOG    what to log to standard error, such as `info` or `inbox=debug`; outages unless set";
