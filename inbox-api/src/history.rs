//! What became of a message before: attempts that failed, and what operators did.

use std::{
    borrow::Cow,
    fmt,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Edit, OperatorName, Outcome, WorkerName, from_micros, store::cut_text, to_micros};

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
}

/// What an operator did to a message through a handle that [signs](crate::Operate::signed_by).
///
/// Its JSON is what stores keep, as that of [`PastAttempt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastIntervention {
    /// What was done.
    #[serde(rename = "intervention")]
    pub kind: InterventionKind,
    /// When, by the store's clock.
    #[serde(with = "micros")]
    pub at: SystemTime,
    /// Who did it.
    pub by: OperatorName,
}

/// What a [`PastIntervention`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterventionKind {
    /// [`Operate::replay`](crate::Operate::replay) with the payload and headers that were there.
    Replayed,
    /// The same with others.
    Edited,
    /// [`Operate::reschedule`](crate::Operate::reschedule).
    Rescheduled,
    /// [`Operate::discard`](crate::Operate::discard).
    Discarded,
}

impl InterventionKind {
    /// That of a replay with `edit`.
    #[must_use]
    pub fn of_replay(edit: &Edit) -> Self {
        if *edit == Edit::default() {
            Self::Replayed
        } else {
            Self::Edited
        }
    }

    /// The name, as [`Display`](fmt::Display) and JSON show it and as stores keep it: stable for ever.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Edited => "edited",
            Self::Rescheduled => "rescheduled",
            Self::Discarded => "discarded",
        }
    }
}

impl fmt::Display for InterventionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What is kept of what became of a message: see [`Record::history`](crate::Record::history) and
/// [`Record::interventions`](crate::Record::interventions). Each in the order in which it came to be: the times of two that
/// waited for each other may be the other way round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Attempts that failed.
    pub attempts: Vec<PastAttempt>,
    /// What operators did.
    pub interventions: Vec<PastIntervention>,
}

/// One entry, as stores keep it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Attempt(PastAttempt),
    Intervention(PastIntervention),
}

impl History {
    /// The most entries that are kept of one message, of both kinds together: the newest.
    pub const KEPT: usize = 10;

    /// Reads a history as stores keep it: a JSON array of past attempts and interventions, in the
    /// order in which they came to be.
    ///
    /// # Errors
    /// A one-line reason when `json` is anything else. The reason does not repeat the text.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let entries: Vec<Entry> = serde_json::from_str(json).map_err(|e| {
            format!(
                "history is not a JSON array of past attempts and interventions (column {})",
                e.column()
            )
        })?;
        Ok(Self::of(entries))
    }

    fn of(entries: Vec<Entry>) -> Self {
        let mut history = Self::default();
        for entry in entries {
            match entry {
                Entry::Attempt(attempt) => history.attempts.push(attempt),
                Entry::Intervention(done) => history.interventions.push(done),
            }
        }
        history
    }

    /// Appends an attempt, and drops the oldest entries of more than [`KEPT`](Self::KEPT).
    pub fn add_attempt(&mut self, attempt: PastAttempt) {
        self.attempts.push(attempt);
        self.forget();
    }

    /// Appends an intervention, and drops the oldest entries of more than [`KEPT`](Self::KEPT).
    pub fn add_intervention(&mut self, done: PastIntervention) {
        self.interventions.push(done);
        self.forget();
    }

    fn forget(&mut self) {
        while self.attempts.len() + self.interventions.len() > Self::KEPT {
            let attempt = self.attempts.first().map(|attempt| attempt.ended_at);
            let done = self.interventions.first().map(|done| done.at);
            if done.is_none() || attempt.is_some_and(|at| done.is_some_and(|done| at <= done)) {
                self.attempts.remove(0);
            } else {
                self.interventions.remove(0);
            }
        }
    }
}

/// In order of time, as [`from_json`](History::from_json) reads it.
impl Serialize for History {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let attempts = self.attempts.iter().cloned().map(Entry::Attempt);
        let interventions = self.interventions.iter().cloned();
        let mut entries: Vec<Entry> = attempts
            .chain(interventions.map(Entry::Intervention))
            .collect();
        entries.sort_by_key(|entry| match entry {
            Entry::Attempt(attempt) => attempt.ended_at,
            Entry::Intervention(done) => done.at,
        });
        entries.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for History {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Entry>::deserialize(deserializer).map(Self::of)
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
    use super::{Deserialize, Deserializer, Serializer, SystemTime, from_micros, to_micros};

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
        let read = History::from_json(json).unwrap();
        assert_eq!((read.attempts, read.interventions), (vec![past(3)], vec![]));
        for (from, to) in [
            ("retried", "lost"),
            ("\"w\"", "\"\""),
            ("3", "-3"),
            ("]", ""),
        ] {
            let reason = History::from_json(&json.replacen(from, to, 1)).unwrap_err();
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

    fn done(at: i64) -> PastIntervention {
        PastIntervention {
            kind: InterventionKind::Edited,
            at: from_micros(at),
            by: OperatorName::new("a \"b\"").unwrap(),
        }
    }

    #[test]
    fn interventions_stand_among_attempts() {
        let intervention = r#"{"intervention":"edited","at":1700000000250002,"by":"a \"b\""}"#;
        let other = done(1_700_000_000_250_002);
        assert_eq!(serde_json::to_string(&other).unwrap(), intervention);
        let attempt = serde_json::to_string(&past(1)).unwrap();
        let read = History::from_json(&format!("[{attempt},{intervention}]")).unwrap();
        assert_eq!(
            (read.attempts, read.interventions),
            (vec![past(1)], vec![other])
        );
        for kind in [
            InterventionKind::Replayed,
            InterventionKind::Edited,
            InterventionKind::Rescheduled,
            InterventionKind::Discarded,
        ] {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
    }

    #[test]
    fn the_newest_are_kept() {
        let mut history = History::default();
        for attempt in 1..=12 {
            history.add_attempt(past(attempt));
        }
        let numbers = |history: &History| -> Vec<u32> {
            history.attempts.iter().map(|past| past.attempt).collect()
        };
        assert_eq!(numbers(&history), (3..=12).collect::<Vec<u32>>());
        history.add_intervention(done(1_700_000_000_250_002));
        assert_eq!(numbers(&history), (4..=12).collect::<Vec<u32>>());
        for at in 3..=12 {
            history.add_intervention(done(1_700_000_000_250_000 + at));
        }
        assert_eq!(
            (history.attempts.len(), history.interventions.len()),
            (0, 10)
        );
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
