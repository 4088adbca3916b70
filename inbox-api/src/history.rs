//! What became of a message's earlier attempts.

use std::{
    borrow::Cow,
    fmt,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use crate::{Outcome, WorkerName, from_micros, store::cut_text, to_micros};

/// One attempt that ended with an error: retried, dead, or deferred with a reason.
///
/// Its JSON is what stores keep, and people read with the database's own tools: names as here, times in
/// microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAttempt {
    /// Its number since the message was accepted or last replayed: [`Attempts::started`] while it ran.
    /// A deferral takes its start back, so the next attempt has the same number. A number that is
    /// missing is of an attempt that was released, is too old to be kept, or ended without an answer: a
    /// crash, or a lease that ran out.
    ///
    /// [`Attempts::started`]: crate::Attempts::started
    pub attempt: u32,
    /// How often the message had been replayed by then.
    pub replays: u32,
    /// Who held the lease.
    pub worker: WorkerName,
    /// When it was leased, by the store's clock.
    #[serde(with = "micros")]
    pub leased_at: SystemTime,
    /// When it was settled, by the store's clock.
    #[serde(with = "micros")]
    pub ended_at: SystemTime,
    /// How it ended.
    pub end: AttemptEnd,
    /// Why, as [`PastAttempt::error_text`] cuts it.
    pub error: String,
}

impl PastAttempt {
    /// The most that are kept of one message: the newest.
    pub const KEPT: usize = 10;

    /// The longest error text of a past attempt, in bytes.
    pub const MAX_ERROR_BYTES: usize = 1024;

    /// An error text as it is kept here: without NUL, cut to [`MAX_ERROR_BYTES`](Self::MAX_ERROR_BYTES)
    /// at a character boundary.
    #[must_use]
    pub fn error_text(text: &str) -> Cow<'_, str> {
        cut_text(text, Self::MAX_ERROR_BYTES)
    }

    /// From the lease to the settlement, by the store's clock; zero when that clock went back.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.ended_at
            .duration_since(self.leased_at)
            .unwrap_or_default()
    }

    /// Appends it to a message's history, and drops the oldest of more than [`KEPT`](Self::KEPT).
    pub fn append_to(self, history: &mut Vec<Self>) {
        history.push(self);
        history.drain(..history.len().saturating_sub(Self::KEPT));
    }

    /// Reads a history as stores keep it, a JSON array of past attempts.
    ///
    /// # Errors
    /// A one-line reason when `json` is anything else. The reason does not repeat the text.
    pub fn list_from_json(json: &str) -> Result<Vec<Self>, String> {
        serde_json::from_str(json).map_err(|e| {
            format!(
                "history is not a JSON array of past attempts (column {})",
                e.column()
            )
        })
    }
}

/// How a [`PastAttempt`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttemptEnd {
    /// [`Outcome::Retry`]: it failed, and another attempt was to follow.
    Retried,
    /// [`Outcome::Defer`] with an error: put off, and not counted as an attempt.
    Deferred,
    /// [`Outcome::Dead`]: it failed, and none was to follow.
    Dead,
}

impl AttemptEnd {
    /// How an attempt that ends with `outcome` is kept, and the error text to keep, which is not cut
    /// yet. `None` for outcomes that leave no past attempt: processed, released, deferred without an
    /// error.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Option<(Self, &str)> {
        match outcome {
            Outcome::Retry { error, .. } => Some((Self::Retried, error)),
            Outcome::Dead { reason, .. } => Some((Self::Dead, reason)),
            Outcome::Defer { error, .. } => Some((Self::Deferred, error.as_deref()?)),
            Outcome::Processed { .. } | Outcome::Release => None,
        }
    }

    /// The name, as [`Display`](fmt::Display) and JSON show it and as stores keep it: stable for ever.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retried => "retried",
            Self::Deferred => "deferred",
            Self::Dead => "dead",
        }
    }
}

impl fmt::Display for AttemptEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Times as stores keep them.
mod micros {
    use serde::{Deserializer, Serializer};

    use super::{Deserialize, SystemTime, from_micros, to_micros};

    pub(super) fn serialize<S: Serializer>(
        time: &SystemTime,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(to_micros(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<SystemTime, D::Error> {
        i64::deserialize(deserializer).map(from_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AfterDead;

    fn past(attempt: u32) -> PastAttempt {
        PastAttempt {
            attempt,
            replays: 2,
            worker: WorkerName::new("w").unwrap(),
            leased_at: from_micros(1_700_000_000_000_001),
            ended_at: from_micros(1_700_000_000_250_001),
            end: AttemptEnd::Retried,
            error: "a \"quoted\" ä".into(),
        }
    }

    #[test]
    fn past_attempts_read_back_from_what_stores_keep() {
        let json = concat!(
            r#"[{"attempt":3,"replays":2,"worker":"w","leased_at":1700000000000001,"#,
            r#""ended_at":1700000000250001,"end":"retried","error":"a \"quoted\" ä"}]"#,
        );
        assert_eq!(serde_json::to_string(&[past(3)]).unwrap(), json);
        assert_eq!(PastAttempt::list_from_json(json), Ok(vec![past(3)]));
        for (from, to) in [
            ("retried", "lost"),
            ("\"w\"", "\"\""),
            ("3", "-3"),
            ("]", ""),
        ] {
            let reason = PastAttempt::list_from_json(&json.replacen(from, to, 1)).unwrap_err();
            assert!(!reason.contains("quoted"), "{reason}");
        }
    }

    #[test]
    fn names_are_those_of_json() {
        for end in [AttemptEnd::Retried, AttemptEnd::Deferred, AttemptEnd::Dead] {
            let json = serde_json::to_string(&end).unwrap();
            assert_eq!(json, format!("\"{end}\""));
        }
    }

    #[test]
    fn durations_are_zero_when_the_clock_went_back() {
        assert_eq!(past(1).took(), Duration::from_millis(250));
        let back = PastAttempt {
            ended_at: SystemTime::UNIX_EPOCH,
            ..past(1)
        };
        assert_eq!(back.took(), Duration::ZERO);
    }

    #[test]
    fn the_newest_are_kept() {
        let mut history = Vec::new();
        for attempt in 1..=12 {
            past(attempt).append_to(&mut history);
        }
        let numbers: Vec<u32> = history.iter().map(|past| past.attempt).collect();
        assert_eq!(numbers, (3..=12).collect::<Vec<u32>>());
    }

    #[test]
    fn only_errors_leave_a_past_attempt() {
        let defer = |error: Option<&str>| Outcome::Defer {
            after: Duration::ZERO,
            error: error.map(str::to_owned),
        };
        let dead = Outcome::Dead {
            reason: "broken".into(),
            after: AfterDead::Continue,
        };
        assert_eq!(AttemptEnd::of(&dead), Some((AttemptEnd::Dead, "broken")));
        assert_eq!(
            AttemptEnd::of(&defer(Some("away"))),
            Some((AttemptEnd::Deferred, "away"))
        );
        assert_eq!(AttemptEnd::of(&defer(None)), None);
        assert_eq!(AttemptEnd::of(&Outcome::Release), None);
        assert_eq!(AttemptEnd::of(&Outcome::Processed { result: None }), None);
    }

    #[test]
    fn errors_are_cut_at_a_character() {
        let long = format!("x{}", "ä".repeat(1000));
        assert_eq!(PastAttempt::error_text(&long).len(), 1023);
        assert_eq!(PastAttempt::error_text("a\0b"), "a b");
    }
}
