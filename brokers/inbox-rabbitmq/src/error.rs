//! What errors of the client and answers of the server mean. Their texts name no credentials.

use inbox_source::{SourceError, network};
use lapin::{Error, ErrorKind};

pub(crate) const CONNECTION_FORCED: u16 = 320;
pub(crate) const ACCESS_REFUSED: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const PRECONDITION_FAILED: u16 = 406;
pub(crate) const NOT_ALLOWED: u16 = 530;

/// The argument of a consumer that says which of several gets a message first.
pub(crate) const PRIORITY: &str = "x-priority";

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

/// A refused user or password, and a virtual host that is not there or not for this user, wait for a change;
/// all else may pass. So does a limit of connections, and a virtual host that is down, for which the server has
/// the same code.
pub(crate) fn connecting(error: &Error) -> SourceError {
    match answer(error) {
        Some((ACCESS_REFUSED, text)) => SourceError::permanent(format!("connecting: {text}")),
        Some((NOT_ALLOWED, text)) if is_refusal(text) => {
            SourceError::permanent(format!("connecting: {text}"))
        }
        _ => transient(
            "connecting",
            network::reason(error).unwrap_or_else(|| error.to_string()),
        ),
    }
}

/// Of what is not allowed: a virtual host that is not there, or not for this user. Behind other reasons there
/// is one more: "connection limit (100) is reached", "vhost 'shop' is down".
fn is_refusal(text: &str) -> bool {
    let is_refused = text.contains("refused for user")
        && (text.ends_with('\'') || text.contains(" by backend "));
    is_refused || text.ends_with("not found")
}

/// Whether a channel or a connection has ended or is ending, by whomever, so that it cannot be closed.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_)
    )
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

/// A queue that this user may not read waits for a change, and so does a stream, by the one argument that it does not take.
/// One that another consumer has for itself ("in exclusive use") has the code of the first, and may pass, as all else.
pub(crate) fn consuming(error: &Error) -> SourceError {
    let doing = "consuming";
    match answer(error) {
        Some((PRECONDITION_FAILED, text)) if text.contains(PRIORITY) => {
            SourceError::permanent(format!(
                "{doing}: {text}; it is a stream, which is read by rabbitmq-stream:// (RabbitMqStreamSource)"
            ))
        }
        Some((ACCESS_REFUSED, text)) if text.contains("refused for user") => {
            SourceError::permanent(format!("{doing}: {text}"))
        }
        _ => transient(doing, error),
    }
}

#[cfg(test)]
mod tests {
    use lapin::{
        ChannelState, ConnectionState,
        protocol::{AMQPError, AMQPSoftError},
    };

    use super::*;

    #[test]
    fn what_is_not_allowed_may_pass() {
        for text in [
            "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (1) is reached",
            "NOT_ALLOWED - access to vhost '/' refused for user 'guest': vhost '/' is down",
            "NOT_ALLOWED - connection refused for user 'guest': user connection limit (1) is reached",
        ] {
            assert!(!is_refusal(text), "{text}");
        }
        for text in [
            "NOT_ALLOWED - vhost limit is down not found",
            "NOT_ALLOWED - access to vhost '/' refused for user 'ann'",
        ] {
            assert!(is_refusal(text), "{text}");
        }
    }

    #[test]
    fn a_queue_that_another_has_for_itself_is_waited_for() {
        let of = |text: &str| {
            let error = AMQPError::new(AMQPSoftError::ACCESSREFUSED.into(), text.into());
            consuming(&ErrorKind::ProtocolError(error).into())
        };
        for text in [
            "ACCESS_REFUSED - access to queue 'orders' in vhost '/' refused for user 'ann'",
            "ACCESS_REFUSED - read access to queue 'orders' in vhost '/' refused for user 'ann'",
        ] {
            assert!(!of(text).is_transient(), "{text}");
        }
        let taken = of("ACCESS_REFUSED - queue 'orders' in vhost '/' in exclusive use");
        assert!(taken.is_transient(), "{taken}");
    }

    #[test]
    fn what_is_closing_cannot_be_closed() {
        let channel = ErrorKind::InvalidChannelState(ChannelState::Closing, "channel.close");
        assert!(is_gone(&channel.into()));
        let connection = ErrorKind::InvalidConnectionState(ConnectionState::Closed);
        assert!(is_gone(&connection.into()));
        assert!(!is_gone(&ErrorKind::ChannelsLimitReached.into()));
    }
}
