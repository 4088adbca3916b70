//! What errors of the client and answers of the server mean. Their texts name no credentials.

use inbox_source::{SourceError, network};
use lapin::{Error, ErrorKind};

pub(crate) const ACCESS_REFUSED: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const PRECONDITION_FAILED: u16 = 406;
pub(crate) const NOT_ALLOWED: u16 = 530;

pub(crate) fn transient(doing: &str, error: impl std::fmt::Display) -> SourceError {
    SourceError::transient(format!("{doing}: {error}"))
}

/// The server's code and text, if it is an answer of the server.
pub(crate) fn answer(error: &Error) -> Option<(u16, &str)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some((error.get_id(), error.get_message().as_str())),
        _ => None,
    }
}

/// A refused user or password, and a virtual host that is not there, wait for a change; all else may pass.
pub(crate) fn connecting(error: &Error) -> SourceError {
    match answer(error) {
        Some((ACCESS_REFUSED | NOT_ALLOWED, text)) => {
            SourceError::permanent(format!("connecting: {text}"))
        }
        _ => transient(
            "connecting",
            network::reason(error).unwrap_or_else(|| error.to_string()),
        ),
    }
}

/// A queue that is not there, has other settings or is not for this user waits for a change. A queue whose
/// node is away is also "not found", in other words.
pub(crate) fn declaring(error: &Error) -> SourceError {
    let doing = "looking for the queue";
    match answer(error) {
        Some((NOT_FOUND, text)) if text.contains("no queue") => SourceError::permanent(format!(
            "{doing}: {text}; declare it, or let the source do so by `create`"
        )),
        Some((PRECONDITION_FAILED, text)) => SourceError::permanent(format!(
            "{doing}: {text}; it was declared with other settings: use the same, or do without `create`"
        )),
        Some((ACCESS_REFUSED, text)) => SourceError::permanent(format!("{doing}: {text}")),
        _ => transient(doing, error),
    }
}
