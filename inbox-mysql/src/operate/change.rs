//! What replaying and discarding have in common: messages are selected, their ordering keys and rows locked,
//! and those changed that are still in one of the wanted states.

use inbox_api::{
    Cursor, Error, ErrorKind, Filter, Intervention, InterventionKind, Key, OperatorName, Progress,
    Result, Slice, State,
};
use sqlx::Row as _;

use super::selection::{Lead, after, push_filter};
use crate::{
    connection::Connection,
    context::Context,
    error::failed,
    list_variables::most_names,
    lookup::{key_values, read_one},
    multi_statement::{Access, Script},
    rows::Stored,
    statement::{Secrecy, Statement},
};

/// How often an intervention is tried when the message changes meanwhile.
const TRIES: u32 = 10;

/// What an operator does to messages.
pub(super) trait Change: Sync {
    /// In which states messages can be changed so.
    const ELIGIBLE: &'static [State];
    /// Which of them a filter without states means.
    const DEFAULT: &'static [State];
    /// What else a message of a slice needs, as a condition behind others.
    const CONDITION: &'static str;

    /// Adds the change of the messages in `@inbox_seqs` to `script`, whose ordering keys are locked, as
    /// far as they are in one of `states` when they are locked. Answers where it says how many were changed.
    fn add(
        &self,
        context: &Context,
        script: &mut Script,
        states: &[State],
        secrecy: Secrecy,
    ) -> usize;

    /// Why a message that was found so was not changed. `None`: it became eligible just behind the look
    /// at it.
    fn refuse(&self, found: &Stored) -> Option<Intervention>;
}

/// Adds a note of who did what to the messages of `@inbox_seqs`, which are in `table` now, if it is signed.
pub(super) fn sign(
    context: &Context,
    script: &mut Script,
    table: &str,
    kind: InterventionKind,
    by: Option<&OperatorName>,
) {
    let Some(by) = by else { return };
    let kind = Statement::new(format!("'{kind}'"));
    let by = Statement::of_bytes(by.as_str().as_bytes());
    let sql = &context.sql;
    let table = sql.table(table);
    script.fill(&sql.sign, &[("table", table), ("kind", kind), ("by", by)]);
}

fn add_change(
    connection: Connection<'_>,
    script: &mut Script,
    change: &impl Change,
    states: &[State],
) -> usize {
    let context = connection.context;
    script.all(&context.sql.select_keys);
    script.all(&context.sql.lock_keys);
    let changed = change.add(context, script, states, connection.secrecy());
    script.all(&context.sql.next_of_run);
    script.all(&context.sql.promote_key_heads);
    changed
}

/// Changes one message.
pub(super) async fn change_one<C: Change>(
    connection: Connection<'_>,
    key: &Key,
    change: &C,
) -> Result<Intervention> {
    for _ in 0..TRIES {
        if let Some(answer) = try_to_change(connection, key, change).await? {
            return Ok(answer);
        }
    }
    let context = "the message changed its state again and again";
    Err(Error::new(ErrorKind::Conflict, context))
}

async fn try_to_change<C: Change>(
    connection: Connection<'_>,
    key: &Key,
    change: &C,
) -> Result<Option<Intervention>> {
    let context = connection.context;
    let mut script = connection.script(Access::Write);
    script.fill(&context.sql.find, &key_values(key));
    let changed = add_change(connection, &mut script, change, C::ELIGIBLE);
    // What it is now says why nothing was changed, if nothing was.
    let found = script.all(&context.sql.get_found);
    let answers = connection.run(Access::Write, script).await?;
    if answers.number(changed).map_err(failed)? > 0 {
        connection.inner.wake();
        return Ok(Some(Intervention::Done));
    }
    Ok(match read_one(context, &answers, found)? {
        Some(found) => change.refuse(&found),
        None => Some(Intervention::NotFound),
    })
}

/// Changes one slice of what `filter` selects: of its states those that are eligible.
pub(super) async fn change_slice<C: Change>(
    connection: Connection<'_>,
    filter: &Filter,
    slice: &Slice,
    change: &C,
) -> Result<Progress> {
    let context = connection.context;
    let mut states = C::DEFAULT.to_vec();
    if !filter.states.is_empty() {
        states.clone_from(&filter.states);
        states.retain(|state| C::ELIGIBLE.contains(state));
    }
    let beyond = after(slice.after.as_ref(), 0)?;
    let limit = (slice.limit as usize).min(most_names(context)) as i64;
    if states.is_empty() || limit == 0 {
        return Ok(Progress {
            changed: 0,
            next: None,
        });
    }
    let lead = Lead::of(&states);
    let mut conditions = lead.seq();
    conditions.push(" > ").number(beyond).push(C::CONDITION);
    push_filter(&mut conditions, lead, filter, &states);
    let values = [
        ("seq", lead.seq()),
        ("lead", lead.tables(context)),
        ("conditions", conditions),
        ("limit", Statement::of_number(limit)),
    ];
    let mut script = connection.script(Access::Write);
    script.fill(&context.sql.select_slice, &values);
    let selected = script.all(&context.sql.count_selected);
    let changed = add_change(connection, &mut script, change, &states);
    let answers = connection.run(Access::Write, script).await?;
    let changed = answers.number(changed).map_err(failed)?.unsigned_abs();
    if changed > 0 {
        connection.inner.wake();
    }
    let (count, last): (i64, Option<i64>) = match answers.rows(selected).first() {
        Some(row) => (
            row.try_get_unchecked(0).map_err(failed)?,
            row.try_get_unchecked(1).map_err(failed)?,
        ),
        None => (0, None),
    };
    Ok(Progress {
        changed,
        next: last.filter(|_| count == limit).map(Cursor::from),
    })
}
