//! Settling a batch: one list of all outcomes, and an answer for each.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
};

use inbox_api::{
    AfterDead, Bytes, Invalid, Outcome, Settled, Settlement, check_size, duration_micros,
    error_text,
};
use sqlx::Row as _;

use crate::{
    script::{Answers, Script, Secrecy, Statement, hex},
    work::{CHUNK_ROWS, Held, Work, held, pair},
};

/// What a list of outcomes takes at most, in bytes, unless the server takes less.
const CHUNK_BYTES: usize = 8 * 1024 * 1024;

/// One lease and its end.
#[derive(Clone, Copy)]
pub(crate) struct Ending<'a> {
    /// Whose message it is, as far as the lease says so.
    pub(crate) handler: Option<&'a str>,
    pub(crate) held: Held,
    pub(crate) outcome: &'a Outcome,
}

/// What the caller has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Which leases stood.
    Each,
    /// Whether all did; if not, a look at their tokens tells the rest.
    Count,
}

/// Where the answers of some endings stand.
pub(crate) struct Place {
    at: usize,
    /// How many rows that statement changes if all leases stand, and which endings those are. Of
    /// others, the statement lists the leases.
    counted: Option<std::ops::Range<usize>>,
}

/// What a batch comes down to.
pub(crate) struct Settling<'a> {
    /// Each lease once, in order of rows.
    pub(crate) endings: Vec<Ending<'a>>,
    refused: HashMap<usize, Invalid>,
}

/// What was settled.
#[derive(Default)]
pub(crate) struct Applied {
    leases: HashSet<(i64, i64)>,
    /// Whether a message may have become claimable.
    pub(crate) wake: bool,
}

impl Applied {
    /// Of two parts of a batch.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.leases.extend(other.leases);
        self.wake |= other.wake;
        self
    }
}

impl<'a> Settling<'a> {
    /// Of several settlements of one lease the first one counts and the others repeat it.
    pub(crate) fn new(work: &Work, settlements: &'a [Settlement]) -> Self {
        let mut refused = HashMap::new();
        let mut known = HashSet::with_capacity(settlements.len());
        let mut endings = Vec::with_capacity(settlements.len());
        for (place, settlement) in settlements.iter().enumerate() {
            let outcome = &settlement.outcome;
            if let Err(invalid) = work.check_outcome(outcome) {
                refused.insert(place, invalid);
                continue;
            }
            let held = held(&settlement.lease);
            if known.insert((held.seq, held.token)) {
                let handler = Some(settlement.lease.key.handler.as_str());
                endings.push(Ending {
                    handler,
                    held,
                    outcome,
                });
            }
        }
        endings.sort_unstable_by_key(|ending| (ending.held.seq, ending.held.token));
        Self { endings, refused }
    }

    /// Whether any of it is to be kept from a log of statements.
    pub(crate) fn has_results(&self) -> bool {
        let results =
            |ending: &Ending<'_>| matches!(ending.outcome, Outcome::Processed { result: Some(_) });
        self.endings.iter().any(results)
    }

    /// The leases that were not there to be settled.
    pub(crate) fn unclear(&self, applied: &Applied) -> Vec<i64> {
        let mut seqs: Vec<_> = self
            .endings
            .iter()
            .map(|ending| ending.held)
            .filter(|held| !applied.leases.contains(&(held.seq, held.token)))
            .map(|held| held.seq)
            .collect();
        seqs.dedup();
        seqs
    }

    /// The answers. `newest` are tokens of leases that were settled before.
    pub(crate) fn answers(
        mut self,
        settlements: &[Settlement],
        applied: &Applied,
        newest: &HashMap<i64, i64>,
    ) -> Vec<Settled> {
        settlements
            .iter()
            .enumerate()
            .map(|(place, settlement)| {
                let held = held(&settlement.lease);
                if let Some(invalid) = self.refused.remove(&place) {
                    Settled::Refused(invalid)
                } else if applied.leases.contains(&(held.seq, held.token))
                    || newest.get(&held.seq) == Some(&held.token)
                {
                    Settled::Done
                } else {
                    Settled::LeaseLost
                }
            })
            .collect()
    }
}

impl Work {
    fn check_outcome(&self, outcome: &Outcome) -> Result<(), Invalid> {
        match outcome {
            Outcome::Processed {
                result: Some(result),
            } => self.check_result(result),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_result(&self, result: &Bytes) -> Result<(), Invalid> {
        check_size("result", result.len(), self.payload_limit())
    }

    /// Whether a result fits into a list, in base 64, which takes four bytes for three.
    fn fits_into_list(&self, result: &Bytes) -> bool {
        result.len() <= self.most_in_packet() / 4 * 3
    }

    /// Adds the endings to `script`. Answers where it says which leases stood.
    pub(crate) fn settle(
        &self,
        script: &mut Script,
        endings: &[Ending<'_>],
        secrecy: Secrecy,
        detail: Detail,
    ) -> Vec<Place> {
        let most = CHUNK_BYTES.min(self.most_in_packet());
        let most_rows = CHUNK_ROWS.min(self.most_names());
        let mut places = Vec::new();
        let mut start = 0;
        let mut list = String::new();
        for (n, ending) in endings.iter().enumerate() {
            let row = row(ending, |result| self.fits_into_list(result));
            if n - start >= most_rows || (n > start && list.len() + row.len() > most) {
                places.push(self.settle_range(script, endings, start..n, &list, secrecy, detail));
                list.clear();
                start = n;
            }
            list.push_str(if list.is_empty() { "" } else { "," });
            list.push_str(&row);
        }
        if start < endings.len() {
            let rest = start..endings.len();
            places.push(self.settle_range(script, endings, rest, &list, secrecy, detail));
        }
        places
    }

    fn settle_range(
        &self,
        script: &mut Script,
        endings: &[Ending<'_>],
        range: std::ops::Range<usize>,
        list: &str,
        secrecy: Secrecy,
        detail: Detail,
    ) -> Place {
        let chunk = endings.get(range.clone()).unwrap_or_default();
        if detail == Detail::Count
            && !self.options.drop_processed_payloads
            && let Some(handler) = simple(chunk)
        {
            Place {
                at: self.settle_simple(script, chunk, handler),
                counted: Some(range),
            }
        } else {
            Place {
                at: self.settle_chunk(script, chunk, list, secrecy),
                counted: None,
            }
        }
    }

    /// The common case, in fewer and narrower steps: everything is processed, without results
    /// and ordering keys, for one handler. The rows are locked as they are read.
    fn settle_simple(&self, script: &mut Script, endings: &[Ending<'_>], handler: &str) -> usize {
        let (processed, gone) = (&self.sql.simple_processed, &self.sql.simple_gone);
        let (mut finish, mut gone) = if let [ending] = endings {
            let of = |text: &String| {
                let mut statement = Statement::new(text.clone());
                statement.push(" AND w.seq = ").number(ending.held.seq);
                statement.push(" AND w.token = ").number(ending.held.token);
                statement
            };
            (of(&processed.one), of(&gone.one))
        } else {
            let held = endings.iter().map(|e| (e.held.seq, e.held.token));
            script.add(Statement::pairs("@inbox_held", held));
            let of = |text: &String| Statement::new(text.clone());
            (of(&processed.all), of(&gone.all))
        };
        finish.push(" AND w.handler = ").bytes(handler.as_bytes());
        finish.push(" FOR UPDATE /*!80000 OF w */");
        script.add(finish);
        let at = script.changed();
        let mut count =
            Statement::new(self.sql.expand(
                "INSERT INTO {tally} (handler, backlog, processed, dead, discarded) VALUES (",
            ));
        count
            .bytes(handler.as_bytes())
            .push(", -@inbox_count, @inbox_count, 0, 0)");
        script.add(count);
        gone.push(" AND w.handler = ").bytes(handler.as_bytes());
        script.add(gone);
        at
    }

    fn settle_chunk(
        &self,
        script: &mut Script,
        endings: &[Ending<'_>],
        list: &str,
        secrecy: Secrecy,
    ) -> usize {
        let has = |wanted: fn(&Outcome) -> bool| endings.iter().any(|e| wanted(e.outcome));
        let results = has(|outcome| matches!(outcome, Outcome::Processed { result: Some(_) }));
        let processed = has(|outcome| matches!(outcome, Outcome::Processed { .. }));
        let dead = has(|outcome| matches!(outcome, Outcome::Dead { .. }));
        let back = has(|outcome| matches!(outcome, Outcome::Retry { .. } | Outcome::Release));
        let ordered = endings.iter().any(|ending| ending.held.ordered);

        let mut set = Statement::new("SET @inbox_settled = ");
        if results {
            script.forget_lists();
            let list = Bytes::from(format!("[{list}]"));
            set.push("CONVERT(")
                .secret(&list, secrecy)
                .push(" USING utf8mb4)");
        } else {
            set.push("'[").push(list).push("]'");
        }
        script.add(set);
        let sql = &self.sql;
        if ordered {
            script.all(if script.is_within() {
                &sql.settle_keys_now
            } else {
                &sql.settle_keys
            });
            script.all(&sql.lock_keys);
        }
        let at = script.all(&sql.settle_lock);
        if processed || dead {
            script.all(&sql.settle_final);
        }
        if processed {
            script.all(&sql.settle_processed);
            self.add_large_results(script, endings, secrecy);
            if self.options.drop_processed_payloads {
                script.all(&sql.settle_drop);
            }
        }
        if dead {
            script.all(&sql.settle_dead);
        }
        if processed || dead {
            if ordered {
                script.all(&sql.settle_open);
            }
            script.all(&sql.settle_gone);
        }
        if back {
            script.all(&sql.settle_back);
        }
        if ordered {
            script.all(&sql.rehead);
        }
        at
    }

    /// Adds the results that do not fit into a list to the messages that were processed just now.
    fn add_large_results(&self, script: &mut Script, endings: &[Ending<'_>], secrecy: Secrecy) {
        for ending in endings {
            if let Outcome::Processed {
                result: Some(result),
            } = ending.outcome
                && !self.fits_into_list(result)
            {
                let mut add = Statement::new(self.sql.expand("UPDATE {done} SET result = "));
                add.secret(result, secrecy);
                add.push(" WHERE result IS NULL AND finished_at = @inbox_now AND seq = ");
                add.number(ending.held.seq).push(" AND token = ");
                add.number(ending.held.token);
                script.add(add);
            }
        }
    }

    /// Which leases stood.
    pub(crate) fn applied(
        &self,
        answers: &Answers,
        places: &[Place],
        endings: &[Ending<'_>],
    ) -> sqlx::Result<Applied> {
        let mut standing = HashSet::with_capacity(endings.len());
        for place in places {
            if let Some(range) = &place.counted {
                if answers.number(place.at)? == range.len() as i64 {
                    let all = endings.get(range.clone()).unwrap_or_default();
                    standing.extend(all.iter().map(|e| (e.held.seq, e.held.token)));
                }
                continue;
            }
            for row in answers.rows(place.at) {
                let queue: i64 = row.try_get_unchecked(2)?;
                if queue == 1 {
                    standing.insert(pair(row)?);
                }
            }
        }
        let mut applied = Applied {
            leases: HashSet::with_capacity(endings.len()),
            wake: false,
        };
        for ending in endings {
            let lease = (ending.held.seq, ending.held.token);
            if standing.contains(&lease) {
                applied.leases.insert(lease);
                applied.wake |= ending.held.ordered || due_at_once(ending.outcome);
            }
        }
        Ok(applied)
    }
}

/// The handler of endings that are all processed without results and ordering keys.
fn simple<'a>(endings: &[Ending<'a>]) -> Option<&'a str> {
    let handler = endings.first()?.handler?;
    let all = endings.iter().all(|ending| {
        ending.handler == Some(handler)
            && !ending.held.ordered
            && *ending.outcome == Outcome::Processed { result: None }
    });
    all.then_some(handler)
}

/// Whether an outcome makes the message itself claimable at once.
fn due_at_once(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Release => true,
        Outcome::Retry { after, .. } => after.is_zero(),
        Outcome::Processed { .. } | Outcome::Dead { .. } => false,
    }
}

/// Row, token, outcome (0 pending again, 2 processed, 3 dead), whether it is a retry, after how
/// long, whether it blocks, error in hexadecimal, result in base 64 if it `fits`; what does not apply
/// is left out at the end.
fn row(ending: &Ending<'_>, fits: impl Fn(&Bytes) -> bool) -> String {
    let mut row = String::with_capacity(48);
    let Held { seq, token, .. } = ending.held;
    // Writing to a String does not fail.
    let _ = write!(row, "[{seq},{token},");
    match ending.outcome {
        Outcome::Processed {
            result: Some(result),
        } if fits(result) => {
            row.push_str("2,0,0,0,\"\",\"");
            base64(result, &mut row);
            row.push('"');
        }
        Outcome::Processed { .. } => row.push('2'),
        Outcome::Retry { after, error } => {
            let _ = write!(row, "0,1,{},0,\"", duration_micros(*after));
            hex(error_text(error).as_bytes(), &mut row);
            row.push('"');
        }
        Outcome::Dead { reason, after } => {
            let blocks = u8::from(*after == AfterDead::Block);
            let _ = write!(row, "3,0,0,{blocks},\"");
            hex(error_text(reason).as_bytes(), &mut row);
            row.push('"');
        }
        Outcome::Release => row.push_str("0,0"),
    }
    row.push(']');
    row
}

fn base64(bytes: &[u8], into: &mut String) {
    use base64::Engine as _;

    base64::engine::general_purpose::STANDARD.encode_string(bytes, into);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rows_hold_nothing_that_needs_escaping() {
        let held = Held {
            seq: 7,
            token: 9,
            ordered: false,
        };
        for (outcome, expected) in [
            (Outcome::Processed { result: None }, "[7,9,2]"),
            (
                Outcome::Processed {
                    result: Some(Bytes::from_static(b"'\"\\")),
                },
                "[7,9,2,0,0,0,\"\",\"JyJc\"]",
            ),
            (
                Outcome::Retry {
                    after: Duration::from_micros(5),
                    error: "'".into(),
                },
                "[7,9,0,1,5,0,\"27\"]",
            ),
            (
                Outcome::Dead {
                    reason: "\"".into(),
                    after: AfterDead::Block,
                },
                "[7,9,3,0,0,1,\"22\"]",
            ),
            (Outcome::Release, "[7,9,0,0]"),
        ] {
            let outcome = &outcome;
            assert_eq!(
                row(
                    &Ending {
                        handler: None,
                        held,
                        outcome
                    },
                    |_| true
                ),
                expected
            );
        }
    }
}
