//! Values of the configuration that are written as a text, or otherwise than Rust has them.

use std::{fmt, net::SocketAddr, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};

use crate::{
    args,
    commands::process::{self, TimeLimit},
    http_client,
};

/// A value that is read from a text.
macro_rules! from_text {
    ($(#[$doc:meta])* $name:ident($inner:ty), $read:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $name(pub(crate) $inner);

        impl $name {
            pub(crate) fn new(text: &str) -> Result<Self, String> {
                let read: fn(&str) -> Result<$inner, String> = $read;
                read(text).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let written = $crate::commands::serve::values::Written::deserialize(deserializer)?;
                let read = Self::new(&written.text).map_err(D::Error::custom)?;
                match written.is_number {
                    true => Err(D::Error::custom("expected a text, in quotes")),
                    false => Ok(read),
                }
            }
        }
    };
}
pub(super) use from_text;

/// What stands where a text is expected. A number is one without quotes and mostly without a unit, and what reads the
/// text says best what is missing.
pub(super) struct Written {
    pub(super) text: String,
    pub(super) is_number: bool,
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WrittenVisitor)
    }
}

struct WrittenVisitor;

impl Visitor<'_> for WrittenVisitor {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Written, E> {
        Ok(Written {
            text: text.to_owned(),
            is_number: false,
        })
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Written, E> {
        Ok(Written {
            text: number.to_string(),
            is_number: true,
        })
    }
}

from_text!(
    /// A time such as `30s` or `7d`.
    Time(Duration),
    args::duration
);

from_text!(
    /// An address to listen at.
    Listen(SocketAddr),
    args::address
);

from_text!(
    /// A time that a lease may have.
    Lease(Duration),
    args::lease
);

from_text!(
    /// A time, or `none`.
    Limit(TimeLimit),
    process::time_limit
);

from_text!(
    /// A time, or `forever`.
    Retention(Option<Duration>),
    |text| match text {
        "forever" => Ok(None),
        text => args::duration(text)
            .map(Some)
            .map_err(|error| format!("{error}, or \"forever\"")),
    }
);

from_text!(
    /// A time above 0 for which keys refuse duplicates, or `forever`.
    KeyRetention(Option<Duration>),
    |text| match Retention::new(text) {
        Ok(Retention(Some(Duration::ZERO))) => Err("nothing would refuse duplicates".to_owned()),
        read => read.map(|retention| retention.0),
    }
);

from_text!(
    /// From one full hour of the day to another, in UTC, such as `22-4`.
    Hours((u8, u8)),
    |text| {
        let hours = text.split_once('-').and_then(|(from, to)| {
            Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
        });
        match hours {
            Some((from @ 0..=23, to @ 0..=24)) if (24 + to - from) % 24 != 0 => Ok((from, to)),
            _ => Err("expected two full hours in UTC, such as 22-4".to_owned()),
        }
    }
);

from_text!(
    /// An address to post messages to.
    PostUrl(String),
    |text| match http_client::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected an http or https URL, such as http://localhost:8080/hook".to_owned()),
    }
);

/// What each id begins with.
pub(super) fn id_prefix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    args::id_prefix(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// A program and its arguments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Command(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CommandVisitor).map(Self)
    }
}

const A_COMMAND: &str =
    "a list of a program and its arguments, such as [\"./charge-card\", \"--eur\"]";

struct CommandVisitor;

impl<'de> Visitor<'de> for CommandVisitor {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(A_COMMAND)
    }

    /// Says nothing of the text: arguments may be secrets.
    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Self::Value, E> {
        Err(E::custom(format_args!("expected {A_COMMAND}")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut words = Vec::new();
        while let Some(word) = list.next_element()? {
            words.push(word);
        }
        Ok(words)
    }
}

/// How many handlers run at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Concurrency(pub(crate) u32);

impl<'de> Deserialize<'de> for Concurrency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            number @ 1..=10_000 => Ok(Self(number)),
            _ => Err(D::Error::custom("expected 1 to 10000")),
        }
    }
}
