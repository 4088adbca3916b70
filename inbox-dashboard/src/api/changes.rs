//! Changing, and what has become of it.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use inbox::{Bytes, Due, Edit, HandlerName, Headers, Key, MessageId};
use serde::Deserialize;
use serde_json::{Value, json as value};

use super::json;
use crate::{
    dashboard::Shared,
    fault::Fault,
    form::Json,
    guard::Visit,
    jobs::{Action, Job, Target},
    pages::{change::set_pause, changes::stand},
    query::{Parameters, Wanted, said},
    reading::{self, within},
    text, work,
};

/// The most keys of one request.
const MOST_KEYS: usize = 10_000;

/// For how long an answer waits for the end of the change, unless it is told, and at most, in seconds.
const PATIENCE: u8 = 10;
const LONGEST: u8 = 60;

/// Which messages are changed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    keys: Option<Vec<KeyText>>,
    filter: Option<Wanted>,
    #[serde(default)]
    also_processed: bool,
    #[serde(default)]
    dry_run: bool,
    wait_seconds: Option<u8>,
    /// Of a reschedule only: so long from now, or at this moment.
    after: Option<String>,
    due: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyText {
    handler: String,
    id: String,
}

impl KeyText {
    fn key(&self) -> Result<Key, Fault> {
        let handler = HandlerName::new(&self.handler)?;
        Ok(Key::new(handler, MessageId::new(&self.id)?))
    }
}

impl Which {
    fn target(&self) -> Result<Target, Fault> {
        match (&self.keys, &self.filter) {
            (Some(keys), None) if keys.len() <= MOST_KEYS => Ok(Target::Keys {
                keys: keys.iter().map(KeyText::key).collect::<Result<_, _>>()?,
                also_processed: self.also_processed,
            }),
            (Some(_), None) => Err(Fault::invalid(format!("keys: {MOST_KEYS} at most"))),
            (None, Some(_)) if self.also_processed => Err(Fault::invalid(
                "`also_processed` goes with `keys`; a filter says it with the state processed",
            )),
            (None, Some(wanted)) => Ok(Target::All(Box::new(wanted.clone()))),
            _ => Err(Fault::invalid("say which messages: `keys` or `filter`")),
        }
    }

    fn due(&self) -> Result<Option<Due>, Fault> {
        let wrong = |name: &str, reason| Fault::invalid(format!("{name}: {reason}"));
        match (&self.after, &self.due) {
            (None, None) => Ok(None),
            (Some(after), None) => {
                let after = text::parse_duration(after).map_err(|e| wrong("after", e))?;
                Ok(Some(Due::After(after)))
            }
            (None, Some(due)) => {
                let due = text::parse_time(due).map_err(|e| wrong("due", e))?;
                Ok(Some(Due::At(due)))
            }
            _ => Err(Fault::invalid("`after` and `due` exclude each other")),
        }
    }
}

pub(super) async fn replay(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    Json(which): Json<Which>,
) -> Result<Response, Fault> {
    undated(&which)?;
    change(&shared, visit, Action::Replay, &which).await
}

pub(super) async fn discard(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    Json(which): Json<Which>,
) -> Result<Response, Fault> {
    undated(&which)?;
    change(&shared, visit, Action::Discard, &which).await
}

pub(super) async fn reschedule(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    Json(which): Json<Which>,
) -> Result<Response, Fault> {
    let due = which.due()?;
    let due = due.ok_or_else(|| Fault::invalid("say when: `after` or `due`"))?;
    change(&shared, visit, Action::Reschedule(due), &which).await
}

fn undated(which: &Which) -> Result<(), Fault> {
    match which.due()? {
        None => Ok(()),
        Some(_) => Err(Fault::invalid("`after` and `due` go with a reschedule")),
    }
}

async fn change(
    shared: &Shared,
    visit: Visit,
    action: Action,
    which: &Which,
) -> Result<Response, Fault> {
    let target = which.target()?;
    if which.dry_run {
        let (number, is_exact) = match &target {
            Target::Keys { keys, .. } => (keys.len() as u64, true),
            Target::All(wanted) => {
                let selection = work::selection(&action, wanted.selection()?)?;
                let matching = within(reading::count(shared.store.as_ref(), &selection)).await?;
                (matching.number, matching.is_exact)
            }
        };
        return json(&value!({ "dry_run": true, "matching": number, "is_exact": is_exact }));
    }
    begin(shared, visit, action, target, which.wait_seconds).await
}

async fn begin(
    shared: &Shared,
    visit: Visit,
    action: Action,
    target: Target,
    wait_seconds: Option<u8>,
) -> Result<Response, Fault> {
    let seconds = wait_seconds.unwrap_or(PATIENCE).min(LONGEST);
    let job = shared
        .jobs
        .begin(&shared.store, visit.operator, action, target)?;
    job.wait(Duration::from_secs(seconds.into())).await;
    shared.renew().await;
    answer(&job)
}

/// A change that has failed is no success, though a part of it may have happened.
fn answer(job: &Job) -> Result<Response, Fault> {
    let progress = job.progress();
    let status = match progress.ended {
        None => StatusCode::ACCEPTED,
        Some(_) if progress.error.is_some() => StatusCode::SERVICE_UNAVAILABLE,
        Some(_) => StatusCode::OK,
    };
    Ok((status, json(&view(job))?).into_response())
}

fn view(job: &Job) -> Value {
    let progress = job.progress();
    let refusals = progress.refusals.iter();
    let refusals = refusals.map(|(key, reason)| value!({ "message": key, "reason": reason }));
    value!({
        "id": job.id,
        "operator": job.operator.name(),
        "action": job.verb.name(),
        "messages": job.target.to_string(),
        "begun_at": text::time(job.begun),
        "ended_at": progress.ended.map(text::time),
        "stands": stand(&progress),
        "expected": progress.expected,
        "changed": progress.changed,
        "refused": progress.refused,
        "refusals": refusals.collect::<Vec<_>>(),
        "error": progress.error,
    })
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    parameters: Parameters,
) -> Result<Response, Fault> {
    parameters.end()?;
    let jobs = shared.jobs.all();
    let views: Vec<_> = jobs.iter().map(|job| view(job)).collect();
    json(&value!({ "changes": views }))
}

pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let id = parameters.read::<u64>("id")?;
    parameters.end()?;
    let id = id.ok_or_else(|| Fault::invalid("`id` is needed"))?;
    json(&view(&*shared.jobs.find(id)?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Edited {
    handler: String,
    id: String,
    #[serde(default, deserialize_with = "said")]
    payload: Option<String>,
    #[serde(default, deserialize_with = "said")]
    payload_base64: Option<String>,
    #[serde(default, deserialize_with = "said")]
    headers: Option<Headers>,
    #[serde(default)]
    also_processed: bool,
}

pub(super) async fn edit(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    Json(edited): Json<Edited>,
) -> Result<Response, Fault> {
    let payload = match (edited.payload, edited.payload_base64) {
        (Some(_), Some(_)) => {
            let reason = "`payload` and `payload_base64` exclude each other";
            return Err(Fault::invalid(reason));
        }
        (Some(text), None) => Some(Bytes::from(text)),
        (None, Some(base64)) => {
            let bytes = BASE64.decode(base64);
            let bytes = bytes.map_err(|_| Fault::invalid("payload_base64: not base64"))?;
            Some(Bytes::from(bytes))
        }
        (None, None) => None,
    };
    let handler = HandlerName::new(edited.handler)?;
    let target = Target::Keys {
        keys: vec![Key::new(handler, MessageId::new(edited.id)?)],
        also_processed: edited.also_processed,
    };
    let headers = edited.headers;
    let action = Action::Edit(Edit { payload, headers });
    begin(&shared, visit, action, target, None).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stopped {
    id: u64,
}

pub(super) async fn stop(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    Json(stopped): Json<Stopped>,
) -> Result<Response, Fault> {
    let job = shared.jobs.stop(stopped.id, &visit.operator)?;
    job.wait(Duration::from_secs(PATIENCE.into())).await;
    json(&view(&job))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paused {
    handler: String,
}

pub(super) async fn pause(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    Json(paused): Json<Paused>,
) -> Result<Response, Fault> {
    set(&shared, &visit, &paused, true).await
}

pub(super) async fn resume(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    Json(paused): Json<Paused>,
) -> Result<Response, Fault> {
    set(&shared, &visit, &paused, false).await
}

async fn set(
    shared: &Shared,
    visit: &Visit,
    paused: &Paused,
    is_pause: bool,
) -> Result<Response, Fault> {
    let handler = HandlerName::new(&paused.handler)?;
    set_pause(shared, &visit.operator, &handler, is_pause).await?;
    json(&value!({ "handler": handler, "paused": is_pause }))
}
