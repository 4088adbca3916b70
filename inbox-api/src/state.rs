//! The states of a message.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a message.
///
/// ```text
/// pending → leased → processed
///    ↑        ├────→ dead ──→ discarded
///    └────────┘ retry, deferral, release, or the lease ran out
/// ```
///
/// `Processed`, `Dead` and `Discarded` are final until an operator replays the message or its
/// retention ends. In every state a redelivery is a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waiting to be worked on: now, at a due time, or behind an earlier message of its ordering
    /// key. A message whose lease has run out is pending too.
    Pending,
    /// A worker holds it under a lease that has not run out.
    Leased,
    /// Its handler has completed.
    Processed,
    /// Set aside: its handler gave up, or its attempts are used up.
    Dead,
    /// An operator has decided that it will not be worked on.
    Discarded,
}

impl State {
    /// All states, in the order of a message's life.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Leased,
        Self::Processed,
        Self::Dead,
        Self::Discarded,
    ];

    /// Whether nothing further happens to the message by itself.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Processed | Self::Dead | Self::Discarded)
    }

    /// The name, as [`Display`](fmt::Display) and JSON show it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Leased => "leased",
            Self::Processed => "processed",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
        }
    }

    /// The number that stores keep: stable for ever.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Pending => 0,
            Self::Leased => 1,
            Self::Processed => 2,
            Self::Dead => 3,
            Self::Discarded => 4,
        }
    }

    /// The state of a stored number; `None` means a corrupt row.
    #[must_use]
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|state| i64::from(state.code()) == code)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for State {
    type Err = crate::Invalid;

    fn from_str(text: &str) -> Result<Self, crate::Invalid> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or(crate::Invalid::Malformed {
                what: "state",
                expected: "one of pending, leased, processed, dead, discarded",
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for state in State::ALL {
            assert_eq!(State::from_code(i64::from(state.code())), Some(state));
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert_eq!(State::from_code(5), None);
        assert_eq!(State::from_code(-1), None);
    }
}
