//! Messages that the client does not read.
//!
//! Servers keep headers of any bytes. At one that is not UTF-8, or whose line is no name and value, the client
//! ends the connection, with all that came behind it. When the message comes again, it does so again. So after
//! a connection was lost, what the server waits for is looked at in the stream itself, where headers come as
//! base64. What the client would not read is handed out from there.

use std::{collections::BTreeSet, str::FromStr as _, time::Duration};

use async_nats::{
    HeaderName, StatusCode, Subject,
    jetstream::{
        consumer::{Info, PullConsumer},
        response::Response,
        stream::RawMessage,
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use inbox_source::Envelope;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::{
    envelope::{add_names, position},
    held::Ticket,
    session::{Session, gets},
};

/// How long to look for them. They come again, and the connection is lost again.
const LIMIT: Duration = Duration::from_secs(5);
/// The header of all headers.
const HEADERS: &str = "headers-bin";

/// The end of the reply subject of one that was found: when it was delivered is not known, nor what is behind it.
const TIMELESS: &str = ".0.0";

/// Whether it is one that was found. Given back, it would come as it came before, and end the connection.
pub(crate) fn was_found((_, reply): &Ticket) -> bool {
    reply.ends_with(TIMELESS)
}

/// One of them, as a delivery that the server waits for an answer to.
pub(crate) struct Unreadable {
    pub(crate) ticket: Ticket,
    pub(crate) envelope: Envelope,
    /// Its headers, as base64.
    pub(crate) head: String,
}

#[derive(Serialize)]
struct Question {
    seq: u64,
}

#[derive(Deserialize)]
struct Answer {
    message: RawMessage,
}

/// What was found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) messages: Vec<Unreadable>,
    /// Where there was no time left.
    pub(crate) stopped: Option<u64>,
}

/// Those that the server waits for, without those that are `known`, and at first those from `begin` on. As far
/// as it can be asked: a user may have no right to.
pub(crate) async fn find(
    session: &Session,
    consumer: &PullConsumer,
    known: &BTreeSet<u64>,
    begin: u64,
) -> Found {
    let info = consumer.cached_info();
    let mut found = Found::default();
    if info.num_ack_pending == 0 {
        return found;
    }
    let finished = info.ack_floor.stream_sequence;
    let (first, last) = (finished.saturating_add(1), info.delivered.stream_sequence);
    let begin = begin.max(first);
    let waited_for = (begin..=last).chain(first..begin.min(last.saturating_add(1)));
    let deadline = Instant::now() + LIMIT;
    for seq in waited_for.filter(|seq| !known.contains(seq)) {
        let subject = format!("STREAM.MSG.GET.{}", info.stream_name);
        let question = Question { seq };
        let asking = session.context.request(subject, &question);
        match timeout_at(deadline, asking).await {
            Ok(Ok(Response::Ok(Answer { message }))) if gets(&info.config, &message.subject) => {
                found.messages.extend(read(session, info, message));
            }
            // Another consumer's, or not there any more.
            Ok(Ok(_)) => {}
            failed => {
                let error = failed.ok().and_then(Result::err);
                let error =
                    error.map_or_else(|| "no time left".to_owned(), |error| error.to_string());
                tracing::warn!(
                    stream = info.stream_name,
                    seq,
                    error,
                    "the connection was lost, and messages could not be looked at for headers that the client does not read"
                );
                found.stopped = Some(seq);
                break;
            }
        }
    }
    found
}

/// `None` for one that the client reads.
fn read(session: &Session, info: &Info, message: RawMessage) -> Option<Unreadable> {
    let head = message.headers.unwrap_or_default();
    let bytes = STANDARD.decode(&head).ok()?;
    if bytes.is_empty() || is_read(&bytes) {
        return None;
    }
    let (stream, consumer, sequence) = (&info.stream_name, &info.name, message.sequence);
    let mut envelope = Envelope::new(message.subject, STANDARD.decode(&message.payload).ok()?);
    envelope.position = Some(position(stream, session.created, sequence));
    envelope.time = Some(message.time.into());
    for line in bytes.split(|byte| *byte == b'\n').skip(1) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        if let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            let name = String::from_utf8_lossy(name);
            envelope.add_header(name.trim(), value.trim_ascii());
        }
    }
    envelope.headers.push((HEADERS.to_owned(), head.clone()));
    add_names(&mut envelope);
    tracing::warn!(
        stream,
        sequence,
        "a message has headers that NATS's client does not read; it is no message"
    );
    // The server goes by the number in the stream, and looks at that among the consumer's only to see whether
    // it is one that was delivered.
    let delivered = info.delivered.consumer_sequence;
    let reply = format!("$JS.ACK.{stream}.{consumer}.1.{sequence}.{delivered}{TIMELESS}");
    Some(Unreadable {
        ticket: (sequence, Subject::from(reply)),
        envelope,
        head,
    })
}

/// Whether the client reads headers that stand in a stream so, by its own rules.
fn is_read(head: &[u8]) -> bool {
    let Ok(head) = std::str::from_utf8(head) else {
        return false;
    };
    let mut lines = head.lines();
    let version = lines.next().and_then(|line| line.strip_prefix("NATS/1.0"));
    let status = version.map(|version| version.trim().split(' ').next().unwrap_or_default());
    let has_version =
        status.is_some_and(|status| status.is_empty() || StatusCode::from_str(status).is_ok());
    let mut is_behind = false;
    has_version
        && lines.all(|line| {
            if line.is_empty() {
                is_behind = false;
                return true;
            }
            let continues = is_behind && line.starts_with(char::is_whitespace);
            is_behind = true;
            // It panics at the end of a line within one.
            !line.contains('\r')
                && (continues
                    || line
                        .split_once(':')
                        .is_some_and(|(name, _)| HeaderName::from_str(name).is_ok()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_reads() {
        for head in [
            "NATS/1.0\r\n\r\n",
            "NATS/1.0\r\nname: value\r\nother:\r\n\r\n",
            "NATS/1.0\r\nname: M\u{fc}ller\r\n of two lines\r\n\r\n",
        ] {
            assert!(is_read(head.as_bytes()), "{head:?}");
        }
        for head in [
            &b"NATS/1.0\r\nname: M\xfcller\r\n\r\n"[..],
            b"NATS/1.0\r\na name: value\r\n\r\n",
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.0\r\n name: value\r\n\r\n",
            b"NATS/1.0\r\nname: a\rb\r\n\r\n",
            b"NATS/1.0\r\nname: value\r\n\r\n behind\r\n\r\n",
            b"name: value\r\n\r\n",
        ] {
            assert!(!is_read(head), "{:?}", head.escape_ascii().to_string());
        }
    }
}
