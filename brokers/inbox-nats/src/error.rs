//! What errors of the client mean. Their texts name no credentials.

use std::error::Error as _;

use async_nats::{
    ConnectError, ConnectErrorKind,
    jetstream::{
        self, ErrorCode,
        context::{PublishError, PublishErrorKind},
    },
};
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

/// What is too large stays so; all else may pass.
pub(crate) fn unpublished(doing: &str, error: &PublishError) -> SourceError {
    let text = format!("{doing}: {error}");
    match error.kind() == PublishErrorKind::MaxPayloadExceeded || is_too_large(error) {
        true => SourceError::permanent(text),
        false => SourceError::transient(text),
    }
}

/// Whether the stream refuses it for its size. The client's own kind of error does not tell.
fn is_too_large(error: &PublishError) -> bool {
    let answer = error.source();
    let answer = answer.and_then(|answer| answer.downcast_ref::<jetstream::Error>());
    answer.is_some_and(|answer| {
        matches!(
            answer.error_code(),
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM
        )
    })
}
