//! `POST /v1/begin`: may this message's handler run now?

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use inbox::{Begun, LeaseTerms, Message, Result, Settled, Store as _, WorkerName};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    Shared,
    connection::Connection,
    held::{Held, json},
    problem::Problem,
    wire::{LeasedView, MessageIn, ResultView, terms, time},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BeginIn {
    message: MessageIn,
    lease_seconds: Option<f64>,
    worker: Option<WorkerName>,
    #[serde(default)]
    base64: bool,
}

#[derive(Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
enum BeginOut<'a> {
    Run { message: Box<LeasedView<'a>> },
    Processed(ResultView<'a>),
    Busy { until: String },
    Blocked,
    Dead { reason: String },
    Discarded,
}

/// What the store answered, with its lease, if there is one, in safe hands.
enum Answer {
    Run(Held),
    No(Begun),
}

pub(super) async fn begin(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let connection = request.extensions().get::<Connection>().cloned();
    let body = shared.read(request).await?;
    let asked: BeginIn = serde_json::from_slice(&body)?;
    let message = asked.message.into_message()?;
    let terms = terms(asked.lease_seconds, asked.worker)?;
    let asking = ask(Arc::clone(&shared), message, terms);
    let work = async move {
        // It counts as being in memory for as long as this goes on, with or without its caller.
        let _counts_until_the_end = body;
        asking.await
    };
    let no = match shared.without_caller(work).await? {
        Answer::Run(held) => {
            let run = held.leased().first().map(|leased| BeginOut::Run {
                message: Box::new(LeasedView::new(leased, asked.base64)),
            });
            let bytes = json(&run)?;
            return Ok(held.respond(bytes, connection));
        }
        Answer::No(no) => no,
    };
    let view = match &no {
        Begun::Run(leased) => BeginOut::Run {
            message: Box::new(LeasedView::new(leased, asked.base64)),
        },
        Begun::Processed { result } => {
            BeginOut::Processed(ResultView::new(result.as_ref(), asked.base64))
        }
        Begun::Busy { until } => BeginOut::Busy {
            until: time(*until),
        },
        Begun::Blocked => BeginOut::Blocked,
        Begun::Dead { reason } => BeginOut::Dead {
            reason: reason.clone(),
        },
        Begun::Discarded => BeginOut::Discarded,
    };
    Ok(Json(view).into_response())
}

async fn ask(shared: Arc<Shared>, message: Message, terms: LeaseTerms) -> Result<Answer> {
    let asked = Instant::now();
    let begun = shared.store.begin(&message, &terms).await?;
    let Begun::Run(leased) = begun else {
        return Ok(Answer::No(begun));
    };
    // Where another worker has it by now.
    let busy = Begun::Busy {
        until: leased.lease.until,
    };
    let Some((reason, after)) = shared.reason_to_bury(&leased, terms.length()) else {
        let mut held = shared.hold(vec![*leased]);
        held.confirm(asked, terms.length()).await?;
        return Ok(if held.is_empty() {
            Answer::No(busy)
        } else {
            Answer::Run(held)
        });
    };
    Ok(Answer::No(
        match shared.bury(&leased, reason.clone(), after).await? {
            Settled::Done => Begun::Dead { reason },
            Settled::LeaseLost | Settled::Refused(_) => busy,
        },
    ))
}
