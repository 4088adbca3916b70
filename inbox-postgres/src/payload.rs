//! The column of payloads: bytes, or JSON, which is checked before it is sent.

use inbox_api::{Bytes, Error, Invalid};
use serde::de::IgnoredAny;

use crate::{arguments::Arguments, error::is_refused_value};

/// The type of the payload column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PayloadType {
    /// Any bytes, kept exactly.
    #[default]
    Bytea,
    /// JSON text, kept byte for byte. Payloads that are not JSON are refused.
    Json,
    /// JSON that PostgreSQL takes apart: it can be indexed and searched, but it does **not** come
    /// back byte for byte (white space, order of keys, repeated keys and the notation of numbers
    /// change), so signatures over the payload no longer match. Payloads that are not JSON, and
    /// texts with `\u0000`, are refused.
    Jsonb,
}

impl PayloadType {
    pub(crate) fn sql(self) -> &'static str {
        match self {
            Self::Bytea => "bytea",
            Self::Json => "json",
            Self::Jsonb => "jsonb",
        }
    }

    /// What makes a parameter, which is sent as bytes or as text, a value of the column.
    pub(crate) fn cast(self) -> &'static str {
        match self {
            Self::Bytea => "",
            Self::Json => "::text::json",
            Self::Jsonb => "::text::jsonb",
        }
    }

    /// The same for an array of them.
    pub(crate) fn cast_array(self) -> &'static str {
        match self {
            Self::Bytea => "",
            Self::Json => "::text[]::json[]",
            Self::Jsonb => "::text[]::jsonb[]",
        }
    }

    pub(crate) fn is_json(self) -> bool {
        self != Self::Bytea
    }

    /// Before any I/O: whether the column takes the payload, as far as can be seen from here.
    pub(crate) fn check(self, payload: &[u8]) -> Result<(), Invalid> {
        // As text first: what is passed over is not looked at for being UTF-8.
        let json = || serde_json::from_str::<IgnoredAny>(std::str::from_utf8(payload).ok()?).ok();
        if self.is_json() && json().is_none() {
            return Err(self.not_json());
        }
        Ok(())
    }

    /// The answer to a payload that the column does not take.
    pub(crate) fn not_json(self) -> Invalid {
        Invalid::Malformed {
            what: "payload",
            expected: match self {
                Self::Jsonb => "JSON without \\u0000, since the inbox keeps it as jsonb",
                _ => "JSON, since the inbox keeps it as json",
            },
        }
    }

    /// An operation with one payload that the server does not take as JSON, although it is, fails
    /// as it does for any other payload that is not.
    pub(crate) fn explain(self, error: Error) -> Error {
        if self.is_json() && is_refused_value(&error) {
            return Error::from(self.not_json()).with_source(error);
        }
        error
    }

    pub(crate) fn with_one(self, arguments: Arguments, payload: Option<&Bytes>) -> Arguments {
        if self.is_json() {
            arguments.with(payload.map(as_text))
        } else {
            arguments.with(payload.map(AsRef::<[u8]>::as_ref))
        }
    }

    pub(crate) fn with_each<'a>(
        self,
        arguments: Arguments,
        payloads: impl Iterator<Item = &'a Bytes>,
    ) -> Arguments {
        if self.is_json() {
            arguments.with(payloads.map(as_text).collect::<Vec<_>>())
        } else {
            arguments.with(payloads.map(AsRef::as_ref).collect::<Vec<&[u8]>>())
        }
    }
}

/// Checked to be JSON, which is UTF-8.
fn as_text(payload: &Bytes) -> &str {
    std::str::from_utf8(payload).unwrap_or_default()
}
