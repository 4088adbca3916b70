//! What errors of the client mean. Their texts name no credentials.

use std::fmt;

use aws_sdk_sqs::{
    error::{ProvideErrorMetadata, SdkError},
    types::BatchResultErrorEntry,
};
use inbox_source::{SourceError, network};

/// What the service says of itself, or of too many requests: it passes.
const PASSES: [&str; 6] = [
    "InternalError",
    "InternalFailure",
    "KmsThrottled",
    "OverLimit",
    "ServiceUnavailable",
    "Throttl",
];
/// What waits for a change of queue, permissions, credentials or message.
const STAYS: [&str; 12] = [
    "AccessDenied",
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidAddress",
    "InvalidAttributeValue",
    "InvalidClientTokenId",
    "InvalidMessageContents",
    "InvalidSecurity",
    "NonExistentQueue",
    "QueueDoesNotExist",
    "SignatureDoesNotMatch",
    "TooLong",
];

pub(crate) fn transient(doing: &str, error: impl fmt::Display) -> SourceError {
    SourceError::transient(format!("{doing}: {error}"))
}

pub(crate) fn late(doing: &str) -> SourceError {
    transient(doing, "the service does not answer in time")
}

/// An answer of the service, or none.
pub(crate) fn failed<E, R>(doing: &str, error: &SdkError<E, R>) -> SourceError
where
    E: ProvideErrorMetadata,
{
    let SdkError::ServiceError(answer) = error else {
        return transient(doing, unanswered(error));
    };
    let code = answer.err().code().unwrap_or("error");
    let text = format!(
        "{doing}: {code}: {}",
        answer.err().message().unwrap_or_default()
    );
    match STAYS.iter().any(|stays| code.contains(stays)) {
        true => SourceError::permanent(text),
        false => SourceError::transient(text),
    }
}

/// Why there is no answer. What the client says of it may repeat a request, but for the network's own words.
fn unanswered<E, R>(error: &SdkError<E, R>) -> String {
    let text = match error {
        SdkError::ConstructionFailure(_) => "the request could not be made or signed",
        SdkError::TimeoutError(_) => "the service does not answer in time",
        SdkError::DispatchFailure(failure) => {
            let text = "the service cannot be reached";
            let connector = failure.as_connector_error();
            let reason = connector.and_then(|error| network::reason(error));
            return reason.map_or_else(|| text.to_owned(), |reason| format!("{text}: {reason}"));
        }
        _ => "the answer cannot be read",
    };
    text.to_owned()
}

/// What the service says of one message of a batch.
pub(crate) fn refused(doing: &str, entry: &BatchResultErrorEntry) -> SourceError {
    let text = format!(
        "{doing}: {}: {}",
        entry.code(),
        entry.message().unwrap_or_default()
    );
    let passes = PASSES.iter().any(|passes| entry.code().contains(passes));
    match entry.sender_fault() && !passes {
        true => SourceError::permanent(text),
        false => SourceError::transient(text),
    }
}

/// The same once more, for another message of the same request.
pub(crate) fn again(error: &SourceError) -> SourceError {
    match error.is_transient() {
        true => SourceError::transient(error.to_string()),
        false => SourceError::permanent(error.to_string()),
    }
}
