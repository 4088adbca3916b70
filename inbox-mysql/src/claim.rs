//! The script of a claim, and how its answers are read.

use std::collections::{BTreeSet, HashMap};

use inbox_api::{ClaimRequest, Leased, Result, duration_micros, from_micros};
use sqlx::Row as _;

use crate::{
    error::in_operation,
    rows,
    script::{Answers, Script, Statement},
    work::{CHUNK_ROWS, Work, lease},
};

/// A row that was claimed and cannot be read.
pub(crate) struct Unreadable {
    pub(crate) seq: i64,
    pub(crate) token: i64,
    pub(crate) reason: String,
}

impl Work {
    fn most_claimed(&self, request: &ClaimRequest) -> usize {
        self.most_numbers().min(request.limit as usize)
    }

    /// Adds a claim to `script`, of messages that became due no sooner than `from`, or of any.
    /// Answers where the messages stand; behind them it says whether there was nothing to take
    /// although something is due.
    pub(crate) fn claim(
        &self,
        script: &mut Script,
        request: &ClaimRequest,
        from: Option<i64>,
    ) -> usize {
        let limit = self.most_claimed(request) as i64;
        let handlers: BTreeSet<_> = request.handlers.iter().collect();
        if limit > CHUNK_ROWS as i64 {
            script.forget_lists();
        }
        script.fixed("SET @inbox_claimed = NULL");
        let mut choose = Statement::new(self.sql.expand(
            "{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(visible_at, seq)) INTO @inbox_claimed \
             FROM (SELECT visible_at, seq FROM (",
        ));
        let mut first = true;
        for handler in &handlers {
            // Behind a full claim the leases that ran out can wait, too: the end of those that are
            // gone is not seen before all their index entries are passed.
            let queues: &[i64] = if from.is_some() { &[0] } else { &[0, 1] };
            for queue in queues {
                choose.push(if first { "" } else { " UNION ALL " });
                first = false;
                choose.push(&self.sql.expand(
                    "(SELECT seq, visible_at FROM {work} FORCE INDEX (claim) WHERE handler = ",
                ));
                choose.bytes(handler.as_str().as_bytes());
                choose.push(" AND queue = ").number(*queue);
                if let Some(from) = from {
                    choose.push(" AND visible_at >= ").number(from);
                }
                choose.push(" AND visible_at <= @inbox_now ORDER BY visible_at, seq LIMIT ");
                choose.number(limit).push(" FOR UPDATE SKIP LOCKED)");
            }
        }
        choose.push(") AS c ORDER BY visible_at, seq LIMIT ");
        choose.number(limit).push(") AS t");
        script.add(choose);
        let mut lease = Statement::new(self.sql.expand(
            "UPDATE {claimed} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq SET w.queue = 1, \
             w.token = GREATEST(w.token + 1, @inbox_now), w.started = w.started + 1, \
             w.visible_at = @inbox_now + ",
        ));
        lease.number(duration_micros(request.terms.length()));
        lease
            .push(", w.worker = ")
            .bytes(request.terms.worker().as_str().as_bytes());
        script.add(lease);
        let at = script.all(&self.sql.claim_rows);
        let mut missed = Statement::new(self.sql.expand(
            "SELECT @inbox_claimed IS NULL AND EXISTS (SELECT 1 FROM {work} FORCE INDEX (claim) \
             WHERE queue IN (0, 1) AND visible_at <= @inbox_now AND handler IN (",
        ));
        for (n, handler) in handlers.iter().enumerate() {
            missed.push(if n == 0 { "" } else { ", " });
            missed.bytes(handler.as_str().as_bytes());
        }
        missed.push("))");
        script.add(missed);
        at
    }

    /// When the last message of a claim became due, if it got as many as it asked for.
    pub(crate) fn full_up_to(
        &self,
        answers: &Answers,
        at: usize,
        request: &ClaimRequest,
    ) -> sqlx::Result<Option<i64>> {
        let rows = answers.rows(at);
        if rows.len() < self.most_claimed(request) {
            return Ok(None);
        }
        let mut last = None;
        for row in rows {
            last = last.max(Some(row.try_get_unchecked(12)?));
        }
        Ok(last)
    }

    /// Adds another look at what a claim got to `script`, with locking reads, which see what is
    /// there now. Answers as the claim did.
    pub(crate) fn look_again(&self, script: &mut Script, answers: &Answers, at: usize) -> usize {
        let pairs = answers.rows(at).iter().map(|row| {
            let number = |column: usize| row.try_get_unchecked(column).unwrap_or_default();
            (number(12), number(0))
        });
        script.add(Statement::pairs("@inbox_claimed", pairs));
        script.all(&self.sql.claim_rows_now)
    }

    /// When the leases of a claim end.
    pub(crate) fn lease_end(answers: &Answers, request: &ClaimRequest) -> Result<i64> {
        let now = answers.now().map_err(in_operation("claim"))?;
        Ok(now.saturating_add(duration_micros(request.terms.length())))
    }

    /// The tokens that a claim gave, by row.
    pub(crate) fn tokens(answers: &Answers, at: usize) -> Result<HashMap<i64, i64>> {
        let mapped = in_operation("claim");
        let rows = answers.rows(at).iter();
        rows.map(|row| Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(8)?)))
            .collect::<sqlx::Result<_>>()
            .map_err(mapped)
    }

    /// What a claim got until `until`, and what of it cannot be read.
    pub(crate) fn claims(
        &self,
        answers: &Answers,
        at: usize,
        until: i64,
    ) -> Result<(Vec<Leased>, Vec<Unreadable>)> {
        let mapped = in_operation("claim");
        let mut claimed = Vec::with_capacity(answers.rows(at).len());
        let mut bad = Vec::new();
        let mut rows = Vec::with_capacity(answers.rows(at).len());
        for row in answers.rows(at) {
            let seq: i64 = row.try_get_unchecked(0).map_err(mapped)?;
            let due: i64 = row.try_get_unchecked(12).map_err(mapped)?;
            rows.push((due, seq, row));
        }
        // Neither server promises an order of aggregated or joined rows.
        rows.sort_unstable_by_key(|(due, seq, _)| (*due, *seq));
        for (_, seq, row) in rows {
            let token: i64 = row.try_get_unchecked(8).map_err(mapped)?;
            match rows::claimed(row) {
                Ok(found) => claimed.push(Leased {
                    lease: lease(&found.message, seq, token, until),
                    message: found.message,
                    attempts: found.attempts,
                    accepted_at: from_micros(found.accepted_at),
                }),
                Err(reason) => bad.push(Unreadable { seq, token, reason }),
            }
        }
        Ok((claimed, bad))
    }
}
