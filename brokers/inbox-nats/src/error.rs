//! What errors of the client mean. Their texts name no credentials.

use async_nats::{ConnectError, ConnectErrorKind};
use inbox_source::{SourceError, network};

pub(crate) fn transient(doing: &str, error: impl std::fmt::Display) -> SourceError {
    SourceError::transient(format!("{doing}: {error}"))
}

/// A refused user or password waits for a change; all else may pass.
pub(crate) fn connecting(error: &ConnectError) -> SourceError {
    // Else what is behind the error may repeat the address as it was given.
    let reason = network::reason(error).unwrap_or_else(|| error.kind().to_string());
    let text = format!("connecting: {reason}");
    match error.kind() {
        ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation
        | ConnectErrorKind::ServerParse => SourceError::permanent(text),
        _ => SourceError::transient(text),
    }
}
