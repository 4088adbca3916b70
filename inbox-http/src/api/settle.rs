//! `POST /v1/settle`: ends leases.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use inbox::{AfterDead, Outcome, RetryPolicy, Settled, Settlement};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Shared,
    body::{Answer, check_batch, element, in_place, list},
    problem::Problem,
    wire::{LeaseView, content, present, seconds},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleIn<'a> {
    #[serde(borrow, deserialize_with = "list")]
    settlements: Vec<&'a RawValue>,
}

#[derive(Serialize)]
pub(super) struct SettleOut {
    settlements: Vec<Answer>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum OutcomeName {
    Processed,
    Retry,
    Dead,
    Release,
    Defer,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum AfterDeadName {
    Continue,
    Block,
}

/// All fields that any outcome has. Those that another one has are refused, since what they were
/// meant to say would be lost.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettlementIn {
    lease: LeaseView,
    outcome: OutcomeName,
    #[serde(default, deserialize_with = "present")]
    result: Option<Box<RawValue>>,
    result_base64: Option<String>,
    after_seconds: Option<f64>,
    error: Option<String>,
    ordering_key: Option<AfterDeadName>,
}

pub(super) async fn settle(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Json<SettleOut>, Problem> {
    let body = shared.read(request).await?;
    let asked: SettleIn<'_> = serde_json::from_slice(&body)?;
    check_batch(&asked.settlements)?;
    let read = |json| {
        let settlement: SettlementIn = element(json)?;
        settlement.into_settlement(&shared.retry, shared.after_dead)
    };
    let settlements: Vec<_> = asked.settlements.into_iter().map(read).collect();
    let good: Vec<Settlement> = settlements.iter().flatten().cloned().collect();
    let answers = shared.store.settle(&good).await?;
    let settlements = in_place(settlements, answers, |settlement, settled| match settled {
        Settled::Done => Answer {
            outcome: Some(name(&settlement.outcome)),
            ..Answer::plain("done")
        },
        Settled::LeaseLost => Answer::plain("lease_lost"),
        Settled::Refused(invalid) => Answer::refused(invalid),
    });
    Ok(Json(SettleOut { settlements }))
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Processed { .. } => "processed",
        Outcome::Retry { .. } => "retry",
        Outcome::Dead { .. } => "dead",
        Outcome::Release => "release",
        Outcome::Defer { .. } => "defer",
    }
}

impl SettlementIn {
    /// `after_dead` is for a death of which nothing else is said.
    fn into_settlement(
        self,
        policy: &RetryPolicy,
        after_dead: AfterDead,
    ) -> Result<Settlement, Problem> {
        self.check_fields()?;
        let attempt = self.lease.attempt();
        let after = self.after_seconds;
        let after = after.map(|after| seconds("after_seconds", after));
        let after = after.transpose()?;
        let error = self.error.unwrap_or_default();
        let after_dead = match self.ordering_key {
            Some(AfterDeadName::Block) => AfterDead::Block,
            Some(AfterDeadName::Continue) => AfterDead::Continue,
            None => after_dead,
        };
        let outcome = match self.outcome {
            OutcomeName::Processed => Outcome::Processed {
                result: content("result", self.result, self.result_base64)?,
            },
            OutcomeName::Retry if attempt >= policy.max_attempts() => Outcome::Dead {
                reason: error,
                after: after_dead,
            },
            OutcomeName::Retry => Outcome::Retry {
                after: after.unwrap_or_else(|| policy.delay(attempt)),
                error,
            },
            OutcomeName::Dead => Outcome::Dead {
                reason: error,
                after: after_dead,
            },
            OutcomeName::Release => Outcome::Release,
            OutcomeName::Defer => Outcome::Defer {
                after: after.ok_or_else(|| Problem::invalid("defer needs after_seconds"))?,
                error: (!error.is_empty()).then_some(error),
            },
        };
        Ok(Settlement {
            lease: self.lease.into_lease()?,
            outcome,
        })
    }

    fn check_fields(&self) -> Result<(), Problem> {
        use OutcomeName::{Dead, Defer, Processed, Retry};
        let rules: [(&str, bool, &[OutcomeName]); 5] = [
            ("result", self.result.is_some(), &[Processed]),
            ("result_base64", self.result_base64.is_some(), &[Processed]),
            (
                "after_seconds",
                self.after_seconds.is_some(),
                &[Retry, Defer],
            ),
            ("error", self.error.is_some(), &[Retry, Dead, Defer]),
            ("ordering_key", self.ordering_key.is_some(), &[Retry, Dead]),
        ];
        for (field, is_there, outcomes) in rules {
            if is_there && !outcomes.contains(&self.outcome) {
                return Err(Problem::invalid(format!(
                    "{field} does not go with this outcome"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn outcome(attempt: u32, fields: &str) -> Result<Outcome, Problem> {
        let json = format!(
            r#"{{"lease":{{"handler":"h","id":"1","token":"5","locator":"0","attempt":{attempt},
            "until":"2026-01-31T12:00:00Z"}},{fields}}}"#
        );
        let policy = RetryPolicy::default().with_max_attempts(3);
        let settlement: SettlementIn = serde_json::from_str(&json)?;
        Ok(settlement
            .into_settlement(&policy, AfterDead::Continue)?
            .outcome)
    }

    #[test]
    fn a_retry_is_dead_when_its_attempts_are_used_up() {
        let fields = r#""outcome":"retry","error":"no","after_seconds":7"#;
        let expected = Outcome::Retry {
            after: Duration::from_secs(7),
            error: "no".to_owned(),
        };
        assert_eq!(outcome(2, fields).unwrap(), expected);
        let expected = Outcome::Dead {
            reason: "no".to_owned(),
            after: AfterDead::Continue,
        };
        assert_eq!(outcome(3, fields).unwrap(), expected);
        let by_policy = outcome(1, r#""outcome":"retry""#).unwrap();
        assert!(matches!(by_policy, Outcome::Retry { after, .. } if !after.is_zero()));
    }

    #[test]
    fn fields_of_another_outcome_are_refused() {
        for fields in [
            r#""outcome":"processed","error":"no""#,
            r#""outcome":"processed","result":1,"result_base64":"AA==""#,
            r#""outcome":"release","after_seconds":1"#,
            r#""outcome":"retry","result":null"#,
            r#""outcome":"retry","after_seconds":-1"#,
            r#""outcome":"defer""#,
            r#""outcome":"defer","after_seconds":1,"ordering_key":"block""#,
            r#""outcome":"done""#,
        ] {
            assert!(outcome(1, fields).is_err(), "{fields}");
        }
    }
}
