//! What errors of the client mean. Their texts name no credentials.

use std::{collections::BTreeMap, fmt};

use aws_sdk_sqs::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
    types::BatchResultErrorEntry,
};
use inbox_source::{SourceError, network};

/// What the service says of itself, of a queue's encryption, or of too many requests: it passes.
const PASSES: [&str; 6] = [
    "InternalError",
    "InternalFailure",
    "Kms",
    "OverLimit",
    "ServiceUnavailable",
    "Throttl",
];
/// What waits for a queue. It says nothing of a message: a queue that is made again by a deployment is away for a
/// minute, and one of another account or region is a setting.
const QUEUE: [&str; 3] = ["InvalidAddress", "NonExistentQueue", "QueueDoesNotExist"];
/// What waits for another message.
const MESSAGE: [&str; 3] = ["InvalidAttributeValue", "InvalidMessageContents", "TooLong"];
/// What waits for a change of permissions or credentials. It says nothing of a message.
const ACCESS: [&str; 6] = [
    "AccessDenied",
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "SignatureDoesNotMatch",
];

/// What SQS takes of one message at most, with its attributes. An emulator may take more.
const MAX_MESSAGE: usize = 1024 * 1024;
/// The status of HTTP for a request of too many bytes.
const TOO_LARGE: u16 = 413;

fn is_one(code: &str, of: &[&str]) -> bool {
    of.iter().any(|one| code.contains(one))
}

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
    let stays = [&QUEUE[..], &MESSAGE, &ACCESS];
    match stays.iter().any(|of| is_one(code, of)) {
        true => SourceError::permanent(text),
        false => SourceError::transient(text),
    }
}

/// Why a request as a whole was not done.
pub(crate) struct Refusal {
    pub(crate) error: SourceError,
    /// Whether it may be for one of the messages in it.
    pub(crate) is_of_content: bool,
}

impl From<SourceError> for Refusal {
    fn from(error: SourceError) -> Self {
        Self {
            error,
            is_of_content: false,
        }
    }
}

/// The same, of a request that publishes: what concerns the account or the queue passes. A message of more `bytes` than
/// SQS takes goes in a request of its own, and what is in front of a queue may refuse that in words of its own.
pub(crate) fn unpublished<E>(
    doing: &str,
    error: &SdkError<E, HttpResponse>,
    bytes: usize,
) -> Refusal
where
    E: ProvideErrorMetadata,
{
    let failure = failed(doing, error);
    let code = error
        .as_service_error()
        .and_then(ProvideErrorMetadata::code);
    let is_of = |codes| code.is_some_and(|code| is_one(code, codes));
    let status = error
        .raw_response()
        .map(|response| response.status().as_u16());
    let is_refused = status == Some(TOO_LARGE) || is_of_content(error) && !is_of(&QUEUE);
    let stays = is_of(&MESSAGE) || bytes > MAX_MESSAGE && is_refused;
    Refusal {
        error: match stays {
            true => SourceError::permanent(failure.to_string()),
            false => SourceError::transient(failure.to_string()),
        },
        is_of_content: is_refused,
    }
}

/// Whether the service refused what a request says, as one that is too large, for which it has several codes.
pub(crate) fn is_of_content<E, R>(error: &SdkError<E, R>) -> bool
where
    E: ProvideErrorMetadata,
{
    let code = error
        .as_service_error()
        .and_then(ProvideErrorMetadata::code);
    code.is_some_and(|code| !is_one(code, &PASSES) && !is_one(code, &ACCESS))
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
fn refused(doing: &str, entry: &BatchResultErrorEntry) -> SourceError {
    let text = format!(
        "{doing}: {}: {}",
        entry.code(),
        entry.message().unwrap_or_default()
    );
    let passes = is_one(entry.code(), &PASSES) || is_one(entry.code(), &ACCESS);
    match entry.sender_fault() && !passes {
        true => SourceError::permanent(text),
        false => SourceError::transient(text),
    }
}

/// Which of `count` entries of a request are not confirmed, by their places: those that the service refused, and those
/// that its answer does not name.
pub(crate) fn unconfirmed<'a>(
    doing: &str,
    count: usize,
    confirmed: impl Iterator<Item = &'a str>,
    refusals: &[BatchResultErrorEntry],
) -> Vec<(usize, SourceError)> {
    let unnamed = || transient(doing, "the service's answer does not name it");
    let mut failures: BTreeMap<usize, SourceError> =
        (0..count).map(|place| (place, unnamed())).collect();
    for place in confirmed.filter_map(|id| id.parse::<usize>().ok()) {
        failures.remove(&place);
    }
    for entry in refusals {
        if let Ok(place) = entry.id.parse::<usize>()
            && place < count
        {
            failures.insert(place, refused(doing, entry));
        }
    }
    failures.into_iter().collect()
}

/// The same once more, for another message of the same request.
pub(crate) fn again(error: &SourceError) -> SourceError {
    match error.is_transient() {
        true => SourceError::transient(error.to_string()),
        false => SourceError::permanent(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::{error::ErrorMetadata, operation::send_message_batch::SendMessageBatchError};

    use super::*;

    fn answer(code: &str) -> SdkError<SendMessageBatchError, HttpResponse> {
        let metadata = ErrorMetadata::builder().code(code).message("no").build();
        let response = HttpResponse::new(400.try_into().unwrap(), "".into());
        SdkError::service_error(SendMessageBatchError::generic(metadata), response)
    }

    #[test]
    fn only_what_is_wrong_with_a_message_makes_it_a_dead_letter() {
        for (code, of_source, of_message) in [
            ("AWS.SimpleQueueService.NonExistentQueue", false, true),
            ("QueueDoesNotExist", false, true),
            ("InvalidAddress", false, true),
            ("AWS.SimpleQueueService.BatchRequestTooLong", false, false),
            ("InvalidMessageContents", false, false),
            ("AccessDenied", false, true),
            ("ExpiredToken", false, true),
            ("InvalidClientTokenId", false, true),
            ("SignatureDoesNotMatch", false, true),
            ("Throttling", true, true),
        ] {
            let error = answer(code);
            assert_eq!(
                failed("receiving", &error).is_transient(),
                of_source,
                "{code}"
            );
            assert_eq!(
                unpublished("publishing", &error, 1).error.is_transient(),
                of_message,
                "{code}"
            );
        }
    }

    #[test]
    fn a_message_that_no_queue_takes_is_a_dead_letter_whatever_the_refusal_is_called() {
        let large = |error| {
            unpublished("publishing", &error, MAX_MESSAGE + 1)
                .error
                .is_transient()
        };
        assert!(!large(answer("InvalidAction")));
        for code in ["QueueDoesNotExist", "AccessDenied", "Throttling"] {
            assert!(large(answer(code)), "{code}");
        }
        let small = unpublished("publishing", &answer("InvalidAction"), MAX_MESSAGE).error;
        assert!(small.is_transient());
        // A proxy's answer is none of the service's.
        let refused = HttpResponse::new(TOO_LARGE.try_into().unwrap(), "".into());
        assert!(!large(SdkError::response_error("unreadable", refused)));
    }

    #[test]
    fn a_smaller_message_may_be_taken_where_the_content_was_refused() {
        for (code, of_content) in [
            ("InvalidParameterValue", true),
            ("InvalidMessageContents", true),
            ("AccessDenied", false),
            ("InternalFailure", false),
            ("RequestThrottled", false),
        ] {
            assert_eq!(is_of_content(&answer(code)), of_content, "{code}");
        }
    }

    #[test]
    fn what_an_answer_does_not_name_is_not_confirmed() {
        let entry = |id: &str, code: &str| {
            let entry = BatchResultErrorEntry::builder().id(id).code(code);
            entry.sender_fault(true).build().unwrap()
        };
        let refusals = [
            entry("1", "InvalidMessageContents"),
            entry("4", "InternalError"),
            entry("7", "InvalidMessageContents"),
            entry("x", "InvalidMessageContents"),
        ];
        let confirmed = ["0", "3", "6", "y"].into_iter();
        let failures = unconfirmed("publishing", 5, confirmed, &refusals).into_iter();
        let failures = failures.map(|(place, error)| (place, error.is_transient()));
        assert_eq!(
            failures.collect::<Vec<_>>(),
            [(1, false), (2, true), (4, true)]
        );
    }

    #[test]
    fn of_a_batch_only_what_is_wrong_with_a_message_makes_it_a_dead_letter() {
        for (code, of_message) in [
            ("InvalidMessageContents", false),
            ("InternalError", true),
            ("AWS.SimpleQueueService.KmsDisabled", true),
            ("AccessDenied", true),
        ] {
            let entry = BatchResultErrorEntry::builder();
            let entry = entry.id("0").sender_fault(true).code(code).build().unwrap();
            assert_eq!(
                refused("publishing", &entry).is_transient(),
                of_message,
                "{code}"
            );
        }
    }
}
