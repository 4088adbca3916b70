//! Changes that were made here, and how far they are.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use maud::{Markup, html};

use super::{button, message_link, moment, optional_moment, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    guard::Visit,
    jobs::{Job, Progress, Target},
    query::Parameters,
    text,
};

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    parameters: Parameters,
) -> Result<Response, Fault> {
    parameters.end()?;
    let jobs = shared.jobs.all();
    let content = html! {
        p { "The latest changes that this process has made; the audit log has all." }
        @if jobs.is_empty() {
            p { "None so far." }
        } @else {
            div.wide tabindex="0" role="region" aria-label="Changes" {
                table {
                    thead { tr {
                        @for name in ["Change", "Begun", "By", "What", "Messages", "Changed", "Refused", "Stands"] {
                            th scope="col" { (name) }
                        }
                    } }
                    tbody { @for job in &jobs { (row(job)) } }
                }
            }
        }
    };
    Ok(visited(&shared, &visit, "changes", "Changes", &content))
}

fn row(job: &Job) -> Markup {
    let progress = job.progress();
    html! {
        tr {
            th scope="row" { a href={ "change?id=" (job.id) } { "#" (job.id) } }
            td { (moment(job.begun)) }
            td { (job.operator.name()) }
            td { (job.verb.name()) }
            td { (job.target) }
            td.number { (text::count(progress.changed)) }
            td.number { (text::count(progress.refused)) }
            td { (stand(&progress)) }
        }
    }
}

/// Where it stands, in a word.
pub(crate) fn stand(progress: &Progress) -> &'static str {
    match progress.ended {
        None => "under way",
        Some(_) if progress.error.is_some() => "failed",
        Some(_) if progress.is_stopped => "stopped",
        Some(_) => "done",
    }
}

pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let id = parameters.read::<u64>("id")?;
    parameters.end()?;
    let id = id.ok_or_else(|| Fault::invalid("`id` is needed"))?;
    let job = shared.jobs.find(id)?;
    let progress = job.progress();
    let own = format!("change?id={id}");
    let content = html! {
        @if progress.ended.is_none() {
            div #live hx-get=(own) hx-trigger="every 1s" hx-select="#live" hx-swap="outerHTML" {
                (live(&shared, &visit, &job, &progress))
            }
            noscript { p { a href=(own) { "Look again" } } }
        } @else {
            div #live { (live(&shared, &visit, &job, &progress)) }
        }
    };
    let title = format!("Change #{id}: {}", job.verb.name());
    Ok(visited(&shared, &visit, "changes", &title, &content))
}

fn live(shared: &Shared, visit: &Visit, job: &Job, progress: &Progress) -> Markup {
    html! {
        p role="status" {
            strong { (text::messages(progress.changed)) " " (job.verb.done()) }
            @if progress.refused > 0 { ", " (text::count(progress.refused)) " refused" }
            " – " (stand(progress))
        }
        @if progress.ended.is_none() {
            @match progress.expected {
                Some(expected) => progress value=(progress.changed + progress.refused) max=(expected.max(1)) aria-label="Progress" {},
                None => progress aria-label="Progress" {},
            }
            @if !shared.options.is_read_only {
                (button(visit, "stop", "Stop", true, &[("id", job.id.to_string())]))
            }
        }
        @if let Some(error) = &progress.error {
            p.fault role="alert" {
                (text::one_line(error, 400))
                ". What is changed is changed; to go on, make the same change again."
            }
        }
        dl {
            dt { "Messages" } dd { (job.target) (link_of(&job.target)) }
            dt { "By" } dd { (job.operator.name()) }
            dt { "Begun" } dd { (moment(job.begun)) }
            @if progress.ended.is_some() { dt { "Ended" } dd { (optional_moment(progress.ended)) } }
        }
        @if !progress.refusals.is_empty() {
            h2 { "Refused" }
            @if progress.refused > progress.refusals.len() as u64 { p { "The first of them:" } }
            ul {
                @for (key, reason) in &progress.refusals { li { (text::one_line(key, 200)) ": " (reason) } }
            }
        }
    }
}

fn link_of(target: &Target) -> Markup {
    html! {
        @if let Target::Keys { keys, .. } = target {
            @if let [key] = keys.as_slice() { ": " (message_link(key)) }
        }
    }
}
