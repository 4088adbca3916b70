//! What must be equal, and what only about equal: times, which two stores read at different
//! moments. Tokens, locators and cursors are each store's own.

use std::time::{Duration, SystemTime};

use inbox_api::{Begun, Extended, HandlerStatistics, Leased, Record, Statistics};

use crate::{
    check::{CaseResult, same},
    times::{as_long_within, within},
};

/// Less than half of the fifty seconds by which the times of a sequence differ.
const TOLERANCE: Duration = Duration::from_secs(24);

/// How far the store's clock is ahead of the model's, in one direction or the other.
#[derive(Clone, Copy)]
pub(super) struct Offset {
    ahead: Duration,
    behind: Duration,
}

impl Offset {
    pub(super) fn between(model: SystemTime, store: SystemTime) -> Self {
        Self {
            ahead: store.duration_since(model).unwrap_or_default(),
            behind: model.duration_since(store).unwrap_or_default(),
        }
    }

    pub(super) fn time(
        self,
        what: &str,
        store: Option<SystemTime>,
        model: Option<SystemTime>,
    ) -> CaseResult {
        let expected = model.map(|time| time + self.ahead - self.behind);
        within(
            TOLERANCE,
            &format!("{what}, as in the model"),
            store,
            expected,
        )
    }

    pub(super) fn begun(self, store: &Begun, model: &Begun) -> CaseResult {
        match (store, model) {
            (Begun::Run(store), Begun::Run(model)) => self.leased(store, model),
            (Begun::Busy { until: store }, Begun::Busy { until: model }) => {
                self.time("begin, busy until", Some(*store), Some(*model))
            }
            _ => same("begin", store, model),
        }
    }

    pub(super) fn leased(self, store: &Leased, model: &Leased) -> CaseResult {
        let what = &model.lease.key;
        same(
            &format!("{what} as claimed"),
            &store.message,
            &model.message,
        )?;
        same(
            &format!("payload of {what}"),
            store.message.payload(),
            model.message.payload(),
        )?;
        same(
            &format!("attempts of {what}"),
            &store.attempts,
            &model.attempts,
        )?;
        same(
            &format!("replays of {what}"),
            &store.replays,
            &model.replays,
        )?;
        self.time(
            "end of the lease",
            Some(store.lease.until),
            Some(model.lease.until),
        )?;
        self.time(
            "accepted_at",
            Some(store.accepted_at),
            Some(model.accepted_at),
        )
    }

    pub(super) fn extended(self, store: &Extended, model: &Extended) -> CaseResult {
        match (store, model) {
            (Extended::Until(store), Extended::Until(model)) => {
                self.time("extended until", Some(*store), Some(*model))
            }
            _ => same("extend", store, model),
        }
    }

    pub(super) fn record(self, store: &Record, model: &Record) -> CaseResult {
        let key = &model.key;
        for (what, store, model) in [
            (
                "accepted_at",
                Some(store.accepted_at),
                Some(model.accepted_at),
            ),
            ("due_at", Some(store.due_at), Some(model.due_at)),
            ("lease_until", store.lease_until, model.lease_until),
            ("leased_at", store.leased_at, model.leased_at),
            ("finished_at", store.finished_at, model.finished_at),
        ] {
            self.time(&format!("{what} of {key}"), store, model)?;
        }
        let mut history = store.history.clone();
        for (past, model) in history.iter_mut().zip(&model.history) {
            for (what, store, model) in [
                ("leased_at", &mut past.leased_at, model.leased_at),
                ("ended_at", &mut past.ended_at, model.ended_at),
            ] {
                let what = format!("{what} of an attempt of {key}");
                self.time(&what, Some(*store), Some(model))?;
                *store = model;
            }
        }
        let mut interventions = store.interventions.clone();
        for (past, model) in interventions.iter_mut().zip(&model.interventions) {
            let what = format!("time of an intervention of {key}");
            self.time(&what, Some(past.at), Some(model.at))?;
            past.at = model.at;
        }
        // The rest must be equal: put the model's own times and place in.
        let rest = Record {
            accepted_at: model.accepted_at,
            due_at: model.due_at,
            lease_until: model.lease_until,
            leased_at: model.leased_at,
            history,
            interventions,
            finished_at: model.finished_at,
            cursor: model.cursor.clone(),
            ..store.clone()
        };
        same(
            &format!("payload of {key}"),
            &(&rest.payload, &rest.result),
            &(&model.payload, &model.result),
        )?;
        same(&format!("record of {key}"), &rest, model)
    }
}

pub(super) fn statistics(store: &Statistics, model: &Statistics) -> CaseResult {
    let plain = |statistics: &Statistics| -> Vec<HandlerStatistics> {
        let mut handlers = statistics.handlers.clone();
        for handler in &mut handlers {
            (handler.lag, handler.oldest_due_age) = (None, None);
        }
        handlers
    };
    same("statistics", &plain(store), &plain(model))?;
    for (store, model) in store.handlers.iter().zip(&model.handlers) {
        for (what, store, model) in [
            ("lag", store.lag, model.lag),
            ("oldest_due_age", store.oldest_due_age, model.oldest_due_age),
        ] {
            as_long_within(
                TOLERANCE,
                &format!("statistics, {what}, as in the model"),
                store,
                model,
            )?;
        }
    }
    Ok(())
}
