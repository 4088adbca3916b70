//! Settling a batch: one list of all outcomes, and an answer for each.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    ops::Range,
    time::Duration,
};

use inbox_api::{
    AfterDead, Bytes, Effect, Error, ErrorKind, Invalid, Outcome, PastAttempt, Result, Settled,
    Settlement, duration_micros, error_text,
};
use sqlx::Row as _;

use crate::{
    compact_counters::compact_sometimes,
    connection::Connection,
    context::{CHUNK_ROWS, Context},
    error::{failed, is_lock_timeout, may_lack_schema},
    list_variables::{add_for_seqs, most_names, set_pairs},
    multi_statement::{Access, Answers, Script, Sets},
    rows::{LeasedRow, pair},
    settle_one,
    statement::{Secrecy, Statement, hex},
    transaction_step::Step,
};

/// What a list of outcomes takes at most, in bytes, unless the server takes less.
const CHUNK_BYTES: usize = 8 * 1024 * 1024;
/// So long a batch waits for each lock of another transaction before the rest of it goes past. The
/// servers count in whole seconds.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) async fn settle(
    connection: Connection<'_>,
    settlements: &[Settlement],
) -> Result<Vec<Settled>> {
    let context = connection.context;
    let settling = Settling::new(context, settlements);
    let applied = match settling.endings.as_slice() {
        [ending] if settle_one::is_simple(context, ending) => {
            settle_one::settle(connection, ending).await?
        }
        endings => settle_all(connection, endings).await?,
    };
    let unclear = settling.unclear(&applied);
    let newest = if unclear.is_empty() {
        HashMap::new()
    } else {
        look_for_newest(connection, &unclear)
            .await
            // The others are settled by now.
            .map_err(|error| error.with_effect(Effect::Unknown))?
    };
    compact_sometimes(connection).await;
    Ok(settling.answers(settlements, &applied, &newest))
}

/// The last script of a step that settles these leases, at least one, in a caller's transaction.
pub(crate) async fn settle_in(
    step: Step<'_>,
    endings: &[Ending<'_>],
    secrecy: Secrecy,
) -> Result<Applied> {
    let context = step.context();
    if let [ending] = endings
        && settle_one::is_simple(context, ending)
    {
        return settle_one::settle_in(step, ending, secrecy).await;
    }
    let mut script = step.script();
    let places = add_settle(context, &mut script, endings, secrecy, Detail::Each);
    let answers = step.end(script).await?;
    read_applied(&answers, &places, endings).map_err(failed)
}

/// Settles these leases. A row that another transaction holds for longer than a moment must not
/// keep the rest of a batch waiting, whose leases run out: it is settled behind that.
async fn settle_all(connection: Connection<'_>, endings: &[Ending<'_>]) -> Result<Applied> {
    let inner = connection.inner;
    if endings.len() < 2 || inner.pool.lock_wait() <= PATIENCE {
        return settle_patiently(connection, endings).await;
    }
    let (context, secrecy) = (connection.context, connection.secrecy());
    let sets = Sets {
        lock_wait: Some(PATIENCE.as_secs()),
        ..inner.sets()
    };
    let mut script = Script::transaction(&context.now(), Access::Write, sets);
    let places = add_settle(context, &mut script, endings, secrecy, Detail::Count);
    script.commit();
    match connection.run_once(Access::Write, &script).await {
        Ok(answers) => return apply(connection, &answers, &places, endings),
        Err(error) if is_lock_timeout(&error) => {}
        Err(error) if error.kind() == ErrorKind::Conflict || may_lack_schema(&error) => {
            return settle_patiently(connection, endings).await;
        }
        Err(error) => return Err(error),
    }
    let free = find_free(connection, endings).await?;
    let (free, held): (Vec<_>, Vec<_>) = endings
        .iter()
        .partition(|ending| free.contains(&ending.row.seq));
    let first = settle_patiently(connection, &free).await?;
    let second = settle_patiently(connection, &held).await;
    let unknown = |error: Error| match free.is_empty() {
        true => error,
        false => error.with_effect(Effect::Unknown),
    };
    Ok(first.and(second.map_err(unknown)?))
}

/// The same, with a wait for whatever is held.
async fn settle_patiently(connection: Connection<'_>, endings: &[Ending<'_>]) -> Result<Applied> {
    if endings.is_empty() {
        return Ok(Applied::default());
    }
    let (context, secrecy) = (connection.context, connection.secrecy());
    let mut script = connection.script(Access::Write);
    let places = add_settle(context, &mut script, endings, secrecy, Detail::Count);
    let answers = connection.run(Access::Write, script).await?;
    apply(connection, &answers, &places, endings)
}

fn apply(
    connection: Connection<'_>,
    answers: &Answers,
    places: &[AnswerPlace],
    endings: &[Ending<'_>],
) -> Result<Applied> {
    let applied = read_applied(answers, places, endings).map_err(failed)?;
    if applied.wake {
        connection.inner.wake();
    }
    Ok(applied)
}

/// The rows that no other transaction holds, nor their ordering keys.
async fn find_free(connection: Connection<'_>, endings: &[Ending<'_>]) -> Result<HashSet<i64>> {
    let context = connection.context;
    let seqs: Vec<_> = endings.iter().map(|ending| ending.row.seq).collect();
    let mut script = connection.script(Access::Write);
    let places = add_for_seqs(context, &mut script, &seqs, &context.sql.settle_free);
    let answers = connection.run(Access::Write, script).await?;
    let read = |place: usize| -> sqlx::Result<HashSet<i64>> {
        let rows = answers.rows(place).iter();
        rows.map(|row| row.try_get_unchecked(0)).collect()
    };
    let mut free = HashSet::with_capacity(seqs.len());
    for place in places {
        let rows = read(place).map_err(failed)?;
        let keys = read(place + 1).map_err(failed)?;
        let is_free = |ending: &&Ending<'_>| {
            let row = ending.row;
            rows.contains(&row.seq) && (!row.ordered || keys.contains(&row.seq))
        };
        free.extend(endings.iter().filter(is_free).map(|ending| ending.row.seq));
    }
    Ok(free)
}

/// Rare: the newest tokens of these messages, which tell a repetition from a lost lease.
async fn look_for_newest(connection: Connection<'_>, seqs: &[i64]) -> Result<HashMap<i64, i64>> {
    let sql = &connection.context.sql;
    let mut script = connection.script(Access::Write);
    let places = add_for_seqs(connection.context, &mut script, seqs, &sql.settle_newest);
    script.all(&sql.rest_on_others);
    let answers = connection.run(Access::Write, script).await?;
    newest_tokens(&answers, &places).map_err(failed)
}

/// The newest tokens of `settle_newest.sql`.
fn newest_tokens(answers: &Answers, places: &[usize]) -> sqlx::Result<HashMap<i64, i64>> {
    let mut newest = HashMap::new();
    for row in places.iter().flat_map(|place| answers.rows(*place)) {
        let token: Option<i64> = row.try_get_unchecked(1)?;
        if let Some(token) = token {
            newest.insert(row.try_get_unchecked(0)?, token);
        }
    }
    Ok(newest)
}

/// One lease and its end.
#[derive(Clone, Copy)]
pub(crate) struct Ending<'a> {
    /// Whose message it is, as far as the lease says so.
    pub(crate) handler: Option<&'a str>,
    pub(crate) row: LeasedRow,
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
pub(crate) struct AnswerPlace {
    at: usize,
    /// How many rows that statement changes if all leases stand, and which endings those are. Of
    /// others, the statement lists the leases.
    counted: Option<Range<usize>>,
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
    pub(crate) leases: HashSet<(i64, i64)>,
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
    pub(crate) fn new(context: &Context, settlements: &'a [Settlement]) -> Self {
        let mut refused = HashMap::new();
        let mut known = HashSet::with_capacity(settlements.len());
        let mut endings = Vec::with_capacity(settlements.len());
        for (place, settlement) in settlements.iter().enumerate() {
            let outcome = &settlement.outcome;
            if let Err(invalid) = check_outcome(context, outcome) {
                refused.insert(place, invalid);
                continue;
            }
            let row = LeasedRow::of(&settlement.lease);
            if known.insert(row.seq_and_token()) {
                let handler = Some(settlement.lease.key.handler.as_str());
                endings.push(Ending {
                    handler,
                    row,
                    outcome,
                });
            }
        }
        endings.sort_unstable_by_key(|ending| ending.row.seq_and_token());
        Self { endings, refused }
    }

    /// Whether there is one that the store refuses to keep.
    pub(crate) fn refuses_any(&self) -> bool {
        !self.refused.is_empty()
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
            .map(|ending| ending.row)
            .filter(|row| !applied.leases.contains(&row.seq_and_token()))
            .map(|row| row.seq)
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
                let row = LeasedRow::of(&settlement.lease);
                if let Some(invalid) = self.refused.remove(&place) {
                    Settled::Refused(invalid)
                } else if applied.leases.contains(&row.seq_and_token())
                    || newest.get(&row.seq) == Some(&row.token)
                {
                    Settled::Done
                } else {
                    Settled::LeaseLost
                }
            })
            .collect()
    }
}

fn check_outcome(context: &Context, outcome: &Outcome) -> Result<(), Invalid> {
    match outcome {
        Outcome::Processed {
            result: Some(result),
        } => context.check_result(result),
        _ => Ok(()),
    }
}

/// Whether a result fits into a list, in base 64, which takes four bytes for three.
fn fits_into_list(context: &Context, result: &Bytes) -> bool {
    result.len() <= context.most_in_packet() / 4 * 3
}

/// Adds the endings to `script`. Answers where it says which leases stood.
pub(crate) fn add_settle(
    context: &Context,
    script: &mut Script,
    endings: &[Ending<'_>],
    secrecy: Secrecy,
    detail: Detail,
) -> Vec<AnswerPlace> {
    let most = CHUNK_BYTES.min(context.most_in_packet());
    let most_rows = CHUNK_ROWS.min(most_names(context));
    let mut places = Vec::new();
    let mut start = 0;
    let mut list = String::new();
    for (n, ending) in endings.iter().enumerate() {
        let row = list_row(ending, |result| fits_into_list(context, result));
        if n - start >= most_rows || (n > start && list.len() + row.len() > most) {
            let range = start..n;
            let place = add_range(context, script, endings, range, &list, secrecy, detail);
            places.push(place);
            list.clear();
            start = n;
        }
        list.push_str(if list.is_empty() { "" } else { "," });
        list.push_str(&row);
    }
    if start < endings.len() {
        let rest = start..endings.len();
        let place = add_range(context, script, endings, rest, &list, secrecy, detail);
        places.push(place);
    }
    places
}

fn add_range(
    context: &Context,
    script: &mut Script,
    endings: &[Ending<'_>],
    range: Range<usize>,
    list: &str,
    secrecy: Secrecy,
    detail: Detail,
) -> AnswerPlace {
    let chunk = endings.get(range.clone()).unwrap_or_default();
    if detail == Detail::Count
        && !context.options.drop_processed_payloads
        && let Some(handler) = simple_handler(chunk)
    {
        AnswerPlace {
            at: add_simple(context, script, chunk, handler),
            counted: Some(range),
        }
    } else {
        AnswerPlace {
            at: add_chunk(context, script, chunk, list, secrecy),
            counted: None,
        }
    }
}

/// The common case, in fewer and narrower steps: everything is processed, without results
/// and ordering keys, for one handler. The rows are locked as they are read.
fn add_simple(
    context: &Context,
    script: &mut Script,
    endings: &[Ending<'_>],
    handler: &str,
) -> usize {
    let sql = &context.sql;
    let values = [("handler", Statement::of_bytes(handler.as_bytes()))];
    let rows = endings.iter().map(|ending| ending.row.seq_and_token());
    script.add(set_pairs("@inbox_held", rows));
    script.fill(&sql.settle_simple, &values);
    let at = script.changed();
    script.fill(&sql.settle_simple_count, &values);
    script.fill(&sql.settle_simple_delete, &values);
    at
}

fn add_chunk(
    context: &Context,
    script: &mut Script,
    endings: &[Ending<'_>],
    list: &str,
    secrecy: Secrecy,
) -> usize {
    let has = |wanted: fn(&Outcome) -> bool| endings.iter().any(|e| wanted(e.outcome));
    let results = has(|outcome| matches!(outcome, Outcome::Processed { result: Some(_) }));
    let processed = has(|outcome| matches!(outcome, Outcome::Processed { .. }));
    let dead = has(|outcome| matches!(outcome, Outcome::Dead { .. }));
    let back = has(|outcome| !matches!(outcome, Outcome::Processed { .. } | Outcome::Dead { .. }));
    let ordered = endings.iter().any(|ending| ending.row.ordered);
    let in_run = endings.iter().any(|ending| ending.row.in_run);

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
    let sql = &context.sql;
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
        script.all(&sql.settle_count);
    }
    if processed {
        script.all(&sql.settle_processed);
        add_large_results(context, script, endings, secrecy);
        if context.options.drop_processed_payloads {
            script.all(&sql.settle_drop);
        }
    }
    if dead {
        script.all(&sql.settle_dead);
    }
    if in_run {
        script.all(&sql.settle_leave_run);
    }
    if processed || dead {
        if ordered {
            script.all(&sql.settle_close);
        }
        script.all(&sql.settle_delete);
    }
    if back {
        script.all(&sql.settle_back);
    }
    if in_run {
        script.all(&sql.next_of_run);
    }
    if ordered {
        script.all(&sql.promote_key_heads);
    }
    at
}

/// Adds the results that do not fit into a list to the messages that were processed just now.
fn add_large_results(
    context: &Context,
    script: &mut Script,
    endings: &[Ending<'_>],
    secrecy: Secrecy,
) {
    for ending in endings {
        if let Outcome::Processed {
            result: Some(result),
        } = ending.outcome
            && !fits_into_list(context, result)
        {
            let values = [
                ("result", Statement::of_secret(result, secrecy)),
                ("seq", Statement::of_number(ending.row.seq)),
                ("token", Statement::of_number(ending.row.token)),
            ];
            script.fill(&context.sql.settle_result, &values);
        }
    }
}

/// Which leases stood.
pub(crate) fn read_applied(
    answers: &Answers,
    places: &[AnswerPlace],
    endings: &[Ending<'_>],
) -> sqlx::Result<Applied> {
    let mut standing = HashSet::with_capacity(endings.len());
    for place in places {
        if let Some(range) = &place.counted {
            if answers.number(place.at)? == range.len() as i64 {
                let all = endings.get(range.clone()).unwrap_or_default();
                standing.extend(all.iter().map(|ending| ending.row.seq_and_token()));
            }
            continue;
        }
        for row in answers.rows(place.at) {
            let queue: i64 = row.try_get_unchecked(2)?;
            if is_leased(queue) {
                standing.insert(pair(row)?);
            }
        }
    }
    let mut applied = Applied {
        leases: HashSet::with_capacity(endings.len()),
        wake: false,
    };
    for ending in endings {
        let lease = ending.row.seq_and_token();
        if standing.contains(&lease) {
            applied.leases.insert(lease);
            applied.wake |= ending.row.ordered || is_due_at_once(ending.outcome);
        }
    }
    Ok(applied)
}

/// Whether a row in this queue of the work is leased.
fn is_leased(queue: i64) -> bool {
    matches!(queue, 1 | 3)
}

/// The handler of endings that are all processed without results and ordering keys.
fn simple_handler<'a>(endings: &[Ending<'a>]) -> Option<&'a str> {
    let handler = endings.first()?.handler?;
    let all = endings.iter().all(|ending| {
        ending.handler == Some(handler)
            && !ending.row.ordered
            && *ending.outcome == Outcome::Processed { result: None }
    });
    all.then_some(handler)
}

/// Whether an outcome makes the message itself claimable at once.
fn is_due_at_once(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Release => true,
        Outcome::Retry { after, .. } | Outcome::Defer { after, .. } => after.is_zero(),
        Outcome::Processed { .. } | Outcome::Dead { .. } => false,
    }
}

/// Row, token, outcome (0 pending again, 2 processed, 3 dead), how it comes back (0 release, 1 retry,
/// 2 deferral), after how long, whether it blocks, error in hexadecimal, how many bytes of it the history
/// keeps, result in base 64 if it `fits`; what does not apply is left out at the end.
fn list_row(ending: &Ending<'_>, fits: impl Fn(&Bytes) -> bool) -> String {
    let mut row = String::with_capacity(48);
    let LeasedRow { seq, token, .. } = ending.row;
    // Writing to a String does not fail.
    let _ = write!(row, "[{seq},{token},");
    match ending.outcome {
        Outcome::Processed {
            result: Some(result),
        } if fits(result) => {
            row.push_str("2,0,0,0,\"\",0,\"");
            base64(result, &mut row);
            row.push('"');
        }
        Outcome::Processed { .. } => row.push('2'),
        Outcome::Retry { after, error } => {
            let _ = write!(row, "0,1,{},0,", duration_micros(*after));
            push_error(error, &mut row);
        }
        Outcome::Dead { reason, after } => {
            let blocks = u8::from(*after == AfterDead::Block);
            let _ = write!(row, "3,0,0,{blocks},");
            push_error(reason, &mut row);
        }
        Outcome::Release => row.push_str("0,0"),
        Outcome::Defer { after, error } => {
            let _ = write!(row, "0,2,{}", duration_micros(*after));
            if let Some(error) = error {
                row.push_str(",0,");
                push_error(error, &mut row);
            }
        }
    }
    row.push(']');
    row
}

fn push_error(error: &str, row: &mut String) {
    row.push('"');
    hex(error_text(error).as_bytes(), row);
    let _ = write!(row, "\",{}", PastAttempt::error_text(error).len());
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
        let leased = LeasedRow {
            seq: 7,
            token: 9,
            ordered: false,
            in_run: false,
        };
        for (outcome, expected) in [
            (Outcome::Processed { result: None }, "[7,9,2]"),
            (
                Outcome::Processed {
                    result: Some(Bytes::from_static(b"'\"\\")),
                },
                "[7,9,2,0,0,0,\"\",0,\"JyJc\"]",
            ),
            (
                Outcome::Retry {
                    after: Duration::from_micros(5),
                    error: "'".into(),
                },
                "[7,9,0,1,5,0,\"27\",1]",
            ),
            (
                Outcome::Dead {
                    reason: "\"".into(),
                    after: AfterDead::Block,
                },
                "[7,9,3,0,0,1,\"22\",1]",
            ),
            (Outcome::Release, "[7,9,0,0]"),
            (
                Outcome::Defer {
                    after: Duration::from_micros(5),
                    error: None,
                },
                "[7,9,0,2,5]",
            ),
            (
                Outcome::Defer {
                    after: Duration::from_micros(5),
                    error: Some("'".into()),
                },
                "[7,9,0,2,5,0,\"27\",1]",
            ),
        ] {
            let outcome = &outcome;
            assert_eq!(
                list_row(
                    &Ending {
                        handler: None,
                        row: leased,
                        outcome
                    },
                    |_| true
                ),
                expected
            );
        }
    }
}
