//! Frames of the stream protocol: what is said, and what a server answers.

use bytes::Bytes;

use super::wire::{Malformed, Reader, Writer};

/// What a frame is about.
pub(crate) mod key {
    pub(crate) const DECLARE_PUBLISHER: u16 = 1;
    pub(crate) const PUBLISH: u16 = 2;
    pub(crate) const PUBLISH_CONFIRM: u16 = 3;
    pub(crate) const PUBLISH_ERROR: u16 = 4;
    pub(crate) const SUBSCRIBE: u16 = 7;
    pub(crate) const DELIVER: u16 = 8;
    pub(crate) const CREDIT: u16 = 9;
    pub(crate) const STORE_OFFSET: u16 = 10;
    pub(crate) const QUERY_OFFSET: u16 = 11;
    pub(crate) const UNSUBSCRIBE: u16 = 12;
    pub(crate) const CREATE: u16 = 13;
    pub(crate) const METADATA: u16 = 15;
    pub(crate) const METADATA_UPDATE: u16 = 16;
    pub(crate) const PEER_PROPERTIES: u16 = 17;
    pub(crate) const SASL_HANDSHAKE: u16 = 18;
    pub(crate) const SASL_AUTHENTICATE: u16 = 19;
    pub(crate) const TUNE: u16 = 20;
    pub(crate) const OPEN: u16 = 21;
    pub(crate) const CLOSE: u16 = 22;
    pub(crate) const HEARTBEAT: u16 = 23;
    pub(crate) const CONSUMER_UPDATE: u16 = 26;
    pub(crate) const STREAM_STATS: u16 = 28;
}

/// What a server answers.
pub(crate) mod code {
    pub(crate) const OK: u16 = 1;
    pub(crate) const NO_SUCH_STREAM: u16 = 2;
    pub(crate) const STREAM_EXISTS: u16 = 5;
    pub(crate) const STREAM_AWAY: u16 = 6;
    pub(crate) const NO_SUCH_MECHANISM: u16 = 7;
    pub(crate) const WRONG_PASSWORD: u16 = 8;
    pub(crate) const SASL_ERROR: u16 = 9;
    pub(crate) const LOOPBACK_ONLY: u16 = 11;
    pub(crate) const NO_ACCESS_TO_VHOST: u16 = 12;
    pub(crate) const FRAME_TOO_LARGE: u16 = 14;
    pub(crate) const ACCESS_REFUSED: u16 = 16;
    pub(crate) const PRECONDITION_FAILED: u16 = 17;
    pub(crate) const NO_OFFSET: u16 = 19;
}

const ANSWER: u16 = 0x8000;
const VERSION: u16 = 1;

/// A frame with what it says.
pub(crate) fn frame(key: u16, content: Writer) -> Vec<u8> {
    let head = Writer::default().u16(key).u16(VERSION);
    let length = head.0.len().saturating_add(content.0.len());
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    [length.to_be_bytes().as_slice(), &head.0, &content.0].concat()
}

/// A frame that answers one of the server.
pub(crate) fn answer(key: u16, content: Writer) -> Vec<u8> {
    frame(key | ANSWER, content)
}

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Nowhere: it is not active.
    Nowhere,
    First,
    Last,
    Next,
    Offset(u64),
    /// Milliseconds since 1970.
    Time(i64),
}

impl Begin {
    pub(crate) fn write(self, writer: Writer) -> Writer {
        match self {
            Self::Nowhere => writer.u16(0),
            Self::First => writer.u16(1),
            Self::Last => writer.u16(2),
            Self::Next => writer.u16(3),
            Self::Offset(offset) => writer.u16(4).u64(offset),
            Self::Time(time) => writer.u16(5).u64(time.cast_unsigned()),
        }
    }
}

/// What a server says.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A chunk for a subscription.
    Deliver(u8, Bytes),
    /// An answer to what was asked under this number.
    Answer(u32, Bytes),
    Tune {
        frame_max: u32,
    },
    /// These were written.
    Confirmed,
    /// One was not, for this reason.
    NotPublished(u16),
    /// The stream is gone, or has moved.
    Moved,
    /// A subscription is active now, or is not any more. The number is the server's, to be answered.
    ConsumerUpdate(u32, bool),
    /// The server ends the connection, and says why.
    Close(u32, String),
    /// Nothing that matters: a heartbeat, or what was not asked for.
    Nothing,
}

impl Incoming {
    /// Reads a frame without its length.
    pub(crate) fn read(frame: &Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(frame);
        let key = reader.u16()?;
        reader.u16()?;
        let rest = |reader: &Reader<'_>| frame.slice_ref(reader.rest());
        Ok(match key {
            key::DELIVER => {
                let subscription = reader.u8()?;
                Self::Deliver(subscription, rest(&reader))
            }
            key::TUNE => Self::Tune {
                frame_max: reader.u32()?,
            },
            key::PUBLISH_CONFIRM => Self::Confirmed,
            key::PUBLISH_ERROR => {
                // The publisher, how many, and the number of the first.
                reader.take(1 + 4 + 8)?;
                Self::NotPublished(reader.u16()?)
            }
            key::METADATA_UPDATE => Self::Moved,
            key::CONSUMER_UPDATE => {
                let correlation = reader.u32()?;
                reader.u8()?;
                Self::ConsumerUpdate(correlation, reader.u8()? != 0)
            }
            key::CLOSE => {
                let correlation = reader.u32()?;
                let code = reader.u16()?;
                let reason = reader.text().unwrap_or_default();
                Self::Close(correlation, format!("{reason} (code {code})"))
            }
            // The only answer without a number: credit for a subscription that is gone.
            key if key == key::CREDIT | ANSWER => Self::Nothing,
            key if key & ANSWER != 0 => {
                let correlation = reader.u32()?;
                Self::Answer(correlation, rest(&reader))
            }
            _ => Self::Nothing,
        })
    }
}

/// The code at the beginning of most answers.
pub(crate) fn code_of(answer: &[u8]) -> Result<u16, Malformed> {
    Reader::new(answer).u16()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: u16, content: Writer) -> Result<Incoming, Malformed> {
        Incoming::read(&Bytes::from(frame(key, content)).slice(4..))
    }

    #[test]
    fn what_a_server_says_is_told_apart() {
        let content = || Writer::default();
        let said = read(key::QUERY_OFFSET | ANSWER, content().u32(7).u16(1).u64(9));
        let Ok(Incoming::Answer(7, answer)) = said else {
            unreachable!("{said:?}");
        };
        assert_eq!((code_of(&answer), answer.len()), (Ok(code::OK), 10));
        let said = read(key::DELIVER, content().u8(3).u32(1));
        assert!(matches!(said, Ok(Incoming::Deliver(3, chunk)) if chunk.len() == 4));
        let said = read(key::CLOSE, content().u32(1).u16(14).text("too large"));
        assert!(matches!(said, Ok(Incoming::Close(1, text)) if text == "too large (code 14)"));
        let said = read(key::CONSUMER_UPDATE, content().u32(5).u8(1).u8(1));
        assert!(matches!(said, Ok(Incoming::ConsumerUpdate(5, true))));
        let said = read(key::CREDIT | ANSWER, content().u16(4).u8(1));
        assert!(matches!(said, Ok(Incoming::Nothing)));
        assert!(matches!(read(4711, content()), Ok(Incoming::Nothing)));
        assert!(read(key::TUNE, content().u8(1)).is_err());
    }

    #[test]
    fn frames_of_any_bytes_are_read() {
        let corpus = r"\x00\x08\x00\x01\x01\x50\x00\x00\x01
\x80\x0b\x00\x01\x00\x00\x00\x01\x00\x13\x00\x00\x00\x00\x00\x00\x00\x00
\x00\x16\x00\x01\x00\x00\x00\x01\x00\x01\x00\x02OK
\x80\x0f\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01h\x00\x00\x15\xb0
\x00\x04\x00\x01\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x02
";
        hostile::hold(&hostile::Target::new("rabbitmq-frames", corpus, |input| {
            let frame = Bytes::copy_from_slice(input);
            if let Ok(Incoming::Answer(_, answer)) = Incoming::read(&frame) {
                let _ = code_of(&answer);
                let _ = Reader::new(&answer).pairs();
            }
            Ok(())
        }));
    }
}
