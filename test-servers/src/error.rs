use std::io;

use crate::kind::{Kind, UnknownKind};

/// There is no server of a kind on this machine, so tests that need one cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Skipped {
    /// Everything that was tried and why it did not work, in one line.
    pub reason: String,
}

/// Why there is no server to test with.
#[derive(Debug, thiserror::Error)]
pub enum NoServer {
    /// There is none here.
    #[error("skipped: {0}")]
    Skipped(#[from] Skipped),
    /// One was found and does not work. That is a failure, never a reason to skip.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// What can go wrong with a server that was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server is shared with others, so it is not ours to stop, kill, pause or start.
    #[error("the {kind} server comes from {variable} and may be in use by others; it is left alone", variable = kind.url_variable())]
    Shared {
        /// The kind of server.
        kind: Kind,
    },
    /// The server is stopped or has been killed, so it cannot be paused or resumed.
    #[error("the {kind} server is not running")]
    NotRunning {
        /// The kind of server.
        kind: Kind,
    },
    /// The server runs in one container, so its nodes are only stopped and started together.
    #[error("the nodes of the {kind} server share a container and are not handled one by one")]
    OneContainer {
        /// The kind of server.
        kind: Kind,
    },
    /// The server has fewer nodes.
    #[error("the {kind} server has no node {node}")]
    NoSuchNode {
        /// The kind of server.
        kind: Kind,
        /// The number that was given; the first node's is 0.
        node: usize,
    },
    /// There is nothing to promote: the server is no standby, or has been promoted before.
    #[error("the {kind} server is no standby")]
    NoStandby {
        /// The kind of server.
        kind: Kind,
    },
    /// The server has no disk of its own that could be filled.
    #[error("the {kind} server has no disk of its own")]
    NoSmallDisk {
        /// The kind of server.
        kind: Kind,
    },
    /// The server goes by the machine's clock, which is not moved.
    #[error("the {kind} server has no clock of its own")]
    NoMovableClock {
        /// The kind of server.
        kind: Kind,
    },
    /// The server was found but did not come up.
    #[error("the {kind} server did not start: {reason}\nits log ends:\n{log}")]
    DidNotStart {
        /// The kind of server.
        kind: Kind,
        /// What was wrong when we gave up.
        reason: String,
        /// The end of the server's log.
        log: String,
    },
    /// The server was told to stop and did not within the time allowed. It still runs.
    #[error("the {kind} server did not stop; its log ends:\n{log}")]
    DidNotStop {
        /// The kind of server.
        kind: Kind,
        /// The end of the server's log.
        log: String,
    },
    /// `INBOX_TEST_REQUIRE` asks for a server that cannot be found.
    #[error("INBOX_TEST_REQUIRE asks for {kind}, but: {reason}")]
    Required {
        /// The kind of server.
        kind: Kind,
        /// Why there is none.
        reason: String,
    },
    /// `INBOX_TEST_REQUIRE` names a kind that does not exist. It is refused lest a typing error
    /// turn a required test into a skipped one.
    #[error("INBOX_TEST_REQUIRE: {0}")]
    UnknownRequirement(#[from] UnknownKind),
    /// Docker refused or failed.
    #[error("Docker: {0}")]
    Docker(String),
    /// The operating system refused something: a directory, a process, a port.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// Says what was being done when an I/O error happened.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|error| Error::System {
            doing,
            source: error.into(),
        })
    }
}
