//! What forms change.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use inbox::{Due, Error, ErrorKind, HandlerName};
use maud::{Markup, html};

use crate::{
    access::Operator,
    command_pauses,
    dashboard::Shared,
    fault::Fault,
    form::{Form, parse_key},
    jobs::{Action, BROKE_OFF, Target},
    query::Parameters,
    reading::within,
    text,
};

/// For how long a change is waited for before its progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes which messages are meant: keys, or all of a filter.
pub(super) fn take_target(fields: &mut Parameters) -> Result<Target, Fault> {
    let keys = fields.take_all("key");
    if keys.is_empty() {
        return Ok(Target::All(Box::new(fields.wanted()?)));
    }
    let keys = keys.iter().map(|key| parse_key(key));
    Ok(Target::Keys {
        keys: keys.collect::<Result<_, _>>()?,
        also_processed: fields.has("also_processed")?,
    })
}

pub(super) fn also_processed_field(is_set: bool) -> Markup {
    html! {
        p {
            label {
                input type="checkbox" name="also_processed" value="true" checked[is_set];
                " also those that are processed: their effect happens a second time"
            }
        }
    }
}

/// The same of a form that changes: all of a filter, even of none, has to be said.
fn confirmed_target(fields: &mut Parameters) -> Result<Target, Fault> {
    let is_all = fields.has("all")?;
    let target = take_target(fields)?;
    match (&target, is_all) {
        (Target::Keys { .. }, false) | (Target::All(_), true) => Ok(target),
        _ => Err(Fault::invalid("say which messages: `key`, or `all`")),
    }
}

pub(crate) async fn replay(
    State(shared): State<Arc<Shared>>,
    Form { visit, mut fields }: Form,
) -> Result<Response, Fault> {
    let target = confirmed_target(&mut fields)?;
    fields.end()?;
    begin(&shared, visit.operator, Action::Replay, target).await
}

pub(crate) async fn discard(
    State(shared): State<Arc<Shared>>,
    Form { visit, mut fields }: Form,
) -> Result<Response, Fault> {
    let target = confirmed_target(&mut fields)?;
    fields.end()?;
    begin(&shared, visit.operator, Action::Discard, target).await
}

pub(crate) async fn reschedule(
    State(shared): State<Arc<Shared>>,
    Form { visit, mut fields }: Form,
) -> Result<Response, Fault> {
    let after = fields.take("after")?.unwrap_or_default();
    let after = text::parse_duration(&after);
    let after = after.map_err(|reason| Fault::invalid(format!("after: {reason}")))?;
    let target = confirmed_target(&mut fields)?;
    fields.end()?;
    let action = Action::Reschedule(Due::After(after));
    begin(&shared, visit.operator, action, target).await
}

/// Begins a change, waits a little, and leads to what has become of it.
pub(super) async fn begin(
    shared: &Shared,
    operator: Operator,
    action: Action,
    target: Target,
) -> Result<Response, Fault> {
    let job = shared.jobs.begin(&shared.store, operator, action, target)?;
    job.wait(PATIENCE).await;
    shared.renew().await;
    Ok(see(&format!("change?id={}", job.id)))
}

/// Leads to another page, so that loading it again changes nothing.
fn see(page: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, page)]).into_response()
}

pub(crate) async fn stop(
    State(shared): State<Arc<Shared>>,
    Form { visit, mut fields }: Form,
) -> Result<Response, Fault> {
    let id = fields.read::<u64>("id")?;
    fields.end()?;
    let id = id.ok_or_else(|| Fault::invalid("`id` is needed"))?;
    shared.jobs.stop(id, &visit.operator)?;
    Ok(see(&format!("change?id={id}")))
}

pub(crate) async fn pause(
    State(shared): State<Arc<Shared>>,
    form: Form,
) -> Result<Response, Fault> {
    by_form(&shared, form, true).await
}

pub(crate) async fn resume(
    State(shared): State<Arc<Shared>>,
    form: Form,
) -> Result<Response, Fault> {
    by_form(&shared, form, false).await
}

async fn by_form(
    shared: &Shared,
    Form { visit, mut fields }: Form,
    is_pause: bool,
) -> Result<Response, Fault> {
    let handler = fields.read::<HandlerName>("handler")?;
    fields.end()?;
    let handler = handler.ok_or_else(|| Fault::invalid("`handler` is needed"))?;
    set_pause(shared, &visit.operator, &handler, is_pause).await?;
    Ok(see("overview"))
}

/// Pauses a handler or ends its pause, which goes on whatever becomes of the request. The pause of a command that is at
/// work or was cut short is not ended, and an operator's pause of its handler is there behind it.
pub(crate) async fn set_pause(
    shared: &Shared,
    operator: &Operator,
    handler: &HandlerName,
    is_pause: bool,
) -> Result<(), Fault> {
    if !is_pause {
        let paused = within(shared.store.paused()).await?;
        if let Some(pause) = command_pauses::of_command(&paused, handler) {
            return Err(Fault::paused_by_command(pause.refusal()));
        }
    }
    let told = PauseTold::begin(operator, handler, is_pause);
    let (store, handler) = (Arc::clone(&shared.store), handler.clone());
    let pausing = tokio::spawn(async move {
        let done = if is_pause {
            command_pauses::pause(store.as_ref(), &handler).await
        } else {
            command_pauses::resume(store.as_ref(), &handler).await
        };
        told.end(done.as_ref().err());
        done
    });
    let broke_off = |_| Err(Error::new(ErrorKind::Other, BROKE_OFF));
    pausing.await.unwrap_or_else(broke_off)?;
    shared.renew().await;
    Ok(())
}

/// What the audit log is told of a pause, or of its end: that it has begun, and that it has ended, also when its task
/// goes away.
struct PauseTold {
    operator: Operator,
    handler: HandlerName,
    action: &'static str,
    error: Option<String>,
}

impl PauseTold {
    fn begin(operator: &Operator, handler: &HandlerName, is_pause: bool) -> Self {
        let mut told = Self {
            operator: operator.clone(),
            handler: handler.clone(),
            action: if is_pause { "pause" } else { "resume" },
            error: None,
        };
        told.tell("begun");
        told.error = Some(BROKE_OFF.to_owned());
        told
    }

    fn end(mut self, error: Option<&Error>) {
        self.error = error.map(ToString::to_string);
    }

    fn tell(&self, event: &'static str) {
        tracing::info!(
            target: "inbox::audit",
            operator = %self.operator,
            action = self.action,
            handler = %self.handler,
            error = self.error,
            "{event}"
        );
    }
}

impl Drop for PauseTold {
    fn drop(&mut self) {
        self.tell("ended");
    }
}
