//! Settling and extending past rows that other transactions hold.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use inbox_api::{Effect, Error, ErrorKind, Result, duration_micros};
use sqlx::Row as _;
use tokio::time::Instant;

use crate::{
    error::{in_operation, is_lock_timeout, may_lack_schema},
    script::{Access, Answers, Script, Sets},
    settle::{Applied, Detail, Ending, Place},
    store::{LOOKS, MySqlStore},
    work::Work,
};

/// So long a batch waits for each lock of another transaction before the rest of it goes past. The
/// servers count in whole seconds.
const PATIENCE: Duration = Duration::from_secs(1);

impl MySqlStore {
    /// Settles these leases. A row that another transaction holds for longer than a moment must not
    /// keep the rest of a batch waiting, whose leases run out: it is settled behind that.
    pub(crate) async fn settle_all(
        &self,
        operation: &'static str,
        until: Instant,
        endings: &[Ending<'_>],
    ) -> Result<Applied> {
        if endings.len() < 2 || self.inner.connections.lock_wait() <= PATIENCE {
            return self.settle_patiently(operation, until, endings).await;
        }
        let sets = Sets {
            lock_wait: Some(PATIENCE.as_secs()),
            ..self.sets()
        };
        let mut script = Script::transaction(&self.now(), Access::Write, sets);
        let places = self.settle_in_script(&mut script, endings);
        script.commit();
        match self
            .run_once(operation, until, Access::Write, &script)
            .await
        {
            Ok(answers) => return self.applied(operation, &answers, &places, endings),
            Err(error) if is_lock_timeout(&error) => {}
            Err(error) if error.kind() == ErrorKind::Conflict || may_lack_schema(&error) => {
                return self.settle_patiently(operation, until, endings).await;
            }
            Err(error) => return Err(error),
        }
        let free = self.free(operation, until, endings).await?;
        let (free, held): (Vec<_>, Vec<_>) = endings
            .iter()
            .partition(|ending| free.contains(&ending.held.seq));
        let first = self.settle_patiently(operation, until, &free).await?;
        let second = self.settle_patiently(operation, until, &held).await;
        let unknown = |error: Error| match free.is_empty() {
            true => error,
            false => error.with_effect(Effect::Unknown),
        };
        Ok(first.and(second.map_err(unknown)?))
    }

    /// The same, with a wait for whatever is held.
    async fn settle_patiently(
        &self,
        operation: &'static str,
        until: Instant,
        endings: &[Ending<'_>],
    ) -> Result<Applied> {
        if endings.is_empty() {
            return Ok(Applied::default());
        }
        let mut script = self.script(Access::Write);
        let places = self.settle_in_script(&mut script, endings);
        let answers = self.run(operation, until, Access::Write, script).await?;
        self.applied(operation, &answers, &places, endings)
    }

    fn settle_in_script(&self, script: &mut Script, endings: &[Ending<'_>]) -> Vec<Place> {
        let work = &self.inner.work;
        work.settle(script, endings, self.secrecy(), Detail::Count)
    }

    fn applied(
        &self,
        operation: &'static str,
        answers: &Answers,
        places: &[Place],
        endings: &[Ending<'_>],
    ) -> Result<Applied> {
        let applied = self.inner.work.applied(answers, places, endings);
        let applied = applied.map_err(in_operation(operation))?;
        if applied.wake {
            self.inner.claim_cursor.forget();
            self.inner.signal.raise();
        }
        Ok(applied)
    }

    /// The rows that nobody else holds, nor their ordering keys.
    async fn free(
        &self,
        operation: &'static str,
        until: Instant,
        endings: &[Ending<'_>],
    ) -> Result<HashSet<i64>> {
        let work = &self.inner.work;
        let seqs: Vec<_> = endings.iter().map(|ending| ending.held.seq).collect();
        let mut script = self.script(Access::Write);
        let places = work.for_seqs(&mut script, &seqs, &work.sql.held);
        let answers = self.run(operation, until, Access::Write, script).await?;
        let read = |place: usize| -> sqlx::Result<HashSet<i64>> {
            let rows = answers.rows(place).iter();
            rows.map(|row| row.try_get_unchecked(0)).collect()
        };
        let mut free = HashSet::with_capacity(seqs.len());
        for place in places {
            let rows = read(place).map_err(in_operation(operation))?;
            let keys = read(place + 1).map_err(in_operation(operation))?;
            let is_free = |ending: &&Ending<'_>| {
                let held = ending.held;
                rows.contains(&held.seq) && (!held.ordered || keys.contains(&held.seq))
            };
            free.extend(endings.iter().filter(is_free).map(|ending| ending.held.seq));
        }
        Ok(free)
    }

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
