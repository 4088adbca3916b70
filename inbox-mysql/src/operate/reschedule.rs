//! Rescheduling: pending messages become due at another time.

use inbox_api::{
    Due, Filter, Intervention, InterventionKind, Key, OperatorName, Progress, Result, Slice, State,
    duration_micros, to_micros,
};

use super::change::{Change, change_one, change_slice, sign};
use crate::{
    connection::Connection,
    context::Context,
    multi_statement::Script,
    rows::Stored,
    statement::{Secrecy, Statement},
};

struct Reschedule<'a> {
    due: Due,
    by: Option<&'a OperatorName>,
}

impl Change for Reschedule<'_> {
    const ELIGIBLE: &'static [State] = &[State::Pending];
    const DEFAULT: &'static [State] = &[State::Pending];
    const CONDITION: &'static str = "";

    fn add(
        &self,
        context: &Context,
        script: &mut Script,
        _states: &[State],
        _secrecy: Secrecy,
    ) -> usize {
        let mut due = Statement::new("@inbox_now");
        match self.due {
            Due::Now => {}
            Due::After(delay) => {
                due.push(" + ").number(duration_micros(delay));
            }
            Due::At(time) => {
                due = Statement::new("GREATEST(@inbox_now, ");
                due.number(to_micros(time)).push(")");
            }
        }
        let sql = &context.sql;
        script.all(&sql.reschedule_lock);
        script.fill(&sql.end_runs, &[("queues", Statement::new("1, 3"))]);
        script.fill(&sql.reschedule, &[("due", due)]);
        sign(
            context,
            script,
            "work",
            InterventionKind::Rescheduled,
            self.by,
        );
        script.all(&sql.count_selected)
    }

    fn refuse(&self, found: &Stored) -> Option<Intervention> {
        let state = found.record.state;
        (state != State::Pending).then_some(Intervention::WrongState(state))
    }
}

pub(super) async fn reschedule(
    connection: Connection<'_>,
    key: &Key,
    due: Due,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    change_one(connection, key, &Reschedule { due, by }).await
}

pub(super) async fn reschedule_slice(
    connection: Connection<'_>,
    filter: &Filter,
    slice: &Slice,
    due: Due,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    change_slice(connection, filter, slice, &Reschedule { due, by }).await
}
