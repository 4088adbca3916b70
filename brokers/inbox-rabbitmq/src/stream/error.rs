//! What codes of the server mean. No text names credentials.

use inbox_source::SourceError;

use super::{frame::code, wire::Malformed};

pub(crate) type Outcome<T> = Result<T, SourceError>;

/// The server said what this client does not read.
pub(crate) fn malformed(_: Malformed) -> SourceError {
    SourceError::transient("the server's answer is not of the stream protocol")
}

/// What a server refuses by its settings waits for a change; all else may pass.
pub(crate) fn refused(doing: &str, refusal: u16) -> SourceError {
    let (text, is_transient) = match refusal {
        code::NO_SUCH_STREAM => (
            "there is no such stream; declare it, or let the source do so by `create`",
            false,
        ),
        code::STREAM_AWAY => ("the stream is not available", true),
        code::NO_SUCH_MECHANISM => ("the server takes no passwords (SASL's PLAIN)", false),
        code::WRONG_PASSWORD | code::SASL_ERROR => ("user or password are refused", false),
        code::LOOPBACK_ONLY => (
            "this user may connect from the server's machine only",
            false,
        ),
        code::NO_ACCESS_TO_VHOST => ("the virtual host is not there, or not for this user", false),
        code::FRAME_TOO_LARGE => ("it is larger than the server takes", false),
        code::ACCESS_REFUSED => ("this user may not", false),
        code::PRECONDITION_FAILED => ("the server does not take these settings", false),
        _ => ("the server failed", true),
    };
    let text = format!("{doing}: {text} (code {refusal})");
    match is_transient {
        true => SourceError::transient(text),
        false => SourceError::permanent(text),
    }
}
