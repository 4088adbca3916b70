//! Extending past rows that other transactions hold.

use std::{collections::HashMap, time::Duration};

use inbox_api::{Result, duration_micros};
use tokio::time::Instant;

use crate::{
    error::in_operation,
    script::Access,
    store::{LOOKS, MySqlStore},
    work::Work,
};

impl MySqlStore {
    /// Extends these leases; the ends of those that stand. A transaction that holds the row of one,
    /// because it settles the message, must not keep the others from being extended: that one keeps
    /// the end that it has. A claim for another handler holds it for a moment only (see there).
    pub(crate) async fn extend_all(
        &self,
        operation: &'static str,
        until: Instant,
        mut held: Vec<(i64, i64)>,
        length: Duration,
    ) -> Result<HashMap<(i64, i64), i64>> {
        let work = &self.inner.work;
        let mapped = in_operation(operation);
        let mut ends = HashMap::with_capacity(held.len());
        for look in 1..=LOOKS {
            let mut script = self.script(Access::Write);
            let places = work.extend(&mut script, &held, length);
            let answers = match self.run(operation, until, Access::Write, script).await {
                Ok(answers) => answers,
                // What is known of them holds.
                Err(_) if look > 1 => break,
                Err(error) => return Err(error),
            };
            let now = answers.now().map_err(mapped)?;
            let end = now.saturating_add(duration_micros(length));
            let seen = Work::ends(&answers, &places).map_err(mapped)?;
            for held in &held {
                ends.remove(held);
            }
            held.retain(|held| seen.get(held).is_some_and(|seen| *seen != end));
            ends.extend(seen);
            let again = Instant::now() + Duration::from_millis(look).mul_f64(fastrand::f64());
            if held.is_empty() || again >= until {
                break;
            }
            tokio::time::sleep_until(again).await;
        }
        Ok(ends)
    }
}
