//! `POST /v1/extend`: renews leases.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use inbox::{Extended, Lease};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Shared,
    body::{Answer, check_batch, element, in_place, list},
    problem::Problem,
    wire::{LeaseView, lease_length, time},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtendIn<'a> {
    #[serde(borrow, deserialize_with = "list")]
    leases: Vec<&'a RawValue>,
    lease_seconds: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct ExtendOut {
    leases: Vec<Answer>,
}

pub(super) async fn extend(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Json<ExtendOut>, Problem> {
    let body = shared.read(request).await?;
    let asked: ExtendIn<'_> = serde_json::from_slice(&body)?;
    check_batch(&asked.leases)?;
    let length = lease_length(asked.lease_seconds)?;
    let read = |json| element::<LeaseView>(json).and_then(LeaseView::into_lease);
    let leases: Vec<_> = asked.leases.into_iter().map(read).collect();
    let good: Vec<Lease> = leases.iter().flatten().cloned().collect();
    let answers = shared.store.extend(&good, length).await?;
    let leases = in_place(leases, answers, |_, extended| match extended {
        Extended::Until(until) => Answer {
            until: Some(time(until)),
            ..Answer::plain("extended")
        },
        Extended::LeaseLost => Answer::plain("lease_lost"),
    });
    Ok(Json(ExtendOut { leases }))
}
